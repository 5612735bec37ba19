"""Plans every group of a deployment, by the decisions that the operator makes."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations

from thunderfleet_crds.kinds.modeldeployment import AutoscalingStatus, AvoidedLink, Failure, Group, ModelDeployment
from thunderfleet_crds.vocabulary import GroupPhase, PlacedTransport, Split, Transport

from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.group import avoided
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step, next_step, place_after
from thunderfleet_operator.decide.mac_usage import quarantine_for
from thunderfleet_operator.decide.placing import port_aware_placement
from thunderfleet_operator.decide.placing.port_aware_placement import Asked
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.decide.placing.request import spec_hash
from thunderfleet_operator.decide.status.speed import predicted_speed
from thunderfleet_operator.observe.fleet.builder import occupied
from thunderfleet_operator.observe.fleet.corrections import corrections
from thunderfleet_operator.observe.fleet.usage import Taken
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.observe.objects.proofs import TRUSTING
from thunderfleet_operator.observe.reader import groups_of
from thunderfleet_operator.placement import Cable, Fleet, Mac, Placement, RankPlacement, Request, Speed, Unplaceable, present
from thunderfleet_operator.placement.eligibility import mended
from thunderfleet_operator.placement.graph.hops import rdma_hops, ring_hops
from thunderfleet_operator.placement.planner import KEPT
from thunderfleet_operator.placement.questions import where
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS
from thunderfleet_operator.plan_cli.weights import with_weights
from thunderfleet_operator.watch.cache import Cache


def _with_reported_use(index: Index, fleet: Fleet, used: Taken, uid: str | None, own: Container[int]) -> Taken:
    """``used``, plus the cables and queue pairs of groups that have a status, but whose plans are not in the file.

    They are assumed to use the best cable of each pair. Groups ``own`` of deployment ``uid`` do not count.
    """
    in_file = {epoch.key for epoch in index.epochs.values()}
    addresses, queue_pairs = set(used.addresses), dict(used.queue_pairs)
    for md in index.deployments.values():
        for group in md.status.groups if md is not None else ():
            if md is None or (md.metadata.uid == uid and group.index in own) or (md.metadata.uid, group.index) in in_file:
                continue
            nodes = [rank.node for rank in sorted(group.ranks, key=lambda rank: rank.rank) if rank.node in fleet.macs]
            if len(nodes) < 2:
                continue
            for one, other in _hop_pairs(nodes, group.transport):
                rdma = group.transport in RDMA_TRANSPORTS
                hop = (rdma_hops(fleet, one) if rdma else ring_hops(fleet, one)).get(other)
                for end in (hop.cable.a, hop.cable.b) if hop and hop.cable else ():
                    if rdma and end.device:
                        queue_pairs[end.node, end.device] = queue_pairs.get((end.node, end.device), 0) + 1
                    elif end.address:
                        addresses.add((end.node, end.address))
    return replace(used, addresses=frozenset(addresses), queue_pairs=queue_pairs)


@dataclass(frozen=True, slots=True)
class Planned:
    """One group: its placement with ports, or why it has none."""

    index: int
    found: Placement | Unplaceable
    free: Mapping[str, int]
    """Bytes by Mac before this group was placed."""
    ports: tuple[RankPorts, ...] = ()
    measured: float | None = None
    """Tokens per second that the group's benchmark measured in this placement."""


@dataclass(frozen=True, slots=True)
class _Next:
    """What happens to a group next. ``waits``: only after its back-off, and other groups may take its room until then."""

    step: NextStep
    waits: bool = False


def _next_step(view: GroupView, index: Index, deployment: ModelDeployment, now: datetime) -> _Next:
    """What happens to a group. If the file does not have its plan, its status is used as far as possible."""
    status, spec = view.status, deployment.spec
    if view.plan is not None:
        wanted = spec_hash(spec)
        step = next_step(view, Report(), index.nodes, index.fleet, wanted, spec.recovery, now, may_roll=True)
        if step.step in (Step.BACK_OFF, Step.GIVE_UP) and step.failure is not None:
            return _Next(place_after(step.failure), waits=True)
        return _Next(step)
    running = index.deployments.get(f"{deployment.metadata.namespace}/{deployment.metadata.name}")
    if running is None or status is None or not status.ranks or spec_hash(running.spec) != spec_hash(spec):
        return _Next(NextStep(Step.PLACE))
    lost = _lost(index, status)
    if status.state in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP) and status.last_failure is not None:
        # A group that backs off leaves a lost cable all the same. One that has given up does not.
        gave_up = status.state is GroupPhase.GAVE_UP and status.restarts >= spec.recovery.max_restarts
        if lost is None or not lost.ends or gave_up:
            return _Next(place_after(status.last_failure), waits=True)
    return _Next(NextStep(Step.KEEP)) if lost is None else _Next(lost, waits=True)


def _lost(index: Index, status: Group) -> NextStep | None:
    """What happens if a running group has lost a Mac or a cable, as far as its status shows it without the plan."""
    for rank in status.ranks:
        node, mac = index.nodes.get(rank.node), index.fleet.macs.get(rank.node)
        if node is None or (rank.address and node.address not in (None, rank.address) and _moved(rank.address, mac)):
            return NextStep(Step.PLACE)
    nodes = [rank.node for rank in sorted(status.ranks, key=lambda rank: rank.rank)]
    rdma = status.transport in RDMA_TRANSPORTS
    for one, other in _hop_pairs(nodes, status.transport):
        cables = [cable for cable in index.fleet.links(one) if cable.other(one) == other]
        if cables and all(cable.fault is not None or (rdma and cable.rdma_fault is not None) for cable in cables):
            return NextStep(Step.PLACE, ends=True)
    return None


def _moved(address: str, mac: Mac | None) -> bool:
    return mac is None or address not in mac.kinds.addresses


def _hop_pairs(nodes: Sequence[str], transport: PlacedTransport | None) -> list[tuple[str, str]]:
    if transport is Transport.JACCL:
        return list(combinations(nodes, 2))
    return [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)] if len(nodes) > 1 else []


def _lenient(fleet: Fleet, asked: Request, used: Mapping[str, int]) -> Fleet:
    """The fleet in which a group can stay on its Macs unless one of its cables has a known fault.

    ``used``: its bytes on each.
    """
    macs = [
        replace(mended(mac, asked), free_bytes=max(used[name], mac.free_bytes))
        for name, mac in fleet.macs.items()
        if name in used
    ]
    cables = {cable.name: cable for name in used for cable in fleet.links(name) if cable.other(name) in used}
    return fleet.changed(macs, map(_as_if_known, cables.values()))


def _as_if_known(cable: Cable) -> Cable:
    """A cable without its marks as unsteady or avoided, which do not matter to a group that already uses it."""
    problem = cable.rdma_problem if cable.rdma_fault is not None else None
    works = cable.connected or cable.fault is None
    return replace(cable, connected=works, rdma_problem=problem, unsteady=None, rdma_unsteady=None)


def _as_it_runs(fleet: Fleet, asked: Request, group: Group) -> Placement | None:
    """The placement that a group has: it keeps its transport, split and layers while it runs, even if there are better ones.

    None if its cables can no longer be used.
    """
    if group.transport is None or group.parallelism is None:
        return None
    lenient = _lenient(fleet, asked, {rank.node: rank.memory_bytes or 0 for rank in group.ranks})
    found = present(lenient, replace(asked, avoid={}, no_ring_ports={}), group.transport, group.parallelism)
    if found is None:
        return None
    known = {rank.rank: rank for rank in group.ranks}
    ranks = []
    for rank in found.ranks:
        own = known[rank.rank]
        layers = (own.layers.first, own.layers.first + own.layers.count) if own.layers else rank.layers
        ranks.append(replace(rank, layers=layers, memory_bytes=own.memory_bytes or rank.memory_bytes))
    return replace(found, ranks=tuple(ranks), reason=_reason(group) or found.reason)


def _reason(group: Group) -> str:
    """The reason of the placement, from the status."""
    rest = group.reason.partition("; ")[2]
    return f"{KEPT}; {rest}" if rest else ""


def _as_reported(group: Group, view: GroupView, speed: Speed | None) -> Placement:
    """The current placement of a group, from its status, if the planner would not choose it now."""
    ranks = tuple(
        RankPlacement(
            rank.rank,
            rank.node,
            rank.address or "",
            rank.memory_bytes or 0,
            (rank.layers.first, rank.layers.first + rank.layers.count) if rank.layers else None,
        )
        for rank in sorted(group.ranks, key=lambda rank: rank.rank)
    )
    plan = view.plan
    return Placement(
        model_path=plan.model_path if plan is not None else "",
        transport=group.transport or Transport.NONE,
        split=group.parallelism or Split.NONE,
        ranks=ranks,
        cables=plan.links if plan is not None else (),
        reason=_reason(group) or KEPT,
        kept=True,
        predicted=speed,
    )


def _measured(deployment: ModelDeployment, group: Group | None) -> float | None:
    """What the benchmark of this placement of a group measured."""
    found = deployment.status.benchmark
    if group is None or found is None or (found.group, found.epoch) != (group.index, group.epoch):
        return None
    return float(found.decode_tokens_per_second) if found.decode_tokens_per_second else None


class _Simulation:
    """Plans all groups of a deployment in order. Each is planned after the groups before it and those of other deployments."""

    def __init__(
        self, cache: Cache, deployment: ModelDeployment, settings: PortSettings, runners_up: int, now: datetime
    ) -> None:
        self._index = index = Index(cache, lambda: TRUSTING)
        self._deployment = deployment
        self._settings = settings
        self._runners_up = runners_up
        self._now = now
        self._views = groups_of(index, deployment)
        self._usage = index.usage
        self._corrections = corrections(index.deployments.values(), index.fleet)
        self._settled = set[int]()
        """Groups of which the plans say what they use."""
        links = [link for view in self._views.values() for link in self._avoided(view, None)]
        fetched, _ = with_weights(index, deployment, index.fleet)
        self._fleet = avoided.without(fetched, links, now)
        self._next = {number: _next_step(view, index, deployment, now) for number, view in self._views.items()}
        for number, following in self._next.items():
            self._note(self._views[number], following.step.failure)

    def _avoided(self, view: GroupView, failure: Failure | None) -> tuple[AvoidedLink, ...]:
        known = view.status.avoided_links if view.status is not None else ()
        return avoided.avoided(known, failure, view.last_epoch, self._index.fleet, self._now)

    def _note(self, view: GroupView, failure: Failure | None) -> None:
        """The effects of a failure on this group and those after it: cables that are avoided, and a Mac in quarantine."""
        index, meta = self._index, self._deployment.metadata
        self._fleet = avoided.without(self._fleet, self._avoided(view, failure), self._now)
        name = f"{meta.namespace}/{meta.name}-{view.index}"
        held = quarantine_for(index.profiles, index.nodes, failure, name, self._now)
        mac = self._fleet.macs.get(failure.node or "") if failure is not None else None
        if held is not None and mac is not None:
            self._fleet = self._fleet.changed([replace(mac, quarantine=held.reason)])

    def groups(self) -> list[Planned]:
        """Plans all groups, those that back off after all others."""
        numbers = range(self._deployment.wanted_groups)
        planned = {number: self._group(number) for number in sorted(numbers, key=lambda number: self._next[number].waits)}
        if any(self._next[number].waits for number in numbers):
            # They may leave room for others.
            left = [number for number, entry in planned.items() if isinstance(entry.found, Unplaceable)]
            planned.update({number: self._group(number) for number in left})
        return [planned[number] for number in numbers]

    def _group(self, number: int) -> Planned:
        view, deployment, key = self._views[number], self._deployment, (self._deployment.metadata.uid, number)
        step = self._next[number].step
        # Running groups of this deployment: those before this one use what was planned, those after it what they have now.
        taken = self._usage.without(key).taken()
        bare = occupied(self._fleet, self._index.taken, taken)
        used = _with_reported_use(self._index, bare, taken, key[0], self._settled | {number})
        fleet = occupied(bare, taken, used)
        free = {name: mac.free_bytes for name, mac in fleet.macs.items()}
        current = _current(view)
        asked = port_aware_placement.asked_for(fleet, deployment, used, self._settings, view, step, current, self._corrections)
        found: Placement | Unplaceable | None = None
        if step.step is Step.KEEP:
            found = self._kept(view, fleet, asked.question.requests[-1])
        if found is None:
            found = where(replace(asked.question, runners_up=self._runners_up))
        if isinstance(found, Unplaceable):
            return Planned(number, found, free)
        ports = self._ports(found, asked)
        self._settled.add(number)
        if step.step is Step.KEEP and (view.plan is not None or found.score is None):
            # It uses its plan or, without a plan, its pods and its status.
            return Planned(number, found, free, ports, _measured(deployment, view.status))
        plan = manifests.make_plan(deployment, number, view.last_epoch + 1, found, ports)
        self._usage = self._usage.without(key).placed(key, plan)
        return Planned(number, found, free, ports, _measured(deployment, view.status) if found.kept else None)

    def _kept(self, view: GroupView, fleet: Fleet, asked: Request) -> Placement | None:
        """The placement of a group that stays; None if its status does not show it."""
        status = view.status
        if status is None or not status.ranks or any(rank.node not in fleet.macs for rank in status.ranks):
            return None
        found = _as_it_runs(fleet, replace(asked, current=_current(view)), status)
        if found is not None:
            return found
        speed = predicted_speed(view.plan, fleet, self._deployment.spec, self._corrections) if view.plan else None
        return _as_reported(status, view, speed)

    def _ports(self, found: Placement, asked: Asked) -> tuple[RankPorts, ...]:
        if found.kept and all(node in asked.kept for node in found.nodes):
            return tuple(asked.kept[node] for node in found.nodes)
        return port_aware_placement.ports(found, self._deployment, asked.taken, self._settings, asked.kept)


def _current(view: GroupView) -> tuple[str, ...]:
    """The Macs of a group by rank, from its plan or, without one, from its status."""
    ranks = view.status.ranks if view.status is not None else ()
    return view.current or tuple(rank.node for rank in sorted(ranks, key=lambda rank: rank.rank))


def plan_groups(
    cache: Cache, deployment: ModelDeployment, settings: PortSettings, runners_up: int, now: datetime
) -> list[Planned]:
    """Plans all groups of a deployment, as the operator would at ``now``."""
    return _Simulation(cache, _awake(deployment), settings, runners_up, now).groups()


def _awake(deployment: ModelDeployment) -> ModelDeployment:
    """Plans a deployment that a request would start as if a request had come."""
    if not deployment.wakes or deployment.wanted_groups:
        return deployment
    status = deployment.status.model_copy(update={"autoscaling": AutoscalingStatus(replicas=1)})
    return deployment.model_copy(update={"status": status})
