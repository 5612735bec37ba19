"""What the agent answers: other agents over mutual TLS with the certificates that the NodeProfiles pin, the kubelet and
Prometheus over plain HTTP on a port of its own (they know nothing of pins). On this Mac's own addresses, each by itself, as
they come and go; never on 0.0.0.0.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

from thunderfleet_agent.measure.session import talk
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.peers.dial import NODE_HEADER, PATH

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
# Agents that talk about measuring at one time; one of them measures, the others hear so.
MAX_TALKS = 16

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
Measure = Callable[[talk.Line, str, str, str], Awaitable[None]]


class Server:
    """Listens between ``start`` and ``close``."""

    def __init__(
        self,
        address: str,
        node: str,
        metrics: Metrics,
        trouble: Callable[[], str | None],
        known: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        """``trouble`` says why this agent should be restarted, None while it need not be; ``known`` whether the NodeProfile of
        a node shows a certificate with that SHA-256.
        """
        self._address = address
        self._node = node
        self._metrics = metrics
        self._trouble = trouble
        self._known = known
        self._runners: list[web.AppRunner] = []
        self._agents: tuple[web.AppRunner, int, ssl.SSLContext] | None = None
        self._sites: dict[str, web.TCPSite] = {}
        self._refused: set[str] = set()
        self._talks = 0
        self.measure: Measure | None = None
        """Told of an agent that wants to measure: the conversation, its node, the socket's address here and there."""

    async def start(self, port: int, metrics_port: int, context: ssl.SSLContext) -> tuple[int, int]:
        """Listens, and gives the two ports (0 picks a free one). Raises OSError when address or port cannot be had."""
        agents, chosen = await self._listen(port, context, {PATH: self._hello, talk.PATH: self._measure})
        self._agents = (agents, chosen, context)
        _, metrics = await self._listen(metrics_port, None, {"/healthz": self._healthz, "/metrics": self._text})
        return chosen, metrics

    async def listen_on(self, addresses: Iterable[str]) -> None:
        """Listens for agents on these addresses too, and no longer on others. An address that cannot be had (it has just gone,
        or something else has the port there) is tried again with the next call.
        """
        if self._agents is None:
            return
        runner, port, context = self._agents
        wanted = set(addresses) - {self._address}
        for address in set(self._sites) - wanted:
            await self._sites.pop(address).stop()
        for address in sorted(wanted - set(self._sites)):
            site = web.TCPSite(runner, address, port, ssl_context=context)
            try:
                await site.start()
            except OSError as error:
                if address not in self._refused:
                    log.warning("cannot listen on %s port %d: %s", address, port, error.strerror or error)
                self._refused.add(address)
                continue
            self._refused.discard(address)
            self._sites[address] = site
        self._refused &= wanted

    async def _listen(self, port: int, context: ssl.SSLContext | None, pages: Mapping[str, Page]) -> tuple[web.AppRunner, int]:
        application = web.Application()
        for path, page in pages.items():
            application.router.add_get(path, page)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, self._address, port, ssl_context=context).start()
        return runner, int(runner.addresses[0][1])

    async def close(self) -> None:
        """Also right when ``start`` has failed."""
        for runner in self._runners:
            await runner.cleanup()

    async def _hello(self, request: web.Request) -> web.Response:
        """Tells an agent of the fleet who answers."""
        _, refusal = await self._who(request)
        return refusal or web.json_response({"node": self._node})

    async def _who(self, request: web.Request) -> tuple[str, web.Response | None]:
        """The node of the agent that asks; and what it is told when its NodeProfile does not know it."""
        node = request.headers.get(NODE_HEADER, "")
        transport = request.transport
        tls = transport.get_extra_info("ssl_object") if transport else None
        shown = hashlib.sha256((tls.getpeercert(binary_form=True) if tls else None) or b"").hexdigest()
        if node and await self._known(node, shown):
            return node, None
        self._metrics.refused.inc()
        text = f"the NodeProfile of {node[:253]!r} does not show the certificate that you came with"
        return node, web.json_response({"error": text}, status=403)

    async def _measure(self, request: web.Request) -> web.StreamResponse:
        """Hands over a conversation about measuring, for as long as it takes."""
        node, refusal = await self._who(request)
        if refusal is not None:
            return refusal
        transport = request.transport
        if self.measure is None or transport is None or self._talks >= MAX_TALKS:
            return web.json_response({"error": "not now"}, status=503, headers={"Retry-After": "5"})
        # Asked for now: a connection that has been lost says nothing.
        sock = transport.get_extra_info("socket")
        here, there = (str(transport.get_extra_info(name)[0]) for name in ("sockname", "peername"))
        ws = web.WebSocketResponse(timeout=SHUTDOWN_SECONDS, max_msg_size=talk.MAX_MESSAGE_BYTES, compress=False)
        await ws.prepare(request)
        self._talks += 1
        try:
            await self.measure(talk.Line(ws, node), node, here, there)
        finally:
            self._talks -= 1
            await ws.close()
            talk.hang_up(sock)
        return ws

    async def _healthz(self, request: web.Request) -> web.Response:
        trouble = self._trouble()
        return web.json_response({"node": self._node, "trouble": trouble}, status=503 if trouble else 200)

    async def _text(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
