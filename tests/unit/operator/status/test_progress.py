"""The conditions Reconciling and Stalled, as tools that know only generic conditions read them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure, ModelDeployment, ModelDeploymentStatus
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.status.deployment import build
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.placement import Unplaceable

from tests.unit.operator.values import NOW, plan, pod, report, view

FOUND = Resolution(True, "Found", "it is there")
READY = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING, readySince=NOW, message="serves")
NO_ROOM = Unplaceable(Reason.NO_ROOM, "no Mac has room")
SERVES = Outcome(view(), NextStep(Step.KEEP), READY)
LOADS = replace(SERVES, report=report(GroupPhase.LOADING, message="loads"))
UNPLACED = Outcome(replace(view(), epoch=None, pods=()), NextStep(Step.PLACE), report(None), unplaceable=NO_ROOM)


def deployment(generation: int = 3, **spec: Any) -> ModelDeployment:
    return ModelDeployment.load(
        {
            "metadata": {"name": "md", "namespace": "ns", "uid": "uid", "generation": generation},
            "spec": {"model": {"repository": "org/tiny"}, **spec},
        }
    )


def after(
    before: ModelDeploymentStatus | None,
    outcomes: Sequence[Outcome],
    *,
    now: datetime = NOW,
    found: Resolution = FOUND,
    generation: int = 3,
    spec: dict[str, Any] | None = None,
    **more: Any,
) -> ModelDeploymentStatus:
    """The status that follows ``before``."""
    made = deployment(generation, **{"replicas": len(outcomes), **(spec or {})})
    if before is not None:
        made = made.model_copy(update={"status": before})
    return build(made, outcomes, found, (), now, **more)


def shown(status: ModelDeploymentStatus) -> tuple[str, str, str, str]:
    """Status and reason of Reconciling, then of Stalled."""
    reconciling, stalled = (find_condition(status.conditions, kind) for kind in ("Reconciling", "Stalled"))
    assert reconciling is not None and stalled is not None
    assert not (reconciling.status == stalled.status == "True"), "tools would read one of them only"
    assert reconciling.observed_generation == stalled.observed_generation
    return reconciling.status, reconciling.reason, stalled.status, stalled.reason


IDLE = ("False", "AsExpected")
WORKS = ("True", "Progressing", *IDLE)


def test_what_serves_is_neither() -> None:
    assert shown(after(None, [SERVES])) == ("False", "Ready", *IDLE)


def test_what_starts_is_reconciling() -> None:
    assert shown(after(None, [LOADS])) == shown(after(None, [SERVES, LOADS])) == WORKS


def test_an_old_spec_is_reconciling_although_its_group_serves() -> None:
    old = replace(SERVES, outdated=True)
    status = after(None, [old])
    assert shown(status) == ("True", "RollingOut", *IDLE)
    told = [find_condition(one.conditions, "Reconciling") for one in (status, after(None, [old, old]))]
    assert [one.message for one in told if one is not None] == [
        "1 group has an earlier spec and will be replaced",
        "2 groups have an earlier spec and will be replaced",
    ]
    assert next(one for one in status.conditions if one.type == "Ready").status == "True"
    assert shown(after(None, [replace(old, placed_now=True)]))[1] != "RollingOut"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"replicas": 0}, "ScaledToZero"),
        ({"replicas": 2, "suspend": True}, "Suspended"),
        ({"replicas": 0, "autoscaling": {"minReplicas": 0}}, "Asleep"),
    ],
)
def test_no_group_is_what_was_asked_for(spec: dict[str, Any], reason: str) -> None:
    assert shown(after(None, [], spec=spec)) == ("False", reason, *IDLE)
    assert shown(after(None, [], spec=spec, ending=2)) == ("True", "Stopping", *IDLE)


def failed(class_: FaultClass) -> Failure:
    return Failure(class_=class_, reason="RDMADisabled", message="is off", time=NOW)


@pytest.mark.parametrize(
    ("step", "class_", "stalled"),
    [
        (Step.GIVE_UP, FaultClass.RETRY, True),
        (Step.GIVE_UP, FaultClass.CONFIGURE, True),
        (Step.BACK_OFF, FaultClass.CONFIGURE, True),
        (Step.BACK_OFF, FaultClass.RETRY, False),
        (Step.BACK_OFF, FaultClass.REPLAN, False),
        (Step.BACK_OFF, FaultClass.REBOOT, False),
    ],
)
def test_a_group_that_a_person_must_help_is_stalled(step: Step, class_: FaultClass, stalled: bool) -> None:
    gone = Outcome(view(), NextStep(step, failed(class_), NOW + timedelta(seconds=9)), report(None))
    status = after(None, [SERVES, replace(gone, view=replace(view(), index=1))])
    assert shown(status) == (("False", "ActionRequired", "True", "RDMADisabled") if stalled else WORKS)
    assert shown(after(status, [SERVES, LOADS])) == WORKS, "it starts again"


def backing_off(before: ModelDeploymentStatus | None, class_: FaultClass = FaultClass.CONFIGURE) -> Outcome:
    status = before.groups[0] if before is not None else None
    gone = failed(class_).model_copy(update={"node": "b"})
    return Outcome(replace(view(), status=status), NextStep(Step.BACK_OFF, gone, NOW + timedelta(seconds=300)), report(None))


def starting(before: ModelDeploymentStatus, **more: Any) -> Outcome:
    """A group that starts again, and knows why it failed before."""
    fields: dict[str, Any] = {"view": replace(view(), status=before.groups[0]), **more}
    return replace(LOADS, **fields)


def test_restarts_do_not_end_stalled_before_the_group_serves() -> None:
    """Each of them fails in the same way until a person has mended the fault; tools would see failure and progress in turn."""
    first = status = after(None, [backing_off(None)])
    since = [one.last_transition_time for one in status.conditions if one.type in ("Reconciling", "Stalled")]
    stalled = ("False", "ActionRequired", "True", "RDMADisabled")
    for restart in range(1, 4):
        now = NOW + timedelta(seconds=300 * restart)
        for message in ("rank 0: 10 %", "rank 0: 20 %"):
            loads = report(GroupPhase.LOADING, RankPhase.LOADING, RankPhase.LOADING, message=message)
            starts = after(status, [starting(status, report=loads)], now=now)
            assert shown(starts) == stalled
            told = next(one.message for one in starts.conditions if one.type == "Stalled")
            assert told == "group 0 starts again after RDMADisabled: is off", "no progress, which would be written each time"
            status = starts
        status = after(status, [backing_off(status)], now=now)
        assert shown(status) == stalled
    assert [one.last_transition_time for one in status.conditions if one.type in ("Reconciling", "Stalled")] == since
    serves = after(status, [replace(SERVES, view=replace(view(), status=status.groups[0]))])
    assert shown(serves) == ("False", "Ready", *IDLE)
    assert shown(after(serves, [starting(serves)])) == WORKS, "a later start has nothing to do with that failure"
    # Without the fault that a person must mend, it is an ordinary start.
    assert shown(after(first, [starting(first)], generation=4)) == WORKS, "the spec was changed"
    elsewhere = starting(first, view=replace(view(made=plan(nodes=("a", "c"))), status=first.groups[0]))
    assert shown(after(first, [elsewhere])) == WORKS, "it is not on that Mac any more"
    retried = after(None, [backing_off(None, FaultClass.RETRY)])
    assert shown(after(retried, [starting(retried)])) == WORKS


def test_what_the_api_server_refuses_is_stalled() -> None:
    refused = replace(UNPLACED, unplaceable=None, blocked=Blocked(Reason.POD_REFUSED, "quota"))
    assert shown(after(None, [refused]))[2:] == ("True", "PodRefused")
    taken = after(None, [SERVES], service=Blocked(Reason.NAME_TAKEN, "Service md exists"))
    assert shown(taken) == ("False", "ActionRequired", "True", "NameTaken")


def test_no_place_is_stalled_after_ten_minutes_of_the_same_spec() -> None:
    first = after(None, [UNPLACED])
    assert shown(first) == WORKS
    before = after(first, [UNPLACED], now=NOW + timedelta(seconds=599))
    assert before == first, "nothing is written while nothing changes"
    late = NOW + timedelta(seconds=600)
    stuck = after(first, [UNPLACED], now=late)
    assert shown(stuck) == ("False", "ActionRequired", "True", "NoRoom")
    assert after(stuck, [UNPLACED], now=late + timedelta(days=1)) == stuck
    edited = after(stuck, [UNPLACED], now=late, generation=4)
    assert shown(edited) == WORKS, "the time starts again with another spec"
    assert shown(after(edited, [UNPLACED], now=late + timedelta(seconds=599), generation=4)) == WORKS
    assert shown(after(edited, [UNPLACED], now=late + timedelta(seconds=600), generation=4))[3] == "NoRoom"
    assert shown(after(stuck, [LOADS], now=late)) == WORKS


def test_a_group_that_loses_its_place_late_has_the_whole_time() -> None:
    loading = after(None, [LOADS])
    lost = after(loading, [UNPLACED], now=NOW + timedelta(seconds=900))
    assert shown(lost) == WORKS
    assert shown(after(lost, [UNPLACED], now=NOW + timedelta(seconds=1499))) == WORKS
    assert shown(after(lost, [UNPLACED], now=NOW + timedelta(seconds=1500)))[3] == "NoRoom"


def test_a_time_in_the_future_does_not_hold_it_up() -> None:
    ahead = after(None, [UNPLACED], now=NOW + timedelta(days=365))
    assert shown(after(ahead, [UNPLACED], now=NOW))[2] == "True"


@pytest.mark.parametrize(("reason", "at_once"), [("RepositoryNotFound", True), ("HubUnreachable", False)])
def test_what_the_hub_refuses_is_stalled_at_once(reason: str, at_once: bool) -> None:
    missing = Resolution(False, reason, "see the hub")
    status = after(None, [UNPLACED], found=missing)
    assert shown(status) == (("False", "ActionRequired", "True", reason) if at_once else WORKS)
    assert shown(after(status, [UNPLACED], found=missing, now=NOW + timedelta(seconds=600)))[3] == reason


def test_pods_with_scheduling_gates_wait_and_are_no_failure() -> None:
    gate = "kueue.x-k8s.io/admission"
    gated = view(*(pod(rank, scheduled=False, running=False, gates=(gate,)) for rank in (0, 1)))
    waits = Outcome(gated, NextStep(Step.KEEP), report(None))
    status = after(None, [waits])
    ready = next(one for one in status.conditions if one.type == "Ready")
    assert (ready.status, ready.reason) == ("False", "SchedulingGated")
    assert f"pod md-0-e1-0 waits until its scheduling gates are removed: {gate}" in ready.message
    assert shown(status) == WORKS
    assert shown(after(status, [waits], now=NOW + timedelta(days=7))) == WORKS


def test_a_group_shows_the_version_of_its_runner() -> None:
    told = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING, runnerVersion="0.2.0")
    status = after(None, [replace(SERVES, report=told)])
    assert status.groups[0].runner_version == "0.2.0"
    silent = replace(SERVES, report=report(None), view=replace(view(), status=status.groups[0]))
    assert after(status, [silent]).groups[0].runner_version == "0.2.0"
    other = replace(silent, view=replace(view(), status=status.groups[0].model_copy(update={"epoch": 9})))
    assert after(status, [other]).groups[0].runner_version is None
    assert after(status, [SERVES]).groups[0].runner_version is None, "a runner of an earlier version does not say it"


def test_the_benchmark_names_the_versions_of_mlx() -> None:
    told = {
        "prefillTokensPerSecond": 900.0,
        "timeToFirstTokenMicroseconds": 4000,
        "promptTokens": 512,
        "generationTokens": 128,
        "measuredAt": NOW,
    }
    serving = (GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING)
    new = report(*serving, benchmark={**told, "mlxVersion": "0.31.0", "mlxLmVersion": "0.30.1"})
    found = after(None, [replace(SERVES, report=new)]).benchmark
    assert found is not None and (found.mlx_version, found.mlx_lm_version) == ("0.31.0", "0.30.1")
    old = after(None, [replace(SERVES, report=report(*serving, benchmark=told))]).benchmark
    assert old is not None and old.mlx_version is None
