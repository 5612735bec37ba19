"""All pods of this node: the one thing the rest of the kubelet talks to about pods.

The API server's list of this node's pods goes in (``sync``), processes and ``status`` come out. Nothing here decides what
a pod should do next (``lifecycle``) or how a container is run (``containers``, ``shim``); this keeps one worker a pod, takes
over what an earlier kubelet left running, and answers questions (logs, exec, usage) about what runs.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_kubelet.containers import exec_session, logs, usage, user
from thunderfleet_kubelet.containers.attempt import Attempt
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.pods import admission, lifecycle
from thunderfleet_kubelet.pods.events import Recorder
from thunderfleet_kubelet.pods.objects import Objects
from thunderfleet_kubelet.pods.settings import RuntimeSettings
from thunderfleet_kubelet.pods.worker import PodWorker, Surroundings

__all__ = [
    "ContainerNotRunning",
    "ContainerUsage",
    "ExecSession",
    "NoSuchContainer",
    "NoSuchPod",
    "PodLookupError",
    "PodManager",
    "RuntimeSettings",
]

log = logging.getLogger(__name__)

STOP_SECONDS = 10.0


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

    ``stdout`` and ``stderr`` end when the program has closed them; with a terminal there is only ``stdout``.
    """

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
        """Ends the program's whole process group unless the program has ended by itself: what it left behind then is the
        container's. Safe to call twice.
        """


class PodManager:
    """The pods of one node. ``root`` is the kubelet's folder: pods live in ``root/pods``. ``kube`` gives the current connection
    (it may be another one after a certificate was rotated).
    """

    def __init__(
        self,
        *,
        root: Path,
        node_name: str,
        kube: Callable[[], Kube],
        runtime: RuntimeSettings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self.node_name = node_name
        self.kube = kube
        self._runtime = runtime
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._admitting = asyncio.Lock()
        self._recorder = Recorder(kube, node_name)
        self._recorder_task: asyncio.Task[None] | None = None
        self._ending_all = False
        self._around = Surroundings(
            node_name=node_name,
            kube=kube,
            runtime=lambda: self._runtime,
            objects=Objects(kube),
            recorder=self._recorder,
            kubelet=user.Self.here(),
            admit=self._admit,
            ended=self._ended,
            now=now,
        )

    @property
    def runtime(self) -> RuntimeSettings:
        """May be replaced while running (new labels, allocatable or images); holds from the next decision on."""
        return self._runtime

    @runtime.setter
    def runtime(self, runtime: RuntimeSettings) -> None:
        self._runtime = runtime
        for worker in self._workers.values():
            worker.settings_changed()

    @property
    def folder(self) -> Path:
        return self.root / "pods"

    async def start(self) -> None:
        """Takes over what an earlier kubelet left running. Before the first ``sync``; needs no API server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in (self.folder, self.root):
            # Containers of other users go through here to their own folders, and see no more of it.
            os.chmod(path, os.stat(path).st_mode & 0o7777 | 0o011)
        self._recorder_task = asyncio.create_task(self._recorder.run())
        for path in sorted(self.folder.iterdir()):
            folder = PodFolder(path)
            pod = folder.load()
            if pod is None:
                # Unreadable, or half removed: nothing of it may go on without an owner.
                folder.end_everything()
                folder.remove()
                continue
            self._add(pod, folder, accepted=True)
        if self._workers:
            log.info("took over %d pods", len(self._workers))

    def _add(self, pod: Json, folder: PodFolder, *, accepted: bool) -> None:
        worker = PodWorker(pod, folder, self._around, accepted=accepted)
        self._workers[worker.uid] = worker
        self._tasks[worker.uid] = asyncio.create_task(worker.run(), name=f"pod {worker.key}")

    def _ended(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._tasks.pop(uid, None)

    async def _admit(self, pod: Json) -> tuple[str, str] | None:
        """(reason, sentence) when this node must fail the pod. One pod at a time, so that two cannot take the same room."""
        async with self._admitting:
            labels: Mapping[str, str] = self._runtime.labels
            with contextlib.suppress(ApiError):
                # Labels that somebody gave the Node later are not in the settings.
                node = await self.kube().get_or_none(f"/api/v1/nodes/{self.node_name}")
                if node is not None:
                    labels = {**labels, **(node["metadata"].get("labels") or {})}
            others = [worker.view() for worker in self._workers.values() if worker.active]
            verdict = admission.reject(pod, others, self.node_name, labels, self._runtime.allocatable)
            if verdict is None:
                worker = self._workers.get(str(pod["metadata"]["uid"]))
                if worker is not None:
                    worker.accepted = True
            return verdict

    def sync(self, pods: Mapping[str, Json]) -> None:
        """The pods of this node as the API server lists them now, by ``namespace/name``. Call it with the whole list on every
        change, never before the first list is in: a pod that runs here and is not in ``pods`` is ended.
        """
        if self._ending_all:
            return
        listed = {str(pod["metadata"]["uid"]): pod for pod in pods.values()}
        for uid, pod in listed.items():
            worker = self._workers.get(uid)
            if worker is not None:
                worker.update(pod)
            else:
                self._add(pod, PodFolder(self.folder / uid), accepted=False)
        for uid, worker in list(self._workers.items()):
            if uid not in listed:
                worker.remove()

    async def stop(self, *, end_pods: bool) -> None:
        """Ends the manager. Without ``end_pods`` all containers go on running, for the next kubelet to take over."""
        if end_pods:
            await self.end_all_pods()
        tasks = [*self._tasks.values(), *([self._recorder_task] if self._recorder_task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        self._workers, self._tasks = {}, {}

    async def end_all_pods(self) -> None:
        """Ends every pod with its grace and forgets it (the Node is gone from the cluster). Returns when all are gone."""
        self._ending_all = True
        try:
            await self._end_all()
        finally:
            self._ending_all = False

    async def _end_all(self) -> None:
        tasks = list(self._tasks.values())
        grace = max((lifecycle.grace_of(worker.pod) for worker in self._workers.values()), default=0.0)
        for worker in self._workers.values():
            worker.remove()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=grace + 30)
            if left:
                log.error("%d pods did not end within %.0f s", len(left), grace + 30)

    def pods(self) -> list[Json]:
        """The pods that this node accepted and that have not ended, as last known."""
        return [worker.view() for worker in self._workers.values() if worker.active]

    async def usage(self) -> list[ContainerUsage]:
        """What every running container uses now."""
        running: dict[str, tuple[PodWorker, str, Attempt]] = {}
        for worker in self._workers.values():
            for name, attempts in worker.attempts.items():
                if attempts and attempts[-1].state == "running":
                    running[str(worker.folder.sandbox(name, attempts[-1].number))] = (worker, name, attempts[-1])
        sampled = datetime.now(UTC)
        sums = await asyncio.to_thread(usage.by_marker, set(running))
        result = []
        for marker, (worker, name, attempt) in running.items():
            namespace, _, pod = worker.key.partition("/")
            cpu, memory = sums.get(marker, (0.0, 0))
            started = datetime.fromtimestamp(attempt.started_at or 0.0, UTC)
            result.append(ContainerUsage(namespace, pod, name, cpu, memory, started, sampled))
        return result

    def _find(self, namespace: str, pod: str, container: str | None) -> tuple[PodWorker, str, Attempt | None]:
        """The worker, container name and last attempt that a question is about. Raises PodLookupError."""
        workers = [worker for worker in self._workers.values() if worker.key == f"{namespace}/{pod}"]
        if not workers:
            raise NoSuchPod(f"pod {namespace}/{pod} does not run on node {self.node_name}")
        worker = next((worker for worker in workers if not worker.removed), workers[0])
        every = [item["name"] for item in lifecycle.init_containers(worker.pod) + lifecycle.main_containers(worker.pod)]
        mains = [item["name"] for item in lifecycle.main_containers(worker.pod)]
        if container is None:
            if len(mains) != 1:
                raise NoSuchContainer(f"pod {namespace}/{pod} has several containers, name one of: {', '.join(every)}")
            container = mains[0]
        if container not in every:
            raise NoSuchContainer(f"container {container} is not one of pod {namespace}/{pod}: {', '.join(every)}")
        numbers = worker.folder.numbers(container)
        return worker, container, worker.folder.read(container, numbers[-1]) if numbers else None

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
        stream: str | None = None,
    ) -> AsyncIterator[bytes]:
        """The container's log in chunks of whole lines, of both streams or of ``stdout`` or ``stderr`` alone. Raises a
        PodLookupError at once (before the first chunk). With ``follow`` it ends when the container has ended. ``container``
        None is the pod's only container.
        """
        worker, name, last = self._find(namespace, pod, container)
        if last is None:
            raise ContainerNotRunning(f"container {name} in pod {pod} is waiting to start")
        number = last.number
        if previous:
            if number - 1 not in worker.folder.numbers(name):
                raise NoSuchContainer(f"previous terminated container {name} in pod {pod} not found")
            number -= 1
        since = since_time
        if since_seconds is not None:
            since = datetime.now(UTC) - timedelta(seconds=since_seconds)
        options = logs.LogOptions(
            follow=follow, tail=tail, since=since, timestamps=timestamps, limit_bytes=limit_bytes, stream=stream
        )
        return logs.read(worker.folder.log(name, number), options, lambda: worker.folder.read(name, number).live)

    async def exec(
        self, namespace: str, pod: str, container: str | None, command: list[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        """Starts ``command`` as the container's user, in its environment, sandbox and working folder. Raises a PodLookupError,
        or FileNotFoundError/PermissionError for a command that cannot be started.
        """
        worker, name, last = self._find(namespace, pod, container)
        if last is None or last.state != "running":
            raise ContainerNotRunning(f"container {name} in pod {pod} is not running")
        if not command:
            raise FileNotFoundError("no command was given")
        return await exec_session.start(worker.folder, name, last.number, command, stdin=stdin, tty=tty)

    def statistics(self) -> dict[str, Any]:
        """Counts for the kubelet's metrics: ``pods``, ``containers`` (running), ``restarts`` (of the pods that are here)."""
        lasts = [attempts[-1] for worker in self._workers.values() for attempts in worker.attempts.values() if attempts]
        return {
            "pods": len(self.pods()),
            "containers": sum(attempt.state == "running" for attempt in lasts),
            "restarts": sum(attempt.number for attempt in lasts),
        }
