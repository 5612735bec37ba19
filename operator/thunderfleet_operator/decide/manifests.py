"""The objects that a placement consists of. Equal inputs give equal manifests."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_crds import names
from thunderfleet_crds.exchange.mounts import API_KEY_FOLDER, KEYS_FOLDER, MODEL_FOLDER, PLAN_FOLDER, PLAN_KEY
from thunderfleet_crds.exchange.plan import (
    POD_GRACE_SECONDS,
    BenchmarkPlan,
    BootstrapPlan,
    KnownWeights,
    MemoryPlan,
    Plan,
    ProvenLengths,
    RankPlan,
    RecordedAnswer,
    RelayPlan,
    RuntimePlan,
    group_name,
    loopback_of,
)
from thunderfleet_crds.kinds import modeldeployment
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment, RuntimeSpec, duration_seconds
from thunderfleet_crds.meta.podmetadata import pod_group
from thunderfleet_crds.names import (
    ANNOTATION_HASH,
    ANNOTATION_PORTS,
    ANNOTATION_REASON,
    ANNOTATION_SIGNATURE,
    ANNOTATION_START_AT_BOOT,
    API_VERSION,
    CAPABILITY_FIRST,
    LABEL_DEPLOYMENT,
    LABEL_EPOCH,
    LABEL_GROUP,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_RANK,
    MANAGED_BY,
    MODELDEPLOYMENT_KIND,
    RESOURCE_GPU_MEMORY,
    RUNNER_NAME,
    RUNTIME_CLASS,
)
from thunderfleet_crds.vocabulary import Backend, FastSynch, PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.decide.routing.keys import router_plan
from thunderfleet_operator.observe.objects import plans, pods
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.observe.objects.proofs import Keyring, Purpose
from thunderfleet_operator.placement import Placement

TRANSPORTS: dict[Backend, PlacedTransport] = {
    Backend.NONE: Transport.NONE,
    Backend.RING: Transport.RING,
    Backend.JACCL: Transport.JACCL,
}
FAST_SYNCH_VARIABLE = "MLX_METAL_FAST_SYNCH"

Manifest = dict[str, Any]

RING_PORTS_PER_ATTEMPT = 2
GATEWAY_PORT = "http"
REASON_LENGTH = 4096
"""Maximum length of the reason, which the status shows."""


STARTUP_PROBES = 60
"""Seconds until a supervisor must answer: before that it reads the headers of the model's files."""
FROZEN_PROBES, FROZEN_TIMEOUT = 2, 3
"""The kubelet restarts a supervisor that has not answered two probes in a row within three seconds each, so at most ten seconds
after it froze. The other supervisors of its group count it as lost after three seconds, so the restart costs the group nothing.
The kubelet probes from the same Mac, so a network that is down, or a Mac that sleeps, causes no restart."""


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The fields of runner pods that the operator's command line sets."""

    image: str
    pull_policy: str = "IfNotPresent"
    runtime_class: str = RUNTIME_CLASS


def labels(deployment: str, group: int | None = None, epoch: int | None = None, rank: int | None = None) -> dict[str, str]:
    """The labels of a child of a ModelDeployment."""
    found = {LABEL_DEPLOYMENT: deployment, LABEL_MANAGED_BY: MANAGED_BY, LABEL_NAME: RUNNER_NAME}
    for key, value in ((LABEL_GROUP, group), (LABEL_EPOCH, epoch), (LABEL_RANK, rank)):
        if value is not None:
            found[key] = str(value)
    return found


def serving_selector(deployment: str) -> dict[str, str]:
    """Selects the pods whose gateway serves: rank 0 of every group."""
    return {LABEL_DEPLOYMENT: deployment, LABEL_NAME: RUNNER_NAME, LABEL_RANK: "0"}


def served_name(deployment: ModelDeployment) -> str:
    """The model name that clients use: the repository, or the last two parts of the path."""
    return names.served_name(deployment.spec.model.repository, deployment.spec.model.path, deployment.spec.model.uri)


def owner(deployment: ModelDeployment) -> Manifest:
    """The owner reference of a child. ``controller`` makes `kubectl drain` treat the pods as managed."""
    return {
        "apiVersion": API_VERSION,
        "kind": MODELDEPLOYMENT_KIND,
        "name": deployment.metadata.name,
        "uid": deployment.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def ring_size(deployment: ModelDeployment, placement: Placement) -> int:
    """Ring ports of each rank that needs them."""
    return RING_PORTS_PER_ATTEMPT * deployment.spec.bootstrap.attempts if len(placement.ranks) > 1 else 0


def uses_fast_synch(transport: PlacedTransport, split: PlacedSplit) -> bool:
    """Whether a group can use ``fastSynch``: a pipeline waits inside GPU commands, and a ring gains nothing."""
    return transport is Transport.JACCL and split is Split.TENSOR


def transport(plan: Plan) -> PlacedTransport:
    """Returns the transport of a plan."""
    return Transport.JACCL_RING if plan.jaccl_ring else TRANSPORTS[plan.backend]


def ring_ranks(placement: Placement) -> int | None:
    """How many ranks, from rank 0 on, have ring ports; None for all.

    Over JACCL only rank 0 has ring ports. MLX uses them if it exchanges the connection data itself.
    """
    return None if placement.transport is Transport.RING else 1


def make_plan(
    deployment: ModelDeployment,
    index: int,
    epoch: int,
    placement: Placement,
    ports: Sequence[RankPorts],
    status: modeldeployment.Group | None = None,
) -> Plan:
    """The plan that every supervisor of the group reads, before routers are admitted (``admitting``).

    ``status``: what is known from earlier placements.
    """
    meta, spec = deployment.metadata, deployment.spec
    name = group_name(meta.name, index, epoch)
    ranks = tuple(
        RankPlan(
            rank=entry.rank,
            node=entry.node,
            pod=f"{name}-{entry.rank}",
            address=entry.address,
            control_port=held.control,
            gateway_port=held.gateway,
            ring_address=loopback_of(entry.address) if entry.relay else entry.ring_address,
            relay=RelayPlan(address=entry.relay.address, backwards=entry.relay.backwards) if entry.relay else None,
            ring_ports=held.ring,
            devices=entry.devices,
            coordinator=entry.coordinator,
            layers=entry.layers,
            memory_bytes=entry.memory_bytes,
        )
        for entry, held in zip(placement.ranks, ports, strict=True)
    )
    return Plan(
        namespace=meta.namespace or "default",
        deployment=meta.name,
        uid=meta.uid or "",
        index=index,
        epoch=epoch,
        model=served_name(deployment),
        model_path=placement.model_path,
        backend={Transport.NONE: Backend.NONE, Transport.RING: Backend.RING}.get(placement.transport, Backend.JACCL),
        jaccl_ring=placement.transport is Transport.JACCL_RING,
        split=placement.split,
        ranks=ranks,
        links=placement.cables,
        memory=MemoryPlan(
            context_tokens=spec.memory.context_tokens,
            concurrent_requests=spec.memory.concurrent_requests,
            cached_tokens=spec.memory.cache_capacity,
        ),
        bootstrap=BootstrapPlan(
            attempts=spec.bootstrap.attempts, attempt_timeout_seconds=spec.bootstrap.attempt_timeout_seconds
        ),
        benchmark=BenchmarkPlan(
            prompt_tokens=spec.benchmark.prompt_tokens,
            generation_tokens=spec.benchmark.generation_tokens,
            every_seconds=duration_seconds(spec.benchmark.every),
        ),
        runtime=_runtime(spec.runtime, placement),
        verify=spec.verify,
        **_known(status, {rank.node for rank in ranks}),
    )


def admitting(plan: Plan, keys: Keyring) -> Plan:
    """The plan of a group whose gateway recognizes routers. The credential is that of this placement."""
    return plan.model_copy(update={"router": router_plan(plan, keys)})


def _known(status: modeldeployment.Group | None, nodes: set[str]) -> dict[str, Any]:
    """Returns what earlier placements of the group have found out about the model."""
    if status is None:
        return {}
    proven = status.proven_lengths
    return {
        "proven_lengths": ProvenLengths(digest=proven.digest, lengths=proven.lengths) if proven is not None else None,
        "known_weights": tuple(
            KnownWeights(node=copy.node, signature=copy.signature, digest=copy.digest)
            for copy in status.weights
            if copy.node in nodes
        ),
        "recorded_answers": tuple(
            RecordedAnswer(key=one.key, tokens=one.tokens, costs=one.costs, margins=one.margins)
            for one in status.recorded_answers
        ),
    }


def _runtime(spec: RuntimeSpec, placement: Placement) -> RuntimePlan:
    environment = {entry.name.value: entry.value for entry in spec.env}
    if spec.fast_synch is FastSynch.ENABLED and uses_fast_synch(placement.transport, placement.split):
        environment[FAST_SYNCH_VARIABLE] = "1"
    return RuntimePlan(environment=environment, wired_limit=spec.wired_limit)


def renumbered(plan: Plan, epoch: int) -> Plan:
    """The same placement under another epoch, and so with other names."""
    name = group_name(plan.deployment, plan.index, epoch)
    ranks = tuple(rank.model_copy(update={"pod": f"{name}-{rank.rank}"}) for rank in plan.ranks)
    return plan.model_copy(update={"epoch": epoch, "ranks": ranks})


def _metadata(deployment: ModelDeployment, plan: Plan, name: str, rank: int | None = None) -> Manifest:
    return {
        "name": name,
        "namespace": plan.namespace,
        "labels": labels(plan.deployment, plan.index, plan.epoch, rank),
        "ownerReferences": [owner(deployment)],
    }


def config_map(deployment: ModelDeployment, plan: Plan, spec_hash: str, reason: str, keys: Keyring) -> Manifest:
    """The immutable, signed ConfigMap that carries a plan. ``reason``: why the planner chose this place."""
    metadata = _metadata(deployment, plan, plan.name)
    metadata["annotations"] = {ANNOTATION_HASH: spec_hash, ANNOTATION_REASON: reason[:REASON_LENGTH]}
    data = {PLAN_KEY: plan.model_dump_json(by_alias=True, exclude_none=True, indent=1)}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": data}
    metadata["annotations"][ANNOTATION_SIGNATURE] = keys.sign(Purpose.PLAN, plans.statement(manifest))
    return manifest


def secret(plan: Plan, config_map_uid: str, name: str, certificate: str, key: str) -> Manifest:
    """The immutable Secret that carries a placement's certificate and key (PEM).

    It belongs to the plan's ConfigMap, so the garbage collector deletes exactly this Secret after it. The operator deletes no
    Secret: it could not identify its own.
    """
    files = {"tls.crt": certificate, "tls.key": key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": plan.namespace,
            "labels": labels(plan.deployment, plan.index, plan.epoch),
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": plan.name, "uid": config_map_uid}],
        },
        "type": "kubernetes.io/tls",
        "immutable": True,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }


def _resources(memory_bytes: int, gpu_memory: bool) -> Manifest:
    """Requests of a rank. Kubernetes requires a limit on an extended resource that is equal to the request."""
    asked = str(memory_bytes)
    if not gpu_memory:
        return {"requests": {"memory": asked}}
    return {"requests": {"memory": asked, RESOURCE_GPU_MEMORY: asked}, "limits": {RESOURCE_GPU_MEMORY: asked}}


def pod(
    deployment: ModelDeployment,
    plan: Plan,
    rank: int,
    settings: PodSettings,
    secret_name: str,
    keys: Keyring,
    *,
    gpu_memory: bool = False,
) -> Manifest:
    """The signed pod of one rank: a native process on its Mac, without credentials for Kubernetes.

    ``gpu_memory``: whether its Node has GPU memory as a resource. A pod that exists is never replaced for it.
    """
    entry = plan.ranks[rank]
    metadata = _metadata(deployment, plan, entry.pod, rank)
    held = {"gateway": entry.gateway_port, "control": entry.control_port, "ring": list(entry.ring_ports)}
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(entry.gateway_port)}
    wanted = deployment.spec.pod_metadata
    grouped, counted = pod_group(wanted.labels, plan.name, plan.world_size)
    metadata["labels"] = {**wanted.labels, **grouped, **metadata["labels"]}
    # A group whose Macs were off serves again while the control plane starts, and without one that stays off.
    own = {ANNOTATION_PORTS: json.dumps(held), ANNOTATION_START_AT_BOOT: "true"}
    metadata["annotations"] = {**wanted.annotations, **counted, **own, **scraped}
    volumes: list[Manifest] = [
        {"name": "plan", "configMap": {"name": plan.name}},
        {"name": "keys", "secret": {"secretName": secret_name, "defaultMode": 0o440}},
        {"name": "model", "hostPath": {"path": plan.model_path, "type": "Directory"}},
    ]
    mounts: list[Manifest] = [
        {"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": True},
        {"name": "keys", "mountPath": KEYS_FOLDER, "readOnly": True},
        {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True},
    ]
    if deployment.spec.server.api_key_secret:
        accepted = {"secretName": deployment.spec.server.api_key_secret, "defaultMode": 0o440}
        volumes.append({"name": "api-key", "secret": accepted})
        mounts.append({"name": "api-key", "mountPath": API_KEY_FOLDER, "readOnly": True})
    numbered = [(GATEWAY_PORT, entry.gateway_port), ("control", entry.control_port)]
    numbered += [(f"ring-{i}", port) for i, port in enumerate(entry.ring_ports)]
    tolerations: list[Manifest] = [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
        for state in ("not-ready", "unreachable")
    ]
    tolerations += [toleration.dump() for toleration in deployment.spec.nodes.tolerations]

    def probe(path: str, seconds: int, failures: int, timeout: int = 5) -> Manifest:
        get = {"host": entry.address, "path": path, "port": entry.gateway_port, "scheme": "HTTP"}
        return {"httpGet": get, "periodSeconds": seconds, "timeoutSeconds": timeout, "failureThreshold": failures}

    container: Manifest = {
        "name": "runner",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["thunderfleet-runner", "serve"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [{"name": name, "containerPort": port, "hostPort": port, "protocol": "TCP"} for name, port in numbered],
        "resources": _resources(entry.memory_bytes, gpu_memory),
        # All ranks of a group wait for the last one that has loaded.
        "securityContext": {"capabilities": {"add": [CAPABILITY_FIRST]}},
        "readinessProbe": probe("/readyz", 2, 2),
        # A supervisor that cannot start writes why; after a crash, the end of its log takes the place of that.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": probe("/healthz", 1, STARTUP_PROBES),
        "livenessProbe": {**probe("/healthz", 2, FROZEN_PROBES, FROZEN_TIMEOUT), "terminationGracePeriodSeconds": 1},
        "volumeMounts": mounts,
    }
    affinity = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [entry.node]}]}
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "runtimeClassName": settings.runtime_class,
            "hostNetwork": True,
            "dnsPolicy": "Default",
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": POD_GRACE_SECONDS,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [affinity]}}},
            "tolerations": tolerations,
            "containers": [container],
            "volumes": volumes,
        },
    }
    if deployment.spec.priority_class_name:
        manifest["spec"]["priorityClassName"] = deployment.spec.priority_class_name
    metadata["annotations"][ANNOTATION_SIGNATURE] = keys.sign(Purpose.POD, pods.statement(manifest))
    return manifest


def service(deployment: ModelDeployment) -> Manifest:
    """A stable name for the gateways of all groups. It is headless: its EndpointSlices carry each group's own port."""
    meta = deployment.metadata
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": labels(meta.name),
            "ownerReferences": [owner(deployment)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": serving_selector(meta.name),
            "ports": [{"name": GATEWAY_PORT, "port": 80, "targetPort": GATEWAY_PORT, "protocol": "TCP"}],
        },
    }
    text = json.dumps(manifest, sort_keys=True)
    manifest["metadata"]["annotations"] = {ANNOTATION_HASH: hashlib.sha256(text.encode()).hexdigest()[:16]}
    return manifest
