"""Computes throughput and round trip from arrival times. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The part of the time that is not counted: the start, and the burst that a traffic shaper allows.
WARM = 0.3
# The rate may exceed the average since the start by this factor.
AT_ONCE = 1.5
# A shorter time would only measure how fast buffers are emptied.
SHORTEST_SECONDS = 0.001

Arrivals = list[tuple[float, int]]
"""(monotonic seconds, bytes) of every read of one stream."""


def rate_mbps(streams: Sequence[Arrivals], asked: float | None = None) -> int | None:
    """Mb/s of what arrived between the end of the warm-up and the end of the first stream.

    0 if nothing arrived; None if everything arrived at once, which gives no rate. ``asked`` is when the start was requested: a
    receiver that starts late empties full buffers faster than any cable, so the rate is limited to AT_ONCE times the rate since
    then.
    """
    used = [arrivals for arrivals in streams if arrivals]
    if not used:
        return 0
    started = min(arrivals[0][0] for arrivals in used)
    ended = min(arrivals[-1][0] for arrivals in used)
    times = [(at, count) for arrivals in used for at, count in arrivals if at <= ended]
    since = started + WARM * (ended - started)
    # What arrives in the first moment was sent before it.
    since = next((at for at, count in sorted(times) if count and at >= since), since)
    counted = sum(count for at, count in times if at > since)
    if ended - since < SHORTEST_SECONDS:
        return None if any(count for _, count in times) else 0
    if not counted:
        return 0
    rate = counted / (ended - since)
    if asked is not None and ended > asked:
        rate = min(rate, AT_ONCE * sum(count for _, count in times) / (ended - asked))
    # Zero is reserved for "nothing arrived".
    return max(1, round(rate * 8 / 1e6))


@dataclass(frozen=True)
class Trips:
    """Microseconds: the median round trip, and the mean absolute difference of successive ones."""

    rtt: int
    jitter: int


def trips(seconds: Sequence[float]) -> Trips:
    """Summarizes at least two echoes, in seconds. Raises ValueError."""
    if len(seconds) < 2:
        raise ValueError(f"received {len(seconds)} echoes; at least 2 are required")
    steps = [abs(one - other) for one, other in itertools.pairwise(seconds)]
    return Trips(max(1, round(statistics.median(seconds) * 1e6)), round(statistics.fmean(steps) * 1e6))
