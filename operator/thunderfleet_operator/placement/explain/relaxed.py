"""The search with relaxed rules: every two Macs count as joined, at a cost for each hop that is missing or unusable."""

from collections.abc import Container, Sequence
from dataclasses import replace

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Transport

from thunderfleet_operator.placement.explain.miss import Obstacle
from thunderfleet_operator.placement.explain.obstacles import hop_obstacle
from thunderfleet_operator.placement.fleet import Fleet, Mac
from thunderfleet_operator.placement.graph.hops import Hop
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.fitting import Fitting, joined_pairs
from thunderfleet_operator.placement.search.hop_graph import HopGraph
from thunderfleet_operator.placement.search.roots import SetSearch
from thunderfleet_operator.placement.search.sets import search_sets
from thunderfleet_operator.placement.search.shortlist import Shortlist

POOL = 10
"""Macs considered: those with the most free memory, and those cabled to the first of them."""
MAX_STEPS = 4_000


def cheapest_set(
    fleet: Fleet,
    members: Sequence[Mac],
    needs: Needs,
    transport: PlacedTransport,
    split: PlacedSplit,
    size: int,
    need: Bounds,
    lacking: Container[str] = (),
) -> tuple[tuple[str, ...], list[Obstacle]] | None:
    """The set that costs least to connect, and what its hops are missing; None if no set has room.

    ``lacking``: Macs that need a change themselves; the set has as few of them as possible.
    """
    pool = _pool(fleet, members, lacking)
    obstacles: dict[tuple[str, str], Obstacle | None] = {}

    def hops(node: str) -> dict[str, Hop]:
        found = {}
        for mac in pool:
            if mac.name != node:
                key = (node, mac.name)
                if key not in obstacles:
                    obstacles[key] = hop_obstacle(fleet, *key, transport)
                obstacle = obstacles[key]
                found[mac.name] = Hop(0, obstacle.cost if obstacle else 0)
        return found

    graph = HopGraph(pool, hops, 0)
    if not graph.may_hold(size, need):
        return None
    shortlist, budget = Shortlist(1), StepBudget(MAX_STEPS)
    # By the rules of a ring and without reachability, memory alone decides about a set.
    fitting = Fitting(Fleet(pool), needs, Transport.RING, split, size, need, shortlist, budget)
    search_sets(SetSearch(graph, size, need, shortlist, budget, fitting.consider), transport)
    if not shortlist.entries:
        return None
    order = shortlist.entries[0].order
    nodes = [mac.name for mac in graph.members(order)]
    names = dict(zip(order, nodes, strict=True))
    pairs = [(names[one], names[other]) for one, other in joined_pairs(transport, order)]
    found = [entry for one, other in pairs if (entry := hop_obstacle(fleet, one, other, transport)) is not None]
    return tuple(nodes), list({entry.text: entry for entry in found}.values())


def _pool(fleet: Fleet, members: Sequence[Mac], lacking: Container[str]) -> list[Mac]:
    """A few Macs among which a near miss is likely. Those that are ``lacking`` something count as in use."""
    ranked = sorted(members, key=lambda mac: (-mac.free_bytes, mac.name))
    pool = {mac.name: mac for mac in ranked[: POOL // 2]}
    by_name = {mac.name: mac for mac in members}
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
