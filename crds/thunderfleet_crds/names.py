"""Names of the API: group, kinds, labels, annotations, and the limits that hold for all kinds."""

import hashlib
from typing import Final

from thunderfleet_crds import uris

GROUP: Final = "thunderfleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "thunderfleet"

NODEPROFILE_KIND: Final = "NodeProfile"
THUNDERBOLTLINK_KIND: Final = "ThunderboltLink"
MODELDEPLOYMENT_KIND: Final = "ModelDeployment"
MODELCACHE_KIND: Final = "ModelCache"
NODEPROFILE_PLURAL: Final = "nodeprofiles"
THUNDERBOLTLINK_PLURAL: Final = "thunderboltlinks"
MODELDEPLOYMENT_PLURAL: Final = "modeldeployments"
MODELCACHE_PLURAL: Final = "modelcaches"

# Labels of children (pods, Services, ConfigMaps, Secrets), by which the operator finds the objects that it owns.
LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_GROUP: Final = f"{GROUP}/group"
LABEL_EPOCH: Final = f"{GROUP}/epoch"
LABEL_RANK: Final = f"{GROUP}/rank"
LABEL_CACHE: Final = f"{GROUP}/cache"
"""On pods that read from the hub: the name of their ModelCache."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
MANAGED_BY: Final = "thunderfleet-operator"
RUNNER_NAME: Final = "thunderfleet-runner"
FETCHER_NAME: Final = "thunderfleet-fetcher"
LABEL_DOMAIN_PREFIX: Final = f"domain.{GROUP}/"
"""On a NodeProfile, one label per connected port: ``domain.thunderfleet.io/<uuid>: ""``. One list by label finds the peer."""
LABEL_CHIP: Final = f"{GROUP}/chip"
"""On a Node, set by its kubelet: the Mac's chip, for node selectors."""
LABEL_OS: Final = "kubernetes.io/os"
RESOURCE_GPU_MEMORY: Final = f"{GROUP}/gpu-memory"
"""The extended resource of Macs, in bytes: what their Nodes have for models, and what runner pods request."""
RUNTIME_GPU_MEMORY: Final = "+gpu-memory"
"""How ``nodeInfo.containerRuntimeVersion`` ends if the Node's kubelet supports ``RESOURCE_GPU_MEMORY``.

A kubelet that does not support the resource leaves it in ``capacity`` and ``allocatable``, which it merges. It overwrites this
text, in the same write as ``kubeletVersion``.
"""

FIELDS_END: Final = ("spec.a.node", "spec.b.node")
"""Fields of a ThunderboltLink by which a Mac lists its own links. Unlike a label, nobody can set them to another Mac later."""
LABEL_END_PREFIX: Final = f"end.{GROUP}/"
"""Agents of earlier versions set one of these labels for each end: the CRD of these versions cannot select by fields."""
ANNOTATION_HASH: Final = f"{GROUP}/hash"
"""On children: the hash of their inputs, so that unchanged objects are not written again."""
ANNOTATION_PORTS: Final = f"{GROUP}/ports"
ANNOTATION_REASON: Final = f"{GROUP}/reason"
"""On a plan's ConfigMap: why the planner chose this placement."""
ANNOTATION_SIGNATURE: Final = f"{GROUP}/signature"
"""On plans and runner pods: an HMAC-SHA256 with the operator's key, by which the operator recognizes what it made."""

ANNOTATION_START_AT_BOOT: Final = f"{GROUP}/start-at-boot"
"""On pods, ``true``: the kubelet that adopts the pod runs it before the API server answers, with its volumes as they are."""
CAPABILITY_FIRST: Final = "SYS_NICE"
"""The capability of containers on Macs whose processes get processors before other programs of the Mac."""
ANNOTATION_BACKUP: Final = f"{GROUP}/backup"
"""On the Node of a Mac with a control plane: when `thunderfleet backup` last saved it (RFC 3339)."""

TAINT_MACOS: Final = f"{GROUP}/macos"
CONDITION_CONTROL_PLANE: Final = "ControlPlaneReady"
"""Condition of the Node of a Mac with a control plane: whether scheduler and controller manager there answer."""
CONDITION_DESCRIPTORS: Final = "DescriptorsExhausted"
"""Condition of a Node whose kubelet can open hardly any more files and connections. Kubernetes has no such condition."""
RUNTIME_CLASS: Final = "macos"

MAX_GROUPS: Final = 64
MAX_RANKS: Final = 64
# The most ranks for which agents compute the memory that tensor parallelism needs.
MAX_WORLD_SIZE: Final = 16
MAX_NAME_LENGTH: Final = 40


def short_hash(node: str) -> str:
    """Ten characters that replace a node's name where it would be too long, for example in the key of a label."""
    return hashlib.sha256(node.encode()).hexdigest()[:10]


def end_label(node: str) -> str:
    """The label that agents of earlier versions set on every ThunderboltLink with an end at this node."""
    return LABEL_END_PREFIX + short_hash(node)


def served_name(repository: str | None, path: str | None, uri: str | None = None) -> str:
    """The name of a model for clients: the repository, or the last two parts of the path or URI."""
    if uri is not None:
        return uris.served_name(uri)
    return repository or "/".join((path or "").rstrip("/").split("/")[-2:])


def client_names(namespace: str, deployment: str, model: str) -> tuple[str, ...]:
    """The names under which gateways serve a model, which routers let take precedence over each other in this order.

    ``model``: its ``served_name``. Aliases are only for routers, so that a change restarts no group.
    """
    return (f"{namespace}/{deployment}", deployment, model, model.rpartition("/")[2])
