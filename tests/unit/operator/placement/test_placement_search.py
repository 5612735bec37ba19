"""The parts of the search, and the cost of a search without a result."""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest
from thunderfleet_crds.vocabulary import PlacedSplit, Split, Transport
from thunderfleet_operator.placement import (
    Cable,
    Dials,
    End,
    Fleet,
    KVLayer,
    Mac,
    MemoryRequest,
    ModelFacts,
    Request,
    TensorFacts,
    Unplaceable,
    plan,
)
from thunderfleet_operator.placement.graph.hops import Hop, queue_pairs_suffice
from thunderfleet_operator.placement.memory import UNSIZED, Bounds, Needs, largest_remainder
from thunderfleet_operator.placement.rating.buckets import LINK_STEP, MEMORY_STEP, Buckets
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.cycles import best_cycle, same_cable
from thunderfleet_operator.placement.search.fitting import joined_pairs
from thunderfleet_operator.placement.search.hop_graph import HopGraph, Key
from thunderfleet_operator.placement.search.rank_order import RankOrderSearch
from thunderfleet_operator.placement.search.roots import SetSearch, windows
from thunderfleet_operator.placement.search.sets import search_sets
from thunderfleet_operator.placement.search.shortlist import Arrangement, Shortlist

NO_KV = MemoryRequest(context_tokens=1, concurrent_requests=1, cached_tokens=0, headroom_percent=0)
PATH = "/models/a"
GIB = 2**30


def graph_of(
    free: Mapping[str, int], hops: Mapping[tuple[str, str], Hop], top: int = 100, directed: bool = True, used: str = ""
) -> HopGraph:
    """Macs by free memory, with hops in the given directions only."""
    macs = [Mac(name, None, size, in_use=name in used) for name, size in free.items()]
    return HopGraph(
        macs,
        lambda node: {b: hop for (a, b), hop in hops.items() if a == node},
        Buckets((top, *(hop.speed_mbps for hop in hops.values())), LINK_STEP),
        Buckets((), MEMORY_STEP),
        directed,
    )


def both_ways(*pairs: str, speed: int = 100, shared: str = "") -> dict[tuple[str, str], Hop]:
    hop = {pair: Hop(speed, int(pair in shared.split())) for pair in pairs}
    return {key: hop[pair] for pair in pairs for key in ((pair[0], pair[1]), (pair[1], pair[0]))}


# --- the graph ---


def test_macs_are_numbered_by_free_memory_and_name() -> None:
    graph = graph_of({"b": 5, "a": 5, "c": 2}, {("a", "b"): Hop(90), ("a", "c"): Hop(40), ("a", "x"): Hop(1)})
    assert [mac.name for mac in graph.macs] == ["c", "a", "b"] and len(graph) == 3
    assert graph.positions(("b", "c")) == (2, 0) and graph.positions(("b", "x")) is None
    assert [mac.name for mac in graph.members((2, 0))] == ["b", "c"]
    assert list(graph.hops(1)) == [0, 2], "in order, without Macs of other graphs"
    assert graph.tie((2, 0)) == ((2, 0, "c"), (5, 0, "b"))
    assert (graph.span(0, 2), graph.span(1, 3), graph.span(1, 1)) == (7, 10, 0)


def test_the_speeds_of_a_macs_hops() -> None:
    graph = graph_of({"a": 1, "b": 2, "c": 3}, {("a", "b"): Hop(100), ("a", "c"): Hop(950), ("b", "a"): Hop(100)})
    assert [graph.speeds(i) for i in range(3)] == [{100, 950}, {100}, frozenset()]


def test_the_speed_of_the_slowest_of_the_fastest_hops() -> None:
    graph = graph_of({"a": 1, "b": 2, "c": 3}, {("a", "b"): Hop(950), ("a", "c"): Hop(400)})
    assert [graph.speed(0, count) for count in (1, 2, 3, 2, 1)] == [950, 400, -1, 400, 950]


def test_the_key_of_a_set() -> None:
    macs = [Mac("a", None, 5, memory_bandwidth=400), Mac("b", None, 8, memory_bandwidth=100)]
    graph = HopGraph(macs, lambda node: {}, Buckets((900,), LINK_STEP), Buckets((100, 400), MEMORY_STEP))
    assert graph.key((0, 1), 3, 950) == (3, -900, -100, 3, 13)


@pytest.mark.parametrize(
    ("size", "least", "together", "wanted", "holds"),
    [
        (3, 2, 10, 10, True),
        (4, 0, 0, 0, False),
        (3, 3, 10, 10, False),
        (3, 2, 11, 10, False),
        (3, 2, 10, 11, False),
        (2, 3, 8, 8, True),
        (2, 4, 8, 8, False),
    ],
)
def test_whether_any_set_has_room(size: int, least: int, together: int, wanted: int, holds: bool) -> None:
    graph = graph_of({"a": 2, "b": 3, "c": 5}, {})
    assert graph.may_hold(size, Bounds(least, together, True, wanted, most=100)) == holds


# --- the shortlist and the budget ---


def arrangement(graph: HopGraph, key: Key, *places: int) -> Arrangement:
    return Arrangement(key, graph.tie(places), graph, places, places)


def test_a_shortlist_keeps_the_best_of_each_set() -> None:
    graph = graph_of({"a": 1, "b": 2, "c": 3}, {})
    best, good, bad = (0, 0, 0, 0, 1), (0, 0, 0, 0, 2), (0, 0, 0, 0, 3)
    found = Shortlist(2)
    found.add(arrangement(graph, bad, 0, 1))
    assert found.admits((9, 9, 9, 9, 9), graph, tuple), "while there is space"
    found.add(arrangement(graph, good, 0, 2))
    found.add(arrangement(graph, best, 0, 1))
    assert [entry.key for entry in found.entries] == [best, good], "the same set at its best"
    found.add(arrangement(graph, bad, 0, 2))
    assert [entry.key for entry in found.entries] == [best, good]
    found.add(arrangement(graph, best, 1, 2))
    assert [entry.places for entry in found.entries] == [(0, 1), (1, 2)], "no more than two, equal ones by their Macs"


def test_a_shortlist_admits_what_is_better_or_comes_first() -> None:
    graph, other = graph_of({"a": 1, "b": 2, "c": 3}, {}), graph_of({"a": 1, "d": 2}, {})
    found = Shortlist(1)
    found.add(arrangement(graph, (0, 0, 0, 0, 2), 0, 2))
    assert found.admits((0, 0, 0, 0, 1), graph, tuple) and not found.admits((0, 0, 0, 0, 3), graph, tuple)
    equal = (0, 0, 0, 0, 2)
    assert found.admits(equal, graph, lambda: (0, 1))
    assert not found.admits(equal, graph, lambda: (0, 2)) and not found.admits(equal, graph, lambda: (1, 2))
    assert found.admits(equal, other, lambda: (0, 1)), "d with 2 free comes before c with 3"
    assert not found.admits(equal, other, lambda: (1,))


def test_a_budget_counts_steps() -> None:
    budget = StepBudget(2)
    assert budget.step() and budget.step() and not budget.exhausted
    assert not budget.step() and budget.exhausted
    spent = StepBudget(5)
    spent.spend(5)
    assert not spent.step() and spent.left == 0


# --- rings and pairs ---


def test_the_pairs_that_need_a_hop() -> None:
    assert joined_pairs(Transport.JACCL, (4, 2, 7)) == [(4, 2), (4, 7), (2, 7)]
    assert joined_pairs(Transport.RING, (4, 2, 7)) == [(4, 2), (2, 7), (7, 4)] == joined_pairs(Transport.JACCL_RING, (4, 2, 7))
    assert joined_pairs(Transport.RING, (4, 2)) == [(4, 2), (2, 4)] and joined_pairs(Transport.JACCL, (4,)) == []


def test_the_best_ring_over_a_set_shares_the_fewest_cables() -> None:
    free = {name: 1 for name in "abcd"}
    every = ("ab", "bc", "cd", "ad", "ac", "bd")
    graph = graph_of(free, both_ways(*every))
    assert best_cycle(graph, (0, 1, 2, 3), 100, StepBudget(99)) == ((0, 1, 2, 3), 0)
    graph = graph_of(free, both_ways(*every, shared="ab"))
    assert best_cycle(graph, (0, 1, 2, 3), 100, StepBudget(99)) == ((0, 2, 1, 3), 0), "around the shared cable"
    graph = graph_of(free, both_ways(*every, shared="ac ad"))
    assert best_cycle(graph, (0, 1, 2, 3), 100, StepBudget(99)) == ((0, 1, 2, 3), 1), "of equal rings, the first in order"
    graph = graph_of(free, both_ways("ab", "bc", "cd", "ad", shared="ab cd"))
    found = best_cycle(graph, (0, 1, 2, 3), 100, StepBudget(99))
    assert found is not None and found[1] == 2
    assert best_cycle(graph_of(free, both_ways("ab", "bc", "cd")), (0, 1, 2, 3), 100, StepBudget(99)) is None, "a path"
    slow = both_ways(*every[:4]) | both_ways("cd", speed=90)
    assert best_cycle(graph_of(free, slow), (0, 1, 2, 3), 100, StepBudget(99)) is None
    assert best_cycle(graph_of(free, slow), (0, 1, 2, 3), 90, StepBudget(99)) is not None
    budget = StepBudget(1)
    assert best_cycle(graph_of(free, both_ways(*every[:4])), (0, 1, 2, 3), 100, budget) is None and budget.exhausted


@pytest.mark.parametrize("seed", range(40))
def test_the_best_order_is_that_of_all_orders(seed: int) -> None:
    dice = random.Random(seed)
    names = "abcde"
    hops = {
        (one, other): Hop(dice.choice((100, 400)), dice.randint(0, 1))
        for one in names
        for other in names
        if one != other and dice.random() < 0.85
    }
    graph = graph_of(dict.fromkeys(names, 9), hops, top=400)
    members = tuple(range(len(names)))
    needs = Needs(ModelFacts(PATH, tensor=(TensorFacts(5, (1, 1, 1, 1, 1)),)), NO_KV)
    search = RankOrderSearch(
        graph,
        members,
        needs,
        Split.TENSOR,
        StepBudget(10_000),
        ring=True,
        shared=0,
        order_matters=False,
        accept=lambda order: True,
    )
    search.search_from(0)
    costs = []
    for others in permutations(members[1:]):
        pairs = joined_pairs(Transport.RING, (0, *others))
        if all(other in graph.hops(one) for one, other in pairs):
            used = [graph.hops(one)[other] for one, other in pairs]
            costs.append((sum(hop.shared for hop in used), max(-graph.bucket(hop.speed_mbps) for hop in used)))
    assert (search.best and search.best[0]) == min(costs, default=None)


def test_two_macs_share_a_cable_in_both_directions_once() -> None:
    free = {"a": 1, "b": 1}
    wire = Cable("ab", End("a"), End("b"))
    cabled = {("a", "b"): Hop(100, 1, wire), ("b", "a"): Hop(100, 1, wire)}
    assert same_cable(graph_of(free, cabled), 0, 1)
    assert best_cycle(graph_of(free, cabled), (0, 1), 100, StepBudget(9)) == ((0, 1), 1)
    assert not same_cable(graph_of(free, both_ways("ab", shared="ab")), 0, 1), "no cable at all"
    assert best_cycle(graph_of(free, both_ways("ab", shared="ab")), (0, 1), 100, StepBudget(9)) == ((0, 1), 2)
    back = {("a", "b"): Hop(100), ("b", "a"): Hop(100, 1)}
    assert best_cycle(graph_of(free, back), (0, 1), 100, StepBudget(9)) == ((0, 1), 1)


def test_queue_pairs_are_counted_by_device() -> None:
    def wire(name: str, one: End, other: End) -> Cable:
        return Cable(name, one, other)

    hub = End("a", device="hub", queue_pairs=1)
    first, second = wire("1", hub, End("b", device="x")), wire("2", hub, End("c", device="y"))
    assert queue_pairs_suffice(("a", "b"), [first]) and not queue_pairs_suffice(("a", "b", "c"), [first, second])
    assert queue_pairs_suffice(("b", "c"), [first, second]), "devices of other Macs do not matter"
    assert not queue_pairs_suffice(("a", "b"), [wire("3", hub, End("b", device="x", queue_pairs=0))])


def test_sums_of_windows() -> None:
    assert windows([1, 2, 3, 4], 2) == [1, 3, 5, 7] and windows([1, 2, 3], 5) == [1, 3, 6] and windows([], 2) == []
    assert windows([1, 2], 0) == [0, 0]


# --- sets ---


def sets(graph: HopGraph, transport: Transport, size: int, need: Bounds, keep: int = 99) -> list[tuple[tuple[int, ...], int]]:
    """The sets that a search considers, sorted, and what they share."""
    found: list[tuple[tuple[int, ...], int]] = []
    search = SetSearch(
        graph, size, need, Shortlist(keep), StepBudget(10_000), lambda _, order, shared: found.append((order, shared))
    )
    search_sets(search, transport)  # type: ignore[arg-type]
    return sorted((tuple(sorted(order)), shared) for order, shared in found)


ANY = Bounds(0, 0, True, 0, most=99)


def test_single_macs() -> None:
    graph = graph_of({"a": 1, "b": 4, "c": 5}, {}, used="c")
    assert sets(graph, Transport.NONE, 1, Bounds(4, 4, True, 4, most=4)) == [((1,), 0), ((2,), 1)]


def test_cliques_are_those_with_hops_between_all() -> None:
    graph = graph_of({name: 9 for name in "abcd"}, both_ways("ab", "ac", "bc", "cd", shared="bc"), directed=False, used="a")
    assert sets(graph, Transport.JACCL, 3, ANY) == [((0, 1, 2), 2)], "Mac a and cable b–c are shared"
    assert sets(graph, Transport.JACCL, 2, ANY) == [((0, 1), 1), ((0, 2), 1), ((1, 2), 1), ((2, 3), 0)]
    room = Bounds(0, 18, True, 18, most=9)
    assert len(sets(graph, Transport.JACCL, 2, room)) == 4
    assert sets(graph, Transport.JACCL, 2, Bounds(0, 19, True, 19, most=10)) == []


def test_rings_are_found_by_walking_where_hops_are_few() -> None:
    names = "abcdefgh"
    around = [names[i] + names[(i + 1) % 8] for i in range(8)]
    graph = graph_of({name: 9 for name in names}, both_ways(*around, shared="ab"), directed=False, used="c")
    found = sets(graph, Transport.RING, 8, ANY)
    assert set(found) == {(tuple(range(8)), 2)}, "one Mac and one cable are shared"
    assert sets(graph, Transport.RING, 7, ANY) == []


def test_a_ring_follows_the_faster_direction_of_its_hops() -> None:
    names = "abcdefg"
    fast = {(names[i], names[(i + 1) % 7]): Hop(100) for i in range(7)}
    slow = {(other, one): Hop(40) for one, other in fast}
    graph = graph_of({name: 9 for name in names}, {**slow, **fast})
    shortlist = Shortlist(1)

    def consider(graph: HopGraph, order: tuple[int, ...], shared: int) -> None:
        speed = min(graph.hops(one)[other].speed_mbps for one, other in joined_pairs(Transport.RING, order))
        shortlist.add(arrangement(graph, graph.key(order, shared, speed), *order))

    search_sets(SetSearch(graph, 7, ANY, shortlist, StepBudget(10_000), consider), Transport.RING)
    assert [entry.order for entry in shortlist.entries] == [tuple(range(7))]
    cut = dict(list((slow | fast).items())[1:])
    assert (
        sets(
            graph_of({name: 9 for name in names}, {pair: hop for pair, hop in cut.items() if pair != ("a", "b")}),
            Transport.RING,
            7,
            ANY,
        )
        == []
    )


@pytest.mark.parametrize(("count", "first"), [(128, "grow"), (129, "walk")])
def test_rings_of_up_to_128_macs_that_all_reach_each_other_are_grown(
    monkeypatch: pytest.MonkeyPatch, count: int, first: str
) -> None:
    names = [f"m{i:03d}" for i in range(count)]
    everywhere = {(one, other): Hop(100) for one in names for other in names if one != other}
    hops = {one: {other: everywhere[one, other] for other in names if other != one} for one in names}
    macs = [Mac(name, None, 9) for name in names]
    graph = HopGraph(macs, hops.__getitem__, Buckets((100,), LINK_STEP), Buckets((), MEMORY_STEP))
    taken: list[str] = []
    for way in ("grow", "walk"):
        monkeypatch.setattr(f"thunderfleet_operator.placement.search.sets.{way}", lambda *_, way=way: taken.append(way))
    search = SetSearch(graph, 3, ANY, Shortlist(1), StepBudget(200_000), lambda *_: None)
    search_sets(search, Transport.RING)
    # Later roots have fewer Macs after them.
    assert taken[0] == first and taken[1:] == ["grow"] * (count - 3)


@pytest.mark.parametrize(("reach", "steps"), [(2, 8), (8, 25)])
def test_every_root_of_a_ring_takes_the_steps_of_what_is_around_it(
    monkeypatch: pytest.MonkeyPatch, reach: int, steps: int
) -> None:
    """``reach``: hops lead to so many Macs on either side."""
    names = [f"m{i:03d}" for i in range(60)]
    near = {one: [names[(i + j) % 60] for j in range(-reach, reach + 1) if j] for i, one in enumerate(names)}
    hops = {one: {other: Hop(100) for other in others} for one, others in near.items()}
    graph = HopGraph([Mac(name, None, 9) for name in names], hops.__getitem__, Buckets((100,), LINK_STEP), Buckets((), 2))
    for way in ("grow", "walk"):
        monkeypatch.setattr(f"thunderfleet_operator.placement.search.sets.{way}", lambda *_: None)
    budget = StepBudget(100_000)
    search_sets(SetSearch(graph, 5, ANY, Shortlist(1), budget, lambda *_: None), Transport.RING)
    # About a step for every four of them and for every 64 of their hops, each time that they are looked at.
    assert (100_000 - budget.left) / 56 == pytest.approx(steps, rel=0.15)


# --- memory ---


def test_shares_follow_the_largest_remainders_and_ties_the_order() -> None:
    assert largest_remainder(10, [1, 1, 1]) == (4, 3, 3)
    assert largest_remainder(5, [0, 0]) == (3, 2), "no weights are equal weights"
    assert largest_remainder(4, [100, 1, 1]) == (2, 1, 1), "at least one each"
    with pytest.raises(ValueError, match="3 ranks need at least 3 layers, not 2"):
        largest_remainder(2, [1, 1, 1])


def needs(layers: tuple[int, ...], shared: int = 0, headroom: int = 0, **tensor: tuple[int, ...]) -> Needs:
    sizes = tuple(TensorFacts(int(size[1:]), parts) for size, parts in tensor.items())
    facts = ModelFacts(PATH, tensor=sizes, layer_bytes=layers, shared_bytes=shared)
    return Needs(facts, MemoryRequest(1, 1, 0, headroom))


def test_bounds_of_a_pipeline_of_equal_layers_count_layers() -> None:
    found = needs((10,) * 4, shared=5).bounds(Split.PIPELINE, 2)
    assert isinstance(found, Bounds)
    assert (found.least, found.together, found.even, found.wanted, found.most) == (15, 50, True, 4, 3)
    assert [found.room(free) for free in (14, 15, 34, 35, 45, 99)] == [0, 1, 2, 3, 3, 3]


def test_bounds_of_a_pipeline_of_unequal_layers_count_bytes() -> None:
    found = needs((10, 20, 30), shared=5, headroom=10).bounds(Split.PIPELINE, 2)
    assert isinstance(found, Bounds)
    assert (found.least, found.together, found.even, found.wanted, found.most) == (17, 77, False, 60, 50)
    assert found.room(22) == 15 and found.room(1_000) == 50 and found.room(0) == 0


def test_bounds_of_tensor_parallelism() -> None:
    found = needs((1,), _2=(30, 20)).bounds(Split.TENSOR, 2)
    assert isinstance(found, Bounds) and (found.least, found.together, found.even, found.most) == (20, 50, False, 30)
    even = needs((1,), _2=(20, 20)).bounds(Split.TENSOR, 2)
    assert isinstance(even, Bounds) and even.even and even.wanted == 40


def test_why_a_model_cannot_be_divided() -> None:
    assert needs((1, 1)).bounds(Split.PIPELINE, 3) == "3 ranks need at least 3 layers, the model has 2"
    assert needs(()).bounds(Split.PIPELINE, 2) == UNSIZED
    refused = Needs(ModelFacts(PATH, layer_bytes=(1, 1), pipeline_refusal="no pipeline"), NO_KV)
    assert refused.bounds(Split.PIPELINE, 2) == "no pipeline"
    assert refused.bounds(Split.TENSOR, 2) == "no pipeline", "sized by its files"
    assert refused.bounds(Split.TENSOR, 17) == "agents compute the memory that a rank needs for at most 16 Macs"
    assert needs((1, 1)).bounds(Split.TENSOR, 2) == UNSIZED
    heads = Needs(ModelFacts(PATH, tensor=(TensorFacts(2, refusal="heads do not divide"),)), NO_KV)
    assert heads.bounds(Split.TENSOR, 2) == "heads do not divide"
    assert heads.bounds(Split.NONE, 1) == UNSIZED
    assert needs((1, 1), _2=(5,)).tensor(2) == (), "a rank without figures"


def test_tensor_parallelism_divides_the_caches_that_it_can_divide() -> None:
    kv = (KVLayer(bytes_per_token=10, tensor_split=True), KVLayer(bytes_per_token=4))
    tensor = (TensorFacts(1, (100,)), TensorFacts(2, (50, 50)))
    found = Needs(ModelFacts(PATH, tensor=tensor, layer_bytes=(50,), kv=kv), NO_KV)
    assert found.tensor(1) == (114,) and found.tensor(2) == (59, 59), "also those beyond the last layer"


def test_headroom_is_rounded_up_on_every_rank() -> None:
    found = needs((10, 10), shared=1, headroom=10, _2=(11, 11))
    assert found.span(0, 1) == 13 and found.tensor(2) == (13, 13)
    assert found.divide(Split.TENSOR, (13, 13)) is not None and found.divide(Split.TENSOR, (13, 12)) is None
    pipeline = found.divide(Split.PIPELINE, (13, 13))
    assert pipeline is not None and (pipeline.needs, pipeline.layers) == ((13, 13), ((1, 2), (0, 1)))
    assert found.divide(Split.PIPELINE, (13, 12)) is None


# --- cost of finding nothing ---


def cliques(count: int, size: int, free: int, model: ModelFacts) -> Fleet:
    """Macs in groups of ``size``, with a cable between every two Macs of a group and no other links."""
    names = [f"m{i:04d}" for i in range(count)]
    macs, cables = [], []
    for i, name in enumerate(names):
        peers = [j for j in range(i // size * size, min(i // size * size + size, count)) if j != i]
        dials = Dials.of((names[j], f"10.0.{j // 250}.{j % 250}") for j in peers)
        macs.append(Mac(name, f"10.0.{i // 250}.{i % 250}", free, free, models=(model,), dials=dials))
        for j in (j for j in peers if j > i):
            ends = (End(name, f"1.{j}", f"to{j}"), End(names[j], f"1.{i}", f"to{i}"))
            cables.append(Cable(f"{name}--{names[j]}", *ends, 80_000, rdma_problem=None))
    return Fleet(macs, cables)


def test_a_fleet_without_room_costs_no_scan_of_all_macs_for_each_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelFacts(PATH, tensor=(TensorFacts(1, (30,)),), layer_bytes=(1,) * 30)
    looked = 0
    hops = HopGraph.hops

    def counted(self: HopGraph, i: int) -> dict[int, Hop]:
        nonlocal looked
        looked += 1
        return hops(self, i)

    monkeypatch.setattr(HopGraph, "hops", counted)
    counts = []
    for macs in (80, 160):
        looked = 0
        found = plan(cliques(macs, 4, 5, model), Request(path=PATH, memory=NO_KV))
        assert isinstance(found, Unplaceable) and found.proven
        counts.append(looked)
    assert counts[1] < 2.5 * counts[0], "twice the Macs, about twice the work"


def test_a_folder_of_the_model_for_each_mac_costs_no_scan_of_all_macs_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    bounds = Needs.bounds

    def counted(self: Needs, split: PlacedSplit, size: int) -> Bounds | str:
        nonlocal looked
        looked += 1
        return bounds(self, split, size)

    monkeypatch.setattr(Needs, "bounds", counted)
    counts = []
    for count in (80, 160):
        looked = 0
        fleet = cliques(count, 4, 5, ModelFacts(PATH))
        facts = [ModelFacts(f"/{name}", "org/a", tensor=(TensorFacts(1, (30,)),), layer_bytes=(1,) * 30) for name in fleet.macs]
        macs = [replace(mac, models=(model,)) for mac, model in zip(fleet.macs.values(), facts, strict=True)]
        found = plan(Fleet(macs, fleet.cables.values()), Request(repository="org/a", memory=NO_KV))
        assert isinstance(found, Unplaceable) and found.proven
        counts.append(looked)
    assert counts[1] < 2.5 * counts[0]
