"""The order of a pipeline's ranks by predicted speed.

Layers follow free memory, but they are whole, and those that do not fit move to a neighbor. So the same Macs in another order
divide the model otherwise, which matters where Macs are unlike and layers few. The search by score takes the first order in
which every rank fits.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacedTransport, Split

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.fleet import Mac
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch
from thunderfleet_operator.placement.speed import predict

MOST = 5
"""Most ranks of which every order is compared."""
STEPS = 10
"""What it takes to divide a model in one order."""

Kind = tuple[int, str, int, int, int]


class _Order(NamedTuple):
    """An order of kinds of Macs, and its speed."""

    speed: float
    kinds: tuple[Kind, ...]


def _kind(mac: Mac) -> Kind:
    """Macs of one kind can change places without a difference."""
    return mac.free_bytes, mac.chip, mac.gpu_cores, mac.memory_bandwidth, mac.gigaflops


class Orders:
    """The orders of one request's pipelines."""

    def __init__(self, search: CandidateSearch) -> None:
        self._search = search
        self._budget = search.budget
        self._known: dict[tuple[object, ...], list[_Order]] = {}
        """By cohort, transport and kinds of Macs."""

    def faster(self, candidate: Candidate, speed: float) -> Candidate | None:
        """The fastest order of a pipeline's Macs that works, if it is faster than the candidate's with its ``speed``."""
        macs = candidate.found.graph.members(candidate.found.order)
        if candidate.split is not Split.PIPELINE or len(macs) > MOST or len({_kind(mac) for mac in macs}) == 1:
            return None
        for order in self._orders(candidate.cohort, candidate.transport, macs):
            if order.speed <= speed:
                return None
            for places in self._places(candidate, order.kinds):
                if not self._budget.step():
                    return None
                found = self._search.in_order(candidate, places)
                if found is not None:
                    return found
        return None

    def _orders(self, cohort: Cohort, transport: PlacedTransport, macs: Sequence[Mac]) -> list[_Order]:
        """Those in which every rank has room, the fastest first."""
        of_kind = {_kind(mac): mac for mac in macs}
        kinds = sorted(map(_kind, macs))
        key = (id(cohort), transport, *kinds)
        if key not in self._known:
            found = (self._order(cohort, transport, of_kind, order) for order in dict.fromkeys(permutations(kinds)))
            self._known[key] = sorted((order for order in found if order is not None), reverse=True)
        return self._known[key]

    def _order(
        self, cohort: Cohort, transport: PlacedTransport, of_kind: dict[Kind, Mac], kinds: tuple[Kind, ...]
    ) -> _Order | None:
        if not self._budget.afford(STEPS):
            return None
        macs = [of_kind[kind] for kind in kinds]
        divided = cohort.needs.divide(Split.PIPELINE, [mac.free_bytes for mac in macs])
        if divided is None:
            return None
        shares, request = [last - first for first, last in divided.layers], self._search.request
        model, factors = cohort.model, request.corrections
        speed = predict(model, macs, transport, Split.PIPELINE, shares, request.lengths, corrections=factors)
        return _Order(speed.decode, kinds) if speed is not None else None

    @staticmethod
    def _places(candidate: Candidate, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, ...]]:
        """All orders of the candidate's Macs that are one of these kinds."""
        graph = candidate.found.graph
        for places in permutations(candidate.found.places):
            if all(_kind(graph.macs[i]) == kind for i, kind in zip(places, kinds, strict=True)):
                yield places
