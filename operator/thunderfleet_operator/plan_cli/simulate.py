"""Plans every group of a deployment, by the decision that the operator makes (``port_aware_placement.question``)."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from thunderfleet_crds.modeldeployment import Group, ModelDeployment
from thunderfleet_crds.vocabulary import Transport

from thunderfleet_operator.decide import manifests, port_aware_placement
from thunderfleet_operator.decide.ports import PortSettings
from thunderfleet_operator.decide.request import spec_hash
from thunderfleet_operator.observe.corrections import corrections
from thunderfleet_operator.observe.fleet import occupied
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.pods import RankPorts
from thunderfleet_operator.observe.proofs import TRUSTING
from thunderfleet_operator.observe.reader import groups_of
from thunderfleet_operator.observe.usage import Taken
from thunderfleet_operator.placement import Fleet, Placement, Request, Unplaceable, present
from thunderfleet_operator.placement.graph.hops import rdma_hops, ring_hops
from thunderfleet_operator.placement.questions import where
from thunderfleet_operator.watch.cache import Cache


def _with_reported_use(index: Index, fleet: Fleet, used: Taken, uid: str | None, own: Container[int]) -> Taken:
    """``used`` with the cables and queue pairs of groups that report a status but whose plans are not in the file.

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
            pairs = list(combinations(nodes, 2))
            if group.transport is not Transport.JACCL:
                pairs = [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]
            for one, other in pairs:
                rdma = group.transport in (Transport.JACCL, Transport.JACCL_RING)
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


def _as_it_runs(fleet: Fleet, asked: Request, group: Group, planned: Placement) -> Placement:
    """The placement that a group has: it keeps its transport, split and layers while it runs, even if there are better ones."""
    if group.transport is None or group.parallelism is None:
        return planned
    found = present(fleet, asked, group.transport, group.parallelism)
    if found is None:
        return planned
    known = {rank.rank: rank for rank in group.ranks}
    ranks = []
    for rank in found.ranks:
        own = known[rank.rank]
        layers = (own.layers.first, own.layers.first + own.layers.count) if own.layers else rank.layers
        ranks.append(replace(rank, layers=layers, memory_bytes=own.memory_bytes or rank.memory_bytes))
    return replace(found, ranks=tuple(ranks), runners_up=planned.runners_up)


def _measured(deployment: ModelDeployment, group: Group | None) -> float | None:
    """What the benchmark of this placement of a group measured."""
    found = deployment.status.benchmark
    if group is None or found is None or (found.group, found.epoch) != (group.index, group.epoch):
        return None
    return float(found.decode_tokens_per_second) if found.decode_tokens_per_second else None


def plan_groups(cache: Cache, deployment: ModelDeployment, settings: PortSettings, runners_up: int) -> list[Planned]:
    """Plans all groups of a deployment in order, each beside those before it and the groups of other deployments."""
    index, planned, settled = Index(cache, lambda: TRUSTING), list[Planned](), set[int]()
    running = index.deployments.get(f"{deployment.metadata.namespace}/{deployment.metadata.name}")
    same_spec = running is not None and spec_hash(running.spec) == spec_hash(deployment.spec)
    uid, usage, views = deployment.metadata.uid, index.usage, groups_of(index, deployment)
    measured_by_chip = corrections(index.deployments.values(), index.fleet)
    for number in range(deployment.spec.replicas):
        # Running groups of this deployment: those before this one hold what was planned, those after it what they have.
        taken = usage.taken((uid, number))
        bare = occupied(index.fleet, index.taken, taken)
        used = _with_reported_use(index, bare, taken, uid, settled | {number})
        fleet = occupied(bare, taken, used)
        free = {name: mac.free_bytes for name, mac in fleet.macs.items()}
        before = next((group for group in deployment.status.groups if group.index == number), None)
        current = tuple(rank.node for rank in sorted(before.ranks, key=lambda rank: rank.rank)) if before else ()
        kept = views[number].kept_ports
        question = port_aware_placement.question(
            fleet, deployment, used, settings, current=current, kept=kept, corrections=measured_by_chip
        )
        placement = where(replace(question, runners_up=runners_up))
        if before is not None and isinstance(placement, Placement) and placement.kept and same_spec:
            placement = _as_it_runs(fleet, question.requests[-1], before, placement)
        if isinstance(placement, Unplaceable):
            planned.append(Planned(number, placement, free))
            continue
        ports = port_aware_placement.ports(placement, deployment, used, settings, kept)
        measured = _measured(deployment, before) if placement.kept else None
        planned.append(Planned(number, placement, free, ports, measured))
        settled.add(number)
        plan = manifests.make_plan(deployment, number, views[number].last_epoch + 1, placement, ports)
        usage = usage.without((uid, number)).placed((uid, number), plan)
    return planned
