"""One round at a time takes what others may need too: memory, ports and cables of Macs, a turn, the ModelCache of a model.

Rounds of several keys run at once. What one of them takes is in the cache as soon as the API server has accepted it, so each
decides again from the cache once the one before has written.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from thunderfleet_lib.kube import ApiError


async def _nothing() -> None:
    return


class Reservations:
    """What the rounds take, one at a time. ``refill`` lists everything once more; raises ApiError."""

    def __init__(self, refill: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._lock = asyncio.Lock()
        self._refill = refill
        self._unsure = False
        """Whether the result of a write is unknown: it may have taken something that the cache does not show."""
        self.taken = 0
        """Increases when a round may have taken something: what was decided before must be decided again."""

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """While no other round takes anything. Raises ApiError if it stays unknown what an earlier one has taken."""
        async with self._lock:
            if self._unsure:
                self.taken += 1
                await self._refill()
                self._unsure = False
            try:
                yield
            except BaseException as error:
                # A round that is cut short may have sent a request.
                self._unsure = error.unanswered if isinstance(error, ApiError) else not isinstance(error, Exception)
                raise
            finally:
                self.taken += 1

    def alone(self, work: Callable[[str], Awaitable[float | None]]) -> Callable[[str], Coroutine[Any, Any, float | None]]:
        """Rounds that take something, as rounds of which one runs at a time."""

        async def round_of(key: str) -> float | None:
            async with self.taking():
                return await work(key)

        return round_of
