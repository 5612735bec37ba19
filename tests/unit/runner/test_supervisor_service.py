"""Turns, requests and their ends, as the gateway sees them, against a link that only notes what it is told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_crds.group import GroupPhase, GroupState
from thunderfleet_runner import protocol
from thunderfleet_runner.service import GenerationFailed, Refused, Service, Unavailable, Vocabulary


class Link:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, message: Any) -> None:
        self.told.append((message.type, message.id if message.type == "cancel" else message.request.id))

    def announce(self, turn: int) -> None:
        self.told.append(("turn", turn))


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
    return protocol.Request(id=name, kind="completion", prompt="x", max_tokens=2)


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
    stream = service.submit(request("gone"))
    service.deliver(protocol.Token(id="gone", token=1, text=""))
    task = asyncio.create_task(anext(stream))
    await settle()
    service.deliver(protocol.Token(id="gone", token=1, text=""))
    await task
    await stream.aclose()
    assert link.told[-1] == ("cancel", "gone")
    assert service.running == 0


async def test_the_groups_failure_ends_everything_as_unavailable(service: Service) -> None:
    running, counting = begin(service, "a"), asyncio.create_task(service.prepare(request("b")))
    await settle()
    service.detach("rank 1: it was killed")
    for task in (running, counting):
        with pytest.raises(Unavailable, match="rank 1: it was killed"):
            await task
    assert not service.ready
    with pytest.raises(Unavailable, match="rank 1: it was killed"):
        await service.prepare(request("c"))


async def test_one_requests_failure_is_its_own(service: Service) -> None:
    bad, good = begin(service, "bad"), begin(service, "good")
    await settle()
    service.deliver(protocol.RequestError(id="bad", text="odd"))
    service.deliver(done("good"))
    with pytest.raises(GenerationFailed, match="odd"):
        await bad
    assert len(await good) == 1


async def test_counts_and_refusals(service: Service) -> None:
    counted = asyncio.create_task(service.prepare(request("a")))
    refused = asyncio.create_task(service.prepare(request("b")))
    await settle()
    service.deliver(protocol.Prepared(id="a", prompt_tokens=7))
    service.deliver(protocol.Prepared(id="b", error="the template renders nothing"))
    assert await counted == 7
    with pytest.raises(Refused, match="renders nothing"):
        await refused


async def test_draining_admits_nothing_new(service: Service, link: Link) -> None:
    running = begin(service, "a")
    await settle()
    service.draining = True
    with pytest.raises(Unavailable, match="draining"):
        await service.prepare(request("b"))
    service.deliver(done("a"))
    assert len(await running) == 1
    assert not service.ready


async def test_a_new_group_counts_its_turns_anew(service: Service) -> None:
    service.detach("gone")
    fresh = Link()
    service.attach(fresh, Vocabulary(64, True))
    running = begin(service, "a")
    await settle()
    assert fresh.told == [("generate", "a"), ("turn", 1)]
    service.deliver(done("a"))
    await running
