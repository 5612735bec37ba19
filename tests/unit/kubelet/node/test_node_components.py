"""Whether scheduler and controller manager of this Mac answer: real HTTPS servers on loopback."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import generate_latest
from thunderfleet_controlplane.daemons import plan
from thunderfleet_kubelet.node import components
from thunderfleet_kubelet.node.components import FAILURES, ComponentWatch
from thunderfleet_kubelet.serving.metrics import Metrics

from tests.support.models.folders import Authority

UP = 'thunderfleet_control_plane_component_up{component="kube-scheduler",node="studio-1"}'


class World:
    """Two components that answer, or do not, and what the kubelet knows of them."""

    def __init__(self) -> None:
        self.answers: dict[str, int | None] = {"kube-scheduler": 200, "kube-controller-manager": 200}
        """The HTTP status of each; None: no answer at all."""
        self.changes = 0
        self.ports: dict[str, int] = {}
        self.runners: list[web.AppRunner] = []

    async def start(self) -> None:
        context = Authority.new().context("127.0.0.1")
        for name in self.answers:
            app = web.Application()
            app.router.add_get("/healthz", self._handler(name))
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            self.ports[name] = runner.addresses[0][1]
            self.runners.append(runner)

    def _handler(self, name: str) -> Any:
        async def handle(request: web.Request) -> web.Response:
            status = self.answers[name]
            if status is None:
                if request.transport is not None:
                    request.transport.abort()
                await asyncio.Event().wait()
            return web.Response(status=status or 500)

        return handle

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    await found.start()
    yield found
    for runner in found.runners:
        await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as found:
        yield found


@pytest.mark.parametrize("broken", [None, 500, 403])
async def test_one_that_no_longer_answers_is_noticed_and_one_that_answers_again(
    world: World, client: aiohttp.ClientSession, broken: int | None
) -> None:
    watch = ComponentWatch(world.changed, world.ports)
    assert watch.works() == {}
    await watch.ask(client)
    assert watch.works() == {"kube-scheduler": True, "kube-controller-manager": True} and world.changes == 1
    world.answers["kube-scheduler"] = broken
    for _ in range(FAILURES - 1):
        await watch.ask(client)
    assert watch.works()["kube-scheduler"] and world.changes == 1, "launchd may be starting it"
    await watch.ask(client)
    assert watch.works() == {"kube-scheduler": False, "kube-controller-manager": True} and world.changes == 2
    metrics = Metrics("studio-1", "v0", lambda: (0, 0), None, watch.works)
    assert f"{UP} 0.0" in generate_latest(metrics.registry).decode()
    world.answers["kube-scheduler"] = 200
    await watch.ask(client)
    assert all(watch.works().values()) and world.changes == 3
    assert f"{UP} 1.0" in generate_latest(metrics.registry).decode()


async def test_one_that_never_starts_is_noticed(client: aiohttp.ClientSession) -> None:
    watch = ComponentWatch(lambda: None, {"kube-scheduler": 1})
    for _ in range(FAILURES):
        assert watch.works() == {}
        await watch.ask(client)
    assert watch.works() == {"kube-scheduler": False}


def test_they_are_asked_where_init_starts_them() -> None:
    assert components.PORTS == {"kube-controller-manager": plan.CONTROLLER_MANAGER, "kube-scheduler": plan.SCHEDULER}
