"""What the agent answers: other agents over TLS with the certificate that the NodeProfile pins, the kubelet and Prometheus over
plain HTTP on a port of its own (they know nothing of pins). Both on this Mac's own address and nowhere else.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from thunderfleet_agent.metrics import Metrics

SHUTDOWN_SECONDS = 2.0

Page = Callable[[web.Request], Awaitable[web.Response]]


class Server:
    """Listens between ``start`` and ``close``."""

    def __init__(self, address: str, node: str, metrics: Metrics, trouble: Callable[[], str | None]) -> None:
        """``trouble`` says why this agent should be restarted, None while it need not be."""
        self._address = address
        self._node = node
        self._metrics = metrics
        self._trouble = trouble
        self._runners: list[web.AppRunner] = []

    async def start(self, port: int, metrics_port: int, context: ssl.SSLContext) -> tuple[int, int]:
        """Listens, and gives the two ports (0 picks a free one). Raises OSError when address or port cannot be had."""
        return (
            await self._listen(port, context, {"/healthz": self._healthz}),
            await self._listen(metrics_port, None, {"/healthz": self._healthz, "/metrics": self._text}),
        )

    async def _listen(self, port: int, context: ssl.SSLContext | None, pages: Mapping[str, Page]) -> int:
        application = web.Application()
        for path, page in pages.items():
            application.router.add_get(path, page)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, self._address, port, ssl_context=context).start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Also right when ``start`` has failed."""
        for runner in self._runners:
            await runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        trouble = self._trouble()
        return web.json_response({"node": self._node, "trouble": trouble}, status=503 if trouble else 200)

    async def _text(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
