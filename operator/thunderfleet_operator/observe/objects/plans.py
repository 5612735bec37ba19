"""Placements that were made: plans in their ConfigMaps, and the groups that they belong to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import PLAN_BYTES, Plan
from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeployment
from thunderfleet_crds.names import ANNOTATION_HASH, ANNOTATION_REASON, ANNOTATION_SIGNATURE

from thunderfleet_operator.observe.objects.metadata import DeploymentKey, GroupKey, Json, PlacementKey, annotation, deleting
from thunderfleet_operator.observe.objects.pods import Pod, RankPorts
from thunderfleet_operator.observe.objects.proofs import Finding, Keyring, Proof, Purpose, Statement, digest


@dataclass(frozen=True, slots=True)
class Epoch:
    """One placement of one group, read from its ConfigMap. Its content counts only as far as ``accepted`` accepts it."""

    plan: Plan
    spec_hash: str
    reason: str
    finding: Finding
    digest: str
    """SHA-256 of everything that the signature covers."""
    uid: str = ""
    """UID of the ConfigMap."""
    deleting: bool = False
    current: bool = True
    """Whether it may be the current placement of its group; False for a copy of an earlier plan."""

    @property
    def proven(self) -> bool:
        """Whether its signature is valid: only then are objects made from it."""
        return self.finding.proof is Proof.VALID

    @property
    def group(self) -> int:
        """The index of the group."""
        return self.plan.index

    @property
    def number(self) -> int:
        """The epoch."""
        return self.plan.epoch

    @property
    def config_map(self) -> str:
        """The name of its ConfigMap."""
        return self.plan.name

    @property
    def owner(self) -> str:
        """UID of the ModelDeployment."""
        return self.plan.uid

    @property
    def deployment(self) -> DeploymentKey:
        """Namespace and name of the ModelDeployment."""
        return self.plan.namespace, self.plan.deployment

    @property
    def key(self) -> GroupKey:
        """The group that it places."""
        return self.plan.uid, self.plan.index


@dataclass(frozen=True, slots=True)
class Report:
    """What rank 0 of a group last reported, for how long it has been silent, and for how long it has been in that phase."""

    state: GroupState | None = None
    silent_seconds: float = 0.0
    phase_seconds: float = 0.0
    by_pods: bool = False
    """Whether the state is derived from the pods' readiness, because rank 0 does not answer."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group: its newest placement, its pods and its last status."""

    index: int
    epoch: Epoch | None
    past: tuple[Epoch, ...]
    pods: tuple[Pod, ...]
    """Pods of the newest placement, including terminating ones."""
    old_pods: tuple[Pod, ...]
    last_epoch: int
    """The highest epoch that any object or status of the group names."""
    status: Group | None

    @property
    def plan(self) -> Plan | None:
        """The newest plan."""
        return self.epoch.plan if self.epoch else None

    @property
    def proven(self) -> bool:
        """Whether objects may be made from the newest plan."""
        return self.epoch is not None and self.epoch.proven

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
        number = newest.number if newest else None
        ordered = sorted(pods, key=lambda pod: (pod.epoch, pod.rank))
        return replace(
            self,
            epoch=newest,
            past=past,
            pods=tuple(pod for pod in ordered if pod.epoch == number),
            old_pods=tuple(pod for pod in ordered if pod.epoch != number),
            last_epoch=max(self.last_epoch, number or self.last_epoch),
        )


def read_plan(item: Json) -> Plan | None:
    """The plan in a ConfigMap. None if there is none, or if it names another ConfigMap."""
    text = (item.get("data") or {}).get(PLAN_KEY)
    if not text or len(text) > PLAN_BYTES:
        return None
    try:
        plan = Plan.model_validate_json(text)
    except ValidationError:
        return None
    metadata = item["metadata"]
    mine = (plan.namespace, plan.name) == (metadata.get("namespace"), metadata["name"])
    return plan if mine and all(rank.pod == f"{plan.name}-{rank.rank}" for rank in plan.ranks) else None


def statement(item: Json) -> Statement:
    """What the signature of a plan covers: the plan as its runners read it, and the other data of its ConfigMap."""
    return {
        "namespace": item["metadata"].get("namespace"),
        "configMap": item["metadata"]["name"],
        "plan": (item.get("data") or {}).get(PLAN_KEY),
        "specHash": annotation(item, ANNOTATION_HASH),
        "reason": annotation(item, ANNOTATION_REASON),
    }


def read_epoch(item: Json, keys: Keyring) -> Epoch | None:
    """The value of a plan's ConfigMap; None if it holds no plan of its own."""
    plan = read_plan(item)
    if plan is None:
        return None
    said = statement(item)
    return Epoch(
        plan=plan,
        spec_hash=annotation(item, ANNOTATION_HASH),
        reason=annotation(item, ANNOTATION_REASON),
        finding=keys.check(Purpose.PLAN, said, annotation(item, ANNOTATION_SIGNATURE)),
        digest=digest(said),
        uid=str(item["metadata"].get("uid") or ""),
        deleting=deleting(item),
    )


def _records(status: Group, epoch: Epoch) -> bool:
    """Whether a group's status is about exactly this plan: by its digest, or by its ranks if an older version wrote it."""
    if status.plan_digest is not None:
        return status.plan_digest == epoch.digest
    if epoch.finding.proof not in (Proof.NONE, Proof.VALID):
        return False
    planned = [(rank.rank, rank.node, rank.pod, rank.address, rank.memory_bytes) for rank in epoch.plan.ranks]
    return planned == [(rank.rank, rank.node, rank.pod, rank.address, rank.memory_bytes) for rank in status.ranks]


def accepted(epoch: Epoch, deployment: ModelDeployment | None) -> Epoch | None:
    """The placement if the operator made it, else None. ``deployment``: that of its namespace and name.

    A plan whose signature is valid is the operator's, also when its ModelDeployment is gone. Another one is accepted only if
    the status of its ModelDeployment, which no tenant can write, records exactly this plan: it was made before plans were
    signed, or its key has been lost. Nothing is made from such a plan.
    """
    mine = deployment is not None and deployment.metadata.uid == epoch.owner
    if deployment is None or not mine:
        return replace(epoch, current=False) if epoch.proven else None
    status = next((group for group in deployment.status.groups if group.index == epoch.group), None)
    if status is None:
        past = epoch.number <= (deployment.status.highest_epoch or 0)
        return (replace(epoch, current=False) if past else epoch) if epoch.proven else None
    recorded = status.epoch == epoch.number and _records(status, epoch)
    if epoch.proven:
        # A plan that the operator has written since its last status is newer than that.
        return epoch if recorded or epoch.number > status.epoch else replace(epoch, current=False)
    return epoch if recorded else None


def placement_key(plan: Plan) -> PlacementKey:
    """Identifies a plan among all plans."""
    return plan.namespace, plan.deployment, plan.index, plan.epoch


def newest_epochs(epochs: Iterable[Epoch]) -> Mapping[GroupKey, Epoch]:
    """By group, its newest placement, unless that is being deleted: an older one does not come back."""
    newest: dict[GroupKey, Epoch] = {}
    for epoch in epochs:
        if epoch.key not in newest or epoch.number > newest[epoch.key].number:
            newest[epoch.key] = epoch
    return {key: epoch for key, epoch in newest.items() if not epoch.deleting}


def counts(epoch: Epoch, deployment: ModelDeployment | None) -> bool:
    """Whether a placement reserves memory and ports for pods that do not exist yet. Otherwise only its running pods count."""
    if deployment is None or deployment.metadata.uid != epoch.owner or deployment.metadata.deletion_timestamp is not None:
        return False
    return epoch.proven and epoch.current and epoch.group < deployment.wanted_groups


def _newest(epochs: Sequence[Epoch], pods: Iterable[Pod], status: Group | None) -> Epoch | None:
    """The placement that a group has now: the newest, unless it is an earlier one.

    A group that the spec requires again soon after it was removed has no status any more, but may still run.
    """
    if not epochs or epochs[-1].current:
        return epochs[-1] if epochs else None
    newest = epochs[-1]
    runs = {pod.rank for pod in pods if pod.epoch == newest.number and pod.scheduled and not pod.ended}
    return newest if status is None and len(runs) == newest.plan.world_size else None


def group_views(deployment: ModelDeployment, epochs: Iterable[Epoch], pods: Iterable[Pod]) -> Mapping[int, GroupView]:
    """By index, every group of the spec, or that has left objects behind.

    ``epochs`` and ``pods`` are the operator's and belong to a ModelDeployment of this name. Those that a deleted one of that
    name left behind are not part of any group, but their names are taken: they count for ``last_epoch``.
    """
    uid = deployment.metadata.uid
    named = [*epochs]
    named_pods = [*pods]
    highest: dict[int, int] = {}
    for group, number in [(e.group, e.number) for e in named] + [(p.group, p.epoch) for p in named_pods]:
        highest[group] = max(highest.get(group, 0), number)
    own = [epoch for epoch in named if epoch.owner == uid and not epoch.deleting]
    own_pods = [pod for pod in named_pods if pod.owner == uid]
    status = deployment.status
    statuses = {group.index: group for group in status.groups}
    indexes = set(range(deployment.wanted_groups)) | {epoch.group for epoch in own} | {pod.group for pod in own_pods}
    views: dict[int, GroupView] = {}
    for index in sorted(indexes - {-1}):
        mine = sorted((epoch for epoch in own if epoch.group == index), key=lambda epoch: epoch.number)
        my_pods = [pod for pod in own_pods if pod.group == index]
        known = statuses.get(index)
        newest = _newest(mine, my_pods, known)
        bare = GroupView(
            index=index,
            epoch=newest,
            past=tuple(epoch for epoch in mine if epoch is not newest),
            pods=(),
            old_pods=(),
            last_epoch=max(known.epoch if known else status.highest_epoch or 0, highest.get(index, 0)),
            status=known,
        )
        views[index] = bare.with_pods(my_pods)
    return views
