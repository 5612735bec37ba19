"""The near misses of one transport among the Macs of one cohort: which of its sets are worth a closer look."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.explain.fixes import Way, fix
from thunderfleet_operator.placement.explain.miss import COST_MEMORY, NEW_MAC, Miss, Obstacle
from thunderfleet_operator.placement.explain.obstacles import HopObstacles, helpful_macs
from thunderfleet_operator.placement.explain.relaxed import cheapest_set
from thunderfleet_operator.placement.explain.shortage import least_missing
from thunderfleet_operator.placement.inputs.fleet import MAX_RANKS, Mac
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.rating.preferences import (
    LABELS,
    MESH_RANKS,
    allowed_splits,
    backend,
)
from thunderfleet_operator.placement.result import NearMiss
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import CandidateSearch

HELPFUL = 8
"""Most Macs in need of a change that are considered beside those that are needed anyway."""
CLOSER = 3
"""Number of sizes and splits that get a closer look, of those with room and of those without."""


@dataclass(frozen=True)
class _Pool:
    """Macs to choose from, by free memory, the most first; some of them must be changed."""

    macs: Sequence[Mac]
    obstacles: Mapping[str, Obstacle]

    def missing(self, size: int, need: Bounds) -> int:
        """Lower bound of the bytes that any set of this size is missing."""
        return least_missing([mac.free_bytes for mac in self.macs[:size]], need)


def transport_misses(search: CandidateSearch, cohort: Cohort, transport: PlacedTransport, budget: StepBudget) -> list[Miss]:
    """What keeps these Macs from forming a group over this transport. Once ``budget`` is spent, no more sets are examined."""
    request, label = search.request, LABELS[transport]
    least, most = max(2, request.min_nodes), request.max_nodes or MAX_RANKS
    if transport is Transport.JACCL:
        if least > MESH_RANKS:
            text = f"{label}: supports at most {MESH_RANKS} Macs, spec.nodes.min is {least}"
            return [Miss(COST_MEMORY + 3, 0, NearMiss((), transport, Split.NONE, text), Reason.TRANSPORT_UNAVAILABLE)]
        most = min(most, MESH_RANKS)
    if least > most:
        return []
    excluded = request.no_ring_ports if transport is Transport.RING else {}
    able = [mac for mac in cohort.macs.values() if backend(transport) in mac.backends and mac.name not in excluded]
    made = _Explanation(search, cohort, transport, range(least, most + 1), budget)
    misses = made.misses(_Pool(_ranked(able), {}))
    if all(miss.cost >= COST_MEMORY for miss in misses):
        # A fix without new hardware may be enough.
        misses += made.misses(_with_helpful(search, cohort, transport, able, least))
    return [*misses, *made.refused.values()]


def single_mac_misses(search: CandidateSearch, cohort: Cohort, budget: StepBudget) -> list[Miss]:
    """What keeps single Macs from holding the whole model: the largest, and one that need only be fixed."""
    need = cohort.needs.bounds(Split.NONE, 1)
    able = _ranked(list(cohort.macs.values()))
    if isinstance(need, str):
        near = NearMiss(tuple(mac.name for mac in able[:1]), Transport.NONE, Split.NONE, f"{LABELS[Transport.NONE]}: {need}")
        return [Miss(COST_MEMORY + 1, 0, near, Reason.NO_ROOM)]
    pool = _with_helpful(search, cohort, Transport.NONE, able, 1)
    helpful = [mac for mac in _ranked(list(search.fleet.macs.values())) if mac.name not in cohort.macs]
    big = [mac for mac in helpful if mac.free_bytes >= need.together]
    obstacles = helpful_macs(big, search.request, cohort, Transport.NONE, 1) or pool.obstacles
    hops = HopObstacles(search.fleet, Transport.NONE)
    way = Way(search.fleet, search.request, cohort, Transport.NONE, Split.NONE, hops, budget)
    names = [*(mac.name for mac in able[:1]), *islice(obstacles, 1)]
    return [miss for name in names if (miss := fix(way, (name,), obstacles)) is not None]


def _ranked(macs: Sequence[Mac]) -> list[Mac]:
    return sorted(macs, key=lambda mac: (-mac.free_bytes, mac.name))


def _with_helpful(
    search: CandidateSearch, cohort: Cohort, transport: PlacedTransport, able: Sequence[Mac], least: int
) -> _Pool:
    """The usable Macs, Macs that could be fixed, and as many new Macs as are missing then."""
    names = {mac.name for mac in able}
    others = [mac for name, mac in search.fleet.macs.items() if name not in names]
    obstacles = helpful_macs(others, search.request, cohort, transport, max(HELPFUL, least - len(able)))
    missing = least - len(able) - len(obstacles)
    new = [f"{NEW_MAC}{number}" for number in range(1, missing + 1)]
    text = f"needs {least} Macs, {least - missing} available: join {missing} more to the cluster (docs/install.md)"
    obstacles.update({name: Obstacle(COST_MEMORY, text) for name in new})
    macs = [*able, *(search.fleet.macs[name] for name in obstacles if name in search.fleet.macs)]
    return _Pool([*_ranked(macs), *(Mac(name, None, 0) for name in new)], obstacles)


class _Explanation:
    """The near misses of one transport and cohort."""

    def __init__(
        self, search: CandidateSearch, cohort: Cohort, transport: PlacedTransport, sizes: range, budget: StepBudget
    ) -> None:
        self._search = search
        self._cohort = cohort
        self._sizes = sizes
        hops = HopObstacles(search.fleet, transport)
        self._ways = [
            Way(search.fleet, search.request, cohort, transport, split, hops, budget)
            for split in allowed_splits(transport, search.request)
        ]
        self.refused: dict[tuple[PlacedSplit, str], Miss] = {}
        """Divisions whose memory is not known, by split and reason."""

    def misses(self, pool: _Pool) -> list[Miss]:
        """The near misses of sets of these Macs."""
        short: list[tuple[int, int, int]] = []
        for size in self._sizes[: max(0, len(pool.macs) - self._sizes.start + 1)]:
            for number, way in enumerate(self._ways):
                need = self._cohort.needs.bounds(way.split, size)
                if not isinstance(need, str):
                    short.append((pool.missing(size, need), size, number))
                    continue
                near = NearMiss((), way.transport, way.split, f"{way.split} over {size} Macs: {need}")
                self.refused.setdefault((way.split, need), Miss(COST_MEMORY + 1, size, near, Reason.NO_ROOM))
        short.sort()
        room = [entry for entry in short if not entry[0]][:CLOSER]
        rest = [entry for entry in short if entry[0]][:CLOSER]
        found = (
            fix(self._ways[i], order, pool.obstacles) for _, size, i in (*room, *rest) for order in self._sets(pool, size, i)
        )
        return [miss for miss in found if miss is not None]

    def _sets(self, pool: _Pool, size: int, number: int) -> Iterator[tuple[str, ...]]:
        """Sets of so many Macs in the order of a ring: with room, with the most memory, and with the fewest missing hops."""
        way, seen = self._ways[number], set[frozenset[str]]()
        for macs, any_memory in ((pool.macs, False), (pool.macs[:size], True), (pool.macs, True)):
            if way.budget.left <= 0:
                return
            order = cheapest_set(way, macs, size, pool.obstacles, any_memory=any_memory)
            if order is not None and frozenset(order) not in seen:
                seen.add(frozenset(order))
                yield order
