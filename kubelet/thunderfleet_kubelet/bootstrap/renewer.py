"""Renews a certificate before it expires."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError
from thunderfleet_lib.tls import write_private

from thunderfleet_kubelet.bootstrap.certificates import RENEW_AT, CertificateError, Pair, renew_at

log = logging.getLogger(__name__)

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

    async def run(self) -> None:
        """Renews until cancelled."""
        failures = 0
        while True:
            if self.pair is not None:
                await _sleep_until(renew_at(self.pair, RENEW_AT + random.uniform(-0.02, 0.02)))
            try:
                pair = await self.request()
                await asyncio.to_thread(write_private, self.file, pair.pem)
                await self.use(pair)
            except (CertificateError, ApiError, OSError) as error:
                failures += 1
                delay = BACKOFF.jittered(failures)
                log.warning("%s certificate: %s; retrying in %.0f s", self.name, error, delay)
                self.report(f"{self.name} certificate: {error}")
                await asyncio.sleep(delay)
                continue
            self.report(None)
            self.pair, failures = pair, 0
            log.info("%s certificate is valid until %s", self.name, pair.leaf.not_valid_after_utc.isoformat())


async def _sleep_until(when: datetime) -> None:
    # In steps, because timers stop while a Mac sleeps.
    left = (when - datetime.now(UTC)).total_seconds()
    while left > 0:
        await asyncio.sleep(min(left, 60.0))
        left = (when - datetime.now(UTC)).total_seconds()
