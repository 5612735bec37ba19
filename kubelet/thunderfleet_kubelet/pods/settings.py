"""What the kubelet's configuration says about running containers, as one value that can be replaced while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class RuntimeSettings:
    """What the kubelet's configuration says about running containers.

    ``path``: folders in front of every container's PATH. ``python_path``: PYTHONPATH of every container, if any. ``images``:
    exact image name -> image folder. ``default_user``: (uid, gid) of containers without ``runAsUser``; None is the kubelet's
    own user. ``api_server``: (host, port) that containers get as KUBERNETES_SERVICE_HOST and _PORT. ``addresses``: the Node's
    InternalIPs, the first is the pods' and host's IP. ``allocatable``: the Node's allocatable quantities (``cpu``, ``memory``,
    ``pods``) and ``labels`` its labels, for the second admission. ``mac``: whether the Node is ``kubernetes.io/os=darwin``.
    """

    path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = ()
    images: Mapping[str, Path] = field(default_factory=dict)
    default_user: tuple[int, int] | None = None
    api_server: tuple[str, int] = ("127.0.0.1", 6443)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mac: bool = False
