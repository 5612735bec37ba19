"""Reads request bodies: bounded in bytes, each and all together, and in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from thunderfleet_lib.httpapi.errors import ApiError

MAX_BODY = 16 * 1024 * 1024
"""Maximum bytes of a request body."""
BODY_SECONDS = 60.0
"""Time limit for receiving a request body."""
SHARED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of all bodies that are held at once, without FREE_BYTES of each."""
FREE_BYTES = 64 * 1024
"""Smaller bodies are read however many large ones there are; the number of requests bounds their memory."""


class Bodies:
    """The request bodies that one server holds."""

    def __init__(self) -> None:
        self.held = 0
        """Bytes that count towards SHARED_BYTES."""

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body; its bytes count until the block ends. Raises ApiError when it is too large, too slow or compressed."""
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise ApiError(415, f"send the body without Content-Encoding; {encoding[:64]!r} is not supported")
        if request.content_length is not None and request.content_length > MAX_BODY:
            raise _too_large()
        share = _Share(self)
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await _received(request, share)
            except TimeoutError as error:
                raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from error
            yield body
        finally:
            share.give_back()


class _Share:
    """One body's part of the bytes held."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._taken = 0

    def take(self, total: int) -> None:
        """The body has ``total`` bytes now. Raises ApiError when all bodies together have too many."""
        more = max(total - FREE_BYTES, 0) - self._taken
        if self._bodies.held + more > SHARED_BYTES:
            raise ApiError(
                429,
                f"request bodies of more than {SHARED_BYTES >> 20} MiB in total are being received; retry later",
                type="rate_limit_error",
                code="bodies_full",
                headers={"Retry-After": "5"},
            )
        self._bodies.held += more
        self._taken += more

    def give_back(self) -> None:
        self._bodies.held -= self._taken
        self._taken = 0


async def _received(request: web.Request, share: _Share) -> bytes:
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > MAX_BODY:
            raise _too_large()
        share.take(len(body))
    return bytes(body)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY} bytes")
