"""Whether a set of Macs takes the group, and how its ranks are numbered: memory, rank 0 and queue pairs put together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations

from thunderfleet_operator.placement.fleet import Cable, Fleet, Mac, ModelFacts
from thunderfleet_operator.placement.hops import queue_pairs_suffice
from thunderfleet_operator.placement.memory import Bounds, pipeline_bytes, share_layers, tensor_bytes
from thunderfleet_operator.placement.ranks import leaders
from thunderfleet_operator.placement.request import MemoryRequest
from thunderfleet_operator.placement.search import Area, Found, Shortlist, Work
from thunderfleet_operator.placement.words import Split, Transport

Layers = tuple[tuple[int, int], ...]
RDMA = (Transport.JACCL, Transport.JACCL_RING)


def members_of(area: Area, order: Sequence[int]) -> list[Mac]:
    return [area.macs[i] for i in order]


def cables_of(area: Area, transport: Transport, order: Sequence[int]) -> list[Cable | None]:
    """As ``Placement.cables`` lists them."""
    size = len(order)
    if size == 1:
        return []
    if transport is Transport.JACCL:
        return [area.hops(one)[other].cable for one, other in combinations(order, 2)]
    return [area.hops(order[i])[order[(i + 1) % size]].cable for i in range(size)]


@dataclass(slots=True)
class Fitting:
    """One transport, size and split of one model. Remembers what it has worked out, by free memory in the order of ranks."""

    fleet: Fleet
    model: ModelFacts
    memory: MemoryRequest
    transport: Transport
    split: Split
    size: int
    bounds: Bounds
    shortlist: Shortlist
    work: Work
    unreached: list[tuple[str, ...]] = field(default_factory=list)
    """Sets that had room, but no rank 0 that everybody can dial."""
    _divisions: dict[tuple[int, ...], tuple[Layers, bool] | None] = field(default_factory=dict)
    _heads: dict[frozenset[str], list[str]] = field(default_factory=dict)
    _tensor: tuple[int, ...] = ()

    def division(self, order: Sequence[Mac]) -> tuple[tuple[int, ...], Layers, bool] | None:
        """Bytes by rank, layers by rank, and whether these follow free memory; None when some rank has no room."""
        free = tuple(mac.free_bytes for mac in order)
        if self.split is not Split.PIPELINE:
            if not self._tensor:
                needs = [tensor_bytes(self.model, self.memory, self.size, rank) for rank in range(self.size)]
                self._tensor = tuple(need for need in needs if need is not None)
            fits = all(need <= room for need, room in zip(self._tensor, free, strict=True))
            return (self._tensor, (), True) if fits else None
        if free not in self._divisions:
            self._divisions[free] = share_layers(self.model, self.memory, free)
        shared = self._divisions[free]
        if shared is None:
            return None
        return tuple(pipeline_bytes(self.model, self.memory, *span) for span in shared[0]), shared[0], shared[1]

    def _possible_heads(self, area: Area, members: tuple[int, ...]) -> list[int]:
        """Who can be rank 0, by preference: the same for every order of these Macs."""
        at = {area.macs[i].name: i for i in members}
        key = frozenset(at)
        if key not in self._heads:
            macs = [area.macs[i] for i in sorted(members)]
            self._heads[key] = [leader.name for leader in leaders(self.fleet, macs, self.transport)]
            if not self._heads[key]:
                self.unreached.append(tuple(sorted(at)))
        return [at[name] for name in self._heads[key]]

    def _numberings(self, area: Area, cycle: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Ways to number these Macs, rank 0 by preference. Where the order decides whether they fit, all ways."""
        if self.size == 1:
            yield cycle
            return
        heads = self._possible_heads(area, cycle)
        if self.transport is Transport.JACCL:
            # In a mesh every order will do: the biggest first.
            for head in heads:
                rest = sorted((i for i in cycle if i != head), key=lambda i: (-area.free[i], area.macs[i].name))
                yield (head, *rest)
            if not self.bounds.even:
                for head in heads:
                    yield from ((head, *rest) for rest in permutations(i for i in cycle if i != head))
            return
        for head in heads:
            start = cycle.index(head)
            yield cycle[start:] + cycle[:start]

    def _other_cycles(self, area: Area, cycle: tuple[int, ...], shared: int, speed: int) -> Iterator[tuple[int, ...]]:
        """Rings over the same Macs that are no worse in what they share and how fast they are."""
        first = cycle[0]
        for rest in permutations(sorted(i for i in cycle if i != first)):
            if not self.work.step():
                return
            order = (first, *rest)
            hops = [area.hops(order[i]).get(order[(i + 1) % self.size]) for i in range(self.size)]
            known = [hop for hop in hops if hop is not None]
            if len(known) < self.size:
                continue
            both = self.size == 2 and known[0].cable is known[1].cable
            cost = sum(area.used[i] for i in cycle) + sum(hop.shared for hop in known[: 1 if both else None])
            slowest = min(hop.speed_mbps for hop in known)
            if (cost, -slowest) == (shared, -speed):
                yield order

    def evaluate(self, area: Area, cycle: tuple[int, ...], shared: int, speed: int) -> None:
        """Puts these Macs on the shortlist if they take the group."""
        free = [area.free[i] for i in cycle]
        if sum(free) < self.bounds.together:
            return
        if self.transport in RDMA:
            cables = [cable for cable in cables_of(area, self.transport, cycle) if cable is not None]
            if not queue_pairs_suffice(tuple(area.macs[i].name for i in cycle), cables, 1):
                return
        key = (shared, -speed, max(free) - min(free), sum(free))
        if self._number(area, cycle, key):
            return
        ring = self.transport in (Transport.RING, Transport.JACCL_RING)
        if not self.bounds.even and ring and self.size > 2:
            for other in self._other_cycles(area, cycle, shared, speed):
                if self._number(area, other, key):
                    return

    def _number(self, area: Area, cycle: tuple[int, ...], key: tuple[int, int, int, int]) -> bool:
        for order in self._numberings(area, cycle):
            if not self.work.step():
                return False
            divided = self.division(members_of(area, order))
            if divided is not None:
                needs, ranges, follows = divided
                self.shortlist.add(Found(key, area.tie(order), area, order, ranges, needs, follows))
                return True
            if self.bounds.even:
                return False
        return False
