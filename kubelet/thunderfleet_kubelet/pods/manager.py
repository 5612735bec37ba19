"""All pods of this node: one worker per pod.

The API server's list of pods comes in through ``sync``. Pods that an earlier kubelet left running are adopted at start.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from thunderfleet_crds.names import LABEL_DEPLOYMENT, LABEL_EPOCH, LABEL_GROUP, LABEL_RANK
from thunderfleet_lib import logs
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.inputs.user import KubeletUser
from thunderfleet_kubelet.containers.runtime import ContainerRuntime
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.images.puller import Images
from thunderfleet_kubelet.pods.context import NodeServices
from thunderfleet_kubelet.pods.decide import admission
from thunderfleet_kubelet.pods.decide.podspec import all_containers, is_critical, removed_grace_of
from thunderfleet_kubelet.pods.events import Recorder
from thunderfleet_kubelet.pods.evictor import Evictor, NodeEvent
from thunderfleet_kubelet.pods.leavings import Leavings
from thunderfleet_kubelet.pods.objects import Objects
from thunderfleet_kubelet.pods.queries import PodQueries
from thunderfleet_kubelet.pods.settings import PodSettings
from thunderfleet_kubelet.pods.users import UserPool
from thunderfleet_kubelet.pods.worker import PodWorker

log = logging.getLogger(__name__)

STOP_SECONDS = 10.0
END_MARGIN_SECONDS = 30.0
"""How long pods may take to end beyond their longest grace period."""
KILL_SECONDS = 2.0
"""The part of the time for a shutdown that is reserved for killing processes and writing statuses."""


class PodManager:
    """The pods of one node.

    ``root``: the kubelet's folder; pods are in ``root/pods``. ``kube`` returns the current client;
    renewed certificates change it. ``users``: the users of pods; None: all pods run as the kubelet's own user. ``disk``:
    whether the disk is full; None: never. ``disk_changed`` is called when that changes. ``node_event`` records a warning about
    the Node. ``node`` returns the Node in the API server, as last watched; None while it is not known. ``queries`` answers
    questions about the pods. ``images``: pulls images; None: only configured ones are used.
    """

    def __init__(
        self,
        *,
        root: Path,
        node_name: str,
        kube: Callable[[], Kube],
        settings: PodSettings,
        users: range | None = None,
        disk: DiskWatch | None = None,
        disk_changed: Callable[[], None] = lambda: None,
        node_event: NodeEvent = lambda reason, message: None,
        node: Callable[[], Json | None] = lambda: None,
        now: Callable[[], float] = time.time,
        images: Images | None = None,
    ) -> None:
        self.root = root
        self.node_name = node_name
        self.kube = kube
        self._settings = settings
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unreadable: dict[str, PodFolder] = {}
        """The folders whose pod.json could not be read, by uid, until the first ``sync``."""
        self._reading = asyncio.Lock()
        self._reads_begun = 0
        self._watched_node = node
        self._read: tuple[int, Json | None] = (0, None)
        """Number and result of the last read of the Node."""
        self._discards: dict[str, asyncio.Task[None]] = {}
        """Deletes what pods left that this node does not have, by uid."""
        self._recorder = Recorder(kube, node_name)
        self._own_tasks: list[asyncio.Task[None]] = []
        self._ending_all = False
        self._shutting_down = False
        self.queries = PodQueries(node_name, self._workers, self.folder)
        self._users = UserPool(users)
        self._leavings = Leavings(self.folder, self._users)
        reclaim = images.collector.free if images is not None else None
        self.evictor = Evictor(self._workers, disk, disk_changed, node_event, reclaim)
        self._services = NodeServices(
            node_name=node_name,
            kube=kube,
            settings=lambda: self._settings,
            objects=Objects(kube),
            recorder=self._recorder,
            kubelet=KubeletUser.here(),
            users=self._users,
            leavings=self._leavings,
            admit=self._admit,
            ended=self._ended,
            now=now,
            images=images,
        )
        self._images = images
        if images is not None:
            images.in_use = self._images_in_use

    @property
    def settings(self) -> PodSettings:
        """May be replaced at any time; the workers use it from their next decision on."""
        return self._settings

    @settings.setter
    def settings(self, settings: PodSettings) -> None:
        self._settings = settings
        for worker in self._workers.values():
            worker.settings_changed()

    @property
    def folder(self) -> Path:
        """The folder of all pods."""
        return self.root / "pods"

    async def start(self) -> None:
        """Adopts the pods of an earlier kubelet. Call it before the first ``sync``; it needs no API server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in (self.folder, self.root):
            # Containers of other users pass through to their own folders; they cannot list these.
            os.chmod(path, os.stat(path).st_mode & 0o7777 | 0o011)
        self._own_tasks = [asyncio.create_task(self._recorder.run()), asyncio.create_task(self.evictor.run())]
        if self._images is not None:
            self._images.store.open()
            self._own_tasks.append(asyncio.create_task(self._images.run()))
        folders = [PodFolder(path) for path in sorted(self.folder.iterdir())]
        self._users.adopt(folders)
        for folder in folders:
            self._leavings.adopt(folder)
        for folder in folders:
            self._adopt(folder)
        if self._workers:
            log.info("adopted %d pods", len(self._workers))

    def _adopt(self, folder: PodFolder) -> None:
        try:
            pod = folder.load()
        except (OSError, ValueError) as error:
            # The pod may be healthy. The API server determines whether it still exists.
            log.warning("%s: cannot read the pod, waiting for the API server: %s", folder.path, error)
            self._unreadable[folder.uid] = folder
            return
        if pod is None:
            # Never accepted, or partly deleted.
            self._begin_discard(folder)
            return
        self._add(pod, folder, accepted=True)

    def _add(self, pod: Json, folder: PodFolder, *, accepted: bool) -> None:
        worker = PodWorker(pod, folder, self._services, accepted=accepted)
        self._workers[worker.uid] = worker
        with logs.fields(**_about(pod)):
            self._tasks[worker.uid] = asyncio.create_task(self._run(worker), name=f"pod {worker.key}")

    async def _run(self, worker: PodWorker) -> None:
        discard = self._discards.get(worker.uid)
        if discard is not None:
            # The API server has the pod although nothing shows that this node has accepted it. It gets the folder afterwards.
            await asyncio.wait({discard})
        await worker.run()

    def _ended(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._tasks.pop(uid, None)
        if self._images is not None:
            self._images.forget(uid)

    def _images_in_use(self) -> tuple[set[str], set[str]] | None:
        """The ``imageID`` of each container that has run and was not removed, and the images that the pods' specs name.

        None: not known yet, because pods of an earlier kubelet were not examined.
        """
        if self._unreadable or any(worker.accepted and not worker.observed for worker in self._workers.values()):
            return None
        workers = [worker for worker in self._workers.values() if not worker.closed]
        attempts = [attempt for worker in workers for each in worker.attempts.values() for attempt in each]
        names = {str(one.get("image") or "") for worker in workers for one in all_containers(worker.pod)}
        return {attempt.image_id for attempt in attempts if attempt.image_id}, names

    async def _admit(self, pod: Json) -> admission.Rejection | None:
        """Decides about a pod, and counts it from then on if it is accepted.

        Any user may bind thousands of pods to the node, so others must not wait for a request for each of them.
        """
        node = self._watched_node()
        if node is not None:
            rejection = self._decided(pod, node)
            if rejection is None or rejection[0] not in admission.BY_NODE:
                return rejection
        # The watch of the Node may be behind that of the pods.
        return self._decided(pod, await self._read_node() or node)

    def _decided(self, pod: Json, node: Json | None) -> admission.Rejection | None:
        """Never waits, so that two pods cannot take the same resources. ``node``: None if it cannot be read."""
        # An administrator may have changed the labels since this kubelet has set them.
        labels = self._settings.labels if node is None else node["metadata"].get("labels") or {}
        rejection = admission.reject(
            pod,
            self.queries.pods(),
            self.node_name,
            labels,
            self._settings.allocatable,
            taints=((node or {}).get("spec") or {}).get("taints") or (),
            switches_users=self._users.enabled,
            disk_pressure=self.evictor.pressure,
            shutting_down=self._shutting_down,
        )
        worker = self._workers.get(str(pod["metadata"]["uid"]))
        if rejection is None and worker is not None:
            worker.accepted = True
        return rejection

    async def _read_node(self) -> Json | None:
        """The Node, read since this call; calls that wait together share one read. None if it fails."""
        asked = self._reads_begun
        async with self._reading:
            if self._read[0] <= asked:
                self._reads_begun = number = self._reads_begun + 1
                node = None
                with contextlib.suppress(ApiError):
                    node = await self.kube().get_or_none(f"/api/v1/nodes/{self.node_name}")
                self._read = number, node
            return self._read[1]

    def sync(self, pods: Mapping[str, Json]) -> None:
        """Takes all pods of this node, by ``namespace/name``, as the API server lists them now.

        Call it on every change, but not before the first list is complete: a running pod that is not in ``pods`` ends.
        """
        if self._ending_all:
            return
        listed = {str(pod["metadata"]["uid"]): pod for pod in pods.values()}
        for uid, folder in self._unreadable.items():
            if uid in listed:
                log.info("%s: adopted with the API server's version of the pod", folder.path)
                self._add(listed[uid], folder, accepted=True)
            else:
                self._begin_discard(folder)
        self._unreadable.clear()
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
        """Stops the manager. Unless ``end_pods``, all containers keep running for the next kubelet to adopt."""
        if end_pods:
            await self.end_all_pods()
        tasks = [*self._tasks.values(), *self._discards.values(), *self._own_tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        self._workers.clear()
        self._tasks.clear()

    async def shut_down(self, seconds: float, critical_seconds: float) -> None:
        """Ends all pods within ``seconds``, of which the last ``critical_seconds`` are for critical pods.

        A pod that does not end in its part of the time is killed, and its status is written as long as there is time.
        """
        self._shutting_down = True
        for critical, part in ((False, seconds - critical_seconds), (True, critical_seconds)):
            leaving = [one for one in self._workers.values() if one.active and is_critical(one.pod) is critical]
            for worker in leaving:
                worker.shut_down(max(0.0, part - KILL_SECONDS))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(part, KILL_SECONDS)):
                    await asyncio.gather(*(one.until_over() for one in leaving))

    async def end_all_pods(self) -> None:
        """Ends every pod with its grace period, because the cluster no longer has this Node. Returns when all have ended."""
        self._ending_all = True
        try:
            await self._end_all()
        finally:
            self._ending_all = False

    async def _end_all(self) -> None:
        for folder in self._unreadable.values():
            self._begin_discard(folder)
        self._unreadable.clear()
        tasks = [*self._tasks.values(), *self._discards.values()]
        grace = max((removed_grace_of(worker.pod) for worker in self._workers.values()), default=0.0)
        for worker in self._workers.values():
            worker.remove()
        if tasks:
            limit = grace + END_MARGIN_SECONDS
            _, left = await asyncio.wait(tasks, timeout=limit)
            if left:
                log.error("%d pods did not terminate within %.0f s", len(left), limit)

    def _begin_discard(self, folder: PodFolder) -> None:
        task = self._discards[folder.uid] = asyncio.create_task(self._discard(folder), name=f"discard {folder.uid}")
        task.add_done_callback(lambda _: self._discards.pop(folder.uid, None))

    async def _discard(self, folder: PodFolder) -> None:
        """Ends processes of a pod that this node does not have, and deletes its files. Then its user is free."""
        try:
            await asyncio.to_thread(ContainerRuntime(folder).kill_all)
            await self._leavings.end_processes(folder)
            await self._leavings.clear_own(folder)
            await self._leavings.clear(folder)
            await folder.remove()
        except OSError as error:
            log.error("%s: cannot delete: %s; the next start of the kubelet tries again", folder.path, error)
            return
        self._users.release(folder)


def _about(pod: Json) -> logs.Fields:
    """Log fields that identify one pod. Users can change labels, so invalid numbers are left out."""
    labels = pod["metadata"].get("labels") or {}

    def number(label: str) -> int | None:
        text = str(labels.get(label) or "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    return {
        "namespace": pod["metadata"]["namespace"],
        "pod": pod["metadata"]["name"],
        "deployment": labels.get(LABEL_DEPLOYMENT),
        "group": number(LABEL_GROUP),
        "rank": number(LABEL_RANK),
        "epoch": number(LABEL_EPOCH),
    }
