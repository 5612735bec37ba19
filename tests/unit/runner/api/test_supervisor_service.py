"""Turns, requests and their ends as the gateway sees them, with a link that only records its calls."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.exchange.group import BenchmarkReport, GroupState
from thunderfleet_crds.exchange.plan import BenchmarkPlan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import protocol
from thunderfleet_runner.api import service as service_module
from thunderfleet_runner.api.service import FIRST_CAUSE_SECONDS, GenerationFailed, Service, Unavailable, Vocabulary
from thunderfleet_runner.api.upkeep import benchmark, canary


class Link:
    """Records what the service sends to rank 0."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.announced = asyncio.Event()

    def send(self, message: Any) -> None:
        self.told.append((message.type, message.id if message.type == "cancel" else message.request.id))

    def announce(self, turn: int) -> None:
        self.told.append(("turn", turn))
        self.announced.set()

    def measure(self) -> None:
        self.told.append(("measure",))


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def service(make_group: Callable[..., Any], link: Link) -> Service:
    plan = make_group(2).plan
    state = GroupState(uid=plan.uid, index=0, epoch=3, phase=GroupPhase.READY)
    service = Service(plan, 0, lambda: state)
    service.attach(link, Vocabulary(64, True))
    return service


def request(name: str) -> protocol.Request:
    return protocol.Request(id=name, prompt=protocol.Prompt.of((1,)), max_tokens=2)


def done(name: str) -> protocol.Done:
    return protocol.Done(id=name, finish_reason="stop", prompt_tokens=1, generated_tokens=1)


def begin(service: Service, name: str) -> "asyncio.Task[list[Any]]":
    async def collect() -> list[Any]:
        return [event async for event in service.submit(request(name))]

    return asyncio.create_task(collect())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_turn_is_announced_after_its_request_and_once(service: Service, link: Link) -> None:
    first, second = begin(service, "a"), begin(service, "b")
    await settle()
    assert link.told == [("generate", "a"), ("turn", 1), ("generate", "b")]
    for name in "ab":
        service.deliver(protocol.Token(id=name, token=5, text="t"))
        service.deliver(done(name))
    assert [event.type for event in await first] == ["token", "done"]
    await second
    service.deliver(protocol.Idle(turn=1))
    assert link.told[3:] == []


async def test_a_request_that_came_too_late_for_a_turn_gets_the_next(service: Service, link: Link) -> None:
    late = begin(service, "late")
    await settle()
    service.deliver(protocol.Idle(turn=1))
    assert link.told[-1] == ("turn", 2)
    service.deliver(protocol.Idle(turn=1))
    assert link.told[-1] == ("turn", 2)
    service.deliver(done("late"))
    await late


async def test_a_client_that_leaves_cancels(service: Service, link: Link) -> None:
    stream: Any = service.submit(request("gone"))
    service.deliver(protocol.Token(id="gone", token=1, text=""))
    task = asyncio.create_task(anext(stream))
    await settle()
    service.deliver(protocol.Token(id="gone", token=1, text=""))
    await task
    await stream.aclose()
    assert link.told[-1] == ("cancel", "gone")
    # Rank 0 still works on it: its memory is not free yet.
    assert service.running == 1
    service.deliver(protocol.Done(id="gone", finish_reason="cancelled", prompt_tokens=1, generated_tokens=2))
    assert service.running == 0


async def test_the_groups_failure_ends_everything_as_unavailable(service: Service) -> None:
    running, other = begin(service, "a"), begin(service, "b")
    await settle()
    service.detach("rank 1: it was killed")
    for task in (running, other):
        with pytest.raises(Unavailable, match="rank 1: it was killed"):
            await task
    assert not service.ready
    with pytest.raises(Unavailable, match="rank 1: it was killed"):
        await begin(service, "c")


async def test_cut_requests_get_the_first_cause_if_it_is_known_soon(service: Service, link: Link) -> None:
    running, other = begin(service, "a"), begin(service, "b")
    await settle()
    service.detach("rank 0: it lost a peer", settled=False)
    service.deliver(done("a"))
    await settle()
    assert not service.ready and service.running == 0
    assert not running.done() and not other.done()
    service.detach("rank 1: it was killed")
    for task in (running, other):
        with pytest.raises(Unavailable, match="rank 1: it was killed"):
            await task


async def test_what_is_cut_does_not_wait_long_for_a_first_cause(service: Service, link: Link) -> None:
    assert FIRST_CAUSE_SECONDS <= 1.0
    running = begin(service, "a")
    await settle()
    service.detach("rank 0: it lost a peer", settled=False)
    with pytest.raises(Unavailable, match="rank 0: it lost a peer"):
        await asyncio.wait_for(running, 60)
    # Nor into the next group.
    service.attach(link, Vocabulary(64, True))
    running = begin(service, "b")
    await settle()
    service.detach("rank 0: it lost a peer again", settled=False)
    service.attach(Link(), Vocabulary(64, True))
    with pytest.raises(Unavailable, match="again"):
        await running


async def test_a_first_cause_is_waited_for_while_it_is_awaited(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "FIRST_CAUSE_SECONDS", 0.0)
    asked = iter([True] * 20)
    running = begin(service, "a")
    await settle()
    service.detach("rank 0: it lost a peer", settled=False, awaited=lambda: next(asked, False))
    while next(asked, False):
        assert not running.done()
        await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="rank 0: it lost a peer"):
        await asyncio.wait_for(running, 60)


async def test_one_requests_failure_is_its_own(service: Service) -> None:
    bad, good = begin(service, "bad"), begin(service, "good")
    await settle()
    service.deliver(protocol.RequestError(id="bad", text="odd"))
    service.deliver(done("good"))
    with pytest.raises(GenerationFailed, match="odd"):
        await bad
    assert len(await good) == 1


async def test_draining_admits_nothing_new(service: Service, link: Link) -> None:
    running = begin(service, "a")
    await settle()
    service.draining = True
    with pytest.raises(Unavailable, match="draining"):
        await begin(service, "b")
    service.deliver(done("a"))
    assert len(await running) == 1
    assert not service.ready


async def test_a_drain_that_cuts_an_answer_says_so(service: Service) -> None:
    running = begin(service, "a")
    await settle()
    service.draining = True
    service.deliver(protocol.Done(id="a", finish_reason="cancelled", prompt_tokens=1, generated_tokens=2))
    with pytest.raises(Unavailable, match="being stopped or moved, and its grace period is over") as caught:
        await running
    assert caught.value.retry_after == 30
    assert service.running == 0


async def test_a_new_group_counts_its_turns_from_zero(service: Service) -> None:
    service.detach("gone")
    fresh = Link()
    service.attach(fresh, Vocabulary(64, True))
    running = begin(service, "a")
    await settle()
    assert fresh.told == [("generate", "a"), ("turn", 1)]
    service.deliver(done("a"))
    await running


def measured() -> protocol.Measured:
    return protocol.Measured(latency_microseconds=30, megabytes_per_second=812.5)


async def test_the_all_reduce_is_measured_between_turns_only(service: Service, link: Link) -> None:
    answer = begin(service, "a")
    await settle()
    measuring = asyncio.create_task(service.measure_all_reduce())
    await settle()
    assert link.told == [("generate", "a"), ("turn", 1)]
    service.deliver(done("a"))
    await answer
    service.deliver(protocol.Idle(turn=1))
    await settle()
    assert link.told[-1] == ("measure",)
    # A request that arrives in the meantime runs afterwards.
    late = begin(service, "b")
    await settle()
    assert link.told[-1] == ("generate", "b")
    service.deliver(measured())
    assert await measuring == measured()
    assert link.told[-1] == ("turn", 2)
    service.deliver(done("b"))
    await late


async def test_a_measurement_ends_with_its_group(service: Service, link: Link) -> None:
    measuring = asyncio.create_task(service.measure_all_reduce())
    await settle()
    service.detach("rank 1 went")
    with pytest.raises(Unavailable, match="rank 1 went"):
        await measuring
    service.attach(link, Vocabulary(64, True))
    again = begin(service, "a")
    await settle()
    assert link.told[-1] == ("turn", 1)
    service.deliver(done("a"))
    await again


async def test_a_canary_runs_after_a_while_without_requests(service: Service, link: Link) -> None:
    now = service.used_at
    assert canary.wait_seconds(service, 60, now + 20) == 40
    running = begin(service, "a")
    await settle()
    assert canary.wait_seconds(service, 60, now + 1000) == 60
    service.deliver(done("a"))
    await running
    service.deliver(protocol.Idle(turn=1))
    link.announced.clear()
    singing = asyncio.create_task(canary.run(service, pytest.fail, 0.01))
    await asyncio.wait_for(link.announced.wait(), 60)
    assert link.told[-1] == ("turn", 2)
    kind, name = link.told[-2]
    assert (kind, name.partition("-")[0]) == ("generate", "canary")
    link.announced.clear()
    service.deliver(done(name))
    service.deliver(protocol.Idle(turn=2))
    await asyncio.wait_for(link.announced.wait(), 60)
    assert link.told[-1] == ("turn", 3)
    singing.cancel()


def test_when_a_benchmark_is_due() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    report = BenchmarkReport(
        prefill_tokens_per_second=1, decode_tokens_per_second=1, time_to_first_token_microseconds=1, prompt_tokens=1,
        generation_tokens=2, measured_at=at,
    )  # fmt: skip
    plan = BenchmarkPlan(every_seconds=100)
    assert benchmark.due_seconds(None, plan, at) == 0
    assert benchmark.due_seconds(report, plan, at + timedelta(seconds=30)) == 70
    assert benchmark.due_seconds(report, plan, at + timedelta(seconds=300)) == 0
    assert benchmark.due_seconds(report, BenchmarkPlan(every_seconds=0), at) is None
    told = benchmark.with_all_reduce(report, measured())
    assert (told.all_reduce_microseconds, told.all_reduce_megabytes_per_second) == (30, 812.5)
