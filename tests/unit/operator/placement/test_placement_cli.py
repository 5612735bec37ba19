"""``thunderfleet-operator plan``: what it reads, what it prints, and how it reports invalid input."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import Transport
from thunderfleet_operator.cli import main
from thunderfleet_operator.watch.cache import LINKS

from tests.support import yamltext
from tests.unit.operator.world import World

GIB = 2**30
TIME = "2026-01-01T00:00:00Z"
MEASURED = {
    "from": "studio-1",
    "to": "studio-2",
    "transport": "Socket",
    "throughputMbps": 20_000,
    "measuredAt": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def files(world: World, tmp_path: Path) -> Any:
    """Writes the world's objects as kubectl prints them, and a deployment; returns the two paths."""

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
        fleet.write_text(text if text is not None else yamltext.dump({"kind": "List", "apiVersion": "v1", "items": items}))
        deployment = tmp_path / "md.yaml"
        body = {"model": {"repository": "org/tiny"}, **(spec or {})}
        meta = {"name": "md", "namespace": "ns"}
        deployment.write_text(
            yamltext.dump({"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment", "metadata": meta, "spec": body})
        )
        return str(fleet), str(deployment)

    return write


def run(files: tuple[str, str], *more: str) -> int:
    return main(["plan", "--fleet", files[0], "--deployment", files[1], *more])


def test_a_table_for_people(files: Any, capsys: Any) -> None:
    assert run(files()) == 0
    text = capsys.readouterr().out
    assert "group 0: TCP ring, Pipeline\n" in text
    rows = [line.split() for line in text.splitlines()]
    assert rows[6][:6] == ["RANK", "MAC", "LAYERS", "MEMORY", "FREE", "BEFORE"] and "RDMA" not in text.split("ranks:")[1]
    assert rows[7] == ["0", "studio-1", "2-3", "4.4", "GiB", "6.0", "GiB", "10.0.0.1:20000", "169.254.1.1", "-"]
    assert rows[8] == ["1", "studio-2", "0-1", "4.4", "GiB", "6.0", "GiB", "-", "169.254.1.2", "10.0.0.1"]
    assert "    0 ↔ 1  studio-1.tb1--studio-2.tb1  28 Gb/s  expected, not measured\n" in text
    parts = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    assert ["transport", "TCP ring", "how the ranks communicate"] in parts
    assert ["bandwidth", "not measured", "slowest memory of its Macs; faster is better"] in parts
    assert ["speed", "28 Gb/s (expected; hops not measured: 2)", "slowest hop; faster is better"] in parts


def test_json_and_yaml_say_the_same_by_the_schema(files: Any, capsys: Any) -> None:
    assert run(files(), "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert run(files(), "-o", "yaml") == 0
    assert yamltext.load(capsys.readouterr().out) == report
    assert main(["plan", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(report) == set(schema["properties"])
    group = report["groups"][0]
    assert set(group) == set(schema["$defs"]["GroupReport"]["properties"])
    assert [(rank["node"], rank["layers"]) for rank in group["ranks"]] == [
        ("studio-1", {"first": 2, "count": 2}),
        ("studio-2", {"first": 0, "count": 2}),
    ]
    assert group["placed"] and report["placed"] and group["proven"] and not group["kept"]


async def test_the_same_place_as_the_operator_chose_and_what_it_holds(files: Any, world: World, capsys: Any) -> None:
    world.deploy()
    await world.round()
    assert run(files(), "-o", "json") == 0
    group = json.loads(capsys.readouterr().out)["groups"][0]
    assert group["kept"] and [rank["node"] for rank in group["ranks"]] == ["studio-1", "studio-2"]

    # For another deployment their memory is taken.
    def another(items: list[dict[str, Any]]) -> None:
        for item in items:
            if item["kind"] == "ModelDeployment":
                item["metadata"]["name"] = "other"

    assert run(files(change=another)) == 3
    assert "no placement (NoRoom)" in capsys.readouterr().out


def test_several_groups_do_not_take_the_same_room(files: Any, world: World, capsys: Any) -> None:
    world.mac("big", "10.0.0.9", 17 * GIB)
    assert run(files({"replicas": 3}), "-o", "json") == 3
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [[rank["node"] for rank in group["ranks"]] for group in groups] == [["big"], ["studio-1", "studio-2"], []]
    assert groups[2]["reason"] == "NoRoom" and groups[2]["macs"]


def test_no_place_tells_why_and_ends_with_3(files: Any, capsys: Any) -> None:
    assert run(files({"nodes": {"min": 3}})) == 3
    text = capsys.readouterr().out
    assert "no Thunderbolt cable" in text and "MAC" in text and "mini" in text


def test_runners_up_say_why_they_lost(files: Any, world: World, capsys: Any) -> None:
    world.mac("studio-3", "10.0.0.4", 6 * GIB)
    world.mac("studio-4", "10.0.0.5", 6 * GIB)
    world.cable("studio-3", "studio-4")
    assert run(files()) == 0
    assert (
        "    studio-3, studio-4  TCP ring   Pipeline  equal score; the order of the Macs by free memory"
        in capsys.readouterr().out
    )
    assert run(files(), "--runners-up", "0") == 0
    assert "runners-up: none" in capsys.readouterr().out
    world.change(LINKS, "studio-1.tb1--studio-2.tb1", lambda item: item["status"].update(measurements=[MEASURED]))
    assert run(files(), "-o", "json") == 0
    group = json.loads(capsys.readouterr().out)["groups"][0]
    assert [rank["node"] for rank in group["ranks"]] == ["studio-3", "studio-4"]
    assert group["runnersUp"][0]["nodes"] == ["studio-1", "studio-2"]
    assert group["runnersUp"][0]["why"] == ("slowest hop 20 Gb/s, measured instead of 28 Gb/s (expected; hops not measured: 2)")
    assert run(files({"model": {"path": "/models/org/tiny"}, "nodes": {"min": 2, "max": 2}}), "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["hops"][0] == {
        "ranks": [0, 1], "cable": "studio-3.tb1--studio-4.tb1", "speedMbps": 28000, "measured": False,
    }  # fmt: skip


def conforms(value: Any, schema: dict[str, Any], whole: dict[str, Any], where: str = "") -> None:
    """Checks a value against a JSON Schema with the keywords that the output's schema uses."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        assert value is not None or any(option.get("type") == "null" for option in schema["anyOf"]), where
        rest = [option for option in schema["anyOf"] if option.get("type") != "null"]
        if value is not None:
            assert len(rest) == 1
            conforms(value, rest[0], whole, where)
        return
    kinds: dict[str, type] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = kinds[schema["type"]]
    assert isinstance(value, kind) and (kind is not int or not isinstance(value, bool)), where
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"]), where
        for name, part in value.items():
            conforms(part, schema["properties"][name], whole, f"{where}.{name}")
    if isinstance(value, list):
        for number, part in enumerate(value):
            items = schema["prefixItems"][number] if "prefixItems" in schema else schema["items"]
            conforms(part, items, whole, f"{where}[{number}]")


@pytest.mark.parametrize("spec", [{}, {"nodes": {"min": 3}}, {"replicas": 2}, {"transport": "JACCL"}])
def test_what_is_printed_conforms_to_the_schema(files: Any, capsys: Any, spec: dict[str, Any]) -> None:
    assert main(["plan", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert run(files(spec), "-o", "json") in (0, 3)
    conforms(json.loads(capsys.readouterr().out), schema, schema)


async def test_without_configmaps_the_statuses_tell_who_uses_which_cable(files: Any, world: World, capsys: Any) -> None:
    for name in ("studio-1", "studio-2"):
        world.mac(name, f"10.0.0.{name[-1]}", 12 * GIB)
    second: dict[str, Any] = {"metadata": {"name": "studio-1.tb2--studio-2.tb2"}, "spec": {}, "status": {}}
    second["spec"] = {side: {"node": f"studio-{number}", "port": 2} for number, side in ((1, "a"), (2, "b"))}
    ends = [
        {"node": f"studio-{n}", "port": 2, "address": f"169.254.5.{n}", "speedMbps": 40000, "seesPeer": True} for n in (1, 2)
    ]
    second["status"] = {"endpoints": ends}
    world.put(LINKS, second)
    world.deploy(nodes={"min": 2})
    await world.round()
    world.run_pods()
    await world.round()

    def another(items: list[dict[str, Any]]) -> None:
        assert not any(item["kind"] == "ConfigMap" for item in items)
        for item in items:
            if item["kind"] == "ModelDeployment":
                item["metadata"]["name"] = "other"

    assert run(files({"nodes": {"min": 2}}, another), "-o", "json") == 0
    group = json.loads(capsys.readouterr().out)["groups"][0]
    assert group["cables"] == ["studio-1.tb2--studio-2.tb2"], "the faster one is in use"
    assert next(part["value"] for part in group["score"] if part["part"] == "shared") == 2, "both Macs, and no cable"


JUNK: tuple[Any, ...] = (None, [], {}, "x", 7, [None], ["x"], [{}], {"x": 1}, True)


@pytest.mark.parametrize("kind", ["Node", "Pod", "NodeProfile", "ThunderboltLink", "ModelDeployment"])
async def test_nothing_that_is_out_of_place_ends_in_a_traceback(files: Any, world: World, capsys: Any, kind: str) -> None:
    """Each field in turn gets another type: the command prints a plan, or one line that names the object."""
    world.deploy()
    await world.round()
    world.run_pods()
    await world.round()
    paths: list[tuple[Any, ...]] = []

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        paths.append(path)
        for key in value if isinstance(value, dict) else range(min(1, len(value))) if isinstance(value, list) else ():
            walk(value[key], (*path, key))

    def first(items: list[dict[str, Any]]) -> dict[str, Any]:
        return next(item for item in items if item["kind"] == kind)

    def walk_parts(items: list[dict[str, Any]]) -> None:
        for part in ("metadata", "spec", "status"):
            if part in first(items):
                walk(first(items)[part], (part,))

    files(change=walk_parts)
    for number, path in enumerate(paths[:: 1 + len(paths) // 40]):
        junk = JUNK[number % len(JUNK)]

        def spoil(items: list[dict[str, Any]], path: tuple[Any, ...] = path, junk: Any = junk) -> None:
            inner: Any = first(items)
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = junk

        status = run(files(change=spoil))
        output = capsys.readouterr()
        assert status in (0, 3) or (status == 2 and output.err.count("\n") == 1 and kind in output.err), (
            path,
            junk,
            output.err,
        )


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
        (lambda items: items[0]["metadata"].pop("name"), "Node: metadata.name: is required"),
        (lambda items: items.append(items[0]), "Node studio-1: metadata.name: duplicate"),
        (lambda items: items.clear(), "contains no Node; create the file with `kubectl get nodes"),
        (lambda items: items.append("x"), "items[7]: must be an object"),
        (lambda items: items[0].update(status=[]), "Node studio-1: status: must be an object"),
    ],
)
def test_bad_objects_are_named(files: Any, capsys: Any, edit: Any, text: str) -> None:
    paths = files(change=edit)
    assert run(paths) == 2
    error = capsys.readouterr().err
    assert f"{paths[0]}: " in error and text in error and error.count("\n") == 1


NODE = "kind: Node\nmetadata: {name: studio-1}\n"
HOSTILE = {
    "a number of 100,000 digits": f"{NODE}status: {{x: {'9' * 100_000}}}",
    "no date": f"{NODE}status: {{x: 2026-13-45}}",
    "memory of a million digits": f"{NODE}status: {{allocatable: {{memory: '{'9' * 1_000_000}'}}}}",
    "a name of ten megabytes": f"kind: Node\nmetadata: {{name: '{'x' * 10_000_000}'}}",
    "a kind of ten megabytes": f"kind: {'x' * 10_000_000}\nmetadata: {{}}",
    "a name that clears the terminal": 'kind: Node\nmetadata: {name: "\\x1b[2J"}',
    "a list that contains itself": "&a\nkind: List\nitems: [*a]",
    "taints that contain themselves": f"{NODE}spec: {{taints: &t [*t]}}",
    "nested lists": "[" * 20_000 + "]" * 20_000,
    "a Python object": "!!python/object/apply:os.getcwd []",
    "an infinite number": f"{NODE}status: {{allocatable: {{memory: .inf}}}}",
    "not a number": f"{NODE}status: {{allocatable: {{memory: .nan}}}}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_in_one_short_line(files: Any, capsys: Any, text: str) -> None:
    assert run(files(text=text)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error) < 1_000 and error[:-1].isprintable()


def test_what_agents_write_cannot_control_a_terminal(files: Any, capsys: Any) -> None:
    def lie(items: list[dict[str, Any]]) -> None:
        for item in items:
            if item["kind"] == "NodeProfile":
                item["status"]["models"][0] |= {"complete": False, "problem": "\x1b[2Jstudio-2\nis fine\u202e"}

    for form in ("table", "yaml", "json"):
        assert run(files(change=lie), "-o", form) == 3
        output = capsys.readouterr().out
        assert "is fine" in output and output.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"model": {}}, "spec.model: set exactly one of repository, path and uri"),
        ({"nodes": {"min": 3, "max": 2}}, "spec.nodes.max: must be at least spec.nodes.min (3)"),
        ({"nodes": {"min": 0}}, "spec.nodes.min: Input should be greater than or equal to 1"),
        ({"transport": "Pigeon"}, "spec.transport: must be one of Auto, JACCL, JACCLRing, Ring"),
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
    assert "is not valid YAML or JSON" in capsys.readouterr().err
    assert run((files()[0], paths[0])) == 2
    assert "must contain exactly one ModelDeployment, found 0" in capsys.readouterr().err
    assert main(["plan"]) == 2 and "set one of --fleet FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "change", "text"),
    [
        ({"nodez": {}}, None, "ModelDeployment md: spec.nodez: unknown field"),
        ({"nodes": {"mni": 2}}, None, "ModelDeployment md: spec.nodes.mni: unknown field"),
        (None, lambda items: items[1]["status"].update(modelz=[]), "NodeProfile studio-1: status.modelz: unknown field"),
        (
            None,
            lambda items: items[0]["metadata"].update(name="Studio_1"),
            "Node Studio_1: metadata.name: must have at most 253",
        ),
    ],
)
def test_what_the_api_server_would_refuse_is_refused(files: Any, capsys: Any, spec: Any, change: Any, text: str) -> None:
    assert run(files(spec, change)) == 2
    assert text in capsys.readouterr().err


def test_names_of_deployments_begin_with_a_letter(files: Any, capsys: Any, tmp_path: Path) -> None:
    paths = files()
    (tmp_path / "md.yaml").write_text((tmp_path / "md.yaml").read_text().replace("name: md", "name: 1md"))
    assert run(paths) == 2 and "metadata.name: must have at most" in capsys.readouterr().err


def test_the_fleet_may_come_from_standard_input(files: Any, capsys: Any, monkeypatch: Any) -> None:
    fleet, deployment = files()
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(fleet).read_text()))
    assert main(["plan", "--fleet", "-", "--deployment", deployment]) == 0
    assert main(["plan", "--fleet", "-", "--deployment", "-"]) == 2
    assert "only one of --fleet and --deployment can be -" in capsys.readouterr().err
    assert main(["plan", "--fleet", fleet, "--context", "x", "--deployment", deployment]) == 2
    assert "set one of --fleet FILE and --context NAME" in capsys.readouterr().err


def test_a_context_that_is_not_known_is_named(files: Any, capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    (tmp_path / "kubeconfig").write_text("apiVersion: v1\nkind: Config\ncontexts: []\nclusters: []\nusers: []\n")
    assert main(["plan", "--context", "lab", "--deployment", files()[1]]) == 2
    assert "--context lab: " in capsys.readouterr().err


def rdma_ready(items: list[dict[str, Any]]) -> None:
    """All studios can use RDMA over their first two ports, with MLX that has jaccl."""
    for item in items:
        if item["kind"] == "NodeProfile":
            ports = [{"receptacle": i, "interface": f"en{i}", "rdmaDevice": f"rdma_en{i}", "connected": True} for i in (1, 2)]
            devices = [
                {"name": f"rdma_en{i}", "interface": f"en{i}", "state": "Active", "gid": "::ffff:1.2.3.4"} for i in (1, 2)
            ]
            item["status"]["thunderbolt"] = {"ports": ports}
            item["status"]["rdma"] = {"enabled": True, "devices": devices}
            item["status"]["runtime"]["backends"] = ["jaccl", "ring"]
        if item["kind"] == "ThunderboltLink":
            for end in item["status"]["endpoints"]:
                end.update(rdmaDevice="rdma_en1", rdmaState="Active", interface="en1")


def planned(files: Any, capsys: Any, change: Any, *more: str, spec: Any = None) -> dict[str, Any]:
    run(files(spec or {"nodes": {"min": 2}}, change), "-o", "json", *more)
    output = capsys.readouterr()
    assert not output.err, output.err
    group: dict[str, Any] = json.loads(output.out)["groups"][0]
    return group


def test_whether_a_cable_can_be_used_follows_from_the_file(files: Any, capsys: Any) -> None:
    def slow(items: list[dict[str, Any]]) -> None:
        rdma_ready(items)
        for item in items:
            if item["kind"] == "ThunderboltLink":
                said = {"type": "RDMAUsable", "status": "True", "reason": "Usable", "message": "", "lastTransitionTime": TIME}
                item["status"]["conditions"] = [said]
                for end in item["status"]["endpoints"]:
                    end["speedMbps"] = 40_000

    assert planned(files, capsys, rdma_ready)["transport"] == "JACCL", "no condition says so"
    assert planned(files, capsys, slow)["transport"] == "Ring", "RDMA needs Thunderbolt 5, whatever the condition says"


def test_what_if_there_were_a_cable(files: Any, capsys: Any) -> None:
    def none(items: list[dict[str, Any]]) -> None:
        rdma_ready(items)
        items[:] = [item for item in items if item["kind"] != "ThunderboltLink"]

    assert not planned(files, capsys, none)["placed"]
    group = planned(files, capsys, none, "--what-if", "cable studio-2:2 studio-1:1 80")
    assert (group["transport"], group["cables"]) == ("JACCL", ["studio-1.tb1--studio-2.tb2"])
    assert planned(files, capsys, none, "--what-if", "cable studio-1:1 studio-2:2 40")["transport"] == "Ring"
    for text, why in (
        ("cable a b", "must read 'cable MAC:PORT MAC:PORT GBPS'"),
        ("cable studio-1:1 studio-1:2 80", "between two Macs"),
        ("cable studio-1:9 studio-2:1 80", "studio-1 has no port 9; its ports are 1, 2"),
        ("cable nobody:1 studio-1:1 80", "nobody has no NodeProfile"),
    ):
        assert run(files({}, none), "--what-if", text) == 2
        assert why in capsys.readouterr().err


def test_a_new_cable_has_addresses_that_nobody_has_dialled(files: Any, capsys: Any) -> None:
    """An earlier cable had such addresses, and they did not answer."""

    def dialled(items: list[dict[str, Any]]) -> None:
        rdma_ready(items)
        items[:] = [item for item in items if item["kind"] != "ThunderboltLink"]
        for item in items:
            if item["kind"] == "NodeProfile":
                other = "studio-2" if item["metadata"]["name"] == "studio-1" else "studio-1"
                at = [f"169.254.{network}.{host}" for network in range(3) for host in (1, 2)]
                rows = [{"node": other, "address": address, "state": "Unreachable", "since": TIME} for address in at]
                item["status"]["reachability"] = rows

    more = ("--what-if", "cable studio-1:1 studio-2:1 80")
    group = planned(files, capsys, dialled, *more, spec={"nodes": {"min": 2}, "transport": "Ring"})
    assert sorted(rank["ringAddress"] for rank in group["ranks"]) == ["169.254.1.5", "169.254.1.6"]


def test_without_a_mac(files: Any, capsys: Any) -> None:
    assert planned(files, capsys, None)["placed"]
    assert planned(files, capsys, None, "--without", "studio-1")["placed"] is False
    assert run(files(), "--without", "nobody") == 2 and "no such Node" in capsys.readouterr().err


async def test_a_group_that_runs_is_shown_as_it_runs(files: Any, world: World, capsys: Any) -> None:
    world.deploy(nodes={"min": 2})
    await world.round()
    world.run_pods()
    await world.round()
    (before,) = world.md.status.groups
    group = planned(files, capsys, rdma_ready, spec={"nodes": {"min": 2}})
    assert before.transport is Transport.RING and (group["kept"], group["transport"]) == (True, "Ring")
    assert [rank["memoryBytes"] for rank in group["ranks"]] == [rank.memory_bytes for rank in before.ranks]
    changed = planned(files, capsys, rdma_ready, spec={"nodes": {"min": 2, "max": 2}})
    assert changed["transport"] == "JACCL", "another spec is rolled out"


async def test_groups_that_run_are_counted_once(files: Any, world: World, capsys: Any) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy(replicas=2, nodes={"max": 1})
    await world.round()
    assert run(files({"replicas": 2, "nodes": {"max": 1}}), "-o", "json") == 0
    first, second = (group["ranks"][0] for group in json.loads(capsys.readouterr().out)["groups"])
    assert first["node"] == second["node"] == "big-1"
    assert second["freeBytes"] == first["freeBytes"], "each beside the other"
    endpoints = [group.endpoint for group in world.md.status.groups]
    assert endpoints == [f"http://{rank['address']}:{rank['gatewayPort']}/v1" for rank in (first, second)]
