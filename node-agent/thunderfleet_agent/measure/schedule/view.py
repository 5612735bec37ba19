"""What there is to measure from this Mac as it is now. Pure: from what discovery knows to the probes that follow."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from thunderfleet_crds.nodeprofile import Agent, NodeProfileStatus, Reachability
from thunderfleet_crds.thunderboltlink import ThunderboltLink, ThunderboltLinkSpec, link_name
from thunderfleet_crds.vocabulary import ConditionType, MeasurementTransport, ReachabilityState

from thunderfleet_agent.measure.schedule import probes
from thunderfleet_agent.measure.schedule.probes import Probe, Target
from thunderfleet_agent.measure.schedule.settings import Settings
from thunderfleet_agent.measure.session.sessions import End
from thunderfleet_agent.peers import reach

RDMA_BACKEND = "jaccl"


@dataclass(frozen=True)
class Cable:
    """One cable of this Mac: who is at its other end, this end's interface, and why RDMA is not measured (None: it is)."""

    name: str
    peer: str
    interface: str | None
    mine: End
    problem: str | None


@dataclass(frozen=True)
class View:
    """``interfaces``: this Mac's interface of each of its addresses. ``targets``: whom to measure, reachable now."""

    node: str = ""
    host_ip: str = ""
    targets: tuple[Target, ...] = ()
    cables: Mapping[str, Cable] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    interfaces: Mapping[str, str] = field(default_factory=dict)

    def link_at(self, address: str, peer: str) -> str:
        """The cable to ``peer`` on whose interface this Mac has the address; empty when it is none."""
        interface = self.interfaces.get(address)
        return next((c.name for c in self.cables.values() if c.peer == peer and interface and c.interface == interface), "")

    def dial(self, target: Target) -> reach.Target | None:
        """Where the agent of a target answers: at that address, or (for a cable as such) at any that is reachable."""
        agent = self.agents.get(target.node)
        if agent is None:
            return None
        if target.address:
            cable = self.cables.get(target.link)
            return reach.Target(
                target.node, target.address, agent.port, agent.certificate_sha256, cable.interface if cable else None
            )
        others = sorted((t for t in self.targets if t.node == target.node), key=lambda t: (t.address != agent.address, t))
        return self.dial(others[0]) if others else None

    def source(self, target: Target, address: str) -> str | None:
        """The address to dial from: a cable's own. Elsewhere the routes decide, but for loopback, which has none."""
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
    settings: Settings,
) -> View:
    """``ends``: this Mac's cables; ``links``: the ThunderboltLinks as last read; ``agents``: of the nodes in ``facts``."""
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
    settings: Settings,
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
        end = End(port.rdma_device or "" if port else "", first.get(interface or "", ""))
        name = link_name(spec)
        found[name] = Cable(name, theirs.node, interface, end, _problem(status, links.get(name), end, settings))
    return found


def _problem(status: NodeProfileStatus, link: ThunderboltLink | None, end: End, settings: Settings) -> str | None:
    """Why no group is formed over this cable to measure it."""
    if settings.rdma.transport is MeasurementTransport.RING:
        return None if end.address else "this end of the cable has no IPv4 address"
    if status.runtime is None:
        return "it is not known yet what this Mac's MLX can do"
    if RDMA_BACKEND not in status.runtime.backends:
        version = f" {status.runtime.mlx_version}" if status.runtime.mlx_version else ""
        return f"MLX{version} on this Mac has no JACCL (RDMA needs macOS 26.2 or newer on Apple silicon)"
    usable = next((c for c in link.status.conditions if c.type == ConditionType.RDMA_USABLE), None) if link else None
    if usable is None:
        return "it is not known yet whether RDMA is usable on this cable"
    if usable.status != "True":
        return f"RDMA is not usable on this cable: {usable.reason}"
    return None if end.device else "this end of the cable has no RDMA device"


def wanted(view: View, settings: Settings) -> tuple[Probe, ...]:
    """Everything that this Mac would measure, if it may."""
    if not settings.enabled:
        return ()
    found = list(probes.own(settings))
    if settings.sockets.enabled:
        found += [probes.socket(settings, target) for target in view.targets]
    if settings.rdma.enabled:
        reachable = {target.node for target in view.targets}
        found += [
            probes.rdma(settings, Target(cable.peer, "", cable.name))
            for cable in view.cables.values()
            if cable.problem is None and cable.peer in reachable
        ]
    return tuple(found)


def notes(view: View, settings: Settings) -> tuple[str, ...]:
    """Why cables are not measured by a group, said once for all cables with the same reason."""
    if not (settings.enabled and settings.rdma.enabled):
        return ()
    return tuple(sorted({cable.problem for cable in view.cables.values() if cable.problem}))
