"""All placements that a request allows on a fleet, the best first.

The planner's stages come in the order of preference, within each the sizes from the smallest, within each the splits. These
are the first parts of the score, so the first of them that any set of Macs can take is the best; the other parts decide
between the sets.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.buckets import LINK_STEP, MEMORY_STEP, Buckets
from thunderfleet_operator.placement.cohorts import Cohort, cohorts
from thunderfleet_operator.placement.eligibility import ineligible_reason
from thunderfleet_operator.placement.fleet import Fleet, Mac
from thunderfleet_operator.placement.graph.hops import RELAY_MBPS, LANHops, hops_of
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.preferences import (
    LAN_RING,
    MAX_RANKS,
    MESH_RANKS,
    RDMA_TRANSPORTS,
    Stage,
    allowed_splits,
    backend,
    stages,
)
from thunderfleet_operator.placement.request import Request
from thunderfleet_operator.placement.score import Score
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.fitting import Fitting
from thunderfleet_operator.placement.search.hop_graph import HopGraph
from thunderfleet_operator.placement.search.roots import SetSearch
from thunderfleet_operator.placement.search.sets import search_sets
from thunderfleet_operator.placement.search.shortlist import Arrangement, Shortlist

STAGE_SHARE = 4
"""One stage, size and split of a cohort takes at most this fraction of the remaining steps."""
ROOTS_A_STEP = 4
"""Sorting the Macs of a graph counts as one step for this many of them."""


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


def _joined(fleet: Fleet, macs: Mapping[str, Mac], lan: bool) -> Iterable[Collection[str]]:
    """Sets of Macs such that every group that can form has all its Macs in one of them."""
    if not lan:
        return fleet.components
    # For a few Macs, finding the blocks of the whole fleet costs more than it saves.
    return fleet.blocks if len(macs) > MAX_RANKS else (macs,)


def hop_graphs(fleet: Fleet, cohort: Cohort, stage: Stage, request: Request) -> list[HopGraph]:
    """The separate graphs in which groups of a stage can form."""
    transport, lan = stage
    macs = cohort.macs
    bandwidths = Buckets(fleet.memory_rates, MEMORY_STEP)
    if transport is Transport.NONE:
        return [HopGraph(list(macs.values()), lambda name: {}, Buckets((), LINK_STEP), bandwidths)]
    if lan and all(mac.dials is None for mac in macs.values()):
        return []
    relay, needed = not request.ring_without_relay, backend(transport)
    excluded = request.no_ring_ports if transport is Transport.RING else {}
    hops = hops_of(fleet, transport, LANHops(fleet, relay) if lan else None)
    rates = fleet.rates(rdma=transport in RDMA_TRANSPORTS)
    if lan:
        rates |= {min(rate, RELAY_MBPS) for rate in fleet.lan_rates} | (set() if relay else fleet.lan_rates)
    speeds = Buckets(rates, LINK_STEP)
    found = []
    for names in _joined(fleet, macs, lan):
        able = (macs[name] for name in names if name in macs and name not in excluded)
        members = [mac for mac in able if needed in mac.backends]
        if len(members) > 1:
            found.append(HopGraph(members, hops, speeds, bandwidths, directed=lan))
    # Two blocks have at most one Mac in common.
    return sorted(found, key=lambda graph: graph.tie((0, 1)))


class CandidateSearch:
    """One request on one fleet."""

    def __init__(self, fleet: Fleet, request: Request, budget: StepBudget, only: Iterable[str] | None = None) -> None:
        """``only``: names of the Macs that may take a rank; None: all."""
        self.fleet = fleet = fleet if request.steady_cables else fleet.with_last_resort()
        self.request = request
        self.budget = budget
        macs = fleet.macs if only is None else {name: fleet.macs[name] for name in only}
        reasons = ((name, ineligible_reason(mac, request)) for name, mac in macs.items())
        self.ineligible = {name: why for name, why in reasons if why is not None}
        """Why each Mac that may not take a rank may not."""
        self.eligible = {name: mac for name, mac in macs.items() if name not in self.ineligible}
        self.cohorts = cohorts(self.eligible, request)
        self.unreached: list[tuple[PlacedTransport, tuple[str, ...]]] = []
        """Sets in which only a Mac that all others can reach is missing."""
        self._graphs: dict[tuple[int, bool | None, bool], list[HopGraph]] = {}

    def candidates(self, count: int) -> Iterator[Candidate]:
        """The best, then what comes after it, up to ``count`` for each stage, size and split."""
        for stage in stages(self.request):
            for size in self._sizes(stage):
                for preference, split in enumerate(allowed_splits(stage.transport, self.request)):
                    found = self._found(stage, size, split, preference, count)
                    yield from sorted(found, key=lambda candidate: candidate.order)

    def sizes(self) -> list[int]:
        """Numbers of Macs that a group can have, from the smallest."""
        return sorted({size for stage in stages(self.request) for size in self._sizes(stage)})

    def of_size(self, size: int, wanted: Callable[[PlacedTransport, PlacedSplit], bool], pipelines: int) -> Iterator[Candidate]:
        """The best candidate of each stage and split that is ``wanted``, on so many Macs; of pipelines several."""
        for stage in stages(self.request):
            for preference, split in enumerate(allowed_splits(stage.transport, self.request)):
                if size in self._sizes(stage) and wanted(stage.transport, split):
                    count = pipelines if split is Split.PIPELINE else 1
                    yield from self._found(stage, size, split, preference, count)

    def current(self, running: PlacedTransport | None = None, running_split: PlacedSplit | None = None) -> Candidate | None:
        """Where the group is (``request.current``), if it may stay there.

        Over the best transport that its Macs still have, or over ``running`` alone; likewise the split.
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
                for position, cohort in enumerate(self.cohorts) if running_split in (None, split) else ():
                    found = self._kept(position, stage, split, order)
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

    def _hop_graphs(self, position: int, stage: Stage) -> list[HopGraph]:
        """Of the cohort at ``position``."""
        # The graphs of JACCL meshes and rings are the same.
        rdma = None if stage.transport is Transport.NONE else stage.transport in RDMA_TRANSPORTS
        key = (position, rdma, stage.lan)
        if key not in self._graphs:
            self._graphs[key] = hop_graphs(self.fleet, self.cohorts[position], stage, self.request)
        return self._graphs[key]

    def _sizes(self, stage: Stage) -> range:
        request = self.request
        if stage.transport is Transport.NONE:
            return range(1, 2 if request.min_nodes == 1 else 1)
        graphs = (graph for position in range(len(self.cohorts)) for graph in self._hop_graphs(position, stage))
        largest = max(map(len, graphs), default=0)
        # Two Macs are a mesh: a ring of two is tried only on request.
        least = 3 if stage.transport is Transport.JACCL_RING and request.transport is Transport.AUTO else 2
        return range(max(least, request.min_nodes), min(self.most_ranks(stage.transport), largest) + 1)

    def _found(self, stage: Stage, size: int, split: PlacedSplit, preference: int, count: int) -> Iterator[Candidate]:
        for position, cohort in enumerate(self.cohorts):
            need = cohort.needs.bounds(split, size)
            if isinstance(need, str):
                continue
            able = [graph for graph in self._hop_graphs(position, stage) if graph.may_hold(size, need)]
            if not able:
                continue
            steps = max(1, self.budget.left // STAGE_SHARE)
            budget = StepBudget(steps if self.budget.left > 0 else 0)
            fitting = self._fitting(cohort, stage.transport, split, size, need, count, budget)
            for graph in able:
                if not budget.afford(len(graph) // ROOTS_A_STEP):
                    break
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

    def _kept(self, position: int, stage: Stage, split: PlacedSplit, names: tuple[str, ...]) -> Arrangement | None:
        cohort, size = self.cohorts[position], len(names)
        need = cohort.needs.bounds(split, size)
        if isinstance(need, str) or any(name not in cohort.macs for name in names):
            return None
        for graph in self._hop_graphs(position, stage):
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
