"""The bounded listener: silent connections are closed, busy ones are kept, and there is a limit."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_lib.net import listener
from thunderfleet_lib.net.listener import Listener
from thunderfleet_lib.net.unclaimed import ADDRESS_BYTES, HEAD_BYTES

from tests.support.network.connections import HeldConnections
from tests.support.network.ports import claim
from tests.support.waiting import until_async


class Server:
    """Behind a Listener: /now answers, /later waits for the event."""

    def __init__(self, limit: int, reserved: int = 0, known: str = "") -> None:
        self.listener = Listener(limit, reserved, lambda address: address == known)
        self.later = asyncio.Event()
        self.started: asyncio.Queue[None] = asyncio.Queue()
        """An entry for each request that waits for the event."""

    async def __aenter__(self) -> Server:
        app = web.Application(middlewares=[self.listener.track])
        app.add_routes([web.get("/now", self._now), web.get("/later", self._wait)])
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        (self.port,) = claim(1)
        await self.listener.listen(self._runner, "127.0.0.1", self.port)
        self.client = self.client_from("127.0.0.1")
        return self

    def client_from(self, address: str) -> aiohttp.ClientSession:
        """A client that connects from this address."""
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        timeout = aiohttp.ClientTimeout(total=60)
        return aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", connector=connector, timeout=timeout)

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._runner.cleanup()
        assert self.listener.open == 0

    async def _now(self, _: web.Request) -> web.Response:
        return web.Response(text="now")

    async def _wait(self, _: web.Request) -> web.Response:
        self.started.put_nowait(None)
        await self.later.wait()
        return web.Response(text="later")


async def test_a_connection_without_a_request_is_closed_and_a_busy_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(4) as server:
        working = asyncio.create_task(server.client.get("/later"))
        await asyncio.wait_for(server.started.get(), 60)
        # Only now: its request comes within any limit.
        monkeypatch.setattr(listener, "FIRST_REQUEST_SECONDS", 0.3)
        monkeypatch.setattr(listener, "NEXT_REQUEST_SECONDS", 0.3)
        held = HeldConnections("127.0.0.1", server.port)
        await held.open(12)
        assert server.listener.open <= 4
        # Bytes of a header do not extend the limit, and a connection that was answered once has a limit again.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        held.ends.append((reader, writer))
        writer.write(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
        await held.until_all_closed()
        held.drop()
        assert not working.done()
        server.later.set()
        async with await working as answer:
            assert await answer.text() == "later"


async def test_when_all_connections_are_busy_a_new_one_is_refused_at_once() -> None:
    async with Server(2) as server:
        working = [asyncio.create_task(server.client.get("/later")) for _ in range(2)]
        for _ in working:
            await asyncio.wait_for(server.started.get(), 60)
        with pytest.raises(aiohttp.ClientConnectionError):
            await server.client.get("/now")
        server.later.set()
        for task in working:
            (await task).release()
        async with server.client.get("/now") as answer:
            assert answer.status == 200


async def test_strangers_take_no_reserved_place_however_busy_they_are() -> None:
    async with Server(4, 2, known="127.0.0.2") as server, server.client_from("127.0.0.2") as known:
        working = [asyncio.create_task(server.client.get("/later")) for _ in range(2)]
        for _ in working:
            await asyncio.wait_for(server.started.get(), 60)
        with pytest.raises(aiohttp.ClientConnectionError):
            await server.client.get("/now")
        async with known.get("/now") as answer:
            assert answer.status == 200
        server.later.set()
        for task in working:
            (await task).release()


async def test_a_silent_connection_from_a_known_address_outlives_a_flood() -> None:
    """It is in the middle of its handshake, say. Strangers close each other instead."""
    async with Server(4, 2, known="127.0.0.2") as server, server.client_from("127.0.0.2") as known:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
        held = HeldConnections("127.0.0.1", server.port)
        await held.open(40)
        writer.write(b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200")
        writer.close()
        # More known clients than reserved places: idle strangers go.
        waiting = [asyncio.create_task(known.get("/later")) for _ in range(4)]
        for _ in waiting:
            await asyncio.wait_for(server.started.get(), 60)
        held.drop()
        server.later.set()
        for task in waiting:
            (await task).release()


UNFINISHED = b"GET /now HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 6000) for number in range(10))


async def test_unfinished_headers_of_one_address_are_bounded_and_keep_out_nobody() -> None:
    count = 2 * ADDRESS_BYTES // len(UNFINISHED)
    async with Server(2 * count) as server:
        held = HeldConnections("127.0.0.1", server.port)
        try:
            for _ in range(count):
                await held.open(1)
                held.ends[-1][1].write(UNFINISHED)
                await held.ends[-1][1].drain()
            await until_async(lambda: server.listener.open < count and server.listener.unclaimed > ADDRESS_BYTES // 2)
            assert server.listener.unclaimed <= ADDRESS_BYTES
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            held.ends.append((reader, writer))
            # A client with the same address, whose headers come in parts.
            for part in (UNFINISHED[:20_000], UNFINISHED[20_000:], b"Connection: close\r\n\r\n"):
                writer.write(part)
                await writer.drain()
            assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200")
        finally:
            held.drop()
        await until_async(lambda: server.listener.unclaimed == 0)


async def test_unfinished_headers_that_are_too_large_are_refused_with_a_sentence() -> None:
    async with Server(4) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(b"\r\n\r\n" + UNFINISHED)
            await until_async(lambda: server.listener.unclaimed > 0)
            writer.write(b"X: " + b"a" * HEAD_BYTES)
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"send smaller headers" in answer
        finally:
            writer.transport.abort()


async def test_requests_in_one_packet_are_bounded() -> None:
    async with Server(4) as server:
        server.listener.early_bytes = 1000
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            one = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
            writer.write(one * (1000 // len(one)))
            await asyncio.wait_for(server.started.get(), 60)
            writer.write(one * 2)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
        finally:
            writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(one * (1000 // len(one) + 2))
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
        finally:
            writer.transport.abort()
        server.later.set()
