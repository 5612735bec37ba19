"""Connections to gateways, before a server that does what a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from thunderfleet_router.http import connections
from thunderfleet_router.http.connections import Connections, GroupLost, Unreachable

from tests.support.ports import claim
from tests.support.waiting import until_async

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A gateway. ``answers`` gets each connection once the head of a request has come."""

    def __init__(self, answers: Answers) -> None:
        self.accepted = 0
        self.ended = 0
        self.heads: list[bytes] = []
        self.url = ""
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            while not writer.is_closing():
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self._answers(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()


@asynccontextmanager
async def _server(answers: Answers) -> AsyncIterator[tuple[Server, Connections]]:
    served, used = Server(answers), Connections()
    listening = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield served, used
    finally:
        await used.close()
        listening.close()
        await until_async(lambda: served.ended == served.accepted)


async def _plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER)


async def _ask(server: Server, used: Connections, body: bytes = b"") -> bytes:
    connection = await used.send(server.url, "/v1/x", {}, body)
    try:
        await connection.head()
        found = b""
        while part := await connection.readany():
            found += part
        return found
    finally:
        used.give_back(server.url, connection)


async def _seen_closed(used: Connections) -> None:
    """Waits until the kept connection has ended here, too."""
    await until_async(lambda: not any(one.open for kept in used._idle.values() for _, one in kept))


async def test_a_connection_is_used_again() -> None:
    async with _server(_plain) as (server, used):
        for _ in range(3):
            assert await _ask(server, used) == b"ok"
        assert server.accepted == 1 and len(server.heads) == 3


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with _server(_plain) as (server, used):
        assert await asyncio.gather(*(_ask(server, used) for _ in range(3))) == [b"ok"] * 3
        assert server.accepted == 3


async def test_a_gateway_that_closes_its_connection_gets_another_one() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        writer.close()

    async with _server(closes) as (server, used):
        assert await _ask(server, used) == b"ok"
        await _seen_closed(used)
        assert await _ask(server, used) == b"ok" and server.accepted == 2


async def test_what_nobody_asked_for_is_not_the_next_answer() -> None:
    async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER + (ANSWER.replace(b"ok", b"no") if server.accepted == 1 else b""))

    async with _server(talks) as (server, used):
        assert await _ask(server, used) == b"ok"
        assert await _ask(server, used) == b"ok" and server.accepted == 2


async def test_what_comes_between_two_requests_ends_the_connection() -> None:
    later = asyncio.Event()

    async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        if server.accepted == 1:
            await later.wait()
            writer.write(ANSWER.replace(b"ok", b"no"))
            await reader.read(1)

    async with _server(talks) as (server, used):
        assert await _ask(server, used) == b"ok"
        later.set()
        await _seen_closed(used)
        assert await _ask(server, used) == b"ok" and server.accepted == 2


async def test_a_response_that_is_not_read_to_its_end_ends_the_connection() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()

    async with _server(endless) as (server, used):
        connection = await used.send(server.url, "/v1/x", {}, b"")
        await connection.head()
        assert await connection.readany()
        used.give_back(server.url, connection)
        await until_async(lambda: server.ended == 1)


async def test_what_is_read_ahead_is_bounded() -> None:
    written = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while written < 100_000_000:
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            written += 1_000_000

    async with _server(floods) as (server, used):
        connection = await used.send(server.url, "/v1/x", {}, b"")
        await connection.head()
        await until_async(lambda: len(connection._arrived) > connections.READ_BYTES)
        held = len(connection._arrived)
        # The loop runs on, and the buffers of the system fill, but no more is read.
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(connection._arrived) == held <= 2 * connections.READ_BYTES and written < 100_000_000
        read = 0
        while part := await connection.readany():
            read += len(part)
        assert read == 100_000_000
        used.give_back(server.url, connection)


async def test_a_large_body_arrives_in_pieces() -> None:
    sizes = []

    async def reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sizes.append(len(await reader.readexactly(5_000_000)))
        writer.write(ANSWER)

    async with _server(reads) as (server, used):
        for _ in range(2):
            assert await _ask(server, used, b"x" * 5_000_000) == b"ok"
        assert sizes == [5_000_000] * 2 and server.accepted == 1


async def test_an_answer_before_the_end_of_the_body_is_passed_on() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        await asyncio.sleep(0)
        if server.accepted == 1:
            # It reads no further.
            await over.wait()
            writer.close()

    over = asyncio.Event()
    async with _server(refuses) as (server, used):
        assert await _ask(server, used, b"x" * 30_000_000) == b"ok"
        # The rest of the body would be the next request.
        assert await _ask(server, used) == b"ok" and server.accepted == 2
        over.set()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", b"SSH-2.0\r\n\r\n"])
async def test_a_connection_that_ends_too_early_is_a_lost_group(sent: bytes) -> None:
    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    async with _server(ends) as (server, used):
        with pytest.raises(GroupLost):
            await _ask(server, used)


async def test_a_gateway_that_is_not_there_is_unreachable() -> None:
    used = Connections()
    with pytest.raises(Unreachable):
        await used.send(f"http://127.0.0.1:{claim(1)[0]}", "/v1/x", {}, b"")
    await used.close()


async def test_a_connection_that_does_not_open_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(Unreachable, match="no connection within"):
        await Connections().send("http://127.0.0.1:1", "/v1/x", {}, b"")


async def test_connections_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_SECONDS", 0.05)
    async with _server(_plain) as (server, used):
        assert await _ask(server, used) == b"ok"
        await until_async(lambda: server.ended == 1)
        await until_async(lambda: not used._idle)


async def test_the_end_closes_connections_in_use_and_kept_ones() -> None:
    async def answers_the_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.accepted == 1:
            writer.write(ANSWER)

    async with _server(answers_the_first) as (server, used):
        kept = await used.send(server.url, "/v1/x", {}, b"")
        await kept.head()
        in_use = await used.send(server.url, "/v1/x", {}, b"")
        await until_async(lambda: len(server.heads) == 2)
        assert await kept.readany() == b"ok"
        used.give_back(server.url, kept)
        await used.close()
        with pytest.raises(GroupLost):
            await in_use.head()
        await until_async(lambda: server.ended == server.accepted == 2)
