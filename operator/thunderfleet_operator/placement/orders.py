"""The order of a pipeline's ranks by predicted speed.

Layers are divided in proportion to free memory, but only as whole layers, and layers that do not fit move to a neighbor. So
another order of the same Macs divides the model differently, which matters if the Macs differ and the layers are few. The
search by score takes the first order in which every rank fits.

For a few ranks, every order is compared. For more ranks, pairs of ranks are exchanged as long as that is faster.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacedTransport, Split

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.inputs.fleet import Mac
from thunderfleet_operator.placement.inputs.model import ModelFacts
from thunderfleet_operator.placement.memory import Division
from thunderfleet_operator.placement.rating.speed import predict
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch

EVERY = 5
"""Most ranks of which every order is compared."""
MOST = 8
"""Most ranks for which other orders are tried."""
ROUNDS = 3
"""Most exchanges of two ranks."""
STEPS = 10
"""Steps that it takes to divide a model in one order and to predict its speed,"""
CACHES_A_STEP = 8
"""one additional step for this many layers with a cache,"""
LAYERS_A_STEP = 8
"""and one for this many layers on each rank, if the layers cannot be proportional to free memory."""

Kind = tuple[int, str, int, int, int]


class _Order(NamedTuple):
    """An order of kinds of Macs, and its speed."""

    speed: float
    kinds: tuple[Kind, ...]


def steps(model: ModelFacts, divided: Division | None = None) -> int:
    """What it takes to divide a model and to predict its speed."""
    found = STEPS + len(model.kv) // CACHES_A_STEP
    if divided is not None and not divided.by_free_memory:
        found += len(divided.needs) * len(model.layer_bytes) // LAYERS_A_STEP
    return found


def _neighbors(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Other orders of a ring: its rotations and its reverse, which need no other hops, and those with two ranks exchanged."""
    for around in (order, order[::-1]):
        yield from (around[i:] + around[:i] for i in range(len(order)))
    for one, other in combinations(range(len(order)), 2):
        changed = list(order)
        changed[one], changed[other] = order[other], order[one]
        yield tuple(changed)


def _places(members: Sequence[tuple[int, Kind]], kinds: Sequence[Kind]) -> Iterator[tuple[int, ...]]:
    """All orders of the members that are one of these kinds, the lowest positions first."""
    if not kinds:
        yield ()
    for at, (place, kind) in enumerate(members):
        if kind == kinds[0]:
            for rest in _places([*members[:at], *members[at + 1 :]], kinds[1:]):
                yield (place, *rest)


def _kind(mac: Mac) -> Kind:
    """The kinds of Macs. Exchanging two Macs of one kind makes no difference."""
    return mac.free_bytes, mac.chip, mac.gpu_cores, mac.memory_bandwidth, mac.gigaflops


class Orders:
    """The orders of one request's pipelines."""

    def __init__(self, search: CandidateSearch) -> None:
        self._search = search
        self._budget = search.budget
        self._known: dict[tuple[object, ...], list[_Order]] = {}
        """By cohort, transport and kinds of Macs."""

    def faster(self, candidate: Candidate, speed: float) -> Candidate | None:
        """A faster order of a pipeline's Macs that works, compared with the candidate's with its ``speed``; None if none does.

        For a few ranks, the fastest of all orders; for more, the fastest of those that were tried.
        """
        macs = candidate.found.graph.members(candidate.found.order)
        if candidate.split is not Split.PIPELINE or len(macs) > MOST or len({_kind(mac) for mac in macs}) == 1:
            return None
        orders = self._every(candidate, macs) if len(macs) <= EVERY else self._exchanged(candidate)
        for found, ways in orders:
            if found <= speed:
                return None
            for places in ways:
                if not self._budget.step():
                    return None
                other = self._search.in_order(candidate, places)
                if other is not None:
                    return other
        return None

    def _every(self, candidate: Candidate, macs: Sequence[Mac]) -> Iterator[tuple[float, Iterator[tuple[int, ...]]]]:
        """All orders of kinds by speed, the fastest first, each with the orders of the candidate's Macs."""
        for order in self._orders(candidate.cohort, candidate.transport, macs):
            yield order.speed, self._places(candidate, order.kinds)

    def _exchanged(self, candidate: Candidate) -> list[tuple[float, list[tuple[int, ...]]]]:
        """Orders of the candidate's Macs in which ranks changed places, and again from the fastest of them, by speed."""
        macs, tried = candidate.found.graph.macs, dict[tuple[int, ...], float]()
        best = candidate.found.order
        for _ in range(ROUNDS):
            start = best
            for order in _neighbors(start):
                if order not in tried:
                    tried[order] = self._speed(candidate.cohort, candidate.transport, [macs[i] for i in order])
            best = max(tried, key=lambda order: (tried[order], order))
            if best == start:
                break
        return sorted(((speed, [order]) for order, speed in tried.items()), reverse=True)

    def _orders(self, cohort: Cohort, transport: PlacedTransport, macs: Sequence[Mac]) -> list[_Order]:
        """Those in which every rank has room, the fastest first."""
        of_kind = {_kind(mac): mac for mac in macs}
        kinds = sorted(map(_kind, macs))
        key = (id(cohort), transport, *kinds)
        if key not in self._known:
            orders = dict.fromkeys(permutations(kinds))
            found = (_Order(self._speed(cohort, transport, [of_kind[kind] for kind in order]), order) for order in orders)
            self._known[key] = sorted((order for order in found if order.speed), reverse=True)
        return self._known[key]

    def _speed(self, cohort: Cohort, transport: PlacedTransport, macs: Sequence[Mac]) -> float:
        """The predicted speed with the Macs in this order; 0 if a rank has no room or no steps are left."""
        if not self._budget.afford(steps(cohort.model)):
            return 0
        divided = cohort.needs.divide(Split.PIPELINE, [mac.free_bytes for mac in macs])
        if divided is None:
            return 0
        self._budget.spend(steps(cohort.model, divided) - steps(cohort.model))
        shares, request = [last - first for first, last in divided.layers], self._search.request
        model, factors = cohort.model, request.corrections
        found = predict(model, macs, transport, Split.PIPELINE, shares, request.lengths, corrections=factors)
        return found.decode if found is not None else 0

    @staticmethod
    def _places(candidate: Candidate, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, ...]]:
        """All orders of the candidate's Macs that are one of these kinds."""
        graph = candidate.found.graph
        return _places([(i, _kind(graph.macs[i])) for i in candidate.found.places], kinds)
