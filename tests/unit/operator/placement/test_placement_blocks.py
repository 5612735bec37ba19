"""The blocks of a graph, and what a fleet that falls into them costs."""

import random
from itertools import combinations, pairwise, permutations

import pytest
from thunderfleet_crds.vocabulary import PlacementPolicy
from thunderfleet_operator.placement import Cable, Dials, End, Fleet, Mac, MemoryRequest, ModelFacts, Request, TensorFacts, plan
from thunderfleet_operator.placement.inputs.blocks import blocks, short_blocks

NO_KV = MemoryRequest(1, 1, 0, 0)
GIB = 2**30


def graph(seed: int) -> dict[str, set[str]]:
    dice = random.Random(seed)
    names = "abcdefghij"[: dice.randint(2, 10)]
    adjacent: dict[str, set[str]] = {name: set() for name in names}
    for one, other in combinations(names, 2):
        if dice.random() < 0.3:
            adjacent[one].add(other)
            adjacent[other].add(one)
    return adjacent


def connected(adjacent: dict[str, set[str]], without: str, one: str, other: str) -> bool:
    found = [one]
    for node in found:
        found += [peer for peer in adjacent[node] if peer != without and peer not in found]
    return other in found


@pytest.mark.parametrize("seed", range(60))
def test_two_macs_are_in_one_block_if_no_third_separates_them(seed: int) -> None:
    adjacent = graph(seed)
    found = blocks(adjacent)
    assert all(len(block) == len(set(block)) >= 2 for block in found)
    assert all(len(set(one) & set(other)) <= 1 for one, other in combinations(found, 2))
    for one, other in combinations(adjacent, 2):
        separating = [third for third in adjacent if third not in (one, other) and not connected(adjacent, third, one, other)]
        joined = connected(adjacent, "", one, other) and (other in adjacent[one] or not separating)
        assert any(one in block and other in block for block in found) is joined, (one, other)


def test_a_long_line_is_no_deep_recursion() -> None:
    names = [f"{number:05d}" for number in range(5000)]
    adjacent = {name: {peer for peer in names[max(0, i - 1) : i + 2] if peer != name} for i, name in enumerate(names)}
    assert sorted(tuple(sorted(block)) for block in blocks(adjacent)) == list(pairwise(names))


def rings(adjacent: dict[str, set[str]], most: int) -> set[frozenset[str]]:
    """All sets of at most so many Macs that a ring joins; two Macs with a hop are one."""
    found = set()
    for size in range(2, most + 1):
        for first, *others in combinations(adjacent, size):
            for order in permutations(others):
                if all(other in adjacent[one] for one, other in pairwise((first, *order, first))):
                    found.add(frozenset((first, *others)))
                    break
    return found


def circle(count: int, size: int, more: int = 0) -> dict[str, set[str]]:
    """Meshes of ``size`` Macs in a circle, each of which shares a Mac with the next. ``more``: other hops, at random."""
    names = [f"{number:04d}" for number in range(count * (size - 1))]
    adjacent: dict[str, set[str]] = {name: set() for name in names}
    pairs = [pair for i in range(0, len(names), size - 1) for pair in combinations((names + names[:1])[i : i + size], 2)]
    dice = random.Random(more)
    for one, other in (*pairs, *(dice.sample(names, 2) for _ in range(more))):
        adjacent[one].add(other)
        adjacent[other].add(one)
    return adjacent


@pytest.mark.parametrize("seed", range(40))
def test_every_short_ring_is_in_one_part(seed: int) -> None:
    dice = random.Random(seed)
    adjacent = graph(seed) if seed % 2 else circle(dice.randint(3, 8), dice.randint(2, 3), dice.randint(0, 1))
    for most in (2, 3, 4, 5):
        parts = short_blocks(adjacent, most)
        assert all(any(ring <= set(part) for part in parts) for ring in rings(adjacent, most))
        mixed = {
            name: dice.sample(sorted(adjacent[name]), len(adjacent[name])) for name in dice.sample([*adjacent], len(adjacent))
        }
        assert {frozenset(part) for part in short_blocks(mixed, most)} == {frozenset(part) for part in parts}


def test_meshes_in_a_circle_are_parts_unless_a_ring_goes_around_all_of_them() -> None:
    found = short_blocks(circle(100, 4), 64)
    assert len(found) == 100 and all(len(part) == 4 for part in found)
    assert [len(part) for part in short_blocks(circle(60, 4), 64)] == [180]
    across = circle(300, 4)
    across["0000"].add("0090")
    across["0090"].add("0000")
    assert sorted(map(len, short_blocks(across, 64))) == [4] * 270 + [91], "a hop across 30 of them makes a short circle"


def quads(count: int, reach: int) -> Fleet:
    """Macs in fours with cables among them; each has reached its four, and the first Mac of the next ``reach`` fours."""
    facts = ModelFacts("/m", bytes=30 * GIB, tensor=(TensorFacts(1, (30 * GIB,)),), layer_bytes=(GIB // 2,) * 60)
    names = [f"mac-{i:05d}" for i in range(count)]
    macs, cables = [], []
    for i, name in enumerate(names):
        four = names[i // 4 * 4 : i // 4 * 4 + 4]
        others = [peer for peer in four if peer != name] + names[i // 4 * 4 + 4 : i // 4 * 4 + 4 + 4 * reach : 4]
        dials = Dials.of((peer, f"10.0.0.{peer}") for peer in others)
        macs.append(Mac(name, f"10.0.0.{name}", 5 * GIB, models=(facts,), backends=frozenset({"ring", "jaccl"}), dials=dials))
        for other in (peer for peer in four if peer > name):
            ends = End(name, f"169.254.0.{other}", f"to-{other}"), End(other, f"169.254.0.{name}", f"to-{name}")
            cables.append(Cable(f"{name}--{other}", *ends, 80_000, rdma_problem=None))
    return Fleet(macs, cables)


@pytest.mark.parametrize("policy", [None, *PlacementPolicy])
@pytest.mark.parametrize("reach", [0, 1])
def test_that_small_groups_have_no_room_is_proven_in_any_fleet(reach: int, policy: PlacementPolicy | None) -> None:
    found = plan(quads(1200, reach), Request(path="/m", memory=NO_KV, policy=policy), max_steps=10_000)
    assert found.proven and not hasattr(found, "ranks")


def test_a_search_at_its_limit_says_so() -> None:
    fleet = quads(1200, 2)
    request = Request(path="/m", memory=NO_KV, policy=PlacementPolicy.FEWEST)
    found = plan(fleet, request, max_steps=10_000)
    assert not found.proven
