"""The choice by predicted speed against brute force, over random fleets, transports and splits."""

import sys
from collections import Counter

from thunderfleet_operator.placement import Placement, plan

from tests.unit.operator.policies import ALIKE, procedure, rated

SEEDS = range(100)
FEW = 0.02
"""Of all fleets, those where a faster pipeline may be missed: the search compares sixteen of each size, in one order each."""


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


def compared(seeds: range) -> Counter[str]:
    return Counter(map(outcome, seeds))


def test_the_choice_is_that_of_the_procedure_over_all_placements() -> None:
    found = compared(SEEDS)
    assert found["same"] > 40 and found["none"] > 10
    assert found["slower"] + found["other"] <= FEW * len(SEEDS), found


if __name__ == "__main__":
    print(compared(range(int(sys.argv[1]), int(sys.argv[2]))))
