"""The Node object from facts and configuration."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.exchange.nodes import has_gpu_memory
from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.node import status as node_status
from thunderfleet_kubelet.node.facts import GIB, Machine, Readings
from thunderfleet_kubelet.pressure import DiskState, thresholds
from thunderfleet_lib.host.descriptors import Descriptors
from thunderfleet_lib.quantity import parse_quantity

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
CONFIG = Config(node_name="studio-1", addresses=["192.168.64.11", "fd00::1"], labels={"rack": "a"}, path=[Path("/x")])
MAC = Machine("darwin", "arm64", 32, 384 * GIB, 1000 * GIB, "macOS 26.3", "25.3.0", "id", "boot", "Apple M3 Ultra")
LINUX = Machine("linux", "amd64", 4, 8 * GIB, 100 * GIB, "Debian", "6.1", "id", "boot")
FINE = Readings(False, "enough", 100, 4000)


def state(machine: Machine = MAC, readings: Readings = FINE, **known: Any) -> dict[str, Any]:
    given_values: dict[str, Any] = {"previous": {}, "problems": {}, "now": NOW, "version": "v1.36.3-thunderfleet.9"}
    given_values |= {"addresses": CONFIG.addresses, "disk": DiskState((), False), **known}
    return node_status.status(CONFIG, machine, readings, **given_values)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [one for one in status["conditions"] if one["type"] == kind]
    return dict(found)


def test_a_mac_registers_with_labels_and_taint() -> None:
    made = node_status.node(CONFIG, MAC, state())
    assert made["metadata"]["labels"] == {
        "rack": "a",
        "kubernetes.io/os": "darwin",
        "kubernetes.io/arch": "arm64",
        "kubernetes.io/hostname": "studio-1",
        "thunderfleet.io/chip": "Apple-M3-Ultra",
    }
    assert made["spec"]["taints"] == [{"key": "thunderfleet.io/macos", "effect": "NoSchedule"}]


def test_linux_has_no_taint_and_no_chip() -> None:
    made = node_status.node(CONFIG, LINUX, state(LINUX))
    assert "taints" not in made["spec"]
    assert "thunderfleet.io/chip" not in made["metadata"]["labels"]
    assert made["metadata"]["labels"]["kubernetes.io/os"] == "linux"


def test_settings_cannot_hide_what_the_machine_is() -> None:
    # The configuration's own check refuses this label; the rule does not depend on it.
    config = replace(CONFIG, labels={"kubernetes.io/os": "windows"})
    assert node_status.labels(config, MAC)["kubernetes.io/os"] == "darwin"


def test_addresses_port_and_features() -> None:
    status = state()
    assert status["addresses"] == [
        {"type": "InternalIP", "address": "192.168.64.11"},
        {"type": "InternalIP", "address": "fd00::1"},
    ]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert status["declaredFeatures"] == ["ExtendWebSocketsToKubelet"]
    assert status["nodeInfo"]["kubeletVersion"] == "v1.36.3-thunderfleet.9"
    assert status["nodeInfo"]["containerRuntimeVersion"] == "process://9+gpu-memory"


def test_a_kubelet_before_gpu_memory_leaves_the_resource_and_takes_back_that_pods_can_request_it() -> None:
    found = state()
    assert has_gpu_memory({"status": found})
    former = {**found, "nodeInfo": {**found["nodeInfo"], "containerRuntimeVersion": "process://8"}}
    for name in ("capacity", "allocatable"):
        former[name] = {key: value for key, value in found[name].items() if key != "thunderfleet.io/gpu-memory"}
    assert node_status.differs(found, former), "it writes its own status"
    # The API server merges what the former kubelet writes.
    merged = {**former, "capacity": found["capacity"] | former["capacity"]}
    merged["allocatable"] = found["allocatable"] | former["allocatable"]
    assert not has_gpu_memory({"status": merged})
    assert node_status.differs(merged, found), "this kubelet publishes it again"


def test_capacity_and_what_is_reserved() -> None:
    config = replace(CONFIG, reserved_cpu_millis=500, reserved_memory_bytes=4 * GIB)
    whole, free = node_status.capacity(config, MAC)
    gpu = "thunderfleet.io/gpu-memory"
    assert whole == {"cpu": "32", "memory": "384Gi", gpu: "384Gi", "ephemeral-storage": "1000Gi", "pods": "110"}
    # Pods cannot have what would cause their eviction.
    assert free == {"cpu": "31500m", "memory": "380Gi", gpu: "380Gi", "ephemeral-storage": "900Gi", "pods": "110"}
    assert gpu not in node_status.capacity(config, LINUX)[0], "a GPU that models cannot use"


@given(st.integers(min_value=0, max_value=2**52))
def test_bytes_are_written_as_the_api_server_writes_them(size: int) -> None:
    text = node_status.binary(size)
    assert parse_quantity(text) == size // 1024 * 1024
    number = text.rstrip("KMGTPi")
    assert size < 1024 or int(number) % 1024 or text.endswith("Pi"), "a larger unit would do"


@pytest.mark.parametrize(
    ("readings", "kind", "status"),
    [
        (Readings(True, "critical", 1, 10), "MemoryPressure", "True"),
        (Readings(None, "?", 1, 10), "MemoryPressure", "Unknown"),
        (Readings(False, "", 9, 10), "PIDPressure", "False"),
        (Readings(False, "", 10, 10), "PIDPressure", "True"),
        (Readings(False, "", None, 10), "PIDPressure", "Unknown"),
    ],
)
def test_pressure(readings: Readings, kind: str, status: str) -> None:
    found = condition(state(readings=readings), kind)
    assert found["status"] == status
    assert found["message"] is not None


@pytest.mark.parametrize(
    ("disk", "status", "text"),
    [
        (DiskState((), False), "False", "kubelet has no disk pressure"),
        (DiskState(), "Unknown", "free disk space is unknown"),
        (DiskState((), True, thresholds({})[:2]), "True", "nodefs.available is below 10%, nodefs.inodesFree is below 5%"),
    ],
)
def test_disk_pressure(disk: DiskState, status: str, text: str) -> None:
    found = condition(state(disk=disk), "DiskPressure")
    assert found["status"] == status
    assert text in found["message"]


def test_a_problem_of_the_kubelet_is_why_it_is_not_ready() -> None:
    found = condition(state(problems={"ServerNotListening": "cannot listen on 1.2.3.4:10250"}), "Ready")
    assert (found["status"], found["reason"]) == ("False", "ServerNotListening")
    assert "1.2.3.4" in found["message"]
    assert condition(state(), "Ready")["status"] == "True"


def test_pods_that_share_a_user_are_a_condition_of_the_node() -> None:
    assert condition(state(), "PodsShareUser")["status"] == "False"
    found = condition(state(shared_user=501), "PodsShareUser")
    assert (found["status"], found["reason"]) == ("True", "KubeletNotRoot")
    assert "user 501" in found["message"]
    assert "run the kubelet as root" in found["message"]


def test_a_kubelet_that_can_open_hardly_any_more_files_says_so_until_it_can() -> None:
    kind = "DescriptorsExhausted"

    def after(previous: dict[str, Any], free: int | None) -> dict[str, Any]:
        return state(previous=previous, descriptors=None if free is None else Descriptors(free, 256))

    def said(found: dict[str, Any]) -> list[tuple[str, str]]:
        return [(one["status"], one["reason"]) for one in found["conditions"] if one["type"] == kind]

    healthy = after({}, 16)
    assert said(healthy) == [] and said(after({}, None)) == []
    starved = after(healthy, 15)
    assert said(starved) == [("True", "KubeletHasFewDescriptors")]
    text = condition(starved, kind)["message"]
    assert "almost all 256 file descriptors of the kubelet" in text and "launchctl kickstart" in text
    assert not node_status.differs(starved, after(starved, 2)), "a number that changes writes nothing"
    for free in (None, 16, 31):
        assert said(after(starved, free)) == [("True", "KubeletHasFewDescriptors")], free
    fed = after(starved, 32)
    assert said(fed) == [("False", "KubeletHasEnoughDescriptors")]
    assert said(after(fed, 20)) == said(fed) and said(after(fed, 3)) == said(starved)


def test_a_control_plane_whose_components_do_not_answer_is_a_condition_of_the_node() -> None:
    plane = replace(CONFIG, control_plane_components=True)

    def of(config: Config, previous: dict[str, Any], **works: bool) -> dict[str, Any]:
        given_values: dict[str, Any] = {"previous": previous, "problems": {}, "now": NOW, "version": "v1"}
        named = {name.replace("_", "-"): answers for name, answers in works.items()}
        return node_status.status(
            config, MAC, FINE, addresses=["192.168.64.11"], disk=DiskState((), False), components=named, **given_values
        )

    first = of(plane, {})
    assert not [one for one in first["conditions"] if one["type"] == "ControlPlaneReady"], "not known yet"
    works = of(plane, first, kube_scheduler=True, kube_controller_manager=True)
    assert condition(works, "ControlPlaneReady")["status"] == "True"
    broken = of(plane, works, kube_scheduler=False, kube_controller_manager=True)
    found = condition(broken, "ControlPlaneReady")
    assert (found["status"], found["reason"]) == ("False", "ComponentDown")
    assert (
        found["message"].startswith("kube-scheduler on this Mac does not answer: ") and "thunderfleet init" in found["message"]
    )
    both = condition(of(plane, works, kube_scheduler=False, kube_controller_manager=False), "ControlPlaneReady")
    assert both["message"].startswith("kube-scheduler and kube-controller-manager on this Mac do not answer")
    assert condition(of(plane, broken), "ControlPlaneReady")["status"] == "False", "a kubelet that starts keeps it"
    gone = of(CONFIG, broken)
    assert not [one for one in gone["conditions"] if one["type"] == "ControlPlaneReady"]
    assert node_status.differs(broken, gone)


def test_a_transition_is_a_change_of_status() -> None:
    first = state()
    later = state(previous=first, now=NOW + timedelta(minutes=5))
    assert condition(later, "Ready")["lastTransitionTime"] == "2026-01-31T12:00:00Z"
    assert condition(later, "Ready")["lastHeartbeatTime"] == "2026-01-31T12:05:00Z"
    broken = state(previous=first, now=NOW + timedelta(minutes=5), problems={"X": "y"})
    assert condition(broken, "Ready")["lastTransitionTime"] == "2026-01-31T12:05:00Z"


def test_conditions_of_others_stay() -> None:
    other = {"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}
    assert other in state(previous={"conditions": [other]})["conditions"]


def test_a_heartbeat_alone_is_no_difference() -> None:
    first = state()
    assert not node_status.differs(first, state(previous=first, now=NOW + timedelta(hours=1)))


def test_what_the_api_server_adds_or_drops_is_no_difference() -> None:
    stored = state()
    stored["images"] = []
    stored["nodeInfo"] = {**stored["nodeInfo"], "swap": {"capacity": 0}}
    del stored["nodeInfo"]["kubeProxyVersion"]
    assert not node_status.differs(stored, state(previous=stored))


@pytest.mark.parametrize(
    "change", [{"readings": Readings(True, "enough", 100, 4000)}, {"disk": DiskState((), True, thresholds({})[:1])}]
)
def test_a_changed_condition_is_a_difference(change: Any) -> None:
    first = state()
    assert node_status.differs(first, state(**change, previous=first))


def test_free_space_that_moves_a_little_is_no_difference() -> None:
    first = state()
    moved = Readings(False, "enough", 101, 4000)
    assert not node_status.differs(first, state(readings=moved, previous=first))


def test_labels_of_others_are_left_alone() -> None:
    assert node_status.stale_labels({"a": "1", "b": "2"}, {"a": "1"}) == {}
    assert node_status.stale_labels({"a": "1"}, {"a": "2", "c": "3"}) == {"a": "2", "c": "3"}


@given(st.text("Apple M3 Ultra-_.0/\\\n\tÄß–Ⅻ٣\u2028\U0001f600", max_size=100))
def test_any_chip_name_makes_a_label_value(text: str) -> None:
    value = node_status.label_value(text)
    assert len(value) <= 63
    assert value == "" or (value[0].isalnum() and value[-1].isalnum() and value.isascii())


def test_the_lease_goes_with_the_node() -> None:
    made = node_status.lease(CONFIG, "uid-1", NOW)
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "studio-1", "uid": "uid-1"}]
    assert made["spec"] == {
        "holderIdentity": "studio-1",
        "leaseDurationSeconds": 40,
        "renewTime": "2026-01-31T12:00:00.000000Z",
    }


def test_a_missing_address_is_a_condition_and_the_last_one_stays_published() -> None:
    assert not [one for one in state()["conditions"] if one["type"] == "NetworkUnavailable"], "it belongs to the network"
    lost = state(no_address="no lease")
    found = condition(lost, "NetworkUnavailable")
    assert (found["status"], found["reason"], found["message"]) == ("True", "NoAddress", "no lease")
    assert lost["addresses"] == state()["addresses"]
    back = condition(state(previous=lost), "NetworkUnavailable")
    assert (back["status"], back["reason"]) == ("False", "HasAddress")
    theirs = {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated", "lastHeartbeatTime": None}
    assert theirs in state(previous={"conditions": [theirs]})["conditions"]


def test_the_renewal_of_a_lease_is_read() -> None:
    made = node_status.lease(CONFIG, "uid", NOW)
    assert node_status.renew_time(made) == NOW
    for odd in ({}, {"spec": None}, {"spec": {"renewTime": None}}, {"spec": {"renewTime": "soon"}}):
        assert node_status.renew_time(odd) < NOW
