"""The workers: each runs the rounds of one queue's keys.

Several rounds run at once, never two of one key: a start of the operator writes about every cable and every ModelDeployment.
What takes the room of others is written by one round at a time (``reservations``).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from thunderfleet_crds.names import MODELDEPLOYMENT_PLURAL, NODEPROFILE_PLURAL
from thunderfleet_lib import logs
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError

from thunderfleet_operator.act.writer import NotLeading, in_term
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.watch.cache import SECRETS
from thunderfleet_operator.watch.workqueue import WorkQueue

log = logging.getLogger(__name__)

RETRY = Backoff(1.0, 60.0)
ROUND_SECONDS = 120.0
STUCK_SECONDS = 180.0

Round = Callable[[str], Awaitable[float | None]]
"""One round for a key: the seconds until the next, although nothing may have changed."""


class Worker:
    """``rounds``: by collection. ``term``: as for ``Writer``. ``refill``: lists everything once more.

    ``at_once``: rounds of different keys at a time.
    """

    def __init__(
        self,
        queue: WorkQueue,
        rounds: Mapping[str, Round],
        metrics: Metrics,
        term: Callable[[], int],
        refill: Callable[[], Awaitable[None]],
        at_once: int = 1,
    ) -> None:
        self._queue = queue
        self._rounds = rounds
        self._metrics = metrics
        self._term = term
        self._refill = refill
        self._failures: dict[str, int] = {}
        self._at_once = at_once
        self._busy_since: dict[str, float] = {}
        """By key, when its round began (monotonic)."""
        for kind in rounds:
            # From 0 on: Prometheus counts no increase where a series begins.
            metrics.errors.labels(kind)

    @property
    def stuck(self) -> bool:
        """Whether one round has run far beyond its limit."""
        return any(time.monotonic() - since > STUCK_SECONDS for since in self._busy_since.values())

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                # A standby drops the key: a new leader starts with all keys.
                if term := self._term():
                    with in_term(term):
                        await self._round(key)
            finally:
                self._queue.done(key)

    async def _round(self, key: str) -> None:
        kind, _, name = key.partition("/")
        with logs.fields(**_about(kind, name)):
            await self._timed(kind, key, name)

    async def _timed(self, kind: str, key: str, name: str) -> None:
        started = self._busy_since[key] = time.monotonic()
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                again = await self._rounds[kind](name)
        except NotLeading as error:
            log.warning("%s: %s", key, error)
            self._metrics.reconciles.labels(kind, "not-leading").inc()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Of something that the round has waited for. If it were raised here, it would end this task, which is not started
            # again.
            await self._failed(kind, key, RuntimeError("something that the round waited for was cancelled"))
        except Exception as error:
            await self._failed(kind, key, error)
        else:
            self._failures.pop(key, None)
            self._metrics.reconciles.labels(kind, "ok").inc()
            if again is not None:
                self._queue.add_after(key, again)
        finally:
            self._busy_since.pop(key, None)
            self._metrics.duration.labels(kind).observe(time.monotonic() - started)

    async def _failed(self, kind: str, key: str, error: Exception) -> None:
        """Logs a failed round and puts its key back, with exponential back-off."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = RETRY.seconds(failures)
        text = f"not finished after {ROUND_SECONDS:.0f} s" if isinstance(error, TimeoutError) else str(error)
        log.error("%s: %s; retrying in %.0f s", key, text, wait, exc_info=None if isinstance(error, ApiError) else error)
        self._metrics.errors.labels(kind).inc()
        self._metrics.reconciles.labels(kind, "error").inc()
        if isinstance(error, ApiError) and error.unanswered:
            # The write may have succeeded: the next round must see it.
            with contextlib.suppress(ApiError):
                await self._refill()
        self._queue.add_after(key, wait)


def _about(kind: str, name: str) -> logs.Fields:
    """The fields of the log for one round."""
    if kind in (MODELDEPLOYMENT_PLURAL, SECRETS.name):
        owner = logs.of_key(name)
        return {"namespace": owner.get("namespace"), "deployment": owner.get("deployment")}
    return {"node": name} if kind == NODEPROFILE_PLURAL else {}
