"""Reports requests in flight and waiting requests to the operator, which wakes ModelDeployments for them."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable

import aiohttp
from pydantic import ValidationError
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.routing import DemandAnswer, DemandReport
from thunderfleet_lib.net import tls

from thunderfleet_router.dispatcher import Dispatcher
from thunderfleet_router.http.metrics import RouterMetrics

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
LEAST_SECONDS = 1.0
"""Minimum time between two reports."""


class ReportFailed(Exception):
    """The operator did not get a report."""


class Reporter:
    """Reports while ``run`` runs. ``url``: the operator's URL, if known. ``pair``: that of the routing Secret."""

    def __init__(
        self,
        url: Callable[[], str | None],
        router: str,
        dispatcher: Dispatcher,
        pair: Callable[[], tuple[str, str] | None],
        metrics: RouterMetrics,
    ) -> None:
        self._url = url
        self._router = router
        self._dispatcher = dispatcher
        self._pair = pair
        self._metrics = metrics
        self._contexts: tuple[tuple[str, str], ssl.SSLContext] | None = None
        self._reported = False
        self._not_before = 0.0

    async def run(self) -> None:
        """Reports until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                await self._round(session)
                try:
                    async with asyncio.timeout(routing.DEMAND_SECONDS):
                        await self._dispatcher.hurry.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(self._not_before - time.monotonic(), 0))

    async def _round(self, session: aiohttp.ClientSession) -> None:
        self._dispatcher.hurry.clear()
        self._dispatcher.refuse_vain_wakes()
        demands = self._dispatcher.demands()
        if not demands and not self._reported:
            return
        if time.monotonic() < self._not_before:
            self._dispatcher.hurry.set()
            return
        self._not_before = time.monotonic() + LEAST_SECONDS
        wakes = any(demand.wake for demand in demands)
        try:
            answer = await self._send(session, DemandReport(router=self._router, demands=demands))
        except ReportFailed as error:
            self._metrics.reports.labels("failed").inc()
            log.log(logging.WARNING if wakes else logging.DEBUG, "cannot report demand to the operator: %s", error)
            self._dispatcher.wake_failed(str(error))
            return
        self._reported = bool(demands)
        self._metrics.reports.labels("refused" if answer.refusals else "ok").inc()
        self._dispatcher.answered(answer)

    async def _send(self, session: aiohttp.ClientSession, report: DemandReport) -> DemandAnswer:
        url, context = self._url(), self._context()
        if url is None:
            raise ReportFailed("the operator has not published the address of its endpoint for routers")
        if context is None:
            raise ReportFailed("the operator has published no key pair for routers")
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        headers = {"Content-Type": "application/json"}
        url = url.rstrip("/") + routing.DEMAND_PATH
        try:
            async with session.post(
                url, data=report.model_dump_json(by_alias=True), headers=headers, timeout=timeout, ssl=context,
                server_hostname=routing.OPERATOR_TLS_NAME, allow_redirects=False,
            ) as answer:  # fmt: skip
                body = await answer.content.read(routing.DEMAND_BYTES)
                if answer.status == 429:
                    # The previous report is still valid, so this failure refuses no requests.
                    self._not_before = time.monotonic() + _seconds(answer.headers.get("Retry-After"))
                    self._dispatcher.hurry.set()
                    return DemandAnswer()
                if answer.status != 200:
                    raise ReportFailed(f"the operator answers {answer.status}")
                return DemandAnswer.model_validate_json(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValidationError) as error:
            raise ReportFailed(f"the operator does not answer ({type(error).__name__})") from error

    def _context(self) -> ssl.SSLContext | None:
        pair = self._pair()
        if pair is None:
            return None
        if self._contexts is None or self._contexts[0] != pair:
            try:
                self._contexts = (pair, tls.pinned(*pair, server=False))
            except (OSError, ValueError) as error:
                raise ReportFailed(f"the key pair for routers cannot be used: {error}") from error
        return self._contexts[1]


def _seconds(text: str | None) -> float:
    return min(float(text), 60.0) if text is not None and text.isdecimal() else 1.0
