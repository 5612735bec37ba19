"""The blocks (biconnected components) of a graph: the largest parts that stay connected without any one of their Macs.

Two Macs with a hop between them, all Macs of a ring and all Macs of a mesh are in one block. If the racks of a fleet are joined
by one Mac each, each rack is a block, so no search has to visit the whole fleet.

Racks that are joined in a circle are one block, although no group goes around the whole circle. So a large block is divided
further. A ring of limited length lies within a few hops of each of its Macs, so it is in one block of that neighborhood.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

LOOKS = 8
"""A block is divided further if each of its hops is visited no more often than this."""


@dataclass(slots=True)
class _Walk:
    """A depth-first walk (Hopcroft and Tarjan). Not recursive, because a path can have as many Macs as the fleet."""

    adjacent: Mapping[str, Collection[str]]
    found: list[tuple[str, ...]] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)
    _low: dict[str, int] = field(default_factory=dict)
    """For each Mac, the number of the earliest Mac of the walk to which it, or a Mac reached from it, has a hop."""
    _open: list[str] = field(default_factory=list)
    """Macs whose block is not complete."""

    def enter(self, node: str) -> Iterator[str]:
        self._number[node] = self._low[node] = len(self._number)
        self._open.append(node)
        return iter(self.adjacent[node])

    def start(self, root: str) -> None:
        if root in self._number:
            return
        path = [(root, self.enter(root))]
        while path:
            node, left = path[-1]
            for peer in left:
                if peer not in self._number:
                    path.append((peer, self.enter(peer)))
                    break
                self._low[node] = min(self._low[node], self._number[peer])
            else:
                path.pop()
                if path:
                    self._leave(node, path[-1][0])
        self._open.clear()

    def _leave(self, node: str, parent: str) -> None:
        if self._low[node] < self._number[parent]:
            self._low[parent] = min(self._low[parent], self._low[node])
            return
        block = [parent]
        while block[-1] != node:
            block.append(self._open.pop())
        self.found.append(tuple(block))


def blocks(adjacent: Mapping[str, Collection[str]]) -> tuple[tuple[str, ...], ...]:
    """The blocks of a graph without directions, of at least two Macs each. A Mac may be in several."""
    walk = _Walk(adjacent)
    for node in adjacent:
        walk.start(node)
    return tuple(walk.found)


def short_blocks(adjacent: Mapping[str, Collection[str]], most: int) -> tuple[tuple[str, ...], ...]:
    """Parts of a graph such that each ring, mesh and pair of at most ``most`` Macs has all of them in one part.

    They are its blocks. Large blocks are divided further if that takes little time. The result does not depend on the order of
    the Macs and hops.
    """
    found: list[tuple[str, ...]] = []
    for block in blocks(adjacent):
        found += _divided(adjacent, block, most // 2) if len(block) > most else [block]
    return tuple(found)


def _divided(adjacent: Mapping[str, Collection[str]], block: tuple[str, ...], reach: int) -> list[tuple[str, ...]]:
    """The parts of a block for rings whose Macs are within ``reach`` hops of each other; the whole block if that takes long.

    A ring that includes a Mac of the core lies within ``reach`` hops of it, so it is in one block of these hops.
    """
    within = set(block)
    near = {name: [peer for peer in adjacent[name] if peer in within] for name in block}
    every = sum(map(len, near.values()))
    left, parts, regions = LOOKS * every, _Parts(near), 0
    seen: set[str] = set()
    for center in sorted(block):
        if center in seen:
            continue
        away = _around(near, center, reach + reach // 2)
        hops = {name: [peer for peer in near[name] if peer in away] for name in away}
        left -= sum(map(len, hops.values()))
        # If the neighborhood of a Mac is as connected as the whole block, dividing further is not worthwhile.
        if left < 0 or len(away) == len(block) or (left < (LOOKS - 1) * every and len(parts) == regions):
            return [block]
        regions += 1
        core = {name for name, distance in away.items() if distance <= reach // 2}
        seen |= core
        for part in blocks(hops):
            if not core.isdisjoint(part):
                parts.add(part)
    return parts.joined()


def _around(adjacent: Mapping[str, Collection[str]], center: str, reach: int) -> dict[str, int]:
    """By Mac: how many hops it is away, up to ``reach``."""
    found, edge = {center: 0}, [center]
    for away in range(1, reach + 1):
        edge = [peer for name in edge for peer in adjacent[name] if peer not in found]
        found.update(dict.fromkeys(edge, away))
        edge = list(dict.fromkeys(edge))
    return found


class _Parts:
    """Parts that overlap. Those with a hop in common are one."""

    def __init__(self, adjacent: Mapping[str, Collection[str]]) -> None:
        self._adjacent = adjacent
        self._parent: list[int] = []
        self._parts: list[tuple[str, ...]] = []
        self._of: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def _first(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = number = self._parent[self._parent[number]]
        return number

    def add(self, part: tuple[str, ...]) -> None:
        number, members = len(self._parts), set(part)
        self._parts.append(part)
        self._parent.append(number)
        for name in part:
            for peer in self._adjacent[name]:
                if name < peer and peer in members:
                    other = self._first(self._of.setdefault((name, peer), number))
                    self._parent[self._first(number)] = other

    def joined(self) -> list[tuple[str, ...]]:
        found: dict[int, dict[str, None]] = {}
        for number, part in enumerate(self._parts):
            found.setdefault(self._first(number), {}).update(dict.fromkeys(part))
        return [tuple(part) for part in found.values()]
