"""Requests that one group answers at once: a step of its model for several takes hardly more time than for one."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def at_once(count: int, requests: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all of them, ``count`` at the same time. Raises the first error."""
    free = asyncio.Semaphore(count)

    async def one(request: Coroutine[Any, Any, None]) -> None:
        async with free:
            await request

    await asyncio.gather(*map(one, requests))
