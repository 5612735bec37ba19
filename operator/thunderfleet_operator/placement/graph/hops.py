"""Hops: which Mac reaches which other over a transport, by which cable or address.

JACCL needs a cable that supports RDMA at both ends, and free queue pairs on both devices. A ring needs a connection from each
rank to the next. A Thunderbolt cable with addresses at both ends provides one in both directions, even if only one end detects
the other, unless an agent's connection attempt to one of these addresses has failed. Over a LAN, only addresses count that an
agent has reached. Such a hop is relayed by the supervisors, because MLX neither encrypts nor authenticates a ring. Supervisors
can open the relay from either end, so reachability in one direction is enough.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacedTransport, Transport
from thunderfleet_lib.macnet import advice

from thunderfleet_operator.placement.inputs.fleet import AddressKind, Cable, Fleet, Kind, Mac

RING_ORDER = (Kind.THUNDERBOLT, Kind.ETHERNET, Kind.WIFI, Kind.OTHER)
"""Interfaces in the order that ring traffic prefers."""
SIDE_ORDER = (Kind.ETHERNET, Kind.WIFI, Kind.OTHER, Kind.THUNDERBOLT)
"""Interfaces in the order that JACCL's side channel to rank 0 prefers: cables stay free for its data."""
RELAY_MBPS = 4_100
"""Maximum rate of a relay."""
RELAY_COST = "at most 4.1 Gb/s and about 0.3 ms a hop"
"""Measured cost of a relay, for messages: without one the same hop has 6.0 Gb/s and 36 µs."""
UNKNOWN = AddressKind(Kind.OTHER, private=False)


class Hop(NamedTuple):
    """One connection from a Mac to another."""

    speed_mbps: int
    shared: int = 0
    """1 if another group uses it too, otherwise 0."""
    cable: Cable | None = None
    address: str | None = None
    """Address at which the other Mac is dialed."""
    relay: bool = False
    """Whether the supervisors relay the hop."""
    backwards: bool = False
    """Whether the other end opens the relay; then ``address`` is where it dials this one."""
    measured: bool = False
    """Whether the speed was measured; otherwise it is the expected one."""


def address_rank(kind: AddressKind, order: tuple[Kind, ...]) -> tuple[int, bool]:
    """Sort key of addresses, the best first: by interface, then private addresses before all others."""
    return order.index(kind.kind), not kind.private


def _problem(cable: Cable) -> str | None:
    """Why nothing is placed on this cable, over whatever transport."""
    if cable.fault is not None:
        return cable.fault.message
    if not cable.connected:
        return "neither end detects the cable"
    return cable.unsteady.problem if cable.unsteady is not None else None


def rdma_problem(cable: Cable) -> str | None:
    """Why this cable cannot carry RDMA of one more peer; None if it can."""
    problem = _problem(cable)
    if problem is not None:
        return problem
    if cable.rdma_problem is not None:
        return cable.rdma_problem
    if cable.rdma_unsteady is not None:
        return cable.rdma_unsteady.problem
    for end in (cable.a, cable.b):
        if end.device is None:
            return f"{end.node} has no RDMA device at its end"
        if end.queue_pairs < 1:
            return too_few_queue_pairs(end.node, end.device, end.queue_pairs)
    return None


def too_few_queue_pairs(node: str, device: str, free: int, wanted: int = 1) -> str:
    """The message that a device has fewer queue pairs than a group needs, and what to do."""
    has = f"{free} free queue pair{'' if free == 1 else 's'}, needs {wanted}" if free > 0 else "no free queue pairs"
    why = "other groups use the others" if free > 0 else "other groups use them all"
    remedy = f"delete a ModelDeployment that uses {node}, or set spec.transport: Ring"
    return f"RDMA device {device} of {node} has {has} (one for each RDMA connection), because {why}: {remedy}"


def ring_problem(fleet: Fleet, cable: Cable) -> str | None:
    """Why this cable cannot carry a ring's hop; None if it can."""
    problem = _problem(cable)
    if problem is not None:
        return problem
    for end in (cable.a, cable.b):
        if not end.address:
            return f"{end.node} has no address at its end of the cable: {advice.why_no_address(end.node)}"
    for near, far in ((cable.a, cable.b), (cable.b, cable.a)):
        if fleet.fails(near.node, far.node, far.address or ""):
            return (
                f"{near.node} cannot reach {far.node} at {far.address}: check that both ends of the cable have addresses of "
                f"one network (`ping {far.address}` on {near.node}); if they have, see the log of the agent on {near.node}"
            )
    return None


def _is_proven(fleet: Fleet, cable: Cable) -> bool:
    """Whether the agents at both ends have reached each other over this cable."""
    ends = ((cable.a, cable.b), (cable.b, cable.a))
    return all(fleet.reaches(near.node, far.node, far.address or "") for near, far in ends)


def _cable_hops(
    fleet: Fleet,
    node: str,
    problem: Callable[[Cable], str | None],
    *,
    rdma: bool,
) -> dict[str, Hop]:
    """Hops by the one cable that each pair uses in both directions.

    Of several cables, one is chosen over which the agents have reached each other, then one that no other group uses, then the
    fastest (measured, else expected), then the first by name. RDMA needs no address, so it does not matter what was reached.
    """
    found: dict[str, Hop] = {}
    for cable in fleet.links(node):
        near, far = (cable.a, cable.b) if cable.a.node == node else (cable.b, cable.a)
        peer = far.node
        if peer == near.node or problem(cable) is not None:
            continue
        speed, measured = (cable.rdma_rate, cable.rdma_mbps) if rdma else (cable.ring_rate, cable.ring_mbps)
        hop = Hop(speed, int(cable.in_use), cable, far.address, False, False, bool(measured))
        if peer not in found or _cable_order(fleet, hop, rdma) < _cable_order(fleet, found[peer], rdma):
            found[peer] = hop
    return found


def _cable_order(fleet: Fleet, hop: Hop, rdma: bool) -> tuple[bool, int, int, str]:
    assert hop.cable is not None
    return not rdma and not _is_proven(fleet, hop.cable), hop.shared, -hop.speed_mbps, hop.cable.name


def rdma_hops(fleet: Fleet, node: str) -> dict[str, Hop]:
    """JACCL's hops from a Mac, by name of the other; the same from either end."""
    return _cable_hops(fleet, node, rdma_problem, rdma=True)


_Route = tuple[tuple[int, bool], int, str, bool]
"""A way over a LAN, less is better: rank of the address, negated speed, address, whether the speed was measured."""


def _route(peer: Mac, address: str, measured: int) -> _Route | None:
    """None for the address of a cable."""
    kind = peer.kinds.get(address, UNKNOWN)
    if kind.kind is Kind.THUNDERBOLT:
        return None
    return address_rank(kind, RING_ORDER), -(measured or kind.speed_mbps), address, measured > 0


class _LANHop(NamedTuple):
    """A hop to a Mac over a LAN, and ``back``: the hop from that Mac, which the other end opens."""

    route: _Route
    hop: Hop
    back: Hop


class LANHops(dict[tuple[str, str, int], _LANHop | None]):
    """Cache of hops over a LAN by Mac, address and measured speed, shared by all Macs that have reached it there.

    The value is None for the address of a cable. ``relay``: whether the supervisors carry the hops.
    """

    def __init__(self, fleet: Fleet, relay: bool) -> None:
        super().__init__()
        self._macs = fleet.macs
        self.relay = relay

    def __missing__(self, entry: tuple[str, str, int]) -> _LANHop | None:
        node, address, measured = entry
        peer = self._macs.get(node)
        route = _route(peer, address, measured) if peer is not None else None
        self[entry] = made = _LANHop(route, self._hop(route), _back(route)) if route is not None else None
        return made

    def _hop(self, route: _Route) -> Hop:
        speed = min(-route[1], RELAY_MBPS) if self.relay else -route[1]
        return Hop(speed, 0, None, route[2], self.relay, False, route[3])


def _back(route: _Route) -> Hop:
    speed = min(-route[1], RELAY_MBPS)
    return Hop(speed, 0, None, route[2], relay=True, backwards=True, measured=route[3])


class _RingProblems(dict[str, str | None]):
    """Cache of why cables carry no ring, by name: each has two ends."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    def of(self, cable: Cable) -> str | None:
        """``ring_problem`` of a cable of the fleet."""
        if cable.name not in self:
            self[cable.name] = ring_problem(self._fleet, cable)
        return self[cable.name]


def ring_hops(
    fleet: Fleet, node: str, lan: LANHops | None = None, problem: Callable[[Cable], str | None] | None = None
) -> dict[str, Hop]:
    """A ring's hops from a Mac, by name of the other: over cables, and over a LAN if ``lan`` is given.

    A Mac that was not reached from here, but has reached this one, is reached by a relay that it opens. ``problem``: a cached
    ``ring_problem``.
    """
    found = _cable_hops(fleet, node, problem or (lambda cable: ring_problem(fleet, cable)), rdma=False)
    if lan is None:
        return found
    mac, macs = fleet.macs[node], fleet.macs
    best: dict[str, _LANHop] = {}
    cabled = {*found, node}
    for entry in mac.dials.rows if mac.dials is not None else ():
        peer = entry[0]
        if peer not in cabled:
            made, past = lan[entry], best.get(peer)
            if made is not None and (past is None or made[0] < past[0]):
                best[peer] = made
    found.update([(peer, made.hop) for peer, made in best.items()])
    # If a Mac has reached all others, no hop has to be opened from the other end.
    for peer in fleet.reached_by(node) if len(best) + 1 < len(macs) else ():
        if peer not in cabled and peer not in best and (made := _best_of(macs[peer], node, lan)) is not None:
            found[peer] = made.back
    return found


def _best_of(mac: Mac, peer: str, lan: LANHops) -> _LANHop | None:
    """By the best address, other than a cable's, at which ``mac`` has reached ``peer``."""
    dials = mac.dials
    best: _LANHop | None = None
    if dials is None:
        return None
    nodes, addresses, speeds = dials.nodes, dials.addresses, dials.speeds
    # A loop, because thousands of Macs have each reached dozens of others.
    at = bisect_left(nodes, peer)
    while at < len(nodes) and nodes[at] == peer:
        made = lan[peer, addresses[at], speeds[at] if speeds else 0]
        if made is not None and (best is None or made[0] < best[0]):
            best = made
        at += 1
    return best


def hops_of(fleet: Fleet, transport: PlacedTransport, lan: LANHops | None = None) -> Callable[[str], Mapping[str, Hop]]:
    """The hops of a transport by name of a Mac; ``lan`` as in ``ring_hops``."""
    if transport is Transport.RING:
        problems = _RingProblems(fleet)
        return lambda node: ring_hops(fleet, node, lan, problems.of)
    return lambda node: rdma_hops(fleet, node)


def queue_pairs_suffice(members: tuple[str, ...], cables: Iterable[Cable]) -> bool:
    """Whether the devices of these Macs have a free queue pair per cable. A device behind a hub may face several ranks."""
    wanted: dict[tuple[str, str | None], int] = {}
    left: dict[tuple[str, str | None], int] = {}
    for cable in cables:
        for end in (cable.a, cable.b):
            if end.node in members:
                key = (end.node, end.device)
                wanted[key] = wanted.get(key, 0) + 1
                left[key] = end.queue_pairs
    return all(wanted[key] <= left[key] for key in wanted)
