"""All sets of Macs of one size that a transport can join: single Macs, cliques, rings.

Each set is found once, from its first Mac. A Mac has at most six cables, so cliques are grown and rings walked along hops;
nothing lists all rings of a fleet. Among Macs that mostly reach each other, as on a switch, sets are grown first and each is
searched for one ring.
"""

from collections.abc import Sequence

from thunderfleet_crds.vocabulary import PlacedTransport, Transport

from thunderfleet_operator.placement.search.growing import grow
from thunderfleet_operator.placement.search.roots import SetSearch
from thunderfleet_operator.placement.search.walking import walk

DENSE = 128
"""Most Macs among which sets are grown before a ring is searched. Agents of larger fleets do not probe so many others."""


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
        back = _distances(search, root)
        if len(back) < search.size:
            continue
        members = sorted(i for i in back if i != root)
        if not _is_dense(search, (root, *members)):
            walk(search, root, members, back)
            continue
        speeds = {hop.speed_mbps for i in back for j, hop in graph.hops(i).items() if j in back}
        for speed in sorted(set(map(graph.bucket, speeds)), reverse=True):
            if not search.admits(root, bound, speed):
                break
            grow(search, root, members, speed, speed)


def _is_dense(search: SetSearch, members: Sequence[int]) -> bool:
    """Whether each of these Macs has hops to half of the others on average."""
    count, graph = len(members), search.graph
    if count > DENSE:
        return False
    within, hops = set(members), map(graph.hops, members)
    # If these are all Macs, no hop leads elsewhere.
    near = map(len, hops) if count == len(graph) else (len(within & found.keys()) for found in hops)
    return 2 * sum(near) >= count * (count - 1)


def _distances(search: SetSearch, root: int) -> dict[int, int]:
    """By Mac: hops to the root, over Macs that come after it."""
    graph, found = search.graph, {root: 0}
    edge = [root]
    for away in range(1, search.size):
        if not edge or len(found) == len(graph) - root:
            break
        edge = [i for j in edge for i in graph.to(j) if i > root and found.setdefault(i, away) == away]
        edge = list(dict.fromkeys(edge))
        search.budget.spend(len(edge))
    return found
