"""Events of new placements, and the causes that they name; when Events are written."""

from datetime import UTC, datetime
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure, Group, ModelDeploymentStatus, Rank
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.events import Events
from thunderfleet_operator.decide.status.events import Occurrence, occurrences
from thunderfleet_operator.metrics import Metrics

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


async def test_events_are_written_later_in_their_order_and_only_in_their_term(monkeypatch: pytest.MonkeyPatch) -> None:
    written, term = list[str](), [1]

    class Kube:
        async def create(self, path: str, body: Any) -> Any:
            if body["reason"] == "Refused":
                raise ApiError(403, "Forbidden", "no")
            written.append(f"{path} {body['involvedObject']['name']} {body['reason']}")
            return body

    kube: Any = Kube()
    events = Events(kube, Metrics(), lambda: term[0], "operator-0")
    for name, reason in (("one", "Connected"), ("one", "Refused"), ("two", "Connected")):
        events.later(cable(name), Occurrence(reason, "text"))
    assert not written
    await events.write()
    folder = "/api/v1/namespaces/default/events"
    assert written == [f"{folder} one Connected", f"{folder} two Connected"]

    events.later(cable("one"), Occurrence("Unplugged", "text"))
    term[0] = 2
    events.later(cable("two"), Occurrence("Unplugged", "text"))
    await events.write()
    assert written[2:] == [f"{folder} two Unplugged"], "the leader between the two terms may have seen something else"

    monkeypatch.setattr("thunderfleet_operator.act.events.MOST_WAITING", 1)
    for name in ("three", "four"):
        events.later(cable(name), Occurrence("Connected", "text"))
    await events.write()
    assert written[3:] == [f"{folder} three Connected"], "no more wait than the bound"
