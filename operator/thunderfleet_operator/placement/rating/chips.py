"""Rates of chips, by name: used until a Mac has been benchmarked.

Memory bandwidths are those of Apple's technical specifications of the Macs with these chips (MacBook Pro, Mac mini, Mac
Studio). Chips that are sold with two bandwidths have one for each number of GPU cores. GFLOPS per core are 128 lanes with a
multiplication and an addition each, at the clock of the generation's GPU.
"""

from functools import lru_cache
from typing import NamedTuple


class Chip(NamedTuple):
    """Memory bandwidth in MB/s, and GFLOPS of all GPU cores."""

    bandwidth: int
    gigaflops: int


_BANDWIDTHS: dict[str, tuple[tuple[int, int], ...]] = {
    "M1": ((0, 68_000),),
    "M1 Pro": ((0, 200_000),),
    "M1 Max": ((0, 400_000),),
    "M1 Ultra": ((0, 800_000),),
    "M2": ((0, 100_000),),
    "M2 Pro": ((0, 200_000),),
    "M2 Max": ((0, 400_000),),
    "M2 Ultra": ((0, 800_000),),
    "M3": ((0, 100_000),),
    "M3 Pro": ((0, 150_000),),
    "M3 Max": ((0, 300_000), (40, 400_000)),
    "M3 Ultra": ((0, 819_000),),
    "M4": ((0, 120_000),),
    "M4 Pro": ((0, 273_000),),
    "M4 Max": ((0, 410_000), (40, 546_000)),
    "M5": ((0, 153_000),),
    "M5 Pro": ((0, 307_000),),
    "M5 Max": ((0, 460_000), (40, 614_000)),
}
"""By chip: from a number of GPU cores on, MB/s."""
_CORES = {"": 10, "Pro": 18, "Max": 40, "Ultra": 80}
"""GPU cores by variant, where the number is not known."""
_GFLOPS_PER_CORE = {"M1": 327, "M2": 358, "M3": 358, "M4": 404, "M5": 415}


@lru_cache(maxsize=256)
def chip(name: str, gpu_cores: int = 0) -> Chip | None:
    """A chip by its name, such as ``Apple M3 Ultra``; None if it is not in the table."""
    short = name.removeprefix("Apple ").strip()
    rows = _BANDWIDTHS.get(short)
    if rows is None:
        return None
    generation, _, variant = short.partition(" ")
    cores = gpu_cores or _CORES[variant]
    bandwidth = max(rate for least, rate in rows if cores >= least)
    return Chip(bandwidth, cores * _GFLOPS_PER_CORE[generation])


def generation(name: str) -> str:
    """The generation of a chip, such as ``M3``; empty if the chip is not in the table."""
    short = name.removeprefix("Apple ").strip()
    return short.partition(" ")[0] if short in _BANDWIDTHS else ""
