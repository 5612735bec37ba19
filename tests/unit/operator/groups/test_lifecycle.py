"""The next step of one group, and which group a rollout replaces."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure, Group, Recovery
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step, backoff_seconds, must_drain, next_step, ready, serves
from thunderfleet_operator.decide.group.rollout import next_to_roll
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.objects.proofs import Finding, Proof
from thunderfleet_operator.placement import Cable, CableFault, End, Fleet

from tests.unit.operator.values import NODES, NOW, group_status, plan, pod, report, view

READY = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING)
LOADING = report(GroupPhase.LOADING)
RECOVERY = Recovery(max_restarts=2, backoff_seconds=10, backoff_limit_seconds=300)


def step(group: GroupView, said: Report = READY, *, spec: str = "hash", now: datetime = NOW, **more: Any) -> NextStep:
    return next_step(group, said, NODES, Fleet(), spec, RECOVERY, now, **{"may_roll": False, **more})


def gave_up(fault: str = "Bug", node: str | None = None, reason: str = "Odd") -> Report:
    failure = {"fault": fault, "reason": reason, "message": "odd", "node": node, "at": NOW}
    return report(GroupPhase.GAVE_UP, failure=failure)


def failure(reason: str = "First", fault: FaultClass = FaultClass.REPLAN) -> Failure:
    return Failure(class_=fault, reason=reason, message="it broke", node="a", time=NOW)


def waiting(until: datetime, cause: Failure | None = None, **more: Any) -> Group:
    return group_status(GroupPhase.BACKING_OFF, next_restart_time=until, last_failure=cause or failure(), **more)


@pytest.mark.parametrize(
    ("said", "running", "expected"),
    [
        (READY, True, True),
        (report(GroupPhase.READY, silent=9.9), True, True),
        (report(GroupPhase.READY, silent=10), True, False),
        (LOADING, True, False),
        (report(GroupPhase.DRAINING, RankPhase.SERVING, RankPhase.JOINED), True, True),
        (report(GroupPhase.DRAINING, RankPhase.JOINED, RankPhase.JOINED), True, False),
        (report(GroupPhase.LOADING, RankPhase.SERVING, RankPhase.LOADING), True, False),
        (report(None), True, True),
        (report(None), False, False),
        (report(None, silent=10), True, False),
    ],
)
def test_whether_requests_may_be_running(said: Report, running: bool, expected: bool) -> None:
    group = view(pod(0, running=running), pod(1))
    assert serves(group, said) == expected
    assert must_drain(group, said, 44.9) == expected and not must_drain(group, said, 45)


def test_ready_is_what_rank_0_says() -> None:
    assert ready(READY) and not ready(LOADING) and not ready(report(None))
    assert not serves(view(pod(1)), report(None)), "without its pod rank 0 serves nobody"


def test_a_cable_that_is_out_is_left_three_seconds_after_it_was_first_seen() -> None:
    def seen(reason: str, at: float, known: Group | None) -> NextStep:
        ends = End("a", "169.254.0.1"), End("b", "169.254.0.2")
        fleet = Fleet(cables=[Cable("ab", *ends, fault=CableFault(reason, "it is out"))])
        group = view(status=known, made=plan(links=("ab", "ab")))
        now = NOW + timedelta(seconds=at)
        return next_step(group, READY, NODES, fleet, "hash", RECOVERY, now, may_roll=False)

    def known(step: NextStep) -> Group:
        return group_status(GroupPhase.BACKING_OFF, next_restart_time=step.until, last_failure=step.failure)

    first = seen("PortDown", 0, None)
    assert first.failure is not None and (first.failure.reason, first.failure.link) == ("PortDown", "ab")
    until = NOW + timedelta(seconds=3)
    assert first == NextStep(Step.BACK_OFF, first.failure, until, recheck_seconds=3.0) and first.failure.time == NOW
    again = seen("PortDown", 1, known(first))
    assert again == NextStep(Step.BACK_OFF, first.failure, until, recheck_seconds=2.0)
    other = seen("NoIPv4Address", 2, known(again))
    assert (other.until, other.recheck_seconds) == (until, 1.0)
    assert other.failure is not None and other.failure.time == NOW + timedelta(seconds=2)
    assert seen("PortDown", 3, known(again)) == NextStep(Step.PLACE, first.failure, until, avoid={}, ends=True)


def test_a_group_is_placed_when_it_has_no_plan_and_kept_when_it_runs() -> None:
    assert step(replace(view(), epoch=None)) == NextStep(Step.PLACE)
    epoch = view().epoch
    assert epoch is not None
    lost = replace(epoch, finding=Finding(Proof.UNKNOWN_KEY))
    assert step(replace(view(), epoch=lost)) == NextStep(Step.KEEP)
    assert step(replace(view(pod(0)), epoch=lost)) == NextStep(Step.PLACE), "no pod is made from a plan that is not proven"
    assert step(view()) == step(view(), LOADING) == NextStep(Step.KEEP)


def test_a_changed_spec_drains_what_serves_in_its_turn() -> None:
    assert step(view(), spec="other") == NextStep(Step.KEEP)
    assert step(view(), spec="other", may_roll=True) == NextStep(Step.DRAIN, recheck_seconds=1.0)
    assert step(view(), spec="other", may_roll=True, draining_seconds=45) == NextStep(Step.PLACE)
    assert step(view(), LOADING, spec="other") == NextStep(Step.PLACE)


def test_a_failure_backs_off_and_then_places_again() -> None:
    until = NOW + timedelta(seconds=10)
    first = step(view(), gave_up())
    assert (first.step, first.until, first.recheck_seconds, first.counts) == (Step.BACK_OFF, until, 10.0, False)
    pending = view(status=waiting(until))
    assert step(pending, gave_up(), now=until - timedelta(seconds=1)).recheck_seconds == 1.0
    again = step(pending, gave_up(), now=until)
    assert (again.step, again.counts, again.until) == (Step.PLACE, True, None)
    assert again.failure == failure(), "the failure that started the wait is the cause"
    assert again.avoid == {"a": "is used only if no other Mac fits, because of the last failure there: First: it broke"}


@pytest.mark.parametrize("ahead", [timedelta(seconds=301), timedelta(days=365)])
def test_a_back_off_is_never_longer_than_its_limit(ahead: timedelta) -> None:
    """Status was written while the operator's clock was ahead; the clock has been corrected since."""
    found = step(view(status=waiting(NOW + ahead)), gave_up())
    assert (found.step, found.until, found.recheck_seconds) == (Step.BACK_OFF, NOW + timedelta(seconds=300), 300.0)


def test_the_budget_and_the_back_off() -> None:
    assert [backoff_seconds(RECOVERY, restarts) for restarts in (0, 1, 4, 5, 99)] == [10, 20, 160, 300, 300]
    assert step(view(status=group_status(restarts=1)), gave_up()).until == NOW + timedelta(seconds=20)
    assert step(view(status=group_status(restarts=2)), gave_up()).step is Step.GIVE_UP
    assert step(view(), gave_up("Configure")).until == NOW + timedelta(seconds=300), "people are slow"


@pytest.mark.parametrize(
    ("fault", "avoided"), [("Replan", True), ("Reboot", True), ("Bug", True), ("Retry", False), ("Configure", False)]
)
def test_which_macs_are_avoided(fault: str, avoided: bool) -> None:
    cause = failure(fault=FaultClass(fault))
    found = step(view(status=waiting(NOW, cause)), LOADING if fault == "Bug" else gave_up(fault))
    if found.step is Step.KEEP:
        found = step(view(status=waiting(NOW, cause)), gave_up(fault))
    assert found.step is Step.PLACE and bool(found.avoid) == avoided
    nowhere = cause.model_copy(update={"node": None})
    assert step(view(status=waiting(NOW, nowhere)), gave_up("Replan")).avoid == {}
    moved = gave_up("Replan", "a", "AddressLost")
    assert step(view(status=waiting(NOW, failure("AddressLost"))), moved).avoid == {}, "its new address is as good"


def test_a_failure_to_configure_takes_the_place_of_another_cause_but_not_of_an_eviction() -> None:
    until = NOW + timedelta(seconds=10)
    found = step(view(status=waiting(until)), gave_up("Configure", reason="NoIPv4Address"))
    assert found.failure is not None and found.failure.reason == "NoIPv4Address"
    evicted = step(view(status=waiting(until, failure("Evicted"))), gave_up("Configure"))
    assert evicted.failure is not None and evicted.failure.reason == "Evicted"


def test_an_eviction_drains_and_costs_nothing() -> None:
    evicted = view(pod(0), pod(1, terminating=NOW, evicted=True), status=group_status(restarts=2))
    found = step(evicted)
    assert (found.step, found.until, found.recheck_seconds, found.counts) == (Step.DRAIN, NOW, 1.0, False)
    stopped = step(evicted, LOADING)
    assert (stopped.step, stopped.until, stopped.counts) == (Step.PLACE, NOW, False)


def test_the_status_holds_until_rank_0_says_otherwise() -> None:
    pending = view(status=waiting(NOW + timedelta(seconds=5)))
    assert step(pending, report(None)).step is Step.BACK_OFF
    assert step(pending, LOADING).step is Step.KEEP
    given_up = view(status=group_status(GroupPhase.GAVE_UP, restarts=2, last_failure=failure()))
    assert step(given_up, report(None)) == NextStep(Step.GIVE_UP, failure())
    assert step(view(status=group_status(GroupPhase.LOADING, last_failure=failure())), report(None)).step is Step.KEEP
    older = waiting(NOW + timedelta(seconds=5), epoch=7)
    assert step(view(status=older), report(None)).step is Step.KEEP, "it is of another placement"


# --- rollout ---


def groups(*hashes: str, draining: int | None = None) -> dict[int, GroupView]:
    found = {}
    for index, spec in enumerate(hashes):
        status = group_status(GroupPhase.DRAINING if index == draining else GroupPhase.READY)
        found[index] = view(status=status, spec_hash=spec)
    return found


def test_one_group_rolls_once_all_others_serve() -> None:
    both = {0: READY, 1: READY}
    assert next_to_roll(groups("old", "old"), both, "new", set()) == 0
    assert next_to_roll(groups("new", "old"), both, "new", set()) == 1
    assert next_to_roll(groups("new", "new"), both, "new", set()) is None
    assert next_to_roll(groups("old", "old"), {0: READY, 1: LOADING}, "new", set()) is None
    assert next_to_roll(groups("old", "old"), {0: READY, 1: LOADING}, "new", {1}) == 0, "what has no place holds up nothing"
    assert next_to_roll(groups("old", "old"), {0: LOADING, 1: READY}, "new", {0}) == 1


def test_a_group_that_drains_already_comes_first() -> None:
    drains = report(GroupPhase.DRAINING, RankPhase.SERVING, RankPhase.SERVING)
    assert next_to_roll(groups("old", "old", draining=1), {0: READY, 1: drains}, "new", set()) == 1
    stopped = report(GroupPhase.DRAINING, RankPhase.JOINED, RankPhase.JOINED)
    assert next_to_roll(groups("old", "old", draining=1), {0: READY, 1: stopped}, "new", set()) is None
    assert next_to_roll(groups("old", "new", draining=1), {0: READY, 1: drains}, "new", set()) is None
