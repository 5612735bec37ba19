"""A Node as a value."""

import contextlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.exchange.nodes import has_gpu_memory
from thunderfleet_crds.names import ANNOTATION_BACKUP, CONDITION_DESCRIPTORS, LABEL_OS, RESOURCE_GPU_MEMORY
from thunderfleet_lib.csr.rules import is_control_plane, published_addresses
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_operator.observe.objects.metadata import Json, deleting, parse_time
from thunderfleet_operator.placement import Taint

OUR_KUBELET = "-thunderfleet."
"""Part of the version that Thunderfleet's kubelet reports."""


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a Node that decisions read. Heartbeats change none of them."""

    name: str
    ready: bool
    schedulable: bool = True
    address: str | None = None
    """Its InternalIP."""
    boot_id: str | None = None
    allocatable_bytes: int = 0
    max_pods: int = 0
    """Number of pods that it runs at most; 0 if it does not say."""
    counts_gpu_memory: bool = False
    """Whether it has GPU memory as a resource that pods can request."""
    labels: Mapping[str, str] | None = None
    taints: tuple[Taint, ...] = ()
    deleting: bool = False
    addresses: frozenset[str] = frozenset()
    """All addresses that it publishes, in the form that certificate requests use."""
    ours: bool = False
    """Whether its kubelet is Thunderfleet's."""
    control_plane: bool = False
    """Whether it runs an API server."""
    created: datetime | None = None
    saved: datetime | None = None
    """When `thunderfleet backup` last saved its control plane."""
    pressures: tuple[tuple[str, bool], ...] = ()
    """Conditions about resources that run out, such as DiskPressure, and whether each is True."""

    @property
    def mac(self) -> bool:
        """Whether it runs macOS."""
        return (self.labels or {}).get(LABEL_OS) == "darwin"

    @property
    def loopback(self) -> bool:
        """Whether its address is in 127.0.0.0/8, as for the Macs of a local cluster."""
        try:
            return bool(self.address) and ipaddress.ip_address(self.address or "").is_loopback
        except ValueError:
            return False


def is_ready(item: Json) -> bool:
    """Whether a Node's condition Ready is True."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def internal_ip(item: Json) -> str | None:
    """A Node's InternalIP."""
    for address in (item.get("status") or {}).get("addresses") or []:
        if address.get("type") == "InternalIP":
            return str(address.get("address"))
    return None


def boot_id(item: Json) -> str | None:
    """The ID of the Node's current boot."""
    return ((item.get("status") or {}).get("nodeInfo") or {}).get("bootID")


def kubelet_version(item: Json) -> str:
    """The version that the Node's kubelet reports."""
    return str(((item.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def _allocatable(item: Json) -> Json:
    return (item.get("status") or {}).get("allocatable") or {}


def allocatable_bytes(item: Json) -> int:
    """Memory that runner pods may request. Raises ``ValueError`` if it is not a quantity.

    Runner pods request the same amount of two resources, so the smaller one counts.
    """
    found = _allocatable(item)
    memory = to_bytes(str(found.get("memory") or 0))
    return min(memory, to_bytes(str(found[RESOURCE_GPU_MEMORY]))) if has_gpu_memory(item) else memory


def allocatable_pods(item: Json) -> int:
    """Number of pods that a Node runs at most, 0 if it does not say. Raises ``ValueError`` if it is not a quantity."""
    return to_bytes(str(_allocatable(item).get("pods") or 0))


def taints(item: Json) -> tuple[Taint, ...]:
    """A Node's taints, without those that Kubernetes sets for a cordon or a missed heartbeat.

    ``Node.schedulable`` and ``Node.ready`` report those two, and messages about them are clearer.
    """
    return tuple(
        Taint(str(t.get("key")), str(t.get("value") or ""), str(t.get("effect")))
        for t in (item.get("spec") or {}).get("taints") or []
        if not str(t.get("key")).startswith("node.kubernetes.io/")
        or str(t.get("key")).endswith(("-pressure", "/out-of-service"))
    )


def _saved(metadata: Json) -> datetime | None:
    with contextlib.suppress(ValueError):
        # Anyone who may write the Node may write the annotation.
        noted = parse_time((metadata.get("annotations") or {}).get(ANNOTATION_BACKUP))
        if noted is not None and noted.tzinfo is not None:
            return noted
    return None


def _pressures(item: Json) -> tuple[tuple[str, bool], ...]:
    conditions = (item.get("status") or {}).get("conditions") or []
    kinds = [(str(one.get("type")), one.get("status") == "True") for one in conditions]
    return tuple(sorted((kind, holds) for kind, holds in kinds if kind.endswith("Pressure") or kind == CONDITION_DESCRIPTORS))


def read_node(item: Json) -> Node:
    """The value of a Node object."""
    return Node(
        name=str(item["metadata"]["name"]),
        ready=is_ready(item),
        schedulable=not (item.get("spec") or {}).get("unschedulable"),
        address=internal_ip(item),
        boot_id=boot_id(item),
        allocatable_bytes=allocatable_bytes(item),
        max_pods=allocatable_pods(item),
        counts_gpu_memory=has_gpu_memory(item),
        labels=item["metadata"].get("labels") or {},
        taints=taints(item),
        deleting=deleting(item),
        addresses=published_addresses(item),
        ours=OUR_KUBELET in kubelet_version(item),
        control_plane=is_control_plane(item),
        created=parse_time(item["metadata"].get("creationTimestamp")),
        saved=_saved(item["metadata"]),
        pressures=_pressures(item),
    )
