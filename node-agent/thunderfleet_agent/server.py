"""What the agent answers: ``/healthz`` for the kubelet and other agents, ``/metrics`` for Prometheus.

One TLS listener with the certificate that the NodeProfile pins, on this Mac's own address and nowhere else.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from aiohttp import web

from thunderfleet_agent.metrics import Metrics

SHUTDOWN_SECONDS = 2.0


class Server:
    """Listens between ``start`` and ``close``."""

    def __init__(self, address: str, node: str, metrics: Metrics, trouble: Callable[[], str | None]) -> None:
        """``trouble`` says why this agent should be restarted, None while it need not be."""
        self._address = address
        self._node = node
        self._metrics = metrics
        self._trouble = trouble
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/metrics", self._text)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)

    async def start(self, port: int, context: ssl.SSLContext) -> int:
        """Listens, and gives the port (0 picks a free one). Raises OSError when address or port cannot be had."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, port, ssl_context=context).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Also right when ``start`` has failed."""
        await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        trouble = self._trouble()
        return web.json_response({"node": self._node, "trouble": trouble}, status=503 if trouble else 200)

    async def _text(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
