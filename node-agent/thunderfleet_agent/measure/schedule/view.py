"""What this Mac can measure now: its cables, the peers that it reaches, and the probes that follow from them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from thunderfleet_crds.kinds.nodeprofile import Agent, NodeProfileStatus, Reachability
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink, ThunderboltLinkSpec, link_name
from thunderfleet_crds.vocabulary import ConditionType, MeasurementTransport, ReachabilityState
from thunderfleet_lib.rdma.rules import LEAST_MACOS_TEXT

from thunderfleet_agent.measure.schedule import probes
from thunderfleet_agent.measure.schedule.probes import CableEnd, Probe, Target
from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.peers.dial_plan import PeerAddress

RDMA_BACKEND = "jaccl"


@dataclass(frozen=True)
class Cable:
    """One cable of this Mac: the peer, this end's interface, and why RDMA is not measured (None: it is)."""

    name: str
    peer: str
    interface: str | None
    mine: CableEnd
    problem: str | None


@dataclass(frozen=True)
class View:
    """``interfaces``: this Mac's interface of each of its addresses. ``targets``: the addresses to measure, all reachable."""

    node: str = ""
    host_ip: str = ""
    targets: tuple[Target, ...] = ()
    cables: Mapping[str, Cable] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    interfaces: Mapping[str, str] = field(default_factory=dict)

    def link_at(self, address: str, peer: str) -> str:
        """The link to ``peer`` whose interface has this address of this Mac; empty if none has."""
        interface = self.interfaces.get(address)
        return next((c.name for c in self.cables.values() if c.peer == peer and interface and c.interface == interface), "")

    def dial(self, target: Target) -> PeerAddress | None:
        """Where to dial the agent of a target: at its address; for a cable without one, at any reachable address."""
        agent = self.agents.get(target.node)
        if agent is None:
            return None
        if target.address:
            cable = self.cables.get(target.link)
            return PeerAddress(
                target.node, target.address, agent.port, agent.certificate_sha256, cable.interface if cable else None
            )
        others = sorted((t for t in self.targets if t.node == target.node), key=lambda t: (t.address != agent.address, t))
        return self.dial(others[0]) if others else None

    def source(self, target: Target, address: str) -> str | None:
        """The address to dial from: that of the cable. Elsewhere the routes decide, except for loopback, which has none."""
        cable = self.cables.get(target.link)
        if cable is not None and cable.mine.address and target.address:
            return cable.mine.address
        return self.host_ip if ipaddress.ip_address(address).is_loopback else None


def view(
    node: str,
    host_ip: str,
    status: NodeProfileStatus,
    ends: Iterable[ThunderboltLinkSpec],
    links: Iterable[ThunderboltLink],
    facts: Iterable[Reachability],
    agents: Mapping[str, Agent],
    settings: MeasureSettings,
) -> View:
    """``ends``: this Mac's cables; ``links``: the ThunderboltLinks as last read; ``agents``: by node."""
    interfaces = {
        address.address: interface.name
        for interface in (status.network.interfaces if status.network else ())
        for address in interface.addresses
    }
    cables = _cables(node, status, ends, {link.metadata.name: link for link in links}, interfaces, settings)
    targets: dict[str, Target] = {}
    plain: list[Target] = []
    for fact in sorted(facts, key=lambda fact: (":" in fact.address, fact.address)):
        if fact.state is not ReachabilityState.REACHABLE or fact.node not in agents:
            continue
        link = next((c.name for c in cables.values() if c.peer == fact.node and c.interface == fact.interface), None)
        if link is not None and link not in targets:
            targets[link] = Target(fact.node, fact.address, link)
        else:
            plain.append(Target(fact.node, fact.address))
    return View(node, host_ip, (*targets.values(), *plain), cables, dict(agents), interfaces)


def _cables(
    node: str,
    status: NodeProfileStatus,
    ends: Iterable[ThunderboltLinkSpec],
    links: Mapping[str, ThunderboltLink],
    interfaces: Mapping[str, str],
    settings: MeasureSettings,
) -> dict[str, Cable]:
    ports = {port.receptacle: port for port in (status.thunderbolt.ports if status.thunderbolt else ())}
    first = {name: address for address, name in sorted(interfaces.items(), reverse=True) if ":" not in address}
    found = {}
    for spec in ends:
        mine, theirs = (spec.a, spec.b) if spec.a.node == node else (spec.b, spec.a)
        port = ports.get(mine.port)
        if theirs.node == node:
            continue
        interface = port.interface if port else None
        end = CableEnd(port.rdma_device or "" if port else "", first.get(interface or "", ""))
        name = link_name(spec)
        found[name] = Cable(name, theirs.node, interface, end, _problem(status, links.get(name), end, settings))
    return found


def _problem(status: NodeProfileStatus, link: ThunderboltLink | None, end: CableEnd, settings: MeasureSettings) -> str | None:
    """Why the cable cannot be measured with a group; None if it can."""
    if settings.rdma.transport is MeasurementTransport.RING:
        return None if end.address else "this end of the cable has no IPv4 address"
    if status.runtime is None:
        return "the agent has not read the backends of MLX yet"
    if RDMA_BACKEND not in status.runtime.backends:
        version = f" {status.runtime.mlx_version}" if status.runtime.mlx_version else ""
        return f"MLX{version} on this Mac has no JACCL backend, which needs {LEAST_MACOS_TEXT} on Apple silicon"
    usable = next((c for c in link.status.conditions if c.type == ConditionType.RDMA_USABLE), None) if link else None
    if usable is None:
        return "the ThunderboltLink has no condition RDMAUsable yet"
    if usable.status != "True":
        return f"RDMA is not usable on this cable: {usable.reason}"
    return None if end.device else "this end of the cable has no RDMA device"


def wanted(view: View, settings: MeasureSettings) -> tuple[Probe, ...]:
    """Every probe that is enabled and possible."""
    if not settings.enabled:
        return ()
    found = list(probes.local_probes(settings))
    if settings.sockets.enabled:
        found += [probes.socket_probe(settings, target) for target in view.targets]
    if settings.rdma.enabled:
        reachable = {target.node for target in view.targets}
        found += [
            probes.rdma_probe(settings, Target(cable.peer, "", cable.name))
            for cable in view.cables.values()
            if cable.problem is None and cable.peer in reachable
        ]
    return tuple(found)


def notes(view: View, settings: MeasureSettings) -> tuple[str, ...]:
    """Why cables are not measured with a group, each reason once."""
    if not (settings.enabled and settings.rdma.enabled):
        return ()
    return tuple(sorted({cable.problem for cable in view.cables.values() if cable.problem}))
