"""``plan`` on a fleet whose model is fetched: what the Macs have of it, their free disk, and what would be fetched."""

import json
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_operator.cli import main
from thunderfleet_operator.watch.cache import LINKS, NODEPROFILES, NODES

from tests.support import yamltext
from tests.unit.operator.world import World, tiny_model

Json = dict[str, Any]
GIB = 2**30
COMMIT, DIGEST = "c" * 40, "d" * 64
STORE = "/Library/Thunderfleet/models"
DEPLOYMENT: Json = {
    "apiVersion": "thunderfleet.io/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {"name": "chat", "namespace": "ns"},
    "spec": {"model": {"repository": "o/fresh"}, "nodes": {"min": 2}},
}


def cache(*, resolved: bool = True, **more: object) -> Json:
    facts = {**tiny_model(8 * GIB), "path": "/", "repository": "o/fresh", "revision": COMMIT}
    status = {
        "resolvedFrom": "o/fresh@main",
        "commit": COMMIT,
        "manifest": DIGEST,
        "files": 4,
        "bytes": 8 * GIB,
        "model": facts,
        **more,
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
        items = [{**item, "kind": kind} for found, kind in kinds for item in world.cache[found].items.values()]
        # PyYAML writes only the built-in types, and the cache has one of its own for lists of models.
        self._objects = json.loads(json.dumps(items))

    def plan(self, *more: Json, form: str = "json", copies: str = "Whole") -> tuple[int, str]:
        spec = DEPLOYMENT["spec"]
        deployment = {**DEPLOYMENT, "spec": {**spec, "model": {**spec["model"], "copies": copies}}}
        fleet, wanted = self._folder / "fleet.yaml", self._folder / "deployment.yaml"
        fleet.write_text(yamltext.dump_all([*self._objects, *more]))
        wanted.write_text(yamltext.dump(deployment))
        status = main(["plan", "--fleet", str(fleet), "--deployment", str(wanted), "-o", form])
        said = self._capsys.readouterr()
        assert status in (0, 3), said.err
        return status, said.out

    def weights(self, *more: Json, copies: str = "Whole") -> tuple[int, Json]:
        status, said = self.plan(*more, copies=copies)
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


LAYERS = len(tiny_model(8 * GIB)["pipeline"]["layerBytes"])
FILES: list[Json] = [
    {"file": 1, "bytes": 2 * GIB, "shared": True},
    {"file": 2, "bytes": 3 * GIB, "layers": f"0-{LAYERS // 2 - 1}"},
    {"file": 3, "bytes": 3 * GIB, "layers": f"{LAYERS // 2}-{LAYERS - 1}"},
]


def test_of_parts_each_mac_fetches_the_files_of_its_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path, capsys, a=store(), b=store(), c=store())
    status, weights = fleet.weights(cache(weightFiles=FILES), copies="Shard")
    assert status == 0
    # No Mac can give the other half to the second one.
    assert rows(weights) == {"a": (0, 5, "Hub"), "b": (0, 5, "Hub"), "c": (0, 0, None)}


def test_parts_that_macs_have_are_not_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    has = {**copy(5 * GIB, "Part"), "layers": FILES[1]["layers"]}
    other = {**copy(5 * GIB, "Part"), "layers": FILES[2]["layers"]}
    fleet = Fleet(tmp_path, capsys, a=store(has), b=store(), c=store(other))
    _, weights = fleet.weights(cache(weightFiles=FILES), copies="Shard")
    found = rows(weights)
    # Whichever half each rank has: the other Macs have all files together.
    assert found["a"] in ((5, 0, None), (5, 3, "Peer")) and found["b"] == (0, 5, "Peer")


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
