"""What commands change: fault state, and the network configuration for it. Both are pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.fault_state import FaultState
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import Layout, Mode, plan_layout
from thunderfleet_localcluster.network.plan import NetworkPlan, Tc, lan_commands, links_of, plug_in, rate_rule
from thunderfleet_localcluster.supervisor.changes import Change, Situation, decide, machine_named

FLEET = """
machines:
  - {name: a, model: Mac Studio (M3 Ultra), rdma: true, jaccl: recorded}
  - {name: b, model: Mac Studio (M3 Ultra), rdma: true, bridge: [2]}
  - {name: l, kind: linux}
cables:
  - {a: "a:1", b: "b:1"}
  - {a: "a:2", b: "b:2", rateMbps: 500}
"""
PIDS = {"a": 11, "b": 12, "l": 13}
DEL_INGRESS = ("qdisc", "del", "dev")


def situation(mode: Mode = "namespaces", faults: FaultState | None = None, **pids: int) -> Situation:
    """The fleet above with all machines on, unless ``pids`` are given."""
    return Situation(plan_layout(parse_fleet(FLEET), mode), faults or FaultState(), pids or PIDS)


def cable(action: str, end: str = "a:1", **more: Any) -> Mapping[str, Any]:
    """A change of a cable."""
    return {"what": "cable", "action": action, "end": end, **more}


def test_a_pulled_cable_is_down_at_both_ends() -> None:
    change = decide(cable("pull", "b:1"), situation())
    assert change.faults == FaultState(pulled=frozenset({0}))
    (plan,) = change.network
    assert (plan.host, plan.inside) == ("", {"a": "link set en2 down\n", "b": "link set en2 down\n"})
    assert all(call.optional for call in plan.tc)
    (again,) = decide(cable("plug"), situation(faults=change.faults)).network
    assert again.inside == {"a": "link set en2 up\n", "b": "link set en2 up\n"}


def test_a_slow_cable_has_a_limit_at_both_ends_and_a_whole_one_none() -> None:
    change = decide(cable("slow", rate=100), situation())
    limits = [call for call in change.network[0].tc if not call.optional]
    assert limits == [Tc(name, rate_rule("en2", 100)) for name in "ab"]
    (plan,) = decide(cable("plug"), situation(faults=change.faults)).network
    ends = [Tc(name, rate_rule("en2", None), optional=True) for name in "ab"]
    assert [call for call in plan.tc if call.arguments[-1] == "root"] == ends
    # The fleet file's own limit comes back.
    (plan,) = decide(cable("plug", "a:2"), situation()).network
    assert [call for call in plan.tc if not call.optional] == [Tc(name, rate_rule("en3", 500)) for name in "ab"]


def test_a_cable_cut_one_way_drops_connections_at_the_other_end_only() -> None:
    change = decide(cable("cut", "a:1"), situation())
    assert change.faults.one_way == {(0, "a")}
    rules = [call for call in change.network[0].tc if not call.optional]
    assert {call.machine for call in rules} == {"b"}
    assert [call.arguments[:4] for call in rules] == [("qdisc", "add", "dev", "en2"), ("filter", "add", "dev", "en2")]
    cleared = [call.machine for call in change.network[0].tc if call.arguments == (*DEL_INGRESS, "en2", "ingress")]
    assert cleared == ["a", "b"]


def test_a_cable_to_a_machine_that_is_off_is_not_configured() -> None:
    for request in (cable("pull"), cable("cut"), cable("move", to="a:4")):
        change = decide(request, situation(a=11, l=13))
        assert change.faults != FaultState()
        assert not any(plan.host or plan.inside or plan.tc for plan in change.network)


def test_a_moved_cable_is_deleted_and_created_at_its_new_port() -> None:
    change = decide(cable("move", "a:1", to="a:4"), situation())
    gone, made = change.network
    assert gone == NetworkPlan("", {"a": "link del en2\n"}, ())
    assert made.host.startswith("link add en5 address ") and " netns 11 type veth peer name en2 address " in made.host
    assert made.host.count("\n") == 1 and made.host.endswith(" netns 12\n")
    assert made.inside["a"] == "addr add 10.64.1.1/30 broadcast + dev en5\nlink set en5 up\n"
    assert made.inside["b"] == "addr add 10.64.1.2/30 broadcast + dev en2\nlink set en2 up\n"
    assert made.tc == ()


def test_without_namespaces_only_what_commands_print_changes() -> None:
    for request in (cable("pull"), cable("slow", speed="40"), cable("move", to="a:4")):
        change = decide(request, situation("loopback"))
        assert change.faults != FaultState() and change.network == ()


def test_a_machine_is_unplugged_from_the_lan() -> None:
    request = {"what": "lan", "action": "pull", "name": "b"}
    change = decide(request, situation())
    assert change == Change(FaultState(lan_unplugged=frozenset({"b"})), (NetworkPlan("link set lan-1 down\n", {}, ()),))
    back = decide({**request, "action": "plug"}, situation(faults=change.faults))
    assert back == Change(FaultState(), (NetworkPlan("link set lan-1 up\n", {}, ()),))
    assert decide(request, situation(a=11)).network == ()


def test_rdma_and_commands_change_no_network() -> None:
    assert decide({"what": "rdma", "action": "off", "name": "a"}, situation()) == Change(FaultState(rdma={"a": "off"}))
    damage = decide({"what": "command", "action": "hang", "name": "a", "command": "ifconfig"}, situation())
    assert damage == Change(FaultState(damage={("a", "ifconfig"): "hang"}))


def test_points_of_jaccl_are_checked_and_change_no_faults() -> None:
    points = [{"at": "rtr", "errno": 96}]
    assert decide({"what": "jaccl", "name": "a", "points": points}, situation()) == Change(FaultState(), jaccl=("a", points))
    assert decide({"what": "jaccl", "name": "a", "points": []}, situation()).jaccl == ("a", [])


@pytest.mark.parametrize(
    ("request_", "mode", "message"),
    [
        ({"what": "weather"}, "namespaces", "unknown change 'weather'; allowed: cable, lan, rdma, command, jaccl"),
        (cable("burn"), "namespaces", "unknown action 'burn'; allowed: pull, plug, slow, cut, move"),
        (cable("pull", "a:6"), "namespaces", "no cable at a:6"),
        (cable("cut"), "loopback", "cutting one direction of a cable needs network namespaces"),
        (cable("slow", rate=5), "loopback", "--rate needs network namespaces"),
        ({"what": "lan", "action": "pull", "name": "a"}, "loopback", "unplugging a machine .* needs network namespaces"),
        ({"what": "lan", "action": "burn", "name": "a"}, "namespaces", "unknown action 'burn'; allowed: pull, plug"),
        ({"what": "rdma", "action": "off", "name": "l"}, "namespaces", "l is not a Mac"),
        ({"what": "rdma", "action": "off", "name": "x"}, "namespaces", "unknown machine 'x'; machines: a, b, l"),
        ({"what": "jaccl", "name": "b", "points": []}, "namespaces", "b has no recorded JACCL; set jaccl: recorded"),
        ({"what": "jaccl", "name": "a", "points": [{}]}, "namespaces", "unknown point None"),
    ],
)
def test_impossible_changes_are_refused(request_: Mapping[str, Any], mode: Mode, message: str) -> None:
    with pytest.raises(LocalClusterError, match=message):
        decide(request_, situation(mode))


def plan() -> Layout:
    """The layout in namespaces."""
    return situation().plan


def test_machines_that_start_get_their_lan_port_and_every_cable_whose_machines_are_on() -> None:
    made = plug_in(plan(), FaultState(), {"a": 11, "l": 13}, ["a"])
    assert made.host.splitlines()[1:] == ["link set lan-0 master lan0", "link set lan-0 up"]
    assert made.inside == {"a": "link set lo up\naddr add 192.168.64.11/24 broadcast + dev en0\nlink set en0 up\n"}
    both = plug_in(plan(), FaultState(), PIDS, ["b"])
    assert [line.split()[2] for line in both.host.splitlines() if " type veth peer name en0 " not in line] == [
        "lan-1",
        "lan-1",
        "en2",
        "en3",
    ]
    # Port 2 of b is in a bridge and has no address.
    assert both.inside["b"].endswith("dev en2\nlink set en2 up\nlink set en3 up\n")
    assert both.tc == (Tc("a", rate_rule("en3", 500)), Tc("b", rate_rule("en3", 500)))
    assert plug_in(plan(), FaultState(), PIDS, []) == NetworkPlan("", {}, ())


def test_the_links_of_a_machine_are_its_lan_port_and_the_other_ends_of_its_cables() -> None:
    assert links_of(plan(), FaultState(), "b") == ("lan-1", [("a", "en2"), ("a", "en3")])
    assert links_of(plan(), FaultState(), "l")[1] == []


def test_faults_outlast_a_restart() -> None:
    faults = FaultState(pulled=frozenset({0}), lan_unplugged=frozenset({"a"}), one_way=frozenset({(1, "b")}))
    made = plug_in(plan(), faults, PIDS, ["a"])
    assert "link set lan-0 up\nlink set lan-0 down\n" in made.host
    assert (
        made.inside["b"] == "addr add 10.64.1.2/30 broadcast + dev en2\nlink set en2 up\nlink set en2 down\nlink set en3 up\n"
    )
    assert [call.machine for call in made.tc if call.arguments[0] == "filter"] == ["a"]


def test_the_lan_is_a_bridge_with_the_control_planes_address() -> None:
    assert lan_commands(plan()).splitlines() == [
        "link set lo up",
        "link add lan0 type bridge forward_delay 0",
        "addr add 192.168.64.1/24 dev lan0",
        "link set lan0 up",
    ]


@pytest.mark.parametrize(("rate", "burst"), [(1, 16), (64, 16), (68, 17), (4096, 1024), (100_000, 1024)])
def test_the_burst_of_a_limit_follows_its_rate(rate: int, burst: int) -> None:
    shaper = ("tbf", "rate", f"{rate}mbit", "burst", f"{burst}kb", "latency", "50ms")
    assert rate_rule("en2", rate) == ("qdisc", "replace", "dev", "en2", "root", *shaper)
    assert rate_rule("en2", None) == ("qdisc", "del", "dev", "en2", "root")


def test_machines_are_found_by_name() -> None:
    assert machine_named(plan(), "b").name == "b"
    moved = replace(plan(), machines=())
    with pytest.raises(LocalClusterError, match="unknown machine 'b'"):
        machine_named(moved, "b")


def lease(address: str, name: str = "a") -> Mapping[str, Any]:
    """Another address in the LAN."""
    return {"what": "lan", "action": "address", "name": name, "address": address}


def test_a_new_lease_replaces_the_address_and_stays_over_a_restart() -> None:
    change = decide(lease("192.168.64.99"), situation())
    (plan,) = change.network
    assert plan.inside == {"a": "addr del 192.168.64.11/24 dev en0\naddr add 192.168.64.99/24 broadcast + dev en0\n"}
    now = situation(faults=change.faults)
    assert str(change.faults.layout(now.plan).machine("a").lan.ip) == "192.168.64.99"
    (plan,) = decide(lease("none"), now).network
    assert plan.inside == {"a": "addr del 192.168.64.99/24 dev en0\n"}
    booted = plug_in(now.plan, change.faults.with_power("a", False).with_power("a", True), PIDS, ["a"])
    assert "addr add 192.168.64.99/24" in booted.inside["a"]
    bare = decide(lease("none"), now).faults
    assert "dev en0" not in plug_in(now.plan, bare, PIDS, ["a"]).inside["a"].partition("link set en0 up")[0]
    (plan,) = decide(lease("192.168.64.11"), situation(faults=bare)).network
    assert plan.inside == {"a": "addr add 192.168.64.11/24 broadcast + dev en0\n"}


def test_a_lease_without_namespaces_changes_the_commands_only() -> None:
    assert decide(lease("127.64.0.99"), situation("loopback")).network == ()
    assert decide(lease("192.168.64.99"), situation(b=12, l=13)).network == (), "it is off"


@pytest.mark.parametrize(
    ("address", "name", "text"),
    [
        ("10.0.0.1", "a", "not an address in the LAN, which is 192.168.64.0/24"),
        ("192.168.64.255", "a", "not an address in the LAN"),
        ("192.168.64.12", "a", "is the address of b"),
        ("192.168.64.1", "a", "is the address of the control plane"),
        ("somewhere", "a", "'somewhere' is not an IPv4 address"),
        ("192.168.64.99", "l", "l is not a Mac"),
    ],
)
def test_a_lease_is_free_and_in_the_lan(address: str, name: str, text: str) -> None:
    with pytest.raises(LocalClusterError, match=text) as caught:
        decide(lease(address, name), situation())
    assert caught.value.usage, "the command ends with 2"
