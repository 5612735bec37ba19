"""Who is rank 0, and at which address each other rank reaches it.

Rank 0 is the rank that most others can dial; then the one with the better addresses, the most free memory, the first name.
An address that nobody has reached is not used. Where the agents of none of a group's Macs publish what they have dialled,
there are no such facts to go by, and a Mac is taken to be reachable at its Node's address.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from thunderfleet_operator.placement.fleet import AddressKind, Fleet, Kind, Mac
from thunderfleet_operator.placement.hops import RING_ORDER, SIDE_ORDER, UNKNOWN, address_rank, best_address
from thunderfleet_operator.placement.words import Transport

CABLE = AddressKind(Kind.THUNDERBOLT)


@dataclass(frozen=True, slots=True)
class Reached:
    """How one Mac reaches another: the address, and whether it has seen that itself."""

    address: str
    itself: bool
    rank: tuple[int, bool]


def _options(fleet: Fleet, one: Mac, other: Mac) -> dict[str, AddressKind]:
    """Addresses at which ``one`` reaches ``other``: those dialled, and those at the other end of a cable."""
    found: dict[str, AddressKind] = {}
    for cable in fleet.links(one.name):
        if cable.other(one.name) == other.name and cable.connected:
            here, there = cable.end(one.name).address, cable.end(other.name).address
            if here and there:
                found[there] = CABLE
    if one.dials is not None:
        for address in one.dials.at(other.name):
            found[address] = other.kinds.get(address, UNKNOWN)
    return found


def reach(fleet: Fleet, one: Mac, other: Mac, facts: bool, transport: Transport) -> Reached | None:
    """How ``one`` is to dial ``other``; None when nobody has reached it. ``facts``: whether any agent concerned publishes
    what it has dialled."""
    order = RING_ORDER if transport is Transport.RING else SIDE_ORDER
    options = _options(fleet, one, other)
    itself = bool(options)
    if not options and facts:
        options = {address: other.kinds.get(address, UNKNOWN) for address in fleet.reached(other.name)}
    if not facts and other.address:
        # No facts at all: the Node's address, which the kubelet was reached at.
        return Reached(other.address, itself, address_rank(other.kinds.get(other.address, UNKNOWN), order))
    address = best_address(options.items(), order)
    return Reached(address, itself, address_rank(options[address], order)) if address is not None else None


@dataclass(frozen=True, slots=True)
class Leader:
    """A possible rank 0: ``coordinators`` by the name of each other Mac."""

    name: str
    coordinators: dict[str, str]


def publishes(macs: Sequence[Mac]) -> bool:
    return any(mac.dials is not None for mac in macs)


def leaders(fleet: Fleet, macs: Sequence[Mac], transport: Transport) -> list[Leader]:
    """Those of these Macs that can be rank 0, the best first; empty when nobody can be reached by all others yet."""
    facts = publishes(macs)
    ranked: list[tuple[tuple[object, ...], Leader]] = []
    for zero in macs:
        ways = {mac.name: reach(fleet, mac, zero, facts, transport) for mac in macs if mac.name != zero.name}
        known = {name: way for name, way in ways.items() if way is not None}
        if len(known) < len(ways):
            continue
        dialled = sum(way.itself for way in known.values())
        worth = sorted(way.rank for way in known.values())
        leader = Leader(zero.name, {name: way.address for name, way in known.items()})
        ranked.append(((-dialled, worth, -zero.free_bytes, zero.name), leader))
    return [leader for _, leader in sorted(ranked, key=lambda entry: entry[0])]
