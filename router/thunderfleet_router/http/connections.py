"""Connections to gateways. Each has one request at a time, and is kept for the next one for a while.

This is all that the router needs of an HTTP client. aiohttp's also has redirects, cookies, proxies and decompression, and took
a sixth of the processor time of a request.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from thunderfleet_router.http.framing import BadResponse, Head, Response, request

CONNECT_SECONDS: Final = 3.0
KEEP_SECONDS: Final = 30.0
"""How long a connection is kept without a request. Gateways close theirs later, so none is closed under a request."""
READ_BYTES: Final = 16 * 1024
"""Bytes that are read at once. More than these that wait for a client pause the gateway, so each slow client takes up to twice
as much memory."""
PIECE_BYTES: Final = 64 * 1024
"""A longer body is written in pieces, so that the transport holds no copy of it."""


class Unreachable(Exception):
    """No connection to the gateway could be opened."""


class GroupLost(Exception):
    """The connection to the group ended too early."""


class Connection(asyncio.BufferedProtocol):
    """One connection. Belongs to one event loop. ``buffer``: for received bytes; those of a loop can share one."""

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        """The response to the current request; None between requests."""
        self._arrived = b""
        """The part of the body that has not been read yet."""
        self._unsent = memoryview(b"")
        self._full = False
        """Whether the transport takes no more of the request now."""
        self._paused = False
        self._error: GroupLost | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def open(self) -> bool:
        """Whether it can have a request."""
        return self._transport is not None and not self._transport.is_closing() and self._response is None

    def send(self, head: bytes, body: bytes) -> None:
        """Begins a request. The rest of a long body is sent while the response is awaited."""
        assert self._transport is not None
        self._response = Response()
        if len(body) <= PIECE_BYTES:
            self._transport.write(head + body)
            return
        self._transport.write(head)
        self._unsent = memoryview(body)
        self._send_more()

    async def head(self) -> Head:
        """Status and headers of the response. Raises GroupLost."""
        assert self._response is not None
        while self._response.head is None:
            await self._wait()
        return self._response.head

    async def readany(self) -> bytes:
        """The next part of the body; empty at its end. Raises GroupLost."""
        assert self._response is not None
        while not self._arrived:
            if self._response.complete:
                return b""
            await self._wait()
        data, self._arrived = self._arrived, b""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def release(self) -> bool:
        """Ends the use for a request. Returns whether there may be another; if not, the connection is closed."""
        response, self._response = self._response, None
        assert response is not None
        reusable = response.complete and response.reusable and not self._unsent and not self._paused
        self._arrived, self._unsent = b"", memoryview(b"")
        if not reusable or not self.open:
            self.abort()
            return False
        return True

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose(self, why: str) -> None:
        if self._error is None:
            self._error = GroupLost(why)
        self._wake()

    def _send_more(self) -> None:
        assert self._transport is not None
        while self._unsent and not self._full:
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._transport.write(piece)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(memoryview(self._buffer)[:nbytes]))

    def _received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            # Nothing was asked for, so it cannot be the answer to the next request.
            self.abort()
            return
        try:
            part = response.feed(data)
        except BadResponse as error:
            self._lose(str(error))
            self.abort()
            return
        self._arrived = self._arrived + part if self._arrived else part
        if len(self._arrived) > READ_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._send_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unsent = memoryview(b"")
        if self._response is None:
            return
        try:
            self._response.end()
        except BadResponse as error:
            self._lose(str(exc or error))
        self._wake()


class Connections:
    """The connections to all gateways, by URL."""

    def __init__(self) -> None:
        self._idle: dict[str, deque[tuple[float, Connection]]] = {}
        self._used: set[Connection] = set()
        # Without it, asyncio allocates 256 KiB for each read, and a client that does not read can hold as much.
        self._buffer = bytearray(READ_BYTES)
        self._sweep: asyncio.TimerHandle | None = None

    async def send(self, url: str, path: str, headers: Mapping[str, str], body: bytes) -> Connection:
        """Sends a POST. ``give_back`` must follow. Raises Unreachable, or ValueError for values that no header may have."""
        parts = urlsplit(url)
        head = request(path, parts.netloc, headers, len(body))
        connection = self._kept(url) or await self._opened(str(parts.hostname), int(parts.port or 80))
        self._used.add(connection)
        connection.send(head, body)
        return connection

    def give_back(self, url: str, connection: Connection) -> None:
        """Keeps the connection for another request, or closes it."""
        self._used.discard(connection)
        if connection.release():
            loop = asyncio.get_running_loop()
            self._idle.setdefault(url, deque()).append((loop.time() + KEEP_SECONDS, connection))
            if self._sweep is None:
                self._sweep = loop.call_later(KEEP_SECONDS, self._close_old)

    async def close(self) -> None:
        """Closes all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in (*self._used, *(one for kept in self._idle.values() for _, one in kept)):
            connection.abort()
        self._idle.clear()

    def _kept(self, url: str) -> Connection | None:
        kept = self._idle.get(url)
        while kept:
            # The one that was used last, so that those which are not needed get old.
            until, connection = kept.pop()
            if connection.open and until > asyncio.get_running_loop().time():
                return connection
            connection.abort()
        return None

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        for url, kept in list(self._idle.items()):
            while kept and (kept[0][0] <= loop.time() or not kept[0][1].open):
                kept.popleft()[1].abort()
            if not kept:
                del self._idle[url]
        self._sweep = loop.call_later(KEEP_SECONDS, self._close_old) if self._idle else None

    async def _opened(self, host: str, port: int) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(lambda: Connection(self._buffer), host, port)
        except TimeoutError as error:
            raise Unreachable(f"no connection within {CONNECT_SECONDS:g} s") from error
        except OSError as error:
            raise Unreachable(str(error)) from error
        return connection
