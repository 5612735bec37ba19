"""Macs that may form a group, numbered by free memory, absent files and name, with the hops between them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

from thunderfleet_operator.placement.graph.hops import Hop
from thunderfleet_operator.placement.inputs.fleet import Mac
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.rating.buckets import Buckets

Key = tuple[int, int, int, int, int]
"""Shared, negated speed, negated bandwidth, spread, room: the parts of a score that differ within one stage and size."""
Tie = tuple[tuple[int, int, str], ...]
"""Free memory, bytes of the model that are absent, and name of each Mac: decides between equal keys."""
Roots = tuple[list[int], list[tuple[Key, int]]]
"""By position, how much of a model a Mac can take; the roots of sets with their bounds, the most promising first."""
MOST_NEEDS = 64
"""Sizes and needs of which a graph remembers roots."""


class HopGraph:
    """A graph of Macs and hops. Macs are known by position in this order."""

    def __init__(
        self,
        macs: Sequence[Mac],
        hops: Callable[[str], Mapping[str, Hop]],
        speeds: Buckets,
        bandwidths: Buckets,
        directed: bool = False,
    ) -> None:
        """``hops``: by name of a Mac; each has a counterpart in the other direction.

        ``speeds``: of all hops of the fleet. ``bandwidths``: of the memory of all its Macs. ``directed``: the counterpart of a
        hop may be slower.
        """
        self.macs = sorted(macs, key=lambda mac: (mac.free_bytes, mac.absent_bytes, mac.name))
        self.free = [mac.free_bytes for mac in self.macs]
        self.used = [int(mac.in_use) for mac in self.macs]
        self.bandwidths = [bandwidths.of(mac.memory_bandwidth) for mac in self.macs]
        """Buckets of memory bandwidth."""
        self.bucket = speeds.of
        """The bucket of a hop's speed."""
        self.top_speed = speeds.top
        self.directed = directed
        self._most = [0, *accumulate(reversed(self.free))]
        self._least = [0, *accumulate(self.free)]
        self._index = {mac.name: position for position, mac in enumerate(self.macs)}
        self._hops_of = hops
        self._hops: list[dict[int, Hop] | None] = [None] * len(self.macs)
        self._speeds: dict[int, frozenset[int]] = {}
        self._roots: dict[tuple[int, Bounds], Roots] = {}
        self._holds: dict[tuple[int, Bounds], bool] = {}
        self._slowest: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.macs)

    @cached_property
    def first(self) -> Tie:
        """Sort key of graphs of several Macs."""
        return self.tie((0, 1, len(self) - 1))

    def positions(self, names: Sequence[str]) -> tuple[int, ...] | None:
        """Positions of Macs by name; None if one is not in this graph."""
        found = [self._index.get(name) for name in names]
        return tuple(i for i in found if i is not None) if None not in found else None

    def members(self, positions: Iterable[int]) -> list[Mac]:
        """The Macs at these positions."""
        return [self.macs[i] for i in positions]

    def hops(self, i: int) -> dict[int, Hop]:
        """Hops from a Mac, in the order of positions."""
        found = self._hops[i]
        if found is None:
            index = self._index
            known = {index[peer]: hop for peer, hop in self._hops_of(self.macs[i].name).items() if peer in index}
            self._hops[i] = found = {j: known[j] for j in sorted(known)}
        return found

    def speeds(self, i: int) -> frozenset[int]:
        """The speed buckets of a Mac's hops."""
        found = self._speeds.get(i)
        if found is None:
            self._speeds[i] = found = frozenset([self.bucket(hop.speed_mbps) for hop in self.hops(i).values()])
        return found

    def speed(self, i: int, count: int) -> int:
        """Speed bucket of the slowest of a Mac's ``count`` fastest hops; -1 if it has fewer."""
        found = self._slowest.get((i, count))
        if found is None:
            speeds = sorted([hop.speed_mbps for hop in self.hops(i).values()], reverse=True)
            self._slowest[i, count] = found = self.bucket(speeds[count - 1]) if len(speeds) >= count else -1
        return found

    def key(self, members: Sequence[int], shared: int, slowest_mbps: int) -> Key:
        """The key of a set of Macs whose hops are known."""
        free = [self.free[i] for i in members]
        bandwidth = min(self.bandwidths[i] for i in members)
        return (shared, -self.bucket(slowest_mbps), -bandwidth, max(free) - min(free), sum(free))

    @cached_property
    def _ties(self) -> list[tuple[int, int, str]]:
        return [(mac.free_bytes, mac.absent_bytes, mac.name) for mac in self.macs]

    def tie(self, members: Iterable[int]) -> Tie:
        """Decides between equal keys."""
        ties = self._ties
        return tuple([ties[i] for i in sorted(members)])

    def span(self, first: int, last: int) -> int:
        """Sum of the free memory of the Macs at positions ``first`` to ``last`` (excluded)."""
        return self._least[last] - self._least[first]

    def on(self, hops: Callable[[str], Mapping[str, Hop]]) -> "HopGraph":
        """This graph on a fleet in which its Macs and their cables are the same. ``hops``: of that fleet."""
        self._hops_of = hops
        return self

    def best_root(self, size: int, need: Bounds) -> tuple[Key, int] | None:
        """The most promising root of ``roots`` with its bound; None if they have not been found yet, or if there is none."""
        found = self._roots.get((size, need))
        return found[1][0] if found is not None and found[1] else None

    def roots(self, size: int, need: Bounds, find: Callable[[], Roots]) -> Roots:
        """What ``find`` returns for sets of ``size`` Macs with this need, as it was found before."""
        found = self._roots.get((size, need))
        if found is None:
            if len(self._roots) >= MOST_NEEDS:
                self._roots.clear()
            found = self._roots[size, need] = find()
        return found

    def may_hold(self, size: int, need: Bounds) -> bool:
        """Whether any ``size`` Macs have room, regardless of hops."""
        found = self._holds.get((size, need))
        if found is None:
            if len(self._holds) >= MOST_NEEDS:
                self._holds.clear()
            found = self._holds[size, need] = self._may_hold(size, need)
        return found

    def _may_hold(self, size: int, need: Bounds) -> bool:
        if len(self) < size or self.free[-size] < need.least or self._most[size] < need.together:
            return False
        return sum(map(need.room, self.free[-size:])) >= need.wanted
