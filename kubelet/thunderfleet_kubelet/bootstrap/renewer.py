"""Renews a certificate before it expires."""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.host.privatefiles import write_private
from thunderfleet_lib.kube import ApiError

from thunderfleet_kubelet.bootstrap.certificates import RENEW_AT, CertificateError, Pair, lifetime, renew_at

log = logging.getLogger(__name__)

STEP_SECONDS = 60.0
# With a clock that is far ahead every certificate looks expired. A new one is used at least this part of its lifetime.
EARLIEST = 0.1
EARLIEST_SECONDS = 3600.0
BACKOFF = Backoff(first=1.0, limit=300.0, jitter=0.3)


class Renewer:
    """Keeps one certificate valid: ``request`` gets a new one at 80 % of the lifetime, ``use`` starts using it.

    ``pair``: the current one; None requests the first one at once. A failed request is repeated with back-off forever;
    ``report`` gets its error, and None when a later one succeeds.
    """

    def __init__(
        self,
        name: str,
        file: Path,
        request: Callable[[], Awaitable[Pair]],
        use: Callable[[Pair], Awaitable[None]],
        report: Callable[[str | None], None] = lambda _: None,
        pair: Pair | None = None,
    ) -> None:
        self.name = name
        self.file = file
        self.request = request
        self.use = use
        self.report = report
        self.pair = pair
        self._now = asyncio.Event()
        self._obtained: float | None = None
        """When the last certificate was obtained (monotonic); None for one of an earlier process."""

    def renew_now(self) -> None:
        """Requests a certificate at once. It replaces the current one and a pending request."""
        self._now.set()

    async def run(self) -> None:
        """Renews until cancelled."""
        failures, due = 0, self.pair is None
        while True:
            if self.pair is not None and not due:
                await self._until_due(self.pair)
            self._now.clear()
            try:
                pair = await self._requested()
                if pair is None:
                    failures, due = 0, True
                    continue
                await asyncio.to_thread(write_private, self.file, pair.pem)
                await self.use(pair)
            except (CertificateError, ApiError, OSError) as error:
                failures += 1
                delay, due = BACKOFF.jittered(failures), True
                log.warning("%s certificate: %s; retrying in %.0f s", self.name, error, delay)
                self.report(f"{self.name} certificate: {error}")
                await self._sleep(delay)
                continue
            self.report(None)
            self.pair, failures, due = pair, 0, False
            self._obtained = time.monotonic()
            log.info("%s certificate is valid until %s", self.name, pair.facts.ends.isoformat())

    async def _requested(self) -> Pair | None:
        """The requested certificate; None if ``renew_now`` was called meanwhile."""
        request, again = asyncio.ensure_future(self.request()), asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait((request, again), return_when=asyncio.FIRST_COMPLETED)
            return None if again.done() else await request
        finally:
            for task in (request, again):
                task.cancel()
            await asyncio.gather(request, again, return_exceptions=True)

    async def _until_due(self, pair: Pair) -> None:
        """Waits for 80 % of the lifetime, by the clock or by elapsed time, whichever is first.

        A wrong clock must neither cause an endless series of requests nor prevent renewal.
        """
        part = RENEW_AT + random.uniform(-0.02, 0.02)
        seconds, when = lifetime(pair), renew_at(pair, part)
        earliest = -math.inf if self._obtained is None else self._obtained + min(seconds * EARLIEST, EARLIEST_SECONDS)
        latest = time.monotonic() + seconds * part
        while not self._now.is_set():
            now = time.monotonic()
            left = max(earliest - now, min(latest - now, (when - datetime.now(UTC)).total_seconds()))
            if left <= 0:
                return
            # In steps, because timers stop while a Mac sleeps.
            await self._sleep(min(left, STEP_SECONDS))

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._now.wait()
