"""The best order of ranks over a given set of Macs, where the order decides whether every rank has room."""

from collections.abc import Callable, Sequence

from thunderfleet_crds.vocabulary import PlacedSplit

from thunderfleet_operator.placement.memory import Needs
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.hop_graph import HopGraph

Cost = tuple[int, int]
"""Shared Macs and cables, and the negated speed bucket of the slowest hop."""
PAST_A_STEP = 16
"""Comparing with this many other orders takes about as long as a step."""
NO_HOPS = -(1 << 62)
"""Negated speed of a path without hops."""


class RankOrderSearch:
    """Builds orders from rank 0 backwards, because the last rank holds the first layers.

    An order is not continued if another one got as far with the same Macs at no higher cost and with at least the same
    possible layers held (dynamic programming).
    """

    def __init__(
        self,
        graph: HopGraph,
        members: tuple[int, ...],
        needs: Needs,
        split: PlacedSplit,
        budget: StepBudget,
        *,
        ring: bool,
        shared: int,
        order_matters: bool,
        accept: Callable[[Sequence[int]], bool],
    ) -> None:
        """``ring``: the ranks form a ring, whose shared cables add to the cost, rather than a mesh.

        ``shared``: cost of these Macs in any order. ``order_matters``: two orders of the same Macs may differ in whether
        ``accept`` takes them, so none replaces another. ``accept``: called with complete orders.
        """
        self.best: tuple[Cost, tuple[int, ...]] | None = None
        self._graph = graph
        self._members = members
        self._needs = needs
        self._split: PlacedSplit = split
        self._budget = budget
        self._ring = ring
        self._shared = shared
        self._order_matters = order_matters
        self._accept = accept
        self._bits = {member: 1 << at for at, member in enumerate(members)}
        self._every = [(new, bit, 0, NO_HOPS) for new, bit in self._bits.items()]
        self._before: dict[int, list[tuple[int, int, int, int]]] = {}
        self._seen: dict[tuple[int, int, int], list[tuple[Cost, int]]] = {}

    def search_from(self, coordinator: int) -> None:
        """Tries all orders that begin with this Mac as rank 0."""
        self._extend((coordinator,), self._bits[coordinator], (self._shared, NO_HOPS), 1)

    def _extend(self, order: tuple[int, ...], mask: int, cost: Cost, held: int) -> None:
        """``order``: rank 0, then the ranks so far from the last one up. ``mask``: their bits. ``held``: as in ``advance``."""
        rank = len(self._members) - len(order)
        if not rank:
            self._close(order, cost, held)
            return
        for new, bit, shared, speed in self._leading(order[1] if len(order) > 1 else order[0]):
            if mask & bit or (self.best is not None and self.best[0] <= cost):
                continue
            if not self._budget.step():
                return
            longer_cost = cost[0] + shared, max(cost[1], speed)
            now_held = self._needs.advance(self._split, held, rank, len(self._members), self._graph.free[new])
            if not now_held:
                continue
            if self._is_news((order[0], new if self._ring else -1, mask | bit), longer_cost, now_held):
                self._extend((order[0], new, *order[1:]), mask | bit, longer_cost, now_held)

    def _leading(self, to: int) -> Sequence[tuple[int, int, int, int]]:
        """Every Mac that can come before another one: its position, its bit, and what the hop between them adds to the cost."""
        if not self._ring:
            return self._every
        if not self._before:
            self._budget.spend(len(self._members))
            for new, bit in self._bits.items():
                for other, hop in self._graph.hops(new).items():
                    if other in self._bits:
                        step = new, bit, hop.shared, -self._graph.bucket(hop.speed_mbps)
                        self._before.setdefault(other, []).append(step)
        return self._before.get(to, ())

    def _is_news(self, state: tuple[int, int, int], cost: Cost, held: int) -> bool:
        """``state``: rank 0, in a ring the rank whose predecessor comes next, and the bits of all Macs so far."""
        if self._order_matters:
            return True
        past = self._seen.setdefault(state, [])
        self._budget.spend(len(past) // PAST_A_STEP)
        if any(price <= cost and held & ~layers == 0 for price, layers in past):
            return False
        past.append((cost, held))
        return True

    def _close(self, order: tuple[int, ...], cost: Cost, held: int) -> None:
        final = self._closed_cost(order, cost)
        if final is None or (self.best is not None and self.best[0] <= final):
            return
        whole = self._needs.advance(self._split, held, 0, len(order), self._graph.free[order[0]])
        if self._needs.complete(self._split, whole) and self._accept(order):
            self.best = final, order

    def _closed_cost(self, order: tuple[int, ...], cost: Cost) -> Cost | None:
        """The cost with the hop from rank 0 to rank 1; None if there is no such hop."""
        if len(order) == 1 or not self._ring:
            return cost
        hop = self._graph.hops(order[0]).get(order[1])
        if hop is None:
            return None
        if len(order) == 2 and hop.cable is not None:
            # Two Macs share one cable in both directions: it counts once.
            return cost
        return cost[0] + hop.shared, max(cost[1], -self._graph.bucket(hop.speed_mbps))
