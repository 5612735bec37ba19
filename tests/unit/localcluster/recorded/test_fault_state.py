"""Faults of a running fleet: both ends of a cable agree, and commands can be damaged and mended."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.fault_state import FaultState, ends_of, find_cable
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import Layout, plan_layout
from thunderfleet_localcluster.recorded import network
from thunderfleet_localcluster.recorded.folder import texts, write_machine
from thunderfleet_localcluster.recorded.thunderbolt import thunderbolt

from tests.support.generated import examples

FLEET = """
machines:
  - {name: a, model: Mac Studio (M3 Ultra), rdma: true}
  - {name: b, model: Mac Studio (M3 Ultra), rdma: true}
  - {name: c, model: Mac Studio (M3 Ultra), rdma: true}
cables:
  - {a: "a:1", b: "b:2", speed: 80}
  - {a: "b:3", b: "c:1", speed: 80, rateMbps: 500}
"""


@pytest.fixture
def plan() -> Layout:
    return plan_layout(parse_fleet(FLEET), "namespaces")


def sees(layout: Layout, name: str) -> list[int]:
    """The ports of a Mac at which a peer shows."""
    report = thunderbolt(layout, layout.machine(name))["SPThunderboltDataType"]
    return sorted(int(bus["receptacle_1_tag"]["receptacle_id_key"]) for bus in report if bus.get("_items"))


def active(layout: Layout, name: str) -> list[str]:
    found = texts(layout, layout.machine(name))
    return [key.partition(".")[2] for key, text in found.items() if key.startswith("ibv_devinfo.") and "PORT_ACTIVE" in text]


def test_a_pulled_cable_is_gone_at_both_ends_and_back_when_plugged(plan: Layout) -> None:
    index = find_cable(plan, "b:2")
    assert index == find_cable(plan, "a:1")
    pulled = FaultState().with_cable(index, "pull").layout(plan)
    assert (sees(pulled, "a"), sees(pulled, "b"), sees(pulled, "c")) == ([], [3], [1])
    assert active(pulled, "a") == [] and active(pulled, "b") == ["rdma_en4"]
    assert "status: inactive" in texts(pulled, pulled.machine("a"))["ifconfig.en2"]
    plugged = FaultState().with_cable(index, "pull").with_cable(index, "plug").layout(plan)
    assert plugged == plan


def test_a_slow_cable_says_so_at_both_ends_and_loses_rdma_below_thunderbolt_5(plan: Layout) -> None:
    state = FaultState().with_cable(0, "slow", speed="40")
    now = state.layout(plan)
    for name in "ab":
        assert '"40 Gb/s"' in texts(now, now.machine(name))["SPThunderboltDataType.json"]
    assert active(now, "a") == []
    assert [FaultState().with_cable(0, "slow", 100).rate(end) for _, end in ends_of(plan, 0)] == [100, 100]
    # Plugging a cable in restores the settings of the fleet file.
    slowed = FaultState().with_cable(1, "slow", 100).with_cable(1, "plug")
    assert [slowed.rate(end) for _, end in ends_of(plan, 1)] == [500, 500]


def test_rdma_off_is_seen_by_the_peer_too(plan: Layout) -> None:
    now = FaultState().with_rdma("b", "off").layout(plan)
    assert texts(now, now.machine("b"))["rdma_ctl"] == "disabled\n"
    assert active(now, "a") == [] and active(now, "b") == []
    assert FaultState().with_rdma("b", "hang").damaged("b") == {"ibv_devices": "hang", "ibv_devinfo": "hang"}


def test_a_mac_unplugged_from_the_lan_keeps_its_cables(plan: Layout) -> None:
    state = FaultState().with_lan("a", "pull")
    now = state.layout(plan)
    assert "status: inactive" in texts(now, now.machine("a"))["ifconfig.en0"]
    assert "status: active" in texts(now, now.machine("b"))["ifconfig.en0"]
    assert sees(now, "a") == sees(plan, "a")
    assert state.with_lan("a", "plug") == FaultState()


def test_a_mac_that_is_off_leaves_idle_ports_and_comes_back_with_other_uuids(plan: Layout) -> None:
    state = FaultState().with_rdma("b", "hang").with_power("b", False)
    off = state.layout(plan)
    assert sees(off, "a") == [] and sees(off, "c") == []
    on = state.with_power("b", True)
    assert on.damaged("b") == {}, "a reboot mends a dead stack"
    assert on.with_power("b", False).with_power("b", True).boots == {"b": 2}
    again = on.layout(plan)
    before, after = texts(plan, plan.machine("b")), texts(again, again.machine("b"))
    uuids = [json.loads(text["SPThunderboltDataType.json"])["SPThunderboltDataType"] for text in (before, after)]
    assert {bus["domain_uuid_key"] for bus in uuids[0]}.isdisjoint(bus["domain_uuid_key"] for bus in uuids[1])
    assert [bus["switch_uid_key"] for bus in uuids[0]] == [bus["switch_uid_key"] for bus in uuids[1]]
    seen = json.loads(texts(again, again.machine("a"))["SPThunderboltDataType.json"])["SPThunderboltDataType"]
    assert {item["domain_uuid_key"] for bus in seen for item in bus.get("_items", [])} <= {
        bus["domain_uuid_key"] for bus in uuids[1]
    }


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.sampled_from(["pull", "plug", "slow"])), max_size=8))
def test_both_ends_agree_whatever_happens(steps: list[tuple[int, str]]) -> None:
    plan, state = plan_layout(parse_fleet(FLEET), "loopback"), FaultState()
    for index, action in steps:
        state = state.with_cable(index, action, speed="20")
    now = state.layout(plan)
    for index, (a, b) in enumerate((("a:1", "b:2"), ("b:3", "c:1"))):
        ends = [(end.partition(":")[0], int(end.partition(":")[2])) for end in (a, b)]
        shown = {port in sees(now, name) for name, port in ends}
        assert shown == {index not in state.pulled}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state, plan: find_cable(plan, "a:6"), "cable ends: a:1, b:2, b:3, c:1"),
        (lambda state, plan: state.with_cable(0, "slow"), "--rate MBPS"),
        (lambda state, plan: state.with_cable(0, "slow", 0), "1 to 100000"),
        (lambda state, plan: state.with_cable(0, "slow", None, "41"), "20, 40, 80, 120/40"),
        (lambda state, plan: state.with_cable(0, "burn"), "pull, plug, slow, cut, move"),
        (lambda state, plan: state.with_move(plan, "a:1", "d:1"), "with one of a, b, c"),
        (
            lambda state, plan: state.with_move(plan, "a:1", "a:9"),
            "a has no port 9: a Mac Studio (M3 Ultra) has the Thunderbolt ports 1 to 6",
        ),
        (lambda state, plan: state.with_move(plan, "a:1", "b:4"), "other end is at b:2"),
        (lambda state, plan: state.with_move(plan, "a:1", "c:1"), "c:1 is in use"),
        (lambda state, plan: state.with_move(plan, "a:5", "c:2"), "no cable at a:5"),
        (lambda state, plan: state.with_rdma("a", "maybe"), "on, off, hang"),
        (lambda state, plan: state.with_damage("a", "ls", "hang"), "system_profiler"),
        (lambda state, plan: state.with_damage("a", "ifconfig", "burn"), "hang"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(change: Callable[..., Any], says: str, plan: Layout) -> None:
    with pytest.raises(LocalClusterError, match=re.escape(says)) as caught:
        change(FaultState(), plan)
    assert caught.value.usage


@pytest.mark.parametrize("damage", ["fail", "garble", "half", "empty", "absent", "hang"])
def test_a_damaged_command_is_mended(damage: str, plan: Layout, tmp_path: Path) -> None:
    machine, folder = plan.machine("a"), tmp_path / "a mac" / "bin"
    path = folder / "ibv_devices"
    write_machine(plan, machine, folder)
    whole = subprocess.run([path], capture_output=True, check=True).stdout
    write_machine(plan, machine, folder, FaultState().with_damage("a", "ibv_devices", damage).damaged("a"))
    if damage == "absent":
        assert not path.exists()
    elif damage == "hang":
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run([path], capture_output=True, check=False, timeout=0.3)
    else:
        done = subprocess.run([path], capture_output=True, check=False)
        assert done.stdout != whole
        assert done.returncode == (5 if damage == "fail" else 0)
    write_machine(plan, machine, folder, FaultState().damaged("a"))
    assert subprocess.run([path], capture_output=True, check=True).stdout == whole


def ends(layout: Layout, index: int) -> list[tuple[str, int, str, str]]:
    return [(name, end.port, end.interface, str(end.address and end.address.ip)) for name, end in ends_of(layout, index)]


def test_a_moved_cable_is_at_its_new_port_for_both_ends_and_keeps_its_addresses(plan: Layout) -> None:
    state = FaultState().with_move(plan, "a:1", "a:4")
    now = state.layout(plan)
    assert ends(plan, 0) == [("a", 1, "en2", "10.64.1.1"), ("b", 2, "en3", "10.64.1.2")]
    assert ends(now, 0) == [("a", 4, "en5", "10.64.1.1"), ("b", 2, "en3", "10.64.1.2")]
    assert (sees(now, "a"), sees(now, "b")) == ([4], [2, 3])
    assert active(now, "a") == ["rdma_en5"] and "10.64.1.1" in texts(now, now.machine("a"))["ifconfig.en5"]
    (end,) = [end for end in now.machine("b").ends if end.index == 0]
    assert (end.peer, end.peer_port) == ("a", 4)
    # It can be moved again from its new port, also to another Mac, and back.
    far = state.with_move(plan, "a:4", "c:6")
    assert ends(far.layout(plan), 0) == [("b", 2, "en3", "10.64.1.2"), ("c", 6, "en7", "10.64.1.1")]
    assert far.with_move(plan, "c:6", "a:1").layout(plan) == plan
    with pytest.raises(LocalClusterError, match="no cable at a:1; cable ends:"):
        find_cable(far.rewired(plan), "a:1")


def test_a_cable_moved_to_a_thunderbolt_4_mac_negotiates_less_and_one_in_a_bridge_loses_its_address() -> None:
    text = FLEET.replace("cables:", "  - {name: m, model: Mac mini (M4)}\n  - {name: v, model: Virtual Mac (M4 Max)}\ncables:")
    plan = plan_layout(parse_fleet(text.replace("name: c,", "name: c, bridge: [2],")), "loopback")
    state = FaultState().with_move(plan, "b:2", "m:3")
    now = state.layout(plan)
    assert {end.cable.speed for _, end in ends_of(now, 0)} == {"40"} and active(now, "a") == []
    assert {end.cable.speed for _, end in ends_of(state.with_move(plan, "m:3", "b:2").layout(plan), 0)} == {"80"}
    bridged = FaultState().with_move(plan, "b:2", "c:2").layout(plan)
    assert [str(end.address and end.address.ip) for _, end in ends_of(bridged, 0)] == ["127.64.1.1", "None"]
    with pytest.raises(LocalClusterError, match="has no Thunderbolt port"):
        state.with_move(plan, "a:1", "v:1")


def test_a_cable_moved_out_of_a_bridge_has_the_address_beside_the_other_ends() -> None:
    for cabled, bridged, moved in (("a:1", "a", "a:4"), ("b:2", "b", "b:4")):
        plan = plan_layout(parse_fleet(FLEET.replace(f"name: {bridged},", f"name: {bridged}, bridge: [1, 2],")), "loopback")
        addresses = {name: str(end.address and end.address.ip) for name, end in ends_of(plan, 0)}
        assert addresses == {"a": "127.64.1.1", "b": "127.64.1.2"} | {bridged: "None"}
        now = FaultState().with_move(plan, cabled, moved).layout(plan)
        assert {name: str(end.address and end.address.ip) for name, end in ends_of(now, 0)} == {
            "a": "127.64.1.1",
            "b": "127.64.1.2",
        }


def test_a_cut_in_one_direction_changes_nothing_that_is_printed_and_a_plug_heals_it(plan: Layout) -> None:
    state = FaultState().with_one_way(0, "a")
    assert state.layout(plan) == plan and state.one_way == {(0, "a")}
    assert state.with_cable(0, "plug") == FaultState() and state.with_cable(1, "plug") == state
    assert state.with_move(plan, "a:1", "a:2").one_way == frozenset()


def test_a_port_with_a_device_takes_no_cable_and_the_others_do() -> None:
    plan = plan_layout(
        parse_fleet(FLEET.replace("{name: c,", "{name: c, devices: [{port: 6, kind: drive, name: X}],")), "namespaces"
    )
    with pytest.raises(LocalClusterError, match="port c:6 is in use"):
        FaultState().with_move(plan, "a:1", "c:6")
    moved = FaultState().with_move(plan, "a:1", "c:5").layout(plan).machine("c")
    assert moved.end(5) is not None and moved.end(6) is None


def test_a_mac_without_a_lease_or_a_carrier_has_no_default_route(plan: Layout) -> None:
    assert network.default_route(plan.machine("a")) == "en0"
    for faults in (FaultState().with_lease(plan, "a", "none"), FaultState().with_lan("a", "pull")):
        mac = faults.layout(plan).machine("a")
        assert network.default_route(mac) is None
        assert "en0" not in [device for _, device in network.routes(mac)]
    assert "inet " not in network.ifconfig(FaultState().with_lease(plan, "a", "none").layout(plan).machine("a"))["en0"]
