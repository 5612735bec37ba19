"""Memory of a router with a thousand clients that do nothing: connections without a request, and streams without a token.

The router is a process of its own, as is the gateway behind it.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from thunderfleet_lib.host.descriptors import allow_descriptors

from tests.bench import processes
from tests.bench.figures import Bound, Figure
from tests.bench.line import BenchFailed
from tests.bench.routing import simulated

CLIENTS = 1000
AT_ONCE = 100
"""Connections that are opened at the same time: the accept queue holds 128."""
GREETING = b"GET /healthz HTTP/1.1\r\nHost: router\r\n\r\n"
FLOOD_BYTES = 512 * 1024
"""What the gateway sends to each client that reads nothing."""
SMALL_BUFFER = 4096
"""Of the sockets of clients that read nothing, so that the data waits in the router and not in the system."""
SETTLED_SECONDS = 2.0
"""Without growth, after which memory is read."""
CONNECTION_KILOBYTES, STREAM_KILOBYTES, UNREAD_KILOBYTES = 16.0, 64.0, 128.0
"""What one may take: an idle connection, an idle stream with its connection to the gateway, and one that is not read."""

Say = Callable[[str], None]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _request() -> bytes:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


async def _connect(port: int, small: bool) -> Stream:
    end = socket.socket()
    if small:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=end, limit=SMALL_BUFFER if small else 65536)


@contextlib.asynccontextmanager
async def _clients(port: int, begin: Callable[[Stream], Awaitable[object]], *, small: bool = False) -> AsyncIterator[None]:
    """That many connections, on each of which ``begin`` has ended."""
    opened: list[Stream] = []

    async def one() -> None:
        stream = await _connect(port, small)
        opened.append(stream)
        await begin(stream)

    try:
        for _ in range(CLIENTS // AT_ONCE):
            await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        yield
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def _greet(stream: Stream) -> None:
    # A connection that was used is kept for the next request.
    stream[1].write(GREETING)
    await stream[0].readuntil(b"ok\n")


async def _first_token(stream: Stream) -> None:
    stream[1].write(_request())
    await stream[0].readuntil(b'"delta"')


async def _ask(stream: Stream) -> None:
    stream[1].write(_request())
    await stream[1].drain()


def _megabytes(pid: int) -> float:
    used = processes.usage(pid)
    if used is None:
        raise BenchFailed("the router's process is gone")
    return used.rss / 1e6


async def _settled(pid: int) -> float:
    """Its memory, once it has not grown for a while."""
    most, quiet = _megabytes(pid), 0.0
    while quiet < SETTLED_SECONDS:
        await asyncio.sleep(0.25)
        now = _megabytes(pid)
        quiet = quiet + 0.25 if now <= most + 0.5 else 0.0
        most = max(most, now)
    return most


def _measured(
    say: Say,
    what: str,
    kind: tuple[str, ...],
    begin: Callable[[Stream], Awaitable[object]],
    kilobytes: float,
    *,
    small: bool = False,
) -> Figure:
    async def hold(url: str, pid: int) -> tuple[float, float]:
        # What the first request imports and allocates is no matter of connections.
        async with contextlib.AsyncExitStack() as stack:
            stream = await _connect(int(url.rpartition(":")[2]), False)
            stack.callback(stream[1].transport.abort)
            await _greet(stream)
        before = await _settled(pid)
        async with _clients(int(url.rpartition(":")[2]), begin, small=small):
            return before, await _settled(pid)

    with (
        simulated.running("gateway", *kind) as (gateway, _),
        simulated.running("router", str(CLIENTS), gateway) as (router, pid),
    ):
        before, after = asyncio.run(hold(router, pid))
    each = (after - before) * 1000 / CLIENTS
    say(f"{CLIENTS} {what}: {after:.0f} MB, {before:.0f} without, {each:.0f} kB each")
    note = f"{CLIENTS} of them: {after:.0f} MB, {before:.0f} MB without"
    return Figure(f"router, {what}", "kB each", (each,), bound=Bound("<=", kilobytes), note=note)


def figures(say: Say) -> list[Figure]:
    """Idle connections, idle streams, and streams that nobody reads."""
    allow_descriptors()
    return [
        _measured(say, "idle connections", ("4", "1"), _greet, CONNECTION_KILOBYTES),
        _measured(say, "idle streams", ("silent",), _first_token, STREAM_KILOBYTES),
        _measured(say, "streams that are not read", ("flood", str(FLOOD_BYTES)), _ask, UNREAD_KILOBYTES, small=True),
    ]
