"""Who is rank 0, and at which address each other rank reaches it.

Rank 0 is the rank that most others can dial; then the one with the better addresses, the most free memory, the first name.
An address that nobody has reached is not used. Where the agents of none of a group's Macs publish what they have dialled,
there are no such facts to go by, and a Mac is taken to be reachable at its Node's address.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thunderfleet_operator.placement.fleet import AddressKind, Fleet, Kind, Mac
from thunderfleet_operator.placement.hops import RING_ORDER, SIDE_ORDER, UNKNOWN, address_rank, best_address
from thunderfleet_operator.placement.words import Transport

CABLE = AddressKind(Kind.THUNDERBOLT)


class Reached(NamedTuple):
    """How one Mac reaches another: the address, and whether it has seen that itself."""

    address: str
    itself: bool
    rank: tuple[int, bool]


def _order(transport: Transport) -> tuple[Kind, ...]:
    return RING_ORDER if transport is Transport.RING else SIDE_ORDER


def _options(fleet: Fleet, one: Mac, others: Mapping[str, Mac]) -> dict[str, dict[str, AddressKind]]:
    """Addresses at which ``one`` reaches each of the others: those at the other end of a cable, and those dialled."""
    found: dict[str, dict[str, AddressKind]] = {name: {} for name in others}
    for cable in fleet.links(one.name):
        if (peer := cable.other(one.name)) in others and cable.connected:
            here, there = cable.end(one.name).address, cable.end(peer).address
            if here and there:
                found[peer][there] = CABLE
    if one.dials is not None:
        for node, address in zip(one.dials.nodes, one.dials.addresses, strict=True):
            if node in others:
                found[node][address] = others[node].kinds.get(address, UNKNOWN)
    return found


def _reach(
    fleet: Fleet, other: Mac, options: Mapping[str, AddressKind], facts: bool, order: tuple[Kind, ...]
) -> Reached | None:
    """How ``other`` is to be dialled by a Mac that reaches it at ``options``."""
    if len(options) == 1 and facts:
        ((only, kind),) = options.items()
        return Reached(only, True, address_rank(kind, order))
    itself = bool(options)
    if not options and facts:
        options = {address: other.kinds.get(address, UNKNOWN) for address in fleet.reached(other.name)}
    if not facts and other.address:
        # No facts at all: the Node's address, which the kubelet was reached at.
        return Reached(other.address, itself, address_rank(other.kinds.get(other.address, UNKNOWN), order))
    address = best_address(options.items(), order)
    return Reached(address, itself, address_rank(options[address], order)) if address is not None else None


def reach(fleet: Fleet, one: Mac, other: Mac, facts: bool, transport: Transport) -> Reached | None:
    """How ``one`` is to dial ``other``; None when nobody has reached it. ``facts``: whether any agent concerned publishes
    what it has dialled."""
    return _reach(fleet, other, _options(fleet, one, {other.name: other})[other.name], facts, _order(transport))


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
    order = _order(transport)
    known_as = {mac.name: mac for mac in macs}
    options = {mac.name: _options(fleet, mac, known_as) for mac in macs}
    ranked: list[tuple[tuple[object, ...], Leader]] = []
    for zero in macs:
        ways = {name: _reach(fleet, zero, options[name][zero.name], facts, order) for name in known_as if name != zero.name}
        known = {name: way for name, way in ways.items() if way is not None}
        if len(known) < len(ways):
            continue
        dialled = sum(way.itself for way in known.values())
        worth = sorted(way.rank for way in known.values())
        leader = Leader(zero.name, {name: way.address for name, way in known.items()})
        ranked.append(((-dialled, worth, -zero.free_bytes, zero.name), leader))
    return [leader for _, leader in sorted(ranked, key=lambda entry: entry[0])]
