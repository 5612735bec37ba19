"""What was dialled decides what is used: against an oracle, over random dials in both directions, some of them out of date."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_crds.vocabulary import PlacedTransport, Transport
from thunderfleet_operator.placement import (
    AddressKind,
    AddressKinds,
    Cable,
    Dials,
    End,
    Fleet,
    Kind,
    Mac,
    MemoryRequest,
    ModelFacts,
    Placement,
    Request,
    TensorFacts,
    Unplaceable,
    plan,
)
from thunderfleet_operator.placement.graph.coordinators import coordinators
from thunderfleet_operator.placement.graph.hops import ring_problem

from tests.support.generated import examples

GIB = 2**30
MODEL = ModelFacts("/m", "org/m", bytes=12 * GIB, tensor=(TensorFacts(2, (6 * GIB,) * 2), TensorFacts(3, (4 * GIB,) * 3)))
REQUEST = Request(path="/m", memory=MemoryRequest(1, 1, 0, 0), min_nodes=2)
NAMES = "abc"
SIDES: tuple[PlacedTransport, ...] = (Transport.RING, Transport.JACCL)


def lan(name: str, number: int) -> str:
    return f"10.{number}.0.{ord(name)}"


def at(name: str, peer: str) -> str:
    """The address of a Mac's end of its cable to another."""
    return f"169.254.{ord(name)}.{ord(peer)}"


def addresses(name: str, peer: str) -> tuple[str, ...]:
    """Where ``peer`` may dial ``name``."""
    return lan(name, 0), lan(name, 1), at(name, peer)


def cable(one: str, other: str, rdma: str | None = None) -> Cable:
    ends = End(one, at(one, other), f"to-{other}"), End(other, at(other, one), f"to-{one}")
    return Cable(one + other, *ends, 80_000, rdma_problem=rdma)


def fleet_of(dials: Mapping[str, Dials | None], cables: tuple[Cable, ...]) -> Fleet:
    def kinds(name: str) -> AddressKinds:
        ports = {at(name, peer): AddressKind(Kind.THUNDERBOLT) for peer in NAMES if peer != name}
        return AddressKinds.of({lan(name, 0): AddressKind(Kind.ETHERNET), lan(name, 1): AddressKind(Kind.WIFI), **ports})

    both = frozenset({"ring", "jaccl"})
    return Fleet(
        [Mac(n, lan(n, 0), 8 * GIB, models=(MODEL,), backends=both, dials=dials[n], kinds=kinds(n)) for n in NAMES], cables
    )


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Each Mac has dialled each address of the others with success, in vain, or not at all; some publish nothing.

    The dials of a Mac that is not ready are out of date.
    """
    dials: dict[str, Dials | None] = {}
    for name in NAMES:
        outcomes = {
            (peer, address): draw(st.sampled_from((True, False, None)))
            for peer in NAMES
            if peer != name
            for address in addresses(peer, name)
        }
        reached = [pair for pair, ok in outcomes.items() if ok]
        failed = [pair for pair, ok in outcomes.items() if ok is False]
        dials[name] = None if draw(st.integers(0, 4)) == 0 else Dials.of(reached, failed=failed)
    rdma = draw(st.sampled_from((None, "it is off")))
    pairs = draw(st.sets(st.sampled_from(("ab", "ac", "bc"))))
    found = fleet_of(dials, tuple(cable(pair[0], pair[1], rdma=rdma) for pair in sorted(pairs)))
    old = draw(st.sampled_from((None, None, *NAMES)))
    return found.changed([replace(found.macs[old], ready=False)]) if old is not None else found


@dataclass(frozen=True)
class Known:
    """What one Mac knows of the ways to another, computed without the planner's code."""

    reached: frozenset[str]
    usable: frozenset[str]
    """Not dialled in vain, and something leads there."""


def known(fleet: Fleet, one: str, other: str) -> Known:
    dials = fleet.macs[one].dials
    reached = frozenset(a for n, a in zip(dials.nodes, dials.addresses, strict=True) if n == other) if dials else frozenset()
    failed = {a for n, a in dials.failed if n == other} if dials else set()
    cabled = {at(other, one)} if any({c.a.node, c.b.node} == {one, other} for c in fleet.cables.values()) else set()
    published = [mac.dials for mac in fleet.macs.values() if mac.dials is not None and mac.ready]
    pairs = {pair for dials in published for pair in zip(dials.nodes, dials.addresses, strict=True)}
    anybody = {address for name, address in pairs if name == other and address.startswith("10.")}
    return Known(reached, reached | ((cabled | anybody) - failed))


def published(fleet: Fleet, names: Iterable[str] = NAMES) -> bool:
    return any(fleet.macs[name].dials is not None for name in names)


@settings(max_examples=examples(300), deadline=None)
@given(fleets(), st.sampled_from(SIDES))
def test_rank_0_is_the_mac_that_most_others_have_reached(fleet: Fleet, transport: PlacedTransport) -> None:
    found = coordinators(fleet, list(fleet.macs.values()), transport)
    if not published(fleet):
        assert set(found) == set(NAMES)
        return
    others = {zero: [name for name in NAMES if name != zero] for zero in NAMES}
    able = {zero for zero in NAMES if all(known(fleet, one, zero).usable for one in others[zero])}
    assert set(found) == able

    def proven(zero: str) -> int:
        return sum(bool(known(fleet, one, zero).reached) or no_dials(fleet, one, zero) for one in others[zero])

    assert [proven(zero) for zero in found] == sorted(map(proven, found), reverse=True)
    for zero, routes in found.items():
        for one, address in routes.items():
            ways = known(fleet, one, zero)
            assert address in ways.usable
            assert not ways.reached or address in ways.reached


def no_dials(fleet: Fleet, one: str, zero: str) -> bool:
    """A Mac that publishes nothing is believed to reach the far end of its cable."""
    cabled = any({c.a.node, c.b.node} == {one, zero} for c in fleet.cables.values())
    return fleet.macs[one].dials is None and cabled


def used(found: Placement) -> Iterator[tuple[str, str, str, bool]]:
    """Who dials whom at which address, and whether only an address that was reached will do."""
    names = found.nodes
    for rank in found.ranks:
        if rank.coordinator is not None:
            yield rank.node, names[0], rank.coordinator, False
        before = names[rank.rank - 1]
        if rank.ring_address is not None:
            yield before, rank.node, rank.ring_address, False
        if rank.relay is not None:
            ends = (rank.node, before) if rank.relay.backwards else (before, rank.node)
            yield *ends, rank.relay.address, True


@settings(max_examples=examples(400), deadline=None)
@given(fleets(), st.booleans(), st.sampled_from((2, 3)))
def test_no_plan_uses_an_address_that_was_dialled_in_vain(fleet: Fleet, direct: bool, size: int) -> None:
    found = plan(fleet, replace(REQUEST, ring_without_relay=direct, min_nodes=size, max_nodes=size))
    if isinstance(found, Unplaceable):
        ready = [name for name in NAMES if fleet.macs[name].ready]
        assert not any(ring_works(fleet, order) for order in permutations(ready, size))
        return
    assert all(fleet.macs[name].ready for name in found.nodes)
    for one, other, address, proven in used(found):
        ways = known(fleet, one, other)
        assert not published(fleet, found.nodes) or address in ways.usable, f"{one} -> {other} at {address}"
        assert not proven or address in ways.reached


def ring_works(fleet: Fleet, order: tuple[str, ...]) -> bool:
    """Whether cables alone carry a ring over these Macs, and one of them can be rank 0."""
    pairs = [(order[i - 1], order[i]) for i in range(len(order))]
    for one, other in pairs:
        cables = [c for c in fleet.cables.values() if {c.a.node, c.b.node} == {one, other}]
        fails = any(fleet.fails(x, y, at(y, x)) for x, y in ((one, other), (other, one)))
        if not cables or fails:
            return False
    if not published(fleet, order):
        return True
    return any(all(known(fleet, one, zero).usable for one in order if one != zero) for zero in order)


def test_two_macs_that_reach_each_other_over_the_lan_alone_get_no_ring_over_their_cable() -> None:
    dials = {
        "a": Dials.of([("b", lan("b", 0))], failed=[("b", at("b", "a"))]),
        "b": Dials.of([("a", lan("a", 0))], failed=[("a", at("a", "b"))]),
        "c": Dials(),
    }
    fleet = fleet_of(dials, (cable("a", "b", rdma="it is off"),))
    found = plan(fleet, replace(REQUEST, max_nodes=2))
    assert isinstance(found, Placement) and found.cables == ("", "")
    assert all(rank.relay is not None and rank.relay.address.startswith("10.") for rank in found.ranks)
    assert ring_problem(fleet, fleet.cables["ab"]) == (
        f"a cannot reach b at {at('b', 'a')}: check that both ends of the cable have addresses of one network "
        f"(`ping {at('b', 'a')}` on a); if they have, see the log of the agent on a"
    )


@pytest.mark.parametrize("faster", ["ab", "second"])
def test_of_two_cables_the_one_that_was_reached_over_is_used(faster: str) -> None:
    second = replace(cable("a", "b", "it is off"), name="second", a=End("a", "169.254.1.1"), b=End("b", "169.254.1.2"))
    cables = [cable("a", "b", "it is off"), second]
    cables = [replace(each, speed_mbps=40_000) if each.name != faster else each for each in cables]
    dials = {"a": Dials.of([("b", "169.254.1.2")]), "b": Dials.of([("a", "169.254.1.1")]), "c": None}
    found = plan(fleet_of(dials, tuple(cables)), replace(REQUEST, max_nodes=2))
    assert isinstance(found, Placement) and set(found.cables) == {"second"}
