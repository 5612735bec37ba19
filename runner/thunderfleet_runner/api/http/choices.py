"""Several answers to one request, as one stream."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

T = TypeVar("T")
Events = asyncio.Queue[tuple[int, T | None, Exception | None]]

WAITING_EVENTS = 64
"""Maximum number of events that wait for the reader. Further events wait in the answers, which have a limit of their own."""


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields (index, event) of all streams as they arrive. Closing it closes them all, and so does the first error of one."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for event in only:
                yield 0, event
        return
    events: Events[T] = asyncio.Queue(WAITING_EVENTS)
    pumps = [asyncio.create_task(_pump(index, stream, events)) for index, stream in enumerate(streams)]
    try:
        left = len(streams)
        while left:
            index, found, error = await events.get()
            if error is not None:
                raise error
            if found is None:
                left -= 1
            else:
                yield index, found
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(index: int, stream: AsyncGenerator[T, None], events: "Events[T]") -> None:
    try:
        async with contextlib.aclosing(stream) as pieces:
            async for piece in pieces:
                await events.put((index, piece, None))
    except Exception as error:
        await events.put((index, None, error))
    else:
        await events.put((index, None, None))
