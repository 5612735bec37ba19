"""Buckets of rates, so that measurement noise does not decide between two placements.

Two measurements of the same value are never exactly equal. Therefore the score compares buckets of rates; otherwise the first
measured part would decide every comparison, and later parts of the score would never count. Fixed edges could separate two
rates that are close to each other. So the edges are computed from the rates of the fleet: a bucket begins where two neighboring
rates are far apart.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

LINK_STEP = 1.125
"""Rates of links that differ by less than this factor count as equal."""
MEMORY_STEP = 1.1
"""Smaller than the difference between the memory bandwidths of different chips in their data sheets."""


class Buckets:
    """Buckets of the given rates. ``step``: neighbors that differ by this factor or more are in different buckets.

    A bucket spans at most the square of ``step``. If many close rates form a longer chain, it is divided at its widest gap.
    """

    def __init__(self, rates: Iterable[int], step: float) -> None:
        self._known: dict[int, int] = {}
        chain = sorted({rate for rate in rates if rate > 0})
        self._edges = sorted(_edges(chain, step))

    @property
    def top(self) -> int:
        """The highest bucket; 0 if no rate is known."""
        return self._edges[-1] if self._edges else 0

    def of(self, rate: int) -> int:
        """The lower edge of a rate's bucket. 0 for an unknown rate; a rate below all others is in a bucket of its own."""
        found = self._known.get(rate)
        if found is None:
            position = bisect_right(self._edges, rate)
            found = self._known[rate] = self._edges[position - 1] if position else max(0, rate)
        return found


def _edges(chain: Sequence[int], step: float) -> Iterator[int]:
    """The lowest rate of each bucket. ``chain``: rates in ascending order."""
    gaps = [high / low for low, high in pairwise(chain)]
    below, above, whole = _widest(gaps)
    # First and last rate of a part, and its widest gap; -1 if it has none.
    left = [(0, len(chain) - 1, whole)] if chain else []
    while left:
        first, last, widest = left.pop()
        if widest < 0 or (gaps[widest] < step and chain[last] / chain[first] <= step * step):
            yield chain[first]
        else:
            left += [(first, widest, below[widest]), (widest + 1, last, above[widest])]


def _widest(gaps: Sequence[float]) -> tuple[list[int], list[int], int]:
    """A Cartesian tree of gaps, built in linear time, because thousands of cables have thousands of measured rates.

    For each gap, its left and right child: the widest gap below it and above it that no wider gap separates from it; -1 if
    there is none. Also the root, the widest gap of all. Of equal gaps the lowest counts as wider, so that equal inputs give
    equal buckets.
    """
    below, above = [-1] * len(gaps), [-1] * len(gaps)
    path: list[int] = []
    for at, gap in enumerate(gaps):
        last = -1
        while path and gaps[path[-1]] < gap:
            last = path.pop()
        below[at] = last
        if path:
            above[path[-1]] = at
        path.append(at)
    return below, above, path[0] if path else -1
