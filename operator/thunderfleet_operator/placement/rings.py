"""Which Macs can form a TCP ring: neighbours, and the first and the last, are joined by a usable cable.

Two Macs need one cable, which carries both directions. Cables give a Mac at most six neighbours, so cycles are found by
walking from a Mac to its neighbours; the walk is bounded, since nobody wires a fleet so that more would be needed.
"""

from collections.abc import Iterable, Iterator, Mapping

from thunderfleet_operator.placement.fleet import Cable

WALK_LIMIT = 50_000

Graph = Mapping[str, Mapping[str, Cable]]


def cable_graph(cables: Iterable[Cable], among: Iterable[str]) -> Graph:
    """For each Mac the best usable cable (fastest, then by name) to each neighbour, among these Macs."""
    allowed = frozenset(among)
    graph: dict[str, dict[str, Cable]] = {}
    for cable in sorted(cables, key=lambda entry: (-entry.speed_mbps, entry.name)):
        one, other = cable.a.node, cable.b.node
        if cable.usable and one in allowed and other in allowed:
            graph.setdefault(one, {}).setdefault(other, cable)
            graph.setdefault(other, {}).setdefault(one, cable)
    return graph


def cycles(graph: Graph, size: int) -> Iterator[tuple[str, ...]]:
    """Every ring of ``size`` Macs once (its smallest name first, the smaller neighbour second), in the order of names."""
    if size == 2:
        for one in sorted(graph):
            yield from ((one, other) for other in sorted(graph[one]) if one < other)
        return
    steps = 0
    for start in sorted(graph):
        path = [start]
        choices: list[Iterator[str]] = [iter(sorted(graph[start]))]
        while choices:
            steps += 1
            if steps > WALK_LIMIT:
                return
            following = next(choices[-1], None)
            if following is None:
                choices.pop()
                path.pop()
            elif following > start and following not in path:
                if len(path) + 1 < size:
                    path.append(following)
                    choices.append(iter(sorted(graph[following])))
                elif start in graph[following] and path[1] < following:
                    yield (*path, following)


def orders(cycle: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The ways to number a ring: any Mac may be rank 0, and the ring may run either way."""
    both = (cycle, (cycle[0], *reversed(cycle[1:]))) if len(cycle) > 2 else (cycle,)
    return tuple(way[i:] + way[:i] for way in both for i in range(len(way)))
