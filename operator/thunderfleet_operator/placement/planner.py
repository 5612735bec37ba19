"""The decision: which Macs take which ranks of a group, over what, or why none can.

Transports are tried in the order of preference, within each the sizes from the smallest, within each the ways to split the
model: the first of these that any set of Macs can take has the best score, since these are its first parts. Which set takes
it is the search's work (``search``), whether and how a set takes it that of ``fitting``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thunderfleet_operator.placement.eligibility import lack, wanted_model
from thunderfleet_operator.placement.explain.near_misses import explain
from thunderfleet_operator.placement.fleet import Fleet, Mac, ModelFacts
from thunderfleet_operator.placement.graph.hops import MESH_RANKS, RELAY_COST, RELAY_MBPS, hops_of, rdma_lack
from thunderfleet_operator.placement.memory import Bounds, Division, Needs
from thunderfleet_operator.placement.request import Placement, RankPlacement, Relay, Request, RunnerUp, Unplaceable
from thunderfleet_operator.placement.score import LAN_RING, RANKING, Score
from thunderfleet_operator.placement.search.fitting import RDMA, Fitting, members_of
from thunderfleet_operator.placement.search.stage import Area, Found, Shortlist, Stage, Work
from thunderfleet_operator.placement.words import Split, Transport, WantedSplit, WantedTransport

WORK_LIMIT = 400_000
"""Steps of one plan: about a second. The steps are cheap, so a fleet that people wire never gets there."""
STAGE_SHARE = 4
"""One transport, size and split takes at most this part of the steps that are left."""
MAX_RANKS = 64


@dataclass(frozen=True, slots=True)
class Universe:
    """Macs whose ranks could work together: the same folder with the same content, the same MLX. Others refuse each other
    when they meet.
    """

    needs: Needs
    mlx: tuple[str, str]
    macs: Mapping[str, Mac]

    @property
    def model(self) -> ModelFacts:
        return self.needs.model

    @property
    def order(self) -> tuple[object, ...]:
        return (self.model.path, self.mlx, self.model.revision or "", self.model.bytes, min(self.macs, default=""))


def universes(macs: Mapping[str, Mac], request: Request) -> list[Universe]:
    """A Mac with several folders of the model is in several of them."""
    found: dict[tuple[ModelFacts, tuple[str, str]], dict[str, Mac]] = {}
    # Equal facts are mostly one value, and comparing them in full is not cheap.
    known: dict[tuple[int, str, str], dict[str, Mac]] = {}
    for name, mac in macs.items():
        for model in wanted_model(mac, request):
            if model.complete and model.sized:
                mlx = (mac.mlx_version or "", mac.mlx_lm_version or "")
                quick = (id(model), *mlx)
                if quick not in known:
                    known[quick] = found.setdefault((model, mlx), {})
                known[quick][name] = mac
    made = [Universe(Needs(model, request.memory), mlx, members) for (model, mlx), members in found.items()]
    return sorted(made, key=lambda universe: universe.order)


def allowed_transports(request: Request) -> tuple[Transport, ...]:
    """In the order of preference; one Mac needs none."""
    wanted = {
        WantedTransport.AUTO: RANKING[1:],
        WantedTransport.JACCL: (Transport.JACCL,),
        WantedTransport.JACCL_RING: (Transport.JACCL_RING,),
        WantedTransport.RING: (Transport.RING,),
    }
    return (Transport.NONE, *wanted[request.transport])


def stages(request: Request) -> tuple[tuple[Transport, bool], ...]:
    """Transports in the order of preference, and whether hops over a LAN count: after everything that cables carry."""
    allowed = allowed_transports(request)
    return tuple((transport, False) for transport in allowed) + (((Transport.RING, True),) if Transport.RING in allowed else ())


def allowed_splits(transport: Transport, request: Request) -> tuple[Split, ...]:
    """In the order of preference: Tensor's small all-reduces want RDMA, a pipeline is content with TCP."""
    if transport is Transport.NONE:
        return (Split.NONE,)
    if request.split is WantedSplit.TENSOR:
        return (Split.TENSOR,)
    if request.split is WantedSplit.PIPELINE:
        return (Split.PIPELINE,)
    return (Split.TENSOR, Split.PIPELINE) if transport in RDMA else (Split.PIPELINE, Split.TENSOR)


def areas(fleet: Fleet, universe: Universe, transport: Transport, lan: bool, request: Request) -> list[Area]:
    """Where groups over this transport could form, apart from one another. ``lan``: also over a LAN."""
    backend, bare = "jaccl" if transport in RDMA else "ring", request.ring_without_relay
    left_out = request.no_ring_ports if transport is Transport.RING else {}
    macs = universe.macs
    if transport is Transport.NONE:
        return [Area(list(macs.values()), lambda name: {}, 0)]
    if lan and all(mac.dials is None for mac in macs.values()):
        return []
    hops = hops_of(fleet, transport, lan, bare)
    joined = (tuple(macs),) if lan else [island for island in fleet.islands if len(island) > 1]
    found = []
    for island in joined:
        able = (macs[name] for name in island if name in macs and name not in left_out)
        members = [mac for mac in able if backend in mac.backends]
        if len(members) > 1:
            top = fleet.top_mbps
            if lan:
                top = max(top, fleet.top_lan_mbps if bare else RELAY_MBPS)
            found.append(Area(members, hops, top, directed=lan))
    return sorted(found, key=lambda area: area.tie((0,)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something found, with all that its placement is made from."""

    score: Score
    found: Found
    universe: Universe
    transport: Transport
    split: Split


class Search:
    """One request on one fleet."""

    def __init__(self, fleet: Fleet, request: Request, work: Work) -> None:
        self.fleet = fleet
        self.request = request
        self.work = work
        self.lacks = {name: why for name, mac in fleet.macs.items() if (why := lack(mac, request)) is not None}
        self.eligible = {name: mac for name, mac in fleet.macs.items() if name not in self.lacks}
        self.universes = universes(self.eligible, request)
        self.unreached: list[tuple[Transport, tuple[str, ...]]] = []
        """Sets that nothing but a rank 0 everybody can dial was missing of."""
        self._areas: dict[tuple[int, bool | None, bool], list[Area]] = {}

    def areas(self, position: int, transport: Transport, lan: bool) -> list[Area]:
        key = (position, None if transport is Transport.NONE else transport in RDMA, lan)
        if key not in self._areas:
            self._areas[key] = areas(self.fleet, self.universes[position], transport, lan, self.request)
        return self._areas[key]

    def sizes(self, transport: Transport, lan: bool) -> range:
        request = self.request
        if transport is Transport.NONE:
            return range(1, 2 if request.min_nodes == 1 else 1)
        joined = max((len(area) for i in range(len(self.universes)) for area in self.areas(i, transport, lan)), default=0)
        least = 3 if transport is Transport.JACCL_RING and request.transport is WantedTransport.AUTO else 2
        return range(max(least, request.min_nodes), min(self._most(transport), joined) + 1)

    def _most(self, transport: Transport) -> int:
        most = min(self.request.max_nodes or MAX_RANKS, len(self.eligible), MAX_RANKS)
        return min(most, MESH_RANKS) if transport is Transport.JACCL else most

    def near_sizes(self, transport: Transport) -> range:
        """Sizes to explain: those that the request allows, whatever the cables."""
        return range(max(2, self.request.min_nodes), self._most(transport) + 1)

    def transports(self) -> tuple[Transport, ...]:
        return allowed_transports(self.request)

    def splits(self, transport: Transport) -> tuple[Split, ...]:
        return allowed_splits(transport, self.request)

    def candidates(self, count: int) -> Iterator[Candidate]:
        """The best of all, then what comes after it, up to ``count`` a stage."""
        for transport, lan in stages(self.request):
            splits = allowed_splits(transport, self.request)
            for size in self.sizes(transport, lan):
                for preference, split in enumerate(splits):
                    yield from sorted(self._stage(transport, lan, size, split, preference, count), key=_candidate_order)

    def _stage(
        self, transport: Transport, lan: bool, size: int, split: Split, preference: int, count: int
    ) -> Iterator[Candidate]:
        for position, universe in enumerate(self.universes):
            need = universe.needs.bounds(split, size)
            if isinstance(need, str):
                continue
            able = [area for area in self.areas(position, transport, lan) if area.may_hold(size, need)]
            if not able:
                continue
            given = max(1, self.work.left // STAGE_SHARE)
            work = Work(given if self.work.left > 0 else 0)
            fitting = self._fitting(universe, transport, split, size, need, count, work)
            for area in able:
                stage = Stage(area, size, need, fitting.shortlist, work, fitting.evaluate)
                if transport is Transport.NONE:
                    stage.singles()
                elif transport is Transport.JACCL:
                    stage.cliques()
                else:
                    stage.rings()
                if work.cut:
                    break
            self.work.left -= given - work.left
            self.work.cut = self.work.cut or work.cut
            self.unreached += [(transport, names) for names in fitting.unreached]
            for found in fitting.shortlist.entries:
                yield self._candidate(found, universe, transport, lan, split, size, preference)

    def _fitting(
        self, universe: Universe, transport: Transport, split: Split, size: int, need: Bounds, count: int, work: Work
    ) -> Fitting:
        no_heads = self.request.no_ring_ports if transport in RDMA else {}
        return Fitting(self.fleet, universe.needs, transport, split, size, need, Shortlist(count), work, no_heads)

    def _candidate(
        self, found: Found, universe: Universe, transport: Transport, lan: bool, split: Split, size: int, preference: int
    ) -> Candidate:
        score = Score(
            LAN_RING if lan else RANKING.index(transport),
            size,
            preference,
            *found.key,
            speed_mbps=min((hop.speed_mbps for hop in found.hops), default=0),
            unmeasured=sum(not hop.measured for hop in found.hops),
            memory_megabytes=min(mac.memory_megabytes for mac in members_of(found.area, found.order)),
        )
        return Candidate(score, found, universe, transport, split)

    def current(self, running: Transport | None = None) -> Candidate | None:
        """Where the group is, if it may stay there: over the best transport that its Macs still have, or the one given."""
        order = self.request.current
        size = len(order)
        if not order or len(set(order)) != size or any(name not in self.eligible for name in order):
            return None
        for transport, lan in stages(self.request):
            if size not in self.sizes(transport, lan) or running not in (None, transport):
                continue
            for preference, split in enumerate(allowed_splits(transport, self.request)):
                for position, universe in enumerate(self.universes):
                    found = self._kept(position, transport, lan, split, order)
                    if found is not None:
                        return self._candidate(found, universe, transport, lan, split, size, preference)
        return None

    def _kept(self, position: int, transport: Transport, lan: bool, split: Split, names: tuple[str, ...]) -> Found | None:
        universe, size = self.universes[position], len(names)
        need = universe.needs.bounds(split, size)
        if isinstance(need, str) or any(name not in universe.macs for name in names):
            return None
        for area in self.areas(position, transport, lan):
            order = area.positions(names)
            if order is not None:
                return self._fitting(universe, transport, split, size, need, 1, self.work).stands(area, order)
        return None

    def placement(self, candidate: Candidate, kept: bool, runners_up: tuple[RunnerUp, ...]) -> Placement:
        """With ranks, addresses and devices."""
        found, transport = candidate.found, candidate.transport
        area, order = found.area, found.order
        macs = members_of(area, order)
        size = len(macs)
        divided = candidate.universe.needs.divide(candidate.split, [mac.free_bytes for mac in macs])
        if divided is None:
            raise AssertionError(f"the search took {[mac.name for mac in macs]} for Macs with room")
        ranks = []
        devices = self._devices(candidate) if transport in RDMA else [()] * size
        for rank, mac in enumerate(macs):
            hop = area.hops(order[rank - 1])[order[rank]] if transport is Transport.RING else None
            ranks.append(
                RankPlacement(
                    rank=rank,
                    node=mac.name,
                    address=mac.address or "",
                    memory_bytes=divided.needs[rank],
                    layers=divided.layers[rank] if divided.layers else None,
                    ring_address=hop.address if hop is not None and not hop.relay else None,
                    relay=Relay(hop.address or "", hop.backwards) if hop is not None and hop.relay else None,
                    devices=devices[rank],
                    coordinator=found.dialled[mac.name] if rank else None,
                )
            )
        speed = f"slowest hop {candidate.score.speed}" if size > 1 else ""
        why = "kept where it was" if kept else _because(candidate)
        reason = "; ".join(part for part in (why, _kind(candidate, self.request), _layers(divided), speed) if part)
        return Placement(
            model_path=candidate.universe.model.path,
            transport=transport,
            split=candidate.split,
            ranks=tuple(ranks),
            cables=tuple(hop.cable.name if hop.cable is not None else "" for hop in found.hops),
            speeds=tuple((hop.speed_mbps, hop.measured) for hop in found.hops),
            reason=reason,
            score=candidate.score,
            runners_up=runners_up,
            kept=kept,
            proven=not self.work.cut,
        )

    def _devices(self, candidate: Candidate) -> list[tuple[str | None, ...]]:
        """By rank, the device of each rank that faces each."""
        order = candidate.found.order
        size = len(order)
        found: list[list[str | None]] = [[None] * size for _ in order]
        rank_of = {mac.name: rank for rank, mac in enumerate(members_of(candidate.found.area, order))}
        for hop in candidate.found.hops:
            if hop.cable is not None:
                a, b = hop.cable.a, hop.cable.b
                one, other = rank_of[a.node], rank_of[b.node]
                found[one][other], found[other][one] = a.device, b.device
        return [tuple(row) for row in found]


def _candidate_order(candidate: Candidate) -> tuple[object, ...]:
    return (candidate.score, candidate.found.tie, candidate.universe.order)


def _kind(candidate: Candidate, request: Request) -> str:
    size, transport = candidate.score.macs, candidate.transport
    if transport is Transport.NONE:
        return "one Mac holds the whole model"
    if transport is Transport.RING:
        over = f"a TCP ring of {size} Macs {_over_lan(candidate) or 'on Thunderbolt cables'}"
        over += _why_no_rdma(candidate) if request.transport is WantedTransport.AUTO else ""
    else:
        over = f"a JACCL {'mesh' if transport is Transport.JACCL else 'ring'} of {size} Macs"
    return f"{candidate.split} parallelism over {over}{_why_fallback(candidate, request)}"


def _over_lan(candidate: Candidate) -> str:
    hops = candidate.found.hops
    relayed, bare = sum(hop.relay for hop in hops), sum(hop.cable is None and not hop.relay for hop in hops)
    told = [f"{bare} of {len(hops)} hops over the LAN, unencrypted"] if bare else []
    if relayed:
        told.append(f"{relayed} of {len(hops)} hops over the LAN relayed by the supervisors, encrypted ({RELAY_COST})")
    return "with " + " and ".join(told) if told else ""


def _why_no_rdma(candidate: Candidate) -> str:
    area, order = candidate.found.area, candidate.found.order
    without = sorted(mac.name for mac in members_of(area, order) if "jaccl" not in mac.backends)
    if without:
        return f" (no RDMA: the MLX of {', '.join(without[:3])}{' …' if len(without) > 3 else ''} lacks jaccl)"
    for hop in candidate.found.hops:
        lacking = rdma_lack(hop.cable) if hop.cable is not None else None
        if hop.cable is not None and lacking is not None:
            # What mends it follows after a colon, and stands at the link.
            return f" (no RDMA over {hop.cable.name}: {lacking.partition(': ')[0]})"
    return ""


def _why_fallback(candidate: Candidate, request: Request) -> str:
    """Why the model is not split in the way that suits the transport best."""
    if candidate.score.split == 0:
        return ""
    preferred = allowed_splits(candidate.transport, request)[0]
    need = candidate.universe.needs.bounds(preferred, candidate.score.macs)
    return f" ({preferred}: {need if isinstance(need, str) else 'some rank would have no room'})"


def _layers(divided: Division) -> str:
    if not divided.layers:
        return ""
    counts = "/".join(str(last - first) for first, last in divided.layers)
    return f"layers {counts} by free memory" if divided.by_free_memory else f"layers {counts}, moved until every rank fits"


def plan(fleet: Fleet, request: Request, *, runners_up: int = 0, work_limit: int = WORK_LIMIT) -> Placement | Unplaceable:
    """Where one group goes. The same fleet in any order gives the same answer.

    ``runners_up``: how many places that lost to tell of. ``work_limit``: steps of search; at the end of them the best found
    stands, marked as not proven.
    """
    search = Search(fleet, request, Work(work_limit))
    kept = search.current()
    winner: Candidate | None = kept
    losers: list[Candidate] = []
    for candidate in search.candidates(1 + runners_up) if kept is None or runners_up else ():
        if winner is None:
            winner = candidate
        elif any(candidate.found.tie == other.found.tie for other in (winner, *losers)):
            continue
        else:
            losers.append(candidate)
        if len(losers) >= runners_up:
            break
    if winner is None:
        return explain(search)
    told = tuple(
        RunnerUp(
            tuple(area_macs.name for area_macs in members_of(loser.found.area, loser.found.order)),
            loser.transport,
            loser.split,
            "a group stays where it is" if loser.score < winner.score else loser.score.why_worse(winner.score),
        )
        for loser in losers
    )
    return search.placement(winner, kept is not None, told)


def _because(winner: Candidate) -> str:
    return "fewest Macs that fit" if winner.transport is Transport.NONE else "best transport, fewest Macs that fit"


def better(fleet: Fleet, request: Request, running: Transport | None = None) -> str | None:
    """Whether a group that stays where it is (``request.current``) would be placed better today, in words. ``running``: what
    it runs over, since its Macs may have learnt something better.

    Only what its users would notice counts: the transport, the number of Macs, how the model is split, the slowest hop.
    """
    search = Search(fleet, request, Work(WORK_LIMIT))
    kept = search.current(running)
    if kept is None:
        return None
    best = next(search.candidates(1), None)
    if best is None:
        return None
    one, other = best.score, kept.score
    if (one.transport, one.macs, one.split, one.slowness) >= (other.transport, other.macs, other.split, other.slowness):
        return None
    if (one.transport, one.macs, one.split) == (other.transport, other.macs, other.split) and one.shared > other.shared:
        return None
    names = ", ".join(mac.name for mac in members_of(best.found.area, best.found.order))
    return f"{names}: here {other.why_worse(one)}"
