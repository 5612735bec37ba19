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
_BANDWIDTH_EDGES = _SPEED_STEPS[1::2]
"""A quarter apart; data sheets state bandwidths between them."""
_BANDWIDTHS = (*_SPEED_STEPS[::2], 10_000)
"""The middle of each bucket between the edges."""


def _scale(value: int) -> int:
    """The power of ten with ``value`` in [scale, 10 * scale)."""
    return int(10 ** (len(str(value)) - 1))


@lru_cache(maxsize=4096)
def speed_bucket(mbps: int) -> int:
    """The bucket of a link's rate: its lower edge in Mbit/s. 0 for unknown rates."""
    if mbps <= 0:
        return 0
    scale = _scale(mbps)
    return _SPEED_STEPS[bisect_right(_SPEED_STEPS, mbps * 1000 // scale) - 1] * scale // 1000


@lru_cache(maxsize=4096)
def bandwidth_bucket(megabytes: int) -> int:
    """The bucket of a memory bandwidth: its middle in MB/s. 0 for unknown bandwidths.

    A data sheet's figure is near the middle, so Macs with the same chip share a bucket whether cold or warm.
    """
    if megabytes <= 0:
        return 0
    scale = _scale(megabytes)
    return _BANDWIDTHS[bisect_right(_BANDWIDTH_EDGES, megabytes * 1000 // scale)] * scale // 1000
