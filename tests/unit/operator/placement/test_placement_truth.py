"""Near misses are true: whoever changes what one of them names gets a placement."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from thunderfleet_crds.vocabulary import Split, Transport
from thunderfleet_operator.placement import (
    Cable,
    Dials,
    End,
    Fleet,
    Mac,
    ModelFacts,
    NearMiss,
    Placement,
    Request,
    Taint,
    TensorFacts,
    Unplaceable,
    plan,
)
from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.explain.fixes import Way
from thunderfleet_operator.placement.explain.obstacles import HopObstacles
from thunderfleet_operator.placement.explain.relaxed import _pool, cheapest_set
from thunderfleet_operator.placement.explain.shortage import smallest_needs
from thunderfleet_operator.placement.memory import Needs
from thunderfleet_operator.placement.search.budget import StepBudget

from tests.unit.operator.placement.test_placement_properties import NO_KV, PATH, problem

GIB = 2**30
BOTH = frozenset({"ring", "jaccl"})
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def broken(seed: int) -> tuple[Fleet, ModelFacts, Request]:
    """A small fleet of which about half the Macs cannot take part, often for several reasons, with too little memory."""
    fleet, facts, request = problem(seed)
    dice = random.Random(seed)

    def yes(chance: float) -> bool:
        return dice.random() < chance

    macs = []
    for mac in fleet.macs.values():
        changes: list[dict[str, object]] = [
            {"schedulable": False},
            {"taints": (Taint("dedicated", "x"), Taint("gpu"))},
            {"models": ()},
            {"models": (replace(facts, revision="other"),)},
            {"backends": frozenset({"ring"})},
            {"mlx_version": "9"},
            {"ready": False},
            {"quarantine": "memory is stranded"},
            {"labels": {"pool": "other"}},
        ]
        for change in dice.sample(changes, dice.choice((0, 0, 0, 1, 2, 3))) if yes(0.6) else ():
            mac = replace(mac, **change)  # type: ignore[arg-type]
        macs.append(replace(mac, free_bytes=mac.free_bytes * dice.choice((1, 1, 2, 3)) // 3))
    if yes(0.3):
        request = replace(request, selector={"pool": "ours"})
        macs = [replace(mac, labels=mac.labels or {"pool": "ours"}) if yes(0.8) else mac for mac in macs]
    names = [mac.name for mac in macs]
    ports = {name: "has no block of ring ports left" for name in names if yes(0.1)}
    avoid = {name: "is left out because it failed" for name in names if yes(0.1)}
    cables = [cable for cable in fleet.cables.values() if yes(0.8)]
    return Fleet(macs, cables), facts, replace(request, no_ring_ports=ports, avoid=avoid)


def applied(fleet: Fleet, facts: ModelFacts, request: Request, miss: NearMiss) -> tuple[Fleet, Request]:
    """The fleet with what a near miss names changed, and nothing else."""
    changes = miss.changes
    members = dict.fromkeys((*miss.nodes, *changes.macs))
    macs = {**fleet.macs, **{name: Mac(name, f"10.9.9.{name[-1]}", 0) for name in members if name not in fleet.macs}}
    like = like_the_others(fleet, facts, request, miss)
    for name in changes.macs:
        macs[name] = replace(
            macs[name],
            address=macs[name].address or "10.9.9.9",
            ready=True,
            schedulable=True,
            taints=(),
            quarantine=None,
            profiled=True,
            labels=request.selector,
            backends=BOTH,
            models=like.models,
            mlx_version=like.mlx_version,
            mlx_lm_version=like.mlx_lm_version,
        )
    for name, size in changes.free_bytes:
        assert size > macs[name].free_bytes
        macs[name] = replace(macs[name], free_bytes=size)
    cables = dict(fleet.cables)
    for number, (one, other) in enumerate(changes.hops):
        for cable in fleet.links(one):
            if cable.other(one) == other:
                del cables[cable.name]
        a, b = End(one, f"169.254.99.{2 * number}", f"new{number}"), End(other, f"169.254.99.{2 * number + 1}", f"new{number}")
        cables[f"new{number}"] = Cable(f"new{number}", a, b, 120_000, rdma_problem=None)
    for node, device in changes.queue_pairs:
        for cable in list(cables.values()):
            ends = [replace(e, queue_pairs=10) if (e.node, e.device) == (node, device) else e for e in (cable.a, cable.b)]
            cables[cable.name] = replace(cable, a=ends[0], b=ends[1])
    if changes.reach:
        for name in members:
            rows = {(node, address): speed for node, address, speed in (macs[name].dials or Dials()).rows}
            rows.update({(other, macs[other].address or ""): 0 for other in members if other != name})
            macs[name] = replace(macs[name], dials=Dials.of(rows, rows))
    mended = {name: why for name, why in request.no_ring_ports.items() if name not in changes.macs}
    avoid = {name: why for name, why in request.avoid.items() if name not in changes.macs}
    return Fleet(macs.values(), cables.values()), replace(request, no_ring_ports=mended, avoid=avoid)


def like_the_others(fleet: Fleet, facts: ModelFacts, request: Request, miss: NearMiss) -> Mac:
    """A Mac of the near miss that need not be mended; if there is none, any that has the model."""
    others = [fleet.macs[name] for name in miss.nodes if name not in miss.changes.macs]
    best = sorted(fleet.macs.values(), key=lambda mac: (-mac.free_bytes, mac.name))
    return next(iter([*others, *(mac for mac in best if mac.models), Mac("", None, 0, models=(facts,))]))


def named_in(miss: NearMiss) -> Iterator[bool]:
    """Whether the message names each thing that must change."""
    changes = miss.changes
    for name in (
        *(name for name in changes.macs if len(name) == 1),
        *(name for name, _ in changes.free_bytes if len(name) == 1),
    ):
        yield name in miss.message.replace(":", " ").replace(",", " ").split()
    for pair in changes.hops:
        yield " ↔ ".join(sorted(pair)) in miss.message
    for node, device in changes.queue_pairs:
        yield f"RDMA device {device} of {node}" in miss.message
    yield ("no Mac is reachable" in miss.message) == changes.reach


def check(fleet: Fleet, facts: ModelFacts, request: Request) -> int:
    found = plan(fleet, request)
    if isinstance(found, Placement):
        return 0
    messages = [miss.message for miss in found.near_misses]
    assert len(set(messages)) == len(messages)
    count = 0
    for miss in found.near_misses:
        if miss.changes:
            count += 1
            assert all(named_in(miss)), miss
            assert miss.missing_bytes == sum(
                size - (fleet.macs[name].free_bytes if name in fleet.macs else 0) for name, size in miss.changes.free_bytes
            )
            after = plan(*applied(fleet, facts, request, miss))
            assert isinstance(after, Placement), (miss, after.message)
    return count


@example(seed=1)
@settings(deadline=None, suppress_health_check=SLOW)
@given(st.integers(0, 2**32))
def test_a_near_miss_is_all_that_is_missing(seed: int) -> None:
    check(*broken(seed))


def full_mesh(count: int, free: int, facts: ModelFacts) -> Fleet:
    names = [f"m{number:02d}" for number in range(count)]
    cables = [
        Cable(f"{one}--{other}", End(one, f"1.{one}.{other}", f"to{other}"), End(other, f"2.{one}.{other}", f"to{one}"), 80_000)
        for one in names
        for other in names
        if one < other
    ]
    return Fleet([Mac(name, name, free, backends=BOTH, models=(facts,)) for name in names], cables)


@pytest.mark.parametrize(("count", "missing"), [(16, 512), (24, 768)])
def test_all_sizes_are_looked_at_for_the_least_memory(count: int, missing: int) -> None:
    layers = (20 * GIB,) * 96
    facts = ModelFacts(PATH, "org/a", bytes=sum(layers), tensor=(TensorFacts(1, (sum(layers),)),), layer_bytes=layers)
    # As many layers as are missing, each with a tenth of headroom.
    free = (sum(layers) * 11 // 10 - missing * GIB) // count
    request = Request(path=PATH, memory=replace(NO_KV, headroom_percent=10), transport=Transport.RING)
    found = plan(full_mesh(count, free, facts), request)
    assert isinstance(found, Unplaceable)
    ring = next(miss for miss in found.near_misses if miss.transport is Transport.RING)
    assert len(ring.nodes) == count
    check(full_mesh(count, free, facts), facts, request)
    assert missing * GIB <= ring.missing_bytes < (missing + 22 * count // 2) * GIB


def test_memory_that_is_asked_for_suffices_for_whole_layers() -> None:
    layers = (6 * GIB + 3 * GIB // 10,) * 61
    facts = ModelFacts(PATH, "org/a", bytes=sum(layers), tensor=(TensorFacts(1, (sum(layers),)),), layer_bytes=layers)
    fleet = full_mesh(2, 180 * GIB, facts)
    request = Request(path=PATH, memory=NO_KV, transport=Transport.RING)
    found = plan(fleet, request)
    assert isinstance(found, Unplaceable)
    ring = next(miss for miss in found.near_misses if miss.transport is Transport.RING)
    assert ring.message == (
        "TCP ring of m00, m01: m00 has 180 GiB free, needs 195 GiB as one of 2 ranks (Pipeline);"
        " m01 has 180 GiB free, needs 189 GiB as one of 2 ranks (Pipeline)"
    )
    assert check(fleet, facts, request)


def test_a_jaccl_entry_names_cable_memory_and_every_problem_of_a_mac() -> None:
    facts = ModelFacts(PATH, "org/a", bytes=20, tensor=(TensorFacts(1, (20,)), TensorFacts(2, (10, 10))), layer_bytes=(10, 10))
    a = Mac("a", "10.0.0.1", 8, backends=BOTH, models=(facts,))
    b = replace(a, name="b", address="10.0.0.2", schedulable=False, taints=(Taint("gpu"),), models=())
    request = Request(path=PATH, memory=NO_KV, transport=Transport.JACCL, min_nodes=2)
    found = plan(Fleet([a, b]), request)
    assert isinstance(found, Unplaceable)
    assert found.near_misses[0].message == (
        "JACCL mesh of a, b: b is cordoned (kubectl uncordon b) and has the taint gpu:NoSchedule, which spec.nodes.tolerations"
        " does not tolerate and does not have /models/a on disk; copy it there;"
        " each of a, b has 8 bytes free, needs 10 bytes as one of 2 ranks (Tensor); a ↔ b: no Thunderbolt cable"
    )


def test_a_ring_that_lacks_a_queue_pair_says_so() -> None:
    facts = ModelFacts(PATH, "org/a", bytes=4, tensor=(TensorFacts(1, (4,)), TensorFacts(2, (2, 2))), layer_bytes=(2, 2))
    macs = [Mac(name, f"10.0.0.{i}", 3, backends=BOTH, models=(facts,)) for i, name in enumerate("ab")]
    one = Cable("a--b", End("a", "1.1", "rdma_en2", 1), End("b", "1.2", "rdma_en3", 10), 80_000, rdma_problem=None)
    found = plan(Fleet(macs, [one]), Request(path=PATH, memory=NO_KV, transport=Transport.JACCL_RING))
    assert isinstance(found, Unplaceable)
    messages = [miss.message for miss in found.near_misses]
    assert (
        "JACCL ring of a, b: RDMA device rdma_en2 of a has 1 free queue pair, needs 2 (one for each RDMA connection), because "
        "other groups use the others: delete a ModelDeployment that uses a, or set spec.transport: Ring"
    ) in messages


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_the_least_memory_is_as_by_brute_force(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.randint(1, 4)
    layers = tuple(dice.randint(1, 9) for _ in range(dice.randint(size, 8)))
    if dice.random() < 0.5:
        layers = (dice.randint(1, 9),) * len(layers)
    facts = ModelFacts(PATH, "org/a", layer_bytes=layers, shared_bytes=dice.randint(0, 3))
    free = [dice.randint(0, 25) for _ in range(size)]
    needs = smallest_needs(Needs(facts, NO_KV), Split.PIPELINE, free)
    assert needs is not None
    missing = sum(max(0, need - room) for need, room in zip(needs, free, strict=True))
    best = 10**9
    for cuts in itertools.combinations(range(1, len(layers)), size - 1):
        spans = list(itertools.pairwise((0, *cuts, len(layers))))[::-1]
        wanted = [facts.shared_bytes + sum(layers[first:last]) for first, last in spans]
        best = min(best, sum(max(0, need - room) for need, room in zip(wanted, free, strict=True)))
    assert missing == best


def test_a_near_miss_is_looked_for_in_a_limited_number_of_steps() -> None:
    """Nine of ten Macs that fit in no order, though they have the memory together."""
    facts = ModelFacts("/m", layer_bytes=(7,) * 5 + (6,) * 5)
    macs = [Mac(f"m{i}", f"10.0.0.{i}", 8, models=(facts,)) for i in range(10)]
    fleet, request = Fleet(macs), Request(path="/m", memory=NO_KV)
    cohort = Cohort(Needs(facts, NO_KV), ("", ""), fleet.macs)
    budget = StepBudget(40_000)
    way = Way(fleet, request, cohort, Transport.RING, Split.PIPELINE, HopObstacles(fleet, Transport.RING), budget)
    assert cheapest_set(way, macs, 9) is None and budget.left == 36_000
    easy = [replace(mac, free_bytes=100) for mac in macs]
    assert cheapest_set(way, easy, 2) and 35_000 < budget.left < 36_000, "only what was taken is spent"


def test_near_misses_are_looked_for_among_the_largest_macs_and_those_cabled_to_them() -> None:
    names = [f"m{number:02d}" for number in range(20)]
    ranked = [Mac(name, None, 100 - number) for number, name in enumerate(names)]

    def pool(*pairs: tuple[int, int]) -> list[str]:
        cables = [Cable(f"{a}-{b}", End(names[a]), End(names[b])) for a, b in pairs]
        return [mac.name for mac in _pool(Fleet(ranked, cables), ranked, ())]

    assert pool() == names[:10]
    # The fifth is the last of those whose cables count.
    assert pool((0, 19), (4, 18), (5, 17)) == [*names[:5], "m19", "m18", *names[5:8]]
    assert pool(*((1, other) for other in range(10, 20))) == [*names[:5], *names[10:15]]
