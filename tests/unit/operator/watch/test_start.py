"""The order of a start: the status of each cable, then the places of groups, and the watches."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import AsyncMock

import pytest
from thunderfleet_operator import app
from thunderfleet_operator.app import Configuration, Operator
from thunderfleet_operator.decide.deployment import Settings
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.watch.cache import CACHED, LINKS
from thunderfleet_operator.watch.leader import Identity, Leader

from tests.unit.operator.world import World

Wait = Callable[[Operator], Coroutine[Any, Any, None]]


@pytest.fixture
def operator(world: World, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """One that leads a fleet of two cables, and whose planner ends at once."""
    world.cable("studio-2", "mini")
    assert len(world.cache[LINKS].items) == 2
    monkeypatch.setattr(app.Operator, "_load_keys", AsyncMock())
    monkeypatch.setattr(Leader, "leading", lambda self: True)
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    found = Operator(kube, configuration, world.cache)
    monkeypatch.setattr(found.planner, "run", AsyncMock())
    return found


async def settled() -> None:
    """Everything that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def ends(waiting: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(60):
        await waiting


@pytest.mark.parametrize("wait", [Operator._plan, Operator._before_watches])
async def test_planner_and_watches_start_once_each_cable_has_its_status(operator: Operator, wait: Wait) -> None:
    operator.leader.tried.set()
    waiting = asyncio.create_task(wait(operator))
    await settled()
    assert not waiting.done(), "nothing is on the queue yet"
    await operator._take_over()
    for number in range(2):
        key = await operator.cables.get()
        await settled()
        assert not waiting.done(), f"{number} of 2 cables"
        operator.cables.done(key)
    await ends(waiting)


@pytest.mark.parametrize(("wait", "limit"), [(Operator._plan, "CABLES_SECONDS"), (Operator._before_watches, "WATCH_SECONDS")])
async def test_a_cable_that_gets_no_status_delays_them_for_a_limited_time(
    operator: Operator, wait: Wait, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, limit, 0.05)
    operator.leader.tried.set()
    await operator._take_over()
    await operator.cables.get()
    await ends(asyncio.create_task(wait(operator)))


async def test_a_round_that_has_failed_is_not_waited_for(operator: Operator) -> None:
    await operator._take_over()
    for _ in range(2):
        key = await operator.cables.get()
        operator.cables.done(key)
        operator.cables.add_after(key, 600)
    await ends(asyncio.create_task(operator._plan()))


async def test_what_was_deleted_before_the_watches_is_looked_for(operator: Operator) -> None:
    operator.leader.tried.set()
    await operator._take_over()
    for _ in range(2):
        operator.cables.done(await operator.cables.get())
    await operator._before_watches()
    assert set(operator.lists._relisted) == {collection.name for collection in CACHED}


async def test_a_standby_watches_at_once_and_plans_nothing(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "leading", lambda self: False)
    planning = asyncio.create_task(operator._plan())
    watching = asyncio.create_task(operator._before_watches())
    await settled()
    assert not watching.done(), "whether it leads is not known yet"
    operator.leader.tried.set()
    await ends(watching)
    assert not planning.done()
    planning.cancel()
    await asyncio.gather(planning, return_exceptions=True)
    run: Any = operator.planner.run
    run.assert_not_awaited()
