"""The search itself: cliques and cycles among Macs, the best first or proven absent.

A Mac has at most six cables, so a clique is found by growing it from its least Mac, and a cycle by walking from its least
Mac; nothing lists all cycles of the fleet. Each part of the score only gets worse while a set grows, so a set that cannot
beat the shortlist any more is dropped early (branch and bound), and two walks over the same Macs to the same end are
continued once (dynamic programming). Steps are counted: a graph made to be hard ends at the limit, with what was found.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from thunderfleet_operator.placement.fleet import Mac
from thunderfleet_operator.placement.hops import Hop

Key = tuple[int, int, int, int]
"""Shared, slowness, spread, room: the parts of a score that differ within one transport, size and split."""
Tie = tuple[tuple[int, str], ...]


class Work:
    """Steps that are left. Counted, not timed: equal inputs end alike."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.cut = False

    def step(self) -> bool:
        if self.left <= 0:
            self.cut = True
            return False
        self.left -= 1
        return True


class Area:
    """Macs among which a group may form, by free memory and name, with the hops between them."""

    def __init__(self, macs: Sequence[Mac], hops: Callable[[str], dict[str, Hop]], top_mbps: int) -> None:
        self.macs = sorted(macs, key=lambda mac: (mac.free_bytes, mac.name))
        self.free = [mac.free_bytes for mac in self.macs]
        self.used = [int(mac.in_use) for mac in self.macs]
        self.top_mbps = top_mbps
        self._ceilings: dict[tuple[int, int], int] = {}
        self.most = [0, *accumulate(reversed(self.free))]
        """By number of Macs: the free memory of so many, of those with most."""
        self._least = [0, *accumulate(self.free)]
        self._index = {mac.name: position for position, mac in enumerate(self.macs)}
        self._hops_of = hops
        self._hops: list[dict[int, Hop] | None] = [None] * len(self.macs)
        self._uniform: bool | None = None

    def __len__(self) -> int:
        return len(self.macs)

    def hops(self, i: int) -> dict[int, Hop]:
        """From one Mac, by position, in the order of positions."""
        found = self._hops[i]
        if found is None:
            index = self._index
            raw = [(index[peer], hop) for peer, hop in self._hops_of(self.macs[i].name).items() if peer in index]
            found = dict(sorted(raw, key=lambda entry: entry[0]))
            self._hops[i] = found
        return found

    def uniform(self) -> bool:
        """Whether all have a hop to all, and all hops are alike, as on a switch: then every order is a ring."""
        if self._uniform is None:
            count = len(self) - 1
            first = next(iter(self.hops(0).values()), None)
            self._uniform = first is not None and all(
                len(self.hops(i)) == count
                and all((h.speed_mbps, h.shared) == (first.speed_mbps, 0) for h in self.hops(i).values())
                for i in range(len(self))
            )
        return self._uniform

    def ceiling(self, size: int, each: int) -> int:
        """No ``size`` Macs, each with ``each`` hops to others of them, have a slowest hop above this."""
        if (size, each) not in self._ceilings:
            speeds = [sorted((hop.speed_mbps for hop in self.hops(i).values()), reverse=True) for i in range(len(self))]
            best = sorted((found[each - 1] for found in speeds if len(found) >= each), reverse=True)
            self._ceilings[size, each] = best[size - 1] if len(best) >= size else -1
        return self._ceilings[size, each]

    def tie(self, members: Sequence[int]) -> Tie:
        return tuple((self.free[i], self.macs[i].name) for i in sorted(members))

    def span(self, first: int, last: int) -> int:
        """Free memory of the Macs at positions ``first`` to ``last`` (excluded) together."""
        return self._least[last] - self._least[first]

    def may_hold(self, size: int, least: int, together: int) -> bool:
        """Whether any ``size`` Macs here have room at all, whatever the cables."""
        return len(self) >= size and self.free[-size] >= least and self.most[size] >= together


@dataclass(frozen=True, slots=True)
class Found:
    """A set of Macs that takes the group: ``order`` by rank."""

    key: Key
    tie: Tie
    area: Area
    order: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...] = ()
    """Layers by rank, in a pipeline."""
    needs: tuple[int, ...] = ()
    by_free_memory: bool = True


class Shortlist:
    """The best few. What cannot get onto it need not be looked at."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[Found] = []

    def admits(self, key: Key, tie: Callable[[], Tie]) -> bool:
        """Whether something that is at best so good may still get on. ``tie`` is asked for only when it decides."""
        if len(self.entries) < self.size:
            return True
        last = self.entries[-1]
        return key < last.key or (key == last.key and tie() < last.tie)

    def add(self, found: Found) -> None:
        """Each set of Macs stands there once, at its best."""
        same = next((entry for entry in self.entries if entry.tie == found.tie), None)
        if same is not None:
            if same.key <= found.key:
                return
            self.entries.remove(same)
        self.entries.append(found)
        self.entries.sort(key=lambda entry: (entry.key, entry.tie))
        del self.entries[self.size :]


Evaluate = Callable[[Area, tuple[int, ...], int, int], None]
"""Called with the Macs (in the order of the cycle, or by position), what they share, and their slowest hop."""


def _root_admitted(area: Area, root: int, size: int, each: int, shortlist: Shortlist) -> bool:
    """Whether a set whose least Mac is ``root``, and in which everybody has ``each`` hops, can be good enough."""

    def admitted(speed: int) -> bool:
        key = (area.used[root], -speed, area.free[root + size - 1] - area.free[root], area.span(root, root + size))
        return shortlist.admits(key, lambda: area.tie(range(root, root + size)))

    if not each:
        return admitted(0)
    if len(shortlist.entries) < shortlist.size:
        return True
    # The fleet's fastest cable is known at once; what these Macs have is worked out when that does not settle it.
    return admitted(area.top_mbps) and area.ceiling(size, each) >= 0 and admitted(area.ceiling(size, each))


def singles(area: Area, least: int, shortlist: Shortlist, work: Work, evaluate: Evaluate) -> None:
    """Macs alone, from the least that has room."""
    for root in range(bisect_left(area.free, least), len(area)):
        if not work.step():
            return
        if _root_admitted(area, root, 1, 0, shortlist):
            evaluate(area, (root,), area.used[root], 0)


def cliques(area: Area, size: int, least: int, together: int, shortlist: Shortlist, work: Work, evaluate: Evaluate) -> None:
    """Sets in which every two are joined, each once, in the order of positions."""
    free = area.free

    def grow(chosen: tuple[int, ...], candidates: list[int], shared: int, speed: int, total: int) -> None:
        left = size - len(chosen)
        if not left:
            evaluate(area, chosen, shared, speed)
            return
        if total + sum(free[i] for i in candidates[-left:]) < together:
            return
        for position in range(len(candidates) - left + 1):
            if not work.step():
                return
            new = candidates[position]
            joined, slowest = shared + area.used[new], speed
            for member in chosen:
                hop = area.hops(member)[new]
                joined += hop.shared
                slowest = min(slowest, hop.speed_mbps)
            following = candidates[position : position + left]
            key = (joined, -slowest, free[following[-1]] - free[chosen[0]], total + sum(free[i] for i in following))
            if shortlist.admits(key, lambda following=following: area.tie((*chosen, *following))):  # type: ignore[misc]
                near = area.hops(new)
                narrowed = [i for i in candidates[position + 1 :] if i in near]
                grow((*chosen, new), narrowed, joined, slowest, total + free[new])

    for root in range(bisect_left(free, least), len(area) - size + 1):
        if not work.step():
            return
        if free[root] + area.most[size - 1] < together:
            continue
        if _root_admitted(area, root, size, size - 1, shortlist):
            grow((root,), [i for i in area.hops(root) if i > root], area.used[root], area.top_mbps, free[root])


def cycles(area: Area, size: int, least: int, together: int, shortlist: Shortlist, work: Work, evaluate: Evaluate) -> None:
    """Rings in which every one has a hop to the next, and the last to the first; of the rings over the same Macs the best
    (others where they are equally good are left out)."""
    if area.uniform():
        cliques(area, size, least, together, shortlist, work, evaluate)
        return
    free = area.free

    def distances(root: int) -> dict[int, int]:
        """Hops back to the root, over Macs that come after it."""
        found = {root: 0}
        edge = [root]
        for away in range(1, size):
            edge = [i for j in edge for i in area.hops(j) if i > root and found.setdefault(i, away) == away]
            edge = list(dict.fromkeys(edge))
        return found

    def smallest(path: Sequence[int], count: int) -> list[int]:
        found: list[int] = []
        position = path[0] + 1
        while len(found) < count:
            if position not in path:
                found.append(position)
            position += 1
        return found

    def walk(root: int) -> None:
        back = distances(root)
        if len(back) < size:
            return
        most = sorted((free[i] for i in back if i != root), reverse=True)[: size - 1]
        if free[root] + sum(most) < together:
            return
        largest = [0, *accumulate(most)]
        visited: dict[tuple[int, int], tuple[int, int]] = {}

        def extend(path: tuple[int, ...], mask: int, shared: int, speed: int, total: int, high: int) -> None:
            last, left = path[-1], size - len(path)
            if not left:
                hop = area.hops(last).get(root)
                if hop is not None:
                    # Between two Macs the way back runs over the same cable.
                    again = size == 2 and hop.cable is not None and area.hops(root)[last].cable is hop.cable
                    evaluate(area, path, shared + (0 if again else hop.shared), min(speed, hop.speed_mbps))
                return
            for new, hop in area.hops(last).items():
                if new <= root or mask >> new & 1 or back.get(new, size) > left:
                    continue
                if not work.step():
                    return
                if total + free[new] + largest[left - 1] < together:
                    continue
                joined, slowest = shared + area.used[new] + hop.shared, min(speed, hop.speed_mbps)
                state = (mask | 1 << new, new)
                before = visited.get(state)
                if before is not None and before <= (joined, -slowest):
                    continue
                top = max(high, free[new])
                least_more = area.span(root + 1, root + left)
                spread = max(top, free[root + size - 1]) - free[root]
                key = (joined, -slowest, spread, total + free[new] + least_more)
                longer = (*path, new)
                if shortlist.admits(key, lambda longer=longer, left=left: area.tie((*longer, *smallest(longer, left - 1)))):  # type: ignore[misc]
                    visited[state] = (joined, -slowest)
                    extend(longer, state[0], joined, slowest, total + free[new], top)

        extend((root,), 1 << root, area.used[root], area.top_mbps, free[root], free[root])

    for root in range(bisect_left(free, least), len(area) - size + 1):
        if not work.step():
            return
        if free[root] + area.most[size - 1] < together:
            continue
        if _root_admitted(area, root, size, 1 if size == 2 else 2, shortlist):
            walk(root)
