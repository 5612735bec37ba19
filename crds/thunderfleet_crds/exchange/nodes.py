"""What a Node shows about its kubelet."""

from collections.abc import Mapping
from typing import Any

from thunderfleet_crds.names import RESOURCE_GPU_MEMORY, RUNTIME_GPU_MEMORY


def has_gpu_memory(node: Mapping[str, Any]) -> bool:
    """Whether a Node has GPU memory as a resource that pods can request.

    A kubelet that does not support the resource fails pods that request it, though the Node keeps what a later kubelet
    published.
    """
    status = node.get("status") or {}
    runtime = str((status.get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
    return runtime.endswith(RUNTIME_GPU_MEMORY) and RESOURCE_GPU_MEMORY in (status.get("allocatable") or {})
