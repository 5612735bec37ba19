"""Receives the reports of routers, over TLS with the certificate that only the operator and routers have."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

from aiohttp import web
from pydantic import ValidationError
from thunderfleet_crds.exchange.routing import DEMAND_BYTES, DEMAND_PATH, DemandAnswer, DemandReport
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.net import tls
from thunderfleet_lib.net.listener import Listener

from thunderfleet_operator.act.keys import KeyPair
from thunderfleet_operator.decide.routing.refusals import refusals

log = logging.getLogger(__name__)

CONNECTIONS = 1024 + 64
"""One for each router, and some for clients that are not identified yet."""
MAX_ROUTERS = 1024
LEAST_SECONDS = 0.5
"""Reports of one router that come sooner after each other are refused: routers send at most one a second."""
RETRY_SECONDS = 1


class DemandServer:
    """``reported`` is called with each report. ``deployments`` returns all ModelDeployments by ``namespace/name``.

    ``leading``: whether this replica may act. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        reported: Callable[[DemandReport], None],
        deployments: Callable[[], Mapping[str, ModelDeployment | None]],
        leading: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._reported = reported
        self._deployments = deployments
        self._leading = leading
        self._clock = clock
        self._last: OrderedDict[str, float] = OrderedDict()
        self._listener = Listener(CONNECTIONS)
        self.port = 0
        """Where it listens."""

    async def serve(self, host: str, port: int, pair: KeyPair) -> web.AppRunner:
        """Starts to serve; the caller cleans the result up. Raises OSError if the port is taken."""
        app = web.Application(client_max_size=DEMAND_BYTES, middlewares=[self._listener.track])
        app.router.add_post(DEMAND_PATH, self._demand)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            self.port = await self._listener.listen(runner, host, port, tls.pinned(pair.certificate, pair.key, server=True))
        except BaseException:
            await runner.cleanup()
            raise
        return runner

    async def _demand(self, request: web.Request) -> web.StreamResponse:
        again = {"Retry-After": str(RETRY_SECONDS)}
        if not self._leading():
            return web.Response(status=503, text="this replica of the operator is not the leader\n", headers=again)
        try:
            report = DemandReport.model_validate_json(await request.read())
        except ValidationError as error:
            return web.Response(status=400, text=f"invalid report: {' '.join(str(error).split())[:500]}\n")
        if self._too_soon(report.router):
            return web.Response(status=429, text="reports are too frequent\n", headers=again)
        self._reported(report)
        answer = DemandAnswer(refusals=refusals(report, self._deployments()))
        return web.Response(body=answer.model_dump_json(by_alias=True, exclude_none=True), content_type="application/json")

    def _too_soon(self, router: str) -> bool:
        now = self._clock()
        soon = now - self._last.get(router, float("-inf")) < LEAST_SECONDS
        if not soon:
            self._last[router] = now
            self._last.move_to_end(router)
            while len(self._last) > MAX_ROUTERS:
                self._last.popitem(last=False)
        return soon
