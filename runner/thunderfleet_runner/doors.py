"""Who may hold a connection, and for how long: a listener for aiohttp's server that strangers cannot fill.

A connection costs a descriptor from its first packet on, long before TLS or HTTP know who is there, and aiohttp itself lets one
that says nothing stay for an hour. So connections are counted where they are accepted. One that is not at work on a request has
a time to come to one; and when all places are taken, the one that has been without a request longest gives up its place, those
that never had one first: who has something to say gets in, however many hold a place and are silent.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

log = logging.getLogger(__name__)

FIRST_REQUEST_SECONDS = 15.0
"""From a connection's first packet until its first request's headers are there, TLS included."""
NEXT_REQUEST_SECONDS = 90.0
"""From an answer's end until the next request's headers are there. Longer than proxies keep connections by themselves."""
HANDSHAKE_SECONDS = 5.0
FLUSH_SECONDS = 5.0
DESCRIPTORS = 4096
"""What a process that listens wants to be allowed; launchd's own limit is 256."""
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BACKLOG = 128

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def allow_descriptors() -> None:
    """Raises this process's own limit of open files to DESCRIPTORS, or as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Visit(asyncio.Protocol):
    """One connection: everything goes on to aiohttp's own protocol, and the transport is at hand."""

    def __init__(self, doors: "Doors", inner: web.RequestHandler) -> None:
        self.inner = inner
        self.working = False
        self.served = False
        self.opening: asyncio.Task[None] | None = None
        self._doors = doors
        self._transport: asyncio.Transport | None = None
        self._limit = asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS, self.close)

    def close(self) -> None:
        """Ends it soon; an answer that is on its way is not cut."""
        self._limit.cancel()
        if self._transport is None:
            if self.opening is not None:
                self.opening.cancel()
        elif self.served:
            self._transport.close()
            # Who does not take what is left is not waited for.
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)
        else:
            self._transport.abort()

    def begin(self) -> None:
        """A request's headers are there."""
        self.working = True
        self._limit.cancel()

    def rest(self) -> None:
        """A request has been answered."""
        self.working, self.served = False, True
        self._doors.rested(self)
        self._limit = asyncio.get_running_loop().call_later(NEXT_REQUEST_SECONDS, self.close)

    def gone(self) -> None:
        self._limit.cancel()
        self._doors.left(self)

    # --- asyncio's protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        self.inner.eof_received()
        return None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self.inner.connection_lost(exc)


class Doors:
    """The connections of one application, at any number of addresses; ``limit`` is how many there are at most.

    ``mark`` must be the application's outermost middleware: it tells who is at work.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # In the order in which they came to have no request.
        self._visits: dict[_Visit, None] = {}
        self._by_handler: dict[object, _Visit] = {}

    @property
    def open(self) -> int:
        """Connections that are held."""
        return len(self._visits)

    @web.middleware
    async def mark(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        visit = self._by_handler.get(request.protocol)
        if visit is not None:
            visit.begin()
        try:
            return await handler(request)
        finally:
            if visit is not None and visit in self._visits:
                visit.rest()

    async def listen(self, runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Serves ``runner``'s application there until its ``cleanup``. Raises OSError when the port is not to be had."""
        await _Site(self, runner, address, port, tls).start()

    # --- for the site and the visits ---

    def enter(self, server: web.Server) -> _Visit | None:
        """A place for one more connection, that of another if need be; None when all are at work."""
        if len(self._visits) >= self._limit and not self.make_room():
            return None
        visit = _Visit(self, server())
        self._visits[visit] = None
        self._by_handler[visit.inner] = visit
        return visit

    def make_room(self) -> bool:
        """Ends one connection without a request, if there is one; it is not counted any more."""
        idle = [visit for visit in self._visits if not visit.working]
        chosen = next((visit for visit in idle if not visit.served), next(iter(idle), None))
        if chosen is None:
            return False
        chosen.close()
        self.left(chosen)
        return True

    def rested(self, visit: _Visit) -> None:
        self._visits[visit] = self._visits.pop(visit)

    def left(self, visit: _Visit) -> None:
        self._visits.pop(visit, None)
        self._by_handler.pop(visit.inner, None)


class _Site(web.BaseSite):
    """aiohttp's place for a listener: accepts by itself, so that nothing is accepted uncounted."""

    def __init__(self, doors: Doors, runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls, backlog=_BACKLOG)
        assert runner.server is not None
        self._http: web.Server = runner.server
        self._doors = doors
        self._at = (address, port)
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._at[0]}:{self._at[1]}"

    async def start(self) -> None:
        family = socket.AF_INET6 if ":" in self._at[0] else socket.AF_INET
        listener = socket.create_server(self._at, family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        await super().start()
        self._begin(self._accept(listener))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().stop()

    def _begin(self, work: "asyncio._CoroutineLike[None]") -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    end, _ = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno in _OUT_OF_DESCRIPTORS:
                        log.warning("%s: a connection cannot be accepted: %s", self.name, error)
                        self._doors.make_room()
                    await asyncio.sleep(0.1)
                    continue
                visit = self._doors.enter(self._http)
                if visit is None:
                    end.close()
                else:
                    visit.opening = self._begin(self._open(end, visit))

    async def _open(self, end: socket.socket, visit: _Visit) -> None:
        patience = HANDSHAKE_SECONDS if self._tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visit, end, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except BaseException as error:
            visit.gone()
            with contextlib.suppress(OSError):
                end.close()
            # A stranger whom TLS refuses is no news.
            if not isinstance(error, OSError):
                raise
