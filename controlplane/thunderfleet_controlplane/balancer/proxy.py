"""Forwards connections to an API server, with limits on their number and on every wait.

All clients are on this Mac, and any of its users may connect. At the limit, a new connection replaces one
that no API server has answered yet, or else the one that has been silent longest. So a client that opens many connections
cannot block others for long.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from thunderfleet_controlplane.balancer.servers import ApiServer, order

log = logging.getLogger(__name__)

LIMIT = 1024
CHUNK = 65536
FIRST_SECONDS = 15.0
"""How long a client may take to send its first bytes. Until then, no API server is contacted."""
CONNECT_SECONDS = 3.0
REACH_SECONDS = 20.0
ANSWER_SECONDS = 4.0
"""How long a check may take."""
LINGER_SECONDS = 10.0
"""How long one direction may continue after the other has ended."""
STUCK_SECONDS = 60.0
"""How long an end may take to accept bytes."""
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Keepalive options, with the names of Linux and macOS: a Mac that loses power does not close its connections."""


class Pool:
    """The API servers, and which of them fail. ``local``: the API server of this Mac."""

    def __init__(self, local: ApiServer | None = None) -> None:
        self.local = local
        self.servers: tuple[ApiServer, ...] = ()
        self.failing: set[ApiServer] = set()
        self.current: ApiServer | None = None
        self.cut: Callable[[ApiServer], None] = lambda server: None
        """Ends the connections to one API server."""

    @property
    def every(self) -> tuple[ApiServer, ...]:
        """All API servers, including this Mac's own."""
        return tuple(dict.fromkeys(one for one in (self.local, *self.servers) if one is not None))

    def use(self, servers: Sequence[ApiServer]) -> None:
        """Use another list of API servers."""
        self.servers = tuple(servers)
        self.failing.intersection_update(self.every)

    def order(self) -> list[ApiServer]:
        """The order in which to try the API servers."""
        return order(self.servers, self.failing, self.local, self.current)

    def report(self, server: ApiServer, *, works: bool) -> None:
        """Record the result of a check or a connection."""
        if works and server in self.failing:
            self.failing.discard(server)
            log.info("API server %s is ready", server)
        elif not works and server not in self.failing:
            self.failing.add(server)
            log.warning("API server %s fails; others are used if there are any", server)


class _Connection:
    """One connection of a client. ``active``: when bytes last went through it, by the loop's clock."""

    def __init__(self, task: asyncio.Task[None], now: float) -> None:
        self.task = task
        self.active = now
        self.answered = False
        self.server: ApiServer | None = None


class Balancer:
    """The connections through ``pool``."""

    def __init__(self, pool: Pool, limit: int = LIMIT) -> None:
        self.pool = pool
        self._limit = limit
        self._connections: set[_Connection] = set()
        pool.cut = self.cut

    @property
    def open(self) -> int:
        """Number of connections."""
        return len(self._connections)

    def cut(self, server: ApiServer) -> None:
        """End the connections to an API server that fails, so that their clients connect again instead of waiting."""
        for one in self._connections:
            if one.server == server:
                one.task.cancel()

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections until cancelled."""
        server = await asyncio.start_server(self._client, sock=listening, limit=CHUNK)
        try:
            # serve_forever waits for the end of all connections before it lets itself be cancelled.
            await asyncio.Event().wait()
        finally:
            server.close()
            for one in list(self._connections):
                one.task.cancel()
            await asyncio.gather(*(one.task for one in self._connections), return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._limit:
            self._make_room()
        connection = _Connection(task, self._now())
        self._connections.add(connection)
        try:
            await self._carry(connection, reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            # Also for an aborted connection, since no other task awaits this one.
            pass
        finally:
            self._connections.discard(connection)
            writer.transport.abort()

    def _make_room(self) -> None:
        chosen = min(self._connections, key=lambda one: (one.answered, one.active))
        self._connections.discard(chosen)
        chosen.task.cancel()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _carry(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(FIRST_SECONDS):
            first = await reader.read(CHUNK)
        if not first:
            return
        connection.server, (upstream, onward) = await self._reach()
        try:
            onward.write(first)
            for one in (writer, onward):
                keep_alive(one)

            def answered() -> None:
                connection.answered = True

            await self._both(connection, (reader, onward), (upstream, writer), answered)
        finally:
            onward.transport.abort()

    async def _both(
        self,
        connection: _Connection,
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        answered: Callable[[], None],
    ) -> None:
        """Copy both directions until one has ended, then the rest of the other."""
        tasks = [
            asyncio.ensure_future(self._copy(connection, *there, lambda: None)),
            asyncio.ensure_future(self._copy(connection, *back, answered)),
        ]
        try:
            done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if left:
                await asyncio.wait(left, timeout=LINGER_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _copy(
        self, connection: _Connection, source: asyncio.StreamReader, target: asyncio.StreamWriter, seen: Callable[[], None]
    ) -> None:
        while data := await source.read(CHUNK):
            connection.active = self._now()
            seen()
            target.write(data)
            async with asyncio.timeout(STUCK_SECONDS):
                await target.drain()
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()

    async def _reach(self) -> tuple[ApiServer, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection to the first API server that accepts one. Raises OSError and TimeoutError."""
        async with asyncio.timeout(REACH_SECONDS):
            for server in self.pool.order():
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        ends = await asyncio.open_connection(server.host, server.port, limit=CHUNK)
                except (OSError, TimeoutError, ValueError):
                    self.pool.report(server, works=False)
                    continue
                self.pool.current = server
                return server, ends
        raise OSError("no API server accepts connections")


async def accepts(server: ApiServer) -> bool:
    """Whether the API server accepts a connection."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port)
    # ValueError: a name that DNS cannot have.
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Enable keepalive, so that the system notices a lost peer."""
    end = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                end.setsockopt(socket.IPPROTO_TCP, option, value)
