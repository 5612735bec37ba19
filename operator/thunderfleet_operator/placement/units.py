"""Amounts as owners of Macs read them, and as far as they make a difference.

No two measurements of one thing agree, so figures are compared by the step that they are on: else noise would decide, and
nothing that comes after it in the score ever would.
"""

from bisect import bisect_right
from functools import lru_cache

GIB = 2**30
_EIGHTHS = (
    *(1000, 1120, 1250, 1400, 1600, 1800, 2000, 2240, 2500, 2800),
    *(3150, 3550, 4000, 4500, 5000, 5600, 6300, 7100, 8000, 9000),
)
_QUARTERS = _EIGHTHS[::2]


def _step(value: int, steps: tuple[int, ...]) -> int:
    if value <= 0:
        return 0
    scale = int(10 ** (len(str(value)) - 1))
    return steps[bisect_right(steps, value * 1000 // scale) - 1] * scale // 1000


@lru_cache(maxsize=4096)
def steady(mbps: int) -> int:
    """A rate of a link, down to the next of steps of an eighth (of those are the speeds that cables and switches negotiate)."""
    return _step(mbps, _EIGHTHS)


@lru_cache(maxsize=4096)
def coarse(megabytes: int) -> int:
    """A rate of memory, down to the next of steps of a quarter: Macs of one chip are alike, warm or not."""
    return _step(megabytes, _QUARTERS)


def gib(size: int) -> str:
    """Bytes as owners of Macs read them."""
    if size >= 10 * GIB:
        return f"{size / GIB:.0f} GiB"
    if size >= GIB // 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / 2**20:.1f} MiB"


def gbits(mbps: int) -> str:
    """Mbit/s as the cable's box says it."""
    return f"{mbps / 1000:g} Gb/s"


def gigabytes(megabytes: int) -> str:
    """MB/s as a chip's data sheet says it."""
    return f"{megabytes / 1000:.0f} GB/s"
