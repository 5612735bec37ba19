"""Rounds while the planner is slow, hangs or fails, or a leader is silent: the rest of the operator goes on."""

import asyncio
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.clock import Moment
from thunderfleet_operator.act import group_client
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.act.keys import KeyPair
from thunderfleet_operator.observe import index
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.placement import Unplaceable, WherePlaced
from thunderfleet_operator.planning.planner import Planner
from thunderfleet_operator.planning.process import PlanningProcess
from thunderfleet_operator.planning.wire import LIMIT_THE_MACS
from thunderfleet_operator.reconcile import PATIENCE_SECONDS
from thunderfleet_operator.watch import leader as election
from thunderfleet_operator.watch.cache import DEPLOYMENTS, LINKS, NODEPROFILES
from thunderfleet_operator.watch.leader import Identity, Leader
from thunderfleet_operator.watch.workqueue import WorkQueue
from thunderfleet_operator.worker import Worker

from tests.support.waiting import until_async
from tests.unit.operator.watch.test_leader import Leases
from tests.unit.operator.world import GIB, World

CABLE = "studio-1.tb1--studio-2.tb1"
OTHER = "ns/other"
HANGS = ("-c", "import time; time.sleep(600)")


async def out_of_patience(world: World) -> None:
    """Rounds until one goes on without the planner's answer."""
    assert await world.round() == PATIENCE_SECONDS
    world.later(PATIENCE_SECONDS)
    await world.round()


async def test_nothing_is_written_before_the_planner_has_had_its_time(world: World) -> None:
    world.planner.silent = True
    world.deploy()
    before = world.versions()
    assert await world.round() == PATIENCE_SECONDS
    assert world.versions() == before
    world.later(PATIENCE_SECONDS)
    await world.round()
    assert world.condition("Placed")[:2] == ("False", "Pending")
    assert world.md.status.groups[0].message == "waiting for the planner to choose a placement"
    world.planner.silent = False
    await world.round()
    assert world.condition("Placed")[0] == "True" and world.pods()


async def test_a_group_that_serves_does_not_wait_for_the_place_of_another(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy(nodes={"max": 1})
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    serving = set(world.pods())
    world.planner.silent = True
    world.edit(replicas=2)
    await out_of_patience(world)
    assert set(world.pods()) == serving and [group.state for group in world.md.status.groups] == ["Ready", "Pending"]
    (question,) = [asked for asked in world.planner.asked if isinstance(asked, WherePlaced)][-1:]
    assert question.fleet.macs["big-1"].in_use, "the group that serves keeps its memory"
    # A changed spec is planned before the group that serves is drained for it.
    world.edit(replicas=1, memory={"contextTokens": 1024})
    await out_of_patience(world)
    assert world.md.status.groups[0].state == "Ready" and not world.drained
    world.planner.silent = False
    await world.round()
    assert world.md.status.groups[0].state == "Draining"


async def test_what_a_failed_group_waits_for_is_remembered_while_the_planner_is_silent(world: World) -> None:
    world.deploy(recovery={"maxRestarts": 3, "backoffSeconds": 10, "backoffLimitSeconds": 300})
    await world.round()
    world.run_pods()
    failure = {"fault": "Bug", "reason": "Odd", "message": "it broke", "at": world.now}
    world.say("GaveUp", 1, failure=failure)
    await world.round()
    due = world.md.status.groups[0].next_restart_time
    world.planner.silent = True
    world.later(10)
    await out_of_patience(world)
    group = world.md.status.groups[0]
    assert (
        group.next_restart_time == due
        and "waiting for the planner to choose a placement" in group.message
        and "it broke" in group.message
    )
    world.planner.silent = False
    await world.round()
    assert (world.md.status.groups[0].epoch, world.md.status.groups[0].restarts) == (2, 1)


async def test_a_group_that_cannot_be_placed_is_not_planned_again_on_the_same_fleet(world: World) -> None:
    world.deploy(replicas=3, nodes={"min": 9})
    await world.round()
    assert world.condition("Placed")[0] == "False" and len(world.planner.asked) == 1, "groups alike share an answer"
    for _ in range(3):
        world.later(30)
        await world.round()
    assert len(world.planner.asked) == 1
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.planner.silent = True
    status = world.md.status
    await world.round()
    assert len(world.planner.asked) == 2 and world.md.status == status, "the last answer is shown until there is another"


async def test_a_planner_that_fails_is_told_and_asked_again(world: World) -> None:
    world.planner.silent = True
    world.deploy()
    await world.round()
    question = world.planner.asked[-1]
    answer = Unplaceable(Reason.PLANNING_FAILED, "the planner did not answer within 15 s")
    world.planner.answers("ns/md").put(0, question, answer, final=False)
    await world.round()
    assert world.condition("Placed") == ("False", "PlanningFailed", "the planner did not answer within 15 s")
    assert world.condition("Ready")[1] == "PlanningFailed"
    asked = len(world.planner.asked)
    await world.round()
    assert len(world.planner.asked) == asked + 1
    world.planner.silent = False
    await world.round()
    assert world.condition("Placed")[0] == "True"


async def test_a_hung_planner_costs_neither_the_lease_nor_other_rounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "RENEW_SECONDS", 0.02)
    leases: Any = Leases()
    leader = Leader(leases, "ns", Identity("one"), lambda: None, Moment.now)
    queue, rounds = WorkQueue(), list[str]()

    async def link(name: str) -> None:
        await world.links.round(name)
        rounds.append(name)

    async def refill() -> None:
        return

    process = PlanningProcess(seconds=3, program=HANGS)
    planner = Planner(process, lambda key: queue.add(f"{DEPLOYMENTS.name}/{key}"))
    monkeypatch.setattr(world.reconciler, "_planner", planner)
    worker = Worker(
        queue, {DEPLOYMENTS.name: world.reconciler.deployment, LINKS.name: link}, world.metrics, leader.leading, refill
    )
    parts = [asyncio.create_task(part.run()) for part in (leader, planner, worker)]
    try:
        await until_async(leader.leading)
        world.deploy()
        queue.add(f"{DEPLOYMENTS.name}/ns/md")
        await until_async(lambda: process.pid is not None, "the process has the question")
        for count in range(1, 4):
            version = leases.version
            queue.add(f"{LINKS.name}/{CABLE}")
            await until_async(lambda count=count: len(rounds) >= count, "another key has its round")  # type: ignore[misc]
            await until_async(lambda version=version: leases.version > version + 3, "the Lease is renewed")  # type: ignore[misc]
            assert leader.leading() and not worker.stuck
        await until_async(lambda: failed(world), "status says what is wrong")
        assert world.condition("Placed")[2] == f"the planner did not answer within 3 s; {LIMIT_THE_MACS}"
        assert process.pid is None
        assert leader.leading()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


def failed(world: World) -> bool:
    conditions = world.md.status.conditions
    return any(condition.reason == "PlanningFailed" for condition in conditions)


async def test_objects_are_read_in_parts_before_the_first_round(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "AT_ONCE", 1)
    world.deploy()
    warm = Index(world.cache, lambda: world.keys)
    pauses = 0

    async def count() -> None:
        nonlocal pauses
        while True:
            pauses += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await warm.warm()
    counting.cancel()
    objects = len(world.cache[NODEPROFILES].items) + len(world.cache[LINKS].items)
    assert pauses >= objects
    profiles = dict(warm._kept["nodeprofiles"].value)
    world.change(NODEPROFILES, "studio-1", lambda item: item["status"].update(models=[]))
    assert warm.profiles["studio-2"] is profiles["studio-2"], "not read again"
    changed = warm.profiles["studio-1"]
    assert changed is not None and changed.status.models == ()
    assert warm.fleet.macs == Index(world.cache, lambda: world.keys).fleet.macs and set(warm.deployments) == {"ns/md"}


class ElsewhereClient(GroupClient):
    """Finds every leader at a port of this machine, instead of at the addresses of the world's Macs."""

    def __init__(self, changed: Any, port: int) -> None:
        super().__init__(changed, lambda: True)
        self._port = port

    def listen(self, key: str, plans: Mapping[int, tuple[Plan, KeyPair]], connections: Mapping[int, str] | None = None) -> None:
        here = {"address": "127.0.0.1", "control_port": self._port}
        moved = {
            index: (plan.model_copy(update={"ranks": (plan.ranks[0].model_copy(update=here), *plan.ranks[1:])}), pair)
            for index, (plan, pair) in plans.items()
        }
        super().listen(key, moved, connections)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a leader whose Mac accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_silent_leader_holds_no_round_of_another_after_a_restart(
    world: World, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_client, "ANSWER_SECONDS", 600.0)
    monkeypatch.setattr(group_client, "FIRST_ANSWER_SECONDS", 600.0)
    world.deploy()
    await world.serve()
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    known = world.cache[DEPLOYMENTS].items["ns/md"]
    about = {"name": "other", "namespace": "ns", "uid": "uid-other", "generation": 1}
    world.put(DEPLOYMENTS, {"metadata": about, "spec": known["spec"]})
    queue = WorkQueue()
    groups = ElsewhereClient(lambda key: queue.add(f"{DEPLOYMENTS.name}/{key}"), silent)
    reconciler, before = world.restarted(groups), world.md.status

    async def refill() -> None:
        return

    worker = Worker(queue, {DEPLOYMENTS.name: reconciler.deployment}, world.metrics, lambda: True, refill)
    for key in ("ns/md", OTHER):
        queue.add(f"{DEPLOYMENTS.name}/{key}")
    working = asyncio.create_task(worker.run())
    try:
        await until_async(lambda: world.cache[DEPLOYMENTS].items[OTHER].get("status", {}).get("groups"), "the other is placed")
        assert groups.first_answers_in("ns/md") > 0 and world.md.status == before, "its own round is put off"
        monkeypatch.setattr(group_client, "FIRST_ANSWER_SECONDS", 0.0)
        world.edit(suspend=True)
        queue.add(f"{DEPLOYMENTS.name}/ns/md")
        await until_async(lambda: world.md.status.observed_generation == 2, "it goes on without an answer")
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await groups.close()


async def test_the_first_poll_begins_the_round_that_was_put_off(
    world: World, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_client, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(group_client, "FIRST_ANSWER_SECONDS", 600.0)
    world.deploy()
    await world.serve()
    changed: asyncio.Queue[str] = asyncio.Queue()
    groups = ElsewhereClient(changed.put_nowait, silent)
    reconciler = world.restarted(groups)
    try:
        left = await reconciler.deployment("ns/md")
        assert left is not None and left > 60
        async with asyncio.timeout(60):
            assert await changed.get() == "ns/md"
        assert groups.first_answers_in("ns/md") <= 0
        again = await reconciler.deployment("ns/md")
        assert again is None or again < 60
    finally:
        await groups.close()


async def test_rounds_of_several_cables_run_at_once_but_never_two_of_one(world: World) -> None:
    queue, running, most, twice = WorkQueue(), set[str](), 0, list[str]()
    going = asyncio.Event()

    async def link(name: str) -> None:
        nonlocal most
        twice.extend({name} & running)
        running.add(name)
        most = max(most, len(running))
        await going.wait()
        running.discard(name)

    async def refill() -> None:
        return

    worker = Worker(queue, {LINKS.name: link}, world.metrics, lambda: True, refill, 3)
    working = asyncio.create_task(worker.run())
    try:
        for name in ("one", "two", "three", "four"):
            queue.add(f"{LINKS.name}/{name}")
        await until_async(lambda: len(running) == 3, "as many rounds as may run")
        queue.add(f"{LINKS.name}/one")
        assert len(queue) == 2 and not worker.stuck
        going.set()
        await until_async(lambda: not len(queue) and not running, "all have had their rounds")
        assert most == 3 and not twice
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
