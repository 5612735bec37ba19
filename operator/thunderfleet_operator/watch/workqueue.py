"""The one work queue: keys, each at most once, handed to one worker.

Level-triggered: a key says that something about it may have changed, never what. A key that is added while it is worked on
is worked on once more afterwards. A key can be asked for later; the earliest wish counts.
"""

import asyncio
import heapq
import time


class WorkQueue:
    """For one event loop. ``get`` hands out a key, ``done`` gives it back."""

    def __init__(self) -> None:
        self._ready: dict[str, None] = {}
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._again)

    def add(self, key: str) -> None:
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._wake.set()

    def add_after(self, key: str, seconds: float) -> None:
        if seconds <= 0:
            self.add(key)
            return
        due = time.monotonic() + seconds
        if key in self._ready or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._wake.set()

    def _promote(self) -> float | None:
        """Moves what is due; seconds until the next, None when nothing waits."""
        now = time.monotonic()
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
                continue
            if due > now:
                return due - now
            heapq.heappop(self._heap)
            self.add(key)
        return None

    async def get(self) -> str:
        while True:
            wait = self._promote()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._working.add(key)
                return key
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    def done(self, key: str) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
