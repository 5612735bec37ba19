"""Where sets of Macs can begin: each set is found from its first Mac, the root, and the most promising roots come first.

Every part of a key only gets worse while a set grows. A root's bound is therefore the best key that any of its sets can have,
and roots whose bound cannot get on the shortlist are skipped (branch and bound).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.hop_graph import HopGraph, Key
from thunderfleet_operator.placement.search.shortlist import Shortlist

Consider = Callable[[HopGraph, tuple[int, ...], int], None]
"""Called with the Macs (in the order of the ring, or by position), and how many Macs and cables they share."""


def windows(amounts: Sequence[int], size: int) -> list[int]:
    """By position: the sum of the ``size`` amounts that end there."""
    sums = [0, *accumulate(amounts)]
    return [sums[end] - sums[max(0, end - size)] for end in range(1, len(sums))]


@dataclass(slots=True)
class SetSearch:
    """The search for sets of ``size`` Macs of one graph that can hold a model together."""

    graph: HopGraph
    size: int
    need: Bounds
    shortlist: Shortlist
    budget: StepBudget
    consider: Consider
    rooms: list[int] = field(init=False)
    """By position: how much of the model a Mac can take."""
    _windows: list[int] = field(init=False)

    def __post_init__(self) -> None:
        known: dict[int, int] = {}
        for free in self.graph.free:
            if free not in known:
                known[free] = self.need.room(free)
        self.rooms = [known[free] for free in self.graph.free]
        self._windows = windows(self.rooms, self.size - 1)

    def _highest(self, root: int) -> int:
        """The least position that the last Mac of a set with this root can have; beyond the end if no such set has room."""
        if self.size == 1:
            return root if self.rooms[root] >= self.need.wanted else len(self.graph)
        return max(root + self.size - 1, bisect_left(self._windows, self.need.wanted - self.rooms[root]))

    def _bound(self, root: int, highest: int) -> Key:
        """The best key of a set with this root whose last Mac is at ``highest`` or beyond, over the fleet's fastest hops."""
        graph, free = self.graph, self.graph.free
        room = graph.span(root, root + self.size)
        return (
            graph.used[root],
            -graph.top_speed,
            -graph.bandwidths[root],
            free[highest] - free[root],
            max(room, self.need.together),
        )

    def admits(self, root: int, bound: Key, speed: int) -> bool:
        """Whether a set with this root may get on the shortlist with hops no faster than ``speed``."""
        key = (bound[0], -speed, *bound[2:])
        return self.shortlist.admits(key, self.graph, lambda: tuple(range(root, root + self.size)))

    def roots(self, hops: int) -> Iterator[tuple[int, Key]]:
        """Roots with their bounds, the most promising first. ``hops``: how many every Mac of a set needs."""
        graph, count = self.graph, len(self.graph)
        bounds = []
        for root in range(bisect_left(graph.free, self.need.least), count - self.size + 1):
            highest = self._highest(root)
            if highest < count:
                bounds.append((self._bound(root, highest), root))
        for bound, root in sorted(bounds):
            if not self.budget.step():
                return
            # With the fleet's fastest hop the bounds are in order: no later root is better.
            if not self.admits(root, bound, graph.top_speed):
                return
            # The root's own hops are computed only when the fleet's fastest does not settle it.
            if not hops or self._admits_own_hops(root, bound, hops):
                yield root, bound

    def _admits_own_hops(self, root: int, bound: Key, hops: int) -> bool:
        speed = self.graph.speed(root, hops)
        return speed >= 0 and self.admits(root, bound, speed)
