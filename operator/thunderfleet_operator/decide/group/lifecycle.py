"""The next step of one group: keep, drain, place, back off or stop restarting.

The runner counts attempts, the operator counts placements. A serving group is drained before it is replaced, unless it has
failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from thunderfleet_crds.kinds.modeldeployment import Failure, Group, Recovery
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_lib.backoff import Backoff

from thunderfleet_operator.decide.group.trouble import trouble
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.placement import Fleet

UNANSWERED_SECONDS = 10.0
"""A group whose rank 0 has been silent for this long serves no requests."""
DRAIN_SECONDS = 45.0
"""How long a group may drain. Its runner's own limits are well below it."""
DRAIN_RECHECK_SECONDS = 1.0
CABLE_SECONDS = 3.0
"""How long a cable of a group must have had a fault before the group is placed elsewhere. Shorter faults are common: a plug is
reseated, a port comes up after sleep, or an agent reads two reports a moment apart. A group whose connections survive such a
fault continues. Until then the group is not Ready. After repeated interruptions of the cable, the group is placed elsewhere at
once."""
SILENT_LEADER_SECONDS = 6.0
"""A serving group is polled every five seconds. If rank 0 does not answer, its Mac may be off, and not only its cable
unplugged."""
PROVEN_SECONDS = 600.0
"""A group that has been Ready for this long gets its restarts back."""


class Step(StrEnum):
    """What happens to a group next."""

    KEEP = "Keep"
    DRAIN = "Drain"
    """Admit no new requests; replace or delete the group when the running ones have ended."""
    PLACE = "Place"
    BACK_OFF = "BackOff"
    GIVE_UP = "GiveUp"


@dataclass(frozen=True, slots=True)
class NextStep:
    """A step and its reason.

    ``until``: end of the back-off. ``counts``: whether the new placement is one of ``recovery.maxRestarts``. ``avoid``: Macs
    to leave out if there is a placement without them, each with the reason.
    """

    step: Step
    failure: Failure | None = None
    until: datetime | None = None
    counts: bool = False
    avoid: Mapping[str, str] | None = None
    recheck_seconds: float | None = None
    """When to check again although nothing may have changed."""
    ends: bool = False
    """Whether the current placement ends even if there is no other one, because no attempt in it can succeed."""
    returns: bool = False
    """Whether the group goes back to a better placement."""


def ready(report: Report) -> bool:
    """Whether rank 0 reports that its group serves."""
    return report.state is not None and report.state.phase is GroupPhase.READY


def serves(view: GroupView, report: Report) -> bool:
    """Whether requests may be running in a group."""
    state = report.state
    if report.silent_seconds >= UNANSWERED_SECONDS:
        return False
    if state is None:
        leader = next((pod for pod in view.pods if pod.rank == 0), None)
        return leader is not None and leader.running
    draining = state.phase is GroupPhase.DRAINING and any(rank.phase is RankPhase.SERVING for rank in state.ranks)
    return state.phase is GroupPhase.READY or draining


def must_drain(view: GroupView, report: Report, draining_seconds: float) -> bool:
    """Whether a group that will be replaced must drain first. It has been draining for ``draining_seconds``."""
    return serves(view, report) and draining_seconds < DRAIN_SECONDS


def backoff_seconds(recovery: Recovery, restarts: int) -> float:
    """Seconds before the next placement: doubled with each restart, up to the limit."""
    limit = recovery.backoff_limit_seconds
    return Backoff(min(recovery.backoff_seconds, limit), limit).seconds(restarts + 1)


def next_step(
    view: GroupView,
    report: Report,
    nodes: Mapping[str, Node],
    fleet: Fleet,
    wanted_hash: str,
    recovery: Recovery,
    now: datetime,
    *,
    may_roll: bool,
    returns: bool = False,
    draining_seconds: float = 0.0,
) -> NextStep:
    """What happens to a group next.

    ``wanted_hash``: hash of the spec. ``may_roll``: whether a changed spec may replace this group now although it serves.
    ``returns``: whether it goes back to a better placement. ``draining_seconds``: for how long it has been draining.
    """
    if view.epoch is None or view.plan is None:
        return NextStep(Step.PLACE)
    drains = must_drain(view, report, draining_seconds)
    if view.epoch.spec_hash != wanted_hash and (may_roll or not serves(view, report)):
        return NextStep(Step.DRAIN, recheck_seconds=DRAIN_RECHECK_SECONDS) if drains else NextStep(Step.PLACE)
    found = trouble(view, report, nodes, fleet, now)
    if returns and found.failure is None:
        return NextStep(Step.DRAIN if drains else Step.PLACE, returns=True, recheck_seconds=DRAIN_RECHECK_SECONDS)
    status = view.status if view.status is not None and view.status.epoch == view.plan.epoch else None
    failure = found.failure
    if failure is not None and by_cable(failure) and not _given_up(view, status, recovery):
        return _leave_cable(view, report, failure, status, fleet, now)
    if failure is None and report.state is None and status is not None and _waits(status):
        # A restarted operator may have no report of rank 0 yet. The status counts until rank 0 reports.
        failure = status.last_failure
    if failure is None:
        if not view.proven and len(view.pods) < view.plan.world_size:
            # No pod is made from a plan whose signature cannot be checked.
            return NextStep(Step.PLACE)
        return NextStep(Step.KEEP, recheck_seconds=found.recheck_seconds)
    return _recover(view, failure, status, recovery, now, drains=drains)


def by_cable(failure: Failure | None) -> bool:
    """Whether a failure is that of a cable."""
    return failure is not None and failure.link is not None


def _given_up(view: GroupView, status: Group | None, recovery: Recovery) -> bool:
    restarts = view.status.restarts if view.status else 0
    return status is not None and status.state is GroupPhase.GAVE_UP and restarts >= recovery.max_restarts


def _leave_cable(
    view: GroupView, report: Report, failure: Failure, status: Group | None, fleet: Fleet, now: datetime
) -> NextStep:
    """A cable failed: the group is soon placed elsewhere. This does not count as a restart, and the group cannot drain."""
    known = status.last_failure if status is not None and status.next_restart_time is not None else None
    if status is not None and known is not None and (known.link, known.reason) == (failure.link, failure.reason):
        failure = failure.model_copy(update={"time": known.time})
    cable = fleet.cables.get(failure.link or "")
    # A cable that corrupts data does not recover within a moment, and no rank is running any more.
    at_once = failure.reason == Reason.LINK_CORRUPTS or (cable is not None and cable.unreliable)
    until = now + timedelta(seconds=0.0 if at_once else CABLE_SECONDS)
    pending = status.next_restart_time if status is not None else None
    until = until if pending is None else min(until, pending)
    if now < until:
        return NextStep(Step.BACK_OFF, failure, until, recheck_seconds=(until - now).total_seconds())
    return NextStep(Step.PLACE, failure, until, avoid=_absent(view, report), ends=True)


def _absent(view: GroupView, report: Report) -> dict[str, str]:
    """Returns the Macs of the group that do not answer over the LAN either. They may be off, whatever the links report."""
    if view.plan is None or report.state is None:
        return {}
    ranks = {rank.rank for rank in report.state.ranks if rank.phase is RankPhase.ABSENT}
    if report.silent_seconds >= SILENT_LEADER_SECONDS:
        ranks = {0}
    text = "does not answer the other ranks: check that it is on and connected to the LAN"
    return {entry.node: text for entry in view.plan.ranks if entry.rank in ranks}


def _waits(status: Group) -> bool:
    return status.state in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP)


def _recover(
    view: GroupView, failure: Failure, status: Group | None, recovery: Recovery, now: datetime, *, drains: bool
) -> NextStep:
    """The next step after a failure. ``status``: the group's status if it is of the newest placement."""
    failure = _as_known(failure, status)
    restarts = view.status.restarts if view.status else 0
    pending = status.next_restart_time if status else None
    cause = status.last_failure if status and pending is not None else None
    if cause is not None and (failure.class_ is not FaultClass.CONFIGURE or cause.reason == Reason.EVICTED):
        # The failure that started the back-off is the cause; later ones follow from it.
        failure = cause
    if by_cable(failure):
        # The cable works again, or its link is gone. The placement has ended only if the wait was over.
        return NextStep(Step.PLACE, failure, now, ends=True) if pending is not None and now >= pending else NextStep(Step.KEEP)
    if failure.reason == Reason.EVICTED:
        # An eviction, such as `kubectl drain`, costs neither a restart nor a back-off.
        if drains:
            return NextStep(Step.DRAIN, failure, now, recheck_seconds=DRAIN_RECHECK_SECONDS)
        return NextStep(Step.PLACE, failure, now)
    if failure.reason == Reason.OUTPUT_WRONG:
        # A person must find the fault, and then delete a pod.
        there = view.plan is not None and len(view.pods) == view.plan.world_size
        return NextStep(Step.GIVE_UP if there else Step.PLACE, failure)
    if restarts >= recovery.max_restarts:
        return NextStep(Step.GIVE_UP, failure)
    if pending is None:
        slow = failure.class_ is FaultClass.CONFIGURE
        wait = float(recovery.backoff_limit_seconds) if slow else backoff_seconds(recovery, restarts)
        pending = now + timedelta(seconds=wait)
    # A time in status that is further in the future was written while the clock was wrong.
    pending = min(pending, now + timedelta(seconds=recovery.backoff_limit_seconds))
    if now < pending:
        return NextStep(Step.BACK_OFF, failure, pending, recheck_seconds=(pending - now).total_seconds())
    return NextStep(Step.PLACE, failure, counts=True, avoid=_blamed(failure))


def _as_known(failure: Failure, status: Group | None) -> Failure:
    """The failure with the time in the status if that has the same one: each round finds it again, and would write it again."""
    last = status.last_failure if status is not None and _waits(status) else None
    if last is None or any(
        getattr(last, name) != getattr(failure, name) for name in ("class_", "reason", "rank", "node", "link")
    ):
        return failure
    return failure.model_copy(update={"time": last.time})


def _blamed(failure: Failure) -> dict[str, str]:
    """The Mac that the next placement leaves out because of a failure there, with the reason."""
    # A Mac that only lost its address is usable again with its new address.
    blamed = failure.class_ in (FaultClass.REPLAN, FaultClass.REBOOT, FaultClass.BUG)
    if not failure.node or not blamed or failure.reason == Reason.ADDRESS_LOST:
        return {}
    why = f"{failure.reason}: {failure.message}"
    return {failure.node: f"is used only if no other Mac fits, because of the last failure there: {why}"}


def place_after(failure: Failure) -> NextStep:
    """The placement that follows a failure, once the group has backed off."""
    if by_cable(failure):
        return NextStep(Step.PLACE, failure, ends=True)
    return NextStep(Step.PLACE, failure, counts=True, avoid=_blamed(failure))
