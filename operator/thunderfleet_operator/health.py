"""The operator's HTTP endpoints: /metrics, /healthz and /readyz."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from thunderfleet_lib.net.listener import Listener

from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.worker import STUCK_SECONDS

METRICS_TYPE = "text/plain; version=0.0.4"
CONNECTIONS = 64
"""The most connections at once. Clients are not authenticated here, so no places are reserved."""


class Health:
    """``stuck``: whether the worker hangs. ``synced``: whether the cache is filled. ``leading``: whether this replica acts.

    ``objects``: more of the page of metrics, in the text format of Prometheus.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        stuck: Callable[[], bool],
        synced: Callable[[], bool],
        leading: Callable[[], bool],
        objects: Callable[[], bytes] = bytes,
    ) -> None:
        self._metrics = metrics
        self._objects = objects
        self._stuck = stuck
        self._synced = synced
        self._leading = leading
        self._listener = Listener(CONNECTIONS)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._listener.open

    async def _metrics_page(self, _: web.Request) -> web.Response:
        page = generate_latest(self._metrics.registry) + self._objects()
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        if self._stuck():
            return web.Response(status=500, text=f"one reconcile has been running for more than {STUCK_SECONDS:.0f} s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if not self._synced():
            return web.Response(status=503, text="starting: filling the cache or the watches\n")
        return web.Response(text="leader\n" if self._leading() else "standby\n")

    async def serve(self, host: str, port: int) -> web.AppRunner:
        """Starts to serve; the caller cleans the result up. Raises OSError if the port is taken."""
        app = web.Application(middlewares=[self._listener.track])
        routes = {"/metrics": self._metrics_page, "/healthz": self._healthz, "/readyz": self._readyz}
        app.add_routes([web.get(path, handler) for path, handler in routes.items()])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await self._listener.listen(runner, host, port)
        except BaseException:
            await runner.cleanup()
            raise
        return runner
