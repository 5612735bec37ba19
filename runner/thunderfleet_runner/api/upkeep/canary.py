"""Generates one token with the whole group after an idle period.

Idle ranks are in no collective, so a lost peer or cable only shows when work arrives. The canary is that work: it finds a
failed step or a stall before a client does, and the group recovers as usual.
"""

import asyncio
import contextlib
import logging
import time
import uuid

from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""Idle time after which a token is generated."""


async def run(service: Service, idle_seconds: float = IDLE_SECONDS) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(max(0.05 * idle_seconds, wait_seconds(service, idle_seconds, time.monotonic())))
        if service.ready and wait_seconds(service, idle_seconds, time.monotonic()) <= 0:
            await _generate(service)


def wait_seconds(service: Service, idle_seconds: float, now: float) -> float:
    """Seconds until a canary is due; running requests postpone it."""
    return idle_seconds if service.running else service.used_at + idle_seconds - now


async def _generate(service: Service) -> None:
    request = protocol.Request(
        id=f"canary-{uuid.uuid4().hex}", prompt=protocol.Prompt.of((0,)), max_tokens=1, cache=False, no_end=True
    )
    try:
        async with contextlib.aclosing(service.submit(request)) as events:  # type: ignore[type-var]
            async for _ in events:
                pass
    except (Unavailable, Refused, GenerationFailed) as error:
        # The group handles the failure; nothing to do here.
        log.warning("cannot generate the token that tests the idle group: %s", error)
