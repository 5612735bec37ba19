"""Buckets of rates, so that noise does not decide between two placements.

Two measurements of the same thing never agree. The score therefore compares the bucket that a rate falls into; otherwise the
first measured part would decide every comparison, and no later part of the score ever would. Buckets with fixed edges would
separate two rates that happen to lie on both sides of one; these are made of the rates that a fleet has, and begin where two
neighbors are far apart.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

LINK_STEP = 1.125
"""Rates of links that differ by less are equal."""
MEMORY_STEP = 1.1
"""Data sheets of different chips state memory bandwidths that are further apart."""


class Buckets:
    """Buckets of the given rates. ``step``: neighbors that differ by this factor or more are in different buckets.

    A bucket spans at most the square of ``step``: one in which many rates form a chain is divided where it is thinnest.
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
    """A tree of gaps (Cartesian), which takes time in proportion to them: thousands of cables have as many measured rates.

    By gap the widest of those below it, and of those above it, that no wider one separates from it; and the widest of all; -1
    for none. Of equal gaps the lowest counts as wider, so that equal inputs give equal buckets.
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
