"""The search itself: cliques and rings among Macs, the best first or proven absent.

A Mac has at most six cables, so a clique is found by growing it from its least Mac, and a ring by walking from its least Mac;
nothing lists all rings of the fleet. Where most Macs reach most others, as on a switch, the sets are grown instead, and each
is asked for one ring. Each part of the score only gets worse while a set grows, so a set that cannot beat the shortlist any
more is dropped early (branch and bound), and two walks over the same Macs to the same end are continued once (dynamic
programming). Steps are counted: a graph made to be hard ends at the limit, with what was found.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from thunderfleet_operator.placement.fleet import Mac
from thunderfleet_operator.placement.graph.hops import Hop
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.units import coarse, steady

Key = tuple[int, int, int, int, int]
"""Shared, slowness, drag, spread, room: the parts of a score that differ within one transport, size and split."""
Tie = tuple[tuple[int, str], ...]
DENSE = 128
"""Macs among which it is looked whether most reach most others; where there are more, agents do not dial so many."""


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

    def spend(self, steps: int) -> None:
        self.left -= steps


class Area:
    """Macs among which a group may form, by free memory and name, with the hops between them."""

    def __init__(
        self, macs: Sequence[Mac], hops: Callable[[str], dict[str, Hop]], top_mbps: int, directed: bool = False
    ) -> None:
        """``hops``: by name. ``top_mbps``: no hop is faster. ``directed``: there may be a hop one way and none, or a slower
        one, back.
        """
        self.macs = sorted(macs, key=lambda mac: (mac.free_bytes, mac.name))
        self.free = [mac.free_bytes for mac in self.macs]
        self.used = [int(mac.in_use) for mac in self.macs]
        self.bands = [coarse(mac.memory_megabytes) for mac in self.macs]
        """Memory bandwidth, as far as it makes a difference."""
        self.top_pace = steady(top_mbps)
        self.directed = directed
        self._most = [0, *accumulate(reversed(self.free))]
        self._least = [0, *accumulate(self.free)]
        self._index = {mac.name: position for position, mac in enumerate(self.macs)}
        self._hops_of = hops
        self._hops: list[dict[int, Hop] | None] = [None] * len(self.macs)

    def __len__(self) -> int:
        return len(self.macs)

    def positions(self, names: Sequence[str]) -> tuple[int, ...] | None:
        """None when one of them is not here."""
        found = [self._index.get(name) for name in names]
        return tuple(i for i in found if i is not None) if None not in found else None

    def hops(self, i: int) -> dict[int, Hop]:
        """From one Mac, by position, in the order of positions."""
        found = self._hops[i]
        if found is None:
            index = self._index
            known = {index[peer]: hop for peer, hop in self._hops_of(self.macs[i].name).items() if peer in index}
            self._hops[i] = found = {j: known[j] for j in sorted(known)}
        return found

    def to(self, i: int) -> Iterable[int]:
        """Who has a hop to a Mac, by position."""
        return (j for j in range(len(self)) if i in self.hops(j)) if self.directed else self.hops(i)

    def pace(self, i: int, each: int) -> int:
        """The slowest of a Mac's ``each`` best hops; -1 when it has fewer."""
        speeds = sorted((hop.speed_mbps for hop in self.hops(i).values()), reverse=True)
        return steady(speeds[each - 1]) if len(speeds) >= each else -1

    def key(self, members: Sequence[int], shared: int, slowest_mbps: int) -> Key:
        """Of a set of Macs whose hops are known."""
        free = [self.free[i] for i in members]
        return (shared, -steady(slowest_mbps), -min(self.bands[i] for i in members), max(free) - min(free), sum(free))

    def tie(self, members: Iterable[int]) -> Tie:
        return tuple((self.free[i], self.macs[i].name) for i in sorted(members))

    def span(self, first: int, last: int) -> int:
        """Free memory of the Macs at positions ``first`` to ``last`` (excluded) together."""
        return self._least[last] - self._least[first]

    def may_hold(self, size: int, need: Bounds) -> bool:
        """Whether any ``size`` Macs here have room at all, whatever the cables."""
        if len(self) < size or self.free[-size] < need.least or self._most[size] < need.together:
            return False
        return sum(map(need.room, self.free[-size:])) >= need.wanted


@dataclass(frozen=True, slots=True)
class Found:
    """A set of Macs that takes the group: ``order`` by rank."""

    key: Key
    tie: Tie
    area: Area
    order: tuple[int, ...]
    places: tuple[int, ...]
    """The same, by position: within one area these are ordered as ties are."""
    hops: tuple[Hop, ...] = ()
    """Between its Macs: of a ring from each to the next, of a mesh one a pair."""
    dialled: Mapping[str, str] = field(default_factory=dict)
    """By name of each other Mac: where it dials rank 0."""


class Shortlist:
    """The best few. What cannot get onto it need not be looked at."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[Found] = []

    def admits(self, key: Key, area: Area, places: Callable[[], tuple[int, ...]]) -> bool:
        """Whether something that is at best so good may still get on. ``places``: the first Macs that it could be, in the order
        of positions; asked for only when they decide.
        """
        if len(self.entries) < self.size:
            return True
        last = self.entries[-1]
        if key != last.key:
            return key < last.key
        return places() < last.places if area is last.area else area.tie(places()) < last.tie

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


Evaluate = Callable[[Area, tuple[int, ...], int], None]
"""Called with the Macs (in the order of the ring, or by position), and how many Macs and cables they share."""


def _windows(amounts: Sequence[int], size: int) -> list[int]:
    """By position: the sum of so many amounts up to it."""
    sums = [0, *accumulate(amounts)]
    return [sums[end] - sums[max(0, end - size)] for end in range(1, len(sums))]


class Stage:
    """So many Macs of one area that can hold a model together, looked for."""

    def __init__(self, area: Area, size: int, need: Bounds, shortlist: Shortlist, work: Work, evaluate: Evaluate) -> None:
        self.area = area
        self.size = size
        self.need = need
        self.shortlist = shortlist
        self.work = work
        self.evaluate = evaluate
        known: dict[int, int] = {}
        for free in area.free:
            if free not in known:
                known[free] = need.room(free)
        self.rooms = [known[free] for free in area.free]
        """By position: how much of the model a Mac can take."""
        self._windows = _windows(self.rooms, size - 1)

    def _highest(self, root: int) -> int:
        """The least position that the greatest Mac of a set can have, of which this is the least; beyond the end: no set has
        room.
        """
        if self.size == 1:
            return root if self.rooms[root] >= self.need.wanted else len(self.area)
        return max(root + self.size - 1, bisect_left(self._windows, self.need.wanted - self.rooms[root]))

    def _bound(self, root: int, highest: int) -> Key:
        """No set with this least Mac, and a greatest at this position or beyond, is better: with the fleet's fastest hops."""
        area, free = self.area, self.area.free
        room = area.span(root, root + self.size)
        together = self.need.together
        return (
            area.used[root],
            -area.top_pace,
            -area.bands[root],
            free[highest] - free[root],
            room if room > together else together,
        )

    def _admits(self, root: int, bound: Key, pace: int) -> bool:
        """Whether a set whose least Mac this is may get on the shortlist with hops no faster than ``pace``."""
        key = (bound[0], -pace, *bound[2:])
        return self.shortlist.admits(key, self.area, lambda: tuple(range(root, root + self.size)))

    def _roots(self, each: int) -> Iterator[tuple[int, Key]]:
        """Where sets can begin, the most promising first, with their bounds. ``each``: hops that every Mac of a set needs."""
        area, count = self.area, len(self.area)
        bounds = []
        for root in range(bisect_left(area.free, self.need.least), count - self.size + 1):
            highest = self._highest(root)
            if highest < count:
                bounds.append((self._bound(root, highest), root))
        for bound, root in sorted(bounds):
            if not self.work.step():
                return
            # The fleet's fastest hop is known at once. With it the bounds come in order: what is after this is no better.
            if not self._admits(root, bound, area.top_pace):
                return
            if each:
                # What this Mac has is worked out when that does not settle it.
                pace = area.pace(root, each)
                if pace < 0 or not self._admits(root, bound, pace):
                    continue
            yield root, bound

    def singles(self) -> None:
        """Macs alone."""
        for root, _ in self._roots(0):
            self.evaluate(self.area, (root,), self.area.used[root])

    def cliques(self) -> None:
        """Sets in which every two are joined, each once, in the order of positions."""
        for root, _ in self._roots(self.size - 1):
            near = [i for i in self.area.hops(root) if i > root]
            self._begin(root, near, self.area.top_pace, None)

    def rings(self) -> None:
        """Rings in which every one has a hop to the next, and the last to the first; of the rings over the same Macs the best
        (others where they are equally good are left out).
        """
        area = self.area
        # A ring leaves a Mac by one hop and comes back by another; where ways differ, only the first is among its own.
        for root, bound in self._roots(1 if self.size == 2 or area.directed else 2):
            back = self._distances(root)
            if len(back) < self.size:
                continue
            members = sorted(i for i in back if i != root)
            if not self._dense((root, *members)):
                self._walk(root, members, back)
                continue
            speeds = {hop.speed_mbps for i in back for j, hop in area.hops(i).items() if j in back}
            for pace in sorted(set(map(steady, speeds)), reverse=True):
                if not self._admits(root, bound, pace):
                    break
                self._begin(root, members, pace, pace)

    # --- sets ---

    def _begin(self, root: int, candidates: Sequence[int], pace: int, ring: int | None) -> None:
        area = self.area
        self._grow((root,), candidates, area.used[root], pace, area.bands[root], area.free[root], self.rooms[root], ring)

    def _grow(
        self,
        chosen: tuple[int, ...],
        candidates: Sequence[int],
        shared: int,
        pace: int,
        band: int,
        total: int,
        room: int,
        ring: int | None,
    ) -> None:
        """Adds what is missing from ``candidates``, which are in order and come after all ``chosen``. ``ring``: the set is to
        have a ring of hops at this pace or better; None: every two of it are to be joined.
        """
        area, free, rooms, need, work = self.area, self.area.free, self.rooms, self.need, self.work
        left = self.size - len(chosen)
        if not left:
            if ring is None:
                self.evaluate(area, chosen, shared)
            elif found := self._ring_over(chosen, ring):
                self.evaluate(area, found[0], shared + found[1])
            return
        lower, last = free[chosen[0]], len(candidates) - 1
        sums = [0, *accumulate([free[i] for i in candidates])]
        windows = _windows([rooms[i] for i in candidates], left - 1) if left > 1 else []
        onward = [area.hops(member) for member in chosen] if ring is None else []
        for position in range(len(candidates) - left + 1):
            if not work.step():
                return
            new = candidates[position]
            lacking = need.wanted - room - rooms[new]
            if left > 1:
                top = max(position + left - 1, bisect_left(windows, lacking))
                if top > last:
                    continue
            elif lacking > 0:
                continue
            else:
                top = position
            joined, slowest, narrow = shared + area.used[new], pace, area.bands[new]
            if narrow > band:
                narrow = band
            if onward:
                hops = [known[new] for known in onward]
                joined += sum([hop.shared for hop in hops])
                slowest = min(pace, steady(min([hop.speed_mbps for hop in hops])))
            most = total + sums[position + left] - sums[position]
            if most < need.together:
                most = need.together
            key = (joined, -slowest, -narrow, free[candidates[top]] - lower, most)
            places = lambda at=position: (*chosen, *candidates[at : at + left])  # noqa: E731
            if not self.shortlist.admits(key, area, places):
                # What this one brings apart, all that come after it are no better.
                best = (shared, -pace, -band, free[candidates[position + left - 1]] - lower, most)
                if key == best or not self.shortlist.admits(best, area, places):
                    break
            else:
                rest = candidates[position + 1 :]
                if ring is None:
                    near = area.hops(new)
                    rest = [i for i in rest if i in near]
                self._grow((*chosen, new), rest, joined, slowest, narrow, total + free[new], room + rooms[new], ring)

    def _dense(self, members: Sequence[int]) -> bool:
        """Whether of these Macs, on the whole, each has hops to half the others."""
        count = len(members)
        if count > DENSE:
            return False
        within, hops = set(members), map(self.area.hops, members)
        # Where that is everybody, hops lead to nobody else.
        near = map(len, hops) if count == len(self.area) else (len(within & found.keys()) for found in hops)
        return 2 * sum(near) >= count * (count - 1)

    def _ring_over(self, members: tuple[int, ...], pace: int) -> tuple[tuple[int, ...], int] | None:
        """A ring over all of these with no hop below ``pace``, and how many of its cables are shared: as few as can be."""
        area, size = self.area, len(members)
        onward: dict[int, list[int]] = {}
        cost: dict[tuple[int, int], int] = {}
        for i in members:
            hops = area.hops(i)
            near = [j for j in members if j in hops and steady(hops[j].speed_mbps) >= pace]
            if not near:
                return None
            cost.update(((i, j), 1) for j in near if hops[j].shared)
            onward[i] = near
        if not cost and all(len(near) == size - 1 for near in onward.values()):
            return members, 0
        if size == 2:
            one, other = members
            both = area.hops(one)[other].cable is area.hops(other)[one].cable is not None
            return members, cost.get((one, other), 0) + (0 if both else cost.get((other, one), 0))
        root, place = members[0], {member: 1 << at for at, member in enumerate(members)}
        best: tuple[tuple[int, ...], int] | None = None
        visited: dict[tuple[int, int], int] = {}

        def extend(path: tuple[int, ...], mask: int, paid: int) -> None:
            nonlocal best
            last = path[-1]
            if len(path) == size:
                if root in onward[last]:
                    paid += cost.get((last, root), 0)
                    if best is None or paid < best[1]:
                        best = path, paid
                return
            for new in sorted(onward[last], key=lambda j: (cost.get((last, j), 0), j)):
                if place[new] & mask or not self.work.step():
                    continue
                state, price = (mask | place[new], new), paid + cost.get((last, new), 0)
                if visited.get(state, size + 1) <= price or (best is not None and best[1] <= price):
                    continue
                visited[state] = price
                extend((*path, new), state[0], price)

        extend((root,), place[root], 0)
        return best

    # --- walks ---

    def _distances(self, root: int) -> dict[int, int]:
        """Hops back to the root, over Macs that come after it."""
        found = {root: 0}
        edge = [root]
        for away in range(1, self.size):
            if len(found) == len(self.area) - root:
                break
            edge = [i for j in edge for i in self.area.to(j) if i > root and found.setdefault(i, away) == away]
            edge = list(dict.fromkeys(edge))
            self.work.spend(len(edge))
        return found

    def _walk(self, root: int, members: Sequence[int], back: dict[int, int]) -> None:
        """All rings over these Macs that begin at their least, by their hops. ``back``: how far each is from it."""
        area, free, rooms, size, wanted = self.area, self.area.free, self.rooms, self.size, self.need.wanted
        highest = bisect_left(_windows([rooms[i] for i in members], size - 1), wanted - rooms[root])
        if highest >= len(members):
            return
        lowest, ceiling = free[root], free[members[max(highest, size - 2)]]
        largest = [0, *accumulate(rooms[i] for i in reversed(members[1 - size :]))] if size > 1 else [0]
        visited: dict[tuple[int, int], tuple[int, int]] = {}

        def smallest(path: Sequence[int]) -> tuple[int, ...]:
            """The least Macs that could follow, as many as are missing."""
            found: list[int] = []
            position = root + 1
            while len(found) < size - len(path):
                if position not in path:
                    found.append(position)
                position += 1
            return tuple(sorted((*path, *found)))

        def extend(
            path: tuple[int, ...], mask: int, shared: int, pace: int, band: int, total: int, room: int, high: int
        ) -> None:
            last, left = path[-1], size - len(path)
            if not left:
                hop = area.hops(last).get(root)
                if hop is not None:
                    # Between two Macs the way back runs over the same cable.
                    again = size == 2 and hop.cable is not None and area.hops(root)[last].cable is hop.cable
                    self.evaluate(area, path, shared + (0 if again else hop.shared))
                return
            for new, hop in area.hops(last).items():
                if new <= root or mask >> new & 1 or back.get(new, size) > left:
                    continue
                if not self.work.step():
                    return
                if room + rooms[new] + largest[left - 1] < wanted:
                    continue
                joined, slower = shared + area.used[new] + hop.shared, min(pace, steady(hop.speed_mbps))
                state = (mask | 1 << new, new)
                before = visited.get(state)
                if before is not None and before <= (joined, -slower):
                    continue
                top, narrow = max(high, free[new]), min(band, area.bands[new])
                most = max(self.need.together, total + free[new] + area.span(root + 1, root + left))
                key = (joined, -slower, -narrow, top - lowest, most)
                longer = (*path, new)
                if self.shortlist.admits(key, area, lambda longer=longer: smallest(longer)):  # type: ignore[misc]
                    visited[state] = (joined, -slower)
                    extend(longer, state[0], joined, slower, narrow, total + free[new], room + rooms[new], top)

        extend((root,), 1 << root, area.used[root], area.top_pace, area.bands[root], free[root], rooms[root], ceiling)
