"""The decisions: from facts to profile and cables, without a command or a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_agent.derive.links import PeerPort, find_peer, link_address, link_reports, wanted_uuids
from thunderfleet_agent.derive.network import address_class
from thunderfleet_agent.derive.profile import profile
from thunderfleet_agent.observe.facts import Facts, Source
from thunderfleet_agent.observe.parsers import hardware, thunderbolt
from thunderfleet_crds.kinds.nodeprofile import NodeProfile, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import (
    Endpoint,
    LinkEnd,
    ThunderboltLink,
    ThunderboltLinkStatus,
    link_name,
    ordered,
)
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_crds.meta.conditions import Condition, find_condition
from thunderfleet_crds.vocabulary import AddressClass, ConditionStatus, InterfaceKind, RDMADeviceState
from thunderfleet_lib.host.hostcmd import Failure, FailureKind
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.macnet import parse as network
from thunderfleet_lib.rdma import parse as rdma

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def observed(shapes: Any, **changes: Any) -> Facts:
    """A Studio with one cable, RDMA on and working; ``changes`` replace parts."""
    whole = Facts(
        thunderbolt=thunderbolt.parse(shapes.tree),
        hardware=hardware.parse_hardware(shapes.hardware),
        gpu_cores=60,
        sysctl=hardware.parse_sysctl(shapes.sysctl),
        system=hardware.System("26.3", "25D125"),
        hardware_ports=network.parse_hardware_ports(shapes.ports),
        services=network.parse_service_order(shapes.services),
        interfaces=network.parse_ifconfig(shapes.ifconfig),
        rdma_switch=True,
        rdma_devices=rdma.parse_devices(shapes.devices),
        rdma_info=rdma.parse_devinfo(shapes.devinfo_text),
        models=(),
    )
    return replace(whole, **changes)


def condition(status: NodeProfileStatus, type_: str) -> Condition:
    found = find_condition(status.conditions, type_)
    assert found is not None
    return found


def failed(source: Source, kind: FailureKind, command: str, message: str) -> MappingProxyType[Source, Failure]:
    return MappingProxyType({source: Failure(command, kind, message)})


def bridged(shapes: Any, *members: str) -> tuple[network.Interface, ...]:
    lines = "".join(f"\tmember: {name} flags=3<LEARNING,DISCOVER>\n" for name in members)
    return network.parse_ifconfig(shapes.ifconfig.replace("\tConfiguration:\n", f"\tConfiguration:\n{lines}"))


def test_a_working_studio(shapes: Any) -> None:
    found = profile(observed(shapes), NOW)
    status = found.status
    assert status.hardware is not None and status.hardware.memory == "96Gi"
    assert (status.hardware.cpu_cores, status.hardware.gpu_cores) == (28, 60)
    assert status.hardware.gpu_memory_limit_bytes == 72 * 2**30
    raised = profile(observed(shapes, sysctl={"hw.memsize": str(96 * 2**30), "iogpu.wired_limit_mb": "81920"}), NOW).status
    assert raised.hardware is not None and raised.hardware.gpu_memory_limit_bytes == 80 * 2**30
    assert status.thunderbolt is not None and status.thunderbolt.links == 1
    first, second = status.thunderbolt.ports
    assert (first.interface, first.rdma_device, first.speed_mbps) == ("en2", "rdma_en2", 80_000)
    assert (second.interface, second.rdma_device, second.speed_mbps) == ("en3", "rdma_en3", None)
    assert status.rdma is not None and status.rdma.state == "Ready"
    assert [device.state for device in status.rdma.devices] == [RDMADeviceState.ACTIVE, RDMADeviceState.DOWN]
    assert {c.type: c.status.value for c in status.conditions} == {
        "InventoryComplete": "True",
        "RDMAReady": "True",
        "BridgeFree": "True",
        "BenchmarksFresh": "False",
        "ClockSynchronized": "Unknown",
    }
    assert set(found.labels) == {f"domain.thunderfleet.io/{uuid.lower()}" for uuid in (shapes.mine, shapes.mine_too)}
    assert NodeProfileStatus.load(status.dump()) == status


def test_interfaces_have_kinds_and_classes_and_lo0_is_not_among_them(shapes: Any) -> None:
    network_ = profile(observed(shapes), NOW).status.network
    assert network_ is not None
    found = {interface.name: interface for interface in network_.interfaces}
    assert "lo0" not in found
    assert {name: interface.kind for name, interface in found.items()} == {
        "en0": InterfaceKind.ETHERNET,
        "en2": InterfaceKind.THUNDERBOLT,
        "en3": InterfaceKind.THUNDERBOLT,
        "bridge0": InterfaceKind.BRIDGE,
        "utun4": InterfaceKind.VPN,
    }
    assert found["en2"].speed_mbps == 80_000
    assert [a.class_ for a in found["utun4"].addresses] == [AddressClass.SHARED]


@pytest.mark.parametrize(
    ("address", "class_"),
    [
        ("10.1.2.3", AddressClass.PRIVATE),
        ("172.31.0.1", AddressClass.PRIVATE),
        ("172.32.0.1", AddressClass.PUBLIC),
        ("192.168.1.1", AddressClass.PRIVATE),
        ("127.3.2.1", AddressClass.PRIVATE),
        ("169.254.9.9", AddressClass.LINK_LOCAL),
        ("fe80::1", AddressClass.LINK_LOCAL),
        ("fd00::1", AddressClass.PRIVATE),
        ("100.64.0.1", AddressClass.SHARED),
        ("100.128.0.1", AddressClass.PUBLIC),
        ("8.8.8.8", AddressClass.PUBLIC),
    ],
)
def test_address_classes(address: str, class_: AddressClass) -> None:
    assert address_class(address) is class_


def test_gpu_memory_is_what_mlx_says(shapes: Any) -> None:
    hardware = profile(observed(shapes, gpu_memory=80 * 2**30), NOW).status.hardware
    assert hardware is not None and hardware.gpu_memory_limit_bytes == 80 * 2**30


def test_a_failed_command_costs_its_part_and_is_named(shapes: Any) -> None:
    failures = failed(Source.SYSTEM, FailureKind.FAILED, "sw_vers", "exited with code 1: no such file")
    status = profile(observed(shapes, system=None, failures=failures), NOW).status
    assert status.os is None and status.thunderbolt is not None
    complete = condition(status, "InventoryComplete")
    assert complete.status is ConditionStatus.FALSE
    assert complete.message == "`sw_vers` exited with code 1: no such file: run the command on this Mac to see why"


def test_facts_that_only_one_command_shows_are_reported(shapes: Any) -> None:
    """Output that is truncated between two lines looks complete."""

    def shown(*less: str) -> tuple[network.Interface, ...]:
        return tuple(i for i in observed(shapes).interfaces or () if i.name not in less)

    without, cut = shown("en3"), network.Interface("en0", frozenset({"UP"}))
    half = (*without, network.Interface("en3", frozenset({"UP"})))
    for changes, says in (
        ({"interfaces": without}, "`ifconfig -a` does not show en3, which is Thunderbolt 2"),
        ({"interfaces": half}, "`ifconfig -a` does not show the status of en3"),
        ({"interfaces": shown("en0")}, "`ifconfig -a` does not show en0, which is Ethernet"),
        ({"interfaces": shown("bridge0")}, "`ifconfig -a` does not show bridge0, which is Thunderbolt Bridge"),
        ({"interfaces": (*shown("en0"), cut)}, "`ifconfig -a` does not show the status of en0, which is Ethernet"),
        ({"rdma_info": (rdma.DeviceInfo("rdma_en2", "PORT_ACTIVE"),)}, "`ibv_devinfo -v` does not describe rdma_en3"),
        (
            {"rdma_info": (rdma.DeviceInfo("rdma_en2", "PORT_ACTIVE"), rdma.DeviceInfo("rdma_en3", "PORT_DOWN"))},
            "`ibv_devinfo -v` lists no GID for 10.0.1.1 on rdma_en2, but `ifconfig -a` shows it on en2",
        ),
        ({"rdma_devices": ("rdma_en2",)}, "`ibv_devices` does not list rdma_en3, which `ibv_devinfo -v` describes"),
    ):
        complete = condition(profile(observed(shapes, **changes), NOW).status, "InventoryComplete")
        assert complete.status is ConditionStatus.FALSE and says in complete.message
    for bridge in ((), (network.Interface("bridge0", frozenset({"UP"})),)):
        free = condition(profile(observed(shapes, interfaces=(*shown("bridge0"), *bridge)), NOW).status, "BridgeFree")
        assert free.status is ConditionStatus.UNKNOWN and "bridge0" in free.message
    # A destroyed bridge is still listed as a port; if its service is off, nothing requires it.
    off = tuple(replace(service, enabled=False) for service in observed(shapes).services or ())
    status = profile(observed(shapes, services=off, interfaces=shown("bridge0")), NOW).status
    assert {c.type for c in status.conditions if c.status is ConditionStatus.TRUE} >= {"InventoryComplete", "BridgeFree"}


def test_a_virtual_machine_says_what_it_is(shapes: Any) -> None:
    virtual = hardware.Hardware("VirtualMac2,1", "Apple M4 Max (Virtual)", 2, 4 * 2**30)
    none = failed(Source.RDMA_SWITCH, FailureKind.ABSENT, "rdma_ctl status", "is not there")
    facts = observed(shapes, hardware=virtual, thunderbolt=thunderbolt.Thunderbolt(), rdma_switch=None, failures=none)
    status = profile(facts, NOW).status
    verdict = condition(status, "RDMAReady")
    assert (verdict.status, verdict.reason) == (ConditionStatus.FALSE, "RDMAUnsupported")
    assert "virtual machine (VirtualMac2,1)" in verdict.message
    assert status.thunderbolt is not None and status.thunderbolt.ports == ()


def test_nothing_observed_is_a_valid_profile() -> None:
    found = profile(Facts(), NOW)
    assert NodeProfileStatus.load(found.status.dump()) == found.status
    assert condition(found.status, "RDMAReady").status is ConditionStatus.UNKNOWN
    assert not found.labels


@pytest.mark.parametrize(
    ("changes", "status", "reason", "says"),
    [
        ({"rdma_switch": False}, "False", "RDMADisabled", "rdma_ctl enable"),
        ({"rdma_devices": ()}, "False", "NoDevices", "Thunderbolt 5"),
        (
            {"failures": failed(Source.RDMA_INFO, FailureKind.TIMED_OUT, "ibv_devinfo -v", "did not answer")},
            "False",
            "StackHung",
            "`ibv_devinfo -v` did not answer; the RDMA stack of this Mac does not answer: reboot this Mac",
        ),
        (
            {"failures": failed(Source.RDMA_SWITCH, FailureKind.ABSENT, "rdma_ctl status", "is not there")},
            "False",
            "RDMAUnsupported",
            "macOS 26.3",
        ),
        (
            {"system": hardware.System("26.2", "25C56")},
            "False",
            "RDMAUnsupported",
            "this Mac runs macOS 26.2; this Mac cannot use RDMA over Thunderbolt, which needs macOS 26.3 or newer",
        ),
        (
            {"rdma_devices": None, "failures": failed(Source.RDMA_DEVICES, FailureKind.FAILED, "ibv_devices", "exited")},
            "Unknown",
            "CommandFailed",
            "`ibv_devices` exited",
        ),
        ({"rdma_info": (rdma.DeviceInfo("rdma_en2", "PORT_DOWN"),)}, "False", "PortDown", "rdma_en2, rdma_en3"),
        (
            {"rdma_info": (rdma.DeviceInfo("rdma_en2", "PORT_ACTIVE"),)},
            "False",
            "NoIPv4Address",
            "though en2 has 10.0.1.1: run `sudo ifconfig en2 inet 10.0.1.1` on this Mac",
        ),
        (
            {"rdma_info": (rdma.DeviceInfo("rdma_en2", "PORT_ACTIVE"),), "interfaces": ()},
            "False",
            "NoIPv4Address",
            "sudo networksetup -setmanual SERVICE 10.0.0.1",
        ),
    ],
)
def test_rdma_ready_says_why_not_and_what_mends_it(
    changes: dict[str, Any], status: str, reason: str, says: str, shapes: Any
) -> None:
    found = profile(observed(shapes, **changes), NOW).status
    verdict = condition(found, "RDMAReady")
    assert (verdict.status.value, verdict.reason) == (status, reason)
    assert says in verdict.message
    assert found.rdma is not None and found.rdma.state == reason


def test_bridge_members_are_named_with_the_commands(shapes: Any) -> None:
    status = profile(observed(shapes, interfaces=bridged(shapes, "en2", "en3")), NOW).status
    verdict = condition(status, "BridgeFree")
    assert (verdict.status, verdict.reason) == (ConditionStatus.FALSE, "BridgeMember")
    assert "en2, en3 are members of bridge0: a kubelet that runs as root changes that" in verdict.message
    assert "run `sudo thunderfleet doctor --fix` on this Mac" in verdict.message
    assert "ifconfig" not in verdict.message, "what ifconfig changes is lost at the next restart"
    assert condition(status, "RDMAReady").reason == "BridgeMember"
    assert status.network is not None
    assert {i.name: i.bridge for i in status.network.interfaces if i.bridge} == {"en2": "bridge0", "en3": "bridge0"}


def test_a_service_list_without_the_bridge_does_not_hide_its_members(shapes: Any) -> None:
    few = network.parse_service_order(shapes.services.partition("(2)")[0])
    status = profile(observed(shapes, services=few, interfaces=bridged(shapes, "en2")), NOW).status
    message = condition(status, "BridgeFree").message
    assert "en2 is a member of bridge0" in message
    assert condition(status, "InventoryComplete").status is ConditionStatus.TRUE


def test_an_ethernet_port_in_a_bridge_is_nobodys_business(shapes: Any) -> None:
    status = profile(observed(shapes, interfaces=bridged(shapes, "en0")), NOW).status
    assert condition(status, "BridgeFree").status is ConditionStatus.TRUE


def test_condition_times_stay_while_the_status_does(shapes: Any) -> None:
    first = profile(observed(shapes), NOW)
    later = NOW + timedelta(hours=1)
    second = profile(observed(shapes), later, before=first.status.conditions)
    assert second == first
    third = profile(observed(shapes, rdma_switch=False), later, before=first.status.conditions)
    assert condition(third.status, "RDMAReady").last_transition_time == later
    assert condition(third.status, "BridgeFree").last_transition_time == NOW


def test_the_operators_condition_is_not_claimed(shapes: Any) -> None:
    quarantined = Condition(type="Quarantined", status=ConditionStatus.TRUE, last_transition_time=NOW, reason="Reboot")
    found = profile(observed(shapes), NOW, before=(quarantined,))
    assert find_condition(found.status.conditions, "Quarantined") is None


# Cables


def other_end(shapes: Any, name: str = "studio-2", *, receptacle: int = 3, sees: str | None = None) -> NodeProfile:
    """A Mac whose port shows the domain UUID that ours sees."""
    items = [shapes.peer(sees)] if sees else []
    tree = shapes.report(shapes.bus(receptacle, domain=shapes.theirs, speed="80 Gb/s", items=items))
    status = profile(Facts(thunderbolt=thunderbolt.parse(tree)), NOW).status
    return NodeProfile(metadata=ObjectMeta(name=name), status=status)


def test_both_ends_name_the_cable_alike(shapes: Any) -> None:
    ours = profile(observed(shapes), NOW).status
    theirs = other_end(shapes, sees=shapes.mine)
    us = NodeProfile(metadata=ObjectMeta(name="studio-1"), status=ours)
    at_ours = find_peer(shapes.theirs.lower(), [theirs], "studio-1", ours)
    at_theirs = find_peer(shapes.mine.lower(), [us], "studio-2", theirs.status)
    assert at_ours == PeerPort("studio-2", 3) and at_theirs == PeerPort("studio-1", 1)
    (here,) = link_reports("studio-1", ours, {shapes.theirs.lower(): at_ours})
    (there,) = link_reports("studio-2", theirs.status, {shapes.mine.lower(): at_theirs})
    assert here.name == there.name == "studio-1.tb1--studio-2.tb3"
    assert here.spec == there.spec
    assert here.endpoint == Endpoint(
        node="studio-1",
        port=1,
        interface="en2",
        rdma_device="rdma_en2",
        rdma_state=RDMADeviceState.ACTIVE,
        address="10.0.1.1",
        speed_mbps=80_000,
        sees_peer=True,
    )


def test_a_peer_that_is_no_node_makes_no_link(shapes: Any) -> None:
    status = profile(observed(shapes), NOW).status
    assert wanted_uuids(status) == {shapes.theirs.lower()}
    assert find_peer(shapes.theirs.lower(), [], "studio-1", status) is None
    assert link_reports("studio-1", status, {}) == ()


def test_a_uuid_belongs_to_the_one_port_that_has_it(shapes: Any) -> None:
    status = profile(observed(shapes), NOW).status
    thunderbolt = other_end(shapes).status.thunderbolt
    assert thunderbolt is not None
    (port,) = thunderbolt.ports
    ports = (
        port.model_copy(update={"receptacle": 1, "domain_uuid": None}),
        port.model_copy(update={"receptacle": 2, "domain_uuid": shapes.mine_too}),
        port,
    )
    theirs = NodeProfileStatus(thunderbolt=thunderbolt.model_copy(update={"ports": ports}))
    other = NodeProfile(metadata=ObjectMeta(name="studio-2"), status=theirs)
    assert find_peer(shapes.theirs.lower(), [other], "studio-1", status) == PeerPort("studio-2", 3)
    assert find_peer(shapes.theirs.lower(), [other], "studio-2", theirs) is None, "its own port is no peer"


def test_the_chip_is_from_whichever_command_knows_it(shapes: Any) -> None:
    brand = {"machdep.cpu.brand_string": "Apple M3 Ultra", "hw.memsize": str(96 * 2**30), "hw.ncpu": "28"}
    report = hardware.Hardware("Mac15,14", "Apple M2", 28, 96 * 2**30)

    def chip(**changes: Any) -> str | None:
        found = profile(observed(shapes, **changes), NOW).status.hardware
        return None if found is None else found.chip

    assert chip(hardware=report, sysctl=brand) == "Apple M2"
    assert chip(hardware=None, sysctl=brand) == "Apple M3 Ultra"
    assert chip(hardware=hardware.Hardware("Mac15,14", None, 28, 96 * 2**30), sysctl=brand) == "Apple M3 Ultra"
    assert chip(hardware=report, sysctl={name: value for name, value in brand.items() if name.startswith("hw.")}) == "Apple M2"
    assert chip(hardware=report, sysctl={}) == "Apple M2"


def test_memory_and_cores_are_from_whichever_command_knows_them(shapes: Any) -> None:
    report = hardware.Hardware("Mac15,14", "Apple M2", 28, 96 * 2**30)

    def sizes(**changes: Any) -> tuple[int | None, int | None]:
        found = profile(observed(shapes, **changes), NOW).status.hardware
        assert found is not None
        return found.memory_bytes, found.cpu_cores

    both = {"hw.memsize": str(64 * 2**30), "hw.ncpu": "16"}
    assert sizes(hardware=report, sysctl=both) == (64 * 2**30, 16)
    assert sizes(hardware=None, sysctl=both) == (64 * 2**30, 16)
    assert sizes(hardware=report, sysctl={}) == (96 * 2**30, 28)
    assert sizes(hardware=report, sysctl={"hw.ncpu": "10000"}) == (96 * 2**30, 28), "more cores than a Mac has"
    assert sizes(hardware=report, sysctl={"hw.ncpu": "9999"}) == (96 * 2**30, 9999)


def test_a_uuid_that_two_nodes_claim_belongs_to_the_one_that_sees_us(shapes: Any) -> None:
    status = profile(observed(shapes), NOW).status
    stale, real = other_end(shapes, "old"), other_end(shapes, "new", receptacle=1, sees=shapes.mine)
    uuid = shapes.theirs.lower()
    assert find_peer(uuid, [stale, real], "studio-1", status) == PeerPort("new", 1)
    assert find_peer(uuid, [stale, other_end(shapes, "older")], "studio-1", status) is None
    assert find_peer(uuid, [stale], "studio-1", status) == PeerPort("old", 3)


def test_a_mac_that_copies_uuids_takes_no_cable_from_others(shapes: Any) -> None:
    """Its agent may write any UUIDs and peers into its own profile, and its own ends of links."""
    status = profile(observed(shapes), NOW).status
    real, liar = other_end(shapes, "studio-2", sees=shapes.mine), other_end(shapes, "a-liar", sees=shapes.mine)
    uuid = shapes.theirs.lower()
    links: list[ThunderboltLink] = []
    for name in ("studio-2", "a-liar"):
        (report,) = link_reports("studio-1", status, {uuid: PeerPort(name, 3)})
        theirs = Endpoint(node=name, port=3, sees_peer=True)
        ends = (theirs, report.endpoint) if name == "studio-2" else (theirs,)
        known = ThunderboltLinkStatus(endpoints=ends)
        links.append(ThunderboltLink(metadata=ObjectMeta(name=report.name), spec=report.spec, status=known))
    assert find_peer(uuid, [liar, real], "studio-1", status, links) == PeerPort("studio-2", 3)
    assert find_peer(uuid, [liar, real], "studio-1", status, links[1:]) is None
    # Nor does one that has a cable to this Mac, at another port: that link is reported by both.
    (mine, _) = links
    own = next(end for end in (mine.spec.a, mine.spec.b) if end.node == "studio-1")
    elsewhere = ordered(LinkEnd(node="studio-1", port=own.port + 1), LinkEnd(node="a-liar", port=3))
    cable = ThunderboltLinkStatus(endpoints=(Endpoint(node="studio-1", port=own.port + 1, sees_peer=True),))
    another = ThunderboltLink(metadata=ObjectMeta(name=link_name(elsewhere)), spec=elsewhere, status=cable)
    assert find_peer(uuid, [liar, real], "studio-1", status, [*links, another]) == PeerPort("studio-2", 3)
    # It detects a Mac at this port: a link that only another Mac reports is none that a display hides.
    assert link_reports("studio-1", status, {uuid: PeerPort("studio-2", 3)}, links) == link_reports(
        "studio-1", status, {uuid: PeerPort("studio-2", 3)}
    )


def test_a_label_without_the_port_joins_nothing(shapes: Any) -> None:
    status = profile(observed(shapes), NOW).status
    moved = NodeProfile(metadata=ObjectMeta(name="studio-2", labels={f"domain.thunderfleet.io/{shapes.theirs.lower()}": ""}))
    assert find_peer(shapes.theirs.lower(), [moved], "studio-1", status) is None


def test_two_cables_between_one_pair_are_two_links(shapes: Any) -> None:
    second = "59C97EA5-69DF-4209-82D8-4B84C2A41FDF"
    tree = shapes.report(
        shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=[shapes.peer(shapes.theirs)]),
        shapes.bus(2, domain=shapes.mine_too, speed="40 Gb/s", items=[shapes.hub("dock", shapes.peer(second), up="40 Gb/s")]),
    )
    status = profile(observed(shapes, thunderbolt=thunderbolt.parse(tree)), NOW).status
    peers = {shapes.theirs.lower(): PeerPort("a-mini", 1), second.lower(): PeerPort("a-mini", 2)}
    first, other = link_reports("studio-1", status, peers)
    assert (first.name, other.name) == ("a-mini.tb1--studio-1.tb1", "a-mini.tb2--studio-1.tb2")
    assert other.endpoint.through == ("dock",) and other.endpoint.speed_mbps == 40_000


def hidden_link(shapes: Any, *, other_sees: bool) -> ThunderboltLink:
    (report,) = link_reports(
        "studio-1", profile(observed(shapes), NOW).status, {shapes.theirs.lower(): PeerPort("studio-2", 3)}
    )
    endpoint = report.endpoint.model_copy(update={"sees_peer": other_sees})
    status = ThunderboltLinkStatus(endpoints=(endpoint,))
    return ThunderboltLink(metadata=ObjectMeta(name=report.name), spec=report.spec, status=status)


def test_an_end_that_sees_nothing_still_tells_of_a_cable_that_the_other_end_sees(shapes: Any) -> None:
    blind = other_end(shapes).status
    (report,) = link_reports("studio-2", blind, {}, [hidden_link(shapes, other_sees=True)])
    assert (report.name, report.endpoint.port, report.endpoint.sees_peer) == ("studio-1.tb1--studio-2.tb3", 3, False)


def test_of_claims_to_a_hidden_port_the_first_stays(shapes: Any) -> None:
    """The kubelet derives the address of the port from the link that its agent reports."""
    real = hidden_link(shapes, other_sees=True)
    blind = other_end(shapes).status
    (report,) = link_reports("studio-2", blind, {}, [real])
    real = real.model_copy(update={"status": ThunderboltLinkStatus(endpoints=(*real.status.endpoints, report.endpoint))})
    spec = ordered(LinkEnd(node="a-liar", port=1), LinkEnd(node="studio-2", port=3))
    claimed = ThunderboltLinkStatus(endpoints=(Endpoint(node="a-liar", port=1, sees_peer=True),))
    claim = ThunderboltLink(metadata=ObjectMeta(name=link_name(spec)), spec=spec, status=claimed)
    assert link_reports("studio-2", blind, {}, [claim, real]) == (report,)


def test_a_cable_that_no_end_sees_is_withdrawn(shapes: Any) -> None:
    assert link_reports("studio-2", other_end(shapes).status, {}, [hidden_link(shapes, other_sees=False)]) == ()


def test_link_address_prefers_private_ipv4() -> None:
    text = (
        "en2: flags=8863<UP,RUNNING> mtu 1500\n\tinet6 fd00::1 prefixlen 64\n\tinet6 fe80::1%en2 prefixlen 64\n"
        "\tinet 169.254.1.1 netmask 0xffff0000\n\tinet 10.0.1.1 netmask 0xfffffffc\n"
    )

    def address(shown: str) -> str | None:
        facts = Facts(interfaces=network.parse_ifconfig(shown), hardware_ports={"en2": "Thunderbolt 1"})
        return link_address(profile(facts, NOW).status, "en2")

    assert address(text) == "10.0.1.1"
    assert address(text.replace("\tinet 10.0.1.1 netmask 0xfffffffc\n", "")) == "169.254.1.1"
    assert address("en2: flags=8863<UP,RUNNING> mtu 1500\n\tinet6 fe80::1%en2 prefixlen 64\n") is None
    # A recorded Mac without namespaces has its cables in 127/8.
    assert address("en2: flags=8863<UP,RUNNING> mtu 1500\n\tinet 127.1.2.3 netmask 0xff000000\n") == "127.1.2.3"


@given(data=st.data())
def test_whatever_was_parsed_makes_a_profile_that_the_api_takes(data: st.DataObject, shapes: Any) -> None:
    def damaged(text: str, parse: Any) -> Any:
        begin, end = (data.draw(st.integers(0, len(text))) for _ in range(2))
        try:
            return parse(text[:end] + data.draw(st.text(max_size=3)) + text[begin:])
        except ParseError:
            return None

    facts = Facts(
        thunderbolt=damaged(shapes.tree, thunderbolt.parse),
        hardware=damaged(shapes.hardware, hardware.parse_hardware),
        sysctl=damaged(shapes.sysctl, hardware.parse_sysctl),
        hardware_ports=damaged(shapes.ports, network.parse_hardware_ports),
        services=damaged(shapes.services, network.parse_service_order),
        interfaces=damaged(shapes.ifconfig, network.parse_ifconfig),
        rdma_switch=data.draw(st.sampled_from((True, False, None))),
        rdma_devices=damaged(shapes.devices, rdma.parse_devices),
        rdma_info=damaged(shapes.devinfo_text, rdma.parse_devinfo),
    )
    status = profile(facts, NOW).status
    assert NodeProfileStatus.load(status.dump()) == status
    peers = {uuid: PeerPort("other", 1) for uuid in wanted_uuids(status)}
    for report in link_reports("node", status, peers):
        assert Endpoint.load(report.endpoint.dump()) == report.endpoint
