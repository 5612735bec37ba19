"""The part of the kubelet's configuration that pods need; it can be replaced while the kubelet runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thunderfleet_kubelet.containers.inputs.own_image import OwnImage


@dataclass(frozen=True)
class PodSettings:
    """Settings of all pods.

    ``path``: folders in front of every container's PATH. ``python_path``: every container's PYTHONPATH. ``images``: image
    name to folder. ``own``: the image of the kubelet's installation. ``api_server``: host and port of KUBERNETES_SERVICE_HOST
    and _PORT. ``addresses``: the Node's InternalIPs, first the one of its pods. ``allocatable``: the Node's. ``labels``: those
    that this kubelet gives the Node, for admission while the Node cannot be read. ``mac``: whether the Node is
    ``kubernetes.io/os=darwin``. ``log_bytes`` and ``log_files``: the limits of a container's log.
    ``boot``: changes when the machine boots.
    """

    path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = ()
    images: Mapping[str, Path] = field(default_factory=dict)
    own: OwnImage | None = None
    api_server: tuple[str, int] = ("127.0.0.1", 6443)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mac: bool = False
    log_bytes: int = 10 * 1024**2
    log_files: int = 5
    boot: str = ""
