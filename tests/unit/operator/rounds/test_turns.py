"""Many ModelDeployments that wait for a place: one asks the planner at a time, about the fleet of that moment."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from thunderfleet_operator.app import AT_ONCE
from thunderfleet_operator.observe.concerns import FLEET, concerned, work_key
from thunderfleet_operator.placement import Answer, Placement, Question, WherePlaced
from thunderfleet_operator.placement.questions import answer
from thunderfleet_operator.planning import planner as planning
from thunderfleet_operator.planning.planner import Planner
from thunderfleet_operator.reconcile import CROWD, CROWD_SECONDS
from thunderfleet_operator.watch.cache import DEPLOYMENTS, LINKS, NODEPROFILES, Collection
from thunderfleet_operator.watch.workqueue import WorkQueue
from thunderfleet_operator.worker import Worker

from tests.support.waiting import until_async
from tests.unit.operator.rounds.test_planning import NO, Script, where
from tests.unit.operator.world import GIB, Json, World

# --- whose turn it is ---


class Line:
    """A planner that runs, and rounds that a test carries out."""

    def __init__(self) -> None:
        self.script, self.fleet, self.turns, self.changed = Script(), object(), list[str](), list[str]()
        self.planner = Planner(self.script, self.changed.append, turn=self.turns.append, fleet=lambda: self.fleet)
        self.task = asyncio.create_task(self.planner.run())

    async def wants(self, key: str, *questions: Question) -> None:
        """A round that asks, and does not wait for the answer."""
        asking = asyncio.create_task(self.planner.ask(key, dict(enumerate(questions))))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def asked(self, count: int) -> Question:
        await until_async(lambda: len(self.script.asked) == count, f"{count} questions")
        return self.script.asked[-1]

    async def has_turn(self, *keys: str) -> None:
        await until_async(lambda: self.turns == list(keys), f"turns of {keys}")


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


PLACED = answer(where(64))


async def test_who_waits_asks_about_the_fleet_as_it_is_when_the_turn_comes(line: Line) -> None:
    assert isinstance(PLACED, Placement)
    await line.wants("one", where(64))
    await line.asked(1)
    await line.wants("two", where(64))
    assert line.planner.in_line("two") and not line.planner.in_line("one")
    line.script.says(PLACED)
    await line.has_turn("one")
    # Its round takes the place.
    await line.wants("one")
    assert len(line.script.asked) == 1, "the next question waits for the end of the round"
    line.fleet = object()
    line.planner.round_over("one")
    await line.has_turn("one", "two")
    assert len(line.script.asked) == 1, "not about the fleet before"
    await line.wants("two", where(32))
    assert await line.asked(2) == where(32)
    line.script.says(NO)
    await until_async(lambda: line.changed == ["two"], "an answer")


async def test_a_round_that_began_before_the_answer_does_not_end_the_turn(line: Line) -> None:
    await line.wants("one", where(64))
    await line.asked(1)
    await line.wants("two", where(64))
    line.script.says(PLACED)
    await line.has_turn("one")
    line.planner.round_over("one")
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(line.script.asked) == 1
    await line.wants("one")
    line.planner.round_over("one")
    assert await line.asked(2) == where(64)


async def test_the_next_group_of_a_deployment_is_placed_in_the_same_turn(line: Line) -> None:
    await line.wants("one", where(64))
    await line.asked(1)
    await line.wants("two", where(64))
    line.script.says(PLACED)
    await line.has_turn("one")
    line.fleet = object()
    await line.wants("one", where(16))
    assert await line.asked(2) == where(16)


async def test_who_finds_no_place_holds_nobody_up(line: Line) -> None:
    await line.wants("one", where(1))
    await line.asked(1)
    await line.wants("two", where(2))
    line.script.says(NO)
    assert await line.asked(2) == where(2)
    assert line.changed == ["one"] and not line.turns


async def test_a_deployment_that_is_deleted_gives_up_its_turn(line: Line) -> None:
    await line.wants("one", where(64))
    await line.asked(1)
    await line.wants("two", where(64))
    await line.wants("three", where(3))
    line.script.says(PLACED)
    await line.has_turn("one")
    line.fleet = object()
    line.planner.forget("one")
    await line.has_turn("one", "two")
    line.planner.forget("two")
    await line.has_turn("one", "two", "three")
    await line.wants("three")
    assert len(line.script.asked) == 1, "which does not want anything any more"


async def test_a_round_that_does_not_come_holds_nobody_up(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the API server hangs: then an answer about the fleet before is better than none."""
    monkeypatch.setattr(planning, "TURN_SECONDS", 0.01)
    await line.wants("one", where(64))
    await line.asked(1)
    line.fleet = object()
    await line.wants("two", where(64))
    line.fleet = object()
    await line.wants("three", where(8))
    line.fleet = object()
    line.script.says(PLACED)
    assert await line.asked(2) == where(64)
    line.script.says(PLACED)
    assert await line.asked(3) == where(8)
    assert line.turns == ["one", "two", "two", "three"]


async def test_a_key_with_the_turn_comes_before_all_others() -> None:
    queue = WorkQueue()
    for key in ("a", "b", "c"):
        queue.add(key)
    queue.add("c", first=True)
    assert await queue.get() == "c"
    queue.add("c", first=True)
    queue.done("c")
    assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]


# --- the operator ---


class Inline:
    """Stands in for the planning process: answers in this one."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def ask(self, question: Question) -> tuple[Answer, float]:
        self.asked.append(question)
        await asyncio.sleep(0)
        return answer(question), 0.0

    async def end(self) -> None:
        return


class Crowd(World):
    """A queue, its worker, whose rounds run at once, and a planner over many Macs with room for one group each."""

    def __init__(self, macs: int) -> None:
        self.queue = WorkQueue()
        self.process = Inline()
        self.rounds = 0
        self.put_off = list[float]()
        super().__init__()
        for number in range(macs):
            self.mac(f"mac-{number:03}", f"10.0.{number // 250}.{number % 250 + 1}", 20 * GIB)
        key = partial(work_key, DEPLOYMENTS)
        self.real: Any = Planner(
            self.process,
            lambda name: self.queue.add(key(name)),
            turn=lambda name: self.queue.add(key(name), first=True),
            fleet=lambda: self.index.fleet,
        )
        self.reconciler._planner = self.real
        self.reconciler._again = self._again

    def _again(self, key: str, seconds: float) -> None:
        self.put_off.append(seconds)
        self.queue.add_after(work_key(DEPLOYMENTS, key), seconds)

    def changed(self, collection: Collection, key: str, before: Json | None, after: Json | None) -> None:
        for concern in concerned(self.index, collection, key, before, after, self.reconciler.unplaced):
            self.queue.add(concern)

    def deployed(self, count: int, first: int = 0, **spec: Any) -> None:
        for number in range(first, first + count):
            meta = {"name": f"md-{number:03}", "namespace": "ns", "uid": f"uid-{number}", "generation": 1}
            self.put(DEPLOYMENTS, {"metadata": meta, "spec": {"model": {"repository": "org/tiny"}, **spec}})
            self.queue.add(work_key(DEPLOYMENTS, f"ns/md-{number:03}"))

    async def deployment(self, name: str) -> float | None:
        self.rounds += 1
        return await self.reconciler.deployment(name)

    async def work(self, done: Any, what: str) -> None:
        """Runs the operator until something holds."""
        kinds: Any = {
            DEPLOYMENTS.name: self.deployment,
            NODEPROFILES.name: self.macs.round,
            LINKS.name: self.links.round,
            FLEET: self.reconciler.fleet,
        }
        worker = Worker(self.queue, kinds, self.metrics, self.leads, self.refill, AT_ONCE)
        # Before a round has failed, so that Prometheus sees the first failure as an increase.
        assert self.metrics.registry.get_sample_value("thunderfleet_operator_reconcile_errors_total", {"kind": FLEET}) == 0
        tasks = [asyncio.create_task(self.real.run()), asyncio.create_task(worker.run())]
        try:
            await until_async(done, what)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def taken(self) -> list[str]:
        return [rank.node for plan in self.index.plans.values() for rank in plan.ranks]


async def test_each_of_many_that_are_applied_at_once_asks_once() -> None:
    """With answers about the fleet before, all would get the same Macs, and all but one would ask again."""
    count = 30
    world = Crowd(2 * count)
    world.deployed(count, nodes={"max": 1})
    await world.work(lambda: len(world.pods()) == count, "all placed")
    places = [question for question in world.process.asked if isinstance(question, WherePlaced)]
    assert len(places) == count
    assert len(set(world.taken())) == count, "no Mac is taken twice"
    # One that joins the line, one that takes the turn, and those after what happened to it.
    assert world.rounds <= 6 * count


async def test_a_crowd_that_cannot_be_placed_does_not_hold_up_those_that_can() -> None:
    count = 2 * CROWD
    world = Crowd(4)
    world.deployed(count, nodes={"min": 40})
    await world.work(lambda: len(world.reconciler.unplaced) == count, "all have their answer")
    await world.reconciler.fleet("all")
    world.put_off.clear()
    meta = {"name": "last", "namespace": "ns", "uid": "uid-last", "generation": 1}
    world.put(DEPLOYMENTS, {"metadata": meta, "spec": {"model": {"repository": "org/tiny"}, "nodes": {"max": 1}}})
    world.queue.add(work_key(DEPLOYMENTS, "ns/last"))
    await world.work(lambda: len(world.pods()) == 1 and len(world.put_off) > count, "it is placed")
    assert world.put_off.count(CROWD_SECONDS * count) >= count - 1, "those without a place have their rounds later"
