"""Sets of Macs grown one Mac at a time: cliques, and, among well-connected Macs, sets that have a ring."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from thunderfleet_operator.placement.graph.hops import Hop
from thunderfleet_operator.placement.search.cycles import best_cycle
from thunderfleet_operator.placement.search.roots import SetSearch, windows

CANDIDATES_A_STEP = 8
"""Summing up this many candidates takes about as long as a step."""


class _Partial(NamedTuple):
    """Some Macs of a set, with sums and limits over them."""

    chosen: tuple[int, ...]
    shared: int
    speed: int
    bandwidth: int
    free: int
    room: int


def grow(search: SetSearch, root: int, candidates: Sequence[int], speed: int, ring: int | None = None) -> None:
    """Considers all sets of the root and some of the ``candidates``, which are sorted and come after it.

    ``speed``: bucket of the fastest hops. ``ring``: the set needs a ring of hops in this bucket or a faster one; None: every
    two of the set need a hop.
    """
    graph = search.graph
    start = _Partial((root,), graph.used[root], speed, graph.bandwidths[root], graph.free[root], search.rooms[root])
    _grow(search, start, candidates, ring)


def _grow(search: SetSearch, base: _Partial, candidates: Sequence[int], ring: int | None) -> None:
    graph, free = search.graph, search.graph.free
    chosen = base.chosen
    left = search.size - len(chosen)
    if not left:
        _complete(search, base, ring)
        return
    search.budget.spend(1 + len(candidates) // CANDIDATES_A_STEP)
    lowest, together = free[chosen[0]], search.need.together
    sums = [0, *accumulate([free[i] for i in candidates])]
    onward = [graph.hops(member) for member in chosen] if ring is None else []
    for at, top in _choices(search, base, candidates, left):
        new = candidates[at]
        shared, speed, bandwidth = _joined(search, base, new, onward)
        room = max(together, base.free + sums[at + left] - sums[at])
        key = (shared, -speed, -bandwidth, free[candidates[top]] - lowest, room)
        places = lambda at=at: (*chosen, *candidates[at : at + left])  # noqa: E731
        if search.shortlist.admits(key, graph, places):
            rest = candidates[at + 1 :]
            if ring is None:
                near = graph.hops(new)
                rest = [i for i in rest if i in near]
            partial = _Partial((*chosen, new), shared, speed, bandwidth, base.free + free[new], base.room + search.rooms[new])
            _grow(search, partial, rest, ring)
            continue
        # Without what this Mac adds, the key is a bound for all later candidates.
        best = (base.shared, -base.speed, -base.bandwidth, free[candidates[at + left - 1]] - lowest, room)
        if key == best or not search.shortlist.admits(best, graph, places):
            break


def _choices(search: SetSearch, base: _Partial, candidates: Sequence[int], left: int) -> Iterator[tuple[int, int]]:
    """Indexes of candidates that leave room for the model, each with the least index that the set's last Mac can have."""
    rooms, step, missing = search.rooms, search.budget.step, search.need.wanted - base.room
    sums = windows([rooms[i] for i in candidates], left - 1) if left > 1 else []
    last = len(candidates) - 1
    for at in range(len(candidates) - left + 1):
        if not step():
            return
        missing_after = missing - rooms[candidates[at]]
        if left == 1:
            if missing_after <= 0:
                yield at, at
            continue
        top = max(at + left - 1, bisect_left(sums, missing_after))
        if top <= last:
            yield at, top


def _joined(search: SetSearch, base: _Partial, new: int, onward: Sequence[Mapping[int, Hop]]) -> tuple[int, int, int]:
    """Shared Macs and cables, speed and bandwidth with one more Mac. ``onward``: hops that the set uses to it."""
    graph = search.graph
    shared, speed = base.shared + graph.used[new], base.speed
    if onward:
        hops = [known[new] for known in onward]
        shared += sum([hop.shared for hop in hops])
        speed = min(speed, graph.bucket(min([hop.speed_mbps for hop in hops])))
    return shared, speed, min(base.bandwidth, graph.bandwidths[new])


def _complete(search: SetSearch, found: _Partial, ring: int | None) -> None:
    if ring is None:
        search.consider(search.graph, found.chosen, found.shared)
        return
    cycle = best_cycle(search.graph, found.chosen, ring, search.budget)
    if cycle is not None:
        search.consider(search.graph, cycle[0], found.shared + cycle[1])
