"""What a recorded Mac's networksetup and ifconfig change, what a restart keeps, and what the kernel is told."""

import pytest
from thunderfleet_localcluster.fleet.fault_state import FaultState
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import Layout, plan_layout
from thunderfleet_localcluster.fleet.network_settings import NetworkSettings, RefusedError, carry_out
from thunderfleet_localcluster.fleet.own_settings import hardware_ports, initial
from thunderfleet_localcluster.network.plan import changed_settings, plug_in
from thunderfleet_localcluster.recorded import network, rdma

FLEET = """
machines:
  - {name: a, model: Mac Studio (M4 Max), rdma: true, bridge: [1, 2], bridgeAddress: 169.254.7.1}
  - {name: b, model: Mac mini (M4 Pro), rdma: true}
cables:
  - {a: "a:1", b: "b:1"}
"""
STEPS = (
    ("networksetup", "-createnetworkservice", "Own", "Thunderbolt 1"),
    ("networksetup", "-setmanual", "Own", "10.9.0.1", "255.255.255.252", ""),
    ("ifconfig", "bridge0", "deletem", "en2"),
)


@pytest.fixture
def plan() -> Layout:
    return plan_layout(parse_fleet(FLEET, "test"), "namespaces")


def changed(plan: Layout, *steps: tuple[str, ...]) -> FaultState:
    settings: NetworkSettings = initial(plan.machine("a"))
    for step in steps:
        settings = carry_out(settings, hardware_ports(plan.machine("a")), step)
    return FaultState().with_settings("a", settings)


def gids(state: FaultState, plan: Layout) -> list[str]:
    now = state.layout(plan)
    (device, *_) = rdma.devices(now, now.machine("a"))
    return [line.split()[-1] for line in rdma.ibv_devinfo(device, verbose=True).splitlines() if "GID[" in line]


def test_a_port_with_a_service_gets_its_address_when_it_leaves_the_bridge(plan: Layout) -> None:
    inside, outside = changed(plan, *STEPS[:2]), changed(plan, *STEPS)
    assert "inet 10" not in network.ifconfig(inside.layout(plan).machine("a"))["en2"]
    assert "::ffff:10.9.0.1" not in gids(inside, plan) and "::ffff:10.9.0.1" in gids(outside, plan)
    shown = network.ifconfig(outside.layout(plan).machine("a"))
    assert "inet 10.9.0.1 netmask 0xfffffffc" in shown["en2"]
    assert "member: en2 " not in shown["bridge0"] and "member: en3 " in shown["bridge0"]
    assert (
        "IP address: 10.9.0.1\nSubnet mask: 255.255.255.252\n" in network.service_info(outside.layout(plan).machine("a"))["Own"]
    )


def test_a_restart_keeps_services_and_forgets_what_ifconfig_did(plan: Layout) -> None:
    state = changed(plan, *STEPS, ("ifconfig", "en3", "inet", "10.8.0.1/30"))
    again = state.with_power("a", False).with_power("a", True).settings["a"]
    assert again.members == ("en2", "en3") and not again.inet and "Own" in [one.name for one in again.services]


def test_the_kernel_follows(plan: Layout) -> None:
    before, after = (changed(plan, *STEPS[:count]).layout(plan).machine("a") for count in (2, 3))
    assert changed_settings(before, after) == (
        "link set en2 nomaster\naddr add 10.9.0.1/30 broadcast + dev en2\naddr del 169.254.7.1/16 dev bridge0\n"
    )
    assert changed_settings(after, before).startswith("link set en2 master bridge0\naddr del 10.9.0.1/30 dev en2\n")
    assert changed_settings(before, before) == ""
    booted = plug_in(plan, changed(plan, *STEPS), {"a": 11, "b": 12}, ["a", "b"]).inside["a"]
    assert "addr add 10.9.0.1/30 broadcast + dev en2\nlink set en2 up\n" in booted and "master" not in booted


def test_services_that_the_fleet_file_gives_are_told_from_those_of_commands(plan: Layout) -> None:
    given = {one.name: one.given for one in changed(plan, *STEPS[:1]).settings["a"].services}
    assert given == {"Ethernet": True, "Thunderbolt Bridge": True, "Wi-Fi": True, "Own": False, **{
        f"Thunderbolt {number}": True for number in (3, 4)
    }}  # fmt: skip


def test_a_moved_cable_has_the_address_of_its_new_port(plan: Layout) -> None:
    state = changed(plan, *STEPS).with_move(plan, "a:1", "a:2")
    assert state.layout(plan).machine("a").end(2) is not None
    end = state.layout(plan).machine("a").end(2)
    assert end is not None and end.address is None, "it is in the bridge"


@pytest.mark.parametrize(
    ("code", "argv"),
    [
        (4, ("networksetup", "-createnetworkservice", "Own")),
        (4, ("networksetup", "-createnetworkservice", "Ethernet", "Thunderbolt 1")),
        (4, ("networksetup", "-createnetworkservice", "../x", "Thunderbolt 1")),
        (8, ("networksetup", "-createnetworkservice", "Own", "Thunderbolt 9")),
        (8, ("networksetup", "-removenetworkservice", "Nobody")),
        (4, ("networksetup", "-setmanual", "Ethernet", "10.0.0.1", "255.255.255.0")),
        (4, ("networksetup", "-setmanual", "Ethernet", "ten", "255.255.255.0", "")),
        (4, ("networksetup", "-setnetworkserviceenabled", "Ethernet", "maybe")),
        (4, ("networksetup", "-nothing")),
        (1, ("ifconfig", "bridge0", "deletem", "en4")),
        (1, ("ifconfig", "bridge0", "addm", "en2")),
        (1, ("ifconfig", "en2", "down")),
    ],
)
def test_what_macos_refuses_is_refused(code: int, argv: tuple[str, ...], plan: Layout) -> None:
    with pytest.raises(RefusedError) as refused:
        changed(plan, argv)
    assert refused.value.code == code and str(refused.value)
