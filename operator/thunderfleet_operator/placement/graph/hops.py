"""Hard rule 3, hop by hop: from which Mac which other can be reached over a transport, by which cable or address.

JACCL needs a cable that is fit for RDMA at both ends, and queue pairs left on both its devices. A ring needs dials: one to
each next rank. A Thunderbolt cable with addresses at both ends is one, whichever end sees the other (the cable is there).
Over anything else only what an agent has dialled counts. Such a hop is relayed by the supervisors, since whoever reaches a
ring's port can run code there; they may open the connection from either end, so a dial in one direction is enough.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from thunderfleet_operator.placement.fleet import AddressKind, Cable, Fleet, Kind, Mac
from thunderfleet_operator.placement.units import gbits
from thunderfleet_operator.placement.words import Transport

RING_ORDER = (Kind.THUNDERBOLT, Kind.ETHERNET, Kind.WIFI, Kind.OTHER)
"""Which interfaces ring traffic prefers."""
SIDE_ORDER = (Kind.ETHERNET, Kind.WIFI, Kind.OTHER, Kind.THUNDERBOLT)
"""Which interfaces JACCL's side channel (its meeting with rank 0) prefers: cables are for its data."""
MESH_RANKS = 8
"""JACCL's limit for a mesh."""
RELAY_MBPS = 4_100
"""What a relay carries at most."""
RELAY_COST = "a plain Python relay: 36 → 302 µs, 6.0 → 4.1 Gbit/s"
"""Measured; told to whoever gets one."""
UNKNOWN = AddressKind(Kind.OTHER, private=False)


class Hop(NamedTuple):
    """One way from a Mac to another."""

    speed_mbps: int
    shared: int = 0
    """1 when another group's traffic runs there too."""
    cable: Cable | None = None
    address: str | None = None
    """Where the other is dialled."""
    relay: bool = False
    """Whether the supervisors carry it."""
    backwards: bool = False
    """Whether the other end opens the relay; then ``address`` is where it dials this one."""
    measured: bool = False
    """Whether the speed was measured; else it is the one that was negotiated."""


Hops = Mapping[str, Hop]
"""By the name of the other Mac."""


def address_rank(kind: AddressKind, order: tuple[Kind, ...]) -> tuple[int, bool]:
    """Less is better: the interface first, then private addresses before all others."""
    return order.index(kind.kind), not kind.private


def rdma_measured(cable: Cable) -> int:
    return cable.rdma_mbps or 0


def ring_measured(cable: Cable) -> int:
    return cable.ring_mbps or 0


def rdma_lack(cable: Cable, queue_pairs: int = 1) -> str | None:
    """Why this cable cannot carry one more peer's RDMA, for people."""
    if not cable.connected:
        return "the cable is not seen by either end"
    if cable.rdma_lack is not None:
        return cable.rdma_lack
    for end in (cable.a, cable.b):
        if end.device is None:
            return f"{end.node} has no RDMA device at its end"
        if end.queue_pairs < queue_pairs:
            return f"{end.device} of {end.node} has {end.queue_pairs} queue pairs left"
    return None


def ring_lack(cable: Cable) -> str | None:
    """Why this cable cannot carry a ring's hop, for people."""
    if not cable.connected:
        return "the cable is not seen by either end"
    for end in (cable.a, cable.b):
        if not end.address:
            return f"{end.node} has no address at its end of the cable"
    return None


def _by_cable(fleet: Fleet, node: str, lack: Callable[[Cable], str | None], measured: Callable[[Cable], int]) -> dict[str, Hop]:
    """By the one cable that a pair uses in both directions: one that nobody else uses, the fastest (as measured, else as
    negotiated), by name.
    """
    found: dict[str, Hop] = {}
    for cable in fleet.links(node):
        near, far = (cable.a, cable.b) if cable.a.node == node else (cable.b, cable.a)
        peer = far.node
        if peer == near.node or lack(cable) is not None:
            continue
        speed = measured(cable)
        hop = Hop(speed or cable.speed_mbps, int(cable.in_use), cable, far.address, False, False, speed > 0)
        if peer not in found or _cable_order(hop) < _cable_order(found[peer]):
            found[peer] = hop
    return found


def _cable_order(hop: Hop) -> tuple[int, int, str]:
    return hop.shared, -hop.speed_mbps, hop.cable.name if hop.cable is not None else ""


def rdma_hops(fleet: Fleet, node: str) -> dict[str, Hop]:
    """The same seen from either end."""
    return _by_cable(fleet, node, rdma_lack, rdma_measured)


_Way = tuple[tuple[int, bool], int, str, bool]
"""Over a LAN, less is better: what the address is, its speed (negative), the address, whether the speed was measured."""


def _way(peer: Mac, address: str, measured: int) -> _Way | None:
    kind = peer.kinds.get(address, UNKNOWN)
    if kind.kind is Kind.THUNDERBOLT:
        return None
    return address_rank(kind, RING_ORDER), -(measured or kind.speed_mbps), address, measured > 0


def _lan(peer: Mac | None, address: str, measured: int, bare: bool) -> tuple[_Way, Hop] | None:
    way = _way(peer, address, measured) if peer is not None else None
    if way is None:
        return None
    return way, Hop(-way[1] if bare else min(-way[1], RELAY_MBPS), 0, None, address, not bare, False, way[3])


class Ways(dict[tuple[str, str, int], tuple[_Way, Hop] | None]):
    """By Mac, address and measured speed, as they are asked for: the same for everybody who has dialled it; None for a cable's
    address.
    """

    def __init__(self, fleet: Fleet, bare: bool) -> None:
        super().__init__()
        self._macs = fleet.macs
        self._bare = bare

    def __missing__(self, entry: tuple[str, str, int]) -> tuple[_Way, Hop] | None:
        node, address, measured = entry
        self[entry] = made = _lan(self._macs.get(node), address, measured, self._bare)
        return made


def ring_hops(fleet: Fleet, node: str, lan: bool, bare: bool = False, known: Ways | None = None) -> dict[str, Hop]:
    """``lan``: also what was dialled over other interfaces, from either end; relayed, or where this end can dial, ``bare``.
    ``known``: ways of this fleet that were found before, as ``bare`` as these.
    """
    found = _by_cable(fleet, node, ring_lack, ring_measured)
    if not lan:
        return found
    mac, macs, ways = fleet.macs[node], fleet.macs, Ways(fleet, bare) if known is None else known
    best: dict[str, tuple[_Way, Hop]] = {}
    cabled = {*found, node}
    for entry in mac.dials.ways if mac.dials is not None else ():
        peer = entry[0]
        if peer not in cabled:
            made, past = ways[entry], best.get(peer)
            if made is not None and (past is None or made[0] < past[0]):
                best[peer] = made
    found.update([(peer, hop) for peer, (_, hop) in best.items()])
    # Whoever has dialled everybody needs no ways back.
    for peer in fleet.dialled_by(node) if len(best) + 1 < len(macs) else ():
        if peer not in found and peer != node and (back := lan_hop(macs[peer], mac)) is not None:
            speed = min(back.speed_mbps, RELAY_MBPS)
            found[peer] = Hop(speed, 0, None, back.address, relay=True, backwards=True, measured=back.measured)
    return found


def lan_hop(mac: Mac, peer: Mac) -> Hop | None:
    """By the best address, other than a cable's, at which ``mac`` has reached ``peer``."""
    dialled = mac.dials.ways if mac.dials is not None else ()
    ways = (_way(peer, address, measured) for node, address, measured in dialled if node == peer.name)
    best = min((way for way in ways if way is not None), default=None)
    return Hop(-best[1], address=best[2], measured=best[3]) if best is not None else None


def hops_of(fleet: Fleet, transport: Transport, lan: bool, bare: bool) -> Callable[[str], dict[str, Hop]]:
    """The hops of a transport, Mac by Mac. What is a hop from one end is one from the other."""
    if transport is Transport.RING:
        known = Ways(fleet, bare)
        return lambda node: ring_hops(fleet, node, lan, bare, known)
    return lambda node: rdma_hops(fleet, node)


def queue_pairs_suffice(members: tuple[str, ...], cables: Iterable[Cable], each: int) -> bool:
    """Whether the devices of these Macs bear a group on these cables, ``each`` queue pairs a cable: a device behind a hub may
    face several ranks.
    """
    wanted: dict[tuple[str, str | None], int] = {}
    left: dict[tuple[str, str | None], int] = {}
    for cable in cables:
        for end in (cable.a, cable.b):
            if end.node in members:
                key = (end.node, end.device)
                wanted[key] = wanted.get(key, 0) + each
                left[key] = end.queue_pairs
    return all(wanted[key] <= left[key] for key in wanted)


def describe(cable: Cable) -> str:
    return f"{cable.name} ({gbits(cable.speed_mbps)})"
