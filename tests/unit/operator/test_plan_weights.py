"""``plan`` on a fleet whose model is fetched: what the Macs have of it, their free disk, and what would be fetched."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_operator.cli import main
from thunderfleet_operator.watch.cache import LINKS, NODEPROFILES, NODES

from tests.unit.operator.world import World, tiny_model

Json = dict[str, Any]
GIB = 2**30
COMMIT, DIGEST = "c" * 40, "d" * 64
STORE = "/Library/Thunderfleet/models"
DEPLOYMENT = {
    "apiVersion": "thunderfleet.io/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {"name": "chat", "namespace": "ns"},
    "spec": {"model": {"repository": "o/fresh"}, "nodes": {"min": 2}},
}


def cache(*, resolved: bool = True) -> Json:
    facts = {**tiny_model(8 * GIB), "path": "/", "repository": "o/fresh", "revision": COMMIT}
    status = {
        "resolvedFrom": "o/fresh@main",
        "commit": COMMIT,
        "manifest": DIGEST,
        "files": 4,
        "bytes": 8 * GIB,
        "model": facts,
    }
    return {
        "apiVersion": "thunderfleet.io/v1alpha1",
        "kind": "ModelCache",
        "metadata": {"name": "fresh", "namespace": "ns"},
        "spec": {"repository": "o/fresh", "copies": 0},
        "status": status if resolved else {},
    }


def copy(done: int, phase: str = "Copying") -> Json:
    about = {"repository": "o/fresh", "commit": COMMIT, "manifest": DIGEST}
    return {**about, "bytes": 8 * GIB, "bytesDone": done, "phase": phase}


def store(*copies: Json, free: int = 100, **about: object) -> Json:
    return {"store": {"folder": STORE, "freeBytes": free * GIB, **about}, "copies": list(copies)}


class Fleet:
    """Three Macs of 6 GiB, each with a store, in files for ``plan``."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], **stores: Json) -> None:
        self._folder, self._capsys = folder, capsys
        world = World()
        for number, name in enumerate(stores, 1):
            world.mac(name, f"10.0.0.{number}", 6 * GIB, model=None)
            world.change(NODEPROFILES, name, lambda item, told=stores[name]: item["status"].update(told, models=[]))  # type: ignore[misc]
        world.cable("a", "b")
        kinds = ((NODES, "Node"), (NODEPROFILES, "NodeProfile"), (LINKS, "ThunderboltLink"))
        self._objects = [{**item, "kind": kind} for found, kind in kinds for item in world.cache[found].items.values()]

    def plan(self, *more: Json, form: str = "json") -> tuple[int, str]:
        fleet, wanted = self._folder / "fleet.yaml", self._folder / "deployment.yaml"
        fleet.write_text(yaml.safe_dump_all([*self._objects, *more]))
        wanted.write_text(yaml.safe_dump(DEPLOYMENT))
        status = main(["plan", "--fleet", str(fleet), "--deployment", str(wanted), "-o", form])
        said = self._capsys.readouterr()
        assert status in (0, 3), said.err
        return status, said.out

    def weights(self, *more: Json) -> tuple[int, Json]:
        status, said = self.plan(*more)
        return status, json.loads(said)["weights"]


def rows(weights: Json) -> dict[str, tuple[int, int, str | None]]:
    """By Mac, GiB that are present and would be fetched, and from where."""
    return {mac["node"]: (mac["presentBytes"] // GIB, mac["fetchBytes"] // GIB, mac["source"]) for mac in weights["macs"]}


def test_what_would_be_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path, capsys, a=store(), b=store(copy(3 * GIB)), c=store(problem="read-only"))
    status, weights = fleet.weights(cache())
    assert status == 0
    assert (weights["modelCache"], weights["commit"], weights["bytes"]) == ("ns/fresh", COMMIT, 8 * GIB)
    # The one that has part of it reads the rest from the hub.
    assert rows(weights) == {"a": (0, 8, "Peer"), "b": (3, 5, "Hub"), "c": (0, 0, None)}
    assert weights["macs"][2]["problem"] == "read-only"
    _, text = fleet.plan(cache(), form="table")
    lines = [line.split("  ") for line in text.splitlines()]
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("    ")}
    assert told["a"] and any("from another Mac" in " ".join(line) for line in lines), text
    assert "weights: ModelCache ns/fresh" in text and "5.0 GiB from the hub" in text


def test_what_a_mac_has_is_not_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path, capsys, a=store(copy(8 * GIB, "Complete")), b=store(), c=store())
    status, weights = fleet.weights(cache())
    assert status == 0
    assert rows(weights) == {"a": (8, 0, None), "b": (0, 8, "Peer"), "c": (0, 0, None)}


def test_a_disk_without_room_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path, capsys, a=store(free=2), b=store(), c=store(free=2))
    status, said = fleet.plan(cache())
    assert status == 3
    assert "its disk has room for 2.0 GiB of 8.0 GiB" in said


@pytest.mark.parametrize("more", [(), (cache(resolved=False),)])
def test_without_sizes_it_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[Json, ...]
) -> None:
    # What the store has from a deployment that is gone is shown all the same.
    fleet = Fleet(tmp_path, capsys, a=store(copy(GIB)), b=store(), c=store())
    status, said = fleet.plan(*more)
    found = json.loads(said)
    assert status == 3 and found["weights"]["bytes"] is None
    assert rows(found["weights"])["a"] == (1, 0, None)
    assert ("model pull" in found["modelResolved"]) == (not more)
