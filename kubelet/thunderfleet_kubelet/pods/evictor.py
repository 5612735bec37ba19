"""Evicts pods: those that use more disk than their limits, and others while the node's file system is too full."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from thunderfleet_kubelet import disk
from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.pods.decide import eviction
from thunderfleet_kubelet.pods.decide.eviction import Usage
from thunderfleet_kubelet.pods.decide.podspec import is_critical, named_users
from thunderfleet_kubelet.pods.disk_usage import MEASUREMENTS, measure
from thunderfleet_kubelet.pods.worker import PodWorker
from thunderfleet_kubelet.pressure import DiskState, Met

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""How often free space is read."""

LIMITS_SECONDS = 30.0
"""How often the use of pods with limits is measured."""

END_SECONDS = 30.0
"""How long the next eviction waits for the space of the last one, beyond its grace period."""

NodeEvent = Callable[[str, str], None]


class Evictor:
    """Reads ``workers`` (by uid), which the manager changes.

    ``watch``: None turns disk pressure off. ``changed``: called when the pressure has changed. ``node_event``: records a
    warning about the Node (reason, message). ``reclaim``: frees bytes without ending a pod, and returns how many.
    """

    def __init__(
        self,
        workers: Mapping[str, PodWorker],
        watch: DiskWatch | None,
        changed: Callable[[], None] = lambda: None,
        node_event: NodeEvent = lambda reason, message: None,
        reclaim: Callable[[int], Awaitable[int]] | None = None,
    ) -> None:
        self._reclaim = reclaim
        self._workers = workers
        self._watch = watch
        self._changed = changed
        self._node_event = node_event
        self._leaving: tuple[PodWorker, float] | None = None
        """The last pod that was evicted because of pressure, and the time limit for its space to be freed."""
        self._measuring = asyncio.Semaphore(MEASUREMENTS)
        self.state = DiskState()

    @property
    def pressure(self) -> bool:
        """Whether the node rejects new pods because of disk pressure."""
        return bool(self.state.pressure)

    async def run(self) -> None:
        """Evicts until cancelled. Measuring a large pod does not delay the checks of the disk."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_repeat(self._relieve, lambda: LOOK_SECONDS))
            tasks.create_task(_repeat(self._enforce_limits, lambda: LIMITS_SECONDS))

    async def _relieve(self) -> None:
        self.look()
        nodefs = next((one for one in self.state.met if one.threshold.signal.startswith("nodefs")), None)
        if nodefs is None or await self._reclaimed(nodefs) or await self._space_comes():
            return
        await self._evict_one(nodefs)

    async def _reclaimed(self, cause: Met) -> bool:
        """Whether deleting unused images freed space. The disk is then checked again before a pod is evicted."""
        if self._reclaim is None or cause.threshold.resource == "inodes":
            return False
        return await self._reclaim(cause.limit - cause.available) > 0

    def look(self) -> DiskState:
        """Reads the free space, and reports a change of the pressure."""
        if self._watch is None:
            return self.state
        before, self.state = self.state, self._watch.look()
        if before.pressure != self.state.pressure and before.pressure is not None:
            signals = ", ".join(one.signal for one in self.state.why or before.why)
            log.warning("disk pressure %s (%s)", "begins" if self.pressure else "is over", signals)
        if before.pressure != self.state.pressure:
            self._changed()
        return self.state

    def _active(self) -> list[PodWorker]:
        return [worker for worker in self._workers.values() if worker.active and not worker.evicted]

    async def _enforce_limits(self) -> None:
        limited = [one for one in self._active() if eviction.has_limits(one.pod) and not is_critical(one.pod)]
        await asyncio.gather(*(self._enforce(worker) for worker in limited))

    async def _enforce(self, worker: PodWorker) -> None:
        message = eviction.over_limit(worker.pod, await self._measure(worker))
        if message:
            worker.evict(message)

    async def _measure(self, worker: PodWorker) -> Usage:
        async with self._measuring:
            return await measure(worker)

    async def _space_comes(self) -> bool:
        """Whether the space of the last evicted pod is not free yet."""
        if self._leaving is None:
            return False
        worker, until = self._leaving
        if worker.closed or time.monotonic() >= until:
            self._leaving = None
            return False
        if time.monotonic() >= until - END_SECONDS:
            # On a full disk the shims cannot write exit codes, without which nothing of the pod would be deleted.
            await worker.free_space()
        return True

    async def _everything(self, workers: Sequence[PodWorker]) -> list[Usage]:
        """What each pod uses, also outside its own folder: a pod that fills /tmp must leave before others."""
        users = [{user for user in (worker.own_user, *named_users(worker.pod)) if user is not None} for worker in workers]
        outside = await disk.owned({user for its in users for user in its}, leftovers.SHARED_FOLDERS)
        usages = await asyncio.gather(*(self._measure(worker) for worker in workers))
        return [replace(usage, elsewhere=sum(outside[user] for user in its)) for its, usage in zip(users, usages, strict=True)]

    async def _evict_one(self, cause: Met) -> None:
        by_uid = {worker.uid: worker for worker in self._active()}
        usages = await self._everything(list(by_uid.values()))
        ranked = eviction.ranked([(worker.pod, usage) for worker, usage in zip(by_uid.values(), usages, strict=True)])
        self._node_event("EvictionThresholdMet", f"Attempting to reclaim {cause.threshold.resource}")
        if not ranked:
            log.warning(
                "the disk is too full (%s), and no pod can be evicted: delete models or other files", cause.threshold.signal
            )
            return
        pod, usage = ranked[0]
        worker = by_uid[str(pod["metadata"]["uid"])]
        grace = worker.evict(eviction.pressure_message(pod, usage, cause))
        self._leaving = (worker, time.monotonic() + grace + END_SECONDS)


async def _repeat(work: Callable[[], Awaitable[None]], pause: Callable[[], float]) -> None:
    while True:
        try:
            await work()
        except OSError as error:
            log.warning("cannot measure disk usage: %s; retrying in %g s", error, pause())
        except Exception:
            # An error here must not stop the management of pods.
            log.exception("cannot measure disk usage; retrying in %g s", pause())
        await asyncio.sleep(pause())
