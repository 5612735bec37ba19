"""Wait for a condition, with a limit. Tests wait for what they need and never for a length of time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

Near = tuple[str, float, float]
"""A wait that took more than half of its limit: its goal, its seconds, its limit."""
NEAR_LIMIT: list[Near] = []
"""Such waits of this process, until somebody takes them out. They are what fails first on a slower machine."""

WAIT_SECONDS = 90.0
"""Limit of a wait for a cluster."""
PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 0.5
"""A long wait for a cluster asks less often: each question takes processor time of the cluster's programs."""
ASYNC_WAIT_SECONDS = 60.0
"""Limit of a wait inside one process."""
ASYNC_PAUSE_SECONDS = 0.02
GOAL_CHARACTERS = 100


class NotInTimeError(AssertionError):
    """A condition did not hold within its limit."""


def _nothing() -> str:
    return ""


class _Wait:
    """One wait: when it started, and the error that ends it."""

    def __init__(self, goal: str, seconds: float, describe: Callable[[], str]) -> None:
        self._goal = goal or "the condition holds"
        self._seconds = seconds
        self._describe = describe
        self._began = time.monotonic()
        self._deadline = self._began + seconds

    def ended(self) -> None:
        """The condition holds."""
        took = time.monotonic() - self._began
        if took > self._seconds / 2 > 0:
            NEAR_LIMIT.append((self._goal[:GOAL_CHARACTERS], took, self._seconds))

    def pause(self, least: float) -> float:
        """Seconds until the next question: a tenth of the time waited so far, within limits."""
        return max(least, min((time.monotonic() - self._began) / 10, LONGEST_PAUSE_SECONDS))

    def check(self, error: Exception | None) -> None:
        """Raises NotInTimeError once the limit has passed."""
        if time.monotonic() <= self._deadline:
            return
        goal, last = f"not within {self._seconds:g} s: {self._goal}", f"last error: {error}" if error else ""
        raise NotInTimeError("\n".join(filter(None, (goal, last, self._describe())))) from error


def until(
    holds: Callable[[], T | None],
    goal: str = "",
    seconds: float = WAIT_SECONDS,
    *,
    pause: float = PAUSE_SECONDS,
    describe: Callable[[], str] = _nothing,
    retry_on: tuple[type[Exception], ...] = (),
) -> T:
    """Calls ``holds`` until it returns something true, and returns that; ``pause``: the least seconds between two calls.

    Errors in ``retry_on`` count as false. After ``seconds`` raises NotInTimeError with ``goal`` and the text of ``describe``.
    """
    wait = _Wait(goal, seconds, describe)
    while True:
        error: Exception | None = None
        try:
            if found := holds():
                wait.ended()
                return found
        except retry_on as caught:
            error = caught
        wait.check(error)
        time.sleep(wait.pause(pause))


async def until_async(
    holds: Callable[[], object],
    goal: str = "",
    seconds: float = ASYNC_WAIT_SECONDS,
    *,
    pause: float = ASYNC_PAUSE_SECONDS,
    describe: Callable[[], str] = _nothing,
    retry_on: tuple[type[Exception], ...] = (),
) -> None:
    """Like ``until``, while the event loop runs; ``holds`` may be a coroutine function.

    With ``pause=0`` it is called at every turn of the loop.
    """
    wait = _Wait(goal, seconds, describe)
    while True:
        error: Exception | None = None
        try:
            found = holds()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                wait.ended()
                return
        except retry_on as caught:
            error = caught
        wait.check(error)
        await asyncio.sleep(pause)
