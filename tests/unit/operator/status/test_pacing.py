"""How often the status of a ModelDeployment is written: progress seldom, what people and other programs act on at once."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import (
    AutoscalingStatus,
    Failure,
    Group,
    ModelDeploymentStatus,
    Rank,
    TerminatingPod,
    Unplaceable,
    VerifiedStatus,
)
from thunderfleet_crds.meta.conditions import set_condition
from thunderfleet_crds.vocabulary import ConditionStatus, CopyPhase, FaultClass, GroupPhase, RankPhase
from thunderfleet_crds.weights.copies import MacCopy
from thunderfleet_operator.act.pacing import PAUSE_LIMIT, Pacing

from tests.unit.operator.values import NOW

Change = Callable[[ModelDeploymentStatus], ModelDeploymentStatus]
CABLE = "a.tb1--b.tb1"


def condition(kind: str, status: bool | None, reason: str, message: str = "") -> Change:
    def change(before: ModelDeploymentStatus) -> ModelDeploymentStatus:
        found = set_condition(before.conditions, kind, status, reason, message, now=NOW, observed_generation=1)
        return before.model_copy(update={"conditions": found})

    return change


def group(**fields: Any) -> Change:
    return lambda before: before.model_copy(update={"groups": (before.groups[0].model_copy(update=fields),)})


def rank(**fields: Any) -> Change:
    return lambda before: group(ranks=(before.groups[0].ranks[0].model_copy(update=fields),))(before)


def failure(**fields: Any) -> Change:
    def change(before: ModelDeploymentStatus) -> ModelDeploymentStatus:
        last = before.groups[0].last_failure
        assert last is not None
        return group(last_failure=last.model_copy(update=fields))(before)

    return change


def whole(**fields: Any) -> Change:
    return lambda before: before.model_copy(update=fields)


def starting() -> ModelDeploymentStatus:
    """A group that starts again after a cable has failed."""
    last = Failure(class_=FaultClass.REPLAN, reason="CableGone", link=CABLE, message="a sees no peer", time=NOW)
    one = Group(index=0, epoch=2, state=GroupPhase.STARTING, ranks=(Rank(rank=0, node="a"),), last_failure=last)
    copies = (MacCopy(node="a", phase=CopyPhase.COPYING, bytes=100, bytes_done=10),)
    unchecked = condition("Verified", None, "NotVerified")(ModelDeploymentStatus(groups=(one,), copies=copies))
    return condition("Bootstrapped", False, "NotFormed")(condition("Ready", False, "Starting")(unchecked))


PROGRESS: dict[str, Change] = {
    "text of a condition": condition("Ready", False, "Starting", "pod a-0 is starting"),
    "state of a group that starts": group(state=GroupPhase.WAITING, message="waiting for rank 1"),
    "the same state as reason of Ready": condition("Ready", False, "Waiting", "waiting for rank 1"),
    "the group has formed": condition("Bootstrapped", True, "Formed"),
    "the first checks have passed": group(verified=VerifiedStatus(status=ConditionStatus.TRUE, reason="Verified")),
    "the condition of these checks": condition("Verified", True, "Verified"),
    "state of a rank": rank(state=RankPhase.JOINED),
    "loaded weights": rank(loaded_bytes=1, total_bytes=2),
    "another attempt": rank(attempts=2, last_error="address already in use"),
    "the other end of the cable reports it too": failure(message="a sees no peer; b sees no peer"),
    "rank 0 answers": group(runner_version="0.2.0", verified=None),
    "a pod has ended": whole(terminating_pods=(TerminatingPod(name="md-0-e1-0", node="a"),)),
    "why there is no other placement": whole(unplaceable=(Unplaceable(message="no Mac has room"),)),
    "bytes of a copy": whole(copies=(MacCopy(node="a", phase=CopyPhase.COPYING, bytes=100, bytes_done=20),)),
    "requests of autoscaling": whole(autoscaling=AutoscalingStatus(replicas=1, message="4.2 requests")),
}
AT_ONCE: dict[str, Change] = {
    "Ready": condition("Ready", True, "Ready"),
    "not Ready for another reason": condition("Ready", False, "CableGone"),
    "a failed check": condition("Verified", False, "OutputWrong"),
    "another generation": lambda before: before.model_copy(update={"observed_generation": 2}),
    "endpoint": whole(endpoint="http://10.0.0.1:20000/v1"),
    "placement": group(epoch=3),
    "another Mac": rank(node="b"),
    "a failure of another kind": failure(reason="PodGone"),
    "a failure on another Mac": failure(node="b"),
    "a later failure": failure(time=NOW + timedelta(seconds=1)),
    "the back-off": group(next_restart_time=NOW),
    "the group backs off": group(state=GroupPhase.BACKING_OFF),
    "the group gave up": group(state=GroupPhase.GAVE_UP),
    "the intake fails": group(intake="it does not answer"),
    "a check of a group has failed": group(verified=VerifiedStatus(status=ConditionStatus.FALSE, reason="OutputWrong")),
    "a copy is complete": whole(copies=(MacCopy(node="a", phase=CopyPhase.COMPLETE, bytes=100, bytes_done=100),)),
    "number of groups": whole(autoscaling=AutoscalingStatus(replicas=2)),
}


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def base() -> ModelDeploymentStatus:
    return whole(autoscaling=AutoscalingStatus(replicas=1, message="3.1 requests"))(starting())


@pytest.mark.parametrize("name", PROGRESS)
def test_progress_is_put_off(name: str) -> None:
    clock = Clock()
    pacing, before = Pacing(clock=clock), base()
    after = PROGRESS[name](before)
    assert after != before
    assert pacing.left("ns/md", before, after) == 0, "a new operator does not know when the last one has written"
    pacing.wrote("ns/md", before, before)
    assert pacing.left("ns/md", before, after) == 1
    clock.now += 1
    assert pacing.left("ns/md", before, after) == 0


@pytest.mark.parametrize("name", AT_ONCE)
def test_everything_else_is_written_at_once(name: str) -> None:
    pacing, before = Pacing(clock=Clock()), base()
    after = AT_ONCE[name](before)
    assert after != before
    pacing.wrote("ns/md", before, before)
    assert pacing.left("ns/md", before, after) == 0
    for progress in PROGRESS.values():
        assert pacing.left("ns/md", before, AT_ONCE[name](progress(before))) == 0


def test_what_has_been_checked_is_written_at_once_when_no_group_starts() -> None:
    pacing, unknown = Pacing(clock=Clock()), VerifiedStatus(status=ConditionStatus.UNKNOWN, reason="NotVerified")
    before = group(state=GroupPhase.READY, verified=unknown)(base())
    pacing.wrote("ns/md", before, before)
    for change in (PROGRESS["the first checks have passed"], PROGRESS["the condition of these checks"]):
        assert change(before) != before and pacing.left("ns/md", before, change(before)) == 0


def writes(pacing: Pacing, clock: Clock, status: ModelDeploymentStatus, seconds: float) -> tuple[list[float], Any]:
    """When the status is written while a rank loads something more every 0.25 s; and the last one."""
    found, began = list[float](), clock.now
    for step in range(int(seconds / 0.25)):
        after = rank(loaded_bytes=int(clock.now * 4))(status)
        if after != status and pacing.left("ns/md", status, after) == 0:
            pacing.wrote("ns/md", status, after)
            found, status = [*found, clock.now - began], after
        clock.now = began + (step + 1) * 0.25
    return found, status


def test_a_long_start_is_written_ever_less_often_until_something_else_changes() -> None:
    clock = Clock()
    pacing, status = Pacing(clock=clock), starting()
    pacing.wrote("ns/md", ModelDeploymentStatus(), status)
    found, status = writes(pacing, clock, status, 60)
    assert found[:4] == [1, 2, 3, 4], "at first, a person who watches sees each second"
    gaps = [later - one for one, later in pairwise(found)]
    assert gaps == sorted(gaps) and gaps[-1] == PAUSE_LIMIT and len(found) <= 25
    again = group(epoch=3)(status)
    assert pacing.left("ns/md", status, again) == 0
    pacing.wrote("ns/md", status, again)
    assert writes(pacing, clock, again, 3.25)[0] == [1, 2, 3]


def test_progress_that_is_put_off_is_not_put_off_again_by_more_of_it() -> None:
    clock = Clock()
    pacing, status = Pacing(clock=clock), starting()
    pacing.wrote("ns/md", ModelDeploymentStatus(), status)
    for step in range(1, 4):
        clock.now += 0.25
        assert pacing.left("ns/md", status, rank(loaded_bytes=step)(status)) == 1 - 0.25 * step


def test_a_start_after_a_failure_takes_few_writes() -> None:
    """A cable is pulled: both of its ends report it, the group goes through all stages on other Macs, within six seconds."""
    clock = Clock()
    pacing, status, count = Pacing(clock=clock), base(), 0
    pacing.wrote("ns/md", ModelDeploymentStatus(), status)
    steps: list[Change] = [
        AT_ONCE["not Ready for another reason"],
        failure(message="b sees no peer"),
        failure(message="a sees no peer; b sees no peer"),
        lambda before: condition("Ready", False, "Starting")(group(epoch=3, state=GroupPhase.STARTING)(before)),
        whole(terminating_pods=(TerminatingPod(name="md-0-e1-0"),)),
        whole(terminating_pods=()),
        *(condition("Ready", False, stage) for stage in ("Waiting", "Preparing", "Forming")),
        lambda before: condition("Bootstrapped", True, "Formed")(condition("Ready", False, "Loading")(before)),
        condition("Ready", True, "Ready"),
    ]
    wanted = status
    for change in steps:
        wanted = change(wanted)
        for _ in range(2):
            if wanted != status and pacing.left("ns/md", status, wanted) == 0:
                pacing.wrote("ns/md", status, wanted)
                status, count = wanted, count + 1
            clock.now += 0.25
    assert status == wanted and count == 3 + 3, "three changes that count, and three with progress only"
