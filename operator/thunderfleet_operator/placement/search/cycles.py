"""The best ring over a given set of Macs."""

from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.hop_graph import HopGraph

Cycle = tuple[tuple[int, ...], int]
"""The Macs in the order of the ring, and how many of its cables are shared."""

PAIRS_A_STEP = 16
"""Looking at this many pairs of Macs takes about as long as a step."""


def best_cycle(graph: HopGraph, members: tuple[int, ...], speed: int, budget: StepBudget) -> Cycle | None:
    """A ring over all of these with no hop in a slower bucket than ``speed`` and as few shared cables as possible."""
    budget.spend(len(members) ** 2 // PAIRS_A_STEP)
    onward: dict[int, list[int]] = {}
    cost: dict[tuple[int, int], int] = {}
    for i in members:
        hops = graph.hops(i)
        near = [j for j in members if j in hops and graph.bucket(hops[j].speed_mbps) >= speed]
        if not near:
            return None
        cost.update(((i, j), 1) for j in near if hops[j].shared)
        onward[i] = near
    if not cost and all(len(near) == len(members) - 1 for near in onward.values()):
        return members, 0
    if len(members) == 2:
        one, other = members
        return members, cost.get((one, other), 0) + (0 if same_cable(graph, one, other) else cost.get((other, one), 0))
    search = _CycleSearch(members, onward, cost, budget)
    search.extend((members[0],), 1, 0)
    return search.best


def same_cable(graph: HopGraph, one: int, other: int) -> bool:
    """Whether the hops between two Macs run over the same cable in both directions."""
    cable = graph.hops(one)[other].cable
    return cable is not None and graph.hops(other)[one].cable is cable


class _CycleSearch:
    """Searches depth-first, with one path for each set of visited Macs and last Mac (dynamic programming)."""

    def __init__(
        self, members: tuple[int, ...], onward: dict[int, list[int]], cost: dict[tuple[int, int], int], budget: StepBudget
    ) -> None:
        """``onward``: the next Macs by Mac. ``cost``: 1 for each shared hop."""
        self.best: Cycle | None = None
        self._members = members
        self._onward = onward
        self._cost = cost
        self._budget = budget
        self._bit = {member: 1 << at for at, member in enumerate(members)}
        self._visited: dict[tuple[int, int], int] = {}

    def extend(self, path: tuple[int, ...], mask: int, paid: int) -> None:
        """``mask``: the bits of the path's Macs. ``paid``: its shared hops."""
        last = path[-1]
        if len(path) == len(self._members):
            self._close(path, paid)
            return
        for new in sorted(self._onward[last], key=lambda j: (self._cost.get((last, j), 0), j)):
            if self._bit[new] & mask or not self._budget.step():
                continue
            state, price = (mask | self._bit[new], new), paid + self._cost.get((last, new), 0)
            before = self._visited.get(state)
            if (before is not None and before <= price) or (self.best is not None and self.best[1] <= price):
                continue
            self._visited[state] = price
            self.extend((*path, new), state[0], price)

    def _close(self, path: tuple[int, ...], paid: int) -> None:
        root, last = path[0], path[-1]
        if root in self._onward[last]:
            paid += self._cost.get((last, root), 0)
            if self.best is None or paid < self.best[1]:
                self.best = path, paid
