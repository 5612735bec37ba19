"""The control port: mutual TLS with the group's one key pair, and the connections that carry orders and reports.

Who has no certificate of the group is refused by TLS, before a byte of HTTP. Liveness is not left to TCP: both ends speak
every second, and silence is counted in ticks of our own, so that a process that was itself stopped does not blame its peer.
"""

import asyncio
import contextlib
import errno
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp
from aiohttp import web
from pydantic import BaseModel
from thunderfleet_crds.group import DRAIN_PATH, STATE_PATH, WAIT_LIMIT_SECONDS, GroupState
from thunderfleet_crds.plan import GROUP_TLS_NAME, Plan
from thunderfleet_lib.listener import Listener

from thunderfleet_runner.net import peers
from thunderfleet_runner.net.relay import RELAY_PATH

log = logging.getLogger(__name__)

JOIN_PATH = "/v1/join"
HANDSHAKE_SECONDS = 5.0
TICK_SECONDS = 0.5
SILENT_TICKS = round(peers.CUT_OFF_SECONDS / TICK_SECONDS)
CONNECTIONS = 64
"""At the control port: peers, their relays, the operator, and strangers until TLS has refused them."""
_MESSAGE_LIMIT = 1 << 20


class CutOff(Exception):
    """The connection ended; the text says how."""


class JoinRefused(Exception):
    """The leader does not accept this supervisor; the text is its reason."""


def server_tls(folder: Path) -> ssl.SSLContext:
    """For listening: only clients with the group's certificate. Raises OSError / ssl.SSLError when the keys are not usable."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "tls.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    return _with_keys(context, folder)


def client_tls(folder: Path) -> ssl.SSLContext:
    """For connecting: only servers with the group's certificate, whatever their address."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "tls.crt"))
    return _with_keys(context, folder)


def _with_keys(context: ssl.SSLContext, folder: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The group's certificate is its own anchor, and it is no CA.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(str(folder / "tls.crt"), str(folder / "tls.key"))
    return context


class Connection:
    """One end of a control connection: sends in order without waiting, and ends itself when the other end is silent."""

    def __init__(self, socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse, peer: str) -> None:
        self.peer = peer
        self._socket = socket
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._silent = 0
        self._cut: str | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def send(self, message: BaseModel) -> None:
        self._outgoing.put_nowait(message.model_dump_json())

    def cut(self, why: str) -> None:
        """Ends the connection soon; ``serve`` raises CutOff with ``why``."""
        if self._cut is None:
            self._cut = why
        if self._reading is not None:
            self._reading.cancel()

    async def flush(self, seconds: float) -> None:
        """Waits until everything was handed to the socket or the connection has ended, at most ``seconds``."""
        waits = [asyncio.ensure_future(self._outgoing.join()), asyncio.ensure_future(self._ended.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def serve(self, on_text: Callable[[str], None], on_tick: Callable[[], None]) -> str:
        """Reads until the connection ends and returns how it did. ``on_tick`` runs every TICK_SECONDS.

        A text that ``on_text`` does not understand (ValueError) ends the connection.
        """
        self._reading = asyncio.create_task(self._read(on_text), name="control-read")
        writing = asyncio.create_task(self._write(), name="control-write")
        ticking = asyncio.create_task(self._tick(on_tick), name="control-tick")
        if self._cut is not None:
            self._reading.cancel()
        tasks = (self._reading, writing, ticking)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ended.set()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, CutOff):
                return self._cut or str(end)
            if isinstance(end, (ConnectionError, ValueError)):
                return self._cut or f"{type(end).__name__}: {' '.join(str(end).split())[:300]}"
            if isinstance(end, Exception):
                raise end
        return self._cut or "closed"

    async def _read(self, on_text: Callable[[str], None]) -> None:
        while True:
            message = await self._socket.receive()
            self._silent = 0
            if message.type is aiohttp.WSMsgType.TEXT:
                on_text(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR:
                raise CutOff(f"{self.peer} sent what is no websocket: {self._socket.exception()}")
            else:
                raise CutOff(f"{self.peer} closed the connection")

    async def _write(self) -> None:
        while True:
            text = await self._outgoing.get()
            await self._socket.send_str(text)
            self._outgoing.task_done()

    async def _tick(self, on_tick: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._silent += 1
            if self._silent > SILENT_TICKS:
                raise CutOff(f"{self.peer} has been silent for {peers.CUT_OFF_SECONDS:g} s")
            on_tick()


class Changes:
    """Wakes whoever waits for the next change of something."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()


def _asked_wait(query: Mapping[str, str]) -> tuple[float, str, str]:
    """Seconds to wait, and the phase and the attempt that the asker knows. Raises ValueError for a wait that is none."""
    try:
        seconds = float(query.get("wait", "0"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_LIMIT_SECONDS:
        raise ValueError(f"wait is a number of seconds from 0 to {WAIT_LIMIT_SECONDS:g}, not {query['wait']}")
    return seconds, query.get("phase", ""), query.get("attempt", "")


async def serve_control(
    plan: Plan,
    rank: int,
    tls: ssl.SSLContext,
    *,
    state: Callable[[], GroupState],
    join: Callable[[peers.Hello, Connection], Awaitable[peers.Refusal | None]],
    drain: Callable[[], None],
    changes: Changes,
    relay: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.AppRunner:
    """Listens on the control port of ``rank``, at the plan's addresses for it; ``cleanup()`` of what it returns ends it.

    ``join`` judges a claim; when it returns None it has run the member's connection to its end. ``changes`` tells of every
    change of the state. ``relay`` answers a peer that carries a hop of the ring. Raises OSError when the port is not to be had
    on the Mac's own address; another that has gone is preflight's to tell of.
    """
    leader = plan.ranks[0]
    elsewhere = f"this is rank {rank}; ask rank 0 at https://{leader.address}:{leader.control_port}"

    def misdirected() -> web.Response:
        return web.json_response({"message": elsewhere, "state": state().model_dump(mode="json", by_alias=True)}, status=421)

    ending = False

    async def get_state(request: web.Request) -> web.Response:
        if rank != 0:
            return misdirected()
        try:
            seconds, phase, attempt = _asked_wait(request.query)
        except ValueError as error:
            return web.json_response({"message": str(error)}, status=400)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ending and ((now := state()).phase.value, str(now.attempt)) == (phase, attempt):
                    await changes.wait()
        return web.Response(text=state().model_dump_json(by_alias=True), content_type="application/json")

    async def post_drain(_: web.Request) -> web.Response:
        if rank != 0:
            return misdirected()
        drain()
        return web.Response(status=202, text=state().model_dump_json(by_alias=True), content_type="application/json")

    async def get_join(request: web.Request) -> web.StreamResponse:
        if rank != 0:
            return misdirected()
        socket = web.WebSocketResponse(max_msg_size=_MESSAGE_LIMIT, timeout=1.0)
        await socket.prepare(request)
        peer = request.remote or "a peer without an address"
        try:
            hello = peers.Hello.model_validate_json(await socket.receive_str(timeout=HANDSHAKE_SECONDS))
        except (ValueError, TypeError, TimeoutError, aiohttp.WSMessageTypeError) as error:
            log.warning("refused %s: no hello: %s", peer, " ".join(str(error).split())[:200])
            await socket.close()
            return socket
        connection = Connection(socket, f"rank {hello.rank} ({hello.node}, {peer})")
        refusal = await join(hello, connection)
        with contextlib.suppress(ConnectionError, TimeoutError):
            if refusal is not None:
                log.warning("refused rank %d of %s: %s", hello.rank, peer, refusal.message)
                await socket.send_str(refusal.model_dump_json())
            await socket.close()
        return socket

    async def end_waits(_: web.Application) -> None:
        nonlocal ending
        ending = True
        changes.tell()

    listener = Listener(CONNECTIONS)
    app = web.Application(middlewares=[listener.track])
    app.on_shutdown.append(end_waits)
    app.add_routes([web.get(STATE_PATH, get_state), web.post(DRAIN_PATH, post_drain), web.get(JOIN_PATH, get_join)])
    app.router.add_get(RELAY_PATH, relay)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    entry = plan.ranks[rank]
    for address in plan.control_addresses(rank):
        try:
            await listener.listen(runner, address, entry.control_port, tls)
        except OSError as error:
            if address == entry.address or error.errno == errno.EADDRINUSE:
                await runner.cleanup()
                raise
            log.warning("the control port is not served at %s: %s", address, error)
    return runner


async def join_group(
    plan: Plan,
    tls: ssl.SSLContext,
    hello: peers.Hello,
    serve: Callable[[Connection], Awaitable[str]],
) -> str:
    """Connects to rank 0 once, at its Mac's own address or else where this rank has reached it, and runs ``serve`` until the
    connection ends; returns how it did.

    Raises JoinRefused with the leader's reason, ConnectionError when rank 0 does not answer or is not of the group.
    """
    told = plan.ranks[hello.rank].coordinator if hello.rank < plan.world_size else None
    addresses = dict.fromkeys(filter(None, (plan.ranks[0].address, told)))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=HANDSHAKE_SECONDS)
    connector = aiohttp.TCPConnector(ssl=tls, limit=1, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        problems = []
        for address in addresses:
            where = f"rank 0 at {address}:{plan.ranks[0].control_port}"
            try:
                socket, answer = await _claim(session, f"https://{address}:{plan.ranks[0].control_port}{JOIN_PATH}", hello)
            except TimeoutError:
                problems.append(f"{where} did not answer within {HANDSHAKE_SECONDS:g} s")
                continue
            except (aiohttp.ClientError, OSError, ValueError, TypeError, aiohttp.WSMessageTypeError) as error:
                problems.append(f"{where} cannot be joined: {' '.join(str(error).split())[:300]}")
                continue
            try:
                if isinstance(answer, peers.Refusal):
                    raise JoinRefused(f"{where} refused: {answer.message}")
                return await serve(Connection(socket, where))
            finally:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    await socket.close()
        raise ConnectionError("; ".join(problems))


async def _claim(
    session: aiohttp.ClientSession, url: str, hello: peers.Hello
) -> tuple[aiohttp.ClientWebSocketResponse, peers.Answer]:
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        socket = await session.ws_connect(
            url,
            server_hostname=GROUP_TLS_NAME,
            max_msg_size=_MESSAGE_LIMIT,
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
        )
        await socket.send_str(hello.model_dump_json())
        return socket, peers.ANSWER.validate_json(await socket.receive_str())
