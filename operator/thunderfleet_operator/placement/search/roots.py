"""Where sets of Macs can begin: each set is found from its first Mac, the root, and the most promising roots come first.

Every part of a key only gets worse while a set grows. A root's bound is therefore the best key that any of its sets can have,
and roots whose bound cannot get on the shortlist are skipped (branch and bound).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub

from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.hop_graph import HopGraph, Key, Roots
from thunderfleet_operator.placement.search.shortlist import Shortlist

Consider = Callable[[HopGraph, tuple[int, ...], int], None]
"""Called with the Macs (in the order of the ring, or by position), and how many Macs and cables they share."""


def windows(amounts: Sequence[int], size: int) -> list[int]:
    """By position: the sum of the ``size`` amounts that end there."""
    sums = [0, *accumulate(amounts)]
    return [*sums[1 : size + 1], *map(sub, sums[size + 1 :], sums[1:])]


def misses(graph: HopGraph, size: int, need: Bounds, shortlist: Shortlist, budget: StepBudget) -> bool:
    """Whether it is known that none of a graph's sets gets on the shortlist. If so, takes the step of a search that finds it.

    Most graphs of a large fleet are like this, and were searched before for the same need.
    """
    best = graph.best_root(size, need) if shortlist.full else None
    if best is None:
        return False
    bound, root = best
    return not shortlist.admits(bound, graph, lambda: tuple(range(root, root + size))) and budget.step()


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
    _roots: list[tuple[Key, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.rooms, self._roots = self.graph.roots(self.size, self.need, self._found)

    def _found(self) -> Roots:
        known: dict[int, int] = {}
        for free in self.graph.free:
            if free not in known:
                known[free] = self.need.room(free)
        self.rooms = [known[free] for free in self.graph.free]
        return self.rooms, sorted(self._bounds())

    def _bounds(self) -> Iterator[tuple[Key, int]]:
        """By root from which a set has room: the best key of a set with this root, over the fleet's fastest hops."""
        graph, free, size, rooms, together = self.graph, self.graph.free, self.size, self.rooms, self.need.together
        sums, least, count, speed = windows(rooms, size - 1), dict[int, int](), len(graph), -graph.top_speed
        for root in range(bisect_left(free, self.need.least), count - size + 1):
            room = rooms[root]
            if room not in least:
                least[room] = bisect_left(sums, self.need.wanted - room)
            # The least position that the set's last Mac can have. A single Mac has all the room.
            highest = max(root + size - 1, least[room])
            if highest < count:
                spread, whole = free[highest] - free[root], graph.span(root, root + size)
                yield (graph.used[root], speed, -graph.bandwidths[root], spread, max(whole, together)), root

    def admits(self, root: int, bound: Key, speed: int) -> bool:
        """Whether a set with this root may get on the shortlist with hops no faster than ``speed``."""
        key = (bound[0], -speed, *bound[2:])
        return self.shortlist.admits(key, self.graph, lambda: tuple(range(root, root + self.size)))

    def roots(self, hops: int) -> Iterator[tuple[int, Key]]:
        """Roots with their bounds, the most promising first. ``hops``: how many every Mac of a set needs."""
        graph = self.graph
        for bound, root in self._roots:
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
