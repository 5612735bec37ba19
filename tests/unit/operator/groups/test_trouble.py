"""Why a placement failed: each cause, its limit, and similar states that are no failure."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_operator.decide.group.trouble import Trouble, trouble
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.placement import AddressKind, AddressKinds, Fleet, Kind, Mac

from tests.unit.operator.values import NODES, NOW, group_status, not_ready, pod, report, view

READY = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING)
SILENT = report(None)


def found(group: GroupView, said: Report = SILENT, nodes: dict[str, Node] | None = None, fleet: Fleet | None = None) -> Trouble:
    return trouble(group, said, NODES if nodes is None else nodes, fleet or Fleet(), NOW)


def failed(group: GroupView, said: Report = SILENT, nodes: dict[str, Node] | None = None) -> Failure:
    failure = found(group, said, nodes).failure
    assert failure is not None
    return failure


def facts(failure: Failure) -> tuple[str, FaultClass, str | None, int | None]:
    return failure.reason, failure.class_, failure.node, failure.rank


def test_nothing_is_wrong_with_a_group_that_runs_or_has_no_plan() -> None:
    assert found(view(), READY) == found(view()) == Trouble()
    empty = replace(view(), epoch=None)
    assert found(empty, report(GroupPhase.GAVE_UP)) == Trouble()


def test_a_changed_address_is_the_first_cause() -> None:
    """Whatever the runner says of it, who cannot reach its peers any more; and the Mac is not to be avoided for it."""
    said = {"fault": "Replan", "reason": "AddressLost", "message": "no longer has", "rank": 1, "node": "b", "at": NOW}
    gone = report(GroupPhase.GAVE_UP, failure=said)
    nodes = {**NODES, "b": replace(NODES["b"], address="10.0.0.99")}
    for told in (SILENT, READY, gone):
        failure = found(view(), told, nodes).failure
        assert failure is not None
        assert facts(failure) == ("AddressLost", FaultClass.RETRY, "b", 1)
        assert failure.message == "the address of Node b changed from 10.0.0.2 to 10.0.0.99"
    assert facts(failed(view(), gone)) == ("AddressLost", FaultClass.REPLAN, "b", 1), "another one of its addresses"


@pytest.mark.parametrize(("own", "moved"), [(("10.0.0.99",), True), (("10.0.0.99", "10.0.0.2"), False)])
def test_a_mac_that_still_has_the_planned_address_serves_on(own: tuple[str, ...], moved: bool) -> None:
    """Its Node has that of another interface now, say of Ethernet in place of Wi-Fi."""
    kinds = AddressKinds.of(dict.fromkeys(own, AddressKind(Kind.ETHERNET, True, 0)))
    fleet = Fleet([Mac("b", "10.0.0.99", 0, kinds=kinds)])
    nodes = {**NODES, "b": replace(NODES["b"], address="10.0.0.99")}
    assert (found(view(), READY, nodes, fleet).failure is not None) == moved


def test_a_runner_that_gives_up_says_why() -> None:
    said = {"fault": "Reboot", "reason": "StackHung", "message": "no answer", "rank": 1, "node": "b", "at": NOW}
    failure = failed(view(), report(GroupPhase.GAVE_UP, failure=said))
    assert facts(failure) == ("StackHung", FaultClass.REBOOT, "b", 1)
    assert (failure.message, failure.time) == ("no answer", NOW)
    blamed = failed(view(), report(GroupPhase.GAVE_UP, failure={**said, "node": "a-mac-of-others", "fault": "Reboot"}))
    assert blamed.node is None, "it is not put into quarantine"
    nameless = failed(view(), report(GroupPhase.GAVE_UP, failure={**said, "reason": ""}))
    assert nameless.reason == Reason.GAVE_UP
    mute = failed(view(), report(GroupPhase.GAVE_UP, message="no more attempts"))
    assert facts(mute) == ("GaveUp", FaultClass.BUG, None, None) and mute.message == "no more attempts"
    assert failed(view(), report(GroupPhase.GAVE_UP)).message == (
        "rank 0 gave up without a reason: see `kubectl logs -n ns md-0-e1-0`, before the pod is replaced"
    )


def test_a_deleted_node_and_a_lost_pod() -> None:
    failure = failed(view(), READY, {"a": NODES["a"]})
    assert facts(failure) == ("NodeGone", FaultClass.REPLAN, "b", 1) and "Node b has been deleted" in failure.message
    started = view(pod(0), status=group_status(GroupPhase.STARTING))
    assert facts(failed(started)) == ("PodGone", FaultClass.RETRY, None, 1)
    for fresh in (None, group_status(GroupPhase.PENDING), group_status(GroupPhase.READY, epoch=2)):
        assert found(view(pod(0), status=fresh)) == Trouble(), "its pods have not been created yet"


@pytest.mark.parametrize(
    ("more", "schedulable", "reason", "fault", "node"),
    [
        ({"terminating": NOW - timedelta(seconds=3)}, True, "PodDeleted", FaultClass.RETRY, None),
        ({"terminating": NOW - timedelta(seconds=3), "evicted": True}, True, "Evicted", FaultClass.REPLAN, "b"),
        ({"terminating": NOW - timedelta(seconds=3)}, False, "Evicted", FaultClass.REPLAN, "b"),
        ({"phase": "Failed", "message": "out of disk"}, True, "PodFailed", FaultClass.REPLAN, "b"),
    ],
)
def test_how_a_pod_ended(more: dict[str, Any], schedulable: bool, reason: str, fault: FaultClass, node: str | None) -> None:
    nodes = {**NODES, "b": replace(NODES["b"], schedulable=schedulable)}
    failure = failed(view(pod(0), pod(1, **more)), READY, nodes)
    assert facts(failure) == (reason, fault, node, 1)
    at: datetime = more.get("terminating", NOW)
    assert failure.time == at and more.get("message", "md-0-e1-1") in failure.message


def test_a_pod_that_failed_without_a_word() -> None:
    assert failed(view(pod(0), pod(1, phase="Failed"))).message == "pod md-0-e1-1 failed: no reason given"


def test_the_scheduler_has_ten_seconds_and_longer_beside_a_predecessor() -> None:
    def waiting(seconds: float, *others: Any) -> GroupView:
        since = NOW - timedelta(seconds=seconds)
        blocked = pod(1, phase="Pending", running=False, unschedulable_since=since, unschedulable_message="Insufficient memory")
        return view(pod(0), blocked, *others)

    assert facts(failed(waiting(10))) == ("Unschedulable", FaultClass.REPLAN, "b", 1)
    assert "Insufficient memory" in failed(waiting(10)).message
    early = found(waiting(9))
    assert early.failure is None and early.recheck_seconds == pytest.approx(1.1)
    old = pod(1, name="md-0-e0-1", epoch=0, terminating=NOW)
    assert found(waiting(99, old)) == Trouble(), "the room is about to be free"
    assert found(waiting(99, replace(old, terminating=None))).failure is not None
    assert found(waiting(99, replace(old, node="a"))).failure is not None


def test_a_crashing_supervisor_is_quoted() -> None:
    def crashing(restarts: int, words: str, looping: bool = True) -> GroupView:
        return view(pod(0), pod(1, crash_looping=looping, restarts=restarts, last_words=words, waiting="CrashLoopBackOff: 10s"))

    typed = failed(crashing(1, "PortTaken (Replan): port 20001 is taken"))
    assert facts(typed) == ("PortTaken", FaultClass.REPLAN, "b", 1) and typed.message == "port 20001 is taken"
    crash = failed(crashing(5, "Traceback\nKeyError: 'odd'"))
    assert facts(crash) == ("CrashLoop", FaultClass.BUG, "b", 1)
    assert "exited 5 times: KeyError: 'odd'; see `kubectl logs -n ns --previous md-0-e1-1`" in crash.message
    assert "CrashLoopBackOff: 10s" in failed(crashing(5, "")).message
    assert found(crashing(4, "Traceback")) == Trouble()
    assert found(crashing(5, "PortTaken (Replan): x", looping=False)) == Trouble()
    assert found(crashing(5, "PortTaken (Replan): x"), READY) == Trouble(), "the group serves all the same"


def test_a_group_that_stays_stopped_is_restarted() -> None:
    stopped = report(GroupPhase.DRAINING, RankPhase.JOINED, RankPhase.JOINED, since=60)
    assert facts(failed(view(), stopped)) == ("Stopped", FaultClass.RETRY, None, None)
    assert found(view(), report(GroupPhase.DRAINING, since=59.9)) == Trouble()
    assert found(view(), report(GroupPhase.LOADING, since=3600)) == Trouble()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (report(GroupPhase.WAITING, RankPhase.JOINED, RankPhase.ABSENT), "rank 0 has lost the connection to it"),
        (report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING, silent=60), "has not answered for a minute"),
        (report(None, silent=60), "has not answered for a minute"),
    ],
)
def test_a_mac_that_is_not_ready_counts_when_the_group_has_lost_it_too(said: Report, why: str) -> None:
    failure = failed(view(), said, not_ready("b"))
    assert facts(failure) == ("NodeNotReady", FaultClass.REPLAN, "b", 1) and why in failure.message


@pytest.mark.parametrize(
    "said", [READY, report(None, silent=59.9), report(GroupPhase.WAITING, RankPhase.ABSENT, RankPhase.JOINED)]
)
def test_a_mac_that_is_only_not_ready_is_checked_again(said: Report) -> None:
    assert found(view(), said, not_ready("b")) == Trouble(recheck_seconds=5.0)


def test_a_scheduler_whose_clock_is_ahead_hides_no_failure() -> None:
    ahead = pod(1, running=False, unschedulable_since=NOW + timedelta(days=365), unschedulable_message="Insufficient memory")
    assert failed(view(pod(0), ahead), SILENT).reason == "Unschedulable"
    slightly = pod(1, running=False, unschedulable_since=NOW + timedelta(seconds=30))
    assert found(view(pod(0), slightly), SILENT).recheck_seconds == pytest.approx(10.1)


def test_the_earliest_look_counts() -> None:
    since = NOW - timedelta(seconds=8)
    blocked = pod(1, running=False, unschedulable_since=since)
    assert found(view(pod(0), blocked), SILENT, not_ready("a")).recheck_seconds == pytest.approx(2.1)
    later = pod(1, running=False, unschedulable_since=NOW)
    assert found(view(pod(0), later), SILENT, not_ready("a")).recheck_seconds == 5.0
