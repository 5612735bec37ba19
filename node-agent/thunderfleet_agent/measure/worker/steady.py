"""When a warm-up has done its work, and which of some runs counts. Pure: it is given a function that runs and a clock.

A GPU takes from a moment to seconds to reach its top clock, and no fixed time fits both. So the warm-up ends when the rate has
stopped changing, or at a limit, which the answer then says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 10
SPREAD = 0.02
BEST_OF = 20


@dataclass(frozen=True)
class Best:
    """The best rate of some runs, in what ``work`` counts per second; whether the warm-up came to rest; how many runs."""

    rate: float
    steady: bool
    runs: int


def is_steady(rates: list[float], rounds: int = ROUNDS, spread: float = SPREAD) -> bool:
    """Whether the last rounds differ by no more than that share."""
    last = rates[-rounds:]
    return len(last) == rounds and max(last) - min(last) <= spread * max(last)


def best(
    work: Callable[[], float],
    clock: Callable[[], float],
    warm_seconds: float,
    *,
    best_of: int = BEST_OF,
    until: float = math.inf,
    told: Callable[[float, bool], None] = lambda rate, steady: None,
) -> Best:
    """Runs ``work`` (which does some and says how much that was) until its rate is steady or ``warm_seconds`` are over, then
    ``best_of`` times more. The best of these and of the steady rounds counts: whatever else a machine does can only slow it
    down. ``told`` hears of every run; after ``until`` seconds in all no further one begins.
    """
    rates: list[float] = []

    def once() -> float:
        begun = clock()
        amount = work()
        rate = amount / max(clock() - begun, 1e-9)
        rates.append(rate)
        return rate

    begun, settled = clock(), False
    while not settled and clock() - begun < warm_seconds:
        rate = once()
        settled = is_steady(rates)
        told(rate, settled)
    warm = len(rates)
    runs = 0
    # A machine that does not come to rest is given the time that there is: of many runs, one is undisturbed.
    while runs == 0 or (clock() - begun <= until and (runs < best_of or (not settled and until < math.inf))):
        told(once(), settled)
        runs += 1
    counted = rates[max(0, warm - ROUNDS) :] if settled else rates[warm // 2 :]
    return Best(max(counted), settled, len(rates))
