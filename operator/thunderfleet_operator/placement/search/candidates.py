"""All placements that a request allows on a fleet, the best first.

The planner's stages come in the order of preference, within each the sizes from the smallest, within each the splits. These
are the first parts of the score, so the first of them that any set of Macs can take is the best; the other parts decide
between the sets.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort, cohorts
from thunderfleet_operator.placement.inputs.fleet import MAX_RANKS, Fleet
from thunderfleet_operator.placement.inputs.model import ModelFacts
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.rating.preferences import (
    LAN_RING,
    MESH_RANKS,
    RDMA_TRANSPORTS,
    Stage,
    allowed_splits,
    stages,
)
from thunderfleet_operator.placement.rating.score import Score
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.fitting import Fitting
from thunderfleet_operator.placement.search.hop_graph import HopGraph
from thunderfleet_operator.placement.search.hop_graphs import HopGraphs, Known
from thunderfleet_operator.placement.search.roots import SetSearch, misses
from thunderfleet_operator.placement.search.sets import search_sets
from thunderfleet_operator.placement.search.shortlist import Arrangement, Shortlist

STAGE_SHARE = 4
"""One stage, size and split of a cohort may take at most this fraction of the remaining steps."""
ROOTS_A_STEP = 2
"""Sorting the Macs of a graph counts as one step for this many of them."""
GRAPHS_A_STEP = 2
"""Checking whether this many graphs may hold a group takes about as long as a step."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible placement."""

    score: Score
    found: Arrangement
    cohort: Cohort
    transport: PlacedTransport
    split: PlacedSplit

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key, the best first."""
        return (self.score, self.found.tie, self.cohort.order)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The Macs, by rank."""
        return tuple(mac.name for mac in self.found.graph.members(self.found.order))


class CandidateSearch:
    """One request on one fleet."""

    def __init__(
        self,
        fleet: Fleet,
        request: Request,
        budget: StepBudget,
        only: Iterable[str] | None = None,
        known: Known | None = None,
    ) -> None:
        """``only``: names of the Macs that may take a rank; None: all. ``known``: by other searches."""
        self.fleet = fleet = fleet if request.steady_cables else fleet.with_last_resort
        self.request = request
        self.budget = budget
        macs = fleet.macs if only is None else {name: fleet.macs[name] for name in only}
        known = Known() if known is None else known
        self.ineligible = known.ineligible(macs, request)
        """Why Macs may not take a rank, by name."""
        self.eligible = {name: mac for name, mac in macs.items() if name not in self.ineligible}
        self.cohorts = cohorts(self.eligible, request)
        self.unreached: list[tuple[PlacedTransport, tuple[str, ...]]] = []
        """Sets in which only a Mac that all others can reach is missing."""
        self._made = HopGraphs(fleet, request, known)
        self._graphs: dict[tuple[bool | None, bool, int], list[tuple[Cohort, list[HopGraph]]]] = {}
        self._largest: dict[Stage, int] = {}

    def again(self, budget: StepBudget) -> "CandidateSearch":
        """The same search from its beginning, with another budget."""
        other = copy(self)
        other.budget, other.unreached = budget, []
        return other

    def among(self, names: Collection[str], budget: StepBudget) -> "CandidateSearch":
        """The same search among some of the eligible Macs."""
        other = self.again(budget)
        other.eligible = {name: mac for name, mac in self.eligible.items() if name in names}
        parts = (cohort.among(names) for cohort in self.cohorts)
        other.cohorts = sorted((cohort for cohort in parts if cohort.macs), key=lambda cohort: cohort.order)
        other._graphs, other._largest = {}, {}
        return other

    def candidates(self, count: int) -> Iterator[Candidate]:
        """The best, then what comes after it, up to ``count`` for each stage, size and split."""
        for stage in stages(self.request):
            for size in self._sizes(stage):
                for preference, split in enumerate(allowed_splits(stage.transport, self.request)):
                    found = self._found(stage, size, split, preference, count)
                    yield from sorted(found, key=lambda candidate: candidate.order)

    def models(self, stage: Stage, size: int) -> Iterator[ModelFacts]:
        """The models that at least this number of Macs of a graph hold."""
        return (cohort.model for cohort, _ in self._hop_graphs(stage, size))

    def sizes(self) -> list[int]:
        """Numbers of Macs that a group can have, from the smallest."""
        return sorted({size for stage in stages(self.request) for size in self._sizes(stage)})

    def of_size(self, size: int, wanted: Callable[[Stage, PlacedSplit], bool], pipelines: int) -> Iterator[Candidate]:
        """The best candidate of each ``wanted`` stage and split on this number of Macs; several of pipelines."""
        for stage in stages(self.request):
            for preference, split in enumerate(allowed_splits(stage.transport, self.request)):
                if size in self._sizes(stage) and wanted(stage, split):
                    count = pipelines if split is Split.PIPELINE else 1
                    yield from self._found(stage, size, split, preference, count)

    def current(self, running: PlacedTransport | None = None, running_split: PlacedSplit | None = None) -> Candidate | None:
        """The current placement of the group (``request.current``), if it may stay there.

        The transport is the best that its Macs still support, or ``running`` if that is given; the split likewise.
        """
        return next(self.currents(running, running_split), None)

    def currents(self, running: PlacedTransport | None = None, running_split: PlacedSplit | None = None) -> Iterator[Candidate]:
        """Every transport and split that the Macs of ``request.current`` allow, the best by score first."""
        order = self.request.current
        size = len(order)
        if not order or len(set(order)) != size or any(name not in self.eligible for name in order):
            return
        for stage in stages(self.request):
            if size not in self._sizes(stage) or running not in (None, stage.transport):
                continue
            for preference, split in enumerate(allowed_splits(stage.transport, self.request)):
                for cohort, graphs in self._hop_graphs(stage, size) if running_split in (None, split) else ():
                    found = self._kept(cohort, graphs, stage, split, order)
                    if found is not None:
                        yield _candidate(found, cohort, stage, split, preference)

    def in_order(self, candidate: Candidate, order: tuple[int, ...]) -> Candidate | None:
        """The candidate with its Macs, by position, in another order of ranks; None if they cannot take the group so."""
        cohort, size, transport = candidate.cohort, len(order), candidate.transport
        need = cohort.needs.bounds(candidate.split, size)
        if isinstance(need, str):
            return None
        fitting = self._fitting(cohort, transport, candidate.split, size, need, 1, self.budget)
        found = fitting.in_order(candidate.found.graph, order)
        stage = Stage(transport, candidate.score.transport == LAN_RING)
        return _candidate(found, cohort, stage, candidate.split, candidate.score.split) if found is not None else None

    def most_ranks(self, transport: PlacedTransport) -> int:
        """The most ranks that a group over this transport can have, regardless of hops."""
        most = min(self.request.max_nodes or MAX_RANKS, len(self.eligible), MAX_RANKS)
        return min(most, MESH_RANKS) if transport is Transport.JACCL else most

    def _hop_graphs(self, stage: Stage, size: int = 1) -> list[tuple[Cohort, list[HopGraph]]]:
        """The cohorts with graphs of at least this number of Macs, and these graphs."""
        # The graphs of JACCL meshes and rings are the same.
        rdma = None if stage.transport is Transport.NONE else stage.transport in RDMA_TRANSPORTS
        key = (rdma, stage.lan, size)
        if key not in self._graphs:
            every = self._hop_graphs(stage) if size > 1 else [(cohort, self._made.of(cohort, stage)) for cohort in self.cohorts]
            large = ((cohort, [graph for graph in graphs if len(graph) >= size]) for cohort, graphs in every)
            self._graphs[key] = [(cohort, graphs) for cohort, graphs in large if graphs]
        return self._graphs[key]

    def _sizes(self, stage: Stage) -> range:
        request = self.request
        if stage.transport is Transport.NONE:
            return range(1, 2 if request.min_nodes == 1 else 1)
        if stage not in self._largest:
            self._largest[stage] = max((len(graph) for _, graphs in self._hop_graphs(stage) for graph in graphs), default=0)
        # Two Macs are a mesh: a ring of two is tried only on request.
        least = 3 if stage.transport is Transport.JACCL_RING and request.transport is Transport.AUTO else 2
        return range(max(least, request.min_nodes), min(self.most_ranks(stage.transport), self._largest[stage]) + 1)

    def _found(self, stage: Stage, size: int, split: PlacedSplit, preference: int, count: int) -> Iterator[Candidate]:
        for cohort, graphs in self._hop_graphs(stage, size):
            self.budget.spend(1 + len(graphs) // GRAPHS_A_STEP)
            need = cohort.needs.bounds(split, size)
            if isinstance(need, str):
                continue
            able = [graph for graph in graphs if graph.may_hold(size, need)]
            if not able:
                continue
            steps = max(1, self.budget.left // STAGE_SHARE)
            budget = StepBudget(steps if self.budget.left > 0 else 0)
            fitting = self._fitting(cohort, stage.transport, split, size, need, count, budget)
            for graph in able:
                if not budget.afford(1 + len(graph) // ROOTS_A_STEP):
                    break
                if misses(graph, size, need, fitting.shortlist, budget):
                    continue
                search_sets(SetSearch(graph, size, need, fitting.shortlist, budget, fitting.consider), stage.transport)
                if budget.exhausted:
                    break
            self.budget.left -= steps - budget.left
            self.budget.exhausted = self.budget.exhausted or budget.exhausted
            self.unreached += [(stage.transport, names) for names in fitting.unreached]
            for found in fitting.shortlist.entries:
                yield _candidate(found, cohort, stage, split, preference)

    def _fitting(
        self,
        cohort: Cohort,
        transport: PlacedTransport,
        split: PlacedSplit,
        size: int,
        need: Bounds,
        count: int,
        budget: StepBudget,
    ) -> Fitting:
        never_rank_0 = self.request.no_ring_ports if transport in RDMA_TRANSPORTS else {}
        return Fitting(self.fleet, cohort.needs, transport, split, size, need, Shortlist(count), budget, never_rank_0)

    def _kept(
        self, cohort: Cohort, graphs: Iterable[HopGraph], stage: Stage, split: PlacedSplit, names: tuple[str, ...]
    ) -> Arrangement | None:
        if any(name not in cohort.macs for name in names):
            return None
        size = len(names)
        need = cohort.needs.bounds(split, size)
        if isinstance(need, str):
            return None
        for graph in graphs:
            order = graph.positions(names)
            if order is not None:
                fitting = self._fitting(cohort, stage.transport, split, size, need, 1, self.budget)
                return fitting.in_order(graph, order)
        return None


def _candidate(found: Arrangement, cohort: Cohort, stage: Stage, split: PlacedSplit, preference: int) -> Candidate:
    score = Score(
        stage.rank,
        len(found.order),
        preference,
        *found.key,
        speed_mbps=min((hop.speed_mbps for hop in found.hops), default=0),
        unmeasured=sum(not hop.measured for hop in found.hops),
        memory_bandwidth=min(mac.memory_bandwidth for mac in found.graph.members(found.order)),
    )
    return Candidate(score, found, cohort, stage.transport, split)
