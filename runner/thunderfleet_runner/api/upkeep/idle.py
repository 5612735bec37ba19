"""Runs work of the group's own while it is idle; clients take precedence."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from thunderfleet_runner.api.service import Service

IDLE_SECONDS = 5.0
"""How long the group must have had no request before such work starts again."""

T = TypeVar("T")


class Interrupted(Exception):
    """A client's request arrived."""


async def until_idle(service: Service) -> None:
    """Waits until no request runs and none has arrived for IDLE_SECONDS."""
    while service.running or service.arrival.is_set():
        service.arrival.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                await service.arrival.wait()


async def undisturbed(service: Service, work: Coroutine[Any, Any, T]) -> T:
    """Does the work, cancelled as soon as a client's request arrives. Raises Interrupted."""
    running = asyncio.create_task(work)
    arrival = asyncio.create_task(service.arrival.wait())
    try:
        await asyncio.wait({running, arrival}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise Interrupted
        return running.result()
    finally:
        for task in (running, arrival):
            task.cancel()
        await asyncio.gather(running, arrival, return_exceptions=True)
