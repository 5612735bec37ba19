"""Placements that were made: plans in their ConfigMaps, and the groups that they belong to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError
from thunderfleet_crds.group import GroupState
from thunderfleet_crds.modeldeployment import Group, ModelDeployment
from thunderfleet_crds.names import ANNOTATION_HASH, GROUP
from thunderfleet_crds.plan import PLAN_KEY, Plan

from thunderfleet_operator.observe.objects import (
    DeploymentKey,
    GroupKey,
    Json,
    PlacementKey,
    deleting,
    deployment_key,
    epoch_number,
    group_index,
    owner_uid,
)
from thunderfleet_operator.observe.pods import Pod, RankPorts

ANNOTATION_REASON = f"{GROUP}/reason"


@dataclass(frozen=True, slots=True)
class Epoch:
    """One placement of one group, read from its ConfigMap."""

    group: int
    number: int
    config_map: str
    spec_hash: str
    reason: str
    plan: Plan | None
    """None if the ConfigMap holds no valid plan."""
    owner: str | None = None
    """UID of the ModelDeployment that controls it."""
    deployment: DeploymentKey = ("", "")
    """From the label; the owner may be another object."""
    deleting: bool = False

    @property
    def key(self) -> GroupKey:
        """The group that it places."""
        return self.owner, self.group


@dataclass(frozen=True, slots=True)
class Report:
    """What rank 0 of a group last reported, for how long it has been silent, and for how long it has been in that phase."""

    state: GroupState | None = None
    silent_seconds: float = 0.0
    phase_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group: its newest placement, its pods and its last status."""

    index: int
    epoch: Epoch | None
    past: tuple[Epoch, ...]
    pods: tuple[Pod, ...]
    """Of the newest placement, terminating ones included."""
    old_pods: tuple[Pod, ...]
    last_epoch: int
    """The highest epoch that any object or status of the group names."""
    status: Group | None

    @property
    def plan(self) -> Plan | None:
        """The newest plan."""
        return self.epoch.plan if self.epoch else None

    @property
    def all_pods(self) -> tuple[Pod, ...]:
        """Pods of every placement."""
        return (*self.pods, *self.old_pods)

    @property
    def nodes(self) -> frozenset[str]:
        """The Macs of its newest plan, and those that still run a pod of it."""
        planned = {rank.node for rank in self.plan.ranks} if self.plan else set()
        return frozenset(planned | {pod.node for pod in self.all_pods if pod.node})

    @property
    def current(self) -> tuple[str, ...]:
        """The Macs of its newest plan, by rank."""
        return tuple(rank.node for rank in self.plan.ranks) if self.plan else ()

    @property
    def kept_ports(self) -> dict[str, RankPorts]:
        """By Mac, the ports that its ranks have."""
        if self.plan is not None:
            return {rank.node: RankPorts(rank.gateway_port, rank.control_port, rank.ring_ports) for rank in self.plan.ranks}
        return {pod.node: pod.kept_ports for pod in self.all_pods if pod.node and pod.kept_ports}

    def with_pods(self, pods: Iterable[Pod], epoch: Epoch | None = None) -> "GroupView":
        """The group with these pods, and with ``epoch`` as its newest placement if given."""
        newest = epoch or self.epoch
        past = (*self.past, self.epoch) if epoch is not None and self.epoch is not None else self.past
        number = newest.number if newest else -1
        ordered = sorted(pods, key=lambda pod: (pod.epoch, pod.rank))
        return replace(
            self,
            epoch=newest,
            past=past,
            pods=tuple(pod for pod in ordered if pod.epoch == number),
            old_pods=tuple(pod for pod in ordered if pod.epoch != number),
            last_epoch=max(self.last_epoch, number),
        )


def _plan(item: Json) -> Plan | None:
    try:
        return Plan.model_validate_json((item.get("data") or {}).get(PLAN_KEY, ""))
    except ValidationError:
        return None


def read_epoch(item: Json) -> Epoch:
    """The value of a plan's ConfigMap."""
    annotations = item["metadata"].get("annotations") or {}
    return Epoch(
        group=group_index(item),
        number=epoch_number(item),
        config_map=str(item["metadata"]["name"]),
        spec_hash=str(annotations.get(ANNOTATION_HASH, "")),
        reason=str(annotations.get(ANNOTATION_REASON, "")),
        plan=_plan(item),
        owner=owner_uid(item),
        deployment=deployment_key(item),
        deleting=deleting(item),
    )


def placement_key(plan: Plan) -> PlacementKey:
    """What names a plan among all plans."""
    return plan.namespace, plan.deployment, plan.index, plan.epoch


def newest_plans(epochs: Iterable[Epoch]) -> Mapping[GroupKey, Plan]:
    """By group, the plan of its newest placement that is not being deleted."""
    newest: dict[GroupKey, Epoch] = {}
    for epoch in epochs:
        if epoch.key not in newest or epoch.number > newest[epoch.key].number:
            newest[epoch.key] = epoch
    return {key: epoch.plan for key, epoch in newest.items() if epoch.plan is not None and not epoch.deleting}


def group_views(deployment: ModelDeployment, epochs: Iterable[Epoch], pods: Iterable[Pod]) -> Mapping[int, GroupView]:
    """By index, every group that the spec asks for or that has left objects behind.

    ``epochs`` and ``pods`` carry the deployment's label. Those that a deleted ModelDeployment of that name left behind are not
    part of any group, but their names are taken: they count for ``last_epoch``.
    """
    uid = deployment.metadata.uid
    labelled = [*epochs]
    labelled_pods = [*pods]
    highest: dict[int, int] = {}
    for group, number in [(e.group, e.number) for e in labelled] + [(p.group, p.epoch) for p in labelled_pods]:
        highest[group] = max(highest.get(group, 0), number)
    own = [epoch for epoch in labelled if epoch.owner == uid and not epoch.deleting]
    own_pods = [pod for pod in labelled_pods if pod.owner == uid]
    statuses = {group.index: group for group in deployment.status.groups}
    indexes = set(range(deployment.spec.replicas)) | {epoch.group for epoch in own} | {pod.group for pod in own_pods}
    views: dict[int, GroupView] = {}
    for index in sorted(indexes - {-1}):
        mine = sorted((epoch for epoch in own if epoch.group == index), key=lambda epoch: epoch.number)
        status = statuses.get(index)
        bare = GroupView(
            index=index,
            epoch=mine[-1] if mine else None,
            past=tuple(mine[:-1]),
            pods=(),
            old_pods=(),
            last_epoch=max(-1, status.epoch if status else 0, highest.get(index, 0)),
            status=status,
        )
        views[index] = bare.with_pods(pod for pod in own_pods if pod.group == index)
    return views
