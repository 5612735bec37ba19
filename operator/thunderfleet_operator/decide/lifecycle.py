"""What is to become of a group: kept, drained, placed anew, waited for, or given up. Pure.

Attempts are the runner's, placements are the operator's. A group whose pods still start, download or load is never placed
anew for slowness; it is when its runner gave up, when a pod of it is gone, has failed or finds no room, or when its Mac is.
A group that serves is drained before it is taken away for anything but a failure.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from thunderfleet_crds.group import GroupState, LastWords
from thunderfleet_crds.modeldeployment import Failure, Recovery
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase

from thunderfleet_operator.observe.snapshot import GroupView, NodeView, PodView

UNSCHEDULABLE_SECONDS = 10.0
SILENT_SECONDS = 60.0
CRASHES = 5
"""Restarts of a supervisor, in back-off, after which another placement is tried."""
UNANSWERED_SECONDS = 10.0
"""A rank 0 that has said nothing for so long serves nobody that could be asked to wait."""
DRAIN_SECONDS = 45.0
"""For so long at most a group is waited for that was asked to drain; its runner has limits of its own, well below it."""
STOPPED_SECONDS = 60.0
"""A group that has stopped, and that nobody wants stopped any more, is made anew after so long."""
EVICTED = "Evicted"
"""Reason of what is no failure of the group: `kubectl drain`, or whoever else evicts. It costs neither budget nor back-off."""
PROVEN_SECONDS = 600.0
"""After so long Ready a group's earlier restarts no longer count against its budget."""


class Verdict(StrEnum):
    KEEP = "Keep"
    DRAIN = "Drain"
    """No new requests; placed anew, or ended, when the running ones have come to their end."""
    PLACE = "Place"
    BACK_OFF = "BackOff"
    SPENT = "Spent"


@dataclass(frozen=True, slots=True)
class Decision:
    """``counts``: the new placement is one of ``recovery.maxRestarts``. ``avoid``: Macs to leave out if others will do."""

    verdict: Verdict
    failure: Failure | None = None
    until: datetime | None = None
    counts: bool = False
    avoid: Mapping[str, str] | None = None
    recheck_seconds: float | None = None
    """When to look again although nothing may have changed."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What rank 0 said last, for how long it has said nothing, and for how long it has been in that phase."""

    state: GroupState | None = None
    silent_seconds: float = 0.0
    phase_seconds: float = 0.0


def _failure(
    now: datetime, reason: str, message: str, node: str | None, rank: int | None, fault: FaultClass = FaultClass.REPLAN
) -> Failure:
    return Failure(class_=fault, reason=reason, message=message, node=node, rank=rank, time=now)


def serves(view: GroupView, heard: Heard) -> bool:
    """Whether requests may be running in a group."""
    state = heard.state
    if state is None:
        leader = next((pod for pod in view.pods if pod.rank == 0), None)
        return leader is not None and leader.running and heard.silent_seconds < UNANSWERED_SECONDS
    if heard.silent_seconds >= UNANSWERED_SECONDS:
        return False
    draining = state.phase is GroupPhase.DRAINING and any(rank.phase is RankPhase.SERVING for rank in state.ranks)
    return state.phase is GroupPhase.READY or draining


def must_drain(view: GroupView, heard: Heard, draining_seconds: float) -> bool:
    """Whether a group that is to go is to be waited for; it has been for ``draining_seconds``."""
    return serves(view, heard) and draining_seconds < DRAIN_SECONDS


def _deleted(pod: PodView, node: NodeView, now: datetime) -> Failure:
    """Why a pod was asked to end, by somebody else than the operator."""
    at = pod.terminating or now
    if pod.evicted or not node.schedulable:
        return _failure(
            at, EVICTED, f"pod {pod.name} was evicted from {node.name}, as `kubectl drain` does", node.name, pod.rank
        )
    return _failure(at, "PodDeleted", f"pod {pod.name} was deleted", None, pod.rank, FaultClass.RETRY)


def trouble(view: GroupView, heard: Heard, nodes: Mapping[str, NodeView], now: datetime) -> tuple[Failure | None, float | None]:
    """Why the newest placement cannot go on, if so; and when to look again, if time alone could bring that."""
    plan = view.plan
    if plan is None:
        return None, None
    recheck: float | None = None
    state = heard.state
    if state is not None and state.phase is GroupPhase.GAVE_UP:
        told = state.failure
        if told is None:
            return _failure(now, "GaveUp", state.message or "the runner gave up", None, None, FaultClass.BUG), None
        failure = Failure(
            class_=told.fault,
            reason=told.reason or "GaveUp",
            message=told.message,
            rank=told.rank,
            node=told.node,
            time=told.at,
        )
        return failure, None
    by_rank = {pod.rank: pod for pod in view.pods}
    started = view.status is not None and view.status.epoch == plan.epoch and view.status.state is not GroupPhase.PENDING
    predecessors = {pod.node for pod in view.old_pods if pod.terminating}
    for entry in plan.ranks:
        pod = by_rank.get(entry.rank)
        if entry.node not in nodes:
            return _failure(now, "NodeGone", f"Node {entry.node} is gone", entry.node, entry.rank), None
        if pod is None:
            if started:
                return _failure(now, "PodGone", f"pod {entry.pod} is gone", None, entry.rank, FaultClass.RETRY), None
            continue
        if pod.terminating:
            return _deleted(pod, nodes[entry.node], now), None
        if pod.phase == "Failed":
            text = f"pod {pod.name} failed: {pod.message or 'no reason given'}"
            return _failure(now, "PodFailed", text, entry.node, entry.rank), None
        if pod.unschedulable_since is not None and entry.node not in predecessors:
            waited = (now - pod.unschedulable_since).total_seconds()
            if waited >= UNSCHEDULABLE_SECONDS:
                text = f"pod {pod.name} finds no room: {pod.unschedulable_message}"
                return _failure(now, "Unschedulable", text, entry.node, entry.rank), None
            recheck = UNSCHEDULABLE_SECONDS - waited + 0.1
        ready = state is not None and state.phase is GroupPhase.READY
        words = LastWords.parse(pod.last_words)
        if pod.crash_looping and words is not None and not ready:
            # It has tried for a while, and nobody can ask it: without its state, this is how it gives up.
            return _failure(now, words.reason, words.message, entry.node, entry.rank, words.fault), None
        if pod.crash_looping and pod.restarts >= CRASHES and not ready:
            last = next(iter(pod.last_words.splitlines()[-1:]), pod.waiting)
            text = f"the supervisor of {pod.name} ended {pod.restarts} times: {last}; kubectl logs --previous {pod.name}"
            return _failure(now, "CrashLoop", text, entry.node, entry.rank, FaultClass.BUG), None
    if state is not None and state.phase is GroupPhase.DRAINING and heard.phase_seconds >= STOPPED_SECONDS:
        return _failure(now, "Stopped", "the group was asked to drain, and has stopped", None, None, FaultClass.RETRY), None
    for entry in plan.ranks:
        if nodes[entry.node].ready:
            continue
        lost = state is not None and any(r.rank == entry.rank and r.phase is RankPhase.ABSENT for r in state.ranks)
        silent = heard.silent_seconds >= SILENT_SECONDS
        if (lost and heard.silent_seconds < SILENT_SECONDS) or silent:
            why = "rank 0 has lost it" if lost else "rank 0 has not answered for a minute"
            return _failure(now, "NodeNotReady", f"Node {entry.node} is not Ready and {why}", entry.node, entry.rank), None
        recheck = min(recheck or 5.0, 5.0)
    return None, recheck


def backoff_seconds(recovery: Recovery, restarts: int) -> float:
    """Seconds before the next placement: doubled each time, bounded."""
    return float(min(recovery.backoff_seconds * 2 ** min(restarts, 20), recovery.backoff_limit_seconds))


def decide(
    view: GroupView,
    heard: Heard,
    nodes: Mapping[str, NodeView],
    wanted_hash: str,
    recovery: Recovery,
    now: datetime,
    *,
    may_roll: bool,
    draining_seconds: float = 0.0,
) -> Decision:
    """``may_roll``: whether a group that serves may be replaced now because the spec has changed. ``draining_seconds``: for how
    long it has been waited for since it was to drain.
    """
    if view.epoch is None or view.plan is None:
        return Decision(Verdict.PLACE)
    outdated = view.epoch.spec_hash != wanted_hash
    waits = must_drain(view, heard, draining_seconds)
    if outdated and (may_roll or not serves(view, heard)):
        return Decision(Verdict.DRAIN, recheck_seconds=1.0) if waits else Decision(Verdict.PLACE)
    failure, recheck = trouble(view, heard, nodes, now)
    status = view.status
    told = status if status is not None and status.epoch == view.plan.epoch else None
    if (
        failure is None
        and heard.state is None
        and told is not None
        and told.state in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP)
    ):
        # A restarted operator has not heard rank 0, or never will: what was told stands until it says otherwise.
        failure = told.last_failure
    if failure is None:
        return Decision(Verdict.KEEP, recheck_seconds=recheck)
    restarts = status.restarts if status else 0
    pending = told.next_restart_time if told else None
    cause = status.last_failure if status and pending is not None else None
    if cause is not None and (failure.class_ is not FaultClass.CONFIGURE or cause.reason == EVICTED):
        # The failure that began the wait is the cause; what is seen during it is its echo.
        failure = cause
    if failure.reason == EVICTED:
        return Decision(Verdict.DRAIN, failure, now, recheck_seconds=1.0) if waits else Decision(Verdict.PLACE, failure, now)
    if restarts >= recovery.max_restarts:
        return Decision(Verdict.SPENT, failure)
    if pending is None:
        slow = failure.class_ is FaultClass.CONFIGURE
        wait = float(recovery.backoff_limit_seconds) if slow else backoff_seconds(recovery, restarts)
        pending = now + timedelta(seconds=wait)
    if now < pending:
        return Decision(Verdict.BACK_OFF, failure, pending, recheck_seconds=(pending - now).total_seconds())
    avoid = {}
    if failure.node and failure.class_ in (FaultClass.REPLAN, FaultClass.REBOOT, FaultClass.BUG):
        avoid = {failure.node: f"is avoided after the last failure there: {failure.reason}: {failure.message}"}
    return Decision(Verdict.PLACE, failure, counts=True, avoid=avoid)


def ready(heard: Heard) -> bool:
    return heard.state is not None and heard.state.phase is GroupPhase.READY


def may_roll(views: Mapping[int, GroupView], heard: Mapping[int, Heard], wanted_hash: str, stuck: Set[int]) -> int | None:
    """The one serving group that a changed spec may replace now: the lowest, once all others serve. The one that drains for it
    already comes first, and groups that cannot be placed (``stuck``) hold nobody up.
    """
    outdated = [i for i, view in views.items() if view.epoch is not None and view.epoch.spec_hash != wanted_hash]
    for i in outdated:
        status, epoch = views[i].status, views[i].epoch
        drains = status and epoch and status.epoch == epoch.number and status.state is GroupPhase.DRAINING
        if drains and serves(views[i], heard[i]):
            return i
    if any(not ready(heard[i]) and i not in stuck for i in views):
        return None
    return min((i for i in outdated if ready(heard[i])), default=None)
