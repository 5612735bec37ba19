"""Which Macs can be rank 0, and at which address each other rank reaches it.

Best is the Mac that most others can dial; then the one with the better addresses, the most free memory, the first name.
Addresses that no Mac has reached are not used. If no Mac of the group publishes what it has reached, a Mac is assumed to be
reachable at its Node's address.
"""

from collections.abc import Mapping, Sequence

from thunderfleet_crds.vocabulary import PlacedTransport, Transport

from thunderfleet_operator.placement.fleet import AddressKind, Fleet, Kind, Mac
from thunderfleet_operator.placement.graph.hops import RING_ORDER, SIDE_ORDER, UNKNOWN, address_rank

CABLE = AddressKind(Kind.THUNDERBOLT)
Addresses = Mapping[str, tuple[int, bool]]
"""Addresses with their ranks; less is better."""
Route = tuple[tuple[int, bool], str, bool]
"""How one Mac dials another: rank of the address, the address, and whether that Mac itself has reached it there."""


def _addresses(fleet: Fleet, one: Mac, others: Mapping[str, Mac], order: tuple[Kind, ...]) -> Mapping[str, Addresses]:
    """Where ``one`` reaches each of the others: at the far ends of its cables, and where it has reached them."""
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


def _route(fleet: Fleet, other: Mac, addresses: Addresses, published: bool, order: tuple[Kind, ...]) -> Route | None:
    """How a Mac that reaches ``other`` at ``addresses`` dials it; None if no Mac has reached it.

    ``published``: whether any Mac of the group publishes what it has reached.
    """
    if published and len(addresses) == 1:
        ((only, rank),) = addresses.items()
        return rank, only, True
    itself = bool(addresses)
    if not published and other.address:
        return address_rank(other.kinds.get(other.address, UNKNOWN), order), other.address, itself
    if not itself and published:
        addresses = {at: address_rank(other.kinds.get(at, UNKNOWN), order) for at in fleet.reached_addresses(other.name)}
    best = min([(rank, address) for address, rank in addresses.items()], default=None)
    return (*best, itself) if best is not None else None


def coordinators(fleet: Fleet, macs: Sequence[Mac], transport: PlacedTransport) -> dict[str, dict[str, str]]:
    """Names of the Macs that can be rank 0, the best first, each with the address at which every other one dials it.

    Empty while no Mac can be reached by all others.
    """
    published = any([mac.dials is not None for mac in macs])
    order = RING_ORDER if transport is Transport.RING else SIDE_ORDER
    by_name = {mac.name: mac for mac in macs}
    known = [(mac.name, _addresses(fleet, mac, by_name, order)) for mac in macs]
    ranked = []
    for zero in macs:
        found = [(name, _route(fleet, zero, to[zero.name], published, order)) for name, to in known if name != zero.name]
        routes = {name: route for name, route in found if route is not None}
        if len(routes) == len(found):
            direct = sum([itself for _, _, itself in routes.values()])
            ranks = sorted([rank for rank, _, _ in routes.values()])
            ranked.append(((-direct, ranks, -zero.free_bytes, zero.name), routes))
    ranked.sort(key=lambda entry: entry[0])
    return {key[-1]: {name: address for name, (_, address, _) in routes.items()} for key, routes in ranked}
