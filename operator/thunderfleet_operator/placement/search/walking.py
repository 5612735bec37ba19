"""Rings walked hop by hop, for Macs with few hops each."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from thunderfleet_operator.placement.search.cycles import same_cable
from thunderfleet_operator.placement.search.roots import SetSearch, windows

MEMBERS_A_STEP = 8
"""Summing up the free memory of this many Macs takes about as long as a step."""
HOPS_A_STEP = 4
"""Preparing this many hops takes about as long as a step."""


class _Path(NamedTuple):
    """A walk from the root, with sums and limits over its Macs."""

    order: tuple[int, ...]
    mask: int
    """Bits of its Macs."""
    shared: int
    speed: int
    bandwidth: int
    free: int
    room: int
    highest: int
    """Most free memory of one Mac that any continuation has at least."""


class _Onward(NamedTuple):
    """A hop onward."""

    new: int
    bit: int
    away: int
    """The least number of hops from there to the root."""
    shared: int
    """By the hop and the Mac that it leads to."""
    speed: int


def walk(search: SetSearch, root: int, members: Sequence[int], back: Mapping[int, int]) -> None:
    """Considers all rings over the root and some of ``members``, which are sorted and come after it.

    ``back``: by Mac, the least number of hops from it to the root.
    """
    graph, rooms, size = search.graph, search.rooms, search.size
    search.budget.spend(len(members) // MEMBERS_A_STEP)
    highest = bisect_left(windows([rooms[i] for i in members], size - 1), search.need.wanted - rooms[root])
    if highest >= len(members):
        return
    ceiling = graph.free[members[max(highest, size - 2)]]
    start = _Path((root,), 1, graph.used[root], graph.top_speed, graph.bandwidths[root], graph.free[root], rooms[root], ceiling)
    _RingWalk(search, root, members, back).extend(start)


class _RingWalk:
    """Depth-first. Of two walks over the same Macs to the same end, only the better is continued (dynamic programming)."""

    def __init__(self, search: SetSearch, root: int, members: Sequence[int], back: Mapping[int, int]) -> None:
        self._search = search
        self._root = root
        self._back = back
        self._bits: dict[int, int] = {}
        """Bits of the Macs that the walk has come near. Not of all members, because comparing thousands of bits takes long."""
        self._most_room = [0]
        """By number of Macs: the most room that they have."""
        for i in reversed(members[1 - search.size :]):
            self._most_room.append(self._most_room[-1] + search.rooms[i])
        self._onward: dict[int, list[_Onward]] = {}
        self._visited: dict[tuple[int, int], tuple[int, int]] = {}

    def extend(self, path: _Path) -> None:
        """Considers all rings that begin with this path."""
        search, rooms = self._search, self._search.rooms
        left = search.size - len(path.order)
        if not left:
            self._close(path)
            return
        order, mask, shared, speed, _, _, room, _ = path
        last, visited, step = order[-1], self._visited, search.budget.step
        missing = search.need.wanted - room - self._most_room[left - 1]
        for onward in self._onward.get(last) or self._hops_from(last):
            new, bit, away, more, rate = onward
            if mask & bit or away > left:
                continue
            if not step():
                return
            if rooms[new] < missing:
                continue
            state, cost = (mask | bit, new), (shared + more, -rate if rate < speed else -speed)
            before = visited.get(state)
            if before is not None and before <= cost:
                continue
            longer = self._longer(path, onward, cost)
            if self._admits(longer):
                visited[state] = cost
                self.extend(longer)

    def _hops_from(self, last: int) -> list[_Onward]:
        graph, back, bits, root = self._search.graph, self._back, self._bits, self._root
        hops = graph.hops(last)
        self._search.budget.spend(len(hops) // HOPS_A_STEP)
        found = []
        for new, hop in hops.items():
            if new in back and new != root:
                bit = bits.setdefault(new, 2 << len(bits))
                found.append(_Onward(new, bit, back[new], hop.shared + graph.used[new], graph.bucket(hop.speed_mbps)))
        self._onward[last] = found
        return found

    def _longer(self, path: _Path, onward: _Onward, cost: tuple[int, int]) -> _Path:
        order, mask, _, _, bandwidth, free, room, highest = path
        graph, new = self._search.graph, onward.new
        slowest, own = graph.bandwidths[new], graph.free[new]
        return _Path(
            (*order, new),
            mask | onward.bit,
            cost[0],
            -cost[1],
            slowest if slowest < bandwidth else bandwidth,
            free + own,
            room + self._search.rooms[new],
            own if own > highest else highest,
        )

    def _admits(self, path: _Path) -> bool:
        search, graph, root = self._search, self._search.graph, self._root
        if not search.shortlist.full:
            return True
        left = search.size - len(path.order)
        room = max(search.need.together, path.free + graph.span(root + 1, root + 1 + left))
        key = (path.shared, -path.speed, -path.bandwidth, path.highest - graph.free[root], room)
        return search.shortlist.admits(key, graph, lambda: self._first_places(path.order))

    def _first_places(self, order: Sequence[int]) -> tuple[int, ...]:
        """The path with the first Macs that could complete it, sorted."""
        found: list[int] = []
        position = self._root + 1
        while len(found) < self._search.size - len(order):
            if position not in order:
                found.append(position)
            position += 1
        return tuple(sorted((*order, *found)))

    def _close(self, path: _Path) -> None:
        graph, root, last = self._search.graph, self._root, path.order[-1]
        hop = graph.hops(last).get(root)
        if hop is not None:
            # Two Macs share one cable in both directions: it counts once.
            again = len(path.order) == 2 and same_cable(graph, root, last)
            self._search.consider(graph, path.order, path.shared + (0 if again else hop.shared))
