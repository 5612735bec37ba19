"""The status for each outcome of a round."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Failure, Group, ModelDeployment, ModelDeploymentStatus
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionType, FaultClass, GroupPhase, RankPhase, Split, Transport
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step
from thunderfleet_operator.decide.manifests import transport
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.status.deployment import build
from thunderfleet_operator.decide.status.group import endpoint, group_status, host_port
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.objects.pods import Pod
from thunderfleet_operator.placement import Unplaceable
from thunderfleet_operator.placement.result import MacReason, NearMiss

from tests.unit.operator import values
from tests.unit.operator.values import NOW, plan, pod, report, view

KEEP = NextStep(Step.KEEP)
FOUND = Resolution(True, "Found", "it is there")
READY = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING, readySince=NOW, message="serves")
NO_ROOM = Unplaceable(Reason.NO_ROOM, "no Mac has room")


def deployment(replicas: int = 1, **status: Any) -> ModelDeployment:
    return ModelDeployment.load(
        {
            "metadata": {"name": "md", "namespace": "ns", "uid": "uid", "generation": 3},
            "spec": {"model": {"repository": "org/tiny"}, "replicas": replicas, "recovery": {"maxRestarts": 4}},
            "status": status,
        }
    )


def outcome(said: Report = READY, step: NextStep = KEEP, group: GroupView | None = None, **more: Any) -> Outcome:
    return Outcome(group or view(), step, said, **more)


def entry(said: Report = READY, step: NextStep = KEEP, group: GroupView | None = None, **more: Any) -> Group:
    return group_status(outcome(said, step, group, **more), deployment())


def failure(**more: Any) -> Failure:
    return Failure(**{"class_": FaultClass.RETRY, "reason": "PodGone", "message": "pod x is gone", "time": NOW, **more})


def unplaced_view() -> GroupView:
    return replace(view(), epoch=None, pods=(), last_epoch=4)


# --- one group ---


def test_addresses_are_written_as_in_a_url() -> None:
    assert host_port("10.0.0.1", 80) == "10.0.0.1:80" and host_port("fd00::1", 80) == "[fd00::1]:80"
    assert endpoint(plan()) == "http://10.0.0.1:20000/v1"
    assert transport(plan()) is Transport.RING and transport(plan(nodes=("a",))) is Transport.NONE


def test_a_group_that_serves_has_what_rank_0_reports() -> None:
    found = entry()
    assert (found.state, found.message, found.epoch, found.uid) == (GroupPhase.READY, "serves", 1, "uid-0")
    assert (found.transport, found.parallelism, found.reason) == (Transport.RING, Split.TENSOR, "why")
    assert (found.coordinator, found.endpoint) == ("10.0.0.1:20001", "http://10.0.0.1:20000/v1")
    assert [(rank.rank, rank.node, rank.pod, rank.shard, rank.state) for rank in found.ranks] == [
        (0, "a", "md-0-e1-0", "1/2", RankPhase.SERVING),
        (1, "b", "md-0-e1-1", "2/2", RankPhase.SERVING),
    ]
    assert found.next_restart_time is None and found.last_failure is None


@pytest.mark.parametrize(("seconds", "restarts"), [(599, 2), (600, 0)])
def test_restarts_are_forgiven_after_ten_minutes(seconds: float, restarts: int) -> None:
    said = replace(READY, phase_seconds=seconds)
    assert entry(said, group=view(status=values.group_status(restarts=2))).restarts == restarts


def test_a_macs_clock_does_not_forgive_restarts() -> None:
    year = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING, readySince=NOW - timedelta(days=365))
    assert entry(year, group=view(status=values.group_status(restarts=2))).restarts == 2


def test_a_report_is_shown_for_ten_seconds_after_the_last_answer() -> None:
    assert entry(replace(READY, silent_seconds=9.9)).state is GroupPhase.READY
    found = entry(replace(READY, silent_seconds=10))
    assert (found.state, found.message) == (GroupPhase.STARTING, "rank 0 on a does not answer yet")
    assert [rank.state for rank in found.ranks] == [RankPhase.STARTING, RankPhase.STARTING]


def test_a_restarted_operator_carries_the_status_over() -> None:
    before = values.group_status(GroupPhase.LOADING, message="loading")
    assert entry(report(None), group=view(status=before)).message == "loading"
    assert entry(report(None), group=view(status=before)).ranks[0].state is RankPhase.SERVING
    assert entry(report(None, silent=10), group=view(status=before)).state is GroupPhase.STARTING
    other = before.model_copy(update={"epoch": 7})
    assert entry(report(None), group=view(status=other)).state is GroupPhase.STARTING
    for unreported in (GroupPhase.PENDING, GroupPhase.STARTING, GroupPhase.BACKING_OFF):
        stale = before.model_copy(update={"state": unreported})
        assert entry(report(None), group=view(status=stale)).message == "rank 0 on a does not answer yet"
    ends = view(pod(0), pod(1, terminating=NOW), status=before)
    assert entry(report(None), group=ends).message == "pod md-0-e1-1 on b is terminating"


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ((pod(0),), "creating pod md-0-e1-1"),
        ((pod(0), pod(1, terminating=NOW)), "pod md-0-e1-1 on b is terminating"),
        ((pod(0), pod(1, scheduled=False)), "waiting for the scheduler to bind pod md-0-e1-1 to b"),
        (
            (pod(0), pod(1, scheduled=False, unschedulable_message="no memory")),
            "waiting for the scheduler to bind pod md-0-e1-1 to b: no memory",
        ),
        ((pod(0), pod(1, waiting="ImagePullBackOff: x", last_words="old")), "pod md-0-e1-1 on b: ImagePullBackOff: x"),
        (
            (pod(0), pod(1, waiting="CrashLoopBackOff: x", crash_looping=True, last_words="one\ntwo")),
            "pod md-0-e1-1 on b: CrashLoopBackOff: x; last output: two",
        ),
        ((pod(0), pod(1, running=False)), "pod md-0-e1-1 on b is starting"),
    ],
)
def test_what_a_pod_waits_for(pods: tuple[Pod, ...], message: str) -> None:
    found = entry(report(None), group=view(*pods))
    assert (found.state, found.message) == (GroupPhase.STARTING, message)


def test_the_progress_of_a_load() -> None:
    def loading(**ranks: Any) -> str:
        told = [{"rank": 0, "node": "a", "phase": "Loading", **ranks}, {"rank": 1, "node": "b", "phase": "Loading"}]
        return entry(report(GroupPhase.LOADING, ranks=told, message="almost")).message

    assert loading(loadedBytes=1, totalBytes=4, loadedLayers=3) == (
        "loading the model: rank 0 on a (25 % of 4, 3 layers); rank 1 on b (starting)"
    )
    assert loading(loadedBytes=4, totalBytes=4) == "loading the model: rank 1 on b (starting)"
    done = [{"rank": rank, "node": "a", "phase": "Loading", "loadedBytes": 4, "totalBytes": 4} for rank in (0, 1)]
    assert entry(report(GroupPhase.LOADING, ranks=done, message="almost")).message == "almost"


def test_a_rank_keeps_what_its_report_leaves_out() -> None:
    told = [{"rank": 0, "node": "a", "phase": "Failed", "message": "broke"}, {"rank": 1, "node": "b", "phase": "Joined"}]
    ranks = entry(report(GroupPhase.PREPARING, ranks=told, attempt=3)).ranks
    assert [(rank.state, rank.last_error, rank.attempts) for rank in ranks] == [
        (RankPhase.FAILED, "broke", 3),
        (RankPhase.JOINED, None, 3),
    ]
    pending = entry(report(None), group=view(pod(0, scheduled=False))).ranks
    assert [(rank.state, rank.attempts) for rank in pending] == [(RankPhase.PENDING, 0), (RankPhase.PENDING, 0)]


@pytest.mark.parametrize(
    ("step", "more", "phase", "message"),
    [
        (NextStep(Step.GIVE_UP, failure()), {}, GroupPhase.GAVE_UP, "0 of 4 restarts used; to retry, raise spec"),
        (NextStep(Step.BACK_OFF, failure(), NOW), {}, GroupPhase.BACKING_OFF, "restart 1 of 4 at 00:00:00 UTC; last f"),
        (NextStep(Step.BACK_OFF, failure(link="x", message="a is out"), NOW), {}, GroupPhase.BACKING_OFF, "a is out; the g"),
        (NextStep(Step.DRAIN), {}, GroupPhase.DRAINING, "the spec has changed: admitting no new requests; the"),
        (NextStep(Step.DRAIN, failure(), NOW), {}, GroupPhase.DRAINING, "pod x is gone: admitting no new requests"),
        (NextStep(Step.DRAIN), {"unplaceable": NO_ROOM}, GroupPhase.READY, "serves"),
        (NextStep(Step.PLACE, failure()), {"unplaceable": NO_ROOM}, GroupPhase.BACKING_OFF, "cannot be placed: see condition"),
        (NextStep(Step.PLACE), {"unplaceable": NO_ROOM, "outdated": True}, GroupPhase.READY, "serves"),
        (NextStep(Step.PLACE), {"placed_now": True}, GroupPhase.READY, "serves"),
        (KEEP, {"blocked": Blocked("PodRefused", "no pods")}, GroupPhase.PENDING, "no pods"),
    ],
)  # fmt: skip
def test_what_the_operator_decided_is_the_state(step: NextStep, more: dict[str, Any], phase: GroupPhase, message: str) -> None:
    found = entry(READY, step, **more)
    assert found.state is phase and found.message.startswith(message)
    assert found.next_restart_time == (NOW if step.until else None) and found.last_failure == step.failure


def test_the_message_of_a_drain_is_rank_0s() -> None:
    said = report(GroupPhase.DRAINING, RankPhase.SERVING, RankPhase.SERVING, message="2 requests run")
    assert "the spec has changed: 2 requests run; the group" in entry(said, NextStep(Step.DRAIN)).message


def test_a_mac_that_needs_a_reboot_is_named() -> None:
    reboot = failure(class_=FaultClass.REBOOT, node="b")
    message = entry(READY, NextStep(Step.GIVE_UP, reboot)).message
    assert message.endswith("; last failure on b: PodGone: pod x is gone (b is quarantined until it reboots)")
    assert "quarantined" not in entry(READY, NextStep(Step.GIVE_UP, failure(class_=FaultClass.REBOOT))).message


@pytest.mark.parametrize(
    ("counts", "placed", "outdated", "restarts"),
    [(True, True, False, 3), (True, False, False, 2), (False, True, False, 2), (False, True, True, 0), (False, False, True, 2)],
)
def test_what_a_placement_costs(counts: bool, placed: bool, outdated: bool, restarts: int) -> None:
    group = view(status=values.group_status(restarts=2))
    step = NextStep(Step.PLACE, counts=counts)
    assert entry(report(None), step, group, placed_now=placed, outdated=outdated).restarts == restarts


def test_a_group_without_a_plan_says_why() -> None:
    found = entry(report(None), NextStep(Step.PLACE), unplaced_view(), unplaceable=NO_ROOM)
    assert (found.state, found.message, found.epoch, found.ranks) == (GroupPhase.PENDING, "no Mac has room", 4, ())
    assert entry(report(None), NextStep(Step.PLACE), unplaced_view()).message == "not placed yet"


def test_a_back_off_that_is_over_does_not_start_again_for_want_of_a_place() -> None:
    over = NOW - timedelta(seconds=5)
    group = view(status=values.group_status(GroupPhase.BACKING_OFF, next_restart_time=over))
    assert entry(report(None), NextStep(Step.PLACE), group, unplaceable=NO_ROOM).next_restart_time == over
    bare = view(status=values.group_status())
    assert entry(report(None), NextStep(Step.PLACE, until=NOW), bare, unplaceable=NO_ROOM).next_restart_time == NOW


# --- the deployment ---


def built(*outcomes: Outcome, replicas: int | None = None, found: Resolution = FOUND, **status: Any) -> ModelDeploymentStatus:
    wanted = len(outcomes) if replicas is None else replicas
    numbered = [replace(one, view=replace(one.view, index=number)) for number, one in enumerate(outcomes)]
    return build(deployment(wanted, **status), numbered, found, (), NOW)


def conditions(status: ModelDeploymentStatus) -> dict[str, tuple[str, str, str]]:
    return {c.type: (c.status.value, c.reason, c.message) for c in status.conditions}


UNPLACED = Outcome(unplaced_view(), NextStep(Step.PLACE), report(None), unplaceable=NO_ROOM)
LOADING = outcome(report(GroupPhase.LOADING, message="loads"))
FAILED = outcome(report(None), NextStep(Step.BACK_OFF, failure(), NOW))


def test_the_columns() -> None:
    status = built(outcome(), outcome())
    assert (status.ready, status.replicas, status.ready_replicas) == ("2/2", 2, 2)
    assert (status.nodes, status.transport, status.model) == ("a,b", "Ring", "org/tiny")
    assert status.endpoint == "http://10.0.0.1:20000/v1" and status.observed_generation == 3
    long = deployment(1)
    by_path = long.spec.model.model_copy(update={"repository": None, "path": f"/m/{'o' * 100}/{'n' * 60}"})
    long = long.model_copy(update={"spec": long.spec.model_copy(update={"model": by_path})})
    assert build(long, [outcome()], FOUND, (), NOW).model == f"{'o' * 67}/{'n' * 60}"
    none = built(UNPLACED)
    assert (none.ready, none.replicas, none.endpoint, none.nodes, none.transport) == ("0/1", 0, None, None, None)
    assert none.highest_epoch is None, "no group was ever placed"


def test_all_is_well() -> None:
    found = conditions(built(outcome()))
    assert found["ModelResolved"] == ("True", "Found", "it is there")
    assert found["Placed"] == ("True", "Placed", "group 0 on a, b (why)")
    assert found["Bootstrapped"] == ("True", "Formed", "1 of 1 groups have formed")
    assert found["Ready"] == ("True", "Ready", "1 of 1 groups are Ready")
    assert found["Degraded"] == ("False", "AsExpected", "no group has failed")
    assert found["Benchmarked"] == ("False", "NotMeasured", "the benchmark runs when the first group is Ready and idle")


def test_nothing_is_wanted() -> None:
    found = conditions(built(replicas=0))
    zero = ("ScaledToZero", "spec.replicas is 0")
    assert found["Placed"] == ("True", *zero) and found["Bootstrapped"] == found["Ready"] == ("False", *zero)


def test_a_group_without_a_place() -> None:
    alone = conditions(built(UNPLACED))
    assert alone["Placed"] == ("False", "NoRoom", "no Mac has room")
    assert alone["Ready"] == ("False", "NoRoom", "group 0 is not placed yet: see condition Placed")
    assert alone["Bootstrapped"][:2] == ("False", "NotFormed")
    several = conditions(built(outcome(), UNPLACED, UNPLACED))
    assert several["Placed"][2] == "groups 1, 2: no Mac has room"
    assert several["Ready"][:2] == ("False", "PartlyReady") and several["Ready"][2].startswith(
        "1 of 3 groups are Ready; group 1 is"
    )
    assert conditions(built(outcome(), UNPLACED))["Placed"][2] == "group 1: no Mac has room"
    missing = Resolution(False, "ModelNotFound", "nowhere")
    lost = conditions(built(UNPLACED, found=missing))
    assert lost["Placed"] == (
        "False",
        "ModelNotResolved",
        "no Mac has a complete copy of the model: see condition ModelResolved",
    )
    assert lost["Ready"] == ("False", "ModelNotFound", "nowhere")
    unsupported = conditions(built(UNPLACED, found=Resolution(False, "ModelUnsupported", "why")))
    assert unsupported["Placed"][2] == "no Mac can run the model: see condition ModelResolved"
    assert unsupported["Ready"] == ("False", "ModelUnsupported", "why")
    assert conditions(built(outcome(), found=missing))["Placed"][0] == "True", "what runs has its place"
    waiting = Outcome(unplaced_view(), NextStep(Step.PLACE), report(None))
    assert conditions(built(waiting))["Placed"][:2] == ("False", "Pending")


def test_a_group_that_loads_has_formed_and_does_not_serve() -> None:
    found = conditions(built(LOADING))
    assert found["Bootstrapped"][0] == "True" and found["Ready"][:2] == ("False", "Loading")


def test_a_group_that_fails_is_degraded() -> None:
    found = conditions(built(outcome(), FAILED))
    assert found["Degraded"][:2] == ("True", "PodGone") and found["Degraded"][2].startswith("group 1: restart 1 of 4")
    nameless = outcome(report(None), NextStep(Step.GIVE_UP))
    assert conditions(built(nameless))["Degraded"][:2] == ("True", "Failed")


def test_a_group_that_cannot_read_requests_serves_and_is_degraded() -> None:
    serving = (GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING)
    broken = report(*serving, intake="it ended with signal 9")
    status = built(outcome(broken), outcome())
    assert [group.intake for group in status.groups] == ["it ended with signal 9", None]
    found = conditions(status)
    assert found["Ready"][0] == "True" and found["Degraded"][:2] == ("True", "IntakeFailed")
    assert "group 0: requests wait or fail, because the intake, the process of rank 0 on a" in found["Degraded"][2]
    again = built(outcome(broken), outcome(), **status.model_dump(by_alias=True, mode="json", exclude_none=True))
    assert again == status, "nothing is written while it lasts"
    assert conditions(built(outcome(), outcome()))["Degraded"][0] == "False"
    loading = report(GroupPhase.LOADING, RankPhase.LOADING, RankPhase.LOADING, intake="it ended with signal 9")
    assert conditions(built(outcome(loading)))["Degraded"][0] == "False", "it has no requests"
    silent = replace(broken, state=None, silent_seconds=5.0)
    assert entry(silent, group=replace(view(), status=status.groups[0])).intake == "it ended with signal 9"


def test_a_better_place_is_mentioned() -> None:
    message = conditions(built(outcome(better="c")))["Placed"][2]
    assert "a better placement exists for group 0: on c. Serving groups are not moved" in message
    assert "--replicas=0`, wait until their pods are gone, and run `kubectl scale md/" in message


def test_long_messages_are_cut() -> None:
    long = conditions(built(*[outcome(better=f"mac-{number}-" + "x" * 100) for number in range(30)]))["Placed"][2]
    assert len(long) == 1500 and long.endswith("…")


def measured(**more: Any) -> Report:
    told = {
        "prefillTokensPerSecond": 900.0,
        "decodeTokensPerSecond": 37.42,
        "timeToFirstTokenMicroseconds": 4000,
        "promptTokens": 512,
        "generationTokens": 128,
        "measuredAt": NOW,
        **more,
    }
    return report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING, readySince=NOW, benchmark=told)


def test_a_benchmark_is_shown_until_the_spec_changes() -> None:
    first = built(outcome(measured(ran="one request", allReduceMegabytesPerSecond=1.25)))
    assert first.tokens_per_second == "37.4" and first.benchmark is not None
    assert (first.benchmark.world_size, first.benchmark.epoch, first.benchmark.all_reduce_megabytes_per_second) == (2, 1, "1.2")
    assert conditions(first)["Benchmarked"] == ("True", "Measured", "generation rate 37.4 tokens/s: one request")
    kept = first.benchmark.dump()
    assert built(outcome(), benchmark=kept).benchmark == first.benchmark
    assert built(outcome(placed_now=True), benchmark=kept).benchmark == first.benchmark
    assert built(outcome(outdated=True), benchmark=kept).benchmark == first.benchmark
    assert built(outcome(placed_now=True, outdated=True), benchmark=kept).benchmark is None
    assert conditions(built(outcome(measured())))["Benchmarked"][2] == "generation rate 37.4 tokens/s: prefill and decode"


def test_every_mac_is_listed_with_what_is_missing() -> None:
    macs = tuple(MacReason(f"mac-{number}", "is cordoned" if number % 2 else "is not Ready") for number in range(4))
    miss = NearMiss(("a", "b"), Transport.RING, Split.TENSOR, "1 GiB is missing")
    found = built(replace(UNPLACED, unplaceable=replace(NO_ROOM, macs=macs, near_misses=(miss,)))).unplaceable
    assert [(one.nodes, one.message, one.transport) for one in found] == [
        (("a", "b"), "1 GiB is missing", Transport.RING),
        (("mac-0", "mac-2"), "is not Ready", None),
        (("mac-1", "mac-3"), "is cordoned", None),
    ]
    many = tuple(MacReason(f"mac-{number}", f"lacks {number}") for number in range(70))
    cut = built(replace(UNPLACED, unplaceable=replace(NO_ROOM, macs=many))).unplaceable
    assert len(cut) == 64 and cut[-1].message == "and 7 more Macs" and cut[62].message == "lacks 62"
    exact = built(replace(UNPLACED, unplaceable=replace(NO_ROOM, macs=many[:64]))).unplaceable
    assert [one.message for one in exact] == [f"lacks {number}" for number in range(64)]
    alike = tuple(MacReason(f"mac-{number}", "is cordoned") for number in range(65))
    assert [len(one.nodes) for one in built(replace(UNPLACED, unplaceable=replace(NO_ROOM, macs=alike))).unplaceable] == [64, 1]


def test_terminating_pods_and_transition_times() -> None:
    gone = [pod(0, terminating=NOW)]
    status = build(deployment(1), [outcome()], FOUND, gone, NOW)
    assert [(one.name, one.node, one.since) for one in status.terminating_pods] == [("md-0-e1-0", "a", NOW)]
    known = deployment().model_copy(update={"status": status})
    again = build(known, [outcome()], FOUND, gone, NOW + timedelta(seconds=60))
    assert again.conditions == status.conditions
    assert all(condition.observed_generation == 3 for condition in again.conditions)
    assert {condition.type for condition in again.conditions} >= {ConditionType.READY, ConditionType.PLACED}
