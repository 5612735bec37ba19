"""The objects that a placement stands for. Pure: values in, manifests out, equal for equal inputs."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_crds.common import (
    ANNOTATION_HASH,
    ANNOTATION_PORTS,
    API_VERSION,
    GROUP,
    LABEL_DEPLOYMENT,
    LABEL_EPOCH,
    LABEL_GROUP,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_RANK,
    MANAGED_BY,
    MODELDEPLOYMENT_KIND,
    RUNNER_NAME,
    RUNTIME_CLASS,
)
from thunderfleet_crds.modeldeployment import ModelDeployment, duration_seconds
from thunderfleet_crds.plan import (
    API_KEY_FOLDER,
    KEYS_FOLDER,
    MODEL_FOLDER,
    PLAN_FOLDER,
    PLAN_KEY,
    POD_GRACE_SECONDS,
    BenchmarkPlan,
    BootstrapPlan,
    MemoryPlan,
    Plan,
    RankPlan,
    RelayPlan,
    loopback_of,
)
from thunderfleet_crds.vocabulary import Backend, Transport

from thunderfleet_operator.observe.snapshot import RankPorts
from thunderfleet_operator.placement import Placement

Manifest = dict[str, Any]

ANNOTATION_REASON = f"{GROUP}/reason"
RING_PORTS_PER_ATTEMPT = 2
GATEWAY_PORT = "http"


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What the operator's own configuration says of runner pods."""

    image: str
    pull_policy: str = "IfNotPresent"
    runtime_class: str = RUNTIME_CLASS


def group_name(deployment: str, group: int, epoch: int) -> str:
    """Name of the ConfigMap and the Secret of one placement; its pods add their rank. The epoch is in it, since a Mac that
    does not answer keeps its pod, and an object of that name could not be made anew.
    """
    return f"{deployment}-{group}-e{epoch}"


def labels(deployment: str, group: int | None = None, epoch: int | None = None, rank: int | None = None) -> dict[str, str]:
    found = {LABEL_DEPLOYMENT: deployment, LABEL_MANAGED_BY: MANAGED_BY, LABEL_NAME: RUNNER_NAME}
    for key, value in ((LABEL_GROUP, group), (LABEL_EPOCH, epoch), (LABEL_RANK, rank)):
        if value is not None:
            found[key] = str(value)
    return found


def serving_selector(deployment: str) -> dict[str, str]:
    """The pods whose gateway serves: every group's rank 0."""
    return {LABEL_DEPLOYMENT: deployment, LABEL_NAME: RUNNER_NAME, LABEL_RANK: "0"}


def served_name(deployment: ModelDeployment) -> str:
    """The name that clients use: the repository, or the path's last parts as the hub would write them."""
    model = deployment.spec.model
    return model.repository or "/".join((model.path or "").rstrip("/").split("/")[-2:])


def owner(deployment: ModelDeployment) -> Manifest:
    """``controller`` so that `kubectl drain` takes the pods for managed ones; nothing blocks a deletion."""
    return {
        "apiVersion": API_VERSION,
        "kind": MODELDEPLOYMENT_KIND,
        "name": deployment.metadata.name,
        "uid": deployment.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def ring_size(deployment: ModelDeployment, placement: Placement) -> int:
    """Ring ports of each rank that has any."""
    return RING_PORTS_PER_ATTEMPT * deployment.spec.bootstrap.attempts if len(placement.ranks) > 1 else 0


def ring_ranks(placement: Placement) -> int | None:
    """How many ranks have ring ports; None for all. Over JACCL rank 0 alone may need them: for MLX's own exchange, where the
    runner is told to leave it to MLX.
    """
    return None if placement.transport is Transport.RING else 1


def make_plan(deployment: ModelDeployment, index: int, epoch: int, placement: Placement, ports: Sequence[RankPorts]) -> Plan:
    """What every supervisor of the group is told."""
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
        memory=MemoryPlan(
            context_tokens=spec.memory.context_tokens,
            concurrent_requests=spec.memory.concurrent_requests,
            cached_tokens=spec.memory.cached_tokens,
        ),
        bootstrap=BootstrapPlan(
            attempts=spec.bootstrap.attempts, attempt_timeout_seconds=spec.bootstrap.attempt_timeout_seconds
        ),
        benchmark=BenchmarkPlan(
            prompt_tokens=spec.benchmark.prompt_tokens,
            generation_tokens=spec.benchmark.generation_tokens,
            every_seconds=duration_seconds(spec.benchmark.every),
        ),
    )


def _metadata(deployment: ModelDeployment, plan: Plan, name: str, rank: int | None = None) -> Manifest:
    return {
        "name": name,
        "namespace": plan.namespace,
        "labels": labels(plan.deployment, plan.index, plan.epoch, rank),
        "ownerReferences": [owner(deployment)],
    }


def config_map(deployment: ModelDeployment, plan: Plan, spec_hash: str, reason: str) -> Manifest:
    metadata = _metadata(deployment, plan, group_name(plan.deployment, plan.index, plan.epoch))
    metadata["annotations"] = {ANNOTATION_HASH: spec_hash, ANNOTATION_REASON: reason}
    data = {PLAN_KEY: plan.model_dump_json(by_alias=True, exclude_none=True, indent=1)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": data}


def secret(deployment: ModelDeployment, plan: Plan, certificate: str, key: str) -> Manifest:
    """The group's keys (PEM) for its runner pods."""
    files = {"tls.crt": certificate, "tls.key": key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(deployment, plan, group_name(plan.deployment, plan.index, plan.epoch)),
        "type": "kubernetes.io/tls",
        "immutable": True,
        # Not stringData: under server-side apply it is never equal to what is stored.
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }


def pod(deployment: ModelDeployment, plan: Plan, rank: int, settings: PodSettings) -> Manifest:
    """The pod of one rank: a native process on its Mac, with no credentials for Kubernetes."""
    entry = plan.ranks[rank]
    group = group_name(plan.deployment, plan.index, plan.epoch)
    metadata = _metadata(deployment, plan, entry.pod, rank)
    held = {"gateway": entry.gateway_port, "control": entry.control_port, "ring": list(entry.ring_ports)}
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(entry.gateway_port)}
    metadata["annotations"] = {ANNOTATION_PORTS: json.dumps(held), **scraped}
    volumes: list[Manifest] = [
        {"name": "plan", "configMap": {"name": group}},
        {"name": "keys", "secret": {"secretName": group, "defaultMode": 0o440}},
        {"name": "model", "hostPath": {"path": plan.model_path, "type": "Directory"}},
    ]
    mounts: list[Manifest] = [
        {"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": True},
        {"name": "keys", "mountPath": KEYS_FOLDER, "readOnly": True},
        {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True},
    ]
    if deployment.spec.server.api_key_secret:
        keys = {"secretName": deployment.spec.server.api_key_secret, "defaultMode": 0o440}
        volumes.append({"name": "api-key", "secret": keys})
        mounts.append({"name": "api-key", "mountPath": API_KEY_FOLDER, "readOnly": True})
    numbered = [(GATEWAY_PORT, entry.gateway_port), ("control", entry.control_port)]
    numbered += [(f"ring-{i}", port) for i, port in enumerate(entry.ring_ports)]
    tolerations: list[Manifest] = [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
        for state in ("not-ready", "unreachable")
    ]
    tolerations += [toleration.dump() for toleration in deployment.spec.nodes.tolerations]

    def probe(path: str, seconds: int, failures: int) -> Manifest:
        get = {"host": entry.address, "path": path, "port": entry.gateway_port, "scheme": "HTTP"}
        return {"httpGet": get, "periodSeconds": seconds, "timeoutSeconds": 5, "failureThreshold": failures}

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
        "resources": {"requests": {"memory": str(entry.memory_bytes)}},
        "readinessProbe": probe("/readyz", 2, 2),
        # What a supervisor says that cannot start is in the pod's status; of one that crashes, the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "livenessProbe": {**probe("/healthz", 10, 3), "initialDelaySeconds": 30},
        "volumeMounts": mounts,
    }
    affinity = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [entry.node]}]}
    return {
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


def service(deployment: ModelDeployment) -> Manifest:
    """A stable name for the gateways of all groups. Headless: its EndpointSlices carry each group's own port."""
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
