"""Whether a set of Macs takes the group, and in which order: memory, reachability of rank 0 and queue pairs combined."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Transport

from thunderfleet_operator.placement.graph.coordinators import coordinators
from thunderfleet_operator.placement.graph.hops import Hop, queue_pairs_suffice
from thunderfleet_operator.placement.inputs.fleet import Fleet
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.hop_graph import HopGraph
from thunderfleet_operator.placement.search.rank_order import RankOrderSearch
from thunderfleet_operator.placement.search.shortlist import Arrangement, Shortlist

PAIRS_A_STEP = 4
"""Finding out how this many pairs of Macs reach each other takes about as long as a step."""
HOPS_A_STEP = 2
"""Looking at the cables of this many hops takes about as long as a step."""
DIALS = 16
"""Work for the reachability of one Mac, as a number of pairs."""


def joined_pairs(transport: PlacedTransport, order: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs that need a hop: in a mesh every two, in a ring each rank and the next."""
    if len(order) == 1:
        return []
    if transport is Transport.JACCL:
        return list(combinations(order, 2))
    return [(order[i - 1], order[i]) for i in (*range(1, len(order)), 0)]


def hops_over(graph: HopGraph, transport: PlacedTransport, order: Sequence[int]) -> tuple[Hop, ...]:
    """The hops of ``joined_pairs``."""
    return tuple(graph.hops(one)[other] for one, other in joined_pairs(transport, order))


def has_shared_device(graph: HopGraph, members: Sequence[int]) -> bool:
    """Whether a device faces several of these Macs, as behind a hub: its queue pairs may not suffice for all of them."""
    hops = (graph.hops(one).get(other) for one, other in combinations(members, 2))
    cables = [hop.cable for hop in hops if hop is not None and hop.cable is not None]
    ends = [(end.node, end.device) for cable in cables for end in (cable.a, cable.b)]
    return len(set(ends)) < len(ends)


@dataclass(slots=True)
class Fitting:
    """Arranges one model on sets of Macs, with one transport, split and size."""

    fleet: Fleet
    needs: Needs
    transport: PlacedTransport
    split: PlacedSplit
    size: int
    bounds: Bounds
    shortlist: Shortlist
    budget: StepBudget
    never_rank_0: Collection[str] = ()
    """Macs that cannot be rank 0 because they have no free ports."""
    unreached: list[tuple[str, ...]] = field(default_factory=list)
    """Sets with room in which no Mac can be reached by all others."""
    _coordinators: dict[tuple[str, ...], dict[str, dict[str, str]]] = field(default_factory=dict)
    """For Macs in the order of positions: which of them can be rank 0, and at which address the others dial it."""
    _ordered: set[tuple[str, ...]] = field(default_factory=set)
    """Sets of which all orders were searched."""

    def coordinators(self, graph: HopGraph, members: Sequence[int]) -> list[int]:
        """Macs that can be rank 0, the best first: the same for every order of ``members``."""
        if len(members) == 1:
            return list(members)
        at = {graph.macs[i].name: i for i in sorted(members)}
        return [at[name] for name in self._coordinators_of(graph, tuple(at.values())) if name not in self.never_rank_0]

    def _coordinators_of(self, graph: HopGraph, places: tuple[int, ...]) -> dict[str, dict[str, str]]:
        macs = graph.members(places)
        key = tuple([mac.name for mac in macs])
        found = self._coordinators.get(key)
        if found is None:
            self.budget.spend(len(key) * (len(key) + DIALS) // PAIRS_A_STEP)
            self._coordinators[key] = found = coordinators(self.fleet, macs, self.transport)
            if not found:
                self.unreached.append(tuple(sorted(key)))
        return found

    def in_order(self, graph: HopGraph, order: tuple[int, ...]) -> Arrangement | None:
        """The Macs in exactly this order; None if they cannot take the group so."""
        pairs = joined_pairs(self.transport, order)
        self.budget.spend(1 + len(order) // HOPS_A_STEP)
        if any(other not in graph.hops(one) for one, other in pairs):
            return None
        self.budget.spend(1 + len(pairs) // HOPS_A_STEP)
        if not self._has_queue_pairs(graph, order) or order[0] not in self.coordinators(graph, order):
            return None
        if self.needs.divide(self.split, [graph.free[i] for i in order]) is None:
            return None
        hops = hops_over(graph, self.transport, order)
        cables = {hop.cable.name: hop.shared for hop in hops if hop.cable is not None}
        return self._arrangement(graph, order, sum(graph.used[i] for i in order) + sum(cables.values()))

    def consider(self, graph: HopGraph, cycle: tuple[int, ...], shared: int) -> None:
        """Puts these Macs on the shortlist if they take the group.

        ``cycle``: the best of their rings, memory aside. ``shared``: how many Macs and cables they share with other groups.
        """
        size = len(cycle)
        self.budget.spend(1 + (size * (size - 1) // 2 if self.transport is Transport.JACCL else size) // HOPS_A_STEP)
        enough = self._has_queue_pairs(graph, cycle)
        if self.transport is Transport.JACCL and not enough:
            return
        if self.bounds.even and enough:
            able = self.coordinators(graph, cycle)
            if able:
                self.shortlist.add(self._arrangement(graph, self._starting_at(graph, cycle, able[0]), shared))
            return
        members = tuple(sorted(cycle))
        names = tuple(graph.macs[i].name for i in members)
        if names not in self._ordered:
            self._ordered.add(names)
            best = self._best_order(graph, members, shared)
            if best is not None:
                self.shortlist.add(self._arrangement(graph, best[1], best[0]))

    def _has_queue_pairs(self, graph: HopGraph, order: Sequence[int]) -> bool:
        if self.transport not in RDMA_TRANSPORTS:
            return True
        cables = [hop.cable for hop in hops_over(graph, self.transport, order) if hop.cable is not None]
        return queue_pairs_suffice(tuple(graph.macs[i].name for i in order), cables)

    def _starting_at(self, graph: HopGraph, cycle: tuple[int, ...], coordinator: int) -> tuple[int, ...]:
        """The ring from this rank 0 on; in a mesh, where any order works, the Macs with most free memory come next."""
        start = cycle.index(coordinator)
        rest = cycle[start + 1 :] + cycle[:start]
        if self.transport is Transport.JACCL:
            rest = tuple(sorted(rest, key=lambda i: (-graph.free[i], graph.macs[i].name)))
        return (coordinator, *rest)

    def _arrangement(self, graph: HopGraph, order: tuple[int, ...], shared: int) -> Arrangement:
        hops = hops_over(graph, self.transport, order)
        key = graph.key(order, shared, min((hop.speed_mbps for hop in hops), default=0))
        places = tuple(sorted(order))
        coordinator = self._coordinators_of(graph, places)[graph.macs[order[0]].name] if len(order) > 1 else {}
        return Arrangement(key, graph.tie(places), graph, order, places, hops, coordinator)

    def _best_order(self, graph: HopGraph, members: tuple[int, ...], shared: int) -> tuple[int, tuple[int, ...]] | None:
        """Of all orders in which every rank has room, the best, and how many Macs and cables it shares."""
        ring = self.transport in (Transport.RING, Transport.JACCL_RING)
        search = RankOrderSearch(
            graph,
            members,
            self.needs,
            self.split,
            self.budget,
            ring=ring,
            shared=sum(graph.used[i] for i in members) if ring else shared,
            order_matters=self.transport is Transport.JACCL_RING and has_shared_device(graph, members),
            accept=lambda order: self._has_queue_pairs(graph, order),
        )
        for coordinator in self.coordinators(graph, members):
            search.search_from(coordinator)
        return None if search.best is None else (search.best[0][0], search.best[1])
