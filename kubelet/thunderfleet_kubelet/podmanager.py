"""All pods of this node: the one thing the rest of the kubelet talks to about pods.

The API server's list of this node's pods goes in (``sync``), processes and ``status`` come out. Nothing here decides what
a pod should do next (``lifecycle``) or how a container is run (``containers``, ``shim``); this keeps one worker a pod, takes
over what an earlier kubelet left running, and answers questions (logs, exec, usage) about what runs.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from thunderfleet_crds.kube import Json, Kube


@dataclass(frozen=True)
class RuntimeSettings:
    """What the kubelet's configuration says about running containers.

    ``path``: folders in front of every container's PATH. ``python_path``: PYTHONPATH of every container, if any. ``images``:
    exact image name -> image folder. ``default_user``: (uid, gid) of containers without ``runAsUser``; None is the kubelet's
    own user. ``api_server``: (host, port) that containers get as KUBERNETES_SERVICE_HOST and _PORT. ``addresses``: the Node's
    InternalIPs, the first is the pods' and host's IP. ``allocatable``: the Node's allocatable quantities (``cpu``, ``memory``,
    ``pods``) and ``labels`` its labels, for the second admission. ``mac``: whether the Node says ``kubernetes.io/os=darwin``."""

    path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = ()
    images: Mapping[str, Path] = field(default_factory=dict)
    default_user: tuple[int, int] | None = None
    api_server: tuple[str, int] = ("127.0.0.1", 6443)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mac: bool = False


class PodLookupError(Exception):
    """A question about a pod that cannot be answered; ``str()`` is the sentence for the user. Base of the three below."""

    status = 500


class NoSuchPod(PodLookupError):
    """No pod of that namespace and name runs here (HTTP 404)."""

    status = 404


class NoSuchContainer(PodLookupError):
    """The pod has no container of that name, or none that ran before (HTTP 400 for ``previous``, else 404)."""

    status = 400


class ContainerNotRunning(PodLookupError):
    """The container exists but has not started yet, or is not running now (HTTP 400)."""

    status = 400


@dataclass(frozen=True)
class ContainerUsage:
    """What one running container uses now. ``cpu_seconds`` is cumulative over the container's live processes."""

    namespace: str
    pod: str
    container: str
    cpu_seconds: float
    memory_bytes: int
    started_at: datetime
    sampled_at: datetime


class ByteWriter(Protocol):
    """Where the caller of exec writes the program's standard input."""

    async def write(self, data: bytes) -> None:
        """Hands bytes to the program; a program that reads no more is not an error."""

    async def close(self) -> None:
        """End of input."""


class ExecSession(Protocol):
    """A program started inside a container's environment.

    ``stdout`` and ``stderr`` end when the program has closed them; with a terminal there is only ``stdout``."""

    @property
    def stdin(self) -> ByteWriter: ...

    @property
    def stdout(self) -> AsyncIterator[bytes]: ...

    @property
    def stderr(self) -> AsyncIterator[bytes]: ...

    def resize(self, columns: int, rows: int) -> None:
        """New size of the terminal; nothing without one."""

    async def wait(self) -> int:
        """The exit code, 128 + signal when a signal ended it."""

    async def kill(self) -> None:
        """Ends the program's whole process group. Safe to call twice, and after its end."""


class PodManager:
    """The pods of one node. ``root`` is the kubelet's folder: pods live in ``root/pods``. ``kube`` gives the current connection
    (it may be another one after a certificate was rotated)."""

    def __init__(
        self,
        *,
        root: Path,
        node_name: str,
        kube: Callable[[], Kube],
        runtime: RuntimeSettings,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.root = root
        self.node_name = node_name
        self.kube = kube
        self.runtime = runtime
        """May be replaced while running (new labels, allocatable or images); holds from the next decision on."""

    async def start(self) -> None:
        """Takes over what an earlier kubelet left running. Before the first ``sync``; needs no API server."""
        raise NotImplementedError

    def sync(self, pods: Mapping[str, Json]) -> None:
        """The pods of this node as the API server lists them now, by ``namespace/name``. Call it with the whole list on every
        change, never before the first list is in: a pod that runs here and is not in ``pods`` is ended."""
        raise NotImplementedError

    async def stop(self, *, end_pods: bool) -> None:
        """Ends the manager. Without ``end_pods`` all containers go on running, for the next kubelet to take over."""
        raise NotImplementedError

    async def end_all_pods(self) -> None:
        """Ends every pod with its grace and forgets it (the Node is gone from the cluster). Returns when all are gone."""
        raise NotImplementedError

    def pods(self) -> list[Json]:
        """The pods that this node accepted and that have not ended, as last known."""
        raise NotImplementedError

    async def usage(self) -> list[ContainerUsage]:
        """What every running container uses now."""
        raise NotImplementedError

    def open_log(
        self,
        namespace: str,
        pod: str,
        container: str | None,
        *,
        follow: bool = False,
        tail: int | None = None,
        since_seconds: float | None = None,
        since_time: datetime | None = None,
        timestamps: bool = False,
        previous: bool = False,
        limit_bytes: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The container's log in chunks of whole lines. Raises a PodLookupError at once (before the first chunk). With
        ``follow`` it ends when the container has ended. ``container`` None is the pod's only container."""
        raise NotImplementedError

    async def exec(
        self, namespace: str, pod: str, container: str | None, command: list[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        """Starts ``command`` as the container's user, in its environment, sandbox and working folder. Raises a PodLookupError,
        or FileNotFoundError/PermissionError for a command that cannot be started."""
        raise NotImplementedError

    def statistics(self) -> dict[str, Any]:
        """Counts for the kubelet's metrics: ``pods``, ``containers``, ``restarts``."""
        raise NotImplementedError
