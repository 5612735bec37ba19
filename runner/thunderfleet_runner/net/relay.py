"""Hops of a ring without a Thunderbolt cable, relayed by the supervisors over mutual TLS.

MLX neither encrypts nor authenticates a ring. So if no cable connects two ranks, both use only loopback: the rank that connects
does so to its own supervisor, which passes the bytes to the peer's supervisor, which connects to its own rank. Either
supervisor may open the connection between them, so it is enough that one of the two Macs reaches the other.

A relay is transparent: it keeps the order of bytes, the speed of the slower end (nothing is buffered beyond the sockets),
half-closes and losses. It is normal that a connection ends together with its rank. If it is lost while the rank runs, that is a
fault (``broken``).
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import aiohttp
from aiohttp import web
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME, Plan, loopback_of
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.net import redirects

from thunderfleet_runner import faults
from thunderfleet_runner.faults import Fault
from thunderfleet_runner.net.socket_owner import owns

log = logging.getLogger(__name__)

RELAY_PATH = "/v1/relay"
CHUNK = 256 * 1024
"""Maximum bytes of one read and of one message on the connection."""
OPEN_SECONDS = 15.0
"""Time limit for opening the connection between two supervisors, from the start of the ranks."""
DIAL_SECONDS = 5.0
RETRY = Backoff(0.01, 0.2, factor=1.5)
LOST_SECONDS = 3
"""A connection whose peer acknowledges nothing for this long is lost."""
_END = "end"
"""Text message that marks the end of one direction."""
_DONE = "the rank has ended"
_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class RelayLost(ConnectionError):
    """The connection between two supervisors ended while their ranks run; the text describes how."""


class RelayRefused(ConnectionError):
    """There is no connection between two supervisors; the text has the reason."""


class Relays:
    """One supervisor's relays in one attempt: at most the hop out of its rank and the hop into it."""

    def __init__(self, plan: Plan, rank: int, attempt: int, tls: ssl.SSLContext, broken: Callable[[Fault], None]) -> None:
        self._plan = plan
        self._rank = rank
        self._attempt = attempt
        self._tls = tls
        self._broken = broken
        self._pid: Callable[[], int | None] = lambda: None
        self._server: asyncio.Server | None = None
        self._dialled: asyncio.Future[_Local] = asyncio.get_running_loop().create_future()
        self._listens = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken: set[int] = set()
        self._closed = False
        self._lost = False
        """Whether the hop out of our rank has ended: a rank that dials it now gets a reset."""

    @property
    def out(self) -> int | None:
        """The rank that ours dials, when that hop is relayed."""
        following = (self._rank + 1) % self._plan.world_size
        return following if self._plan.ranks[following].relay is not None else None

    async def start(self, take_port: Callable[[str], int], listens: int, pid: Callable[[], int | None]) -> str | None:
        """Listens for our rank and opens the connections that are ours to open.

        Returns the ``ip:port`` for our rank to dial, None when it dials its peer directly. ``listens`` is our rank's own port,
        ``pid`` the process id of our rank once it runs. Raises OSError when the port cannot be bound, and what ``take_port``
        raises.
        """
        self._listens, self._pid = listens, pid
        target: str | None = None
        if self.out is not None:
            address = loopback_of(self._plan.ranks[self._rank].address)
            port = take_port(address)
            self._server = await asyncio.start_server(self._connected, address, port, limit=CHUNK, backlog=16)
            target = f"{address}:{port}"
        for hop in {self.out, self._rank} - {None}:
            assert hop is not None
            if self._plan.ranks[hop].relay is not None and self._plan.relay_ends(hop)[0] == self._rank:
                self._begin(self._open(hop), f"relay-{hop}")
        return target

    async def close(self) -> None:
        """Ends all relays; when it returns, no socket and no task is left."""
        self._closed = True
        if self._server is not None:
            await _stop(self._server)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._dialled.done() and not self._dialled.cancelled():
            # The connection was accepted, although the peer may never have opened its side.
            self._dialled.result().end(clean=False)
        self._dialled.cancel()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- our rank's side ---

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local = _Local(reader, writer)
        if self._closed:
            local.end(clean=False)
            return
        task = self._begin(self._accept(local), "relay-accept")
        # Not in the task: a task that is cancelled before its first step runs no code, and nothing else would close the
        # connection of a task that fails.
        task.add_done_callback(lambda done: self._accepted(done, local))

    def _accepted(self, done: "asyncio.Task[None]", local: "_Local") -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.error("closed a connection to the relay: internal error: %r", error)
        if error is not None or done.cancelled():
            local.end(clean=False)

    async def _accept(self, local: "_Local") -> None:
        """A connection to our port on loopback: accepted once, and only from our rank."""
        peer, here = local.writer.get_extra_info("peername"), local.writer.get_extra_info("sockname")
        pid = self._pid()
        # A client that has left by now has no address.
        known: bool | None = False
        if pid is not None and peer is not None and not self._closed:
            known = await asyncio.to_thread(owns, pid, peer, here)
        if self._lost:
            local.end(clean=False)
            return
        if known is False or self._dialled.done() or self._closed:
            log.warning("closed a connection from %s to the relay: only the rank of this pod may connect", peer)
            local.end(clean=False)
            return
        self._dialled.set_result(local)
        if self._server is not None:
            await _stop(self._server)

    async def _local(self, hop: int) -> "_Local":
        """Our rank's end of the hop into rank ``hop``."""
        if hop != self._rank:
            return await asyncio.shield(self._dialled)
        address = self._plan.ranks[self._rank].ring_address
        failures = 0
        while True:
            try:
                return _Local(*await asyncio.open_connection(address, self._listens, limit=CHUNK))
            except OSError:
                # Our rank does not listen yet. The leader enforces the deadline.
                failures += 1
                await asyncio.sleep(RETRY.seconds(failures))

    # --- the connection between the supervisors ---

    async def _open(self, hop: int) -> None:
        """Opens the connection for the hop into rank ``hop``, and relays until it ends."""
        dialled = self._plan.relay_ends(hop)[1]
        relay, peer = self._plan.ranks[hop].relay, self._plan.ranks[dialled]
        assert relay is not None
        where = f"rank {dialled} ({peer.node}) at {relay.address}:{peer.control_port}"
        url = f"https://{relay.address}:{peer.control_port}{RELAY_PATH}"
        query = {
            "uid": self._plan.uid,
            "index": self._plan.index,
            "epoch": self._plan.epoch,
            "attempt": self._attempt,
            "hop": hop,
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=DIAL_SECONDS)
        async with aiohttp.ClientSession(
            timeout=timeout,
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=1, force_close=True),
            trace_configs=[redirects.refused()],
        ) as session:
            try:
                channel = await self._dial(session, url, {key: str(value) for key, value in query.items()}, where)
                await self._carry(hop, channel, where)
            except RelayRefused as error:
                self._say(faults.relay_refused(str(error)))
            except RelayLost as error:
                self._say(faults.relay_lost(f"the relay to {where} was lost: {error}"))
            finally:
                self._over(hop, clean=False)

    async def _dial(
        self, session: aiohttp.ClientSession, url: str, query: Mapping[str, str], where: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Connects, trying again while the peer is not in this attempt yet. Raises RelayRefused or RelayLost."""
        failures, why, cut = 0, "no answer", ""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                while True:
                    try:
                        return await session.ws_connect(
                            url,
                            params=query,
                            server_hostname=GROUP_TLS_NAME,
                            max_msg_size=2 * CHUNK,
                            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                        )
                    except aiohttp.WSServerHandshakeError as error:
                        why = _answer(error)
                        if error.status == TAKEN and cut:
                            # The peer accepted the request whose response did not arrive.
                            raise RelayLost(f"the connection ended while it was opened ({cut})") from error
                        if error.status != NOT_YET:
                            raise RelayRefused(f"{where} refused the relay: {why}") from error
                    except (aiohttp.ClientError, OSError, AssertionError) as error:
                        # aiohttp asserts that a connection is still there when it has read the response.
                        cut = why = " ".join(str(error).split())[:300] or type(error).__name__
                    failures += 1
                    await asyncio.sleep(RETRY.seconds(failures))
        except TimeoutError as error:
            check = "check that these Macs reach each other over the LAN"
            raise RelayRefused(f"cannot open the relay to {where} within {OPEN_SECONDS:g} s: {why}; {check}") from error

    def refusal(self, query: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and reason when a peer's relay is refused; None when it is accepted."""
        plan = self._plan
        mine = {"uid": plan.uid, "index": str(plan.index), "epoch": str(plan.epoch)}
        if any(query.get(key) != value for key, value in mine.items()):
            return 403, f"the request is not for epoch {plan.epoch} of group {plan.uid}/{plan.index}"
        hops = [entry.rank for entry in plan.ranks if entry.relay and plan.relay_ends(entry.rank)[1] == self._rank]
        if query.get("hop", "") not in map(str, hops):
            return 403, f"rank {self._rank} is not an end of that hop"
        if query.get("attempt") != str(self._attempt) or self._closed:
            return NOT_YET, f"the request is not for a running attempt; the last one here is {self._attempt}"
        if int(query["hop"]) in self._taken:
            return TAKEN, "that hop is already relayed"
        return None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A peer's supervisor opens a hop: relays it to its end."""
        if (refused := self.refusal(request.query)) is not None:
            return not_taken(*refused)
        hop = int(request.query["hop"])
        self._taken.add(hop)
        channel = web.WebSocketResponse(max_msg_size=2 * CHUNK, timeout=1.0, compress=False)
        try:
            await channel.prepare(request)
        except BaseException:
            # The peer left before anything was connected, and may connect again.
            self._taken.discard(hop)
            raise
        opener = self._plan.relay_ends(hop)[0]
        where = f"rank {opener} ({self._plan.ranks[opener].node}, {request.remote})"
        carried = self._begin(self._carry(hop, channel, where), f"relay-{hop}")
        try:
            await asyncio.wait({carried})
        finally:
            carried.cancel()
            self._over(hop, clean=False)
        return channel

    async def _carry(self, hop: int, channel: _Socket, where: str) -> None:
        """Both directions of one hop, until both have ended or one is lost."""
        _watch(channel.get_extra_info("socket"))
        found = asyncio.ensure_future(self._local(hop))
        ended = asyncio.Event()
        # Reads from the peer from the start, because it may leave before our rank has connected.
        inward = asyncio.create_task(_inward(channel, found, ended))
        outward = asyncio.create_task(_outward(channel, found))
        both: asyncio.Future[Any] = asyncio.gather(outward, ended.wait())
        clean = False
        try:
            await asyncio.wait((inward, both), return_when=asyncio.FIRST_COMPLETED)
            for end in (inward, both):
                if end.done():
                    end.result()
            clean = True
        except RelayLost as error:
            self._say(faults.relay_lost(f"the relay to {where} was lost: {error}"))
        except OSError as error:
            # Our rank's own socket, or the peer's rank: its supervisor reports that itself.
            log.debug("the relay to %s has ended: %s", where, error)
        finally:
            for task in (inward, outward, both, found):
                task.cancel()
            # Before the next await: close() and the server of the peer's request may both cancel this.
            self._over(hop, clean=clean)
            if hop != self.out and found.done():
                _end(found, clean)
            elif hop != self.out:
                found.add_done_callback(lambda done: _end(done, clean))
            await asyncio.gather(inward, outward, both, return_exceptions=True)
            with contextlib.suppress(ConnectionError, TimeoutError, RuntimeError):
                await channel.close(message=_DONE.encode())

    def _over(self, hop: int, *, clean: bool) -> None:
        """A hop has ended, at whatever stage. The rank that connects to it must not wait for its peer.

        The rank's connection may have been accepted although nothing has read from it yet, so the result of ``_local`` is not
        used.
        """
        if hop != self.out or self._lost:
            return
        self._lost = True
        if self._dialled.done() and not self._dialled.cancelled():
            self._dialled.result().end(clean)

    def _say(self, fault: Fault) -> None:
        if not self._closed:
            self._broken(fault)


async def _stop(server: asyncio.Server) -> None:
    """Stops listening; every connection that was accepted has been handed over.

    asyncio makes the transport of a connection one turn of its loop after it was accepted, and drops the connection without
    closing it if the server is closed by then.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()


NOT_YET = 425
"""HTTP status Too Early: the peer is not in that attempt yet, or no longer."""
TAKEN = 409
"""HTTP status Conflict: a connection for that hop was accepted before."""


WHY_HEADER = "Thunderfleet-Refused"
"""Why a relay is refused. A client that requests a WebSocket gets no body."""
WHY_CHARACTERS = 300


def not_taken(status: int, why: str) -> web.Response:
    """The response to a peer whose relay is refused."""
    return web.json_response({"message": why}, status=status, headers={WHY_HEADER: why})


def _answer(error: aiohttp.WSServerHandshakeError) -> str:
    """What a peer that refuses has answered."""
    why = error.headers.get(WHY_HEADER, "")[:WHY_CHARACTERS] if error.headers is not None else ""
    return f"it answered {error.status}{f' ({why})' if why else ''}"


class _Local:
    """A connection to our rank, on loopback."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def end(self, clean: bool) -> None:
        """Closes after everything is written, or resets at once so that the rank notices the loss."""
        if clean:
            self.writer.close()
        else:
            self.writer.transport.abort()


def _end(found: "asyncio.Future[_Local]", clean: bool) -> None:
    if not found.cancelled() and not found.exception():
        found.result().end(clean)


async def _outward(channel: _Socket, found: "asyncio.Future[_Local]") -> None:
    """Sends our rank's bytes to the peer, then their end. Raises RelayLost, or OSError when our rank's socket fails."""
    local = await asyncio.shield(found)
    while data := await local.reader.read(CHUNK):
        try:
            await channel.send_bytes(data)
        except (ConnectionError, RuntimeError, aiohttp.ClientError) as error:
            raise RelayLost(str(error) or type(error).__name__) from error
    with contextlib.suppress(ConnectionError, RuntimeError, aiohttp.ClientError):
        await channel.send_str(_END)


async def _inward(channel: _Socket, found: "asyncio.Future[_Local]", ended: asyncio.Event) -> None:
    """Writes the peer's bytes to our rank; sets ``ended`` at their end.

    Never returns: raises RelayLost, or OSError when a rank has exited.
    """
    while True:
        message = await channel.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            local = found.result() if found.done() else await asyncio.shield(found)
            local.writer.write(message.data)
            await local.writer.drain()
        elif message.type is aiohttp.WSMsgType.TEXT:
            local = await asyncio.shield(found)
            local.writer.write_eof()
            ended.set()
        elif message.type is aiohttp.WSMsgType.CLOSE and message.extra == _DONE:
            raise ConnectionResetError("the peer has closed it")
        else:
            raise RelayLost(f"the connection ended ({message.type.name})")


def _watch(end: socket.socket | None) -> None:
    """Lets the system detect a peer that has disappeared.

    Messages of our own would not work: they would wait behind bytes that a computing rank does not read.
    """
    if end is None:
        return
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    if sys.platform == "darwin":
        keep_idle, connection_drop_time = 0x10, 0x80  # TCP_KEEPALIVE, TCP_RXT_CONNDROPTIME
        options += [(socket.IPPROTO_TCP, keep_idle, 1), (socket.IPPROTO_TCP, connection_drop_time, LOST_SECONDS)]
    else:
        options += [
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_SECONDS * 1000),
        ]
    options += [(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, LOST_SECONDS - 1)]
    for level, name, value in options:
        with contextlib.suppress(OSError):
            end.setsockopt(level, name, value)
