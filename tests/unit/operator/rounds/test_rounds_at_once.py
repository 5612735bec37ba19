"""Rounds of several ModelDeployments at once: no two take the same, and what one waits for or fails at is no other's matter."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.batches import AT_ONCE as BATCH
from thunderfleet_operator.act.batches import in_batches
from thunderfleet_operator.act.writer import NotLeading
from thunderfleet_operator.app import AT_ONCE
from thunderfleet_operator.decide.weights.manifests import HubSettings
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe.concerns import work_key
from thunderfleet_operator.planning import planner as planning
from thunderfleet_operator.planning.answers import KnownAnswers
from thunderfleet_operator.reconcile import LINE_SECONDS, PATIENCE_SECONDS
from thunderfleet_operator.reservations import Reservations
from thunderfleet_operator.watch.cache import CACHES, CONFIGMAPS, DEPLOYMENTS, NODEPROFILES, NODES, Cache
from thunderfleet_operator.watch.lists import Lists
from thunderfleet_operator.watch.workqueue import WorkQueue
from thunderfleet_operator.worker import Worker

from tests.support.generated import examples
from tests.support.waiting import until_async
from tests.unit.operator.rounds.test_turns import Crowd
from tests.unit.operator.world import GIB, InlinePlanner, Json, World

Call = tuple[str, str]
"""Verb and path."""


class Busy(Crowd):
    """An API server whose requests take several turns of the event loop, or wait until a test lets them go on."""

    def __init__(self, macs: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.held: Callable[[str, str], bool] = lambda verb, path: False
        """Requests that wait."""
        self.waiting: list[Call] = []
        self.lost: Callable[[str, str], bool] = lambda verb, path: False
        """Requests that are carried out, and whose answers do not arrive."""
        self.go_on = asyncio.Event()
        self.running = Counter[str]()
        self.twice: list[str] = []
        self.most = 0
        super().__init__(macs)

    async def _takes_time(self, verb: str, path: str) -> None:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        if self.held(verb, path):
            self.waiting.append((verb, path))
            await self.go_on.wait()

    async def _answered(self, verb: str, path: str) -> None:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        if self.lost(verb, path):
            raise ApiError(0, "Timeout", f"{verb} {path}: no response in time")

    async def apply(self, path: str, body: Json, manager: str, *, force: bool = True) -> Json:
        await self._takes_time("apply", path)
        found = await super().apply(path, body, manager, force=force)
        await self._answered("apply", path)
        return found

    async def create(self, path: str, body: Json) -> Json:
        name = f"{path}/{body['metadata']['name']}"
        await self._takes_time("create", name)
        found = await super().create(path, body)
        await self._answered("create", name)
        return found

    async def delete(self, path: str, *, uid: str | None = None, **more: Any) -> Json | None:
        await self._takes_time("delete", path)
        found = await super().delete(path, uid=uid, **more)
        await self._answered("delete", path)
        return found

    async def refill(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        await super().refill()

    async def deployment(self, name: str) -> float | None:
        self.twice += [name] if self.running[name] else []
        self.running[name] += 1
        self.most = max(self.most, self.running.total())
        try:
            return await super().deployment(name)
        finally:
            self.running[name] -= 1

    def plans_at_once(self) -> None:
        """In place of the planner: answers each round at once, about the fleet that it sees, whoever else asks."""
        planner: Any = InlinePlanner()
        self.planner = self.reconciler._planner = planner

    def taken_twice(self) -> list[str]:
        """Macs with more memory reserved than they have, and ports that two ranks have."""
        memory, ports = Counter[str](), Counter[str]()
        for plan in self.index.plans.values():
            for rank in plan.ranks:
                memory[rank.node] += rank.memory_bytes
                ports.update(f"{rank.node}:{port}" for port in (rank.gateway_port, rank.control_port, *rank.ring_ports))
        full = [node for node, size in memory.items() if size > self.index.nodes[node].allocatable_bytes]
        return full + [port for port, ranks in ports.items() if ranks > 1]

    def md_of(self, number: int) -> ModelDeployment:
        return ModelDeployment.load(self.cache[DEPLOYMENTS].items[f"ns/md-{number:03}"])

    def placed(self) -> set[int]:
        """The numbers of the ModelDeployments whose status says that they have a place."""
        found = set()
        for key in self.cache[DEPLOYMENTS].items:
            number = int(key[-3:])
            conditions = self.md_of(number).status.conditions
            if any(one.type == "Placed" and one.status.value == "True" for one in conditions):
                found.add(number)
        return found

    def said(self) -> set[int]:
        """The numbers of the ModelDeployments that have a status."""
        keys = (int(key[-3:]) for key in self.cache[DEPLOYMENTS].items)
        return {number for number in keys if self.md_of(number).status.conditions}


# --- no two take the same ---


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), macs=st.integers(2, 8), count=st.integers(2, 12), replicas=st.integers(1, 2))
def test_no_two_groups_get_one_room(seed: int, macs: int, count: int, replicas: int) -> None:
    """With a planner that knows of no turns, all rounds want the same Macs, each with room for two groups at most."""

    async def run() -> None:
        world = Busy(macs, seed)
        world.plans_at_once()
        world.deployed(count, nodes={"max": 1}, replicas=replicas)
        room = min(count * replicas, 2 * macs)
        await world.work(lambda: len(world.pods()) >= room and len(world.said()) == count, "all told")
        assert len(world.index.plans) == room
        assert not world.taken_twice() and not world.twice
        assert world.most == min(count, AT_ONCE)

    asyncio.run(run())


async def test_the_planner_gives_one_turn_after_the_other_while_rounds_go_on() -> None:
    world = Busy(20)
    world.deployed(20, nodes={"max": 1})
    await world.work(lambda: len(world.placed()) == 20, "all placed")
    assert not world.taken_twice() and not world.twice
    assert world.most > 1


async def test_what_a_write_without_an_answer_has_taken_is_seen_first() -> None:
    """The plan exists, and the cache does not show it."""
    world = Busy(1)
    world.mac("mac-000", "10.0.0.1", 10 * GIB)
    world.plans_at_once()
    lost = {"/api/v1/namespaces/ns/configmaps/md-000-0-e1"}
    world.lost = lambda verb, path: verb == "create" and path in lost and not lost.discard(path)  # type: ignore[func-returns-value]
    world.deployed(4, nodes={"max": 1})
    await world.work(lambda: not lost and len(world.said()) >= 3, "the others have their status")
    assert [path for path in world.objects if "/configmaps/" in path] == ["/api/v1/namespaces/ns/configmaps/md-000-0-e1"]


async def test_nothing_is_taken_while_it_is_not_known_what_an_earlier_round_has_taken() -> None:
    lists = list[str]()
    answers: list[ApiError | None] = [ApiError(503, "ServiceUnavailable", "away"), None]

    async def refill() -> None:
        lists.append("all")
        if error := answers.pop(0):
            raise error

    reservations = Reservations(refill)
    for error, unsure in (
        (ApiError(403, "Forbidden", "no"), False),
        (NotLeading("lost"), False),
        (ApiError(0, "Timeout", "no answer"), True),
    ):
        before = reservations.taken
        with pytest.raises(type(error)):
            async with reservations.taking():
                raise error
        assert reservations.taken > before and not lists
        if not unsure:
            async with reservations.taking():
                assert not lists
    with pytest.raises(ApiError, match="away"):
        async with reservations.taking():
            raise AssertionError("not before a list")
    before = reservations.taken
    async with reservations.taking():
        assert lists == ["all", "all"] and reservations.taken > before, "what was decided before is decided again"
    async with reservations.taking():
        assert len(lists) == 2


async def test_a_round_that_is_cut_short_may_have_taken_something() -> None:
    lists = list[str]()

    async def refill() -> None:
        lists.append("all")

    reservations, began = Reservations(refill), asyncio.Event()

    async def writes(_: str) -> float | None:
        began.set()
        await asyncio.Event().wait()
        return None

    task = asyncio.create_task(reservations.alone(writes)("key"))
    await began.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    async with reservations.taking():
        assert lists == ["all"]


async def test_rounds_of_caches_wait_for_a_placement() -> None:
    reservations, order = Reservations(), list[str]()

    async def cache(key: str) -> float:
        order.append(key)
        return 5.0

    async with reservations.taking():
        task = asyncio.create_task(reservations.alone(cache)("cache"))
        for _ in range(3):
            await asyncio.sleep(0)
        order.append("placement")
    assert await task == 5.0 and order == ["placement", "cache"]


async def test_two_that_want_the_same_model_get_one_cache() -> None:
    world = Busy(2)
    world.hub = HubSettings("https://hub.example", enabled=True)
    world.reconciler = world.restarted()
    world.plans_at_once()
    world.reconciler._again = world._again
    bare = {"models": [], "store": {"folder": "/store", "freeBytes": GIB}}
    for name in world.cache[NODES].items:
        world.change(NODEPROFILES, name, lambda item: item["status"].update(bare))
    world.deployed(AT_ONCE, model={"repository": "org/other"})
    await world.work(lambda: len(world.said()) == AT_ONCE, "all have a status")
    assert len(world.cache[CACHES].items) == 1


async def test_a_deployment_that_is_deleted_while_it_waits_takes_nothing() -> None:
    world = Busy(2)
    world.plans_at_once()
    world.held = lambda verb, path: "/configmaps/" in path
    world.deployed(2, nodes={"max": 1})

    async def deleted() -> None:
        await until_async(lambda: bool(world.waiting) and world.running.total() == 2, "one writes and one waits")
        (key,) = {"ns/md-000", "ns/md-001"} - {f"ns/{path.rsplit('/', 1)[1][:6]}" for _, path in world.waiting}
        world.remove(DEPLOYMENTS, key)
        world.go_on.set()

    task = asyncio.create_task(deleted())
    await world.work(lambda: task.done() and not world.running.total() and len(world.placed()) == 1, "one is placed")
    assert len(world.index.plans) == 1 and len(world.cache[CONFIGMAPS].items) == 1


# --- what one waits for or fails at ---


@pytest.mark.parametrize("held", ["/secrets/md-003", "/pods/md-003", "/services/md-003", "/modeldeployments/md-003"])
async def test_a_slow_request_of_one_holds_no_other_up(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TURN_SECONDS", 600.0)
    world = Busy(20)
    world.held = lambda verb, path: held in path
    world.deployed(20, nodes={"max": 1})
    others = set(range(20)) - {3}
    await world.work(lambda: world.placed() >= others and bool(world.waiting), "all others have a place and say so")
    assert 3 not in world.placed() and not world.twice


async def test_while_a_placement_is_written_others_are_looked_after() -> None:
    """Those that need a place wait; those that have one, and Macs, do not."""
    world = Busy(6)
    world.plans_at_once()
    world.deployed(3, nodes={"max": 1})
    await world.work(lambda: len(world.placed()) == 3, "three are placed")
    world.held = lambda verb, path: "/configmaps/md-005" in path
    world.deployed(1, first=5, nodes={"max": 1})
    pods = set(world.pods())

    async def suspend() -> None:
        await until_async(lambda: bool(world.waiting), "a placement is being written")
        for number in range(3):
            world.change(DEPLOYMENTS, f"ns/md-{number:03}", lambda item: item["spec"].update(suspend=True))
            world.queue.add(work_key(DEPLOYMENTS, f"ns/md-{number:03}"))

    def ended() -> bool:
        return all(world.pods()[name]["metadata"].get("deletionTimestamp") for name in pods)

    task = asyncio.create_task(suspend())
    await world.work(lambda: task.done() and ended(), "their pods end")
    assert world.waiting and 5 not in world.placed()


async def test_what_one_fails_at_stops_no_other() -> None:
    world = Busy(20)
    world.refuse = lambda verb, path: ApiError(500, "Internal", "no") if "/pods/md-003" in path else None
    world.deployed(20, nodes={"max": 1})
    await world.work(lambda: len(world.placed()) == 19, "all others are placed")
    assert world.md_of(3).status.conditions == ()
    world.refuse = lambda verb, path: None
    world.queue.add(work_key(DEPLOYMENTS, "ns/md-003"))
    await world.work(lambda: len(world.placed()) == 20, "it is placed as well")
    assert world.index.plans.keys() >= {("ns", "md-003", 0, 1)} and not world.taken_twice()


async def test_no_round_writes_after_the_lead_is_lost() -> None:
    world = Busy(20)
    world.held = lambda verb, path: "/pods/" in path
    world.deployed(20, nodes={"max": 1})

    async def lose() -> int:
        await until_async(lambda: len({path for _, path in world.waiting}) >= AT_ONCE, "as many rounds as may run")
        world.is_leading = False
        world.go_on.set()
        return len(world.waiting)

    task = asyncio.create_task(lose())
    await world.work(lambda: task.done() and not world.running.total() and not len(world.queue), "all rounds have ended")
    # Requests that were on their way are carried out; none begins.
    assert len(world.pods()) == await task
    assert not any("/services/" in path or ("/status" in path and "modeldeployments" in path) for _, path in world.writes)
    assert world.metrics.reconciles.labels(DEPLOYMENTS.name, "not-leading")._value.get() == AT_ONCE


async def test_no_round_goes_on_in_a_later_term() -> None:
    """The lead is lost and gained again while requests are on their way. Another replica may have led meanwhile."""
    world = Busy(20)
    world.held = lambda verb, path: "/pods/" in path
    world.deployed(20, nodes={"max": 1})

    async def lapse() -> None:
        await until_async(lambda: len({path for _, path in world.waiting}) >= AT_ONCE, "as many rounds as may run")
        world.term += 1
        world.held = lambda verb, path: False
        world.go_on.set()

    task = asyncio.create_task(lapse())
    stopped = world.metrics.reconciles.labels(DEPLOYMENTS.name, "not-leading")._value.get
    await world.work(lambda: task.done() and stopped() >= AT_ONCE, "these rounds end")
    assert stopped() == AT_ONCE, "those that began in the term before, and no other"
    for number in range(20):
        world.queue.add(work_key(DEPLOYMENTS, f"ns/md-{number:03}"))
    await world.work(lambda: len(world.placed()) == 20, "rounds of this term end what those before had begun")
    assert not world.taken_twice()


async def test_a_round_whose_wait_is_cancelled_costs_no_worker() -> None:
    queue, rounds, failing = WorkQueue(), list[str](), True

    async def round_of(name: str) -> None:
        rounds.append(name)
        if failing:
            # A task that the round waits for is cancelled, not the round.
            waited = asyncio.ensure_future(asyncio.Event().wait())
            waited.cancel()
            await waited

    async def refill() -> None:
        return

    metrics = Metrics()
    worker = Worker(queue, {DEPLOYMENTS.name: round_of}, metrics, lambda: 1, refill, AT_ONCE)
    working = asyncio.create_task(worker.run())
    try:
        for number in range(2 * AT_ONCE):
            queue.add(work_key(DEPLOYMENTS, f"ns/{number}"))
        await until_async(lambda: len(rounds) == 2 * AT_ONCE, "all rounds begin")
        assert metrics.errors.labels(DEPLOYMENTS.name)._value.get() == 2 * AT_ONCE
        failing = False
        queue.add(work_key(DEPLOYMENTS, "ns/0"))
        await until_async(lambda: len(rounds) == 2 * AT_ONCE + 1, "and another one")
        assert not working.done()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert working.cancelled(), "a worker that is itself cancelled ends"


async def test_all_rounds_end_when_the_operator_stops() -> None:
    world = Busy(20)
    world.held = lambda verb, path: "/pods/" in path
    world.deployed(20, nodes={"max": 1})
    await world.work(lambda: len(world.waiting) >= AT_ONCE, "as many rounds as may run")
    assert not world.running.total()
    writes = list(world.writes)
    world.go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.writes == writes


async def test_the_lists_after_lost_answers_serve_all_that_asked_before() -> None:
    begun, going = list[str](), asyncio.Event()

    class Pages:
        async def pages(self, path: str, query: object) -> Any:
            begun.append(path)
            await going.wait()
            return
            yield

    kube: Any = Pages()
    lists = Lists(kube, Cache(), lambda *_: None)
    first = asyncio.create_task(lists.refill())
    await until_async(lambda: bool(begun), "the first list")
    others = [asyncio.create_task(lists.refill()) for _ in range(5)]
    await asyncio.sleep(0)
    going.set()
    await asyncio.gather(first, *others)
    assert len(begun) == 2 * len(set(begun)), "one for the first, and one for all others"


# --- the rounds of a Mac ---


async def test_rounds_of_one_mac_follow_one_another() -> None:
    """A round that has seen less must not write last."""
    world = Busy(1)
    world.plans_at_once()
    world.deployed(1, nodes={"max": 1})
    decision, _ = await world.reconciler._decide("ns/md-000", 1)
    assert decision is not None and decision.exclusive
    await world.executor.place(decision)
    world.held = lambda verb, path: "/nodeprofiles/" in path
    before = asyncio.create_task(world.macs.round("mac-000"))
    await until_async(lambda: bool(world.waiting), "the Mac is told of the group")
    world.change(DEPLOYMENTS, "ns/md-000", lambda item: item["spec"].update(suspend=True))
    later = asyncio.create_task(world.macs.round("mac-000"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(world.waiting) == 1
    world.held = lambda verb, path: False
    world.go_on.set()
    await asyncio.gather(before, later)
    profile = world.index.profiles["mac-000"]
    assert profile is not None and profile.status.groups == ()
    assert not world.macs._rounds, "nothing is kept of rounds that have ended"


async def test_a_batch_with_a_failure_is_the_last() -> None:
    begun, most, running = list[int](), 0, 0

    async def work(number: int) -> int:
        nonlocal most, running
        begun.append(number)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if number == BATCH + 1:
            raise ApiError(403, "Forbidden", "no")
        return number

    found = await in_batches(work, range(3 * BATCH))
    assert begun == list(range(2 * BATCH)) and most == BATCH
    assert [one for one in found if not isinstance(one, ApiError)] == [n for n in range(2 * BATCH) if n != BATCH + 1]
    assert isinstance(found[BATCH + 1], ApiError)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ({"e1-0": 403}, "PodRefused"),
        ({"e1-1": 422}, "PodRefused"),
        ({"e1-0": 403, "e1-1": 500}, None),
        ({"e1-0": 0, "e1-1": 403}, None),
        ({"secrets": 403}, "PodRefused"),
        ({"secrets": 500}, None),
        ({"nodeprofiles": 403}, None),
    ],
)
async def test_a_refusal_is_told_and_all_else_is_tried_again(
    world: World, errors: Mapping[str, int], reason: str | None
) -> None:
    def refuse(verb: str, path: str) -> ApiError | None:
        status = next((status for part, status in errors.items() if part in path), None)
        return ApiError(status, "No", "no") if status is not None else None

    world.refuse = refuse
    world.deploy()
    if reason is None:
        with pytest.raises(ApiError) as raised:
            await world.round()
        assert raised.value.status == next(s for part, s in errors.items() if s not in (403, 422) or part == "nodeprofiles")
        assert not world.md.status.conditions
    else:
        await world.round()
        assert world.condition("Ready")[1] == reason
    if "nodeprofiles" in errors or "secrets" in errors:
        assert not world.pods(), "no pod before the Secret, and before agents know"


# --- patience ---


class InLine(InlinePlanner):
    """Never answers; everybody waits for their turn."""

    line = True

    async def ask(self, key: str, questions: Any) -> bool:
        self.asked += questions.values()
        return False

    def answers(self, key: str) -> KnownAnswers:
        return super().answers(key)

    def in_line(self, key: str) -> bool:
        return self.line


async def test_a_new_deployment_in_line_has_no_status_for_a_while(world: World) -> None:
    """Of 200 that are applied at once each would else be told that it waits, and a second later that it has a place."""
    planner: Any = InLine()
    world.reconciler._planner = planner
    world.deploy()
    before = world.versions()
    assert await world.round() == LINE_SECONDS
    world.later(PATIENCE_SECONDS)
    assert await world.round() == LINE_SECONDS - PATIENCE_SECONDS
    assert world.versions() == before
    # It is asked about, and the answer does not come.
    planner.line = False
    await world.round()
    assert world.condition("Placed")[:2] == ("False", "Pending")
    planner.line = True
    world.edit(memory={"contextTokens": 1024})
    assert await world.round() == PATIENCE_SECONDS, "it has a status already"
