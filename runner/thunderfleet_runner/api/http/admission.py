"""Lets requests wait until it is their turn, so that not too many run at once.

mlx-lm has no such limit, and memory use beyond the reservation has crashed whole Macs.
"""

import asyncio
import time
from collections.abc import Callable

from thunderfleet_runner.api.http.turns import ANYONE, Place, Turn, Turns

QUEUE_SECONDS = 120.0


class Full(Exception):
    """The queue is full, or the request waited too long; ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Slot:
    """The share of an admitted request. It must be freed; freeing it again has no effect."""

    def __init__(self, free: Callable[[], None]) -> None:
        self.free = free
        """Admits the next requests in the queue."""


class Admission:
    """Requests that run or wait for their turn, within the limits of ``Turns``. Belongs to one event loop.

    ``waited`` receives the seconds that an admitted request has waited.
    """

    def __init__(self, *, budget: int, slots: int, queue: int, waited: Callable[[float], None] = lambda seconds: None) -> None:
        self._turns = Turns(budget=budget, slots=slots, queue=queue)
        self._waited = waited
        self._calls: dict[Turn, asyncio.Event] = {}
        """What the requests in the queue wait for."""

    @property
    def limit(self) -> int:
        """Maximum number of requests that run or wait."""
        return self._turns.limit

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return self._turns.waiting

    @property
    def running(self) -> int:
        """Number of requests that run."""
        return self._turns.running

    @property
    def reserved(self) -> int:
        """Tokens of the requests that run: prompts and answers."""
        return self._turns.reserved

    @property
    def budget(self) -> int:
        """Tokens that requests may have together."""
        return self._turns.budget

    async def enter(self, tokens: int, timeout: float = QUEUE_SECONDS, place: Place = ANYONE) -> Slot:
        """Admits a request of ``tokens`` (prompt and answer), after waiting if needed. Raises Full."""
        started = time.monotonic()
        turn = self._turns.ask(tokens, place)
        if turn is None:
            raise Full(f"the queue is full ({self.running} running, {self.waiting} waiting); retry later", 5)
        if not turn.admitted:
            await self._wait(turn, timeout)
        self._waited(time.monotonic() - started)
        return Slot(lambda: self._end(turn))

    async def _wait(self, turn: Turn, timeout: float) -> None:
        """Waits until the request is admitted. If this is cancelled, even after the admission, the next one is admitted."""
        call = self._calls[turn] = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await call.wait()
        except BaseException as error:
            self._end(turn)
            if isinstance(error, TimeoutError):
                raise Full(f"the request waited in the queue for {timeout:g} s; retry later", 10) from error
            raise
        finally:
            del self._calls[turn]

    def _end(self, turn: Turn) -> None:
        for admitted in self._turns.end(turn):
            self._calls[admitted].set()
