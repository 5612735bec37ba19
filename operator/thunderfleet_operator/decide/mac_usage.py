"""What the operator says of each Mac on its NodeProfile: the groups that have it, and whether placements avoid it.

Agents read the groups: they leave the cables of a running group alone, and dial those that they share a group with. All of it
follows from the plans and the pods; only a quarantine is written down there for good, until the Mac has booted anew.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from typing import TypeVar, cast

from thunderfleet_crds.common import LABEL_DEPLOYMENT, Condition, find_condition, set_condition
from thunderfleet_crds.modeldeployment import Failure, ModelDeployment
from thunderfleet_crds.nodeprofile import GroupUse, NodeProfile, Quarantine
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.thunderboltlink import Endpoint, ThunderboltLink
from thunderfleet_crds.vocabulary import Backend, ConditionType, FaultClass, GroupPhase
from thunderfleet_lib.kube import Json

from thunderfleet_operator.observe import fleet, snapshot
from thunderfleet_operator.observe.snapshot import Parsed
from thunderfleet_operator.watch.cache import (
    CONFIGMAPS,
    DEPLOYMENTS,
    LINKS,
    NODEPROFILES,
    NODES,
    PODS,
    Cache,
    Collection,
    Store,
)

T = TypeVar("T")
V = TypeVar("V")

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
        told = [fleet.endpoint_of(link, end, profiles.get(end.node)) for end in ends]
        for here, there in ((0, 1), (1, 0)):
            if _carries(plan, ranks[ends[here].node], ranks[ends[there].node], told[here], told[there]):
                found[ends[here].node].add(link.metadata.name)
                found[ends[there].node].add(link.metadata.name)
    return {node: tuple(sorted(names)) for node, names in found.items()}


class Ground:
    """The cache, ordered for this question. Each collection is gone through again only when it has changed: a fleet is a
    thousand Macs, and most rounds are about two of them.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._seen: dict[tuple[str, str], tuple[int, object]] = {}

    def _kept(self, collection: Collection, make: Callable[[Store], T], what: str = "") -> T:
        store = self._cache[collection]
        known = self._seen.get((collection.name, what))
        if known is None or known[0] != store.revision:
            known = self._seen[collection.name, what] = (store.revision, make(store))
        return cast("T", known[1])

    @property
    def plans(self) -> Mapping[_Placement, Plan]:
        return self._kept(CONFIGMAPS, _plans)

    @property
    def pods(self) -> Mapping[_Placement, frozenset[str]]:
        """Macs on which a placement has a pod that has not ended."""
        return self._kept(PODS, _pods)

    @property
    def newest(self) -> Mapping[tuple[str, str, int], int]:
        """By namespace, deployment and group: the number of the newest plan."""
        return self._kept(CONFIGMAPS, lambda _: {placement[:3]: placement[3] for placement in sorted(self.plans)}, "newest")

    def of(self, node: str) -> Set[_Placement]:
        """Placements that name a Mac, or have a pod on it."""
        named = self._kept(CONFIGMAPS, lambda _: _by_mac(self.plans.items(), _planned), "by Mac")
        there = self._kept(PODS, lambda _: _by_mac(self.pods.items(), frozenset), "by Mac")
        return named.get(node, frozenset()) | there.get(node, frozenset())

    @property
    def links(self) -> Mapping[str, tuple[Json, ...]]:
        """By Mac."""
        return self._kept(LINKS, _links)


def _planned(plan: Plan) -> frozenset[str]:
    return frozenset(rank.node for rank in plan.ranks)


def _by_mac(
    placements: Iterable[tuple[_Placement, V]], macs: Callable[[V], frozenset[str]]
) -> dict[str, frozenset[_Placement]]:
    found: dict[str, set[_Placement]] = {}
    for placement, value in placements:
        for node in macs(value):
            found.setdefault(node, set()).add(placement)
    return {node: frozenset(those) for node, those in found.items()}


def _plans(store: Store) -> dict[_Placement, Plan]:
    alive = (snapshot.read_epoch(item).plan for item in store if not item["metadata"].get("deletionTimestamp"))
    return {(plan.namespace, plan.deployment, plan.index, plan.epoch): plan for plan in alive if plan is not None}


def _pods(store: Store) -> dict[_Placement, frozenset[str]]:
    found: dict[_Placement, set[str]] = {}
    for pod in store:
        if snapshot.owner_uid(pod) is None or snapshot.ended(pod) or (node := snapshot.pod_node(pod)) is None:
            continue
        name = (pod["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT, "")
        placement = (pod["metadata"]["namespace"], name, snapshot.group_index(pod), snapshot.epoch_number(pod))
        found.setdefault(placement, set()).add(node)
    return {placement: frozenset(nodes) for placement, nodes in found.items()}


def _links(store: Store) -> dict[str, tuple[Json, ...]]:
    found: dict[str, list[Json]] = {}
    for link in store:
        for end in ("a", "b"):
            found.setdefault(str(link["spec"][end]["node"]), []).append(link)
    return {node: tuple(links) for node, links in found.items()}


def _stands(deployment: ModelDeployment | None, plan: Plan, newest: int) -> bool:
    """Whether a plan's pods are there or are about to be made: all its Macs are the group's."""
    if deployment is None or deployment.metadata.uid != plan.uid or deployment.metadata.deletion_timestamp is not None:
        return False
    if plan.index >= deployment.spec.replicas or plan.epoch != newest:
        return False
    told = next((group for group in deployment.status.groups if group.index == plan.index), None)
    waits = told is not None and told.epoch == plan.epoch and told.state in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP)
    return not waits


def uses(cache: Cache, parsed: Parsed, ground: Ground, node: str) -> tuple[GroupUse, ...]:
    """Every group that has this Mac now: a pod of it is there, or its newest plan is about to make one."""
    found: dict[str, GroupUse] = {}
    # A later epoch takes the place of an earlier one: a Mac has a group once.
    for placement in sorted(ground.of(node), key=lambda placement: placement[3]):
        plan = ground.plans.get(placement)
        here = node in ground.pods.get(placement, frozenset())
        if not here and plan is not None:
            item = cache[DEPLOYMENTS].items.get(f"{placement[0]}/{placement[1]}")
            here = _stands(parsed.get(ModelDeployment, item) if item else None, plan, ground.newest[placement[:3]])
        if here:
            entry = _use(cache, parsed, ground, plan, node) if plan else _left(cache, parsed, placement, node)
            found[entry.name] = entry
    return tuple(found[name] for name in sorted(found))


def _use(cache: Cache, parsed: Parsed, ground: Ground, plan: Plan, node: str) -> GroupUse:
    near = (parsed.get(ThunderboltLink, item) for item in ground.links.get(node, ()))
    profiles = {rank.node: profile for rank in plan.ranks if (profile := known(cache, parsed, rank.node))}
    used = cables(plan, (link for link in near if link is not None), profiles)
    nodes = tuple(rank.node for rank in plan.ranks)
    return GroupUse(name=plan.group, epoch=plan.epoch, nodes=nodes, links=used.get(node, ()))


def _left(cache: Cache, parsed: Parsed, placement: _Placement, node: str) -> GroupUse:
    """Its plan was collected before its pods: what was told stands, since it is of the same plan."""
    namespace, name, index, epoch = placement
    group, profile = f"{namespace}/{name}-{index}", known(cache, parsed, node)
    told = (use for use in (profile.status.groups if profile else ()) if (use.name, use.epoch) == (group, epoch))
    return next(told, GroupUse(name=group, epoch=epoch, nodes=(node,)))


def known(cache: Cache, parsed: Parsed, node: str) -> NodeProfile | None:
    item = cache[NODEPROFILES].items.get(node)
    return parsed.get(NodeProfile, item) if item else None


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
    ended = find_condition(profile.status.conditions, ConditionType.QUARANTINED)
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
    conditions: tuple[Condition, ...] = tuple(c for c in profile.status.conditions if c.type == ConditionType.QUARANTINED)
    name = profile.metadata.name
    if held is not None:
        text = (
            f"placements avoid {name} until it is rebooted (`sudo shutdown -r now` on it), since "
            f"{held.since:%Y-%m-%d %H:%M:%S} UTC: {held.evidence}"
        )
        conditions = set_condition(conditions, ConditionType.QUARANTINED, True, held.reason, text, now=now)
    elif conditions:
        conditions = set_condition(
            conditions, ConditionType.QUARANTINED, False, "Rebooted", f"{name} has booted since", now=now
        )
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
    if conditions := [c.dump() for c in profile.status.conditions if c.type == ConditionType.QUARANTINED]:
        status["conditions"] = conditions
    return status
