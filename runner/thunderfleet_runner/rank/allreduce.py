"""Measures the group's all-reduce: small arrays for the latency, large ones for the bandwidth.

Every rank runs the same fixed sequence: a rank that stopped earlier would leave the others blocked in a collective.
"""

import statistics
import time
from typing import Any

import mlx.core as mx

from thunderfleet_runner import protocol
from thunderfleet_runner.rank.step_clock import StepClock

SMALL_BYTES = 4096
SMALL_TIMES = 30
LARGE_BYTES = 4 << 20
LARGE_TIMES = 4


def measure(group: Any, clock: StepClock) -> protocol.Measured:
    """Collective. Without a group both figures are 0."""
    if group is None:
        return protocol.Measured(latency_microseconds=0, megabytes_per_second=0.0)
    # The first all-reduce of a size includes its buffers' allocation.
    small = _times(group, clock, SMALL_BYTES, SMALL_TIMES + 1)[1:]
    large = _times(group, clock, LARGE_BYTES, LARGE_TIMES + 1)[1:]
    return protocol.Measured(
        latency_microseconds=round(statistics.median(small) * 1e6),
        megabytes_per_second=round(LARGE_BYTES / statistics.median(large) / 1e6, 3),
    )


def _times(group: Any, clock: StepClock, size: int, times: int) -> list[float]:
    array = mx.ones((size // 4,), mx.float32)
    mx.eval(array)
    found = []
    for _ in range(times):
        started = time.perf_counter()
        mx.eval(mx.distributed.all_sum(array, group=group, stream=mx.cpu))
        found.append(time.perf_counter() - started)
        clock.step()
    return found
