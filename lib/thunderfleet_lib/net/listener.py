"""A listener for aiohttp's server with a bound on its connections, which unauthenticated clients cannot exhaust.

A connection costs a file descriptor from its first packet, before TLS or HTTP identify the client, and aiohttp keeps a silent
connection for an hour. This listener counts connections when it accepts them. A connection without a request must send one
within a limit. When the limit is reached, the connection that has been without a request longest is closed: among those that
never sent one, of the client address that has most of them. So a client with a request is always served, no matter how many
silent connections another client opens. Connections can be reserved for known addresses; connections from
other addresses never close one of those. The bytes that a client sends before the server has read its request are limited too;
see ``unclaimed``.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import chain

from aiohttp import web

from thunderfleet_lib.net.unclaimed import HEAD_BYTES, Arrivals, Unclaimed

log = logging.getLogger(__name__)

FIRST_REQUEST_SECONDS = 15.0
"""From the first packet of a connection to the headers of its first request, TLS included."""
NEXT_REQUEST_SECONDS = 90.0
"""From the end of a response to the headers of the next request. Longer than proxies keep connections."""
EARLY_BYTES = 64 * 1024
"""Bytes that a client may send while its request is handled, for servers of APIs; see ``Listener``."""
HANDSHAKE_SECONDS = 5.0
FLUSH_SECONDS = 5.0
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BACKLOG = 128
_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"the headers of the request are not complete after %d bytes; send smaller headers\n" % HEAD_BYTES
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Taker = Callable[[socket.socket, bool], Awaitable[None]]
"""Handles a connection that is not HTTP, until its end. The second argument: whether its address is known."""


class _Connection(asyncio.Protocol):
    """One connection: passes everything on to aiohttp's protocol and keeps the transport at hand."""

    def __init__(self, listener: "Listener", inner: web.RequestHandler, peer: str, known: bool) -> None:
        self.inner = inner
        self.peer = peer
        self.known = known
        """Whether the program knows the address ``peer``."""
        self.busy = False
        """Whether a request is being handled."""
        self.served = False
        """Whether a request has been answered."""
        self.opening: asyncio.Task[None] | None = None
        self._arrivals = Arrivals(listener.early_bytes)
        self._refused = False
        """Whether the headers were too large; what comes is not read any more."""
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._limit = asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS, self.close)

    def close(self) -> None:
        """Closes the connection soon; a response on its way is flushed."""
        self._limit.cancel()
        if self._transport is None:
            if self.opening is not None:
                self.opening.cancel()
        elif self.served:
            self._transport.close()
            # A client that does not read the rest is disconnected.
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)
        else:
            self._transport.abort()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._limit.cancel()
        if self._transport is not None:
            self._transport.abort()

    def request_started(self, request: web.Request | None = None) -> None:
        self.busy = True
        self._limit.cancel()
        if request is not None:
            self._arrivals.request_started(_head_bytes(request), request.content)
            self._bounded()

    def request_ended(self) -> None:
        self.busy, self.served = False, True
        self._arrivals.request_ended()
        self._listener.became_idle(self)
        self._bounded()
        self._limit = asyncio.get_running_loop().call_later(NEXT_REQUEST_SECONDS, self.close)

    def forget(self) -> None:
        self._limit.cancel()
        self._listener.remove(self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        body = self._arrivals.unfinished_body
        if body is None:
            self._arrivals.received(data)
            if self._bounded():
                self.inner.data_received(data)
            return
        before = body.total_bytes
        self.inner.data_received(data)
        self._arrivals.of_body(len(data), body.total_bytes - before)
        self._bounded()

    def _bounded(self) -> bool:
        """Closes connections that hold too much. Returns whether this one may go on."""
        if self._arrivals.too_many:
            if self.busy or self._arrivals.unfinished_body is not None:
                # The client does not wait for the response, or a body has no end.
                self.abort()
                return False
            if not self._refused:
                self._refuse()
        return self._listener.holds(self, self._arrivals.unclaimed) and not self._refused

    def _refuse(self) -> None:
        """Answers headers that are too large. Later bytes are dropped for a while: a reset could overtake the answer."""
        assert self._transport is not None
        self._refused = True
        self._transport.write(_REFUSAL)
        if self._transport.can_write_eof():
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)
        else:
            self.close()

    def eof_received(self) -> bool | None:
        self.inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        self.inner.connection_lost(exc)


class Listener:
    """The connections of one application at any number of addresses, at most ``limit`` in all.

    ``reserved`` of them are for clients whose address is ``known``. ``track`` must be the application's outermost middleware:
    it returns which connections handle a request. A connection whose first byte is that of ``preface`` goes to ``taker``.
    ``early_bytes``: what a client may send while its request is handled and the body is complete; None, as for connections that
    are upgraded, for any number. More than that closes the connection: the client does not wait for the response.
    """

    def __init__(
        self,
        limit: int,
        reserved: int = 0,
        known: Callable[[str], bool] = lambda address: False,
        early_bytes: int | None = None,
    ) -> None:
        self.early_bytes = early_bytes
        self.preface = b""
        self.taker: Taker | None = None
        self._limit = limit
        self._strangers = limit - reserved
        self._known = known
        # Ordered by the time since which they are without a request.
        self._connections: dict[_Connection, None] = {}
        self._by_handler: dict[object, _Connection] = {}
        self._unclaimed: Unclaimed[_Connection] = Unclaimed(known)

    @property
    def open(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def unclaimed(self) -> int:
        """Bytes that clients have sent and that no request has claimed, as far as they count."""
        return self._unclaimed.held

    @web.middleware
    async def track(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The middleware that marks the connection of a request as busy."""
        connection = self._by_handler.get(request.protocol)
        if connection is not None:
            connection.request_started(request)
        try:
            return await handler(request)
        finally:
            if connection is not None and connection in self._connections:
                connection.request_ended()

    async def listen(self, runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serves the application of ``runner`` there until its ``cleanup``. Returns the port. Raises OSError if it is taken."""
        return (await self.open_site(runner, address, port, tls)).port

    async def open_site(self, runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None = None) -> "Site":
        """Like ``listen``, for an address that may be closed by itself."""
        site = Site(self, runner, address, port, tls)
        await site.start()
        return site

    # For the site and the connections.

    def admit(self, server: web.Server, peer: str) -> _Connection | None:
        """A slot for a new connection from an address, closing another if need be; None if all that may be closed are busy."""
        known = self._known(peer)
        full = len(self._connections) >= self._limit
        if not known and not full:
            full = sum(not connection.known for connection in self._connections) >= self._strangers
        if full and not self.close_idle(strangers_only=not known):
            return None
        connection = _Connection(self, server(), peer, known)
        self._connections[connection] = None
        self._by_handler[connection.inner] = connection
        return connection

    def close_idle(self, *, strangers_only: bool = False) -> bool:
        """Closes one connection without a request, of strangers first; it no longer counts. False when there is none."""
        idle = [one for one in self._connections if not (one.busy or (strangers_only and one.known))]
        by_peer = Counter(one.peer for one in idle if not one.served)
        # The first of several, since min() keeps the order of age.
        chosen = min(idle, key=lambda one: (one.known, one.served, 0 if one.served else -by_peer[one.peer]), default=None)
        if chosen is None:
            return False
        chosen.close()
        self.remove(chosen)
        return True

    def holds(self, connection: _Connection, unclaimed: int) -> bool:
        """Sets how many unclaimed bytes the connection holds. Returns False if it is closed because of that."""
        if connection not in self._connections:
            return True
        if not self._unclaimed.put(connection, connection.peer, unclaimed):
            return True
        while (chosen := self._unclaimed.excess(connection.peer)) is not None:
            chosen.abort()
            self.remove(chosen)
            if chosen is connection:
                return False
        return True

    def became_idle(self, connection: _Connection) -> None:
        self._connections[connection] = self._connections.pop(connection)

    def remove(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        self._by_handler.pop(connection.inner, None)
        self._unclaimed.put(connection, connection.peer, 0)


class Site(web.BaseSite):
    """A site of aiohttp that accepts connections itself, so that each is counted when it is accepted."""

    def __init__(self, listener: Listener, runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls, backlog=_BACKLOG)
        assert runner.server is not None
        self._http: web.Server = runner.server
        self._listener = listener
        self._at = (address, port)
        self.port = port
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._bound: socket.socket | None = None

    @property
    def name(self) -> str:
        """The site's URL."""
        return f"{'http' if self._tls is None else 'https'}://{self._at[0]}:{self._at[1]}"

    async def start(self) -> None:
        """Binds the port and starts to accept. Raises OSError."""
        family = socket.AF_INET6 if ":" in self._at[0] else socket.AF_INET
        self._bound = bound = socket.create_server(self._at, family=family, backlog=_BACKLOG)
        bound.setblocking(False)
        self.port = int(bound.getsockname()[1])
        await super().start()
        self._begin(self._accept(bound))

    async def stop(self) -> None:
        """Stops accepting and closes the port."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A task that was cancelled before it ran has not closed it.
        if self._bound is not None:
            self._bound.close()
        await super().stop()

    def _begin(self, work: "asyncio._CoroutineLike[None]") -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with bound:
            while True:
                try:
                    end, address = await loop.sock_accept(bound)
                except OSError as error:
                    if error.errno in _OUT_OF_DESCRIPTORS:
                        log.warning("%s: cannot accept a connection: %s", self.name, error)
                        self._listener.close_idle()
                    await asyncio.sleep(0.1)
                    continue
                connection = self._listener.admit(self._http, str(address[0]))
                if connection is None:
                    end.close()
                else:
                    connection.opening = self._begin(self._open(end, connection))

    async def _open(self, end: socket.socket, connection: _Connection) -> None:
        limit = HANDSHAKE_SECONDS if self._tls is not None else None
        try:
            taker = self._listener.taker
            if taker is not None and await _first_byte(end) == self._listener.preface[:1]:
                connection.request_started()
                try:
                    await taker(end, connection.known)
                finally:
                    connection.forget()
                    end.close()
                return
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, end, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except BaseException as error:
            connection.forget()
            with contextlib.suppress(OSError):
                end.close()
            # A failed handshake is no error of this server.
            if not isinstance(error, OSError):
                raise


def _head_bytes(request: web.Request) -> int:
    """The bytes of a request's first line and headers on the connection."""
    first = len(request.method) + len(request.raw_path) + len("  HTTP/1.1\r\n\r\n")
    return first + len(": \r\n") * len(request.raw_headers) + sum(map(len, chain.from_iterable(request.raw_headers)))


async def _first_byte(sock: socket.socket) -> bytes:
    """The first byte that arrives, which stays in the socket; empty at its end. Raises OSError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            pass
        ready = asyncio.Event()
        loop.add_reader(sock, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(sock)
