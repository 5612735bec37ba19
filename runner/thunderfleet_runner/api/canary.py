"""One token through the whole group when nobody has asked for any for a while.

Idle ranks are in no collective, so a peer or a cable that has gone meanwhile shows only when work comes. This work comes first:
what it meets is a failed step or a stall, and leads where those lead.
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
"""Without a token for so long, one is made."""


async def run(service: Service, idle_seconds: float = IDLE_SECONDS) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(max(0.05 * idle_seconds, wait_seconds(service, idle_seconds, time.monotonic())))
        if service.ready and wait_seconds(service, idle_seconds, time.monotonic()) <= 0:
            await _sing(service)


def wait_seconds(service: Service, idle_seconds: float, now: float) -> float:
    """How long nobody may come before a canary is due; requests that run put it off."""
    return idle_seconds if service.running else service.used_at + idle_seconds - now


async def _sing(service: Service) -> None:
    request = protocol.Request(
        id=f"canary-{uuid.uuid4().hex}", kind="tokens", tokens=(0,), max_tokens=1, cache=False, no_end=True
    )
    try:
        async with contextlib.aclosing(service.submit(request)) as events:  # type: ignore[type-var]
            async for _ in events:
                pass
    except (Unavailable, Refused, GenerationFailed) as error:
        # The group's own watch has seen what was wrong; here nothing is left to do.
        log.warning("the canary token did not come: %s", error)
