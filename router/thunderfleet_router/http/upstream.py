"""One attempt at one group: the request to its gateway, and its response passed on while it arrives."""

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import aiohttp
from thunderfleet_lib import logs
from thunderfleet_lib.httpapi import routed
from thunderfleet_lib.httpapi.errors import ApiError

from thunderfleet_router.http.reply import ClientGone, Reply
from thunderfleet_router.pool import Seat

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
SILENT_STREAM_SECONDS: Final = 60.0
"""Gateways send a comment at least every 15 seconds once a stream has started."""
SILENT_SECONDS: Final = 3700.0
"""An answer that is not streamed takes as long as the gateway allows; a group that fails meanwhile shows in its status."""
BUFFER_BYTES: Final = 256 * 1024
"""A response that is not streamed is passed on when it is complete, unless it is larger than this."""
TAIL_BYTES: Final = 512
READ_BYTES: Final = 16 * 1024
"""Bytes that are read ahead of a client; twice as much pauses the gateway. Each slow client uses this much memory."""
_ELSEWHERE: Final = frozenset({401, 403, 421, 429, 503})
"""Statuses of a gateway that rejects the request."""
_PASSED: Final = frozenset({"content-type", "retry-after", "cache-control", "x-accel-buffering", "allow"})
_TOKENS: Final = re.compile(rb": " + routed.TOKENS.encode() + rb": (\d{1,10}),(\d{1,10})\n\n$")
_TOKENS_OF_WHOLE: Final = re.compile(r"(\d{1,10}),(\d{1,10})")
_GROUP_FAILED: Final = f": {routed.GROUP}: {routed.FAILED}".encode()


class Verdict(StrEnum):
    """How an attempt ended."""

    ANSWERED = "answered"
    """The client has its response."""
    CUT = "cut"
    """The client has a part of the response, followed by an error."""
    NOT_TAKEN = "not taken"
    """The group did not start to work on it."""
    FAILED = "failed"
    """The group failed with the request, and only comments were sent to the client."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt. ``error``: what the client gets if there is no other attempt."""

    verdict: Verdict
    status: int = 0
    tokens: int = 0
    error: ApiError | None = None
    reached: bool = True
    """Whether the gateway was reached."""

    @property
    def group_failed(self) -> bool:
        return self.verdict in (Verdict.FAILED, Verdict.CUT)


class GroupLost(Exception):
    """The connection to the group ended too early."""


class Upstream:
    """Reusable connections to gateways."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0, ttl_dns_cache=0)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=("User-Agent", "Accept-Encoding"),
            cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=READ_BYTES,
            # sock_read is not used because it creates a timer for each part of a stream; see Patience.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        )  # fmt: skip

    async def close(self) -> None:
        await self._session.close()

    async def attempt(
        self, seat: Seat, path: str, body: bytes, headers: Mapping[str, str], reply: Reply, *, stream: bool
    ) -> Outcome:
        """Sends the request and passes the response on. Raises ClientGone or CancelledError when the client leaves."""
        loop = asyncio.get_running_loop()
        patience = Patience(SILENT_STREAM_SECONDS if stream else SILENT_SECONDS, loop)
        relay = _Relay(reply, patience)
        try:
            async with asyncio.timeout(None) as limit:
                seat.on_lost = patience.start(lambda: limit.reschedule(loop.time()))
                try:
                    async with self._session.post(
                        seat.group.url + path, data=body, headers=headers, allow_redirects=False
                    ) as answer:
                        return await relay.pass_on(answer)
                finally:
                    # The time from here on depends on the client.
                    patience.end()
        except ClientGone:
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Outcome(Verdict.NOT_TAKEN, error=_unreachable(seat, error), reached=False)
        except (GroupLost, aiohttp.ClientError, TimeoutError, OSError) as error:
            return await relay.lost(seat, error, patience.spent)
        finally:
            seat.on_lost = None


class Clock(Protocol):
    """The methods of an event loop that measure for how long a gateway is silent."""

    def time(self) -> float:
        """The current time in seconds."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls it after ``delay`` seconds."""


class Patience:
    """Limits the silence of a gateway to ``seconds``. Each attempt has one timer, which checks when the gateway last sent."""

    def __init__(self, seconds: float, loop: Clock) -> None:
        self.spent = ""
        """Why the attempt has been ended; empty as long as the gateway is not silent for too long."""
        self._seconds = seconds
        self._loop = loop
        self._waits_since = loop.time()
        self._end: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, end: Callable[[], None]) -> Callable[[], None]:
        """Calls ``end`` once the gateway is silent for too long, unless ``end()`` comes first. Returns its argument."""
        self._end = end
        self._timer = self._loop.call_later(self._seconds, self._look)
        return end

    def end(self) -> None:
        """Ends the watch of the attempt."""
        if self._timer is not None:
            self._timer.cancel()

    async def part(self, content: aiohttp.StreamReader) -> bytes:
        """The next part; empty at the end. The time until the next call depends on the client and does not count."""
        self._waits_since = self._loop.time()
        data = await content.readany()
        self._waits_since = math.inf
        return data

    def _look(self) -> None:
        left = min(self._waits_since - self._loop.time(), 0.0) + self._seconds
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self.spent = f"its gateway sent nothing for {self._seconds:g} s"
        # The attempt may be ending already.
        with contextlib.suppress(RuntimeError):
            self._end()


class _Relay:
    """Passes one response on."""

    def __init__(self, reply: Reply, patience: Patience) -> None:
        self._reply = reply
        self._part = patience.part
        self._tail = b""

    async def pass_on(self, answer: aiohttp.ClientResponse) -> Outcome:
        headers = {
            name: value for name, value in answer.headers.items()
            if name.lower() in _PASSED or (name.startswith("X-Thunderfleet-") and name not in (routed.TOKENS, routed.GROUP))
        }  # fmt: skip
        if answer.headers.get(routed.GROUP) == routed.FAILED:
            raise GroupLost("the group failed")
        if answer.status in _ELSEWHERE:
            return Outcome(Verdict.NOT_TAKEN, answer.status, error=await _error_of(answer))
        if answer.content_type == "text/event-stream":
            return await self._stream(answer, headers)
        return await self._whole(answer, headers)

    async def lost(self, seat: Seat, error: Exception, silence: str) -> Outcome:
        """The result of a failed group. ``silence``: text that the gateway was silent for too long; empty otherwise."""
        reason = silence or str(error) or type(error).__name__
        extra = logs.about(group=seat.group.index)
        log.warning("group %s failed during a request: %s", seat.group.name, reason[:300], extra=extra)
        said = ApiError(
            503, "the group that worked on this request failed; send it again", type="server_error", code="group_failed",
            headers={"Retry-After": "5"},
        )  # fmt: skip
        if not self._reply.answered:
            return Outcome(Verdict.FAILED, error=said)
        if self._reply.streams:
            await self._reply.error(said)
        else:
            # An error after a part of a body would look like the rest of the body.
            self._reply.abort()
        return Outcome(Verdict.CUT, 200, error=said)

    async def _whole(self, answer: aiohttp.ClientResponse, headers: Mapping[str, str]) -> Outcome:
        body = bytearray()
        while data := await self._part(answer.content):
            body += data
            if len(body) > BUFFER_BYTES:
                break
        else:
            await self._reply.whole(answer.status, headers, bytes(body))
            return Outcome(Verdict.ANSWERED, answer.status, _tokens_of_whole(answer))
        await self._reply.begin(answer.status, headers)
        await self._reply.write(bytes(body))
        while data := await self._part(answer.content):
            await self._reply.write(data)
        await self._reply.end()
        return Outcome(Verdict.ANSWERED, answer.status, _tokens_of_whole(answer))

    async def _stream(self, answer: aiohttp.ClientResponse, headers: Mapping[str, str]) -> Outcome:
        part = await self._comments(answer, headers)
        reply = self._reply
        while data := await self._part(answer.content):
            # Whole events only: when the group fails in the middle of one, an error event can follow.
            part = await self._events(part + data)
        if part:
            await self._pass(part)
        failed = _GROUP_FAILED in self._tail
        await reply.end()
        tokens = _TOKENS.search(self._tail)
        total = int(tokens[1]) + int(tokens[2]) if tokens is not None else 0
        return Outcome(Verdict.CUT if failed else Verdict.ANSWERED, answer.status, total)

    async def _events(self, data: bytes) -> bytes:
        """Passes complete events on. Returns the beginning of an incomplete one."""
        end = data.rfind(b"\n\n") + 2 if len(data) < BUFFER_BYTES else len(data)
        if end < 2:
            return data
        await self._pass(data[:end])
        return data[end:]

    async def _pass(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        await self._reply.write(data)

    async def _comments(self, answer: aiohttp.ClientResponse, headers: Mapping[str, str]) -> bytes:
        """Passes the stream on until its first event. Returns the beginning of an incomplete one."""
        waiting = b""
        while data := await self._part(answer.content):
            waiting += data
            comments, waiting = _split(waiting)
            if comments:
                await self._reply.begin(answer.status, headers)
                await self._reply.comment(comments)
            if waiting.startswith((b"event: error", b'data: {"error"')) and len(waiting) < BUFFER_BYTES:
                # The first event may be an error of the group, which another attempt can hide from the client.
                continue
            if waiting and not waiting.startswith(b":"):
                break
        if _GROUP_FAILED in waiting:
            raise GroupLost("the group failed")
        await self._reply.begin(answer.status, headers)
        return await self._events(waiting)


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The comments and empty lines at the beginning, and the rest."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0 or data[start : start + 1] not in (b":", b"\n", b"\r"):
            break
        start = end + 1
    return data[:start], data[start:]


def _tokens_of_whole(answer: aiohttp.ClientResponse) -> int:
    found = _TOKENS_OF_WHOLE.fullmatch(answer.headers.get(routed.TOKENS, ""))
    return int(found[1]) + int(found[2]) if found is not None else 0


async def _error_of(answer: aiohttp.ClientResponse) -> ApiError:
    """The error of a gateway that rejects the request."""
    await answer.content.read(BUFFER_BYTES)
    retry = {"Retry-After": answer.headers.get("Retry-After", "5")}
    if answer.status == 429:
        return ApiError(
            429, "the group's queue is full; retry later", type="rate_limit_error", code="queue_full", headers=retry
        )
    if answer.status in (401, 403):
        sentence = "the group does not accept this router's credential; delete the group's pods so that it is placed again"
        return ApiError(503, sentence, type="server_error", code="not_ready", headers=retry)
    return ApiError(503, "the group does not serve now; retry later", type="server_error", code="not_ready", headers=retry)


def _unreachable(seat: Seat, error: Exception) -> ApiError:
    extra = logs.about(group=seat.group.index)
    log.warning("cannot reach group %s at %s: %s", seat.group.name, seat.group.url, error, extra=extra)
    return ApiError(
        503, "the group does not answer; retry later", type="server_error", code="not_ready", headers={"Retry-After": "5"}
    )
