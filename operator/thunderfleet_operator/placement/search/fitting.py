"""Whether a set of Macs takes the group, and how its ranks are numbered: memory, rank 0 and queue pairs put together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from thunderfleet_operator.placement.fleet import Fleet, Mac
from thunderfleet_operator.placement.graph.coordinators import leaders
from thunderfleet_operator.placement.graph.hops import Hop, queue_pairs_suffice
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.search.stage import Area, Found, Shortlist, Work
from thunderfleet_operator.placement.units import steady
from thunderfleet_operator.placement.words import Split, Transport

RDMA = (Transport.JACCL, Transport.JACCL_RING)


def members_of(area: Area, order: Sequence[int]) -> list[Mac]:
    return [area.macs[i] for i in order]


def pairs_of(transport: Transport, order: Sequence[int]) -> list[tuple[int, int]]:
    """Who is joined to whom: in a mesh everybody, in a ring the neighbours, one way."""
    if len(order) == 1:
        return []
    if transport is Transport.JACCL:
        return list(combinations(order, 2))
    return [(order[i - 1], order[i]) for i in (*range(1, len(order)), 0)]


def hops_over(area: Area, transport: Transport, order: Sequence[int]) -> tuple[Hop, ...]:
    """In the order of ``pairs_of``."""
    return tuple(area.hops(one)[other] for one, other in pairs_of(transport, order))


def several_behind_one_device(area: Area, members: Sequence[int]) -> bool:
    """Whether a device faces more than one of these Macs, as behind a hub: its queue pairs may not do for all."""
    hops = (area.hops(one).get(other) for one, other in combinations(members, 2))
    cables = [hop.cable for hop in hops if hop is not None and hop.cable is not None]
    ends = [(end.node, end.device) for cable in cables for end in (cable.a, cable.b)]
    return len(set(ends)) < len(ends)


@dataclass(slots=True)
class Fitting:
    """One transport, size and split of one model."""

    fleet: Fleet
    needs: Needs
    transport: Transport
    split: Split
    size: int
    bounds: Bounds
    shortlist: Shortlist
    work: Work
    no_heads: Collection[str] = ()
    """Macs that cannot be rank 0, whoever can dial them."""
    unreached: list[tuple[str, ...]] = field(default_factory=list)
    """Sets that had room, but no rank 0 that everybody can dial."""
    _heads: dict[tuple[str, ...], dict[str, dict[str, str]]] = field(default_factory=dict)
    """By Macs, in the order of positions: who can be rank 0, and where the others dial it."""
    _tried: set[tuple[str, ...]] = field(default_factory=set)
    """Sets of which every order has been looked at."""

    def heads(self, area: Area, members: Sequence[int]) -> list[int]:
        """Who can be rank 0, by preference: the same for every order of these Macs."""
        if len(members) == 1:
            return list(members)
        at = {area.macs[i].name: i for i in sorted(members)}
        return [at[name] for name in self._leaders(area, tuple(at.values())) if name not in self.no_heads]

    def _leaders(self, area: Area, places: tuple[int, ...]) -> dict[str, dict[str, str]]:
        macs = members_of(area, places)
        key = tuple([mac.name for mac in macs])
        found = self._heads.get(key)
        if found is None:
            self._heads[key] = found = leaders(self.fleet, macs, self.transport)
            if not found:
                self.unreached.append(tuple(sorted(key)))
        return found

    def stands(self, area: Area, order: tuple[int, ...]) -> Found | None:
        """These Macs in this very order, if they take the group so."""
        if any(other not in area.hops(one) for one, other in pairs_of(self.transport, order)):
            return None
        if not self._enough(area, order) or order[0] not in self.heads(area, order):
            return None
        if self.needs.divide(self.split, [area.free[i] for i in order]) is None:
            return None
        hops = hops_over(area, self.transport, order)
        cables = {hop.cable.name: hop.shared for hop in hops if hop.cable is not None}
        return self._found(area, order, sum(area.used[i] for i in order) + sum(cables.values()))

    def evaluate(self, area: Area, cycle: tuple[int, ...], shared: int) -> None:
        """Puts these Macs on the shortlist if they take the group. ``cycle``: the best of their rings, memory apart."""
        enough = self._enough(area, cycle)
        if self.transport is Transport.JACCL and not enough:
            return
        if self.bounds.even and enough:
            heads = self.heads(area, cycle)
            if heads:
                self.shortlist.add(self._found(area, self._from(area, cycle, heads[0]), shared))
            return
        members = tuple(sorted(cycle))
        names = tuple(area.macs[i].name for i in members)
        if names not in self._tried:
            self._tried.add(names)
            best = self._best_order(area, members, shared)
            if best is not None:
                self.shortlist.add(self._found(area, best[1], best[0]))

    def _enough(self, area: Area, order: Sequence[int]) -> bool:
        """Whether the RDMA devices have queue pairs for this."""
        if self.transport not in RDMA:
            return True
        cables = [hop.cable for hop in hops_over(area, self.transport, order) if hop.cable is not None]
        return queue_pairs_suffice(tuple(area.macs[i].name for i in order), cables, 1)

    def _from(self, area: Area, cycle: tuple[int, ...], head: int) -> tuple[int, ...]:
        """The same with this one as rank 0; in a mesh, where every order will do, the biggest next."""
        start = cycle.index(head)
        rest = cycle[start + 1 :] + cycle[:start]
        if self.transport is Transport.JACCL:
            rest = tuple(sorted(rest, key=lambda i: (-area.free[i], area.macs[i].name)))
        return (head, *rest)

    def _found(self, area: Area, order: tuple[int, ...], shared: int) -> Found:
        """``shared``: Macs and cables."""
        hops = hops_over(area, self.transport, order)
        key = area.key(order, shared, min((hop.speed_mbps for hop in hops), default=0))
        places = tuple(sorted(order))
        dialled = self._leaders(area, places)[area.macs[order[0]].name] if len(order) > 1 else {}
        return Found(key, area.tie(places), area, order, places, hops, dialled)

    def _best_order(self, area: Area, members: tuple[int, ...], shared: int) -> tuple[int, tuple[int, ...]] | None:
        """Of all orders of these Macs the best in which every rank has room, with what it shares.

        From rank 0 backwards, since the last rank holds the first layers. An order that has come as far as another did, with
        the same Macs, at no less cost and with no other layers held, is not continued.
        """
        size = len(members)
        ring = self.transport in (Transport.RING, Transport.JACCL_RING)
        used = sum(area.used[i] for i in members) if ring else shared
        hubs = self.transport is Transport.JACCL_RING and several_behind_one_device(area, members)
        best: tuple[tuple[int, int], tuple[int, ...]] | None = None
        seen: dict[tuple[int, ...], list[tuple[tuple[int, int], int]]] = {}

        def with_hop(one: int, other: int, cost: tuple[int, int]) -> tuple[int, int] | None:
            if not ring:
                return cost
            hop = area.hops(one).get(other)
            return None if hop is None else (cost[0] + hop.shared, max(cost[1], -steady(hop.speed_mbps)))

        def close(order: tuple[int, ...], cost: tuple[int, int], held: int) -> None:
            nonlocal best
            final: tuple[int, int] | None = cost
            if size > 1:
                final = with_hop(order[0], order[1], cost)
                if final is not None and ring and size == 2 and area.hops(order[0])[order[1]].cable is not None:
                    # Between two Macs the way back runs over the same cable.
                    final = cost
            if final is None or (best is not None and best[0] <= final):
                return
            whole = self.needs.advance(self.split, held, 0, size, area.free[order[0]])
            if self.needs.complete(self.split, whole) and self._enough(area, order):
                best = final, order

        def extend(order: tuple[int, ...], cost: tuple[int, int], held: int) -> None:
            """``order``: rank 0 and, behind it, as many ranks from the last one up as there are so far."""
            rank = size - len(order)
            if not rank:
                close(order, cost, held)
                return
            for new in members:
                if new in order or (best is not None and best[0] <= cost):
                    continue
                dearer = with_hop(new, order[1] if len(order) > 1 else order[0], cost)
                if dearer is None:
                    continue
                if not self.work.step():
                    return
                following = self.needs.advance(self.split, held, rank, size, area.free[new])
                if not following:
                    continue
                longer = (order[0], new, *order[1:])
                state = (order[0], new if ring else -1, *sorted(longer))
                past = seen.setdefault(state, [])
                if not hubs and any(price <= dearer and following & ~layers == 0 for price, layers in past):
                    continue
                past.append((dearer, following))
                extend(longer, dearer, following)

        for head in self.heads(area, members):
            extend((head,), (used, -(1 << 62)), 1)
        return None if best is None else (best[0][0], best[1])
