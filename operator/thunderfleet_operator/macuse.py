"""What the operator says of each Mac on its NodeProfile: the groups that have it, and whether placements avoid it.

Agents read the groups: they leave the cables of a running group alone, and dial those that they share a group with. All of it
follows from the plans and the pods; only a quarantine is written down there for good, until the Mac has booted anew.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.common import LABEL_DEPLOYMENT, Condition, find_condition, set_condition
from thunderfleet_crds.group import FaultClass
from thunderfleet_crds.kube import Json
from thunderfleet_crds.modeldeployment import Failure, GroupStage, ModelDeployment
from thunderfleet_crds.nodeprofile import QUARANTINED, GroupUse, NodeProfile, Quarantine
from thunderfleet_crds.plan import Backend, Plan
from thunderfleet_crds.thunderboltlink import Endpoint, ThunderboltLink

from thunderfleet_operator import fleets, snapshot
from thunderfleet_operator.cache import CONFIGMAPS, DEPLOYMENTS, LINKS, NODEPROFILES, NODES, PODS, Cache
from thunderfleet_operator.snapshot import Epoch, Parsed

Uses = Mapping[str, tuple[GroupUse, ...]]
"""By Mac."""
_Placement = tuple[str, str, int, int]
"""Namespace, deployment, group, epoch."""


# --- which groups have a Mac -----------------------------------------------------------------------------------------


def _carries(plan: Plan, rank: int, other: int, near: Endpoint | None, far: Endpoint | None) -> bool:
    """Whether a cable between two ranks' Macs, of which these are the ends, is one that their group uses."""
    mine, theirs = plan.ranks[rank], plan.ranks[other]
    if plan.backend is Backend.JACCL:
        return near is not None and near.rdma_device is not None and mine.devices[other] == near.rdma_device
    # A ring: each rank dials the next at that one's ring address, which is the cable's.
    size = plan.world_size
    listens = other == (rank - 1) % size and near is not None and near.address == mine.ring_address
    dials = other == (rank + 1) % size and far is not None and far.address == theirs.ring_address
    return listens or dials


def cables(plan: Plan, links: Iterable[ThunderboltLink], profiles: Mapping[str, NodeProfile]) -> dict[str, tuple[str, ...]]:
    """By Mac of the group, the names of its cables that the group uses; none of a group that meets over a LAN."""
    ranks = {entry.node: entry.rank for entry in plan.ranks}
    found: dict[str, set[str]] = {node: set() for node in ranks}
    for link in links:
        ends = (link.spec.a, link.spec.b)
        if any(end.node not in ranks for end in ends):
            continue
        told = [fleets.endpoint_of(link, end, profiles.get(end.node)) for end in ends]
        for here, there in ((0, 1), (1, 0)):
            if _carries(plan, ranks[ends[here].node], ranks[ends[there].node], told[here], told[there]):
                found[ends[here].node].add(link.metadata.name)
                found[ends[there].node].add(link.metadata.name)
    return {node: tuple(sorted(names)) for node, names in found.items()}


def use(plan: Plan, links: tuple[str, ...]) -> GroupUse:
    return GroupUse(name=plan.group, epoch=plan.epoch, nodes=tuple(rank.node for rank in plan.ranks), links=links)


@dataclass(frozen=True, slots=True)
class _Ground:
    """The cache, ordered for this question."""

    epochs: Mapping[_Placement, Epoch]
    pods: Mapping[_Placement, frozenset[str]]
    """Macs on which a placement has a pod that has not ended."""
    links: Mapping[str, tuple[Json, ...]]
    """By Mac."""


def _ground(cache: Cache) -> _Ground:
    epochs: dict[_Placement, Epoch] = {}
    for item in cache[CONFIGMAPS]:
        epoch = snapshot.read_epoch(item)
        if epoch.plan is not None and not item["metadata"].get("deletionTimestamp"):
            plan = epoch.plan
            epochs[plan.namespace, plan.deployment, plan.index, plan.epoch] = epoch
    pods: dict[_Placement, set[str]] = {}
    for pod in cache[PODS]:
        node = snapshot.pod_node(pod)
        if node is None or snapshot.owner_uid(pod) is None or snapshot.ended(pod):
            continue
        meta, view = pod["metadata"], snapshot.pod_view(pod)
        name = (meta.get("labels") or {}).get(LABEL_DEPLOYMENT, "")
        pods.setdefault((meta["namespace"], name, snapshot.group_index(pod), view.epoch), set()).add(node)
    links: dict[str, list[Json]] = {}
    for link in cache[LINKS]:
        for end in ("a", "b"):
            links.setdefault(str(link["spec"][end]["node"]), []).append(link)
    return _Ground(
        epochs,
        {placement: frozenset(nodes) for placement, nodes in pods.items()},
        {node: tuple(found) for node, found in links.items()},
    )


def _stands(deployment: ModelDeployment | None, plan: Plan, newest: int) -> bool:
    """Whether a plan's pods are there or are about to be made: all its Macs are the group's."""
    if deployment is None or deployment.metadata.uid != plan.uid or deployment.metadata.deletion_timestamp is not None:
        return False
    if plan.index >= deployment.spec.replicas or plan.epoch != newest:
        return False
    told = next((group for group in deployment.status.groups if group.index == plan.index), None)
    waits = told is not None and told.epoch == plan.epoch and told.state in (GroupStage.BACKING_OFF, GroupStage.GAVE_UP)
    return not waits


def uses(cache: Cache, parsed: Parsed) -> Uses:
    """Every group that has a Mac now: a pod of it is there, or its newest plan is about to make one."""
    ground = _ground(cache)
    newest: dict[tuple[str, str, int], int] = {}
    for namespace, name, index, epoch in ground.epochs:
        newest[namespace, name, index] = max(epoch, newest.get((namespace, name, index), 0))
    found: dict[str, dict[str, GroupUse]] = {}
    for placement in sorted({*ground.epochs, *ground.pods}, key=lambda placement: placement[3]):
        nodes = set(ground.pods.get(placement, frozenset()))
        epoch_ = ground.epochs.get(placement)
        plan = epoch_.plan if epoch_ else None
        if plan is not None:
            item = cache[DEPLOYMENTS].items.get(f"{placement[0]}/{placement[1]}")
            deployment = parsed.get(ModelDeployment, item) if item else None
            if _stands(deployment, plan, newest[placement[:3]]):
                nodes |= {rank.node for rank in plan.ranks}
        # A later epoch takes the place of an earlier one: a Mac has a group once.
        for node, entry in _entries(cache, parsed, ground, placement, plan, nodes):
            found.setdefault(node, {})[entry.name] = entry
    return {node: tuple(entries[name] for name in sorted(entries)) for node, entries in found.items()}


def _entries(
    cache: Cache, parsed: Parsed, ground: _Ground, placement: _Placement, plan: Plan | None, nodes: set[str]
) -> Iterator[tuple[str, GroupUse]]:
    if plan is None:
        # Its plan was collected before its pods: what was told stands, since it is of the same plan.
        for node in nodes:
            name = f"{placement[0]}/{placement[1]}-{placement[2]}"
            told = (entry for entry in told_groups(cache, parsed, node) if (entry.name, entry.epoch) == (name, placement[3]))
            yield node, next(told, GroupUse(name=name, epoch=placement[3], nodes=(node,)))
        return
    if not nodes:
        return
    near = {link["metadata"]["name"]: link for rank in plan.ranks for link in ground.links.get(rank.node, ())}
    links = [link for item in near.values() if (link := parsed.get(ThunderboltLink, item)) is not None]
    by_node = cables(plan, links, {rank.node: profile for rank in plan.ranks if (profile := known(cache, parsed, rank.node))})
    for node in nodes:
        yield node, use(plan, by_node.get(node, ()))


def known(cache: Cache, parsed: Parsed, node: str) -> NodeProfile | None:
    item = cache[NODEPROFILES].items.get(node)
    return parsed.get(NodeProfile, item) if item else None


def told_groups(cache: Cache, parsed: Parsed, node: str) -> tuple[GroupUse, ...]:
    profile = known(cache, parsed, node)
    return profile.status.groups if profile else ()


# --- quarantine ------------------------------------------------------------------------------------------------------


def boot_id(cache: Cache, node: str) -> str | None:
    item = cache[NODES].items.get(node) or {}
    return ((item.get("status") or {}).get("nodeInfo") or {}).get("bootID")


def wants_quarantine(profile: NodeProfile, failure: Failure, boot: str | None) -> bool:
    """Whether a failure is news: of class Reboot, on a Mac that has not booted since and is not in quarantine already."""
    if failure.class_ is not FaultClass.REBOOT or failure.node != profile.metadata.name or boot is None:
        return False
    known_ = profile.status.quarantine
    if known_ is not None and known_.boot_id == boot:
        return False
    ended = find_condition(profile.status.conditions, QUARANTINED)
    cleared = ended.last_transition_time if ended is not None and ended.status.value == "False" else None
    return cleared is None or failure.time is None or failure.time > cleared


def quarantine(failure: Failure, group: str, boot: str, now: datetime) -> Quarantine:
    return Quarantine(
        boot_id=boot, since=failure.time or now, reason=failure.reason, evidence=f"group {group}: {failure.message}"
    )


def standing(profile: NodeProfile, boot: str | None) -> Quarantine | None:
    """The quarantine, unless the Mac has booted since. A Node that says no boot ID ends none."""
    known_ = profile.status.quarantine
    return known_ if known_ is not None and boot in (None, known_.boot_id) else None


# --- what is written -------------------------------------------------------------------------------------------------


def wanted(profile: NodeProfile, groups: tuple[GroupUse, ...], held: Quarantine | None, now: datetime) -> Json:
    """The operator's whole part of a NodeProfile's status."""
    conditions: tuple[Condition, ...] = tuple(c for c in profile.status.conditions if c.type == QUARANTINED)
    name = profile.metadata.name
    if held is not None:
        text = (
            f"placements avoid {name} until it is rebooted (`sudo shutdown -r now` on it), since "
            f"{held.since:%Y-%m-%d %H:%M:%S} UTC: {held.evidence}"
        )
        conditions = set_condition(conditions, QUARANTINED, True, held.reason, text, now=now)
    elif conditions:
        conditions = set_condition(conditions, QUARANTINED, False, "Rebooted", f"{name} has booted since", now=now)
    status: Json = {}
    if groups:
        status["groups"] = [entry.dump() for entry in groups]
    if held is not None:
        status["quarantine"] = held.dump()
    if conditions:
        status["conditions"] = [condition.dump() for condition in conditions]
    return status


def current(profile: NodeProfile) -> Json:
    """The same part, as it is."""
    status: Json = {}
    if profile.status.groups:
        status["groups"] = [entry.dump() for entry in sorted(profile.status.groups, key=lambda entry: entry.name)]
    if profile.status.quarantine is not None:
        status["quarantine"] = profile.status.quarantine.dump()
    if conditions := [c.dump() for c in profile.status.conditions if c.type == QUARANTINED]:
        status["conditions"] = conditions
    return status
