"""The pods that read from the hub, and the ModelCache of a ModelDeployment."""

import hashlib
from dataclasses import dataclass
from typing import Any

from thunderfleet_crds.exchange.mounts import STAGING_FOLDER, STORE_FOLDER, TOKEN_FOLDER
from thunderfleet_crds.fetching import URI_AUTHORITIES, URI_HOSTS, URI_PRIVATE_HOSTS
from thunderfleet_crds.kinds.modelcache import Download, ModelCache, QuantizedFrom
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.names import (
    ANNOTATION_SIGNATURE,
    API_VERSION,
    FETCHER_NAME,
    LABEL_CACHE,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGED_BY,
    MAX_NAME_LENGTH,
    MODELCACHE_KIND,
    MODELDEPLOYMENT_KIND,
)
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.uris import host_of, not_allowed

from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.weights import quantizing
from thunderfleet_operator.observe.fleet.weights import origin
from thunderfleet_operator.observe.objects.fetchpods import Task, statement
from thunderfleet_operator.observe.objects.proofs import Keyring, Purpose

Manifest = dict[str, Any]
MEMORY = "256Mi"
GRACE_SECONDS = 5
TOKEN_MODE = 0o440


@dataclass(frozen=True, slots=True)
class UriSettings:
    """Which hosts of URIs Macs may contact: the chart's values. ``authorities``: certificates in PEM."""

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    authorities: str = ""

    @property
    def environment(self) -> list[Manifest]:
        """The variables of a pod that reads from a URI. It does not use the hub's proxy, because it checks addresses itself."""
        named = {URI_HOSTS: " ".join(self.hosts), URI_PRIVATE_HOSTS: " ".join(self.private_hosts)}
        named[URI_AUTHORITIES] = self.authorities
        return [{"name": name, "value": value} for name, value in named.items() if value]

    def refusal(self, uri: str | None) -> Download | None:
        """Why a URI may not be read, for ``status.download``; None if it may, or for a repository."""
        why = not_allowed(host_of(uri), self.hosts) if uri is not None else None
        return Download(reason=Reason.HOST_NOT_ALLOWED, message=why) if why is not None else None


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How pods reach the hub. ``enabled`` False: ModelDeployments get no ModelCache."""

    endpoint: str = ""
    proxy: str = ""
    no_proxy: str = ""
    enabled: bool = False
    uris: UriSettings = UriSettings()


NO_HUB = HubSettings()


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod to create."""

    task: Task
    node: str
    attempt: int
    store: str = ""
    """Folder of the Mac's model store, for a download."""
    files: str | None = None
    """Numbers of the files to download; None for all."""


def environment(settings: HubSettings) -> list[Manifest]:
    """The variables by which huggingface_hub finds the hub."""
    named = {
        "HF_ENDPOINT": settings.endpoint,
        "HTTPS_PROXY": settings.proxy,
        "HTTP_PROXY": settings.proxy,
        "NO_PROXY": settings.no_proxy,
    }
    return [{"name": name, "value": value} for name, value in named.items() if value]


def pod(cache: ModelCache, new: NewPod, pods: PodSettings, hub: HubSettings, keys: Keyring) -> Manifest:
    """A signed pod. It mounts the token; neither the operator nor an agent reads it."""
    meta, spec, status = cache.metadata, cache.spec, cache.status
    volumes, mounts = list[Manifest](), list[Manifest]()
    if spec.token_secret:
        # The pod reports a missing Secret.
        secret = {"secretName": spec.token_secret, "optional": True, "defaultMode": TOKEN_MODE}
        volumes.append({"name": "token", "secret": secret})
        mounts.append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    source = status.quantized_from
    if new.task is Task.RESOLVE:
        what = [*origin(spec), *quantizing.revision(spec), *quantizing.how(cache)]
    elif new.task is Task.QUANTIZE and source is not None:
        what = list(quantizing.arguments(cache, source))
    else:
        what = [*origin(spec), "--commit", status.commit or "", "--manifest", status.manifest or ""]
        what += ["--files", new.files] if new.files is not None else []
    if new.task is not Task.RESOLVE:
        staging = f"{new.store}/.thunderfleet/staging/{meta.uid}"
        volumes.append({"name": "store", "hostPath": {"path": new.store, "type": "Directory"}})
        volumes.append({"name": "owned-staging", "hostPath": {"path": staging}})
        mounts.append({"name": "store", "mountPath": STORE_FOLDER, "readOnly": True})
        mounts.append({"name": "owned-staging", "mountPath": STAGING_FOLDER})
    inputs = "/".join([str(meta.uid), new.task, new.node, str(new.attempt), *what])
    name = f"{meta.name}-{new.task}-{hashlib.sha256(inputs.encode()).hexdigest()[:8]}"
    metadata: Manifest = {
        "name": name,
        "namespace": meta.namespace,
        "labels": {LABEL_CACHE: meta.name, LABEL_MANAGED_BY: MANAGED_BY, LABEL_NAME: FETCHER_NAME},
        "ownerReferences": [owner(cache)],
    }
    affinity = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [new.node]}]}
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "runtimeClassName": pods.runtime_class,
            "hostNetwork": True,
            "dnsPolicy": "Default",
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [affinity]}}},
            # The pods of groups tolerate these taints, and so must the pods that fetch their models.
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "fetcher",
                    "image": pods.image,
                    "imagePullPolicy": pods.pull_policy,
                    "command": ["thunderfleet-runner", str(new.task), *what],
                    "env": environment(hub) if spec.uri is None else hub.uris.environment,
                    "resources": {"requests": {"memory": _memory(new.task, source)}},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }
    metadata["annotations"] = {ANNOTATION_SIGNATURE: keys.sign(Purpose.FETCH, statement(manifest))}
    return manifest


def _memory(task: Task, source: QuantizedFrom | None) -> str:
    return str(quantizing.memory_bytes(source)) if task is Task.QUANTIZE and source is not None else MEMORY


def owner(cache: ModelCache) -> Manifest:
    """The owner reference of a child of a ModelCache."""
    return {
        "apiVersion": API_VERSION,
        "kind": MODELCACHE_KIND,
        "name": cache.metadata.name,
        "uid": cache.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def model_cache(deployment: ModelDeployment, name: str) -> Manifest:
    """The ModelCache with the weights of a ModelDeployment, which goes with it."""
    meta, model = deployment.metadata, deployment.spec.model
    spec: Manifest = {"repository": model.repository, "revision": model.revision, "copies": 0}
    if model.uri is not None:
        spec = {"uri": model.uri, "sha256": model.sha256, "copies": 0}
    if model.token_secret:
        spec["tokenSecret"] = model.token_secret
    if model.quantize is not None:
        spec["quantize"] = model.quantize.dump()
    return {
        "apiVersion": API_VERSION,
        "kind": MODELCACHE_KIND,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": MODELDEPLOYMENT_KIND,
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": spec,
    }


def cache_name(deployment: ModelDeployment, *, taken: bool) -> str:
    """The name of its ModelCache. ``taken``: whether another ModelCache has the ModelDeployment's name."""
    name = deployment.metadata.name
    if not taken:
        return name
    suffix = hashlib.sha256(str(deployment.metadata.uid).encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME_LENGTH - 9]}-{suffix}"
