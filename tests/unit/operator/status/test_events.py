"""Events of new placements, and the causes that they name; when Events are written."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure, Group, ModelDeploymentStatus, Rank
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.events import TRIES, Events
from thunderfleet_operator.decide.status.events import Occurrence, occurrences
from thunderfleet_operator.metrics import Metrics

from tests.support.waiting import until_async

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def failure(reason: str, seconds: int = 0) -> Failure:
    time = NOW.replace(second=seconds)
    return Failure(class_=FaultClass.REPLAN, reason=reason, message=f"it was {reason}", time=time)


def group(epoch: int, *nodes: str, failed: Failure | None = None, waits: bool = False) -> Group:
    ranks = tuple(
        Rank(
            rank=i, node=node, pod=f"md-0-e{epoch}-{i}", address="10.0.0.1", memory_bytes=1, state=RankPhase.PENDING, attempts=0
        )
        for i, node in enumerate(nodes)
    )
    return Group(
        index=0,
        epoch=epoch,
        state=GroupPhase.BACKING_OFF if waits else GroupPhase.STARTING,
        message="",
        reason="fewest Macs that fit",
        ranks=ranks,
        restarts=0,
        last_failure=failed,
        next_restart_time=NOW if waits else None,
    )


def told(before: Group | None, after: Group) -> list[tuple[str, str]]:
    past = ModelDeploymentStatus(groups=(before,) if before else ())
    return [(o.reason, o.message) for o in occurrences(past, ModelDeploymentStatus(groups=(after,)))]


@pytest.mark.parametrize("waits", [True, False])
def test_a_move_says_what_ended_the_place_before(waits: bool) -> None:
    evicted = failure("Evicted")
    before = group(1, "a", "b", failed=evicted if waits else None, waits=waits)
    (event,) = told(before, group(2, "b", "c", failed=evicted))
    text = "group 0 moves from a, b to b, c, placement (epoch) 2, after Evicted (it was Evicted): fewest Macs that fit"
    assert event == ("Moved", text)


def test_a_group_that_had_given_up_names_why() -> None:
    failed = failure("OutputWrong")
    before = group(1, "a", failed=failed).model_copy(update={"state": GroupPhase.GAVE_UP})
    ((_, text),) = told(before, group(2, "b", failed=failed))
    assert " after OutputWrong (it was OutputWrong): " in text


def test_a_failure_names_its_mac() -> None:
    failed = failure("OutOfMemory").model_copy(update={"node": "b"})
    ((_, text),) = told(group(1, "a", "b"), group(2, "a", "c", failed=failed))
    assert " after OutOfMemory on b (it was OutOfMemory): " in text


def test_an_old_failure_is_no_reason() -> None:
    old = failure("NodeNotReady")
    assert told(group(1, "a", failed=old), group(2, "b", failed=old)) == [
        ("Moved", "group 0 moves from a to b, placement (epoch) 2: fewest Macs that fit")
    ]


def test_a_first_place_and_the_same_place_again() -> None:
    assert told(None, group(1, "a")) == [("Placed", "group 0 is placed on a, placement (epoch) 1: fewest Macs that fit")]
    assert told(group(1, "a"), group(1, "a")) == []
    assert told(group(1, "a"), group(2, "a", failed=failure("CrashLoop"))) == [
        (
            "Placed",
            "group 0 is placed on a again, placement (epoch) 2, after CrashLoop (it was CrashLoop): fewest Macs that fit",
        )
    ]


def cable(name: str) -> ThunderboltLink:
    ends = {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 1}}
    return ThunderboltLink.load({"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": ends, "status": {}})


class Server:
    """Takes Events, or answers with an error. ``busy``: whether rounds wait."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.tried: list[str] = []
        self.names = set[str]()
        self.error: ApiError | None = None
        self.answers = True
        """Whether what was written is answered."""
        self.busy = False
        self.asked = 0

    def is_busy(self) -> bool:
        self.asked += 1
        return self.busy

    async def create(self, path: str, body: Any) -> Any:
        assert path == "/api/v1/namespaces/default/events"
        event = f"{body['involvedObject']['name']} {body['reason']}"
        self.tried.append(event)
        if self.error is not None:
            raise self.error
        if body["reason"] == "Refused":
            raise ApiError(403, "Forbidden", "no")
        if body["metadata"]["name"] in self.names:
            raise ApiError(409, "AlreadyExists", "there is one")
        self.names.add(body["metadata"]["name"])
        self.written.append(event)
        if not self.answers:
            await asyncio.Event().wait()
        return body


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    for name in ("PAUSE_SECONDS", "RETRY_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(f"thunderfleet_operator.act.events.{name}", 0.001)
    return Server()


@pytest.fixture
def events(server: Server) -> Events:
    kube: Any = server
    return Events(kube, Metrics(), "operator-0", server.is_busy)


@asynccontextmanager
async def running(events: Events) -> AsyncIterator[None]:
    run = asyncio.create_task(events.run())
    try:
        yield
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def happen(events: Events, *texts: str) -> None:
    """``texts``: a cable and a reason each."""
    for text in texts:
        name, _, reason = text.partition(" ")
        events.later(cable(name), Occurrence(reason, "text", warning=reason == "Unplugged"))


async def test_events_are_written_later_in_their_order_and_refused_ones_left_out(server: Server, events: Events) -> None:
    async with running(events):
        happen(events, "one Connected", "one Refused", "two Connected")
        assert not server.tried, "the round that has seen it does not wait"
        await until_async(lambda: len(server.written) == 2)
        happen(events, "one Unplugged")
        await until_async(lambda: len(server.written) == 3)
    assert server.written == ["one Connected", "two Connected", "one Unplugged"]
    assert server.tried.count("one Refused") == 1


async def test_statuses_come_before_events_and_cannot_hold_them_up_for_ever(
    server: Server, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_operator.act.events.BUSY_SECONDS", 3600.0)
    server.busy = True
    async with running(events):
        happen(events, *(f"{number} Connected" for number in range(5)))
        await until_async(lambda: server.asked > 20)
        assert server.written == ["0 Connected"]
        server.busy = False
        await until_async(lambda: len(server.written) == 5)
        server.busy = True
        monkeypatch.setattr("thunderfleet_operator.act.events.BUSY_SECONDS", 0.01)
        happen(events, *(f"{number} Unplugged" for number in range(5)))
        await until_async(lambda: len(server.written) == 10)


async def test_no_event_is_lost_while_the_api_server_is_away(
    server: Server, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_operator.act.events.TRIES", 10**6)
    server.error = ApiError(0, "Unreachable", "away")
    async with running(events):
        happen(events, "one Unplugged", "two Unplugged")
        await until_async(lambda: len(server.tried) >= 3)
        server.error = None
        await until_async(lambda: len(server.written) == 2)
    assert server.written == ["one Unplugged", "two Unplugged"]


@pytest.mark.parametrize(("status", "tries"), [(0, TRIES), (429, TRIES), (503, TRIES), (500, 1), (403, 1), (422, 1)])
async def test_an_event_that_cannot_be_written_holds_up_no_other(
    server: Server, events: Events, status: int, tries: int
) -> None:
    """The API server says 500 for an Event that an admission webhook cannot judge, however often it is tried."""
    server.error = ApiError(status, "Refused", "this one")
    async with running(events):
        happen(events, "one Unplugged", "two Unplugged")
        await until_async(lambda: "two Unplugged" in server.tried)
    assert server.tried.count("one Unplugged") == tries


async def test_what_waits_when_the_operator_ends_is_written_then_and_once(server: Server, events: Events) -> None:
    """Also what it has seen as the leader, which it may not be any more: the next one does not see it."""
    server.answers = False
    async with running(events):
        happen(events, "one Unplugged", "two Unplugged", "three Unplugged")
        await until_async(lambda: len(server.written) == 1)
    server.answers = True
    await events.end()
    assert server.written == ["one Unplugged", "two Unplugged", "three Unplugged"]
    server.error = ApiError(0, "Unreachable", "away")
    happen(events, "one Connected", "two Connected")
    await events.end()
    assert server.tried[-2:] == ["three Unplugged", "one Connected"], "it does not wait for an API server that is away"


async def test_no_more_events_wait_than_the_bound_and_the_last_are_warnings(
    server: Server, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_operator.act.events.MOST_WAITING", 3)
    monkeypatch.setattr("thunderfleet_operator.act.events.MOST_NORMAL", 2)
    happen(events, "a Connected", "b Connected", "c Connected", "d Unplugged", "e Unplugged")
    await events.end()
    assert server.written == ["a Connected", "b Connected", "d Unplugged"]
