"""How many groups a ModelDeployment with autoscaling has: windows, draining, sleep, waking and turns."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from thunderfleet_crds.exchange.routing import Demand, DemandReport
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_operator.decide.placing.request import spec_hash
from thunderfleet_operator.decide.scaling.autoscaling import (
    DOWN_SECONDS,
    DRAIN_LIMIT_SECONDS,
    FRESH_SECONDS,
    UP_SECONDS,
    WAKE_SECONDS,
    Scaling,
    scale,
    staying,
)
from thunderfleet_operator.decide.scaling.turns import MAX_CANDIDATES, RESIDENCY_SECONDS, yielding
from thunderfleet_operator.observe.demands import FORGET_SECONDS, Demands
from thunderfleet_operator.observe.load import Asked, Candidate, Load, Signals
from thunderfleet_operator.observe.objects.plans import Report
from thunderfleet_operator.scaling import ScalingMemory

from tests.unit.operator.values import NOW, report, view

LONG = 10_000.0
"""Seconds since the operator started, unless a test says otherwise."""


def _deployment(
    status: dict[str, Any] | None = None, *, suspend: bool = False, replicas: int = 1, **more: Any
) -> ModelDeployment:
    autoscaling = {"minReplicas": 1, "maxReplicas": 4, "targetInFlightRequests": 2, **more}
    spec = {"model": {"path": "/models/tiny"}, "autoscaling": autoscaling, "suspend": suspend, "replicas": replicas}
    body = {"metadata": {"name": "md", "namespace": "ns", "uid": "uid"}, "spec": spec}
    return ModelDeployment.model_validate({**body, "status": {"autoscaling": status} if status else {}})


def _serving(requests: int = 0, *, idle: float = 0.0, silent: float = 0.0) -> Report:
    return report(GroupPhase.READY, in_flight=requests, idle_seconds=idle, silent=silent)


class Operator:
    """Makes the rounds of one ModelDeployment, with a clock, and stores each decision as the status."""

    def __init__(self, deployment: ModelDeployment) -> None:
        self.deployment = deployment
        self.now = LONG
        self.load = Load()
        self.last: Scaling | None = None

    def round(self, *reports: Report, asked: Asked | None = None, alive: float | None = None, to: str | None = None) -> int:
        """The number of groups after one round. There are as many reports as there should be groups."""
        assert len(reports) == self.deployment.wanted_groups
        signals = Signals(self.load, asked or Asked(), self.now, self.now if alive is None else alive, yields_to=to)
        views = {index: view() for index in range(len(reports))}
        found = scale(self.deployment, dict(enumerate(reports)), views, signals, NOW + timedelta(seconds=self.now))
        assert found is not None
        self.last, self.load = found, found.load
        status = self.deployment.status.model_copy(update={"autoscaling": found.status})
        self.deployment = self.deployment.model_copy(update={"status": status})
        return self.deployment.wanted_groups

    def rounds(self, seconds: float, *reports: Report, asked: Asked | None = None) -> int:
        """Rounds every two seconds, until the number of groups changes. The number after them."""
        end, before = self.now + seconds, self.deployment.wanted_groups
        while self.now <= end:
            if self.round(*reports, asked=asked) != before:
                break
            self.now += 2.0
        return self.deployment.wanted_groups

    @property
    def stays(self) -> int:
        """The number of groups that routers may send requests to."""
        return staying(self.deployment, self.last)


def test_it_starts_with_spec_replicas_within_the_bounds() -> None:
    assert _deployment(replicas=2).wanted_groups == 2
    assert _deployment(replicas=9).wanted_groups == 4
    assert _deployment(replicas=0).wanted_groups == 1
    assert _deployment(replicas=0, minReplicas=0).wanted_groups == 0


def test_groups_are_added_when_they_have_been_needed_for_a_while() -> None:
    operator = Operator(_deployment())
    assert operator.rounds(UP_SECONDS - 1, _serving(8)) == 1
    assert operator.rounds(4, _serving(8)) == 4
    assert operator.last is not None and "have needed 4 groups" in operator.last.status.message


def test_requests_that_wait_in_routers_count() -> None:
    operator = Operator(_deployment())
    assert operator.rounds(UP_SECONDS + 2, _serving(2), asked=Asked(waiting=2)) == 2


def test_a_short_burst_adds_no_group() -> None:
    operator = Operator(_deployment())
    for _ in range(6):
        operator.rounds(UP_SECONDS - 2, _serving(8))
        assert operator.rounds(2, _serving(1)) == 1


def test_a_group_is_removed_after_a_long_time_and_only_when_it_has_nothing_in_flight() -> None:
    operator = Operator(_deployment({"replicas": 2}))
    assert operator.rounds(DOWN_SECONDS - 2, _serving(1), _serving(1)) == 2
    assert operator.stays == 2
    operator.rounds(6, _serving(1), _serving(1))
    assert operator.stays == 1 and operator.deployment.wanted_groups == 2
    assert operator.rounds(60, _serving(1), _serving(1)) == 2
    assert operator.rounds(4, _serving(1), _serving(0)) == 1


def test_a_report_from_before_the_notice_does_not_show_that_a_group_is_drained() -> None:
    operator = Operator(_deployment({"replicas": 2}))
    reports = _serving(1), _serving(0, silent=4.0)
    while operator.stays == 2:
        operator.round(*reports)
        operator.now += 1.0
    noticed = operator.now
    assert operator.rounds(20, *reports) == 1
    assert operator.now - noticed >= 4.0


def test_draining_ends_after_a_limit() -> None:
    operator = Operator(_deployment({"replicas": 2}))
    assert operator.rounds(DOWN_SECONDS + DRAIN_LIMIT_SECONDS - 10, _serving(1), _serving(1)) == 2
    assert operator.rounds(20, _serving(1), _serving(1)) == 1


def test_a_group_that_drains_stays_if_it_is_needed_again() -> None:
    operator = Operator(_deployment({"replicas": 2}))
    operator.rounds(DOWN_SECONDS + 4, _serving(1), _serving(1))
    assert operator.stays == 1
    operator.round(_serving(2), _serving(1))
    assert operator.stays == 2 and operator.deployment.wanted_groups == 2


def test_what_is_needed_is_shown_beyond_the_limit_and_only_while_it_is_known() -> None:
    now, operator = LONG, Operator(_deployment(maxReplicas=1))
    memory = ScalingMemory(lambda: now)
    operator.round(_serving(8))
    memory.keep("ns/md", operator.last)
    assert memory.needed() == {"ns/md": 4} and operator.deployment.wanted_groups == 1
    now += FRESH_SECONDS
    assert memory.needed() == {}
    operator.now = now
    operator.round(_serving(3))
    memory.keep("ns/md", operator.last)
    assert memory.needed() == {"ns/md": 2}
    operator.now = now = now + 1
    operator.round(_serving(3, silent=FRESH_SECONDS))
    memory.keep("ns/md", operator.last)
    assert memory.needed() == {}
    memory.keep("ns/md", None)
    assert memory.needed() == {}


def test_an_unknown_load_removes_nothing() -> None:
    operator = Operator(_deployment({"replicas": 2}))
    assert operator.rounds(DOWN_SECONDS * 2, _serving(0), _serving(0, silent=20.0)) == 2
    assert operator.stays == 2


def test_it_sleeps_after_a_time_without_requests_and_wakes_for_one() -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=0, scaleToZeroAfterSeconds=60))
    assert operator.rounds(20, _serving(0, idle=59.0)) == 1
    assert operator.stays == 1
    assert operator.rounds(20, _serving(0, idle=61.0)) == 0
    assert operator.last is not None and operator.last.status.message == "no request for 60 s"
    assert operator.last.status.last_request_time is not None
    assert operator.round(asked=Asked(wake_seconds=WAKE_SECONDS + 1)) == 0
    assert operator.round(asked=Asked(wake_seconds=0.5)) == 1


def test_a_request_between_notice_and_stop_keeps_it_awake() -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=0, scaleToZeroAfterSeconds=60))
    operator.round(_serving(0, idle=61.0))
    assert operator.stays == 0 and operator.deployment.wanted_groups == 1
    operator.now += 2.0
    assert operator.round(_serving(1, idle=0.0)) == 1
    assert operator.stays == 1


@pytest.mark.parametrize(
    "asked", [Asked(waiting=1), Asked(wake_seconds=3.0), Asked(idle_seconds=3.0)], ids=["waits", "wakes", "recent"]
)
def test_requests_in_routers_keep_it_awake(asked: Asked) -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=0, scaleToZeroAfterSeconds=60))
    assert operator.rounds(20, _serving(0, idle=600.0), asked=asked) == 1
    assert operator.stays == 1


def test_a_group_that_starts_is_not_idle() -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=0, scaleToZeroAfterSeconds=60))
    assert operator.round(report(GroupPhase.LOADING), alive=600.0) == 1
    assert operator.stays == 1


def test_a_runner_that_does_not_report_its_requests_never_sleeps() -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=0, scaleToZeroAfterSeconds=60))
    assert operator.rounds(100, report(GroupPhase.READY, requests=0)) == 1


def test_without_min_replicas_0_it_does_not_sleep() -> None:
    operator = Operator(_deployment({"replicas": 1}, scaleToZeroAfterSeconds=60))
    assert operator.rounds(100, _serving(0, idle=6000.0)) == 1
    assert operator.stays == 1


def test_a_suspended_one_is_not_woken_and_resumes_with_one_group() -> None:
    suspended = _deployment({"replicas": 3}, suspend=True, minReplicas=0)
    assert suspended.wanted_groups == 0 and not suspended.wakes
    operator = Operator(suspended)
    assert operator.round(asked=Asked(wake_seconds=0.0)) == 0
    spec = operator.deployment.spec.model_copy(update={"suspend": False})
    assert operator.deployment.model_copy(update={"spec": spec}).wanted_groups == 1


def test_replicas_0_without_autoscaling_is_not_woken() -> None:
    body = {"metadata": {"name": "md", "uid": "uid"}, "spec": {"model": {"path": "/m"}, "replicas": 0}}
    deployment = ModelDeployment.model_validate(body)
    assert not deployment.wakes
    assert scale(deployment, {}, {}, Signals(asked=Asked(wake_seconds=0.0)), NOW) is None


def test_it_makes_room_when_it_is_the_turn_of_another_one() -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=0))
    operator.round(_serving(0, idle=10.0), to="ns/other")
    assert operator.stays == 0
    operator.now += 2.0
    assert operator.round(_serving(0, idle=12.0), to="ns/other") == 0
    assert operator.last is not None and operator.last.status.message == "stopped to make room for ns/other"


def test_new_bounds_hold_at_once() -> None:
    operator = Operator(_deployment({"replicas": 1}, minReplicas=2))
    assert operator.round(_serving(), _serving()) == 2
    assert operator.last is not None and operator.last.status.replicas == 2


def test_the_spec_hash_is_about_ranks_only() -> None:
    plain = ModelDeployment.model_validate({"metadata": {"name": "md"}, "spec": {"model": {"path": "/m"}}})
    changes: Sequence[dict[str, Any]] = (
        {"autoscaling": {"minReplicas": 0}},
        {"suspend": True},
        {"replicas": 3},
        {"server": {"aliases": ["gpt-4o"]}},
        {"server": {"apiKeys": [{"name": "ci", "requestsInFlight": 1}]}},
    )
    for change in changes:
        body = {"metadata": {"name": "md", "labels": {"team": "a"}}, "spec": {"model": {"path": "/m"}, **change}}
        assert spec_hash(ModelDeployment.model_validate(body).spec) == spec_hash(plain.spec), change
    for server in ({"apiKeySecret": "keys"}, {"port": 20000, "aliases": ["a"]}):
        body = {"metadata": {"name": "md"}, "spec": {"model": {"path": "/m"}, "server": server}}
        assert spec_hash(ModelDeployment.model_validate(body).spec) != spec_hash(plain.spec)


# --- turns -----------------------------------------------------------------------------------------------------------


def _candidate(name: str, *, idle: float = 100.0, flight: int | None = 0, since: float = 1000.0) -> Candidate:
    return Candidate(f"ns/{name}", name, (0,), flight, idle, since)


def test_the_least_recently_used_makes_room() -> None:
    found = yielding([_candidate("a", idle=10.0), _candidate("b", idle=500.0)], lambda gone: True)
    assert found == ("ns/b",)


def test_no_more_than_needed_make_room() -> None:
    candidates = [_candidate("a", idle=10.0), _candidate("b", idle=500.0), _candidate("c", idle=50.0)]
    assert yielding(candidates, lambda gone: len(gone) >= 2) == ("ns/b", "ns/c")


@pytest.mark.parametrize(
    "busy",
    [
        _candidate("a", flight=1),
        _candidate("a", flight=None),
        _candidate("a", idle=1.0),
        _candidate("a", since=RESIDENCY_SECONDS - 1),
    ],
    ids=["in flight", "unknown", "just used", "resident"],
)
def test_who_is_used_or_new_does_not_make_room(busy: Candidate) -> None:
    assert yielding([busy], lambda gone: True) == ()


def test_nothing_is_stopped_if_it_does_not_help() -> None:
    asked: list[int] = []

    def fits(gone: Sequence[Candidate]) -> bool:
        asked.append(len(gone))
        return False

    assert yielding([_candidate(str(number)) for number in range(50)], fits) == ()
    assert asked == [MAX_CANDIDATES]


# --- reports of routers ----------------------------------------------------------------------------------------------


def _report(router: str, **more: Any) -> DemandReport:
    return DemandReport(router=router, demands=(Demand(namespace="ns", deployment="md", uid="uid", **more),))


KEY = ("ns", "md", "uid")


def test_reports_of_routers_add_up_until_they_are_old() -> None:
    demands = Demands().with_report(_report("a", waiting=2, wake=True), 0.0).with_report(_report("b", waiting=3), 5.0)
    assert demands.asked(KEY, 6.0) == Asked(waiting=5, wake_seconds=6.0, idle_seconds=1.0)
    assert demands.asked(KEY, FORGET_SECONDS + 1.0).waiting == 3
    assert demands.asked(KEY, FORGET_SECONDS + 6.0) == Asked(0, FORGET_SECONDS + 6.0, FORGET_SECONDS + 1.0)


def test_a_report_replaces_the_one_before() -> None:
    demands = Demands().with_report(_report("a", waiting=2), 0.0).with_report(DemandReport(router="a"), 1.0)
    assert demands.asked(KEY, 1.0).waiting == 0


def test_a_deployment_of_the_same_name_has_no_requests_of_the_one_before() -> None:
    demands = Demands().with_report(_report("a", waiting=2, wake=True), 0.0)
    assert demands.asked(("ns", "md", "later"), 1.0) == Asked()
