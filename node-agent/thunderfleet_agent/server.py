"""What the agent answers: other agents over TLS with its pinned certificate, Prometheus and the kubelet over plain HTTP.

Both listen on this Mac's own address and nowhere else.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from aiohttp import web

from thunderfleet_agent.metrics import Metrics

SHUTDOWN_SECONDS = 2.0


class Server:
    """Two listeners; ``start`` gives the ports that they have."""

    def __init__(self, address: str, node: str, metrics: Metrics, trouble: Callable[[], str | None]) -> None:
        """``trouble`` says why this agent should be restarted, None while it need not be."""
        self._address = address
        self._node = node
        self._metrics = metrics
        self._trouble = trouble
        self._runners: list[web.AppRunner] = []

    async def start(self, port: int, metrics_port: int, context: ssl.SSLContext) -> tuple[int, int]:
        """Listens; port 0 picks a free one. Raises OSError when an address or port cannot be had."""
        peers, local = web.Application(), web.Application()
        peers.router.add_get("/healthz", self._healthz)
        local.router.add_get("/healthz", self._healthz)
        local.router.add_get("/metrics", self._text)
        return await self._listen(peers, port, context), await self._listen(local, metrics_port, None)

    async def _listen(self, application: web.Application, port: int, context: ssl.SSLContext | None) -> int:
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, self._address, port, ssl_context=context).start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        trouble = self._trouble()
        return web.json_response({"node": self._node, "trouble": trouble}, status=503 if trouble else 200)

    async def _text(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
