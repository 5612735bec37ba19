"""``thunderfleet-operator plan``: what it reads, what it says, and how it refuses what it cannot read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_operator.cli import main

GIB = 2**30


@pytest.fixture
def files(world: Any, tmp_path: Path) -> Any:
    """Writes the world's objects as kubectl prints them, and a deployment; gives back the two paths."""

    def write(spec: dict[str, Any] | None = None, change: Any = None, text: str | None = None) -> tuple[str, str]:
        items = []
        for path, item in world.objects.items():
            kind = {"nodes": "Node", "nodeprofiles": "NodeProfile", "thunderboltlinks": "ThunderboltLink", "pods": "Pod"}
            found = next((name for part, name in kind.items() if f"/{part}/" in path), None)
            if "modeldeployments" in path:
                found = "ModelDeployment"
            if found:
                version = "v1" if found in ("Node", "Pod") else "thunderfleet.io/v1alpha1"
                items.append({"apiVersion": version, **json.loads(json.dumps(item, default=str)), "kind": found})
        if change:
            change(items)
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(text if text is not None else yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": items}))
        deployment = tmp_path / "md.yaml"
        body = {"model": {"repository": "org/tiny"}, **(spec or {})}
        meta = {"name": "md", "namespace": "ns"}
        deployment.write_text(
            yaml.safe_dump(
                {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment", "metadata": meta, "spec": body}
            )
        )
        return str(fleet), str(deployment)

    return write


def run(files: tuple[str, str], *more: str) -> int:
    return main(["plan", "--fleet", files[0], "--deployment", files[1], *more])


def test_a_table_for_people(files: Any, capsys: Any) -> None:
    assert run(files()) == 0
    text = capsys.readouterr().out
    assert "group 0: TCP ring, Pipeline" in text and "cables: studio-1.tb1--studio-2.tb1" in text
    assert "169.254.1.1" in text and "10.0.0.1:20000" in text and "2-3" in text
    assert "score (compared in this order): transport TCP ring, macs 2" in text and "speed 80 Gb/s" in text


def test_json_and_yaml_say_the_same_by_the_schema(files: Any, capsys: Any) -> None:
    assert run(files(), "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert run(files(), "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == told
    assert main(["plan", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(told) == set(schema["properties"])
    group = told["groups"][0]
    assert set(group) == set(schema["$defs"]["GroupTold"]["properties"])
    assert [(rank["node"], rank["layers"]) for rank in group["ranks"]] == [
        ("studio-1", {"first": 2, "count": 2}),
        ("studio-2", {"first": 0, "count": 2}),
    ]
    assert group["placed"] and told["placed"] and group["proven"] and not group["kept"]


async def test_the_same_place_as_the_operator_chose_and_what_it_holds(files: Any, world: Any, capsys: Any) -> None:
    world.deploy()
    await world.round()
    assert run(files(), "-o", "json") == 0
    group = json.loads(capsys.readouterr().out)["groups"][0]
    assert group["kept"] and [rank["node"] for rank in group["ranks"]] == ["studio-1", "studio-2"]

    # Another deployment finds their memory taken.
    def another(items: list[dict[str, Any]]) -> None:
        for item in items:
            if item["kind"] == "ModelDeployment":
                item["metadata"]["name"] = "other"

    assert run(files(change=another)) == 3
    assert "no place (NoRoom)" in capsys.readouterr().out


def test_several_groups_do_not_take_the_same_room(files: Any, world: Any, capsys: Any) -> None:
    world.mac("big", "10.0.0.9", 17 * GIB)
    assert run(files({"replicas": 3}), "-o", "json") == 3
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [[rank["node"] for rank in group["ranks"]] for group in groups] == [["big"], ["studio-1", "studio-2"], []]
    assert groups[2]["reason"] == "NoRoom" and groups[2]["macs"]


def test_no_place_tells_why_and_ends_with_3(files: Any, capsys: Any) -> None:
    assert run(files({"nodes": {"min": 3}})) == 3
    text = capsys.readouterr().out
    assert "no Thunderbolt cable" in text and "MAC" in text and "mini" in text


def test_runners_up_say_why_they_lost(files: Any, world: Any, capsys: Any) -> None:
    world.mac("studio-3", "10.0.0.4", 6 * GIB)
    world.mac("studio-4", "10.0.0.5", 6 * GIB)
    world.cable("studio-3", "studio-4")
    assert run(files()) == 0
    assert "runner-up: studio-3, studio-4 (Ring, Pipeline): equal in every part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (
            lambda items: items[0]["status"]["allocatable"].update(memory="lots"),
            "Node studio-1: status.allocatable.memory: not a",
        ),
        (
            lambda items: items[1]["status"]["models"][0].update(bytes="many"),
            "NodeProfile studio-1: status.models[0].bytes: Input should be a valid integer",
        ),
        (lambda items: items[0]["metadata"].pop("name"), "a Node: metadata.name: is missing"),
        (lambda items: items.append(items[0]), "Node studio-1: metadata.name: stands there twice"),
        (lambda items: items.clear(), "has no Node: print it with `kubectl get nodes"),
        (lambda items: items.append("x"), "items[7]: must be an object"),
        (lambda items: items[0].update(status=[]), "Node studio-1: status: must be an object"),
    ],
)
def test_bad_objects_are_named(files: Any, capsys: Any, edit: Any, text: str) -> None:
    paths = files(change=edit)
    assert run(paths) == 2
    error = capsys.readouterr().err
    assert f"{paths[0]}: " in error and text in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"model": {}}, "spec.model: names exactly one of repository and path"),
        ({"nodes": {"min": 3, "max": 2}}, "spec.nodes.max: is at least nodes.min (3)"),
        ({"nodes": {"min": 0}}, "spec.nodes.min: Input should be greater than or equal to 1"),
        ({"transport": "Pigeon"}, "spec.transport: Input should be 'Auto'"),
    ],
)
def test_bad_deployments_are_named(files: Any, capsys: Any, spec: dict[str, Any], text: str) -> None:
    paths = files(spec)
    assert run(paths) == 2
    assert f"{paths[1]}: ModelDeployment md: {text}" in capsys.readouterr().err


def test_files_that_cannot_be_read(files: Any, capsys: Any, tmp_path: Path) -> None:
    paths = files()
    assert run((str(tmp_path / "none"), paths[1])) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(files(text="a: [")) == 2
    assert "is neither YAML nor JSON" in capsys.readouterr().err
    assert run((files()[0], paths[0])) == 2
    assert "must hold exactly one ModelDeployment, holds 0" in capsys.readouterr().err
    assert main(["plan"]) == 2 and "--fleet FILE is needed" in capsys.readouterr().err


async def test_groups_that_run_are_counted_once(files: Any, world: Any, capsys: Any) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy(replicas=2, nodes={"max": 1})
    await world.round()
    assert run(files({"replicas": 2, "nodes": {"max": 1}}), "-o", "json") == 0
    first, second = (group["ranks"][0] for group in json.loads(capsys.readouterr().out)["groups"])
    assert first["node"] == second["node"] == "big-1"
    assert second["freeBytes"] == first["freeBytes"], "each beside the other"
    endpoints = [group.endpoint for group in world.md.status.groups]
    assert endpoints == [f"http://{rank['address']}:{rank['gatewayPort']}/v1" for rank in (first, second)]
