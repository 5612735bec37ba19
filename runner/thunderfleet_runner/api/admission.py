"""Who may be at work at once: by tokens, against what is reserved; the rest waits in a short queue, in order.

mlx-lm has no such limit, and memory beyond the reservation has crashed whole Macs.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

QUEUE_SECONDS = 120.0


class Full(Exception):
    """The queue is full, or a place did not come in time; ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Place:
    """What a request was given; it must be left once, and may be left again."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class Admission:
    """``budget`` tokens for all requests together and ``places`` requests at once; ``queue`` may wait. Belongs to one loop."""

    def __init__(self, *, budget: int, places: int, queue: int, waited: Callable[[float], None] = lambda seconds: None) -> None:
        self.limit = places + queue
        """Requests that may run or wait."""
        self._budget = budget
        self._places = places
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

    async def enter(self, tokens: int, timeout: float = QUEUE_SECONDS) -> Place:
        """A place for a request of so many tokens (prompt and answer). Raises Full."""
        tokens = min(tokens, self._budget)
        await self._enter(tokens, timeout)
        return Place(lambda: self._leave(tokens))

    async def _enter(self, tokens: int, timeout: float) -> None:
        begun = time.monotonic()
        if self._queue or not self._fits(tokens):
            if len(self._queue) >= self._queue_limit:
                raise Full(f"{len(self._queue)} requests wait already, and {self._running} run", 5)
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
                    # The place was given in the moment in which the wait ended.
                    self._leave(tokens)
                if isinstance(error, TimeoutError):
                    raise Full(f"no place became free within {timeout:g} s", 10) from error
                raise
        else:
            self._take(tokens)
        self._waited(time.monotonic() - begun)

    def _fits(self, tokens: int) -> bool:
        return self._running < self._places and self._tokens + tokens <= self._budget

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
