"""Events of new placements, and the causes that they name."""

from datetime import UTC, datetime

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure, Group, ModelDeploymentStatus, Rank
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_operator.decide.status.events import occurrences

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
