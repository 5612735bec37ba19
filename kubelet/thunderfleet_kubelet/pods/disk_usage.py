"""How much of the disk each pod uses."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from thunderfleet_kubelet import disk
from thunderfleet_kubelet.pods.decide.eviction import Usage
from thunderfleet_kubelet.pods.decide.podspec import all_containers
from thunderfleet_kubelet.pods.worker import PodWorker

log = logging.getLogger(__name__)

MEASUREMENTS = 4
"""How many pods are measured at once."""

KEPT_SECONDS = 60.0
"""How old a figure for statistics may be: as in Kubernetes, which measures once a minute."""

ANSWER_SECONDS = 5.0
"""How long statistics wait for figures. Figures of a pod with very many files come later, or never."""


async def measure(worker: PodWorker) -> Usage:
    """What the pod uses now."""
    folder = worker.folder
    names = [str(one["name"]) for one in all_containers(worker.pod)]
    volumes = {str(one["name"]): folder.empty(str(one["name"])) for one in worker.pod["spec"].get("volumes") or []}
    sandboxes: dict[str, Path] = {name: folder.path / "containers" / name / "sandbox" for name in names}
    logs: dict[str, Path] = {name: folder.path / "logs" / name for name in names}
    try:
        found = await disk.used([*volumes.values(), *sandboxes.values(), *logs.values()])
    except OSError as error:
        log.warning("%s: cannot measure disk usage: %s", worker.key, error)
        return Usage(unknown=True)
    return Usage(
        {name: found[path] for name, path in volumes.items() if path in found},
        {name: found.get(sandboxes[name], 0) + found.get(logs[name], 0) for name in names},
        {name: found.get(logs[name], 0) for name in names},
    )


class DiskUsage:
    """Disk usage for statistics, measured on request, for each pod at most once in ``KEPT_SECONDS``."""

    def __init__(self) -> None:
        self._measuring = asyncio.Semaphore(MEASUREMENTS)
        self._known: dict[str, tuple[float, Usage]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def read(self, workers: Iterable[PodWorker]) -> Mapping[str, Usage]:
        """Usage of pods by uid, without pods that cannot be measured within ``ANSWER_SECONDS``."""
        by_uid = {worker.uid: worker for worker in workers}
        self._known = {uid: known for uid, known in self._known.items() if uid in by_uid}
        now = time.monotonic()
        for uid, worker in by_uid.items():
            if uid not in self._tasks and (uid not in self._known or now - self._known[uid][0] > KEPT_SECONDS):
                self._tasks[uid] = asyncio.create_task(self._measure(worker))
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=ANSWER_SECONDS)
        return {uid: usage for uid, (_, usage) in self._known.items() if not usage.unknown}

    async def _measure(self, worker: PodWorker) -> None:
        try:
            async with self._measuring:
                usage = await measure(worker)
            self._known[worker.uid] = (time.monotonic(), usage)
        finally:
            del self._tasks[worker.uid]
