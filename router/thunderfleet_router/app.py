"""Creates the parts of the router and runs it until ``ending`` is set."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from thunderfleet_lib.kube import Kube

from thunderfleet_router.certificate import Certificate
from thunderfleet_router.decide.catalog import Catalog
from thunderfleet_router.demand import Reporter
from thunderfleet_router.dispatcher import Dispatcher
from thunderfleet_router.http.exchange import Exchanges, Settings
from thunderfleet_router.http.metrics import RouterMetrics
from thunderfleet_router.http.page import Page
from thunderfleet_router.http.server import Server
from thunderfleet_router.http.upstream import Upstream
from thunderfleet_router.tracing import tracing
from thunderfleet_router.viewers import Viewers
from thunderfleet_router.watch import Watch

log = logging.getLogger(__name__)

PORT_SECONDS = 15.0
"""How long to retry a port that the previous router may still hold."""


@dataclass(frozen=True, slots=True)
class Options:
    """The router's input."""

    namespace: str
    """Namespace of the release."""
    name: str
    """Name of this router's pod."""
    addresses: Sequence[str]
    port: int
    operator: str | None
    """URL of the operator's endpoint for demand; None for the one that the routing Secret names."""
    tls: Path | None = None
    """Folder with ``tls.crt`` and ``tls.key``."""
    origins: Sequence[str] = ()
    notice_seconds: float = 3.0
    """How long new connections are accepted after `/readyz` has failed: Services stop sending requests within seconds."""
    drain_seconds: float = 30.0
    settings: Settings = field(default_factory=Settings)
    page_hosts: Sequence[str] | None = None
    """Names under which the live page is served, in addition to IP addresses; None: it is not served."""


class Router:
    """One router. Raises OSError if its certificate cannot be read."""

    def __init__(self, kube: Kube, options: Options) -> None:
        self.options = options
        # The first step, because it may fail, and objects created before it would have to be closed.
        self._certificate = Certificate(options.tls) if options.tls is not None else None
        self._tracing = tracing(options.namespace, options.name)
        self.port = options.port
        self.ending = asyncio.Event()
        """Set to end the router."""
        self.listening = asyncio.Event()
        """Set once its port is open."""
        self.dispatcher = Dispatcher(self._cannot_wake)
        self.watch = Watch(kube, options.namespace, self.dispatcher.update)
        self._upstream = Upstream()
        self.metrics = RouterMetrics(
            lambda: self.dispatcher.in_flight, lambda: self.dispatcher.waiting, lambda: self.watch.connected
        )
        exchanges = Exchanges(
            lambda: self.watch.catalog, self.dispatcher, self._upstream, self.metrics, options.settings, self._tracing
        )
        self._page: Page | None = None
        if options.page_hosts is not None:
            self._page = Page(kube, Viewers(kube), self._known, options.page_hosts, options.namespace)
        self.server = Server(
            lambda: self.watch.catalog,
            exchanges,
            self.metrics,
            options.settings,
            self._problem,
            options.origins,
            self._tracing,
            self._page,
        )

    def _known(self) -> Catalog | None:
        return self.watch.catalog if self.watch.built else None

    def _problem(self) -> str | None:
        # The catalog gets the objects a moment later; until then every model would seem to be missing.
        return None if self.watch.built else "the router has not read the ModelDeployments yet"

    def _cannot_wake(self) -> str | None:
        if self._operator() is None:
            return "the operator has not published the address of its endpoint for routers yet"
        return None if self.watch.connected else "the API server does not answer"

    def _operator(self) -> str | None:
        return self.options.operator or self.watch.operator

    async def run(self) -> None:
        """Runs until ``ending`` is set. Raises OSError if the port cannot be opened."""
        reporter = Reporter(self._operator, self.options.name, self.dispatcher, lambda: self.watch.pair, self.metrics)
        work = [self.watch.run(), reporter.run()]
        if self._certificate is not None:
            work.append(self._certificate.keep())
        tasks = [asyncio.create_task(one) for one in work]
        runner = self.server.runner()
        await runner.setup()
        try:
            await self._listen(runner)
            ending = asyncio.create_task(self.ending.wait())
            await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            for task in tasks:
                if task.done():
                    await task
            await self._drain(runner)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()
            if self._page is not None:
                await self._page.close()
            await self._upstream.close()
            await asyncio.to_thread(self._tracing.close)

    async def _listen(self, runner: web.AppRunner) -> None:
        context = self._certificate.context if self._certificate is not None else None
        for address in self.options.addresses:
            self.port = await self._once_free(runner, address, context)
        log.info("listening on port %d of %s", self.port, ", ".join(self.options.addresses))
        self.listening.set()

    async def _once_free(self, runner: web.AppRunner, address: str, context: ssl.SSLContext | None) -> int:
        until = asyncio.get_running_loop().time() + PORT_SECONDS
        while True:
            try:
                return await self.server.listener.listen(runner, address, self.port, context)
            except OSError as error:
                if asyncio.get_running_loop().time() > until:
                    raise
                log.warning("%s; retrying", error)
            await asyncio.sleep(0.5)

    async def _drain(self, runner: web.AppRunner) -> None:
        """Waits for requests to end, up to a limit. Answers requests on open connections, then closes each connection."""
        log.info("stopping: %d requests have at most %g s to end", self.server.inside, self.options.drain_seconds)
        self.server.ending = True
        await asyncio.sleep(self.options.notice_seconds)
        for site in list(runner.sites):
            with contextlib.suppress(OSError):
                await site.stop()
        try:
            async with asyncio.timeout(self.options.drain_seconds):
                await self.server.idle.wait()
        except TimeoutError:
            log.warning("%d requests have not ended in time; their connections are closed", self.server.inside)
