"""The choice by predicted speed against brute force, over random fleets, transports and splits."""

import sys
from collections import Counter
from collections.abc import Iterable

import pytest
from thunderfleet_operator.placement import Placement, plan

from tests.unit.operator.placement.policy.policies import ALIKE, procedure, rated

SEEDS = range(70)
ALL = range(10_000)
HARD = (264, 301, 330, 712, 900, 997, 1017, 1065, 1376, 2782, 3462, 3503, 4385)
"""Where pipelines of the same Macs differ in speed by the order of ranks, the score prefers a slower one of those alike, or
memory bandwidths are close."""


def outcome(seed: int) -> str:
    """How the planner's choice compares with that by brute force."""
    fleet, facts, request = rated(seed)
    found, best = plan(fleet, request), procedure(fleet, facts, request)
    assert isinstance(found, Placement) == (best is not None)
    if not isinstance(found, Placement) or best is None:
        return "none"
    assert found.predicted is not None and found.proven
    size, way = best
    if found.predicted.decode < way.speed / ALIKE:
        return "slower"
    if len(found.nodes) != size or found.split is not way.split:
        return "other"
    return "same"


def assert_same(seeds: Iterable[int]) -> Counter[str]:
    found = {seed: outcome(seed) for seed in seeds}
    different = {seed: kind for seed, kind in found.items() if kind not in ("same", "none")}
    assert not different
    return Counter(found.values())


def test_the_choice_is_that_of_the_procedure_over_all_placements() -> None:
    found = assert_same([*SEEDS, *HARD])
    assert found["same"] > 40 and found["none"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("part", range(100))
def test_the_choice_is_that_of_the_procedure_on_ten_thousand_fleets(part: int) -> None:
    assert_same(ALL[part::100])


if __name__ == "__main__":
    print(Counter(map(outcome, range(int(sys.argv[1]), int(sys.argv[2])))))
