"""Answers the server's questions about running pods: logs, exec, ports, usage, counts."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.kube import Json

from thunderfleet_kubelet.containers import listeners, usage
from thunderfleet_kubelet.containers.attempt import Attempt
from thunderfleet_kubelet.containers.streams import attach, exec_session, logs
from thunderfleet_kubelet.containers.streams.logs import LogOptions
from thunderfleet_kubelet.disk import file_system
from thunderfleet_kubelet.pods.decide.eviction import Usage as DiskFigures
from thunderfleet_kubelet.pods.decide.podspec import NO_EPHEMERAL, all_containers, ephemeral_containers, main_containers
from thunderfleet_kubelet.pods.disk_usage import DiskUsage
from thunderfleet_kubelet.pods.worker import PodWorker
from thunderfleet_kubelet.pressure import FileSystem
from thunderfleet_kubelet.shim import processes

LEAST_CPU_SECONDS = 0.001
"""Minimum CPU time that is reported for a running container. ps and /proc count hundredths, and metrics-server skips the whole
pod of a container without CPU time."""
DIAL_SECONDS = 10.0
DIAL_BYTES = 32 * 1024
"""Bytes that are read ahead from a forwarded connection."""


class PodLookupError(Exception):
    """A question that cannot be answered; ``status`` is the HTTP status."""

    status = 500


class NoSuchPod(PodLookupError):
    """The node has no pod of that namespace and name."""

    status = 404


class NoSuchContainer(PodLookupError):
    """The pod has no container of that name, or the container no previous attempt."""

    status = 400


class ContainerNotRunning(PodLookupError):
    """The container has not started, or does not run now."""

    status = 400


class NoInput(PodLookupError):
    """The container has no standard input."""

    status = 400


class PodNotRunning(PodLookupError):
    """No container of the pod runs."""

    status = 400


class PortRefused(PodLookupError):
    """No process of the pod listens on the port."""

    status = 400


@dataclass(frozen=True)
class ContainerUsage:
    """Usage of a running container, summed over its live processes.

    ``memory_bytes``: memory that the system attributes to them. ``resident_bytes``: resident memory; on macOS without the
    GPU's. ``gpu_bytes``: the GPU's part of ``memory_bytes``; None where the system does not report it.
    """

    namespace: str
    pod: str
    container: str
    cpu_seconds: float
    memory_bytes: int
    started_at: datetime
    sampled_at: datetime
    uid: str = ""
    """The pod's uid."""
    image: str = ""
    id: str = ""
    resident_bytes: int = 0
    gpu_bytes: int | None = None


@dataclass(frozen=True)
class ProbeResult:
    """How often a probe of a container had a result. ``kind``: liveness, readiness or startup. ``uid``: the pod's."""

    namespace: str
    pod: str
    uid: str
    container: str
    kind: str
    result: str
    count: int


@dataclass(frozen=True)
class PodCounts:
    """Counts for the kubelet's metrics. ``containers``: running containers. ``restarts``: sum over the node's pods."""

    pods: int
    containers: int
    restarts: int


class PodQueries:
    """Reads ``workers`` (by uid), which the manager changes. ``folder``: that of all pods."""

    def __init__(self, node_name: str, workers: Mapping[str, PodWorker], folder: Path) -> None:
        self._node_name = node_name
        self._folder = folder
        self._workers = workers
        self._disk = DiskUsage()

    async def disk_usage(self) -> Mapping[str, DiskFigures]:
        """What the pods that have not ended use of the disk, by uid, at most a minute old; some may be missing."""
        return await self._disk.read(worker for worker in self._workers.values() if worker.active)

    def pods(self) -> list[Json]:
        """The accepted pods that have not ended, with their newest status."""
        return [worker.view() for worker in self._workers.values() if worker.active]

    async def usage(self) -> list[ContainerUsage]:
        """What each running container uses now."""
        running: dict[str, tuple[PodWorker, str, Attempt]] = {}
        for worker in self._workers.values():
            for name, attempts in worker.attempts.items():
                if attempts and attempts[-1].state == "running":
                    running[str(worker.folder.sandbox(name, attempts[-1].number))] = (worker, name, attempts[-1])
        sampled = datetime.now(UTC)
        groups = {marker: attempt.pid for marker, (_, _, attempt) in running.items()}
        sums = await asyncio.to_thread(usage.by_marker, groups)
        result = []
        for marker, (worker, name, attempt) in running.items():
            namespace, _, pod = worker.key.partition("/")
            found = sums.get(marker, usage.Usage())
            cpu = max(found.cpu_seconds, LEAST_CPU_SECONDS)
            started = datetime.fromtimestamp(attempt.started_at or 0.0, UTC)
            spec = next((item for item in all_containers(worker.pod) if item["name"] == name), {})
            image = str(spec.get("image") or "")
            more = (worker.uid, image, attempt.container_id, found.resident, found.gpu)
            result.append(ContainerUsage(namespace, pod, name, cpu, found.memory, started, sampled, *more))
        return result

    def probe_results(self) -> list[ProbeResult]:
        """The results of all probes of the pods on this node, since this kubelet started."""
        found = []
        for worker in self._workers.values():
            namespace, _, pod = worker.key.partition("/")
            for (container, kind, result), count in sorted(worker.probe_results.items()):
                found.append(ProbeResult(namespace, pod, worker.uid, container, kind, result, count))
        return found

    def file_system(self) -> FileSystem | None:
        """The file system of the pods; None if it cannot be read."""
        try:
            return file_system(self._folder)
        except OSError:
            return None

    def _worker(self, namespace: str, pod: str) -> PodWorker:
        workers = [worker for worker in self._workers.values() if worker.key == f"{namespace}/{pod}"]
        if not workers:
            raise NoSuchPod(f"pod {namespace}/{pod} not found on node {self._node_name}")
        return next((worker for worker in workers if not worker.removed), workers[0])

    def _find(self, namespace: str, pod: str, container: str | None) -> tuple[PodWorker, str, Attempt | None]:
        """The worker, the container's name and its last attempt. Raises PodLookupError."""
        worker = self._worker(namespace, pod)
        names = [item["name"] for item in all_containers(worker.pod)]
        mains = [item["name"] for item in main_containers(worker.pod)]
        if container is None:
            if len(mains) != 1:
                raise NoSuchContainer(f"a container name must be specified for pod {namespace}/{pod}: {', '.join(names)}")
            container = mains[0]
        if container in [item["name"] for item in ephemeral_containers(worker.pod)]:
            raise ContainerNotRunning(f"container {container} in pod {pod} never ran: {NO_EPHEMERAL}")
        if container not in names:
            raise NoSuchContainer(f"container {container} not found in pod {namespace}/{pod}, which has {', '.join(names)}")
        numbers = worker.folder.numbers(container)
        return worker, container, worker.containers.read(container, numbers[-1]) if numbers else None

    def open_log(
        self, namespace: str, pod: str, container: str | None, options: LogOptions, *, previous: bool = False
    ) -> AsyncIterator[bytes]:
        """The container's log in chunks of whole lines; None is the pod's only container. Raises PodLookupError at once.

        With ``options.follow``, it ends when the container has ended.
        """
        worker, name, last = self._find(namespace, pod, container)
        if last is None:
            raise ContainerNotRunning(f"container {name} in pod {pod} is waiting to start")
        number = last.number
        if previous:
            if number - 1 not in worker.folder.numbers(name):
                raise NoSuchContainer(f"previous terminated container {name} in pod {pod} not found")
            number -= 1

        def live() -> bool:
            try:
                return worker.containers.read(name, number).live
            except OSError:
                # Unknown, so the log may grow.
                return True

        return logs.read(worker.folder.log(name, number), options, live)

    async def exec(
        self, namespace: str, pod: str, container: str | None, command: list[str], *, stdin: bool, tty: bool
    ) -> exec_session.Session:
        """Starts ``command`` in a running container. Raises PodLookupError or OSError."""
        worker, name, last = self._find(namespace, pod, container)
        if last is None or last.state != "running":
            raise ContainerNotRunning(f"container {name} in pod {pod} is not running")
        if not command:
            raise FileNotFoundError("no command given")
        return await exec_session.start(worker.folder, name, last.number, command, stdin=stdin, tty=tty)

    async def attach(self, namespace: str, pod: str, container: str | None, *, stdin: bool) -> attach.Attached | None:
        """Connects to a running container that has input or a terminal; None for any other. Raises PodLookupError, OSError."""
        worker, name, last = self._find(namespace, pod, container)
        if last is None or last.state != "running":
            raise ContainerNotRunning(f"container {name} in pod {pod} is not running")

        def live() -> bool:
            try:
                return worker.containers.read(name, last.number).live
            except OSError:
                return True

        try:
            found = attach.Attached(worker.folder.attempt(name, last.number), live)
        except attach.NotAttachable:
            found = None
        if stdin and (found is None or not found.has_stdin):
            raise NoInput(f"container {name} in pod {pod} has no input; set stdin: true in its spec, or use kubectl exec -i")
        if found is not None:
            try:
                await found.open(stdin=stdin)
            except attach.NotAttachable:
                raise ContainerNotRunning(f"container {name} in pod {pod} is terminating") from None
        return found

    def require_running(self, namespace: str, pod: str) -> None:
        """Raises PodLookupError if no container of the pod runs."""
        if not _running(self._worker(namespace, pod)):
            raise PodNotRunning(f"pod {namespace}/{pod} is not running")

    async def open_port(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a port on which a process of the pod listens now. Raises PortRefused and other PodLookupErrors, OSError.

        All pods share the addresses of the machine, so the connection is made only to a socket that the pod holds.
        """
        worker = self._worker(namespace, pod)
        running = _running(worker)
        if not running:
            raise PodNotRunning(f"pod {namespace}/{pod} is not running")
        own = worker.own_user
        found = await asyncio.to_thread(_listening, running, own, port)
        chosen = listeners.choose(found)
        if chosen is None:
            alone = " alone" if any(socket.pids for socket in found) else ""
            who = "a process outside this pod listens there" if found else "no process listens there"
            where = f"TCP port {port} of node {self._node_name}"
            raise PortRefused(f"pod {namespace}/{pod} does not listen{alone} on {where}: {who}")
        async with asyncio.timeout(DIAL_SECONDS):
            return await asyncio.open_connection(chosen.reached_at, port, limit=DIAL_BYTES)

    def counts(self) -> PodCounts:
        """Counts of pods, running containers and restarts."""
        lasts = [attempts[-1] for worker in self._workers.values() for attempts in worker.attempts.values() if attempts]
        return PodCounts(
            pods=len(self.pods()),
            containers=sum(attempt.state == "running" for attempt in lasts),
            restarts=sum(attempt.number for attempt in lasts),
        )


def _running(worker: PodWorker) -> dict[str, int]:
    """The main process of each running container, by sandbox folder."""
    lasts = {name: attempts[-1] for name, attempts in worker.attempts.items() if attempts}
    running = {name: last for name, last in lasts.items() if last.state == "running"}
    return {str(worker.folder.sandbox(name, last.number)): last.pid for name, last in running.items()}


def _listening(running: Mapping[str, int], own: int | None, port: int) -> list[listeners.Listening]:
    """The sockets on a port, with the processes of a pod that hold them. ``own``: the pod's own user. Raises OSError."""
    pids = {pid for marker, group in running.items() for pid in processes.marked(marker, group)}
    if own is not None:
        pids |= set(processes.of_user(own))
    return listeners.on_port(port, pids)
