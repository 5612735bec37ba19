"""The planner against brute force on small fleets, and the rules one by one."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_operator.placement import (
    Cable,
    End,
    Fleet,
    KVLayer,
    Mac,
    MemoryRequest,
    ModelFacts,
    Placement,
    Request,
    Split,
    Taint,
    TensorFacts,
    Toleration,
    Transport,
    Unplaceable,
    WantedSplit,
    WantedTransport,
    plan,
)
from thunderfleet_operator.placement.memory import kv_bytes, largest_remainder, pipeline_bytes, share_layers, tensor_bytes
from thunderfleet_operator.placement.rings import cable_graph, cycles, orders

NO_KV = MemoryRequest(context_tokens=1, concurrent_requests=1, cached_tokens=0, headroom_percent=0)
PATH = "/models/a"


def model(layers: tuple[int, ...], shared: int = 0, tensor: dict[int, tuple[int, ...] | None] | None = None) -> ModelFacts:
    whole = shared + sum(layers)
    sizes = {1: (whole,)} if tensor is None else tensor
    facts = tuple(
        TensorFacts(size, bytes_ or (), None if bytes_ else "heads do not divide") for size, bytes_ in sorted(sizes.items())
    )
    return ModelFacts(PATH, "org/a", bytes=whole, tensor=facts, layer_bytes=layers, shared_bytes=shared)


def mac(name: str, free: int, facts: ModelFacts, **more: object) -> Mac:
    return Mac(name, f"10.0.0.{ord(name[0])}", free, free, models=(facts,), **more)  # type: ignore[arg-type]


def cable(one: str, other: str, speed: int = 80_000) -> Cable:
    return Cable(f"{one}--{other}", End(one, f"169.254.{one}.{other}"), End(other, f"169.254.{other}.{one}"), speed)


# --- brute force ---


def _fits(macs: list[Mac], facts: ModelFacts, split: Split) -> bool:
    size = len(macs)
    if split is Split.PIPELINE:
        count = len(facts.layer_bytes)
        for cuts in itertools.combinations(range(1, count), size - 1):
            bounds = (0, *cuts, count)
            spans = list(itertools.pairwise(bounds))[::-1]
            if all(pipeline_bytes(facts, NO_KV, *span) <= m.free_bytes for span, m in zip(spans, macs, strict=True)):
                return True
        return False
    needs = [tensor_bytes(facts, NO_KV, size, rank) for rank in range(size)]
    return all(need is not None and need <= m.free_bytes for need, m in zip(needs, macs, strict=True))


def _rings(fleet: Fleet, size: int) -> Iterator[list[Mac]]:
    joined = {frozenset((c.a.node, c.b.node)) for c in fleet.cables if c.usable}
    for order in itertools.permutations(fleet.macs, size):
        if size == 1 or all(frozenset((order[i].name, order[(i + 1) % size].name)) in joined for i in range(size)):
            yield list(order)


def _smallest(fleet: Fleet, facts: ModelFacts, request: Request) -> int | None:
    for size in range(request.min_nodes, min(len(fleet.macs), request.max_nodes or 99) + 1):
        splits = (
            [Split.NONE]
            if size == 1
            else {
                WantedSplit.AUTO: [Split.PIPELINE, Split.TENSOR],
                WantedSplit.TENSOR: [Split.TENSOR],
                WantedSplit.PIPELINE: [Split.PIPELINE],
            }[request.split]
        )
        if any(_fits(macs, facts, split) for macs in _rings(fleet, size) for split in splits):
            return size
    return None


@st.composite
def problems(draw: st.DrawFn) -> tuple[Fleet, ModelFacts, Request]:
    names = "abcde"[: draw(st.integers(1, 5))]
    layers = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    tensor: dict[int, tuple[int, ...] | None] = {1: (sum(layers),)}
    for size in range(2, len(names) + 1):
        tensor[size] = draw(st.none() | st.tuples(*[st.integers(1, 20)] * size))
    facts = model(layers, draw(st.integers(0, 3)), tensor)
    macs = tuple(mac(name, draw(st.integers(0, 30)), facts) for name in names)
    pairs = list(itertools.combinations(names, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    cables = tuple(cable(a, b, draw(st.sampled_from((40_000, 80_000)))) for a, b in chosen)
    low = draw(st.integers(1, 3))
    request = Request(
        path=PATH,
        min_nodes=low,
        max_nodes=draw(st.none() | st.integers(low, 5)),
        split=draw(st.sampled_from(list(WantedSplit))),
        memory=NO_KV,
    )
    return Fleet(macs, cables), facts, request


def check(found: Placement, fleet: Fleet, facts: ModelFacts, request: Request) -> None:
    """What must hold of every placement."""
    macs = {entry.name: entry for entry in fleet.macs}
    size = len(found.ranks)
    assert request.min_nodes <= size <= (request.max_nodes or size)
    assert len(set(found.nodes)) == size
    assert [rank.rank for rank in found.ranks] == list(range(size))
    assert all(rank.memory_bytes <= macs[rank.node].free_bytes for rank in found.ranks)
    assert (found.transport is Transport.NONE) == (size == 1)
    if found.split is Split.PIPELINE:
        spans = [rank.layers for rank in reversed(found.ranks)]
        assert all(span is not None and span[0] < span[1] for span in spans)
        flat = [layer for span in spans if span for layer in range(*span)]
        assert flat == list(range(len(facts.layer_bytes))), "rank 0 holds the last layers, none is lost or held twice"
    if size > 1:
        by_name = {entry.name: entry for entry in fleet.cables}
        for i, name in enumerate(found.cables):
            following = found.ranks[(i + 1) % size]
            assert {by_name[name].a.node, by_name[name].b.node} == {found.ranks[i].node, following.node}
            assert following.ring_address == by_name[name].end(following.node).address


@settings(max_examples=250, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_against_brute_force_in_any_order(problem: tuple[Fleet, ModelFacts, Request], random: object) -> None:
    fleet, facts, request = problem
    found = plan(fleet, request)
    smallest = _smallest(fleet, facts, request)
    if isinstance(found, Placement):
        check(found, fleet, facts, request)
        assert len(found.ranks) == smallest
    else:
        assert smallest is None
        assert {entry.node for entry in found.lacks} == {entry.name for entry in fleet.macs}
        assert all(entry.message for entry in found.lacks)
    macs, cables = list(fleet.macs), list(fleet.cables)
    random.shuffle(macs)  # type: ignore[attr-defined]
    random.shuffle(cables)  # type: ignore[attr-defined]
    assert plan(Fleet(tuple(macs), tuple(cables)), request) == found


@settings(max_examples=200, deadline=None)
@given(problems())
def test_a_placement_that_fits_is_kept(problem: tuple[Fleet, ModelFacts, Request]) -> None:
    fleet, facts, _ = problem
    for order in _rings(fleet, min(2, len(fleet.macs))):
        names = tuple(entry.name for entry in order)
        found = plan(fleet, Request(path=PATH, memory=NO_KV, current=names))
        if any(_fits(order, facts, split) for split in ([Split.NONE] if len(names) == 1 else [Split.PIPELINE, Split.TENSOR])):
            assert isinstance(found, Placement) and found.nodes == names


@given(st.integers(1, 200), st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_largest_remainder(total: int, weights: list[int]) -> None:
    if total < len(weights):
        with pytest.raises(ValueError, match="cannot be shared"):
            largest_remainder(total, weights)
        return
    shares = largest_remainder(total, weights)
    assert sum(shares) == total and min(shares) >= 1
    exact = [total * weight / max(1, sum(weights)) for weight in weights]
    if sum(weights) and min(exact) >= 1:
        assert all(abs(share - want) < 1 for share, want in zip(shares, exact, strict=True))


def test_layers_follow_free_memory() -> None:
    assert largest_remainder(61, [512, 256, 256]) == (31, 15, 15)
    facts = model((10,) * 61)
    macs = (mac("a", 512, facts), mac("b", 256, facts), mac("c", 256, facts))
    ring = (cable("a", "b"), cable("b", "c"), cable("a", "c"))
    found = plan(Fleet(macs, ring), Request(path=PATH, memory=NO_KV, min_nodes=3))
    assert isinstance(found, Placement)
    assert [(rank.node, rank.layers) for rank in found.ranks] == [("a", (30, 61)), ("b", (15, 30)), ("c", (0, 15))]


def test_shares_move_when_layers_are_uneven() -> None:
    facts = model((1, 1, 1, 9))
    spans = share_layers(facts, NO_KV, [9, 9])
    assert spans == (((3, 4), (0, 3)), False)
    # Taking as much as fits is not enough: the second rank has room for the small layer only.
    assert share_layers(model((2, 1, 2, 2)), NO_KV, [4, 1, 9]) == (((2, 4), (1, 2), (0, 1)), False)
    assert share_layers(model((2, 1, 2, 2)), NO_KV, [3, 1, 3]) is None


def test_kv_counts_what_the_gateway_admits() -> None:
    memory = MemoryRequest(context_tokens=100, concurrent_requests=3, cached_tokens=250)
    assert kv_bytes(KVLayer(0, 2), memory) == 2 * (3 * 100 + 250)
    assert kv_bytes(KVLayer(0, 2, window_tokens=10), memory) == 2 * (3 * 10 + 250)
    assert kv_bytes(KVLayer(7, 0), memory) == 7 * (3 + 3)
    assert kv_bytes(KVLayer(0, 2, tensor_split=True), memory, 4) == 275
    assert kv_bytes(KVLayer(0, 2), memory, 4) == 1100


def test_headroom_and_workspace_are_reserved() -> None:
    facts = ModelFacts(PATH, tensor=(TensorFacts(1, (100,)),), prefill_bytes=50)
    assert tensor_bytes(facts, MemoryRequest(1, 1, 0, 10), 1, 0) == 165


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ready": False}, "is not Ready"),
        ({"schedulable": False}, "is cordoned"),
        ({"quarantine": "StackHung"}, "quarantined"),
        ({"taints": (Taint("own", "x"),)}, "taint own=x:NoSchedule"),
        ({"address": None}, "no InternalIP"),
        ({"profiled": False}, "no NodeProfile"),
        ({"models": ()}, "does not have /models/a on its disk"),
        ({"models": (ModelFacts(PATH, complete=False, problem="model-2 is missing"),)}, "model-2 is missing"),
        ({"models": (ModelFacts(PATH, sized=False),)}, "has not been sized"),
    ],
)
def test_who_may_not_and_why(change: dict[str, object], text: str) -> None:
    values: dict[str, object] = {"name": "a", "address": "10.0.0.1", "free_bytes": 10, "models": (model((1,)),), **change}
    found = plan(Fleet((Mac(**values),)), Request(path=PATH, memory=NO_KV))  # type: ignore[arg-type]
    assert isinstance(found, Unplaceable)
    assert text in found.message and "a " in found.message


def test_selector_and_tolerations() -> None:
    facts = model((1,))
    macs = (
        mac("a", 10, facts, labels={"kind": "old"}),
        mac("b", 10, facts, labels={"kind": "new"}, taints=(Taint("own", "x"),)),
        mac("c", 10, facts, labels={"kind": "new"}, taints=(Taint("own", "y", "PreferNoSchedule"),)),
    )
    request = Request(path=PATH, memory=NO_KV, selector={"kind": "new"})
    found = plan(Fleet(macs), request)
    assert isinstance(found, Placement) and found.nodes == ("c",)
    for toleration in (Toleration("own", value="x"), Toleration("own", exists=True), Toleration(exists=True)):
        request = Request(path=PATH, memory=NO_KV, selector={"kind": "new"}, tolerations=(toleration,), avoid={"c": "is away"})
        found = plan(Fleet(macs), request)
        assert isinstance(found, Placement) and found.nodes == ("b",)
    request = Request(path=PATH, memory=NO_KV, tolerations=(Toleration("own", value="z"),), avoid={"a": "x", "c": "x"})
    assert isinstance(plan(Fleet(macs), request), Unplaceable)


@pytest.mark.parametrize("wanted", [WantedTransport.JACCL, WantedTransport.JACCL_RING])
def test_no_transport_that_mlx_lacks(wanted: WantedTransport) -> None:
    facts = model((1, 1))
    macs = (mac("a", 10, facts, mlx_version="0.32.4"), mac("b", 10, facts, mlx_version="0.32.4"))
    found = plan(Fleet(macs, (cable("a", "b"),)), Request(path=PATH, memory=NO_KV, transport=wanted))
    assert isinstance(found, Unplaceable) and found.reason == "TransportUnavailable"
    assert f"a cannot run {wanted}: its MLX 0.32.4 has ring only" in found.message


def test_a_cable_without_addresses_is_no_ring() -> None:
    facts = model((5, 5))
    macs = (mac("a", 6, facts), mac("b", 6, facts))
    dark = Cable("a--b", End("a", "169.254.0.1"), End("b"), 80_000)
    unplugged = Cable("a--b", End("a", "1"), End("b", "2"), 80_000, connected=False)
    for entry in (dark, unplugged):
        found = plan(Fleet(macs, (entry,)), Request(path=PATH, memory=NO_KV, min_nodes=2))
        assert isinstance(found, Unplaceable) and found.reason == "NotConnected"
        assert "no Thunderbolt cable, with addresses at both ends" in found.message


def test_split_follows_model_and_wish() -> None:
    facts = model((5, 5), tensor={1: (10,), 2: (5, 5)})
    fleet = Fleet((mac("a", 6, facts), mac("b", 6, facts)), (cable("a", "b"),))
    for wanted, split in ((WantedSplit.AUTO, Split.PIPELINE), (WantedSplit.TENSOR, Split.TENSOR)):
        found = plan(fleet, Request(path=PATH, memory=NO_KV, split=wanted))
        assert isinstance(found, Placement) and found.split is split
    refused = model((5, 5), tensor={1: (10,), 2: None})
    fleet = Fleet((mac("a", 6, refused), mac("b", 6, refused)), (cable("a", "b"),))
    found = plan(fleet, Request(path=PATH, memory=NO_KV, split=WantedSplit.TENSOR))
    assert isinstance(found, Unplaceable) and "heads do not divide" in found.message


def test_preferences() -> None:
    facts = model((4,))
    big, small, used = mac("a", 30, facts), mac("b", 5, facts), mac("c", 4, facts, in_use=True)
    found = plan(Fleet((big, small, used)), Request(path=PATH, memory=NO_KV))
    assert isinstance(found, Placement) and found.nodes == ("b",), "the smallest leftover on a Mac that nobody uses"
    facts = model((3, 3))
    macs = tuple(mac(name, 5, facts) for name in "abc")
    fleet = Fleet(macs, (cable("a", "b", 40_000), cable("b", "c", 80_000)))
    found = plan(fleet, Request(path=PATH, memory=NO_KV))
    assert isinstance(found, Placement) and set(found.nodes) == {"b", "c"}, "the fastest cable"


def test_rank_0_is_whom_others_have_dialled() -> None:
    facts = model((3, 3))
    macs = (mac("a", 5, facts, reached=frozenset("b")), mac("b", 5, facts))
    found = plan(Fleet(macs, (cable("a", "b"),)), Request(path=PATH, memory=NO_KV))
    assert isinstance(found, Placement) and found.nodes == ("b", "a")


def test_one_path_with_two_models_is_not_one_model() -> None:
    macs = (mac("a", 5, model((3, 3))), mac("b", 5, model((3, 2))))
    found = plan(Fleet(macs, (cable("a", "b"),)), Request(path=PATH, memory=NO_KV))
    assert isinstance(found, Unplaceable) or len(found.ranks) == 1


def test_a_repository_may_lie_elsewhere_on_every_mac() -> None:
    one, other = model((3,)), ModelFacts("/else/a", "org/a", bytes=3, tensor=(TensorFacts(1, (3,)),), layer_bytes=(3,))
    macs = (mac("a", 2, one), mac("b", 4, other))
    found = plan(Fleet(macs), Request(repository="org/a", memory=NO_KV))
    assert isinstance(found, Placement) and (found.nodes, found.model_path) == (("b",), "/else/a")


def test_an_empty_fleet() -> None:
    found = plan(Fleet(), Request(path=PATH))
    assert isinstance(found, Unplaceable) and found.reason == "NoMacs"


def test_cycles_are_listed_once() -> None:
    names = "abcd"
    graph = cable_graph([cable(a, b) for a, b in itertools.combinations(names, 2)], names)
    assert [len(list(cycles(graph, size))) for size in (2, 3, 4)] == [6, 4, 3]
    assert len(orders(("a", "b", "c", "d"))) == 8 and len(orders(("a", "b"))) == 2
