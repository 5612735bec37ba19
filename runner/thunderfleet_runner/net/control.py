"""The control port: mutual TLS with the group's one key pair, for the operator and the other supervisors.

A client without the group's certificate is refused by TLS, before a byte of HTTP.
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
from thunderfleet_crds.exchange.group import CONNECTIONS_CHARACTERS, DRAIN_PATH, STATE_PATH, WAIT_LIMIT_SECONDS, GroupState
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_lib.net.listener import Listener

from thunderfleet_runner.net import peers
from thunderfleet_runner.net.connection import Connection
from thunderfleet_runner.net.relay import RELAY_PATH

log = logging.getLogger(__name__)

JOIN_PATH = "/v1/join"
HANDSHAKE_SECONDS = 5.0
CONNECTIONS = 64
"""Maximum connections: peers, their relays, the operator, and clients that TLS has yet to refuse."""
MESSAGE_LIMIT = 1 << 20


def server_tls(folder: Path) -> ssl.SSLContext:
    """For listening: accepts only clients with the group's certificate. Raises OSError or ssl.SSLError for unusable keys."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "tls.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    return _with_keys(context, folder)


def client_tls(folder: Path) -> ssl.SSLContext:
    """For connecting: accepts only servers with the group's certificate, at any address."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(folder / "tls.crt"))
    return _with_keys(context, folder)


def _with_keys(context: ssl.SSLContext, folder: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The group's certificate is its own trust anchor and no CA.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(str(folder / "tls.crt"), str(folder / "tls.key"))
    return context


class Changes:
    """Wakes tasks that wait for the next change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wakes all waiting tasks."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Waits for the next change."""
        await self._next.wait()


def _requested_wait(query: Mapping[str, str]) -> tuple[float, str, str]:
    """Seconds to wait, and the phase and attempt that the client has. Raises ValueError for an invalid ``wait``."""
    try:
        seconds = float(query.get("wait", "0"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_LIMIT_SECONDS:
        raise ValueError(f"wait must be a number of seconds from 0 to {WAIT_LIMIT_SECONDS:g}, not {query['wait']}")
    return seconds, query.get("phase", ""), query.get("attempt", "")


class ControlServer:
    """The control port of one rank: the group's state, drain, join and relay.

    ``join`` decides on a claim; when it returns None it has run the member's connection to its end. ``changes`` is notified of
    every change of the state. ``relay`` answers a peer that opens a relay for a hop of the ring. ``connections`` gets what
    identifies the connections of the group's cables, with each poll of the operator that has it.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        *,
        state: Callable[[], GroupState],
        join: Callable[[peers.Hello, Connection], Awaitable[peers.Refusal | None]],
        drain: Callable[[], None],
        changes: Changes,
        relay: Callable[[web.Request], Awaitable[web.StreamResponse]],
        connections: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._state = state
        self._join = join
        self._drain = drain
        self._changes = changes
        self._relay = relay
        self._connections = connections
        self._ending = False

    async def listen(self, tls: ssl.SSLContext) -> web.AppRunner:
        """Listens at the plan's addresses of this rank; ``cleanup()`` of the returned runner ends it.

        Raises OSError when the port cannot be bound at the Mac's own address, or is in use at any. Preflight reports other
        addresses that are lost.
        """
        listener = Listener(CONNECTIONS)
        app = web.Application(middlewares=[listener.track])
        app.on_shutdown.append(self._end_waits)
        app.router.add_get(STATE_PATH, self._get_state)
        app.router.add_post(DRAIN_PATH, self._post_drain)
        app.router.add_get(JOIN_PATH, self._get_join)
        app.router.add_get(RELAY_PATH, self._relay)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        entry = self._plan.ranks[self._rank]
        for address in self._plan.control_addresses(self._rank):
            try:
                await listener.listen(runner, address, entry.control_port, tls)
            except OSError as error:
                if address == entry.address or error.errno == errno.EADDRINUSE:
                    await runner.cleanup()
                    raise
                log.warning("cannot serve the control port at %s: %s", address, error)
        return runner

    async def _end_waits(self, _: web.Application) -> None:
        self._ending = True
        self._changes.notify()

    def _misdirected(self) -> web.Response:
        leader = self._plan.ranks[0]
        text = f"this is rank {self._rank}; use rank 0 at https://{leader.address}:{leader.control_port}"
        body = {"message": text, "state": self._state().model_dump(mode="json", by_alias=True)}
        return web.json_response(body, status=421)

    def _state_json(self, status: int) -> web.Response:
        text = self._state().model_dump_json(by_alias=True)
        return web.Response(status=status, text=text, content_type="application/json")

    async def _get_state(self, request: web.Request) -> web.Response:
        if self._rank != 0:
            return self._misdirected()
        try:
            seconds, phase, attempt = _requested_wait(request.query)
        except ValueError as error:
            return web.json_response({"message": str(error)}, status=400)
        if 0 < len(connections := request.query.get("connections", "")) <= CONNECTIONS_CHARACTERS:
            self._connections(connections)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._ending and ((now := self._state()).phase.value, str(now.attempt)) == (phase, attempt):
                    await self._changes.wait()
        return self._state_json(200)

    async def _post_drain(self, _: web.Request) -> web.Response:
        if self._rank != 0:
            return self._misdirected()
        self._drain()
        return self._state_json(202)

    async def _get_join(self, request: web.Request) -> web.StreamResponse:
        if self._rank != 0:
            return self._misdirected()
        socket = web.WebSocketResponse(max_msg_size=MESSAGE_LIMIT, timeout=1.0)
        await socket.prepare(request)
        peer = request.remote or "a peer without an address"
        try:
            hello = peers.Hello.model_validate_json(await socket.receive_str(timeout=HANDSHAKE_SECONDS))
        except (ValueError, TypeError, TimeoutError, aiohttp.WSMessageTypeError) as error:
            log.warning("refused %s: invalid first message: %s", peer, " ".join(str(error).split())[:200])
            await socket.close()
            return socket
        refusal = await self._join(hello, Connection(socket, f"rank {hello.rank} ({hello.node}, {peer})"))
        with contextlib.suppress(ConnectionError, TimeoutError):
            if refusal is not None:
                log.warning("refused rank %d of %s: %s", hello.rank, peer, refusal.explanation)
                await socket.send_str(refusal.model_dump_json())
            await socket.close()
        return socket
