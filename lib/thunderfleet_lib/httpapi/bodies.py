"""Reads request bodies: bounded in bytes, each and all together, and in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from thunderfleet_lib.httpapi.errors import ApiError
from thunderfleet_lib.httpapi.shares import Full, Scope, Shares

MAX_BODY = 16 * 1024 * 1024
"""Maximum bytes of a request body."""
BODY_SECONDS = 60.0
"""Time limit for receiving a request body."""
SHARED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of all bodies that are held at once, without FREE_BYTES of each."""
FREE_BYTES = 64 * 1024
"""Smaller bodies are read however many large ones there are; the number of requests bounds their memory."""


class Bodies:
    """The request bodies that one server holds.

    ``held``: their bytes without FREE_BYTES of each; SHARED_BYTES in all if it is not given. ``receiving``: the bodies that
    have not arrived completely. They are limited for each caller, so that slow clients block no others.
    """

    def __init__(self, held: Shares | None = None, receiving: Shares | None = None) -> None:
        self._held = held if held is not None else Shares(SHARED_BYTES)
        self._receiving = receiving

    @asynccontextmanager
    async def read(self, request: web.Request, caller: str = "", *, known: bool = True) -> AsyncIterator[bytes]:
        """The body; its bytes count until the block ends. Raises ApiError when it is too large, too slow or compressed.

        ``caller``: who sends it, if callers have shares; ``known``: whether it has a key.
        """
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise ApiError(415, f"send the body without Content-Encoding; {encoding[:64]!r} is not supported")
        if request.content_length is not None and request.content_length > MAX_BODY:
            raise _too_large()
        share = _Share(self._held, caller, known)
        try:
            self._begin(caller, known)
            try:
                body = await _received(request, share)
            finally:
                self._end(caller, known)
            yield body
        finally:
            share.give_back()

    def _begin(self, caller: str, known: bool) -> None:
        """Counts one of the bodies that are being received. Raises ApiError."""
        try:
            if self._receiving is not None:
                self._receiving.take(caller, 1, known=known)
        except Full as error:
            raise _busy(f"{error.held} request bodies {_WHOSE[error.scope]} are being received; retry later") from error

    def _end(self, caller: str, known: bool) -> None:
        if self._receiving is not None:
            self._receiving.give_back(caller, 1, known=known)


class _Share:
    """One body's part of the bytes held."""

    def __init__(self, held: Shares, caller: str, known: bool) -> None:
        self._held = held
        self._caller = caller
        self._known = known
        self._taken = 0

    def take(self, total: int) -> None:
        """The body has ``total`` bytes now. Raises ApiError when there is no room for them."""
        more = max(total - FREE_BYTES, 0) - self._taken
        try:
            self._held.take(self._caller, more, known=self._known)
        except Full as error:
            size = f"{error.held >> 20} MiB in request bodies {_WHOSE[error.scope]}"
            raise _busy(f"this server holds {size}, and no more fit; retry later") from error
        self._taken += more

    def give_back(self) -> None:
        self._held.give_back(self._caller, self._taken, known=self._known)
        self._taken = 0


_WHOSE = {Scope.ALL: "of all clients", Scope.CALLER: "of this client", Scope.STRANGERS: "of clients without an API key"}


def _busy(sentence: str) -> ApiError:
    return ApiError(429, sentence, type="rate_limit_error", code="bodies_full", headers={"Retry-After": "5"})


async def _received(request: web.Request, share: _Share) -> bytes:
    content = request.content
    if content.is_eof() and content.total_bytes <= FREE_BYTES:
        # The body has arrived together with its headers, as most bodies do.
        return content.read_nowait()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _arriving(request, share)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from error


async def _arriving(request: web.Request, share: _Share) -> bytes:
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > MAX_BODY:
            raise _too_large()
        share.take(len(body))
    return bytes(body)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY} bytes")
