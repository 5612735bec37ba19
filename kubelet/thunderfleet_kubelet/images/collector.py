"""Deletes unused images when the disk is too full: layers and parts of layers that no pull needs first, then whole images."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Set

from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.disk import file_system
from thunderfleet_kubelet.images.doomed import Kept, doomed, excess
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.images.store import Store

log = logging.getLogger(__name__)

LOOK_SECONDS = 300.0
AGAIN_SECONDS = 10.0
"""The shortest time between two checks."""

NodeEvent = Callable[[str, str], None]


class Collector:
    """``in_use``: the keys of images that pods have. ``node_event``: records a warning about the Node."""

    def __init__(
        self,
        store: Store,
        settings: PullSettings,
        in_use: Callable[[], Set[str]],
        node_event: NodeEvent = lambda reason, message: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._settings, self._in_use, self._node_event, self._now = store, settings, in_use, node_event, now
        self._wake = asyncio.Event()
        self._deleting = asyncio.Lock()

    def nudge(self) -> None:
        """Checks soon, because something changed."""
        self._wake.set()

    async def run(self) -> None:
        """Checks every ``LOOK_SECONDS`` until cancelled."""
        while True:
            try:
                await self.look()
            except OSError as error:
                log.warning("cannot delete unused images: %s", error)
            except Exception:
                # Pods must be managed though images are not deleted.
                log.exception("cannot delete unused images")
            await asyncio.sleep(AGAIN_SECONDS)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()

    async def look(self) -> int:
        """Deletes what is too much. Returns the bytes that were deleted. Raises OSError."""
        await asyncio.to_thread(self._store.drop_partials)
        await self._store.drop_staging()
        self._store.read_again()
        system = file_system(self._store.root)
        need = excess(system.capacity, system.available, self._settings.high_percent, self._settings.low_percent)
        if not need:
            return 0
        freed = await self.free(need)
        if freed < need:
            self._node_event(
                "FreeDiskSpaceFailed",
                f"the disk of the images is more than {self._settings.high_percent} % full, and only {freed} of {need} bytes "
                "could be freed: all other images are in use, or other files take the space",
            )
        return freed

    async def free(self, need: int) -> int:
        """Deletes about ``need`` bytes, as far as they are not in use. Returns how many. Raises OSError."""
        async with self._deleting:
            freed = 0
            for file, size in self._store.spare_blobs():
                if freed >= need:
                    return freed
                file.unlink(missing_ok=True)
                freed += size
            kept = [Kept(one.key, one.size, one.used) for one in self._store.images.values()]
            for key in doomed(kept, self._in_use(), self._now(), self._settings.minimum_age, need - freed):
                freed += await self._delete(key)
            return freed

    async def _delete(self, key: str) -> int:
        stored = self._store.images.get(key)
        # A pod may have come while others were deleted.
        if stored is None or key in self._in_use():
            return 0
        log.info("deleting image %s (%d bytes): unused, and the disk is too full", ", ".join(stored.names) or key, stored.size)
        folder = self._store.take_out(stored)
        with contextlib.suppress(OSError):
            await leftovers.delete(folder)
        return stored.size
