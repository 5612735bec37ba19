"""Buckets of rates, so that noise does not decide between two placements.

Two measurements of the same thing never agree. The score therefore compares the bucket that a rate falls into; otherwise the
first measured part would decide every comparison, and no later part of the score ever would. Buckets with fixed edges would
separate two rates that happen to lie on both sides of one; these are made of the rates that a fleet has, and begin where two
neighbors are far apart.
"""

from bisect import bisect_right
from collections.abc import Iterable
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
        self._edges: list[int] = []
        self._known: dict[int, int] = {}
        left = [sorted({rate for rate in rates if rate > 0})]
        while left:
            chain = left.pop()
            gaps = [(high / low, low) for low, high in pairwise(chain)]
            # Of equal gaps the lowest, so that equal inputs give equal buckets.
            widest, last = max(gaps, key=lambda gap: (gap[0], -gap[1]), default=(1.0, 0))
            if widest < step and (not chain or chain[-1] / chain[0] <= step * step):
                self._edges += chain[:1]
                continue
            middle = chain.index(last) + 1
            left += [chain[:middle], chain[middle:]]
        self._edges.sort()

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
