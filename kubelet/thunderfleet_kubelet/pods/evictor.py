"""Evicts pods: those that use more disk than their limits, and others while the node's file system is too full."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from thunderfleet_lib.kube import Json

from thunderfleet_kubelet import disk
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.pods.decide import eviction
from thunderfleet_kubelet.pods.decide.eviction import Usage
from thunderfleet_kubelet.pods.decide.podspec import all_containers
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
    """Looks at ``workers`` (by uid), which the manager changes.

    ``watch``: None turns disk pressure off. ``changed``: called when the pressure has changed. ``node_event``: records a
    warning about the Node (reason, message).
    """

    def __init__(
        self,
        workers: Mapping[str, PodWorker],
        watch: DiskWatch | None,
        changed: Callable[[], None] = lambda: None,
        node_event: NodeEvent = lambda reason, message: None,
    ) -> None:
        self._workers = workers
        self._watch = watch
        self._changed = changed
        self._node_event = node_event
        self._measured = float("-inf")
        self._leaving: tuple[PodWorker, float] | None = None
        """The pod that was evicted last because of pressure, and until when its space is waited for."""
        self.state = DiskState()

    @property
    def pressure(self) -> bool:
        """Whether the node takes no pods because of its disk."""
        return bool(self.state.pressure)

    async def run(self) -> None:
        """Evicts until cancelled."""
        while True:
            try:
                await self.turn()
            except OSError as error:
                log.warning("cannot measure the disk: %s; retrying in %g s", error, LOOK_SECONDS)
            except Exception:
                # Pods must be managed though the disk is not.
                log.exception("eviction failed; retrying in %g s", LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def turn(self) -> None:
        """Looks once, and evicts what must leave now. Raises OSError."""
        self.look()
        nodefs = next((one for one in self.state.met if one.threshold.signal.startswith("nodefs")), None)
        if time.monotonic() - self._measured >= LIMITS_SECONDS:
            self._measured = time.monotonic()
            await self._enforce_limits()
        if nodefs is not None and not await self._space_comes():
            await self._evict_one(nodefs)

    def look(self) -> DiskState:
        """Reads the free space, and says so if the pressure has changed."""
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
        for worker in self._active():
            if eviction.has_limits(worker.pod) and not eviction.is_critical(worker.pod):
                message = eviction.over_limit(worker.pod, await measure(worker))
                if message:
                    worker.evict(message)

    async def _space_comes(self) -> bool:
        """Whether the last evicted pod has not given its space back yet."""
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

    async def _evict_one(self, cause: Met) -> None:
        pods: list[tuple[Json, Usage]] = []
        by_uid = {worker.uid: worker for worker in self._active()}
        for worker in by_uid.values():
            pods.append((worker.pod, await measure(worker)))
        ranked = eviction.ranked(pods)
        self._node_event("EvictionThresholdMet", f"Attempting to reclaim {cause.threshold.resource}")
        if not ranked:
            log.warning("the disk is too full (%s), and there is no pod to evict", cause.threshold.signal)
            return
        pod, usage = ranked[0]
        worker = by_uid[str(pod["metadata"]["uid"])]
        grace = worker.evict(eviction.pressure_message(pod, usage, cause))
        self._leaving = (worker, time.monotonic() + grace + END_SECONDS)


async def measure(worker: PodWorker) -> Usage:
    """What the pod uses now. What cannot be measured in time counts as nothing."""
    folder = worker.folder
    volumes = {str(one["name"]): folder.empty(str(one["name"])) for one in worker.pod["spec"].get("volumes") or []}
    containers: dict[str, list[Path]] = {
        str(one["name"]): [folder.path / "containers" / one["name"] / "sandbox", folder.path / "logs" / one["name"]]
        for one in all_containers(worker.pod)
    }
    found = await disk.used([*volumes.values(), *(path for paths in containers.values() for path in paths)])
    return Usage(
        {name: found[path] for name, path in volumes.items() if path in found},
        {name: sum(found.get(path, 0) for path in paths) for name, paths in containers.items()},
    )
