"""Which Macs can be rank 0, and at which address each other rank reaches it.

The best Mac is the one that most others have reached; then the one with the better addresses, the most free memory, the first
name. A Mac never uses an address at which a connection attempt has failed. It uses an address that it has not tried only if it
has reached none of the other Mac: first those on a LAN that another Mac has reached, then those at the far ends of its cables.
If no Mac of the group publishes its reachability, a Mac is assumed to be reachable at its Node's address.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from thunderfleet_crds.vocabulary import PlacedTransport, Transport

from thunderfleet_operator.placement.graph.hops import RING_ORDER, SIDE_ORDER, UNKNOWN, address_rank
from thunderfleet_operator.placement.inputs.fleet import AddressKind, Fleet, Kind, Mac

CABLE = AddressKind(Kind.THUNDERBOLT)


class Proof(IntEnum):
    """What shows that a Mac reaches an address, the best first."""

    ITSELF = 0
    """It has reached the address."""
    OTHERS = 1
    """Another Mac has."""
    CABLE = 2
    """A cable leads there, over which it has not been dialled."""


Route = tuple[Proof, tuple[int, bool], str]
"""A way to dial a Mac, less is better: proof, rank of the address, address."""


def _routes(fleet: Fleet, one: Mac, others: Mapping[str, Mac], order: tuple[Kind, ...]) -> Mapping[str, Route]:
    """The best way from ``one`` to each of the others that it has dialled or has a cable to."""
    found: dict[str, Route] = {}
    cabled: set[tuple[str, str]] = set()
    by_cable = address_rank(CABLE, order)
    # If reachability is not published, a cable is as good as any other path.
    proof = Proof.CABLE if one.dials is not None else Proof.ITSELF
    for cable in fleet.links(one.name):
        here, there = (cable.a, cable.b) if cable.a.node == one.name else (cable.b, cable.a)
        if there.node in others and cable.connected and here.address and there.address:
            cabled.add((there.node, there.address))
            route = (proof, by_cable, there.address)
            if not fleet.fails(one.name, there.node, there.address) and (there.node not in found or route < found[there.node]):
                found[there.node] = route
    if one.dials is not None:
        for node, address in zip(one.dials.nodes, one.dials.addresses, strict=True):
            if node in others:
                known = (node, address) in cabled
                rank = by_cable if known else address_rank(others[node].kinds.get(address, UNKNOWN), order)
                route = (Proof.ITSELF, rank, address)
                if node not in found or route < found[node]:
                    found[node] = route
    return found


def _by_others(fleet: Fleet, other: Mac, order: tuple[Kind, ...]) -> list[Route]:
    """The ways to a Mac that any other has used, the best first."""
    kinds = ((address, other.kinds.get(address, UNKNOWN)) for address in fleet.reached_addresses(other.name))
    # The address of a port is reached over that port's cable only.
    return sorted((Proof.OTHERS, address_rank(kind, order), at) for at, kind in kinds if kind.kind is not Kind.THUNDERBOLT)


def _route(
    fleet: Fleet, one: str, other: Mac, known: Route | None, by_others: Sequence[Route] | None, order: tuple[Kind, ...]
) -> Route | None:
    """How the Mac ``one`` dials ``other``; None if nothing shows that it can. ``known``: by its own dials and cables.

    ``by_others``: the ways that any Mac has used; None if no Mac of the group publishes what it has dialled.
    """
    if by_others is None and other.address:
        proof = Proof.ITSELF if known is not None else Proof.OTHERS
        return proof, address_rank(other.kinds.get(other.address, UNKNOWN), order), other.address
    if by_others is None or (known is not None and known[0] is Proof.ITSELF):
        return known
    return next((route for route in by_others if not fleet.fails(one, other.name, route[2])), known)


def coordinators(fleet: Fleet, macs: Sequence[Mac], transport: PlacedTransport) -> dict[str, dict[str, str]]:
    """Names of the Macs that can be rank 0, the best first, each with the address at which every other one dials it.

    Empty while no Mac can be reached by all others.
    """
    published = any([mac.dials is not None for mac in macs])
    order = RING_ORDER if transport is Transport.RING else SIDE_ORDER
    by_name = {mac.name: mac for mac in macs}
    known = [(mac.name, _routes(fleet, mac, by_name, order)) for mac in macs]
    ranked = []
    for zero in macs:
        by_others = _by_others(fleet, zero, order) if published else None
        found = [
            (name, _route(fleet, name, zero, to.get(zero.name), by_others, order)) for name, to in known if name != zero.name
        ]
        routes = {name: route for name, route in found if route is not None}
        if len(routes) == len(found):
            proofs = sorted([(proof, rank) for proof, rank, _ in routes.values()])
            direct = sum([proof is Proof.ITSELF for proof, _ in proofs])
            nobody = sum([proof is Proof.CABLE for proof, _ in proofs])
            ranks = sorted([rank for _, rank in proofs])
            ranked.append(((-direct, nobody, ranks, -zero.free_bytes, zero.name), routes))
    ranked.sort(key=lambda entry: entry[0])
    return {key[-1]: {name: address for name, (_, _, address) in routes.items()} for key, routes in ranked}
