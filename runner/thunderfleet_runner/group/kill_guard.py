"""Keeps a Mac from starting a rank while a killed rank's memory is still wired, or after too many kills."""

import asyncio
import time
from collections.abc import Callable

from thunderfleet_runner.faults import Fault
from thunderfleet_runner.host import wired_memory

RECHECK_SECONDS = 0.5


class KillGuard:
    """``reader`` is None where a kill strands no memory; the guard then does nothing."""

    def __init__(self, reader: wired_memory.Reader | None, node: str, reserved_bytes: int) -> None:
        self._reader = reader
        self._node = node
        self._reserved = reserved_bytes
        self._ledger = wired_memory.Ledger()

    async def started(self) -> None:
        """A rank is about to start: records how much memory is wired."""
        if self._reader is not None:
            self._ledger = self._ledger.started(await asyncio.to_thread(self._reader))

    def killed(self) -> None:
        """A rank that had loaded was ended by a signal."""
        self._ledger = self._ledger.killed(time.monotonic())

    async def check(self, over: Callable[[], bool]) -> Fault | None:
        """Why no rank may start; None when one may. Waits while memory may still be released, until ``over`` is true."""
        if self._reader is None:
            return None
        while True:
            wired, ledger = await asyncio.to_thread(self._reader), self._ledger
            state = ledger.state(time.monotonic(), wired, self._reserved)
            if state is wired_memory.MemoryState.STRANDED and ledger.before is not None and wired is not None:
                return wired_memory.stranded(self._node, ledger.before, wired)
            if state is wired_memory.MemoryState.FREE:
                break
            if over():
                return None
            await asyncio.sleep(RECHECK_SECONDS)
        self._ledger = self._ledger.settled()
        hold = self._ledger.hold_seconds(time.monotonic())
        return wired_memory.held(self._node, hold) if hold > 0 else None
