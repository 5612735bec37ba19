"""A router without an API server: its catalog is set by the test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from thunderfleet_router.decide.catalog import Catalog, build
from thunderfleet_router.dispatcher import Dispatcher
from thunderfleet_router.http.exchange import Exchanges, Settings
from thunderfleet_router.http.metrics import RouterMetrics
from thunderfleet_router.http.server import Server
from thunderfleet_router.http.upstream import Upstream

from tests.support.routers.routing import KEYS, Model

Client = TestClient[Any, Any]


class Kit:
    """The parts of a router."""

    def __init__(self, *models: Model, settings: Settings | None = None, origins: Sequence[str] = ()) -> None:
        self.obstacle: str | None = None
        self.catalog = Catalog()
        self.dispatcher = Dispatcher(lambda: self.obstacle)
        self.metrics = RouterMetrics(
            lambda: self.dispatcher.in_flight, lambda: self.dispatcher.waiting, lambda: self.obstacle is None
        )
        self.upstream = Upstream()
        settings = settings or Settings(hold_seconds=20.0)
        exchanges = Exchanges(lambda: self.catalog, self.dispatcher, self.upstream, self.metrics, settings)
        self.server = Server(lambda: self.catalog, exchanges, self.metrics, settings, lambda: self.obstacle, origins)
        self.set(*models)

    def set(self, *models: Model) -> None:
        """Changes what the API server has."""
        documents = [model.document() for model in models if model.published]
        self.catalog = build([model.object() for model in models], documents, KEYS)
        self.dispatcher.update(self.catalog)

    def value(self, name: str, **labels: str) -> float:
        """A metric's value."""
        return self.metrics.registry.get_sample_value(f"thunderfleet_router_{name}", labels) or 0.0


@asynccontextmanager
async def client_of(kit: Kit) -> AsyncIterator[Client]:
    """A client of the router."""
    client: Client = TestClient(TestServer(kit.server.app(), handler_cancellation=True))
    async with client:
        yield client
    await kit.upstream.close()


@asynccontextmanager
async def serving(kit: Kit) -> AsyncIterator[int]:
    """The router behind its own listener, as in production. Yields its port on 127.0.0.1."""
    runner = kit.server.runner()
    await runner.setup()
    try:
        yield await kit.server.listener.listen(runner, "127.0.0.1", 0)
    finally:
        await runner.cleanup()
        await kit.upstream.close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
