"""The response to a client: comments keep it alive until the answer starts; errors have the format of the client's path."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import HttpVersion11, web
from thunderfleet_lib.httpapi.errors import ANTHROPIC_PATH, ApiError, of_path

FIRST_COMMENT_SECONDS = 5.0
"""How long an error can still become an HTTP status, before a stream starts with a comment; as in the gateway."""
COMMENT_SECONDS = 15.0
READ_SECONDS = 60.0
"""A client that reads nothing for this time, while data waits for it, is disconnected."""
STALLED_SECONDS = 5.0
"""A client that reads too little for this time, while data waits for it, loses its place at the group."""
UNREAD_BYTES = 32 * 1024
"""Maximum unread bytes of a client before writes wait."""
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ClientGone(ConnectionError):
    """The client does not read its response."""


class Reply:
    """One response."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request = request
        self.headers = dict(headers)
        """Headers of the response, also of an error."""
        self.response: web.StreamResponse | None = None
        """The response, once it has started."""
        self._writing = asyncio.Lock()
        self._written = time.monotonic()
        self._comments: asyncio.Task[None] | None = None
        self.answered = False
        """Whether a part of the answer was sent. Comments do not count."""
        self.on_stall: Callable[[bool], bool] = lambda stalled: True
        """Called with True when the client has not read for STALLED_SECONDS; the result False disconnects it. Called with False
        when it reads again."""
        self.events = 0
        """Events of the answer that were sent."""
        self.first_byte: float | None = None
        """Time of the first byte, in seconds of the monotonic clock."""

    @property
    def started(self) -> bool:
        """Whether the status of the response is decided."""
        return self.response is not None

    @property
    def streams(self) -> bool:
        """Whether the response is a stream of events."""
        return self.response is not None and self.response.content_type == "text/event-stream"

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last comment, or since the request came."""
        return time.monotonic() - self._written

    def abort(self) -> None:
        """Aborts the connection, so that the client does not mistake a part for a whole response."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Starts the response, unless it has started. The status is sent with the first part or comment."""
        if self.response is None:
            self.response = _streamed(self._request, status, {**headers, **self.headers})
            try:
                await self.response.prepare(self._request)
            except (ConnectionError, aiohttp.ClientError) as error:
                raise ClientGone("the client closed its connection") from error

    async def write(self, data: bytes) -> None:
        """Sends a part of an answer. Raises ClientGone when the client reads nothing for READ_SECONDS."""
        if not self.answered:
            self.answered, self.first_byte = True, time.monotonic()
        self.events += data.count(b"data: ")
        await self._send(data)

    async def comment(self, data: bytes) -> None:
        """Sends comments of an event stream, which clients ignore."""
        await self._send(data)

    async def _send(self, data: bytes) -> None:
        assert self.response is not None
        transport = self._request.transport
        unread = transport.get_write_buffer_size() if transport is not None else UNREAD_BYTES
        if unread + len(data) < UNREAD_BYTES and not self._writing.locked():
            # Stays below what a transport buffers, so it does not wait, and needs neither a limit nor the lock.
            try:
                await self.response.write(data)
            except (ConnectionError, aiohttp.ClientError) as error:
                raise ClientGone("the client closed its connection") from error
            self._written = time.monotonic()
            return
        async with self._writing:
            stalls = asyncio.get_running_loop().call_later(STALLED_SECONDS, self._stall)
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self.response.write(data)
            except (ConnectionError, aiohttp.ClientError) as error:
                raise ClientGone("the client closed its connection") from error
            except TimeoutError:
                if self._request.transport is not None:
                    self._request.transport.abort()
                raise ClientGone(f"the client read nothing for {READ_SECONDS:g} s") from None
            finally:
                stalls.cancel()
                self.on_stall(False)
            self._written = time.monotonic()

    def _stall(self) -> None:
        if not self.on_stall(True):
            self.abort()

    async def end(self) -> web.StreamResponse:
        """Ends the response."""
        assert self.response is not None
        try:
            await self.response.write_eof()
        except (ConnectionError, aiohttp.ClientError) as error:
            raise ClientGone("the client closed its connection") from error
        return self.response

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> web.StreamResponse:
        """Sends a whole response. As an event, if a stream has started."""
        if self.response is not None:
            await self.write(event_of(body, self._request.path))
            return await self.end()
        self.answered, self.first_byte = True, time.monotonic()
        self.response = web.Response(status=status, headers={**headers, **self.headers}, body=body)
        try:
            await self.response.prepare(self._request)
        except (ConnectionError, aiohttp.ClientError) as error:
            raise ClientGone("the client closed its connection") from error
        return await self.end()

    async def error(self, error: ApiError) -> web.StreamResponse:
        """Ends the response with an error: a status, or an event if the stream has started."""
        body = json.dumps(of_path(error, self._request.path), ensure_ascii=False).encode("utf-8", "replace")
        return await self.whole(error.status, {**error.headers, "Content-Type": "application/json; charset=utf-8"}, body)

    @asynccontextmanager
    async def kept_alive(self, wanted: bool) -> AsyncIterator[None]:
        """While the block runs, writes comments at intervals. ``wanted``: whether the client expects a stream."""
        # Most answers start before a comment is due: they need no task.
        timer = asyncio.get_running_loop().call_later(FIRST_COMMENT_SECONDS, self._start_comments) if wanted else None
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            if self._comments is not None:
                # No comment in the middle of a write.
                async with self._writing:
                    self._comments.cancel()
                await asyncio.gather(self._comments, return_exceptions=True)

    def _start_comments(self) -> None:
        if not self.answered:
            self._comments = asyncio.create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        patience = FIRST_COMMENT_SECONDS
        while not self.answered:
            if self.silent_seconds >= patience:
                await self.begin(200, _STREAM)
                await self.comment(b": waiting\n\n")
                patience = COMMENT_SECONDS
            await asyncio.sleep(max(patience - self.silent_seconds, 0.05))


def _streamed(request: web.Request, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """A response whose parts follow."""
    if request.version < HttpVersion11:
        # The end of the connection ends the response.
        return web.StreamResponse(status=status, headers=headers)
    # A Response sends its headers together with its first part; a StreamResponse needs an additional write for them.
    response = web.Response(status=status, headers=headers)
    response.enable_chunked_encoding()
    return response


def event_of(body: bytes, path: str) -> bytes:
    """An error as the last event of a stream."""
    line = b"data: " + body.replace(b"\n", b" ") + b"\n\n"
    if path.startswith(ANTHROPIC_PATH):
        return b"event: error\n" + line
    if path == "/v1/responses":
        return b"event: error\n" + _response_event(body)
    return line


def _response_event(body: bytes) -> bytes:
    try:
        error = json.loads(body)["error"]
        data = {"type": "error", "code": error.get("code"), "message": error.get("message"), "param": error.get("param")}
    except (AttributeError, KeyError, TypeError, ValueError):
        data = {"type": "error", "code": None, "message": "the request failed", "param": None}
    return b"data: " + json.dumps(data).encode() + b"\n\n"
