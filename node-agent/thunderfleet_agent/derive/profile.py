"""From what was observed to what is published: pure functions, no commands, no clock, no Kubernetes.

``profile`` makes the NodeProfile's status and labels, ``cables`` this Mac's own ends of its ThunderboltLinks. The rules are
those of discovery: peers are joined by domain UUIDs of the same moment, a port is known by its receptacle, a cable exists when
either end sees the other, speed is what was negotiated.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.conditions import Condition, set_condition
from thunderfleet_crds.fields import binary_size
from thunderfleet_crds.nodeprofile import (
    RDMA,
    Agent,
    Benchmarks,
    Hardware,
    Interface,
    InterfaceAddress,
    Network,
    NodeProfile,
    NodeProfileStatus,
    OperatingSystem,
    RDMADevice,
    Reachability,
    Thunderbolt,
    ThunderboltPeer,
    ThunderboltPort,
    domain_labels,
)
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.thunderboltlink import (
    MAX_NODE_NAME_LENGTH,
    Endpoint,
    LinkEnd,
    ThunderboltLink,
    ThunderboltLinkSpec,
    link_name,
    ordered,
)
from thunderfleet_crds.vocabulary import AddressClass, ConditionType, InterfaceKind, RDMADeviceState
from thunderfleet_lib.hostcmd import FailureKind
from thunderfleet_lib.rdma import parse as rdma_parser
from thunderfleet_lib.rdma import rules

from thunderfleet_agent.observe.facts import Facts, Source
from thunderfleet_agent.observe.parsers import hardware as hardware_parser
from thunderfleet_agent.observe.parsers import network as network_parser
from thunderfleet_agent.observe.parsers import thunderbolt as thunderbolt_parser

# The conditions that the agent writes; Quarantined is the operator's.
OWN_CONDITIONS = (
    ConditionType.INVENTORY_COMPLETE,
    ConditionType.RDMA_READY,
    ConditionType.BRIDGE_FREE,
    ConditionType.BENCHMARKS_FRESH,
)

RDMA_SOURCES = (Source.RDMA_SWITCH, Source.RDMA_DEVICES, Source.RDMA_INFO)
THIS_MAC = "this Mac"

MAX_INTERFACES = 64
MAX_ADDRESSES = 32
MAX_PORTS = 16
MAX_DEVICES = 16
MAX_MODELS = 64
# What macOS lets the GPU wire by default: two thirds of a small Mac's memory, three quarters of a large one's.
LARGE_MAC_BYTES = 36 * 2**30

_THUNDERBOLT_PORT = re.compile(r"^Thunderbolt (\d{1,3})$")
_SHARED = ipaddress.ip_network("100.64.0.0/10")
_PRIVATE = tuple(ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
_VPN = re.compile(r"^(utun|ipsec|ppp|tun|tap|wg|zt|tailscale)\d*")


@dataclass(frozen=True)
class Profile:
    """What the NodeProfile shall say: its status and its labels."""

    status: NodeProfileStatus
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Cable:
    """One ThunderboltLink and what this Mac says of it."""

    spec: ThunderboltLinkSpec
    endpoint: Endpoint

    @property
    def name(self) -> str:
        return link_name(self.spec)


def profile(
    facts: Facts,
    now: datetime,
    *,
    agent: Agent | None = None,
    before: Iterable[Condition] = (),
    reachability: tuple[Reachability, ...] = (),
    benchmarks: Benchmarks | None = None,
    measured: Verdict | None = None,
) -> Profile:
    """``before`` are the conditions published last, whose times stay while they do; ``now`` is the time of what changes.
    ``measured`` is what the condition BenchmarksFresh says.
    """
    interfaces = _interfaces(facts)
    bridged = {interface.name: interface.bridge for interface in interfaces if interface.bridge}
    devices = _devices(facts)
    ports = _ports(facts, {device.interface or device.name: device.name for device in devices})
    rdma_verdict = _rdma_ready(facts, devices, bridged)
    conditions: tuple[Condition, ...] = tuple(condition for condition in before if condition.type in OWN_CONDITIONS)
    for type_, verdict in (
        (ConditionType.INVENTORY_COMPLETE, _inventory_complete(facts)),
        (ConditionType.RDMA_READY, rdma_verdict),
        (ConditionType.BRIDGE_FREE, _bridge_free(facts, bridged)),
        (
            ConditionType.BENCHMARKS_FRESH,
            measured or Verdict(False, Reason.NOT_MEASURED, "nothing has been measured on this Mac yet"),
        ),
    ):
        conditions = set_condition(conditions, type_, verdict.holds, verdict.reason, verdict.message, now=now)
    status = NodeProfileStatus(
        hardware=_hardware(facts),
        os=OperatingSystem(version=facts.system.version, build=facts.system.build) if facts.system else None,
        runtime=facts.runtime,
        agent=agent,
        network=Network(interfaces=interfaces) if facts.interfaces is not None else None,
        thunderbolt=Thunderbolt(ports=ports, links=sum(len(port.peers) for port in ports)) if facts.thunderbolt else None,
        rdma=RDMA(enabled=facts.rdma_switch, state=rdma_verdict.reason, devices=devices),
        reachability=reachability,
        benchmarks=benchmarks,
        models=(facts.models or ())[:MAX_MODELS],
        conditions=conditions,
    )
    return Profile(status, domain_labels({port.domain_uuid for port in ports if port.domain_uuid}))


# Hardware


def gpu_memory_limit(memory_bytes: int, wired_limit_mb: int) -> int:
    """What the GPU may wire, in bytes: ``iogpu.wired_limit_mb`` when set, else macOS' default share of the memory."""
    if wired_limit_mb:
        return min(wired_limit_mb * 2**20, memory_bytes)
    return memory_bytes * 3 // 4 if memory_bytes > LARGE_MAC_BYTES else memory_bytes * 2 // 3


def _hardware(facts: Facts) -> Hardware | None:
    report, sysctl = facts.hardware, facts.sysctl or {}
    memory = hardware_parser.whole_number(sysctl, "hw.memsize") or (report.memory_bytes if report else None)
    cores = hardware_parser.whole_number(sysctl, "hw.ncpu")
    known = Hardware(
        model_identifier=report.model_identifier if report else None,
        chip=((report.chip if report else None) or sysctl.get("machdep.cpu.brand_string") or "")[:64] or None,
        cpu_cores=cores if cores and cores < 10_000 else (report.cpu_cores if report else None),
        gpu_cores=facts.gpu_cores or None,
        memory_bytes=memory,
        gpu_memory_limit_bytes=gpu_memory_limit(memory, hardware_parser.whole_number(sysctl, "iogpu.wired_limit_mb") or 0)
        if memory
        else None,
        memory=binary_size(memory) if memory else None,
    )
    return known if known != Hardware() else None


# Network


def address_class(text: str) -> AddressClass:
    """Who can use the address. Loopback counts as Private: ``lo0`` is never asked, and on another interface only a recorded
    Mac has it, whose cables and LAN run there.
    """
    address = ipaddress.ip_address(text)
    if address.is_link_local:
        return AddressClass.LINK_LOCAL
    if address.is_loopback or any(address in network for network in _PRIVATE if network.version == address.version):
        return AddressClass.PRIVATE
    if address.version == 4 and address in _SHARED:
        return AddressClass.SHARED
    return AddressClass.PUBLIC


def _interfaces(facts: Facts) -> tuple[Interface, ...]:
    """The interfaces worth knowing: hardware ports, bridges, and whatever else has an address that another machine can use."""
    seen = facts.interfaces or ()
    ports = facts.hardware_ports or {}
    bridges = {member: bridge.name for bridge in seen for member in bridge.members}
    speeds = _thunderbolt_speeds(facts)
    known = []
    for interface in seen:
        if "LOOPBACK" in interface.flags or re.match(r"^lo\d*$", interface.name):
            continue
        addresses = tuple(
            InterfaceAddress(address=a.address, prefix_length=a.prefix_length, class_=address_class(a.address))
            for a in sorted(interface.addresses, key=lambda a: (ipaddress.ip_address(a.address).version, a.address))
            if not ipaddress.ip_address(a.address).is_unspecified
        )[:MAX_ADDRESSES]
        kind = _kind(interface, ports.get(interface.name), addresses)
        usable = any(address.class_ is not AddressClass.LINK_LOCAL for address in addresses)
        if interface.name not in ports and kind is not InterfaceKind.BRIDGE and interface.name not in bridges and not usable:
            continue
        known.append(
            Interface(
                name=interface.name,
                kind=kind,
                hardware_port=ports.get(interface.name),
                up=interface.up,
                addresses=addresses,
                speed_mbps=speeds.get(interface.name, interface.speed_mbps),
                bridge=bridges.get(interface.name),
            )
        )
    return tuple(known[:MAX_INTERFACES])


def _kind(interface: network_parser.Interface, port: str | None, addresses: Sequence[InterfaceAddress]) -> InterfaceKind:
    if port is not None:
        if _THUNDERBOLT_PORT.match(port):
            return InterfaceKind.THUNDERBOLT
        if "bridge" in port.lower():
            return InterfaceKind.BRIDGE
        if re.match(r"^(wi-?fi|wlan|airport)", port, re.IGNORECASE):
            return InterfaceKind.WIFI
        if re.search(r"ethernet|\blan\b", port, re.IGNORECASE):
            return InterfaceKind.ETHERNET
    if interface.members or re.match(r"^bridge\d+$", interface.name):
        return InterfaceKind.BRIDGE
    shared = any(address.class_ is AddressClass.SHARED for address in addresses)
    if _VPN.match(interface.name) or (port is None and shared):
        return InterfaceKind.VPN
    return InterfaceKind.OTHER


def port_interfaces(facts: Facts) -> dict[int, str]:
    """Receptacle number to interface: receptacle N is the hardware port named `Thunderbolt N`."""
    found: dict[int, str] = {}
    for interface, port in (facts.hardware_ports or {}).items():
        match = _THUNDERBOLT_PORT.match(port)
        if match:
            found.setdefault(int(match.group(1)), interface)
    return found


def _thunderbolt_speeds(facts: Facts) -> dict[str, int | None]:
    interfaces = port_interfaces(facts)
    ports = facts.thunderbolt.ports if facts.thunderbolt else ()
    return {interfaces[port.receptacle]: port.speed_mbps for port in ports if port.receptacle in interfaces}


# Thunderbolt and RDMA


def _ports(facts: Facts, devices: Mapping[str, str]) -> tuple[ThunderboltPort, ...]:
    interfaces = port_interfaces(facts)
    ports = []
    for port in (facts.thunderbolt.ports if facts.thunderbolt else ())[:MAX_PORTS]:
        interface = interfaces.get(port.receptacle)
        ports.append(
            ThunderboltPort(
                receptacle=port.receptacle,
                switch_uid=port.switch_uid,
                interface=interface,
                rdma_device=devices.get(interface) if interface else None,
                connected=port.connected,
                speed_mbps=port.speed_mbps,
                domain_uuid=port.domain_uuid,
                peers=tuple(
                    ThunderboltPeer(
                        domain_uuid=peer.domain_uuid, name=peer.name, speed_mbps=peer.speed_mbps, through=peer.through
                    )
                    for peer in sorted(port.peers, key=lambda peer: peer.domain_uuid)
                ),
            )
        )
    return tuple(ports)


def _devices(facts: Facts) -> tuple[RDMADevice, ...]:
    """Only what `ibv_devices` lists counts; `ibv_devinfo` adds state and GID."""
    info = {device.name: device for device in facts.rdma_info or ()}
    devices = []
    for name in sorted(set(facts.rdma_devices or ()))[:MAX_DEVICES]:
        described = info.get(name)
        state = rdma_parser.port_state(described.state if described else None)
        interface = rules.interface_of(name)
        devices.append(RDMADevice(name=name, interface=interface, state=state, gid=described.gid if described else None))
    return tuple(devices)


# Conditions


@dataclass(frozen=True)
class Verdict:
    """A condition's status (None: unknown), reason, and message with what mends it."""

    holds: bool | None
    reason: str
    message: str


def _inventory_complete(facts: Facts) -> Verdict:
    problems = [str(facts.failures[source]) for source in Source if source in facts.failures]
    if facts.thunderbolt:
        problems += [f"`{thunderbolt_parser.NAME}`: {problem}" for problem in facts.thunderbolt.problems]
    problems += _contradictions(facts)
    if not problems:
        return Verdict(True, Reason.COMPLETE, "every command answered")
    return Verdict(False, Reason.COMMAND_FAILED, "; ".join(problems))


def _contradictions(facts: Facts) -> list[str]:
    """What one command says and another one lacks: an answer that broke off between two lines looks whole by itself."""
    found = []
    shown = {interface.name: interface for interface in facts.interfaces or ()}
    ifconfig = " ".join(network_parser.IFCONFIG_COMMAND)
    if facts.interfaces is not None:
        last = facts.interfaces[-1].name if facts.interfaces else None
        thunderbolt = set(port_interfaces(facts).values())
        for name, port in sorted(_expected(facts).items(), key=lambda pair: pair[1]):
            if name not in shown:
                found.append(f"`{ifconfig}` does not show {name}, which is {port}")
            elif shown[name].active is None and (name in thunderbolt or name == last):
                found.append(f"`{ifconfig}` does not show the status of {name}, which is {port}")
    if facts.rdma_devices is not None and facts.rdma_info is not None:
        listed, described = set(facts.rdma_devices), {info.name: info for info in facts.rdma_info}
        devinfo = " ".join(rdma_parser.DEVINFO_COMMAND)
        for name in sorted(listed):
            if name not in described:
                found.append(f"`{devinfo}` does not describe {name}")
            elif described[name].state is None:
                found.append(f"`{devinfo}` does not say the state of {name}")
            elif (address := _without_gid(described[name], facts)) is not None:
                interface = name.removeprefix("rdma_")
                found.append(f"`{devinfo}` lists no GID of {address} for {name}, though `{ifconfig}` shows it on {interface}")
        found += [
            f"`{' '.join(rdma_parser.DEVICES_COMMAND)}` does not list {name}, which `{devinfo}` describes"
            for name in sorted(set(described) - listed)
        ]
    return found


def _expected(facts: Facts) -> dict[str, str]:
    """The interfaces that `ifconfig -a` has to show, and their hardware ports: all Thunderbolt ports, and what is both a port
    of this Mac now and has a service that is switched on. (An adapter that was pulled out keeps its service, a bridge that was
    destroyed stays a port: one command alone does not prove that there is such an interface.)
    """
    served = {service.device for service in facts.services or () if service.enabled}
    thunderbolt = set(port_interfaces(facts).values())
    return {
        name: port
        for name, port in (facts.hardware_ports or {}).items()
        if name in thunderbolt or (name in served and re.match(r"^(en|bridge)\d+$", name))
    }


def _without_gid(device: rdma_parser.DeviceInfo, facts: Facts) -> str | None:
    """The IPv4 address of an Active device's interface when none of its GIDs is mapped from one: each command says
    something else, so a list of GIDs that broke off is not taken for a port without an address.
    """
    if device.gid is not None or rdma_parser.port_state(device.state) is not RDMADeviceState.ACTIVE:
        return None
    name = device.name.removeprefix("rdma_")
    addresses = (a.address for i in facts.interfaces or () if i.name == name and i.up for a in i.addresses)
    return next((address for address in addresses if ":" not in address), None)


def is_virtual(facts: Facts) -> bool:
    """Whether this is a virtual machine, which has no Thunderbolt whatever runs below it."""
    model = (facts.hardware.model_identifier if facts.hardware else None) or ""
    return model.startswith("VirtualMac")


def _rdma_ready(facts: Facts, devices: Sequence[RDMADevice], bridged: Mapping[str, str]) -> Verdict:
    """Whether RDMA works on a port of this Mac."""
    if is_virtual(facts):
        model = facts.hardware.model_identifier if facts.hardware else None
        text = f"this is a virtual machine ({model}), which has no Thunderbolt port: use the Mac itself"
        return Verdict(False, Reason.RDMA_UNSUPPORTED, text)
    failures = [facts.failures[source] for source in RDMA_SOURCES if source in facts.failures]
    observed = not failures and facts.rdma_switch is not None and facts.rdma_devices is not None
    hung = next((str(failure) for failure in failures if failure.kind is FailureKind.TIMED_OUT), "")
    switch = facts.failures.get(Source.RDMA_SWITCH)
    absent = str(switch) if switch and switch.kind is FailureKind.ABSENT else ""
    stack = rules.Stack(
        supported=not absent, hung=bool(hung), enabled=facts.rdma_switch, has_devices=bool(devices) if observed else None
    )
    if reason := rules.stack_fault(stack):
        evidence = {Reason.STACK_HUNG: hung, Reason.RDMA_UNSUPPORTED: absent}.get(reason, "")
        return Verdict(False, reason, rules.explain(reason, THIS_MAC, evidence=evidence))
    if failures:
        return Verdict(None, Reason.COMMAND_FAILED, f"{failures[0]}; run it on this Mac to see why")
    if not observed:
        return Verdict(None, Reason.NOT_OBSERVED, "RDMA has not been observed yet")
    return _rdma_ports(facts, stack, devices, bridged)


def _rdma_ports(facts: Facts, stack: rules.Stack, devices: Sequence[RDMADevice], bridged: Mapping[str, str]) -> Verdict:
    """As ``_rdma_ready``, of the ports: one that works is enough; of those that do not, Active ones count first."""
    described = {device.name: device for device in facts.rdma_info or ()}
    ports = [
        rules.Port(
            device=device.name,
            interface=device.interface or device.name,
            state=device.state,
            bridge=bridged.get(device.interface or ""),
            mapped=device.gid is not None,
            address=_without_gid(described[device.name], facts) if device.name in described else None,
        )
        for device in devices
    ]
    if ready := [port.device for port in ports if port.device and rules.port_fault(port) is None]:
        return Verdict(True, Reason.READY, f"Active: {', '.join(ready)}")
    candidates = [port for port in ports if port.state is RDMADeviceState.ACTIVE] or ports
    found = rules.first_fault((stack, port) for port in candidates)
    assert found is not None
    reason, index = found
    if reason is Reason.BRIDGE_MEMBER:
        members = {port.interface: port.bridge for port in candidates if port.interface and port.bridge}
        return Verdict(False, reason, _unbridge(members, facts))
    if reason is Reason.PORT_DOWN:
        names = ", ".join(device.name for device in devices)
        text = f"no port of {names} is Active: connect another Mac that has RDMA enabled with a Thunderbolt 5 cable"
        return Verdict(False, reason, text)
    return Verdict(False, reason, rules.explain(reason, THIS_MAC, candidates[index]))


def _bridge_free(facts: Facts, bridged: Mapping[str, str]) -> Verdict:
    """Whether no Thunderbolt port is a member of a bridge (which takes its own address, and with it RDMA)."""
    for source in (Source.INTERFACES, Source.HARDWARE_PORTS):
        if failure := facts.failures.get(source):
            return Verdict(None, Reason.COMMAND_FAILED, f"{failure}; run it on this Mac to see why")
    if facts.interfaces is None or facts.hardware_ports is None:
        return Verdict(None, Reason.NOT_OBSERVED, "bridges have not been looked at yet")
    thunderbolt = set(port_interfaces(facts).values())
    members = {name: bridge for name, bridge in bridged.items() if name in thunderbolt}
    if members:
        return Verdict(False, Reason.BRIDGE_MEMBER, _unbridge(members, facts))
    # What is not wholly there may have members.
    bridges = {i.name: i.active for i in facts.interfaces if re.match(r"^bridge\d+$", i.name)}
    for name in sorted({name for name in _expected(facts) if name.startswith("bridge")} | set(bridges)):
        if bridges.get(name) is None:
            lacks = f"all of {name}" if name in bridges else name
            return Verdict(None, Reason.COMMAND_FAILED, f"`ifconfig -a` does not show {lacks}: run it on this Mac")
    return Verdict(True, Reason.NO_MEMBERS, "no Thunderbolt port is a member of a bridge")


def _unbridge(members: Mapping[str, str], facts: Facts) -> str:
    """Which ports are in which bridge, and the commands that take them out and keep them out."""
    by_bridge: dict[str, list[str]] = {}
    for name, bridge in sorted(members.items()):
        by_bridge.setdefault(bridge, []).append(name)
    said = "; ".join(
        f"{', '.join(names)} {'is a member' if len(names) == 1 else 'are members'} of {bridge}: run `sudo ifconfig {bridge} "
        + " ".join(f"deletem {name}" for name in names)
        + "`"
        for bridge, names in by_bridge.items()
    )
    services = [service for service in facts.services or () if service.device in by_bridge]
    for service in services:
        if service.enabled:
            said += f", and `networksetup -setnetworkserviceenabled '{service.name}' off` so that it stays so"
    if facts.services is not None and not services:
        order = " ".join(network_parser.SERVICE_ORDER_COMMAND)
        said += f" (`{order}` lists no service of {', '.join(sorted(by_bridge))} to switch off so that it stays so)"
    return said


# Cables


@dataclass(frozen=True)
class PeerPort:
    """Where a domain UUID was found: a node, and the receptacle of it that has the UUID now."""

    node: str
    receptacle: int


def wanted_uuids(status: NodeProfileStatus) -> frozenset[str]:
    """The domain UUIDs (lower case) of the computers that this Mac sees: whose profiles are to be looked for."""
    ports = status.thunderbolt.ports if status.thunderbolt else ()
    return frozenset(peer.domain_uuid.lower() for port in ports for peer in port.peers)


def find_peer(uuid: str, profiles: Iterable[NodeProfile], node: str, own: NodeProfileStatus) -> PeerPort | None:
    """Which port of which node has that domain UUID, by what the profiles show now.

    A UUID that two nodes claim (one of them shows what was) belongs to the one that sees a port of ours; if that does not
    settle it, to none: a guessed cable is worse than one that is found a moment later.
    """
    mine = {
        port.domain_uuid.lower() for port in (own.thunderbolt.ports if own.thunderbolt else ()) if port.domain_uuid is not None
    }
    claims: list[tuple[bool, PeerPort]] = []
    for other in profiles:
        if other.metadata.name == node or len(other.metadata.name) > MAX_NODE_NAME_LENGTH:
            continue
        for port in other.status.thunderbolt.ports if other.status.thunderbolt else ():
            if port.domain_uuid and port.domain_uuid.lower() == uuid.lower():
                sees_us = any(peer.domain_uuid.lower() in mine for peer in port.peers)
                claims.append((sees_us, PeerPort(other.metadata.name, port.receptacle)))
    mutual = [claim for sees_us, claim in claims if sees_us]
    if len(mutual) == 1:
        return mutual[0]
    return claims[0][1] if len(claims) == 1 else None


def cables(
    node: str,
    status: NodeProfileStatus,
    peers: Mapping[str, PeerPort],
    links: Iterable[ThunderboltLink] = (),
    flapping: frozenset[int] = frozenset(),
) -> tuple[Cable, ...]:
    """This Mac's ends of its cables, by name: one for each peer that is a Node (``peers``, by lower-case domain UUID), and one
    for each existing link whose other end sees this Mac though this Mac does not see it (a display in between hides it).
    ``flapping`` are the receptacles whose cable comes and goes.
    """
    if len(node) > MAX_NODE_NAME_LENGTH:
        return ()
    ports = {port.receptacle: port for port in (status.thunderbolt.ports if status.thunderbolt else ())}
    found: dict[str, Cable] = {}
    for port in ports.values():
        for peer in port.peers:
            other = peers.get(peer.domain_uuid.lower())
            if other is None or other.node == node:
                continue
            spec = ordered(LinkEnd(node=node, port=port.receptacle), LinkEnd(node=other.node, port=other.receptacle))
            cable = Cable(spec, _endpoint(node, status, port, peer, port.receptacle in flapping))
            found.setdefault(cable.name, cable)
    for link in links:
        if link.metadata.name in found or link.metadata.deletion_timestamp is not None:
            continue
        own = next((end for end in (link.spec.a, link.spec.b) if end.node == node), None)
        hidden = ports.get(own.port) if own else None
        if seen_by(node, link) and hidden is not None and hidden.connected and link_name(link.spec) == link.metadata.name:
            found[link.metadata.name] = Cable(link.spec, _endpoint(node, status, hidden, None, hidden.receptacle in flapping))
    return tuple(found[name] for name in sorted(found))


def seen_by(node: str, link: ThunderboltLink) -> str | None:
    """The Mac at the other end when it says that it sees ``node`` through that cable."""
    return next((endpoint.node for endpoint in link.status.endpoints if endpoint.node != node and endpoint.sees_peer), None)


def _endpoint(
    node: str, status: NodeProfileStatus, port: ThunderboltPort, peer: ThunderboltPeer | None, flapping: bool
) -> Endpoint:
    device = next((d for d in (status.rdma.devices if status.rdma else ()) if d.name == port.rdma_device), None)
    return Endpoint(
        node=node,
        port=port.receptacle,
        interface=port.interface,
        rdma_device=port.rdma_device,
        rdma_state=device.state if device else None,
        address=link_address(status, port.interface),
        speed_mbps=(peer.speed_mbps if peer else None) or port.speed_mbps,
        through=peer.through if peer else (),
        sees_peer=peer is not None,
        flapping=flapping or None,
    )


_PREFERRED = (AddressClass.PRIVATE, AddressClass.LINK_LOCAL, AddressClass.SHARED, AddressClass.PUBLIC)


def link_address(status: NodeProfileStatus, interface: str | None) -> str | None:
    """The address to reach this Mac at over that port: IPv4 before IPv6, Private before link-local. IPv6 link-local addresses
    are left out, since whoever dials one must name a zone of his own.
    """
    found = next((i for i in (status.network.interfaces if status.network else ()) if i.name == interface), None)
    usable = [
        (":" in a.address, _PREFERRED.index(a.class_), a.address)
        for a in (found.addresses if found else ())
        if a.class_ in _PREFERRED and not (":" in a.address and a.class_ is AddressClass.LINK_LOCAL)
    ]
    return min(usable)[2] if usable else None
