"""Makes the whole group work after an idle period, and checks the answer.

Idle ranks are in no collective, so a lost peer or cable is noticed only when work arrives, and so are weights or results that
have become wrong since the last answer. The canary is such work: it finds a failed step, a stall or a wrong answer before a
client does, and the group recovers as usual. A client's request ends the canary within a step or two.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable

from thunderfleet_crds.vocabulary import Verify

from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable
from thunderfleet_runner.api.upkeep import continuation
from thunderfleet_runner.api.upkeep.idle import Interrupted, undisturbed
from thunderfleet_runner.api.upkeep.rechecks import Rechecks

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""Idle time after which the group works."""
LIMIT_SECONDS = 900.0
"""Time limit for one canary."""

Now = Callable[[], tuple[float, float]]


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()


async def run(service: Service, wrong: Callable[[str], None], idle_seconds: float = IDLE_SECONDS, *, now: Now = _now) -> None:
    """Runs until cancelled. ``wrong`` receives what is wrong with an answer. ``now``: monotonic and wall-clock seconds."""
    rechecks = Rechecks(*now())
    while True:
        await asyncio.sleep(max(0.05 * idle_seconds, wait_seconds(service, idle_seconds, time.monotonic())))
        rechecks = rechecks.at(*now(), service.connections)
        if service.ready and wait_seconds(service, idle_seconds, time.monotonic()) <= 0:
            try:
                async with asyncio.timeout(LIMIT_SECONDS):
                    rechecks = await _work(service, rechecks)
            except continuation.OutputWrong as error:
                wrong(str(error))
            except Interrupted:
                pass
            except (Unavailable, Refused, GenerationFailed, TimeoutError) as error:
                # The group handles the failure.
                log.warning("cannot test the idle group: %s", str(error) or f"it took longer than {LIMIT_SECONDS:g} s")


def wait_seconds(service: Service, idle_seconds: float, now: float) -> float:
    """Seconds until a canary is due; running requests postpone it."""
    return idle_seconds if service.running else service.used_at + idle_seconds - now


async def _work(service: Service, rechecks: Rechecks) -> Rechecks:
    """The canary's work. Raises OutputWrong, Interrupted, and what ``Service.submit`` raises."""
    # Only requests from now on interrupt it: none has arrived for the idle time.
    service.arrival.clear()
    passed = service.answers.passed if service.plan.verify is Verify.FULL else frozenset()
    if not passed:
        await undisturbed(service, _token(service))
    elif rechecks.due:
        await undisturbed(service, continuation.again(service, max(passed)))
        return rechecks.done()
    else:
        await undisturbed(service, continuation.once(service, min(passed), rechecks.canaries))
        return rechecks.sung()
    return rechecks


async def _token(service: Service) -> None:
    """Generates one token, which is not checked."""
    request = protocol.Request(
        id=f"canary-{uuid.uuid4().hex}", prompt=protocol.Prompt.of((0,)), max_tokens=1, cache=False, no_end=True
    )
    async with contextlib.aclosing(service.submit(request)) as events:  # type: ignore[type-var]
        async for _ in events:
            pass
