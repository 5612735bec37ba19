"""The planner compared with brute force on small fleets, and properties of its answers on large ones."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, RequestedSplit, RequestedTransport, Split, Transport
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
    Score,
    TensorFacts,
    Unplaceable,
    WhatIsBetter,
    WherePlaced,
    confirm,
    plan,
)
from thunderfleet_operator.placement.assembly import assemble
from thunderfleet_operator.placement.graph.hops import RELAY_MBPS
from thunderfleet_operator.placement.planner import MAX_STEPS
from thunderfleet_operator.placement.questions import answer, where
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import CandidateSearch
from thunderfleet_operator.placement.search.hop_graphs import Known

from tests.support.generated import examples

NO_KV = MemoryRequest(context_tokens=1, concurrent_requests=1, cached_tokens=0, headroom_percent=0)
PATH = "/models/a"
JACCL = (Transport.JACCL, Transport.JACCL_RING)


# --- brute force: every set, order and division, by independent rules ---


def lan_address(name: str) -> str:
    return f"10.0.0.{ord(name) - 96}"


def usable(cable: Cable, rdma: bool) -> bool:
    if not cable.connected:
        return False
    if rdma:
        return cable.rdma_problem is None and all(e.device and e.queue_pairs >= 1 for e in (cable.a, cable.b))
    return all(end.address for end in (cable.a, cable.b))


def pair_cable(fleet: Fleet, one: str, other: str, rdma: bool) -> Cable | None:
    found = [c for c in fleet.cables.values() if {c.a.node, c.b.node} == {one, other} and usable(c, rdma)]

    return min(found, key=lambda c: (c.in_use, -rate(c, rdma), c.name)) if found else None


def rate(cable: Cable, rdma: bool) -> int:
    """Measured, else the part of the negotiated speed that is typical."""
    return (cable.rdma_mbps if rdma else cable.ring_mbps) or cable.speed_mbps * (65 if rdma else 35) // 100


def hop(
    fleet: Fleet, one: str, other: str, transport: Transport, request: Request, lan: bool
) -> tuple[int, Cable | None] | None:
    """Speed and cable."""
    rdma = transport in JACCL
    cable = pair_cable(fleet, one, other, rdma)
    if cable is not None:
        return rate(cable, rdma), cable
    there, back = dialled(fleet, one, other), dialled(fleet, other, one)
    if not lan or not (there or back):
        return None
    speed = dial_speed(fleet, one, other) if there else dial_speed(fleet, other, one)
    return (speed if there and request.ring_without_relay else min(speed, RELAY_MBPS)), None


def dialled(fleet: Fleet, one: str, other: str) -> tuple[str, ...]:
    """Addresses at which ``one`` has reached ``other``."""
    dials = fleet.macs[one].dials
    return dials.at(other) if dials is not None else ()


def dial_speed(fleet: Fleet, one: str, other: str) -> int:
    """Mb/s to the only address of a Mac."""
    dials = fleet.macs[one].dials
    measured = dials.speeds[dials.nodes.index(other)] if dials is not None and dials.speeds else 0
    return measured or 10_000


def reachable(fleet: Fleet, order: Sequence[str]) -> bool:
    """Whether rank 0 of this order can be dialled by all others."""
    macs = fleet.macs
    if len(order) == 1 or all(macs[name].dials is None for name in order):
        return True
    anybody = {node for mac in macs.values() if mac.dials for node in mac.dials.nodes}
    joined = {
        name
        for c in fleet.cables.values()
        if c.connected and c.a.address and c.b.address and order[0] in (c.a.node, c.b.node)
        for name in (c.a.node, c.b.node)
    }
    return all(name in joined or order[0] in anybody for name in order[1:])


def queue_pairs(cables: Sequence[Cable]) -> bool:
    wanted: dict[tuple[str, str | None], int] = {}
    for cable in cables:
        for end in (cable.a, cable.b):
            wanted[end.node, end.device] = wanted.get((end.node, end.device), 0) + 1
            if wanted[end.node, end.device] > end.queue_pairs:
                return False
    return True


def fits(macs: Sequence[Mac], facts: ModelFacts, split: Split) -> bool:
    free = [mac.free_bytes for mac in macs]
    if split is Split.PIPELINE:
        if facts.pipeline_refusal:
            return False
        count = len(facts.layer_bytes)
        for cuts in itertools.combinations(range(1, count), len(macs) - 1):
            # Rank 0 holds the last layers.
            spans = list(itertools.pairwise((0, *cuts, count)))[::-1]
            needs = [facts.shared_bytes + sum(facts.layer_bytes[first:last]) for first, last in spans]
            if all(need <= room for need, room in zip(needs, free, strict=True)):
                return True
        return False
    known = next((size.bytes_per_rank for size in facts.tensor if size.world_size == len(macs)), ())
    return bool(known) and all(need <= room for need, room in zip(known, free, strict=True))


def floor(rates: list[int], wanted: int, step: float) -> int:
    """The lowest of the rates that count as equal to one of them."""
    if wanted <= 0:
        return 0
    chain = sorted({value for value in rates if value > 0})
    while True:
        gaps = [high / low for low, high in itertools.pairwise(chain)]
        if not gaps or (max(gaps) < step and chain[-1] / chain[0] <= step**2):
            return chain[0]
        cut = gaps.index(max(gaps)) + 1
        chain = chain[:cut] if wanted < chain[cut] else chain[cut:]


def link_rates(fleet: Fleet, rdma: bool, lan: bool, request: Request) -> list[int]:
    """Every rate that a hop can have."""
    rates = [rate(cable, rdma) for cable in fleet.cables.values()]
    if lan:
        over_lan = [speed for mac in fleet.macs.values() if mac.dials for speed in mac.dials.speeds] + [10_000]
        rates += [min(speed, RELAY_MBPS) for speed in over_lan] + (over_lan if request.ring_without_relay else [])
    return rates


RANKS: tuple[PlacedTransport, ...] = (Transport.NONE, Transport.JACCL, Transport.JACCL_RING, Transport.RING)
ALLOWED: dict[Transport, tuple[PlacedTransport, ...]] = {
    Transport.AUTO: RANKS,
    Transport.JACCL: (Transport.NONE, Transport.JACCL),
    Transport.JACCL_RING: (Transport.NONE, Transport.JACCL_RING),
    Transport.RING: (Transport.NONE, Transport.RING),
}


def splits(transport: Transport, wanted: RequestedSplit) -> tuple[PlacedSplit, ...]:
    if transport is Transport.NONE:
        return (Split.NONE,)
    if wanted is not Split.AUTO:
        return (wanted,)
    return (Split.TENSOR, Split.PIPELINE) if transport in JACCL else (Split.PIPELINE, Split.TENSOR)


def arrangements(
    fleet: Fleet, names: Sequence[str], transport: Transport, request: Request, lan: bool
) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Orders of these Macs that the transport allows, with what they share and their slowest hop."""
    macs = fleet.macs
    used = sum(macs[name].in_use for name in names)
    hop_of = {pair: hop(fleet, *pair, transport, request, lan) for pair in itertools.permutations(names, 2)}
    for order in itertools.permutations(names):
        size = len(order)
        if size == 1:
            yield order, used, 0
            continue
        pairs = list(itertools.combinations(order, 2))
        if transport is not Transport.JACCL:
            pairs = [(order[i], order[(i + 1) % size]) for i in range(size)]
        hops = [found for pair in pairs if (found := hop_of[pair]) is not None]
        if len(hops) < len(pairs) or not reachable(fleet, order):
            continue
        cables = [cable for _, cable in hops if cable is not None]
        if transport in JACCL and not queue_pairs(cables):
            continue
        shared = used + sum(cable.in_use for cable in {cable.name: cable for cable in cables}.values())
        yield order, shared, min(speed for speed, _ in hops)


def scored(
    fleet: Fleet, facts: ModelFacts, request: Request, stage: tuple[PlacedTransport, int, bool], size: int, preference: int
) -> Score | None:
    """The best score of any set of one transport, size and split."""
    transport, rank, lan = stage
    split = splits(transport, request.split)[preference]
    backend = "jaccl" if transport in JACCL else "ring"
    found: list[Score] = []
    rates = link_rates(fleet, transport in JACCL, lan, request)
    for names in itertools.combinations(sorted(n for n, m in fleet.macs.items() if m.models), size):
        macs = [fleet.macs[name] for name in names]
        if size > 1 and any(backend not in mac.backends for mac in macs):
            continue
        costs = [
            (shared, -floor(rates, speed, 1.125))
            for order, shared, speed in arrangements(fleet, names, transport, request, lan)
            if fits([fleet.macs[n] for n in order], facts, split)
        ]
        if costs:
            free = [mac.free_bytes for mac in macs]
            slowest = -floor([m.memory_bandwidth for m in fleet.macs.values()], min(m.memory_bandwidth for m in macs), 1.1)
            found.append(Score(rank, size, preference, *min(costs), slowest, max(free) - min(free), sum(free)))
    return min(found, default=None)


def brute(fleet: Fleet, facts: ModelFacts, request: Request) -> Score | None:
    """The best score of all."""
    allowed = ALLOWED[request.transport]
    stages: list[tuple[PlacedTransport, int, bool]] = [(transport, RANKS.index(transport), False) for transport in allowed]
    if Transport.RING in allowed:
        stages.append((Transport.RING, len(RANKS), True))
    for stage in stages:
        transport = stage[0]
        for size in range(request.min_nodes, min(len(fleet.macs), request.max_nodes or 99) + 1):
            if (transport is Transport.NONE) != (size == 1):
                continue
            if transport is Transport.JACCL_RING and size == 2 and request.transport is Transport.AUTO:
                continue
            for preference in range(len(splits(transport, request.split))):
                found = scored(fleet, facts, request, stage, size, preference)
                if found is not None:
                    return found
    return None


# --- problems ---


def problem(seed: int, most: int = 7) -> tuple[Fleet, ModelFacts, Request]:
    """Problems for which ``size`` is usually the smallest number of Macs with room, with about enough cables or dials.

    From a seed, since hypothesis' own draws rarely give a group of three or more.
    """
    dice = random.Random(seed)
    pick = dice.choice

    def yes(chance: float) -> bool:
        return dice.random() < chance

    count = dice.randint(1, most) if yes(0.2) else dice.randint(3, most)
    names = "abcdefg"[:count]
    size = min(count, pick((1, 2, 3, 3, 4, 4, 5, 5)))
    if yes(0.5):
        layers = (dice.randint(1, 4),) * dice.randint(max(2, size), 9)
    else:
        layers = tuple(dice.randint(1, 9) for _ in range(dice.randint(max(1, size), 7)))
    shared = dice.randint(0, 3)
    tensor = [TensorFacts(1, (sum(layers) + shared,))]
    for ranks in range(2, count + 1):
        share = shared + -(-sum(layers) // ranks)
        uneven = tuple(max(0, share + dice.randint(-2, 2)) for _ in range(ranks))
        needs = pick(((share,) * ranks, uneven, None))
        tensor.append(TensorFacts(ranks, needs or (), None if needs else "heads do not divide"))
    facts = ModelFacts(
        PATH, "org/a", bytes=sum(layers), tensor=tuple(tensor), layer_bytes=layers, shared_bytes=shared,
        pipeline_refusal="no pipeline" if yes(0.1) else None,
    )  # fmt: skip
    # Room for a part of the model each, so that about ``size`` Macs are needed.
    part = shared + -(-sum(layers) // size) + dice.randint(0, 3)
    alike, dialled, able = yes(0.5), pick((None, "some", "most", "around")), yes(0.7)
    macs = []
    for i, name in enumerate(names):
        others = [other for other in names if other != name]
        peers: list[str] = []
        if dialled == "some":
            peers = [other for other in others if yes(0.6)]
        elif dialled == "most" and others:
            left_out = pick((None, None, *others))
            peers = [other for other in others if other != left_out]
        elif dialled == "around":
            # In one direction only: the only possible ring is in the order of the names.
            peers = [names[(i + 1) % count]] if count > 1 else []
        speeds = {(peer, lan_address(peer)): pick((0, 0, 900, 940, 9_400)) for peer in peers}
        macs.append(
            Mac(
                name,
                lan_address(name),
                part + pick((0, 0, 0, 1, 2, 5, -1, -2)) if alike or yes(0.7) else dice.randint(0, 2 * part),
                models=(facts,),
                backends=frozenset(("ring", "jaccl") if able else pick((("ring", "jaccl"), ("ring",), ("jaccl",)))),
                in_use=yes(0.2),
                dials=Dials.of(speeds, speeds) if dialled else None,
                kinds=AddressKinds.of({lan_address(name): AddressKind(Kind.ETHERNET, True, 10_000)}),
                memory_bandwidth=pick((0, 400_000, 410_000, 800_000)),
            )
        )
    pairs = list(itertools.combinations(names, 2))
    wiring, good, clean = pick(("all", "all", "ring", "ring", "random", "none")), yes(0.5), yes(0.5)
    around = {frozenset((names[i], names[(i + 1) % count])) for i in range(count)}
    wired = [pair for pair in pairs if wiring == "all" or frozenset(pair) in around or yes(0.5)]
    wired = [pair for pair in wired if wiring != "ring" or frozenset(pair) in around]
    cables = []
    for i, (one, other) in enumerate([] if wiring == "none" else [*wired, *dice.choices(pairs, k=2 if pairs else 0)]):
        cables.append(
            Cable(
                f"{one}--{other}.{i}",
                # A device with several cables is behind a hub.
                End(one, f"169.254.{i}.1", f"rdma_a{i}" if yes(0.8) else "rdma_en2", 10 if clean else pick((10, 10, 2, 1, 0))),
                End(other, None if yes(0.1) and not clean else f"169.254.{i}.2", f"rdma_b{i}"),
                pick((40_000, 80_000, 80_000, 120_000)),
                connected=clean or yes(0.9),
                rdma_problem=None if good or yes(0.6) else "it is Down",
                ring_mbps=pick((None, None, 14_500, 30_000, 31_000, 60_000)),
                rdma_mbps=pick((None, None, 30_000, 31_000, 55_000, 60_000)),
                in_use=yes(0.2),
            )
        )  # fmt: skip
    low = size if yes(0.6) else 1
    request = Request(
        path=PATH,
        min_nodes=low,
        max_nodes=max(size, low) if yes(0.3) else None,
        split=pick((Split.AUTO, Split.AUTO, *get_args(RequestedSplit))),
        transport=pick((Transport.AUTO, *get_args(RequestedTransport))),
        memory=NO_KV,
        ring_without_relay=yes(0.5),
    )
    return _same_queue_pairs(Fleet(macs, cables)), facts, request


SEEDS = st.integers(0, 2**32)


def _same_queue_pairs(fleet: Fleet) -> Fleet:
    """A device has the same number of queue pairs for all its cables."""
    left: dict[tuple[str, str | None], int] = {}
    for cable in fleet.cables.values():
        for end in (cable.a, cable.b):
            left[end.node, end.device] = min(end.queue_pairs, left.get((end.node, end.device), 99))

    def same(end: End) -> End:
        return End(end.node, end.address, end.device, left[end.node, end.device])

    cables = (
        Cable(c.name, same(c.a), same(c.b), c.speed_mbps, c.connected, c.rdma_problem, c.ring_mbps, c.rdma_mbps, c.in_use)
        for c in fleet.cables.values()
    )
    return Fleet(fleet.macs.values(), cables)


def check(found: Placement, fleet: Fleet, facts: ModelFacts, request: Request) -> None:
    """Properties of every placement."""
    size = len(found.ranks)
    assert request.min_nodes <= size <= (request.max_nodes or size)
    assert len(set(found.nodes)) == size
    assert [rank.rank for rank in found.ranks] == list(range(size))
    assert all(rank.memory_bytes <= fleet.macs[rank.node].free_bytes for rank in found.ranks)
    assert (found.transport is Transport.NONE) == (size == 1)
    assert all((rank.coordinator is None) == (rank.rank == 0) for rank in found.ranks)
    if found.split is Split.PIPELINE:
        flat = [layer for rank in reversed(found.ranks) for layer in range(*(rank.layers or (0, 0)))]
        assert flat == list(range(len(facts.layer_bytes))), "rank 0 holds the last layers, none is lost or held twice"
        assert all(rank.layers and rank.layers[0] < rank.layers[1] for rank in found.ranks)
    if found.transport in JACCL:
        check_jaccl(found, fleet)
    if found.transport is Transport.RING:
        check_ring(found, fleet, request)


def check_jaccl(found: Placement, fleet: Fleet) -> None:
    """The devices of every rank belong to usable cables to its peers."""
    size = len(found.ranks)
    by_device = {}
    for name in set(found.cables):
        cable = fleet.cables[name]
        assert usable(cable, rdma=True)
        by_device[cable.a.node, cable.b.node] = by_device[cable.b.node, cable.a.node] = cable
    for rank in found.ranks:
        assert "jaccl" in fleet.macs[rank.node].backends and len(rank.devices) == size
        for other, device in enumerate(rank.devices):
            near = found.transport is Transport.JACCL or (rank.rank - other) % size in (1, size - 1)
            if other == rank.rank or not near:
                assert device is None
                continue
            cable = by_device[rank.node, found.nodes[other]]
            assert cable.end(rank.node).device == device, "one cable a pair, the same in both directions"


def check_ring(found: Placement, fleet: Fleet, request: Request) -> None:
    """Every rank is dialled by the one before it: over a cable, at an address that it reached, or by a relay."""
    for i, name in enumerate(found.cables):
        one, following = found.ranks[i], found.ranks[(i + 1) % len(found.ranks)]
        relay = following.relay
        if name:
            cable = fleet.cables[name]
            assert usable(cable, rdma=False) and {cable.a.node, cable.b.node} == {one.node, following.node}
            assert following.ring_address == cable.end(following.node).address and relay is None
        elif relay is None:
            assert request.ring_without_relay and following.ring_address in dialled(fleet, one.node, following.node)
        else:
            ends = (following.node, one.node) if relay.backwards else (one.node, following.node)
            assert relay.address in dialled(fleet, *ends) and following.ring_address is None
            assert not relay.backwards or not dialled(fleet, one.node, following.node)


def shape(found: Placement | Unplaceable) -> str:
    if isinstance(found, Unplaceable):
        return f"none: {found.reason}"
    return f"{found.transport} of {len(found.ranks)}, {found.split}"


def agrees(seed: int) -> str:
    """Plans a problem, compares the answer with brute force, and returns the kind of answer."""
    fleet, facts, request = problem(seed)
    found = plan(fleet, request)
    assert found.proven
    best = brute(fleet, facts, request)
    if isinstance(found, Placement):
        check(found, fleet, facts, request)
        assert found.score == best
    else:
        assert best is None
        assert {entry.node for entry in found.macs} == set(fleet.macs) and all(entry.message for entry in found.macs)
        assert found.message and found.reason
    macs, cables = list(fleet.macs.values()), list(fleet.cables.values())
    mixed = random.Random(seed)
    mixed.shuffle(macs)
    mixed.shuffle(cables)
    assert plan(Fleet(macs, cables), request) == found, "the order of the input makes no difference"
    return shape(found)


SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


# Speeds that differ by direction: a ring leaves a Mac over one hop and returns over another.
@example(seed=757412)
@settings(deadline=None, suppress_health_check=SLOW)
@given(SEEDS)
def test_same_feasibility_and_score_as_brute_force(seed: int) -> None:
    event(agrees(seed))


def test_groups_of_all_shapes_are_the_same_as_by_brute_force() -> None:
    """The same with seeds that are known to produce every shape."""
    counts = Counter(agrees(seed) for seed in range(240))
    shapes = Counter(text.partition(",")[0] for text in counts.elements())
    wanted = [f"JACCL of {n}" for n in (3, 4)] + [f"{ring} of {n}" for ring in ("JACCLRing", "Ring") for n in (3, 4, 5)]
    assert all(shapes[text] for text in wanted), shapes


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(SEEDS)
def test_a_place_that_is_still_good_is_kept(seed: int) -> None:
    fleet, _, request = problem(seed)
    found = plan(fleet, request)
    if isinstance(found, Placement):
        again = plan(fleet, _with_current(request, found.nodes))
        assert isinstance(again, Placement) and again.kept and again.nodes == found.nodes
        assert again.ranks == found.ranks and again.score == found.score


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(SEEDS)
def test_a_place_on_a_changed_fleet_is_confirmed_as_by_a_search_among_all_macs(seed: int) -> None:
    fleet, _, request = problem(seed)
    found, dice = plan(fleet, request), random.Random(seed)
    if not isinstance(found, Placement):
        return
    macs = [replace(mac, free_bytes=mac.free_bytes * dice.choice((1, 2)) // 2) for mac in fleet.macs.values()]
    cables = [replace(cable, in_use=dice.random() < 0.5) for cable in fleet.cables.values()]
    gone = {name for name in (*fleet.macs, *fleet.cables) if dice.random() < 0.1}
    changed = fleet.changed([mac for mac in macs if dice.random() < 0.5], cables).changed(gone=gone)
    search = CandidateSearch(changed, _with_current(request, found.nodes), StepBudget(MAX_STEPS))
    whole = search.current(found.transport, found.split)
    confirmed = confirm(changed, request, found)
    event("confirmed" if confirmed is not None else "no longer possible")
    if whole is None:
        assert confirmed is None
    else:
        assert confirmed == assemble(whole, request, basis=found.basis, kept=found.kept, proven=found.proven)


def _with_current(request: Request, nodes: tuple[str, ...]) -> Request:
    return replace(request, current=nodes)


# --- large random fleets ---


def large_fleet(seed: int, count: int, model: ModelFacts) -> Fleet:
    """Macs with at most six cables each, of all speeds, some seen from one end, some without RDMA."""
    dice = random.Random(seed)
    names = [f"mac-{i:04d}" for i in range(count)]
    macs = [
        Mac(
            name,
            f"10.1.{i // 250}.{i % 250 + 1}",
            dice.choice((48, 96, 192, 384)),
            models=(model,),
            backends=frozenset(dice.choice((("ring", "jaccl"), ("ring", "jaccl"), ("ring",)))),
            in_use=dice.random() < 0.2,
            schedulable=dice.random() < 0.95,
        )
        for i, name in enumerate(names)
    ]
    degree = dict.fromkeys(names, 0)
    cables: list[Cable] = []
    for i, name in enumerate(names):
        for other in dice.sample(names[max(0, i - 8) : i + 9], min(5, count)):
            if other == name or degree[name] >= 6 or degree[other] >= 6:
                continue
            degree[name] += 1
            degree[other] += 1
            number = len(cables)
            cables.append(
                Cable(
                    f"{name}--{other}.{number}",
                    End(name, f"169.254.{number % 250}.1" if dice.random() < 0.9 else None, f"rdma_en{degree[name]}"),
                    End(other, f"169.254.{number % 250}.2", f"rdma_en{degree[other]}"),
                    dice.choice((40_000, 80_000)),
                    rdma_problem=None if dice.random() < 0.7 else "it is Down",
                )
            )
    return Fleet(macs, cables)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("wanted", [Transport.AUTO, Transport.RING])
def test_invariants_on_large_fleets(seed: int, wanted: RequestedTransport) -> None:
    layers = (8,) * 60
    tensor = tuple(TensorFacts(size, (-(-480 // size),) * size) for size in (1, 2, 4, 8))
    facts = ModelFacts(PATH, "org/a", bytes=480, tensor=tensor, layer_bytes=layers, shared_bytes=2)
    fleet = large_fleet(seed, 120, facts)
    request = Request(path=PATH, memory=NO_KV, transport=wanted, min_nodes=2 + seed % 3, max_nodes=6)
    found = plan(fleet, request)
    if isinstance(found, Placement):
        check(found, fleet, facts, request)
        assert all(fleet.macs[name].schedulable for name in found.nodes)
    macs, cables = list(fleet.macs.values()), list(fleet.cables.values())
    random.Random(seed).shuffle(macs)
    random.Random(seed).shuffle(cables)
    assert plan(Fleet(macs, cables), request) == found


def _joined(fleet: Fleet, lan: bool) -> set[frozenset[str]]:
    """The pairs of Macs that are in one part."""
    found = fleet.parts(lan=lan)
    pairs = itertools.combinations(found, 2)
    return {frozenset((one, other)) for one, other in pairs if set(found[one]) & set(found[other])}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(SEEDS, SEEDS)
def test_a_changed_fleet_is_as_good_as_a_new_one(seed: int, another: int) -> None:
    one, other, dice = problem(seed), problem(another), random.Random(seed)
    before, request = one[0], one[2]
    assert before.parts(lan=False) is not None and before.parts(lan=True) is not None
    assert before.rates(rdma=True) is not None and before.reached_addresses("a") is not None
    macs = [mac for mac in other[0].macs.values() if dice.random() < 0.5]
    cables = [c for c in other[0].cables.values() if dice.random() < 0.5]
    gone = {name for name in before.macs if dice.random() < 0.2} | {name for name in before.cables if dice.random() < 0.2}
    gone -= {mac.name for mac in macs} | {c.name for c in cables}
    after = before.changed(macs, cables, gone)
    fresh = Fleet(after.macs.values(), after.cables.values())
    assert after.macs.keys() == (before.macs.keys() | {mac.name for mac in macs}) - gone
    assert all(_joined(after, lan) == _joined(fresh, lan) for lan in (False, True))
    assert all(after.reached_addresses(n) == fresh.reached_addresses(n) for n in "abcdefg") and after.rates(
        rdma=False
    ) == fresh.rates(rdma=False)
    assert all({c.name for c in after.links(n)} == {c.name for c in fresh.links(n)} for n in "abcdefg")
    assert plan(after, request) == plan(fresh, request)


def _steps_left(fleet: Fleet, request: Request, known: Known | None) -> int:
    budget = StepBudget(MAX_STEPS)
    assert list(CandidateSearch(fleet, request, budget, known=known).candidates(1))
    return budget.left


@pytest.mark.parametrize("seed", range(3))
def test_what_earlier_searches_have_looked_at_changes_no_answer(seed: int) -> None:
    tensor = tuple(TensorFacts(size, (-(-100 // size),) * size) for size in (1, 2, 4))
    facts = ModelFacts(PATH, "org/a", bytes=100, tensor=tensor, layer_bytes=(2,) * 50)
    fleet, dice, known = large_fleet(seed, 80, facts), random.Random(seed), Known()
    one = Request(path=PATH, memory=NO_KV, min_nodes=2, max_nodes=4)
    requests = one, replace(one, transport=Transport.RING)
    for turn in range(8):
        question = WherePlaced(fleet, (requests[turn % 4 == 3],))
        found = where(question, known)
        assert found == where(question), turn
        assert _steps_left(fleet, one, known) == _steps_left(fleet, one, None), turn
        if isinstance(found, Placement):
            advice = WhatIsBetter(fleet, replace(one, current=found.nodes[::-1]), None)
            assert answer(advice, known) == answer(advice), turn
        nodes = set(found.nodes) if isinstance(found, Placement) else set[str]()
        own = {cable.name: cable for name in nodes for cable in fleet.links(name) if cable.other(name) in nodes}
        slow = replace(dice.choice(list(fleet.cables.values())), speed_mbps=20_000)
        if turn % 2:
            # The Macs are the same values.
            fleet = fleet.changed(cables=[replace(cable, connected=False) for cable in own.values()])
        else:
            macs = [replace(fleet.macs[name], free_bytes=fleet.macs[name].free_bytes // 2, in_use=True) for name in nodes]
            fleet = fleet.changed(macs, ({slow.name: slow} | own if turn == 4 else own).values())
