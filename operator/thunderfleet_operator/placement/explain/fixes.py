"""Everything that one set of Macs needs at once to take the group, checked by the planner itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.explain.changed import changed, has_placement
from thunderfleet_operator.placement.explain.miss import (
    ALL_TEXTS,
    COST_CHECK,
    COST_MEMORY,
    COST_SETTING,
    Miss,
    Obstacle,
    by_message,
    listed,
    named,
)
from thunderfleet_operator.placement.explain.obstacles import HopObstacles
from thunderfleet_operator.placement.explain.shortage import alone_text, rank_text, smallest_needs
from thunderfleet_operator.placement.graph.coordinators import coordinators
from thunderfleet_operator.placement.graph.hops import too_few_queue_pairs
from thunderfleet_operator.placement.inputs.fleet import Fleet, Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.rating.preferences import LABELS, RDMA_TRANSPORTS
from thunderfleet_operator.placement.result import Changes, NearMiss
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.fitting import joined_pairs

NO_RANK_0 = (
    "no Mac is reachable from all others yet; if this persists for more than a minute, check that the agents run and that the "
    "Macs reach each other over the LAN (status.reachability in `kubectl get np -o yaml`)"
)


LAYERS_A_STEP = 2
"""Looking for the end of a rank's layers at this many layers takes about as long as a step."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to divide the model: one transport and split among Macs of one cohort."""

    fleet: Fleet
    request: Request
    cohort: Cohort
    transport: PlacedTransport
    split: PlacedSplit
    hops: HopObstacles
    budget: StepBudget
    """Step budget of all sets that are examined."""


@dataclass(frozen=True, slots=True)
class _Joining:
    """What it takes to join Macs, memory aside."""

    order: Sequence[str]
    """By rank."""
    changes: Changes
    texts: Sequence[str]
    cost: int


def fix(way: Way, order: Sequence[str], obstacles: Mapping[str, Obstacle]) -> Miss | None:
    """What the Macs of a ring, in this order, or of a mesh need. None if nothing of the kind helps.

    ``obstacles``: by Mac that cannot take part, what is missing on it.
    """
    # Every Mac of the set is compared with every other, and may take any of the layers.
    way.budget.spend(len(order) ** 2 + len(order) * len(way.cohort.model.layer_bytes) // LAYERS_A_STEP)
    joining = _joining(way, order, tuple(name for name in order if name in obstacles))
    order, changes = joining.order, joining.changes
    fleet, _ = changed(way.fleet, way.request, way.cohort, way.transport, order, changes)
    members = [fleet.macs[name] for name in order]
    needs = smallest_needs(way.cohort.needs, way.split, [mac.free_bytes for mac in members])
    if needs is None:
        return None
    short = {mac.name: need for mac, need in zip(members, needs, strict=True) if need > mac.free_bytes}
    changes = replace(changes, free_bytes=tuple(short.items()))
    if not changes:
        return None
    fleet, request = changed(way.fleet, way.request, way.cohort, way.transport, order, changes)
    if not has_placement(fleet, request, way.transport, way.split, order, way.budget):
        return None
    missing = sum(max(0, need - mac.free_bytes) for mac, need in zip(members, needs, strict=True))
    texts = _texts(way, {mac.name: mac for mac in members}, short, obstacles, joining.texts)
    known = tuple(sorted(name for name in order if name in way.fleet.macs))
    title = "" if not texts.by_macs and len(order) == 1 else f"{LABELS[way.transport]}{_of(known, order)}: "
    near = NearMiss(known, way.transport, way.split, title + listed(texts.every, ALL_TEXTS), missing, changes)
    cost = joining.cost + sum(obstacles[name].cost for name in order if name in obstacles) + (COST_MEMORY if short else 0)
    return Miss(cost, missing, near, _reason(way, changes), title + listed(texts.brief))


def _joining(way: Way, order: Sequence[str], macs: tuple[str, ...]) -> _Joining:
    """``macs``: those that must be fixed."""
    lacking = {pair: obstacle for pair in _pairs(way, order) if (obstacle := way.hops.of(*pair)) is not None}
    queue_pairs = _queue_pairs(way, order, lacking)
    changes = Changes(macs, (), tuple(lacking), tuple((node, device) for node, device, _ in queue_pairs))
    zero, changes, problem = _rank_0(way, order, changes)
    texts = [*(entry.text for entry in lacking.values()), *(text for _, _, text in queue_pairs)]
    cost = sum(entry.cost for entry in lacking.values()) + COST_SETTING * len(queue_pairs)
    if problem is not None:
        texts.append(problem.text)
        cost += problem.cost
    return _Joining(_from(way, order, zero), changes, texts, cost)


def _pairs(way: Way, order: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs that need a hop, each once."""
    if way.transport is Transport.NONE:
        return []
    pairs = [(order[i], order[j]) for i, j in joined_pairs(way.transport, range(len(order)))]
    return list({frozenset(pair): pair for pair in reversed(pairs)}.values())[::-1]


def _queue_pairs(way: Way, order: Sequence[str], lacking: Mapping[tuple[str, str], Obstacle]) -> list[tuple[str, str, str]]:
    """Mac, device and text where a device faces more ranks than it has free queue pairs."""
    if way.transport not in RDMA_TRANSPORTS:
        return []
    wanted: dict[tuple[str, str], int] = {}
    left: dict[tuple[str, str], int] = {}
    for pair in ((order[i], order[j]) for i, j in joined_pairs(way.transport, range(len(order)))):
        cable = way.hops.hops(pair[0])[pair[1]].cable if not {pair, pair[::-1]} & lacking.keys() else None
        for end in (cable.a, cable.b) if cable is not None else ():
            key = (end.node, end.device or "")
            wanted[key] = wanted.get(key, 0) + 1
            left[key] = end.queue_pairs
    return [
        (node, device, too_few_queue_pairs(node, device, left[node, device], count))
        for (node, device), count in wanted.items()
        if count > left[node, device]
    ]


def _rank_0(way: Way, order: Sequence[str], changes: Changes) -> tuple[str, Changes, Obstacle | None]:
    """A Mac that can be rank 0 once ``changes`` are made; otherwise one that must be fixed for that, and what is missing."""
    if len(order) == 1:
        return order[0], changes, None
    fleet, request = changed(way.fleet, way.request, way.cohort, way.transport, order, changes)
    found = list(coordinators(fleet, [fleet.macs[name] for name in order], way.transport))
    ports = request.no_ring_ports if way.transport in RDMA_TRANSPORTS else {}
    if not found:
        reached = replace(changes, reach=True)
        fleet, _ = changed(way.fleet, way.request, way.cohort, way.transport, order, reached)
        found = list(coordinators(fleet, [fleet.macs[name] for name in order], way.transport)) or list(order)
        changes, problem = reached, Obstacle(COST_CHECK, NO_RANK_0)
    else:
        problem = None
    free = next((name for name in found if name not in ports), None)
    if free is not None:
        return free, changes, problem
    zero = found[0]
    text = (
        "the Mac of rank 0 needs a block of free ports in operator.ringPorts, and none of these Macs has one: "
        f"{zero} {ports[zero]}"
    )
    text = f"{problem.text}; {text}" if problem is not None else text
    return zero, replace(changes, macs=(*changes.macs, zero)), Obstacle(COST_MEMORY - 1, text)


def _from(way: Way, order: Sequence[str], zero: str) -> list[str]:
    """The same ring from rank 0 on; in a mesh the Macs with the most free memory come next."""
    start = list(order).index(zero)
    rest = [*order[start + 1 :], *order[:start]]
    if way.transport is Transport.JACCL:
        macs = way.fleet.macs
        rest.sort(key=lambda name: (-macs[name].free_bytes if name in macs else 0, name))
    return [zero, *rest]


def _of(known: Sequence[str], order: Sequence[str]) -> str:
    if len(order) == 1:
        return ""
    new = len(order) - len(known)
    return f" of {named(known)}{f' and {new} more' if new else ''}"


@dataclass(frozen=True, slots=True)
class _Texts:
    by_macs: list[str]
    more: list[str]
    joined: bool
    """Whether Macs must be joined; everything else can only be seen to then."""

    @property
    def every(self) -> list[str]:
        return [*self.by_macs, *self.more]

    @property
    def brief(self) -> list[str]:
        return self.by_macs if self.joined else self.every


def _texts(
    way: Way, members: Mapping[str, Mac], short: Mapping[str, int], obstacles: Mapping[str, Obstacle], hops: Sequence[str]
) -> _Texts:
    """The messages. ``members``: as they are with all other changes made. ``hops``: what joins them."""
    size = len(members)
    nodes = sorted(members)
    joined = [obstacles[name].text for name in nodes if name not in way.fleet.macs]
    lacks = by_message((name, obstacles[name].text) for name in nodes if name in obstacles and name in way.fleet.macs)
    room = by_message(
        (name, alone_text(members[name], need) if size == 1 else rank_text(members[name], need, way.split, size))
        for name, need in sorted(short.items())
    )
    return _Texts([*dict.fromkeys(joined), *lacks], [*room, *hops], bool(joined))


def _reason(way: Way, changes: Changes) -> Reason:
    ports = {*way.request.no_ring_ports} & {*changes.macs}
    if changes.free_bytes or set(changes.macs) - ports:
        return _without_backend(way, changes) or Reason.NO_ROOM
    if ports:
        return Reason.NO_PORTS_LEFT
    return Reason.NOT_YET_OBSERVED if changes.reach and not changes.hops else Reason.NOT_CONNECTED


def _without_backend(way: Way, changes: Changes) -> Reason | None:
    """The message if only the MLX of these Macs prevents the placement."""
    only = all(name in way.cohort.macs for name in changes.macs) and bool(changes.macs) and not changes.free_bytes
    return Reason.TRANSPORT_UNAVAILABLE if only else None
