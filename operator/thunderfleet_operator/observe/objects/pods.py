"""A pod as a value: of a group, or any other that takes memory and ports of a Mac."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.names import ANNOTATION_PORTS, ANNOTATION_SIGNATURE, RESOURCE_GPU_MEMORY
from thunderfleet_lib import jsonbounds, logtext
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_operator.observe.objects.metadata import (
    DeploymentKey,
    Json,
    PlacementKey,
    deployment_key,
    epoch_number,
    group_index,
    owner_uid,
    parse_time,
    rank_number,
)
from thunderfleet_operator.observe.objects.proofs import Keyring, Proof, Purpose, Statement
from thunderfleet_operator.observe.objects.routers import is_router

ENDED = ("Succeeded", "Failed")
EVICTIONS = ("DisruptionTarget", "TerminationTarget")
"""Conditions of a pod that Kubernetes and Kueue set before they delete it for reasons that are not its own."""
MAX_GATES = 8
MAX_PORTS, PORTS_DEPTH = 1024, 2
"""JSON values and levels in the annotation of ports: any user who may create pods can write it."""
NO_PORTS = frozenset[int]()
"""The same object for the many pods that declare none, which saves memory."""


@dataclass(frozen=True, slots=True)
class RankPorts:
    """The ports of one rank on its Mac."""

    gateway: int
    control: int
    ring: tuple[int, ...] = ()

    @property
    def all(self) -> frozenset[int]:
        """All of them."""
        return frozenset((self.gateway, self.control, *self.ring))


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that decisions read. ``rank``, ``group`` and ``epoch`` are -1 for pods that are not runners."""

    name: str
    uid: str
    rank: int
    epoch: int
    node: str | None
    """The Node that it is bound to, or that its affinity requires."""
    group: int = -1
    deployment: DeploymentKey = ("", "")
    owner: str | None = None
    """UID of the ModelDeployment that controls it."""
    memory_bytes: int = 0
    ports: frozenset[int] = frozenset()
    """Ports of its Mac that it declares."""
    kept_ports: RankPorts | None = None
    """The ports of its rank, from the operator's annotation."""
    terminating: datetime | None = None
    """When it was deleted; None if it has not been."""
    phase: str = "Pending"
    message: str = ""
    scheduled: bool = False
    gates: tuple[str, ...] = ()
    """Names of the scheduling gates that keep the scheduler from binding it."""
    unschedulable_since: datetime | None = None
    unschedulable_message: str = ""
    waiting: str | None = None
    """Reason and message of a container that waits for something other than its creation."""
    restarts: int = 0
    running: bool = False
    ready: bool = False
    """Whether its readiness probes succeed."""
    crash_looping: bool = False
    last_words: str = ""
    """The termination message of the supervisor's last run."""
    evicted: bool = False
    """Whether it was deleted by an eviction, or by a queue that needs its quota for others."""
    proof: Proof = Proof.NONE
    router: bool = False
    """Whether it has the labels of a router."""

    @property
    def ended(self) -> bool:
        """Whether it has run to its end and holds nothing any more."""
        return self.phase in ENDED

    @property
    def placement(self) -> PlacementKey:
        """The placement that it is a rank of."""
        return (*self.deployment, self.group, self.epoch)


def pod_node(pod: Json) -> str | None:
    """The Node that a pod is bound to, or the one that its required affinity names, as the operator's pods do."""
    name = (pod.get("spec") or {}).get("nodeName")
    return str(name) if name else _required_node(pod)


def _required_node(pod: Json) -> str | None:
    spec = pod.get("spec") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    for term in (required or {}).get("nodeSelectorTerms") or []:
        for match in term.get("matchFields") or []:
            if match.get("key") == "metadata.name" and len(match.get("values") or []) == 1:
                return str(match["values"][0])
    return None


def _request(container: Json, resource: str) -> int:
    resources = container.get("resources") or {}
    value = (resources.get("requests") or {}).get(resource) or (resources.get("limits") or {}).get(resource)
    return to_bytes(value) if value else 0


def _requested(spec: Json, resource: str) -> int:
    initial = spec.get("initContainers") or []
    running = sum(_request(container, resource) for container in spec.get("containers") or [])
    sidecars = sum(_request(c, resource) for c in initial if c.get("restartPolicy") == "Always")
    before = max((_request(c, resource) for c in initial if c.get("restartPolicy") != "Always"), default=0)
    overhead = (spec.get("overhead") or {}).get(resource)
    return max(running, before) + sidecars + (to_bytes(overhead) if overhead else 0)


def pod_memory(pod: Json) -> int:
    """Bytes of memory that a pod requests on its Mac.

    GPU and CPU share the memory of a Mac, and runner pods request the same bytes under both names.
    """
    spec = pod.get("spec") or {}
    return max(_requested(spec, "memory"), _requested(spec, RESOURCE_GPU_MEMORY))


def pod_ports(pod: Json) -> frozenset[int]:
    """Ports of its Mac that a pod declares: host ports, and container ports on the host network."""
    spec = pod.get("spec") or {}
    found: set[int] = set()
    for container in (*(spec.get("containers") or []), *(spec.get("initContainers") or [])):
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                found.add(int(number))
    return frozenset(found) if found else NO_PORTS


def annotated_ports(pod: Json) -> RankPorts | None:
    """The ports in the operator's annotation. Raises ``ValueError`` if it is malformed."""
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_PORTS)
    if not text:
        return None
    ports = jsonbounds.loads(str(text).encode(), values=MAX_PORTS, depth=PORTS_DEPTH)
    ring = ports.get("ring") or [] if isinstance(ports, dict) else None
    found = [ports.get("gateway"), ports.get("control"), *ring] if isinstance(ring, list) else []
    if not found or not all(type(port) is int and 0 < port < 65536 for port in found):
        raise ValueError(f"{ANNOTATION_PORTS}: must have the port numbers gateway and control, and a list of port numbers ring")
    return RankPorts(found[0], found[1], tuple(found[2:]))


def _kept_ports(pod: Json) -> RankPorts | None:
    try:
        return annotated_ports(pod)
    except ValueError:
        # The group gets other ports in this case: an edited annotation must not make the round fail.
        return None


def statement(pod: Json) -> Statement:
    """What the signature of a runner pod covers."""
    metadata = pod["metadata"]
    return {
        "namespace": metadata.get("namespace"),
        "pod": metadata["name"],
        "uid": owner_uid(pod),
        "deployment": deployment_key(pod)[1],
        "group": group_index(pod),
        "epoch": epoch_number(pod),
        "rank": rank_number(pod),
        "node": _required_node(pod),
        "ports": (metadata.get("annotations") or {}).get(ANNOTATION_PORTS),
    }


def _proof(pod: Json, keys: Keyring) -> Proof:
    if owner_uid(pod) is None:
        return Proof.NONE
    if pod_node(pod) != _required_node(pod):
        # A pod that names its Node itself takes any Node, whatever its affinity is.
        return Proof.WRONG
    signature = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_SIGNATURE)
    return keys.check(Purpose.POD, statement(pod), signature).proof


def _recorded(pod: Pod, deployment: ModelDeployment | None) -> bool:
    """Whether the operator's own status names the pod: a tenant cannot write it."""
    if deployment is None or deployment.metadata.uid != pod.owner:
        return False
    if any((one.name, one.uid) == (pod.name, pod.uid) for one in deployment.status.terminating_pods):
        return True
    return any(
        (rank.rank, rank.pod, rank.node) == (pod.rank, pod.name, pod.node)
        for group in deployment.status.groups
        if (group.index, group.epoch) == (pod.group, pod.epoch)
        for rank in group.ranks
    )


def proven(pod: Pod, deployment: ModelDeployment | None) -> Pod:
    """Returns the pod unchanged if the operator made it. Otherwise its labels and owners are ignored.

    ``deployment``: the ModelDeployment that its label names. A pod whose signature cannot be checked, because it is older than
    signatures or its key was lost, is the operator's if the status of its ModelDeployment names it.
    """
    if pod.owner is None or pod.proof is Proof.VALID or _recorded(pod, deployment):
        return pod
    return replace(pod, rank=-1, epoch=-1, group=-1, deployment=("", ""), owner=None, kept_ports=None)


def _deleted_at(metadata: Json) -> datetime | None:
    """When a pod was deleted. Its deletionTimestamp is when its grace period ends."""
    until = parse_time(metadata.get("deletionTimestamp"))
    try:
        return until - timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0)) if until else None
    except OverflowError:
        # The API server takes any 63 bits as a grace period; its own sum has wrapped around.
        return until


def _last_words(container: Json) -> str:
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    # The end of the log, if the supervisor could not write a message.
    return logtext.messages(str(ended.get("message") or "").strip())


def _unschedulable(conditions: list[Json]) -> tuple[datetime | None, str]:
    """Since when the scheduler has not found a Node, and why."""
    for condition in conditions:
        if condition.get("type") == "PodScheduled":
            if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
                return parse_time(condition.get("lastTransitionTime")), str(condition.get("message") or "")
            break
    return None, ""


def _gates(pod: Json) -> tuple[str, ...]:
    found = (pod.get("spec") or {}).get("schedulingGates") or ()
    return tuple(str(gate.get("name")) for gate in found[:MAX_GATES])


def _waiting(containers: list[Json]) -> Json | None:
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") != "ContainerCreating":
            return dict(waiting)
    return None


def read_pod(pod: Json, keys: Keyring) -> Pod:
    """The value of a pod object, as its labels and owners describe it; ``proven`` decides whether they are true."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    containers, conditions = status.get("containerStatuses") or [], status.get("conditions") or []
    waiting = _waiting(containers)
    since, message = _unschedulable(conditions)
    return Pod(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid")),
        rank=rank_number(pod),
        epoch=epoch_number(pod),
        node=pod_node(pod),
        group=group_index(pod),
        deployment=deployment_key(pod),
        owner=owner_uid(pod),
        memory_bytes=pod_memory(pod),
        ports=pod_ports(pod),
        kept_ports=_kept_ports(pod),
        terminating=_deleted_at(metadata),
        phase=str(status.get("phase") or "Pending"),
        message=str(status.get("message") or status.get("reason") or ""),
        scheduled=bool((pod.get("spec") or {}).get("nodeName")),
        gates=_gates(pod),
        unschedulable_since=since,
        unschedulable_message=message,
        waiting=f"{waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": ") if waiting else None,
        restarts=max((int(c.get("restartCount") or 0) for c in containers), default=0),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        running=any("running" in (c.get("state") or {}) for c in containers),
        crash_looping=bool(waiting and waiting.get("reason") == "CrashLoopBackOff"),
        last_words=next((words for c in containers if (words := _last_words(c))), ""),
        evicted=any(c.get("type") in EVICTIONS and c.get("status") == "True" for c in conditions),
        proof=_proof(pod, keys),
        router=is_router(pod),
    )
