"""Limits the requests that run at once, by number and by tokens; the others wait in a short queue, in order.

mlx-lm has no such limit, and memory use beyond the reservation has crashed whole Macs.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

QUEUE_SECONDS = 120.0


class Full(Exception):
    """The queue is full, or the request waited too long; ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Slot:
    """An admitted request's share; it must be freed once, and may be freed again."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free: Callable[[], None] | None = free

    def free(self) -> None:
        """Admits the next requests in the queue."""
        free, self._free = self._free, None
        if free is not None:
            free()


class Admission:
    """At most ``slots`` requests with ``budget`` tokens together run at once, and ``queue`` wait. Belongs to one event loop.

    ``waited`` receives the seconds that an admitted request has waited.
    """

    def __init__(self, *, budget: int, slots: int, queue: int, waited: Callable[[float], None] = lambda seconds: None) -> None:
        self.limit = slots + queue
        """Maximum number of requests that run or wait."""
        self._budget = budget
        self._slots = slots
        self._queue_limit = queue
        self._waited = waited
        self._tokens = 0
        self._running = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return self._running

    async def enter(self, tokens: int, timeout: float = QUEUE_SECONDS) -> Slot:
        """Admits a request of ``tokens`` (prompt and answer), after waiting if needed. Raises Full."""
        tokens = min(tokens, self._budget)
        await self._enter(tokens, timeout)
        return Slot(lambda: self._leave(tokens))

    async def _enter(self, tokens: int, timeout: float) -> None:
        started = time.monotonic()
        if self._queue or not self._fits(tokens):
            if len(self._queue) >= self._queue_limit:
                raise Full(f"the queue is full ({self._running} running, {len(self._queue)} waiting); retry later", 5)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (tokens, turn)
            self._queue.append(entry)
            try:
                async with asyncio.timeout(timeout):
                    await turn
            except BaseException as error:
                if entry in self._queue:
                    self._queue.remove(entry)
                    self._admit()
                elif turn.done() and not turn.cancelled():
                    # Admitted at the very moment at which the wait ended.
                    self._leave(tokens)
                if isinstance(error, TimeoutError):
                    raise Full(f"the request waited for {timeout:g} s without being admitted", 10) from error
                raise
        else:
            self._take(tokens)
        self._waited(time.monotonic() - started)

    def _fits(self, tokens: int) -> bool:
        return self._running < self._slots and self._tokens + tokens <= self._budget

    def _take(self, tokens: int) -> None:
        self._tokens += tokens
        self._running += 1

    def _leave(self, tokens: int) -> None:
        self._tokens -= tokens
        self._running -= 1
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            tokens, turn = self._queue.popleft()
            if not turn.done():
                self._take(tokens)
                turn.set_result(None)
