"""The blocks (biconnected components) of a graph: the largest parts that stay connected without any one of their Macs.

Two Macs with a hop between them, all Macs of a ring and all Macs of a mesh are in one block. A fleet whose racks are joined by
one Mac each is divided into its racks, so no search has to look at it as a whole.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Walk:
    """A depth-first walk (Hopcroft and Tarjan). Not recursive, because a path can have as many Macs as the fleet."""

    adjacent: Mapping[str, Collection[str]]
    found: list[tuple[str, ...]] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)
    _low: dict[str, int] = field(default_factory=dict)
    """By Mac: the first one that it, or what was reached from it, has a hop to."""
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
