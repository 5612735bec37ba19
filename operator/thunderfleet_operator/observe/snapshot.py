"""From the cache to values: the fleet, the request, and what each group of a deployment looks like right now.

Nothing is decided here. Everything that the pure parts read is taken from one state of the cache, in one go.
"""

import hashlib
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from pydantic import ValidationError
from thunderfleet_crds.common import (
    ANNOTATION_HASH,
    ANNOTATION_PORTS,
    GROUP,
    LABEL_DEPLOYMENT,
    LABEL_EPOCH,
    LABEL_GROUP,
    LABEL_RANK,
    MODELDEPLOYMENT_KIND,
    TAINT_MACOS,
    ApiModel,
)
from thunderfleet_crds.modeldeployment import Group, ModelDeployment, ModelDeploymentSpec
from thunderfleet_crds.plan import PLAN_KEY, Plan
from thunderfleet_lib.kube import Json, key_of
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_operator.placement import (
    MemoryRequest,
    Request,
    Toleration,
)
from thunderfleet_operator.watch.cache import (
    CONFIGMAPS,
    DEPLOYMENTS,
    NODES,
    PODS,
    Cache,
    Store,
)

T = TypeVar("T", bound=ApiModel)
F = TypeVar("F")

ANNOTATION_REASON = f"{GROUP}/reason"
ENDED = ("Succeeded", "Failed")


def parse_time(text: object) -> datetime | None:
    """An API time; None when there is none."""
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")) if text else None


class Parsed:
    """Objects as models, each parsed once a version: a fleet has many profiles and few of them change."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, ApiModel | None]] = {}

    def get(self, kind: type[T], item: Json) -> T | None:
        """None for an object that breaks the schema of this version."""
        key = (kind.__name__, key_of(item))
        at = f"{item['metadata'].get('uid')}/{item['metadata'].get('resourceVersion')}"
        known = self._known.get(key)
        if known is None or known[0] != at:
            try:
                value: ApiModel | None = kind.load(item)
            except ValidationError:
                value = None
            known = (at, value)
            self._known[key] = known
        return known[1] if isinstance(known[1], kind) else None

    def all(self, kind: type[T], store: Store) -> list[T]:
        return [value for item in store if (value := self.get(kind, item)) is not None]


# --- pods ------------------------------------------------------------------------------------------------------------


def pod_node(pod: Json) -> str | None:
    """The Node that a pod is on, or is to be on: ours name theirs in a required affinity."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    for term in (required or {}).get("nodeSelectorTerms") or []:
        for match in term.get("matchFields") or []:
            if match.get("key") == "metadata.name" and len(match.get("values") or []) == 1:
                return str(match["values"][0])
    return None


def _request(container: Json) -> int:
    resources = container.get("resources") or {}
    value = (resources.get("requests") or {}).get("memory") or (resources.get("limits") or {}).get("memory")
    return to_bytes(value) if value else 0


def pod_memory(pod: Json) -> int:
    """Bytes that the scheduler counts for a pod."""
    spec = pod.get("spec") or {}
    running = sum(_request(container) for container in spec.get("containers") or [])
    sidecars = sum(_request(c) for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always")
    initial = max((_request(c) for c in spec.get("initContainers") or [] if c.get("restartPolicy") != "Always"), default=0)
    overhead = (spec.get("overhead") or {}).get("memory")
    return max(running, initial) + sidecars + (to_bytes(overhead) if overhead else 0)


def pod_ports(pod: Json) -> frozenset[int]:
    """Ports of its Mac that a pod holds: those it declares, and those in our own annotation."""
    spec = pod.get("spec") or {}
    found: set[int] = set()
    for container in (*(spec.get("containers") or []), *(spec.get("initContainers") or [])):
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                found.add(int(number))
    return frozenset(found)


def ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED


def owner_uid(item: Json) -> str | None:
    """UID of the ModelDeployment that controls this object."""
    for owner in item["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == MODELDEPLOYMENT_KIND:
            return str(owner.get("uid"))
    return None


def owner_key(item: Json) -> str | None:
    """``namespace/name`` of the ModelDeployment that this object is a child of."""
    for owner in item["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == MODELDEPLOYMENT_KIND:
            return f"{item['metadata'].get('namespace')}/{owner.get('name')}"
    return None


def _number(item: Json, label: str) -> int:
    try:
        return int((item["metadata"].get("labels") or {}).get(label, ""))
    except ValueError:
        return -1


def group_index(item: Json) -> int:
    """Which group a child belongs to; -1 when it does not say."""
    return _number(item, LABEL_GROUP)


def epoch_number(item: Json) -> int:
    """Which placement a child belongs to; -1 when it does not say."""
    return _number(item, LABEL_EPOCH)


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a group, as far as decisions need it."""

    name: str
    uid: str
    rank: int
    epoch: int
    node: str | None
    terminating: datetime | None = None
    phase: str = "Pending"
    message: str = ""
    scheduled: bool = False
    unschedulable_since: datetime | None = None
    unschedulable_message: str = ""
    waiting: str | None = None
    """What its container waits for, if it does: reason and message."""
    restarts: int = 0
    running: bool = False
    crash_looping: bool = False
    last_words: str = ""
    """The termination message of its supervisor that ended last."""
    evicted: bool = False
    """Whether it was asked to end by an eviction, not by a plain deletion."""


def _asked_to_end(metadata: Json) -> datetime | None:
    """When a pod was asked to end: its deletionTimestamp is when its grace runs out."""
    until = parse_time(metadata.get("deletionTimestamp"))
    return until - timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0)) if until else None


def pod_view(pod: Json) -> PodView:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    waiting = next(
        (w for c in containers if (w := (c.get("state") or {}).get("waiting")) and w.get("reason") != "ContainerCreating"), None
    )
    condition: Json = next((c for c in status.get("conditions") or [] if c.get("type") == "PodScheduled"), {})
    disrupted = any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in status.get("conditions") or [])
    blocked = condition.get("status") == "False" and condition.get("reason") == "Unschedulable"
    return PodView(
        name=str(pod["metadata"]["name"]),
        uid=str(pod["metadata"].get("uid")),
        rank=_number(pod, LABEL_RANK),
        epoch=epoch_number(pod),
        node=pod_node(pod),
        terminating=_asked_to_end(pod["metadata"]),
        phase=str(status.get("phase") or "Pending"),
        message=str(status.get("message") or status.get("reason") or ""),
        scheduled=bool((pod.get("spec") or {}).get("nodeName")),
        unschedulable_since=parse_time(condition.get("lastTransitionTime")) if blocked else None,
        unschedulable_message=str(condition.get("message") or "") if blocked else "",
        waiting=f"{waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": ") if waiting else None,
        restarts=max((int(c.get("restartCount") or 0) for c in containers), default=0),
        running=any("running" in (c.get("state") or {}) for c in containers),
        crash_looping=bool(waiting and waiting.get("reason") == "CrashLoopBackOff"),
        last_words=next((words for c in containers if (words := _last_words(c))), ""),
        evicted=disrupted,
    )


def _last_words(container: Json) -> str:
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    return str(ended.get("message") or "").strip()


@dataclass(frozen=True, slots=True)
class RankPorts:
    """The ports of one rank on its Mac."""

    gateway: int
    control: int
    ring: tuple[int, ...] = ()

    @property
    def all(self) -> frozenset[int]:
        return frozenset((self.gateway, self.control, *self.ring))


# --- a deployment's groups ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Epoch:
    """One placement that was made: its ConfigMap, read back."""

    group: int
    number: int
    config_map: str
    spec_hash: str
    reason: str
    plan: Plan | None
    """None when the ConfigMap cannot be read."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group as it is: its newest epoch, its pods, its last status."""

    index: int
    epoch: Epoch | None
    past: tuple[Epoch, ...]
    pods: tuple[PodView, ...]
    """Of the newest epoch, Terminating ones included."""
    old_pods: tuple[PodView, ...]
    last_epoch: int
    status: Group | None

    @property
    def plan(self) -> Plan | None:
        return self.epoch.plan if self.epoch else None

    @property
    def nodes(self) -> frozenset[str]:
        """The Macs of its newest plan, and those on which a pod of it is left."""
        planned = {rank.node for rank in self.plan.ranks} if self.plan else set()
        return frozenset(planned | {pod.node for pod in (*self.pods, *self.old_pods) if pod.node})


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    ready: bool
    schedulable: bool = True


def spec_hash(spec: ModelDeploymentSpec) -> str:
    """Of everything in the spec that a placement or a pod is made from. What has its default is left out, so that a field
    which a later version adds does not roll out every group.
    """
    told = spec.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    for irrelevant in ("replicas", "recovery"):
        told.pop(irrelevant, None)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=4096)
def _plan(text: str) -> Plan | None:
    """Plans are immutable, and read in every round."""
    try:
        return Plan.model_validate_json(text)
    except ValidationError:
        return None


def read_epoch(item: Json) -> Epoch:
    """A plan's ConfigMap as a value."""
    annotations = item["metadata"].get("annotations") or {}
    plan = _plan((item.get("data") or {}).get(PLAN_KEY, ""))
    return Epoch(
        group=group_index(item),
        number=epoch_number(item),
        config_map=str(item["metadata"]["name"]),
        spec_hash=str(annotations.get(ANNOTATION_HASH, "")),
        reason=str(annotations.get(ANNOTATION_REASON, "")),
        plan=plan,
    )


def children(store: Store, deployment: ModelDeployment) -> list[Json]:
    """Objects of one collection that this very deployment controls."""
    meta = deployment.metadata
    return [
        item
        for item in store
        if item["metadata"].get("namespace") == meta.namespace
        and (item["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT) == meta.name
        and owner_uid(item) == meta.uid
    ]


def _used_epochs(cache: Cache, deployment: ModelDeployment) -> dict[int, int]:
    """By group, the highest epoch that a child of this name has, whoever it is of: a deployment that was deleted and made anew
    finds the pods of the one before it still ending, and their names taken.
    """
    meta, found = deployment.metadata, dict[int, int]()
    for store in (cache[CONFIGMAPS], cache[PODS]):
        for item in store:
            about = item["metadata"]
            if about.get("namespace") == meta.namespace and (about.get("labels") or {}).get(LABEL_DEPLOYMENT) == meta.name:
                index = group_index(item)
                found[index] = max(found.get(index, 0), epoch_number(item))
    return found


def groups(cache: Cache, deployment: ModelDeployment) -> dict[int, GroupView]:
    """Every group that is wanted, or of which something is left, by index."""
    epochs = [
        read_epoch(item) for item in children(cache[CONFIGMAPS], deployment) if not item["metadata"].get("deletionTimestamp")
    ]
    pods = [(item, pod_view(item)) for item in children(cache[PODS], deployment)]
    told = {group.index: group for group in deployment.status.groups}
    used = _used_epochs(cache, deployment)
    indexes = set(range(deployment.spec.replicas))
    indexes |= {epoch.group for epoch in epochs} | {group_index(item) for item, _ in pods}
    views: dict[int, GroupView] = {}
    for index in sorted(indexes - {-1}):
        mine = sorted((epoch for epoch in epochs if epoch.group == index), key=lambda epoch: epoch.number)
        current = mine[-1] if mine else None
        own = sorted((view for item, view in pods if group_index(item) == index), key=lambda view: (view.epoch, view.rank))
        number = current.number if current else -1
        status = told.get(index)
        views[index] = GroupView(
            index=index,
            epoch=current,
            past=tuple(mine[:-1]),
            pods=tuple(view for view in own if view.epoch == number),
            old_pods=tuple(view for view in own if view.epoch != number),
            last_epoch=max(number, status.epoch if status else 0, used.get(index, 0)),
            status=status,
        )
    return views


def is_ready(node: Json) -> bool:
    """Whether a Node is Ready."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def node_views(cache: Cache) -> dict[str, NodeView]:
    views: dict[str, NodeView] = {}
    for node in cache[NODES]:
        if node["metadata"].get("deletionTimestamp"):
            continue
        name = str(node["metadata"]["name"])
        views[name] = NodeView(name, is_ready(node), not (node.get("spec") or {}).get("unschedulable"))
    return views


# --- the fleet ------------------------------------------------------------------------------------------------------


def internal_ip(node: Json) -> str | None:
    for address in (node.get("status") or {}).get("addresses") or []:
        if address.get("type") == "InternalIP":
            return str(address.get("address"))
    return None


def loopback(cache: Cache) -> bool:
    """Whether any Node lives in 127/8: there the API server refuses EndpointSlices, so no Service is made."""
    for node in cache[NODES]:
        address = internal_ip(node)
        try:
            if address and ipaddress.ip_address(address).is_loopback:
                return True
        except ValueError:
            continue
    return False


def _queue_pairs(plan: Plan) -> dict[tuple[str, str], int]:
    """By node and RDMA device: one for each rank that the device faces; two in a ring of two, a pair a direction."""
    found: dict[tuple[str, str], int] = {}
    each = 2 if plan.jaccl_ring and plan.world_size == 2 else 1
    for rank in plan.ranks:
        for device in rank.devices:
            if device is not None:
                found[rank.node, device] = found.get((rank.node, device), 0) + each
    return found


@dataclass(frozen=True, slots=True)
class Taken:
    """What others than one group hold on each Mac."""

    memory: Mapping[str, int]
    ports: Mapping[str, frozenset[int]]
    groups: frozenset[str]
    """Macs on which another group has a rank."""
    addresses: frozenset[tuple[str, str]] = frozenset()
    """Mac and address, of the cables that rings of others run over."""
    queue_pairs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By Mac and RDMA device."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What one pod holds."""

    node: str
    memory: int
    ports: frozenset[int]
    owner: str | None
    group: int


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one plan's ConfigMap says."""

    key: tuple[str | None, int]
    """UID of the deployment, and group."""
    epoch: int
    plan: Plan | None
    ending: bool


def _held(pod: Json) -> _Held | None:
    node = pod_node(pod)
    if node is None or ended(pod):
        return None
    return _Held(node, pod_memory(pod), pod_ports(pod), owner_uid(pod), group_index(pod))


def _planned(item: Json) -> _Planned:
    key = (owner_uid(item), group_index(item))
    return _Planned(key, epoch_number(item), read_epoch(item).plan, bool(item["metadata"].get("deletionTimestamp")))


class _Facts(Generic[F]):
    """Of every object of a collection what matters here, read once a version."""

    def __init__(self, read: Callable[[Json], F]) -> None:
        self._read = read
        self._known: dict[str, tuple[Json, F]] = {}

    def of(self, store: Store) -> list[F]:
        before, known = self._known, dict[str, tuple[Json, F]]()
        for key, item in store.items.items():
            past = before.get(key)
            # Objects are replaced, never changed.
            known[key] = past if past is not None and past[0] is item else (item, self._read(item))
        self._known = known
        return [fact for _, fact in known.values()]


class Usage:
    """What is taken on each Mac, kept from round to round: pods are read once a version, and sums are made when one changed."""

    def __init__(self) -> None:
        self._pods = _Facts(_held)
        self._maps = _Facts(_planned)
        self._seen: object = None
        self._held: list[_Held] = []
        self._plans: list[_Planned] = []
        self._whole: Taken | None = None

    def taken(self, cache: Cache, uid: str | None, index: int | None) -> Taken:
        """As the function ``taken``. The same value as last time for everything, while nothing has changed."""
        seen = (cache[PODS].revision, cache[CONFIGMAPS].revision)
        if self._whole is None or self._seen != seen:
            self._held = [held for held in self._pods.of(cache[PODS]) if held is not None]
            newest: dict[tuple[str | None, int], _Planned] = {}
            for entry in self._maps.of(cache[CONFIGMAPS]):
                if entry.key not in newest or entry.epoch > newest[entry.key].epoch:
                    newest[entry.key] = entry
            self._plans = [entry for entry in newest.values() if not entry.ending]
            self._whole, self._seen = self._sum(cache, None), seen
        return self._whole if uid is None else self._sum(cache, (uid, -1 if index is None else index))

    def _sum(self, cache: Cache, own: tuple[str, int] | None) -> Taken:
        memory: dict[str, int] = {}
        ports: dict[str, frozenset[int]] = {}
        others: set[str] = set()
        for held in self._held:
            if own is not None and (held.owner, held.group) == own:
                continue
            memory[held.node] = memory.get(held.node, 0) + held.memory
            if held.ports:
                ports[held.node] = ports.get(held.node, frozenset()) | held.ports
            if held.owner is not None:
                others.add(held.node)
        addresses: set[tuple[str, str]] = set()
        queue_pairs: dict[tuple[str, str], int] = {}
        for entry in self._plans:
            if entry.plan is None or entry.key == own:
                continue
            for key, count in _queue_pairs(entry.plan).items():
                queue_pairs[key] = queue_pairs.get(key, 0) + count
            for rank in entry.plan.ranks:
                if rank.ring_address:
                    addresses.add((rank.node, rank.ring_address))
                if f"{entry.plan.namespace}/{rank.pod}" in cache[PODS].items:
                    continue
                memory[rank.node] = memory.get(rank.node, 0) + rank.memory_bytes
                mine = frozenset((rank.gateway_port, rank.control_port, *rank.ring_ports))
                ports[rank.node] = ports.get(rank.node, frozenset()) | mine
                others.add(rank.node)
        return Taken(memory, ports, frozenset(others), frozenset(addresses), queue_pairs)


_usages: WeakKeyDictionary[Cache, Usage] = WeakKeyDictionary()


def taken(cache: Cache, uid: str | None = None, index: int | None = None) -> Taken:
    """Requests and ports by Mac; the pods of group ``index`` of deployment ``uid`` do not count, since they make room."""
    return _usages.setdefault(cache, Usage()).taken(cache, uid, index)


def with_ports(used: Taken, node: str, ports: frozenset[int]) -> Taken:
    """The same, with ports that something else than a pod holds."""
    return replace(used, ports={**used.ports, node: used.ports.get(node, frozenset()) | ports})


MACOS_TOLERATION = Toleration(key=TAINT_MACOS, exists=True)


def request(spec: ModelDeploymentSpec, current: tuple[str, ...] = (), avoid: Mapping[str, str] | None = None) -> Request:
    """What one group asks of the planner."""
    memory = spec.memory
    return Request(
        path=spec.model.path,
        repository=spec.model.repository,
        revision=spec.model.revision,
        min_nodes=spec.nodes.min,
        max_nodes=spec.nodes.max,
        selector=dict(spec.nodes.selector),
        tolerations=(
            MACOS_TOLERATION,
            *(Toleration(t.key, t.operator == "Exists", t.value or "", t.effect) for t in spec.nodes.tolerations),
        ),
        split=spec.parallelism,
        transport=spec.transport,
        memory=MemoryRequest(memory.context_tokens, memory.concurrent_requests, memory.cached_tokens, memory.headroom_percent),
        current=current,
        avoid=avoid or {},
        ring_without_relay=spec.bootstrap.ring_without_relay,
    )


def kept_ports(view: GroupView, pods: Iterable[Json]) -> dict[str, RankPorts]:
    """Per Mac the ports of this group's last epoch."""
    if view.plan is not None:
        return {rank.node: RankPorts(rank.gateway_port, rank.control_port, rank.ring_ports) for rank in view.plan.ranks}
    found: dict[str, RankPorts] = {}
    for pod in pods:
        node = pod_node(pod)
        told = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_PORTS)
        if node and told:
            ports = json.loads(told)
            found[node] = RankPorts(int(ports["gateway"]), int(ports["control"]), tuple(ports.get("ring") or ()))
    return found


def deployments(cache: Cache, parsed: Parsed) -> list[ModelDeployment]:
    return parsed.all(ModelDeployment, cache[DEPLOYMENTS])
