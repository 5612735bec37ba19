"""The search with relaxed rules: every two Macs count as joined, at a cost for each hop that is missing or unusable."""

from collections.abc import Container, Sequence
from dataclasses import replace

from thunderfleet_crds.vocabulary import Transport

from thunderfleet_operator.placement.explain.fixes import Way
from thunderfleet_operator.placement.explain.obstacles import HopObstacles
from thunderfleet_operator.placement.graph.hops import Hop
from thunderfleet_operator.placement.inputs.fleet import Fleet, Mac
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.rating.buckets import LINK_STEP, MEMORY_STEP, Buckets
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.fitting import Fitting
from thunderfleet_operator.placement.search.hop_graph import HopGraph
from thunderfleet_operator.placement.search.roots import SetSearch
from thunderfleet_operator.placement.search.sets import search_sets
from thunderfleet_operator.placement.search.shortlist import Shortlist

POOL = 10
"""Macs considered: those with the most free memory, and those cabled to the first of them."""
MAX_STEPS = 4_000


def cheapest_set(
    way: Way, members: Sequence[Mac], size: int, lacking: Container[str] = (), *, any_memory: bool = False
) -> tuple[str, ...] | None:
    """The set that costs least to connect, in the order of a ring; None if no set has room.

    ``members``: sorted by free memory, the most first. ``lacking``: Macs that need a change themselves; the set has as few of
    them as possible. ``any_memory``: sets without room count too, and those with the most memory are preferred.
    """
    pool = _pool(way.fleet, members, lacking)
    if size > len(pool):
        return _large_ring(way.hops, members[:size]) if any_memory and len(members) >= size else None
    need = way.cohort.needs.bounds(way.split, size)
    if isinstance(need, str):
        return None
    if any_memory:
        # A higher bandwidth is preferred, as more memory is, before names decide.
        pool = [replace(mac, free_bytes=need.together, memory_bandwidth=mac.free_bytes // 2**20 + 1) for mac in pool]
        need = Bounds(0, 0, True, 0, most=1)
    costs: dict[tuple[str, str], int] = {}

    def hops(node: str) -> dict[str, Hop]:
        found = {}
        for mac in pool:
            if mac.name != node:
                pair = (node, mac.name) if node < mac.name else (mac.name, node)
                if pair not in costs:
                    obstacle = way.hops.of(*pair)
                    costs[pair] = obstacle.cost if obstacle else 0
                found[mac.name] = Hop(0, costs[pair])
        return found

    bandwidths = Buckets((mac.memory_bandwidth for mac in pool), MEMORY_STEP)
    graph = HopGraph(pool, hops, Buckets((), LINK_STEP), bandwidths)
    if not graph.may_hold(size, need):
        return None
    shortlist, budget = Shortlist(1), StepBudget(MAX_STEPS)
    # By the rules of a ring and without reachability, memory alone decides about a set.
    fitting = Fitting(Fleet(pool), way.cohort.needs, Transport.RING, way.split, size, need, shortlist, budget)
    search_sets(SetSearch(graph, size, need, shortlist, budget, fitting.consider), way.transport)
    way.budget.spend(MAX_STEPS - budget.left)
    if not shortlist.entries:
        return None
    return tuple(mac.name for mac in graph.members(shortlist.entries[0].order))


def _large_ring(hops: HopObstacles, macs: Sequence[Mac]) -> tuple[str, ...]:
    """A ring of more Macs than the search considers: from each to the one that is cheapest to reach."""
    order, left = [macs[0].name], [mac.name for mac in macs[1:]]
    while left:
        usable = hops.hops(order[-1])
        following = next((name for name in left if name in usable), left[0])
        left.remove(following)
        order.append(following)
    return tuple(order)


def _pool(fleet: Fleet, ranked: Sequence[Mac], lacking: Container[str]) -> list[Mac]:
    """A few Macs among which a near miss is likely. Those that are ``lacking`` something count as in use."""
    pool = {mac.name: mac for mac in ranked[: POOL // 2]}
    by_name = {mac.name: mac for mac in ranked}
    for head in ranked[: POOL // 2]:
        for cable in sorted(fleet.links(head.name), key=lambda entry: entry.name):
            peer = cable.other(head.name)
            if peer in by_name and len(pool) < POOL:
                pool[peer] = by_name[peer]
    for mac in ranked:
        if len(pool) >= POOL:
            break
        pool[mac.name] = mac
    return [replace(mac, in_use=mac.name in lacking, dials=None) for mac in pool.values()]
