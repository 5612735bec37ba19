"""How many groups a ModelDeployment with ``spec.autoscaling`` has.

The number follows the requests in progress with two windows. Groups are added if they were needed throughout the short window,
and removed if they were not needed at any time in the long one. They are removed in two steps, so that no request is lost:
first their status becomes Draining, so routers send them no more requests; they are stopped when they have no request in
flight.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from thunderfleet_crds.kinds.modeldeployment import AutoscalingStatus, ModelDeployment

from thunderfleet_operator.decide.group.lifecycle import ready
from thunderfleet_operator.observe.load import Load, Signals
from thunderfleet_operator.observe.objects.plans import GroupView, Report

UP_SECONDS = 15.0
"""How long more groups must have been needed before some are added."""
DOWN_SECONDS = 120.0
"""How long fewer groups must have been enough before some are removed."""
NOTICE_SECONDS = 1.0
"""Delay between the status Draining and the first check whether the group has ended its requests."""
DRAIN_LIMIT_SECONDS = 600.0
"""How long the requests of a group that is removed may take."""
FRESH_SECONDS = 10.0
"""An older report is not used."""
WAKE_SECONDS = 15.0
"""How long a request to wake counts. Routers repeat it while the request waits."""
START_SECONDS = 1800.0
"""How long a group may take to start before it counts as idle, although no request could reach it."""
RECHECK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """The decision. ``load``: includes the current sample. ``yields``: ModelDeployments to stop for this one."""

    status: AutoscalingStatus
    load: Load
    recheck_seconds: float | None = None
    yields: tuple[str, ...] = ()


def in_flight(report: Report) -> int | None:
    """Requests in progress in a group; None if it is not known."""
    if report.state is None or report.silent_seconds >= FRESH_SECONDS:
        return None
    known = report.state.in_flight
    return known if known is not None else report.state.requests


def idle_seconds(report: Report) -> float:
    """Seconds since a group that serves last had a request, as far as known: 0 from a runner of an earlier version."""
    state = report.state
    return 0.0 if state is None or state.idle_seconds is None or in_flight(report) != 0 else state.idle_seconds


def _idle(reports: Mapping[int, Report], views: Mapping[int, GroupView], signals: Signals) -> float:
    """Seconds since the last request to any group or router, as far as known."""
    if signals.asked.waiting:
        return 0.0
    ages = [signals.alive_seconds]
    ages += [age for age in (signals.asked.wake_seconds, signals.asked.idle_seconds) if age is not None]
    for index, report in reports.items():
        if views[index].plan is None:
            continue
        # A group that starts has had no request yet; the requests that wait for it are known to routers.
        starting = max(0.0, signals.alive_seconds - START_SECONDS)
        ages.append(idle_seconds(report) if ready(report) else starting)
    return min(ages)


def _needed(reports: Mapping[int, Report], signals: Signals, target: int) -> int | None:
    """How many groups the requests in progress need; None if it is not known."""
    serving = [in_flight(report) for report in reports.values() if ready(report)]
    if any(count is None for count in serving) or any(report.silent_seconds >= FRESH_SECONDS for report in reports.values()):
        return None
    return math.ceil((sum(count or 0 for count in serving) + signals.asked.waiting) / target)


def _woken(signals: Signals) -> bool:
    age = signals.asked.wake_seconds
    return age is not None and age < WAKE_SECONDS


@dataclass(frozen=True, slots=True)
class _Wish:
    replicas: int
    why: str


def _wish(deployment: ModelDeployment, current: int, idle: float, load: Load, signals: Signals) -> _Wish | None:
    """The number of groups that there should be; None if it stays."""
    spec = deployment.spec.autoscaling
    if spec is None:
        return None
    if signals.yields_to is not None and current:
        return _Wish(0, f"stopped to make room for {_named(signals.yields_to, deployment)}")
    if not current:
        return _Wish(1, "a request arrived") if deployment.wakes and _woken(signals) else None
    after = spec.scale_to_zero_after_seconds
    if deployment.wakes and signals.can_wake and idle >= after and not _woken(signals):
        return _Wish(0, f"no request for {after} s")
    up, down = load.lowest(UP_SECONDS, signals.now), load.highest(DOWN_SECONDS, signals.now)
    least = max(spec.min_replicas, 1)
    if up is not None and min(up, spec.max_replicas) > current:
        found = min(up, spec.max_replicas)
        return _Wish(found, f"requests in progress have needed {found} groups for {UP_SECONDS:.0f} s")
    if down is not None and max(down, least) < current:
        found = max(down, least)
        return _Wish(found, f"{found} of {current} groups have been enough for {DOWN_SECONDS:.0f} s")
    return None


def _named(other: str, deployment: ModelDeployment) -> str:
    # Readers of this status may not be allowed to read the ModelDeployments of other namespaces.
    if other.partition("/")[0] == deployment.metadata.namespace:
        return other
    return f"a model of another namespace with the same priorityClassName ({deployment.spec.priority_class_name})"


def scale(
    deployment: ModelDeployment,
    reports: Mapping[int, Report],
    views: Mapping[int, GroupView],
    signals: Signals,
    now: datetime,
) -> Scaling | None:
    """What autoscaling does now; None without it. ``reports`` and ``views``: of the groups that should exist.

    While the deployment is suspended, what was decided before stays.
    """
    spec, before = deployment.spec.autoscaling, deployment.status.autoscaling
    if spec is None:
        return None
    if deployment.spec.suspend:
        # It resumes with minReplicas, and not with the number that it had before.
        resumed = max(spec.min_replicas, 1)
        status = AutoscalingStatus(replicas=resumed, message="suspended (spec.suspend)")
        return Scaling(status if before is None or before.replicas != resumed else before, Load())
    current = deployment.wanted_groups
    target = spec.target_in_flight_requests or deployment.spec.memory.concurrent_requests
    load = signals.load.with_sample(_needed(reports, signals, target), signals.now, DOWN_SECONDS)
    known = before or AutoscalingStatus(replicas=current, message="as set by spec.replicas")
    if known.replicas != current:
        known = AutoscalingStatus(
            replicas=current, last_scale_time=now, message="within autoscaling.minReplicas and autoscaling.maxReplicas"
        )
    idle = _idle(reports, views, signals)
    wish = _wish(deployment, current, idle, load, signals)
    recheck = RECHECK_SECONDS if current else None
    if wish is None or wish.replicas >= current:
        load = load.with_draining(False, signals.now)
        if wish is None:
            return Scaling(known.model_copy(update={"draining_to": None}), load, recheck)
        status = AutoscalingStatus(
            replicas=wish.replicas, last_scale_time=now, last_request_time=known.last_request_time, message=wish.why
        )
        return Scaling(status, load, 0.0)
    if known.draining_to != wish.replicas:
        status = known.model_copy(update={"draining_to": wish.replicas, "message": wish.why})
        return Scaling(status, load.with_draining(False, 0.0).with_draining(True, signals.now), NOTICE_SECONDS)
    load = load.with_draining(True, signals.now)
    drained = signals.now - (load.draining_since if load.draining_since is not None else signals.now)
    leaving = [report for index, report in reports.items() if index >= wish.replicas]
    # A group that does not serve has no requests. A report from before the status Draining does not count.
    busy = any(
        ready(report) and (in_flight(report) != 0 or report.silent_seconds > drained - NOTICE_SECONDS) for report in leaving
    )
    if drained < NOTICE_SECONDS or (busy and drained < DRAIN_LIMIT_SECONDS):
        return Scaling(known, load, NOTICE_SECONDS)
    last = known.last_request_time if idle > signals.alive_seconds - 1 else now - timedelta(seconds=idle)
    status = AutoscalingStatus(replicas=wish.replicas, last_scale_time=now, last_request_time=last, message=wish.why)
    return Scaling(status, load.with_draining(False, signals.now), 0.0)


def staying(deployment: ModelDeployment, scaling: Scaling | None) -> int:
    """The number of groups that stay: fewer than exist while some are about to be stopped."""
    if scaling is None:
        return deployment.wanted_groups
    after = (deployment.wanted_groups, scaling.status.replicas, scaling.status.draining_to)
    return min(number for number in after if number is not None)
