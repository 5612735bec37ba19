"""This Mac's ends of its ThunderboltLinks, and which Mac is at the other end of a cable.

Two ends are matched by the domain UUIDs in the current profiles. A link exists when at least one end detects the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from thunderfleet_crds.kinds.nodeprofile import NodeProfile, NodeProfileStatus, ThunderboltPeer, ThunderboltPort
from thunderfleet_crds.kinds.thunderboltlink import (
    MAX_NODE_NAME_LENGTH,
    Endpoint,
    LinkEnd,
    ThunderboltLink,
    ThunderboltLinkSpec,
    link_name,
    ordered,
)
from thunderfleet_crds.vocabulary import AddressClass

_PREFERRED = (AddressClass.PRIVATE, AddressClass.LINK_LOCAL, AddressClass.SHARED, AddressClass.PUBLIC)


@dataclass(frozen=True)
class LinkReport:
    """One ThunderboltLink and this Mac's end of it."""

    spec: ThunderboltLinkSpec
    endpoint: Endpoint

    @property
    def name(self) -> str:
        return link_name(self.spec)


@dataclass(frozen=True)
class PeerPort:
    """The node and receptacle that have a domain UUID now."""

    node: str
    receptacle: int


def wanted_uuids(status: NodeProfileStatus) -> frozenset[str]:
    """The domain UUIDs (lower case) of the computers that this Mac detects."""
    ports = _ports(status)
    return frozenset(peer.domain_uuid.lower() for port in ports for peer in port.peers)


def find_peer(
    uuid: str,
    profiles: Iterable[NodeProfile],
    node: str,
    own: NodeProfileStatus,
    links: Iterable[ThunderboltLink] = (),
) -> PeerPort | None:
    """Which port of which node has that domain UUID, according to the current profiles.

    If two nodes claim a UUID, one of the profiles is out of date or wrong; the UUID belongs to the node that detects a port of
    this Mac. If several do, it stays with the one to which this Mac reports a link (``links``: as last read), so that a Mac
    that copies the UUIDs of others takes no cable from them. If that does not decide it, the answer is None: a wrong link is
    worse than a link that appears a moment later.
    """
    mine = {port.domain_uuid.lower() for port in _ports(own) if port.domain_uuid is not None}
    claims: list[tuple[bool, PeerPort]] = []
    for other in profiles:
        if other.metadata.name == node or len(other.metadata.name) > MAX_NODE_NAME_LENGTH:
            continue
        for port in _ports(other.status):
            if port.domain_uuid and port.domain_uuid.lower() == uuid.lower():
                sees_us = any(peer.domain_uuid.lower() in mine for peer in port.peers)
                claims.append((sees_us, PeerPort(other.metadata.name, port.receptacle)))
    mutual = [claim for sees_us, claim in claims if sees_us]
    if len(mutual) > 1:
        here = {p.receptacle for p in _ports(own) if any(one.domain_uuid.lower() == uuid.lower() for one in p.peers)}
        mutual = [claim for claim in mutual if _is_reported(node, here, claim, links)]
    if len(mutual) == 1:
        return mutual[0]
    return claims[0][1] if len(claims) == 1 else None


def _ports(status: NodeProfileStatus) -> tuple[ThunderboltPort, ...]:
    return tuple(status.thunderbolt.ports) if status.thunderbolt else ()


def _is_reported(node: str, here: Iterable[int], peer: PeerPort, links: Iterable[ThunderboltLink]) -> bool:
    """Whether this Mac reports that it detects that port through a link at one of its ports ``here``."""
    other = LinkEnd(node=peer.node, port=peer.receptacle)
    cables = [ordered(LinkEnd(node=node, port=number), other) for number in here]
    return any(
        link.spec in cables and any(end.node == node and end.sees_peer for end in link.status.endpoints) for link in links
    )


def link_reports(
    node: str,
    status: NodeProfileStatus,
    peers: Mapping[str, PeerPort],
    links: Iterable[ThunderboltLink] = (),
    flapping: frozenset[int] = frozenset(),
) -> tuple[LinkReport, ...]:
    """This Mac's ends of its links, by name.

    There is one for each peer that is a Node (``peers``, by lower-case domain UUID), and one for each existing link whose other
    end detects this Mac although this Mac does not detect it (a display in between hides the peer). The agents of other Macs
    report such links, so they are accepted only for ports that detect no Mac, one for each. ``flapping`` are the receptacles
    whose cable flaps.
    """
    if len(node) > MAX_NODE_NAME_LENGTH:
        return ()
    ports = {port.receptacle: port for port in _ports(status)}
    found: dict[str, LinkReport] = {}
    for port in ports.values():
        for peer in port.peers:
            other = peers.get(peer.domain_uuid.lower())
            if other is None or other.node == node:
                continue
            spec = ordered(LinkEnd(node=node, port=port.receptacle), LinkEnd(node=other.node, port=other.receptacle))
            report = LinkReport(spec, _endpoint(node, status, port, peer, port.receptacle in flapping))
            found.setdefault(report.name, report)
    for hidden, link in _hidden(node, ports, links):
        found[link.metadata.name] = LinkReport(link.spec, _endpoint(node, status, hidden, None, hidden.receptacle in flapping))
    return tuple(found[name] for name in sorted(found))


def _hidden(
    node: str, ports: Mapping[int, ThunderboltPort], links: Iterable[ThunderboltLink]
) -> Iterator[tuple[ThunderboltPort, ThunderboltLink]]:
    """Each port that detects no Mac although something is connected, and the link through which another Mac detects it.

    Of several such links, the one that this Mac reports already stays.
    """
    free = {number: port for number, port in ports.items() if port.connected and not port.peers}

    def is_new(link: ThunderboltLink) -> bool:
        return not any(end.node == node for end in link.status.endpoints)

    for link in sorted(links, key=is_new):
        own = next((end for end in (link.spec.a, link.spec.b) if end.node == node), None)
        valid = link.metadata.deletion_timestamp is None and link_name(link.spec) == link.metadata.name
        if valid and own is not None and own.port in free and seen_by(node, link):
            yield free.pop(own.port), link


def seen_by(node: str, link: ThunderboltLink) -> str | None:
    """The Mac at the other end, if it reports that it detects ``node`` through this link."""
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


def link_address(status: NodeProfileStatus, interface: str | None) -> str | None:
    """The address of this Mac on that interface: IPv4 before IPv6, Private before link-local.

    IPv6 link-local addresses are excluded, because a peer needs a zone of its own to dial one.
    """
    found = next((i for i in (status.network.interfaces if status.network else ()) if i.name == interface), None)
    usable = [
        (":" in a.address, _PREFERRED.index(a.class_), a.address)
        for a in (found.addresses if found else ())
        if a.class_ in _PREFERRED and not (":" in a.address and a.class_ is AddressClass.LINK_LOCAL)
    ]
    return min(usable)[2] if usable else None
