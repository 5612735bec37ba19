"""Requests of one round that depend on no other, a few at a time: most of each is the wait for the API server."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

AT_ONCE = 8

T = TypeVar("T")
R = TypeVar("R")


async def in_batches(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R | BaseException]:
    """What ``work`` returned or raised for each item, in their order. After a batch with a failure there is no other one."""
    found: list[R | BaseException] = []
    left = list(items)
    for first in range(0, len(left), AT_ONCE):
        ended = await asyncio.gather(*map(work, left[first : first + AT_ONCE]), return_exceptions=True)
        found += ended
        if any(isinstance(one, BaseException) for one in ended):
            break
    return found
