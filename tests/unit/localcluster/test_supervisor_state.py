"""The state file, the answer to status, and the spec file."""

import json
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.supervisor.spec import ImageSpec, Spec
from thunderfleet_localcluster.supervisor.state import (
    Addresses,
    ComponentStatus,
    MachineStatus,
    cluster_state,
    node_ready,
    status,
    to_json,
)

FLEET = """
machines:
  - {name: a, model: Mac Studio (M3 Ultra), bridge: [1]}
  - {name: b, model: Mac mini (M4)}
  - {name: l, kind: linux}
cables:
  - {a: "a:1", b: "b:1", speed: 40}
"""
SPEC = Spec(
    name="c",
    mode="namespaces",
    reason="",
    assets="/assets",
    fleet=FLEET,
    fleet_file="f",
    image=ImageSpec("i:1", "/i", "/i.lock"),
    kubelet=("kubelet", "-v"),
    audit=True,
)


@pytest.mark.parametrize("kubelet", [None, ("kubelet",)])
def test_a_spec_is_read_as_it_was_written(kubelet: tuple[str, ...] | None) -> None:
    spec = Spec(**{**vars(SPEC), "kubelet": kubelet})
    assert Spec.from_json(spec.to_json()) == spec
    assert Spec.from_json(SPEC.to_json()) == SPEC
    spec = Spec(**{**vars(SPEC), "kubelet": None, "control_plane_mac": "a"})
    assert Spec.from_json(spec.to_json()) == spec


def test_the_state_file_has_addresses_machines_and_cables() -> None:
    layout = plan_layout(parse_fleet(FLEET), "namespaces")
    at = Addresses("https://127.0.0.1:1", "https://192.168.64.1:6443", "http://u:t@127.0.0.1:2", "sha256:0")
    found = cluster_state(SPEC, ClusterFolder(Path("/c")), layout, at)
    assert json.loads(to_json(found)) == found
    assert [machine["name"] for machine in found["machines"]] == ["a", "b", "l"]
    assert found["machines"][0] == {
        "name": "a",
        "kind": "mac",
        "model": "Mac Studio (M3 Ultra)",
        "address": "192.168.64.11",
        "folder": "/c/machines/a",
        "log": "/c/logs/kubelet-a.log",
        "cables": [{"port": 1, "interface": "en2", "address": None, "peer": "b", "peerPort": 1}],
    }
    assert found["machines"][1]["cables"][0]["address"] == "10.64.1.2"
    assert (found["server"], found["innerServer"], found["proxy"]) == (at.server, at.inner_server, at.proxy)
    assert found["image"] == {"name": "i:1", "folder": "/i"} and found["caHash"] == "sha256:0"
    assert found["controlPlaneMac"] is None


def node(name: str, *conditions: tuple[str, str]) -> dict[str, Any]:
    """A Node with conditions (type, status)."""
    found = [{"type": kind, "status": value} for kind, value in conditions]
    return {"metadata": {"name": name}, "status": {"conditions": found}}


def test_a_node_is_ready_if_its_condition_ready_is_true() -> None:
    assert node_ready(node("a", ("MemoryPressure", "False"), ("Ready", "True")))
    others: list[dict[str, Any]] = [
        node("a"),
        node("a", ("Ready", "Unknown")),
        node("a", ("Healthy", "True")),
        {"status": {}},
        {},
    ]
    for other in others:
        assert not node_ready(other)


def test_status_has_ends_of_components_and_nodes_of_machines() -> None:
    components = [
        ComponentStatus("etcd", 5, None, False, "/e.log", ""),
        ComponentStatus("kube-scheduler", None, 7, False, "/s.log", "    oops"),
        ComponentStatus("kube-apiserver", None, -9, True, "/a.log", ""),
    ]
    machines = [
        MachineStatus("a", True, 8, 9, ""),
        MachineStatus("b", False, None, None, "off"),
        MachineStatus("c", True, 1, 2, ""),
    ]
    found = status({"name": "c"}, True, components, machines, [node("a", ("Ready", "True")), node("b")])
    assert found["state"] == {"name": "c", "starting": True}
    assert [(item["pid"], item["end"], item["tail"]) for item in found["components"]] == [
        (5, "", ""),
        (None, "exit code 7", "    oops"),
        (None, "stopped", ""),
    ]
    assert [
        (item["name"], item["on"], item["pid"], item["kubelet"], item["end"], item["node"]) for item in found["machines"]
    ] == [
        ("a", True, 8, 9, "", "Ready"),
        ("b", False, None, None, "off", "NotReady"),
        ("c", True, 1, 2, "", "none"),
    ]
