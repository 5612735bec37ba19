"""The work queue: keys, each at most once.

It is level-triggered: a key means that something about it may have changed, not what. A key that is added during its round gets
another round afterwards. A key can be added with a delay; the earliest time counts.

Most changes that come during a round are answers to its own writes, or follow from them. They get one round together, a moment
after it.

Kinds and namespaces take turns, so that a user with thousands of objects delays the rounds of others by one round each.
"""

import asyncio
import heapq
import time


class _Turns:
    """Keys that are ready, each once. Those of one kind and namespace (``kind/namespace/name``) come in order."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, None]] = {}
        """Keys by kind and namespace. The one whose turn is next comes first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        return key in self._of.get(_whose(key), ())

    def add(self, key: str) -> None:
        """Adds a key, unless it is there."""
        keys = self._of.setdefault(_whose(key), {})
        self._count += key not in keys
        keys[key] = None

    def take(self, key: str | None = None) -> str:
        """Removes and returns ``key``, else the next one."""
        whose = _whose(key) if key is not None else next(iter(self._of))
        keys = self._of.pop(whose)
        found = key if key is not None else next(iter(keys))
        del keys[found]
        if keys:
            self._of[whose] = keys
        self._count -= 1
        return found


def _whose(key: str) -> str:
    return key.rpartition("/")[0]


class WorkQueue:
    """For one event loop. Every key from ``get`` is returned with ``done``.

    ``moment``: seconds after a round until the one for what has changed during it.
    """

    def __init__(self, moment: float = 0.0) -> None:
        self._moment = moment
        self._ready = _Turns()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._changed: set[str] = set()
        """Keys that have changed during their round."""
        self._first: dict[str, None] = {}
        """Keys that come before the others once they are ready."""
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._wake = asyncio.Event()
        self._done = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._again | self._changed)

    def add(self, key: str, *, first: bool = False) -> None:
        """Adds a key. ``first``: before all others that wait, also if it waits already."""
        self._due.pop(key, None)
        if first:
            self._first[key] = None
        if key in self._working:
            self._again.add(key)
        else:
            self._ready.add(key)
            self._wake.set()

    def changed(self, key: str) -> None:
        """Adds a key because something about it has changed."""
        if key in self._working:
            self._due.pop(key, None)
            self._changed.add(key)
        else:
            self.add(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Adds a key after a delay, unless it is added earlier anyway."""
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
        """Adds the keys whose delay is over. Seconds until the next one; None if there is none."""
        now = time.monotonic()
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
                continue
            if due > now:
                return due - now
            heapq.heappop(self._heap)
            del self._due[key]
            self.changed(key)
        return None

    async def get(self) -> str:
        """Waits for a key and takes it."""
        while True:
            wait = self._promote()
            if self._ready:
                key = self._ready.take(next((key for key in self._first if key in self._ready), None))
                self._first.pop(key, None)
                self._working.add(key)
                return key
            self._wake.clear()
            try:
                # Not wait_for, which loses a cancellation that comes together with the event.
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: str) -> None:
        """The round of a key has ended."""
        self._working.discard(key)
        changed = key in self._changed
        self._changed.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif changed:
            self.add_after(key, self._moment)
        self._done.set()

    async def empty(self) -> None:
        """Waits until no key is ready and no round runs. Keys that were added with a delay do not count."""
        while self._ready or self._working:
            self._done.clear()
            await self._done.wait()
