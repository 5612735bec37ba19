"""A response as server-sent events: written in few pieces, kept alive, and ended when the client does not read."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from thunderfleet_runner.api.answer.writer import Event

FIRST_EVENT_SECONDS = 5.0
"""How long the first write is delayed: until then, an error can still be returned as an HTTP status."""
KEEPALIVE_SECONDS = 15.0
READ_SECONDS = 60.0
"""How long a client may read nothing of a stream that has data for it."""


class ClientGone(ConnectionError):
    """The client does not read its response."""


class EventStream:
    """Collects events and writes them; the response starts with the first write."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={
            "Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers
        })  # fmt: skip
        self._written = time.monotonic()
        self._waiting = bytearray()
        self._writing = asyncio.Lock()

    @property
    def started(self) -> bool:
        """Whether the response's status is sent."""
        return self._response.prepared

    def put(self, events: Iterable[Event]) -> None:
        """Adds events."""
        for event in events:
            if event.name:
                self._waiting.extend(b"event: " + event.name.encode() + b"\n")
            self._waiting.extend(b"data: " + json.dumps(event.data, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n")

    def put_done(self) -> None:
        """Adds the mark that the answer is complete."""
        self._waiting.extend(b"data: [DONE]\n\n")

    def comment(self, text: str) -> None:
        """Adds a line that clients ignore."""
        self._waiting.extend(b": " + text.encode() + b"\n\n")

    async def flush(self) -> None:
        """Writes everything that was added, in one piece. Raises ClientGone when the client reads nothing for READ_SECONDS."""
        if not self._waiting:
            return
        async with self._writing:
            if not self._response.prepared:
                await self._response.prepare(self._request)
            data = bytes(self._waiting)
            self._waiting.clear()
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self._response.write(data)
            except TimeoutError:
                if self._request.transport is not None:
                    # abort, not close: close would wait for the client to read the rest.
                    self._request.transport.abort()
                raise ClientGone(f"the client read nothing for {READ_SECONDS:g} s") from None
            self._written = time.monotonic()

    async def end(self) -> web.StreamResponse:
        """Writes the rest and ends the response."""
        await self.flush()
        await self._response.write_eof()
        return self._response

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Writes a comment at intervals while nothing else is written."""
        keeping = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            # Not in the middle of a write.
            async with self._writing:
                keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_alive(self) -> None:
        patience = FIRST_EVENT_SECONDS
        while True:
            await asyncio.sleep(max(patience - (time.monotonic() - self._written), 0.1))
            if time.monotonic() - self._written >= patience and not self._writing.locked():
                self._waiting.extend(b": still working\n\n")
                await self.flush()
                patience = KEEPALIVE_SECONDS
