"""All sets of Macs of one size that a transport can join: single Macs, cliques, rings.

Each set is found once, from its first Mac. A Mac has at most six cables, so cliques are grown and rings walked along hops;
nothing lists all rings of a fleet. Among Macs that mostly reach each other, as on a switch, sets are grown first and each is
searched for one ring.
"""

from collections.abc import Mapping

from thunderfleet_crds.vocabulary import PlacedTransport, Transport

from thunderfleet_operator.placement.search.growing import grow
from thunderfleet_operator.placement.search.roots import SetSearch
from thunderfleet_operator.placement.search.walking import walk

DENSE = 128
"""Most Macs among which sets are grown before a ring is searched. In larger fleets, agents do not connect to so many others."""

HOPS_A_STEP = 64
"""Looking at this many hops takes about as long as a step,"""
MACS_A_STEP = 4
"""and so does looking up the hops of this many Macs."""


def search_sets(search: SetSearch, transport: PlacedTransport) -> None:
    """Considers all sets that ``transport`` can join."""
    if transport is Transport.NONE:
        _singles(search)
    elif transport is Transport.JACCL:
        _cliques(search)
    else:
        _rings(search)


def _singles(search: SetSearch) -> None:
    for root, _ in search.roots(0):
        search.consider(search.graph, (root,), search.graph.used[root])


def _cliques(search: SetSearch) -> None:
    """Sets in which every two Macs have a hop, in the order of positions."""
    for root, _ in search.roots(search.size - 1):
        near = [i for i in search.graph.hops(root) if i > root]
        grow(search, root, near, search.graph.top_speed)


def _rings(search: SetSearch) -> None:
    """Rings in which every Mac has a hop to the next and the last to the first; of those over the same Macs a best one."""
    graph = search.graph
    # A ring leaves a Mac by one hop and returns by another; in a directed graph only the first is among its own hops.
    for root, bound in search.roots(1 if search.size == 2 or graph.directed else 2):
        near = _around(search, root)
        if len(near) < search.size:
            continue
        search.budget.spend(len(near) // MACS_A_STEP)
        members = sorted([i for i in near if i != root])
        if not _is_dense(search, near):
            walk(search, root, members, near)
            continue
        for speed in sorted(set[int]().union(*map(graph.speeds, near)), reverse=True):
            if not search.admits(root, bound, speed):
                break
            grow(search, root, members, speed, speed)


def _steps(macs: int, hops: int) -> int:
    """The steps that it takes to examine these hops of this many Macs."""
    return 1 + macs // MACS_A_STEP + hops // HOPS_A_STEP


def _around(search: SetSearch, root: int) -> dict[int, int]:
    """By Mac that a ring with this root can reach, over Macs that come after it: hops to the root."""
    graph, found = search.graph, {root: 0}
    edge = [root]
    for away in range(1, search.size // 2 + 1):
        if not edge or len(found) == len(graph) - root:
            break
        hops: list[int] = []
        for j in edge:
            hops += graph.hops(j)
        search.budget.spend(_steps(len(edge), len(hops)))
        edge = [i for i in dict.fromkeys(hops) if i > root and i not in found]
        found.update(dict.fromkeys(edge, away))
    return found


def _is_dense(search: SetSearch, near: Mapping[int, int]) -> bool:
    """Whether each of these Macs has hops to half of the others on average."""
    count, graph = len(near), search.graph
    if count > DENSE:
        return False
    hops = list(map(graph.hops, near))
    every = sum(map(len, hops))
    search.budget.spend(_steps(count, 0))
    # If these are all Macs of the graph, no hop leads elsewhere.
    if count == len(graph) or 2 * every < count * (count - 1):
        return 2 * every >= count * (count - 1)
    search.budget.spend(_steps(count, every))
    return 2 * sum(len(near.keys() & found.keys()) for found in hops) >= count * (count - 1)
