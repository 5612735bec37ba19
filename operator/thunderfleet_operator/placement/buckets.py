"""Buckets of measured rates, so that noise does not decide between two placements.

Two measurements of the same thing never agree. The score therefore compares the bucket that a rate falls into; otherwise the
first measured part would decide every comparison, and no later part of the score ever would.
"""

from bisect import bisect_right
from functools import lru_cache

_SPEED_STEPS = (
    *(1000, 1120, 1250, 1400, 1600, 1800, 2000, 2240, 2500, 2800),
    *(3150, 3550, 4000, 4500, 5000, 5600, 6300, 7100, 8000, 9000),
)
"""An eighth apart, and among them the speeds that cables and switches negotiate."""
_BANDWIDTH_STEPS = _SPEED_STEPS[::2]
"""A quarter apart."""


def _floor(value: int, steps: tuple[int, ...]) -> int:
    """The greatest step times a power of ten that does not exceed ``value``; 0 for values that are not positive."""
    if value <= 0:
        return 0
    scale = int(10 ** (len(str(value)) - 1))
    return steps[bisect_right(steps, value * 1000 // scale) - 1] * scale // 1000


@lru_cache(maxsize=4096)
def speed_bucket(mbps: int) -> int:
    """The bucket of a link's rate: its lower edge in Mbit/s."""
    return _floor(mbps, _SPEED_STEPS)


@lru_cache(maxsize=4096)
def bandwidth_bucket(megabytes: int) -> int:
    """The bucket of a memory bandwidth: its lower edge in MB/s. Macs with the same chip share a bucket, cold or warm."""
    return _floor(megabytes, _BANDWIDTH_STEPS)
