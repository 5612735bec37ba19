"""Decides when a warm-up ends, and which runs are counted. Pure: the work and the clock are arguments.

A GPU takes from milliseconds to seconds to reach its top clock, and no fixed time fits all. So the warm-up ends when the rate
is steady, or at a limit; the result names it.
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
    """The best rate of the runs, in units of ``work`` per second; whether it was steady; the number of runs."""

    rate: float
    steady: bool
    runs: int


def is_steady(rates: list[float], rounds: int = ROUNDS, spread: float = SPREAD) -> bool:
    """Whether the last ``rounds`` rates differ by at most the share ``spread``."""
    last = rates[-rounds:]
    return len(last) == rounds and max(last) - min(last) <= spread * max(last)


def best(
    work: Callable[[], float],
    clock: Callable[[], float],
    warm_seconds: float,
    *,
    best_of: int = BEST_OF,
    until: float = math.inf,
    progress: Callable[[float, bool], None] = lambda rate, steady: None,
) -> Best:
    """The best rate of ``work``, which returns how much it did.

    It runs until its rate is steady or for ``warm_seconds``, then ``best_of`` times more, but not after ``until`` seconds in
    all. The best of these and of the steady rounds counts, because other load can only slow a run down. ``progress`` receives
    the rate of every run.
    """
    rates: list[float] = []

    def once() -> float:
        started = clock()
        amount = work()
        rate = amount / max(clock() - started, 1e-9)
        rates.append(rate)
        return rate

    started, settled = clock(), False
    while not settled and clock() - started < warm_seconds:
        rate = once()
        settled = is_steady(rates)
        progress(rate, settled)
    warm = len(rates)
    runs = 0
    # If the rate never was steady, all of the time is used, because one of many runs may be undisturbed.
    while runs == 0 or (clock() - started <= until and (runs < best_of or (not settled and until < math.inf))):
        progress(once(), settled)
        runs += 1
    counted = rates[max(0, warm - ROUNDS) :] if settled else rates[warm // 2 :]
    return Best(max(counted), settled, len(rates))
