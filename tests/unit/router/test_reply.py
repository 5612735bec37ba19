"""The response to one client: what is sent when, over a real connection."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from thunderfleet_router.http import reply
from thunderfleet_router.http.reply import Reply

STREAM = {"Content-Type": "text/event-stream"}


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def _answered(handle: Callable[[Reply, socket.socket], Awaitable[None]], version: bytes = b"1.1") -> bytes:
    """What a client gets that sends one request, which ``handle`` answers; it has the client's end of the connection too."""
    failed: list[BaseException] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        one = Reply(request, {"X-Request-Id": "r1"})
        try:
            await handle(one, client)
        except BaseException as error:
            failed.append(error)
            raise
        await one.end()
        assert one.response is not None
        return one.response

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server:
        with socket.create_connection((server.host, server.port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, b"GET / HTTP/" + version + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
            got = b""
            while part := await loop.sock_recv(client, 65536):
                got += part
            if failed:
                raise failed[0]
            return got


async def test_the_headers_of_a_stream_are_sent_with_its_first_part() -> None:
    async def handle(one: Reply, client: socket.socket) -> None:
        await one.begin(200, STREAM)
        with pytest.raises(BlockingIOError):
            client.recv(1, socket.MSG_PEEK)
        await one.write(b"data: 1\n\n")
        assert client.recv(65536, socket.MSG_PEEK).endswith(b"data: 1\n\n\r\n")

    got = await _answered(handle)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n") and b"X-Request-Id: r1\r\n" in got and got.endswith(b"\r\n0\r\n\r\n")


async def test_a_client_without_chunks_gets_a_stream_that_ends_with_its_connection() -> None:
    async def handle(one: Reply, _: socket.socket) -> None:
        await one.begin(200, STREAM)
        await one.write(b"data: 1\n\n")
        await one.write(b"data: 2\n\n")

    head, _, body = (await _answered(handle, b"1.0")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n") and b"Content-Length" not in head and b"Transfer-Encoding" not in head
    assert body == b"data: 1\n\ndata: 2\n\n"


async def test_a_comment_ends_the_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(reply, "time", clock)

    async def handle(one: Reply, _: socket.socket) -> None:
        await one.begin(200, STREAM)
        for _turn in range(3):
            clock.now += 100.0
            assert one.silent_seconds == 100.0
            await one.comment(b": waiting\n\n")
            assert one.silent_seconds == 0.0

    assert (await _answered(handle)).count(b": waiting") == 3


async def test_an_answer_before_the_first_comment_needs_no_task_for_comments() -> None:
    async def handle(one: Reply, _: socket.socket) -> None:
        before = asyncio.all_tasks()
        async with one.kept_alive(True):
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
            await one.begin(200, STREAM)
            await one.write(b"data: 1\n\n")

    assert b": waiting" not in await _answered(handle)
