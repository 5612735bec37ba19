"""Which addresses of which Macs this Mac dials, and from where. Pure.

A Mac dials every address of the Macs at the other ends of its cables and of the Macs that it shares a group with, and one
address of each Mac in its sample of the fleet, so that a fleet of a thousand stays quiet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from thunderfleet_crds.kinds.nodeprofile import MAX_REACHABILITY, GroupUse, NodeProfile, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLinkSpec
from thunderfleet_crds.vocabulary import AddressClass, InterfaceKind

from thunderfleet_agent.publish.fleet_sample import SAMPLE_SIZE

# At most this many Macs of shared groups are dialled.
MAX_MEMBERS = 32

_NOBODY: Mapping[str, NodeProfile] = MappingProxyType({})
_NO_PORTS: Mapping[int, str | None] = MappingProxyType({})
_DIALLED = (AddressClass.PRIVATE, AddressClass.LINK_LOCAL, AddressClass.SHARED)


@dataclass(frozen=True)
class PeerAddress:
    """One address of one node's agent.

    ``interface`` is this Mac's interface that the connection must use (a cable), None if any will do. ``sha256`` is the
    digest of the certificate that the agent must show.
    """

    node: str
    address: str
    port: int
    sha256: str
    interface: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What reachability is recorded for."""
        return self.node, self.address


def listen_addresses(status: NodeProfileStatus) -> frozenset[str]:
    """This Mac's addresses for other agents: none that is public, no IPv6 link-local one (a peer would need a zone)."""
    return frozenset(
        a.address
        for interface in (status.network.interfaces if status.network else ())
        if interface.up
        for a in interface.addresses
        if _dialled(a.address, a.class_)
    )


def addresses(profile: NodeProfile) -> frozenset[str]:
    """Every address of a Mac."""
    status = profile.status
    found = {a.address for interface in (status.network.interfaces if status.network else ()) for a in interface.addresses}
    return frozenset(found | ({status.agent.address} if status.agent else set()))


def _dialled(address: str, class_: AddressClass) -> bool:
    return class_ in _DIALLED and not (":" in address and class_ is AddressClass.LINK_LOCAL)


def targets(
    node: str,
    own: NodeProfileStatus,
    links: Iterable[ThunderboltLinkSpec],
    neighbors: Mapping[str, NodeProfile],
    others: Iterable[NodeProfile],
    members: Mapping[str, NodeProfile] = _NOBODY,
) -> tuple[PeerAddress, ...]:
    """What ``node`` dials, at most MAX_REACHABILITY addresses.

    ``links`` are its cables, ``neighbors`` the profiles at their other ends by name, ``members`` those of the Macs that it
    shares a group with, ``others`` its sample of the fleet.
    """
    interfaces = {port.receptacle: port.interface for port in (own.thunderbolt.ports if own.thunderbolt else ())}
    found: dict[tuple[str, str], PeerAddress] = {}
    cabled: dict[str, dict[int, str | None]] = {}
    for link in links:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            if here.node == node and there.node in neighbors:
                cabled.setdefault(there.node, {})[there.port] = interfaces.get(here.port)
    for name in sorted(cabled):
        for target in _every_address(neighbors[name], cabled[name]):
            found.setdefault(target.key, target)
    for name in sorted(set(members) - set(cabled) - {node}):
        for target in _every_address(members[name], _NO_PORTS):
            found.setdefault(target.key, target)
    sampled = 0
    for profile in sorted(others, key=lambda profile: profile.metadata.name):
        agent, name = profile.status.agent, profile.metadata.name
        if agent is None or name == node or name in cabled or name in members or sampled >= SAMPLE_SIZE:
            continue
        sampled += 1
        target = PeerAddress(name, agent.address, agent.port, agent.certificate_sha256)
        found.setdefault(target.key, target)
    return tuple(found.values())[:MAX_REACHABILITY]


def members(node: str, own: Iterable[GroupUse]) -> tuple[str, ...]:
    """The Macs that ``node`` shares groups with: the first MAX_MEMBERS by name, so that they are always the same."""
    return tuple(sorted({name for group in own for name in group.nodes} - {node})[:MAX_MEMBERS])


def _every_address(profile: NodeProfile, ports: Mapping[int, str | None]) -> Iterable[PeerAddress]:
    """All addresses of a Mac, without those of Thunderbolt ports where none of this Mac's cables (``ports``) ends."""
    status, name = profile.status, profile.metadata.name
    if status.agent is None:
        return
    theirs = {port.interface: port.receptacle for port in (status.thunderbolt.ports if status.thunderbolt else ())}
    agent = status.agent
    yield PeerAddress(name, agent.address, agent.port, agent.certificate_sha256)
    for interface in status.network.interfaces if status.network else ():
        by: str | None = None
        if interface.kind is InterfaceKind.THUNDERBOLT:
            by = ports.get(theirs.get(interface.name, -1))
            if by is None:
                continue
        for a in interface.addresses:
            usable = _dialled(a.address, a.class_) and (by is not None or a.class_ is not AddressClass.LINK_LOCAL)
            if interface.up and usable:
                yield PeerAddress(name, a.address, agent.port, agent.certificate_sha256, by)


def interface_of(own: NodeProfileStatus, address: str) -> str | None:
    """This Mac's interface that has the address."""
    for interface in own.network.interfaces if own.network else ():
        if any(a.address == address for a in interface.addresses):
            return interface.name
    return None


def source(own: NodeProfileStatus, target: PeerAddress, host_ip: str) -> str | None:
    """The address to dial from; None to let the routes decide, which is part of what a dial tests.

    Loopback addresses (recorded Macs without network namespaces) have no routes, so there the source must be set.
    """
    if not ipaddress.ip_address(target.address).is_loopback:
        return None
    if target.interface is None:
        return host_ip
    for interface in own.network.interfaces if own.network else ():
        if interface.name == target.interface and interface.addresses:
            return next((a.address for a in interface.addresses if ":" not in a.address), None)
    return None
