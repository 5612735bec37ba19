"""Who is rank 0, and at which address each other rank reaches it.

Rank 0 is the rank that most others can dial; then the one with the better addresses, the most free memory, the first name.
An address that nobody has reached is not used. Where the agents of none of a group's Macs publish what they have dialled,
there are no such facts to go by, and a Mac is taken to be reachable at its Node's address.
"""

from collections.abc import Mapping, Sequence

from thunderfleet_operator.placement.fleet import AddressKind, Fleet, Kind, Mac
from thunderfleet_operator.placement.graph.hops import RING_ORDER, SIDE_ORDER, UNKNOWN, address_rank
from thunderfleet_operator.placement.words import Transport

CABLE = AddressKind(Kind.THUNDERBOLT)
Options = Mapping[str, tuple[int, bool]]
"""What addresses are, the less the better."""
Way = tuple[tuple[int, bool], str, bool]
"""How one Mac is to dial another: what the address is, the address, and whether that Mac has reached it there itself."""


def _options(fleet: Fleet, one: Mac, others: Mapping[str, Mac], order: tuple[Kind, ...]) -> Mapping[str, Options]:
    """Addresses at which ``one`` reaches each of the others: those at the other end of a cable, and those dialled."""
    found: dict[str, dict[str, tuple[int, bool]]] = {name: {} for name in others}
    name, by_cable = one.name, address_rank(CABLE, order)
    for cable in fleet.links(name):
        here, there = (cable.a, cable.b) if cable.a.node == name else (cable.b, cable.a)
        if there.node in found and cable.connected and here.address and there.address:
            found[there.node][there.address] = by_cable
    if one.dials is not None:
        for node, address in zip(one.dials.nodes, one.dials.addresses, strict=True):
            if node in found:
                found[node][address] = address_rank(others[node].kinds.get(address, UNKNOWN), order)
    return found


def _reach(fleet: Fleet, other: Mac, options: Options, facts: bool, order: tuple[Kind, ...]) -> Way | None:
    """How ``other`` is to be dialled by a Mac that reaches it at ``options``; None when nobody has reached it. ``facts``:
    whether any agent concerned publishes what it has dialled.
    """
    if facts and len(options) == 1:
        ((only, rank),) = options.items()
        return rank, only, True
    itself = bool(options)
    if not facts and other.address:
        # No facts at all: the Node's address, which the kubelet was reached at.
        return address_rank(other.kinds.get(other.address, UNKNOWN), order), other.address, itself
    if not itself and facts:
        options = {at: address_rank(other.kinds.get(at, UNKNOWN), order) for at in fleet.reached(other.name)}
    best = min([(rank, address) for address, rank in options.items()], default=None)
    return (*best, itself) if best is not None else None


def leaders(fleet: Fleet, macs: Sequence[Mac], transport: Transport) -> dict[str, dict[str, str]]:
    """Those of these Macs that can be rank 0, the best first: by name, at which address each other one is to dial it. Empty
    when nobody can be reached by all others yet.
    """
    facts = any([mac.dials is not None for mac in macs])
    order = RING_ORDER if transport is Transport.RING else SIDE_ORDER
    known_as = {mac.name: mac for mac in macs}
    options = [(mac.name, _options(fleet, mac, known_as, order)) for mac in macs]
    ranked = []
    for zero in macs:
        ways = [(name, _reach(fleet, zero, known[zero.name], facts, order)) for name, known in options if name != zero.name]
        known_ways = {name: way for name, way in ways if way is not None}
        if len(known_ways) == len(ways):
            dialled = sum([itself for _, _, itself in known_ways.values()])
            worth = sorted([rank for rank, _, _ in known_ways.values()])
            ranked.append(((-dialled, worth, -zero.free_bytes, zero.name), known_ways))
    ranked.sort(key=lambda entry: entry[0])
    return {key[-1]: {name: address for name, (_, address, _) in ways.items()} for key, ways in ranked}
