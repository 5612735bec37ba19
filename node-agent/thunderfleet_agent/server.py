"""The agent's two HTTP servers: one for other agents, one for the kubelet and Prometheus.

Other agents use mutual TLS with the certificates in the NodeProfiles; health and metrics are plain HTTP on a port of their own.
The server listens on each of this Mac's addresses as they appear and disappear, never on 0.0.0.0.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web
from thunderfleet_lib.net.listener import Listener, Site

from thunderfleet_agent.copies import wire
from thunderfleet_agent.copies.server import CopyServer
from thunderfleet_agent.measure.session import channel
from thunderfleet_agent.measure.session.messages import MAX_MESSAGE_BYTES
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.peers.dial import NODE_HEADER, PATH

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
# Sessions at once; one of them measures, the others are refused as busy.
MAX_SESSIONS = 16
# Connections at once, each up to 0.3 MiB. Half of them are for the addresses of other agents, or for the kubelet's probes.
AGENT_CONNECTIONS = 128
STATUS_CONNECTIONS = 32

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
Measure = Callable[[channel.Channel, str, str, str], Awaitable[None]]


class Endpoint:
    """One application at one port of several addresses."""

    def __init__(self, pages: Mapping[str, Page], listener: Listener, context: ssl.SSLContext | None = None) -> None:
        application = web.Application(middlewares=[listener.track])
        for path, page in pages.items():
            application.router.add_get(path, page)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        self._listener = listener
        self._context = context
        self._sites: dict[str, Site] = {}
        self._refused: set[str] = set()
        self.port = 0

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._listener.open

    async def start(self, address: str, port: int) -> None:
        """Listens on the first address; port 0 picks a free one. Raises OSError."""
        await self._runner.setup()
        site = await self._listener.open_site(self._runner, address, port, self._context)
        self.port, self._sites[address] = site.port, site

    async def serve(self, addresses: Iterable[str]) -> None:
        """Listens on these addresses, and no longer on others.

        An address that fails (it has just disappeared, or its port is in use) is tried again with the next call.
        """
        wanted = set(addresses)
        for address in set(self._sites) - wanted:
            await self._sites.pop(address).stop()
        for address in sorted(wanted - set(self._sites)):
            try:
                self._sites[address] = await self._listener.open_site(self._runner, address, self.port, self._context)
            except OSError as error:
                if address not in self._refused:
                    log.warning("cannot listen on %s port %d: %s", address, self.port, error.strerror or error)
                self._refused.add(address)
                continue
            self._refused.discard(address)
        self._refused &= wanted

    async def close(self) -> None:
        """Stops listening. Safe after a ``start`` that failed."""
        await self._runner.cleanup()


class Server:
    """Listens between ``start`` and ``close``."""

    def __init__(
        self,
        address: str,
        node: str,
        metrics: Metrics,
        trouble: Callable[[], str | None],
        accepts: Callable[[str, str], Awaitable[bool]],
        knows: Callable[[str], bool] = lambda address: False,
        greeted: Callable[[str, str], None] = lambda node, address: None,
    ) -> None:
        """``trouble`` returns why this agent should be restarted; None if it works.

        ``accepts`` returns whether the NodeProfile of a node shows a certificate with that SHA-256. ``knows``: whether an
        address belongs to another agent; connections are reserved for those. ``greeted`` receives accepted nodes and their
        addresses.
        """
        self._address = address
        self._node = node
        self._metrics = metrics
        self._trouble = trouble
        self._accepts = accepts
        self._knows = knows
        self._greeted = greeted
        self._others: frozenset[str] = frozenset()
        self._agents: Endpoint | None = None
        self._status: Endpoint | None = None
        self._sessions = 0
        self.copies: CopyServer | None = None
        """Handles connections for copies; set before ``start``."""
        self.measure: Measure | None = None
        """Handles a session: the channel, the peer's node, and the socket's address here and there."""

    async def start(self, port: int, metrics_port: int, context: ssl.SSLContext) -> tuple[int, int]:
        """Starts listening and returns both ports (0 picks a free one). Raises OSError."""
        listener = Listener(AGENT_CONNECTIONS, AGENT_CONNECTIONS // 2, lambda address: self._knows(address))
        if self.copies is not None:
            listener.preface, listener.taker = wire.PREFACE, self.copies.take
        self._agents = Endpoint({PATH: self._hello, channel.PATH: self._measure}, listener, context)
        await self._agents.start(self._address, port)
        # The kubelet's probes come from this Mac's own address.
        listener = Listener(STATUS_CONNECTIONS, STATUS_CONNECTIONS // 2, lambda address: address == self._address)
        self._status = Endpoint({"/healthz": self._healthz, "/metrics": self._text}, listener)
        await self._status.start(self._address, metrics_port)
        return self._agents.port, self._status.port

    async def listen_on(self, addresses: Iterable[str]) -> None:
        """Listens for agents on these addresses too, and no longer on others."""
        self._others = frozenset(addresses)
        if self._agents is not None:
            await self._agents.serve(self._others | {self._address})

    async def move(self, address: str) -> None:
        """Takes a new address for this Mac. Listens there, for agents and for metrics."""
        self._address = address
        await self.listen_on(self._others)
        if self._status is not None:
            await self._status.serve({address})

    async def close(self) -> None:
        """Stops listening. Safe after a ``start`` that failed."""
        if self.copies is not None:
            self.copies.close()
        for endpoint in (self._agents, self._status):
            if endpoint is not None:
                await endpoint.close()

    async def _hello(self, request: web.Request) -> web.Response:
        """Sends the name of this node to a known agent."""
        node, refusal = await self._who(request)
        if refusal is not None:
            return refusal
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if peer:
            self._greeted(node, str(peer[0]))
        return web.json_response({"node": self._node})

    async def _who(self, request: web.Request) -> tuple[str, web.Response | None]:
        """The node that the peer claims, and a refusal if its NodeProfile does not show the peer's certificate."""
        node = request.headers.get(NODE_HEADER, "")
        transport = request.transport
        tls = transport.get_extra_info("ssl_object") if transport else None
        shown = hashlib.sha256((tls.getpeercert(binary_form=True) if tls else None) or b"").hexdigest()
        if node and await self._accepts(node, shown):
            return node, None
        self._metrics.refused.inc()
        text = f"the NodeProfile of {node[:253]!r} does not contain this certificate"
        return node, web.json_response({"error": text}, status=403)

    async def _measure(self, request: web.Request) -> web.StreamResponse:
        """Runs a session."""
        node, refusal = await self._who(request)
        if refusal is not None:
            return refusal
        transport = request.transport
        if self.measure is None or transport is None or self._sessions >= MAX_SESSIONS:
            return web.json_response({"error": "too many sessions"}, status=503, headers={"Retry-After": "5"})
        # Read now: a connection that is lost has no addresses.
        sock = transport.get_extra_info("socket")
        here, there = (str(transport.get_extra_info(name)[0]) for name in ("sockname", "peername"))
        ws = web.WebSocketResponse(timeout=SHUTDOWN_SECONDS, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        await ws.prepare(request)
        self._sessions += 1
        try:
            await self.measure(channel.Channel(ws, node), node, here, there)
        finally:
            self._sessions -= 1
            await ws.close()
            channel.abort(sock)
        return ws

    async def _healthz(self, request: web.Request) -> web.Response:
        trouble = self._trouble()
        return web.json_response({"node": self._node, "trouble": trouble}, status=503 if trouble else 200)

    async def _text(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
