"""Why a group's newest placement cannot go on. A group that is slow to start, download or load is not in trouble."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.exchange import group
from thunderfleet_crds.exchange.group import LastWords
from thunderfleet_crds.exchange.plan import Plan, RankPlan
from thunderfleet_crds.kinds.modeldeployment import Failure
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.decide.group.cables import broken_cable, cable_between
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.objects.pods import Pod
from thunderfleet_operator.placement import Fleet

UNSCHEDULABLE_SECONDS = 10.0
SILENT_SECONDS = 60.0
"""A Mac that is not Ready is given up after rank 0 has been silent for this long."""
CRASHES = 5
"""Restarts of a supervisor in CrashLoopBackOff after which another placement is tried."""
STOPPED_SECONDS = 60.0
"""A group that has stopped draining without being replaced is restarted after this long."""
NOT_READY_RECHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """``failure``: None while the placement can go on. ``recheck_seconds``: when time alone could change that."""

    failure: Failure | None = None
    recheck_seconds: float | None = None


def _failure(
    now: datetime, reason: str, message: str, node: str | None, rank: int | None, fault: FaultClass = FaultClass.REPLAN
) -> Failure:
    return Failure(class_=fault, reason=reason, message=message, node=node, rank=rank, time=now)


def trouble(view: GroupView, report: Report, nodes: Mapping[str, Node], fleet: Fleet, now: datetime) -> Trouble:
    """The first failure of a group's newest placement: a lost address, a cable, what its runner reports, its pods, its Macs.

    A lost address and a cable come first, because they cause the others.
    """
    plan = view.plan
    if plan is None:
        return Trouble()
    moved = _moved(plan, nodes, fleet, now)
    if moved is not None:
        return Trouble(moved)
    broken = broken_cable(plan, fleet)
    if broken is not None:
        # A cable has two ends, so the failure is not attributed to a Mac.
        found = _failure(now, broken.fault.reason, broken.message, None, None)
        return Trouble(found.model_copy(update={"link": broken.name}))
    failure = _gave_up(plan, report, now)
    if failure is not None:
        return Trouble(failure)
    pods = _pods(plan, view, report, nodes, now)
    if pods.failure is not None:
        return pods
    failure = _stopped(report, now)
    if failure is not None:
        return Trouble(failure)
    macs = _unready_macs(plan, report, nodes, now)
    if macs.failure is not None:
        return macs
    return Trouble(recheck_seconds=_earliest((pods.recheck_seconds, macs.recheck_seconds)))


def _moved(plan: Plan, nodes: Mapping[str, Node], fleet: Fleet, now: datetime) -> Failure | None:
    """A Node that has another address than its rank was planned with, on a Mac that no longer has the planned one.

    If the Mac still has the planned address, because only another interface became the Node's, the group keeps serving.
    """
    for entry in plan.ranks:
        node, mac = nodes.get(entry.node), fleet.macs.get(entry.node)
        if node is None or node.address in (None, entry.address):
            continue
        if mac is None or entry.address not in mac.kinds.addresses:
            text = f"the address of Node {entry.node} changed from {entry.address} to {node.address}"
            return _failure(now, Reason.ADDRESS_LOST, text, entry.node, entry.rank, FaultClass.RETRY)
    return None


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((seconds for seconds in times if seconds is not None), default=None)


def _gave_up(plan: Plan, report: Report, now: datetime) -> Failure | None:
    """Returns the failure that rank 0 reports, without a Mac of another group: the report could put it into quarantine."""
    state = report.state
    if state is None or state.phase is not GroupPhase.GAVE_UP:
        return None
    if state.failure is None:
        log = f"`kubectl logs -n {plan.namespace} {plan.ranks[0].pod}`"
        text = state.message or f"rank 0 gave up without a reason: see {log}, before the pod is replaced"
        return _failure(now, Reason.GAVE_UP, text, None, None, FaultClass.BUG)
    return reported(plan, state.failure)


def reported(plan: Plan, cause: group.Failure) -> Failure:
    """Converts a failure that rank 0 reports to the form of the status."""
    link = _corrupting(plan, cause)
    return Failure(
        class_=cause.fault,
        reason=cause.reason or Reason.GAVE_UP,
        message=f"cable {link}: {cause.message}" if link is not None else cause.message,
        rank=cause.rank,
        node=cause.node if cause.node in {rank.node for rank in plan.ranks} else None,
        link=link,
        time=cause.at,
    )


def _corrupting(plan: Plan, cause: group.Failure) -> str | None:
    """Returns the cable that corrupted data; None if the failure is another one, or if the cable is not known."""
    if cause.reason != Reason.LINK_CORRUPTS or cause.rank is None or cause.peer is None:
        return None
    return cable_between(plan, cause.rank, cause.peer)


def _pods(plan: Plan, view: GroupView, report: Report, nodes: Mapping[str, Node], now: datetime) -> Trouble:
    """Checks each rank: its Node, its pod, and the termination message of its supervisor."""
    by_rank = {pod.rank: pod for pod in view.pods}
    started = view.status is not None and view.status.epoch == plan.epoch and view.status.state is not GroupPhase.PENDING
    predecessors = {pod.node for pod in view.old_pods if pod.terminating}
    ready = report.state is not None and report.state.phase is GroupPhase.READY
    recheck: float | None = None
    for entry in plan.ranks:
        pod, node = by_rank.get(entry.rank), nodes.get(entry.node)
        if node is None:
            return Trouble(_failure(now, Reason.NODE_GONE, f"Node {entry.node} has been deleted", entry.node, entry.rank))
        if pod is None:
            if started:
                return Trouble(
                    _failure(now, Reason.POD_GONE, f"pod {entry.pod} no longer exists", None, entry.rank, FaultClass.RETRY)
                )
            continue
        failure = _ended(pod, node, now)
        if failure is None and pod.unschedulable_since is not None and entry.node not in predecessors:
            waited = age_seconds(pod.unschedulable_since, now)
            if waited >= UNSCHEDULABLE_SECONDS:
                text = f"pod {pod.name} cannot be scheduled: {pod.unschedulable_message}"
                failure = _failure(now, Reason.UNSCHEDULABLE, text, entry.node, entry.rank)
            else:
                recheck = _earliest((recheck, UNSCHEDULABLE_SECONDS - waited + 0.1))
        if failure is None and not ready:
            failure = _crashed(pod, plan.namespace, entry, now)
        if failure is not None:
            return Trouble(failure)
    return Trouble(recheck_seconds=recheck)


def _ended(pod: Pod, node: Node, now: datetime) -> Failure | None:
    """Why a pod is ending or has ended, if anything but the operator ended it."""
    if pod.terminating and (pod.evicted or not node.schedulable):
        text = f"pod {pod.name} was evicted from {node.name}, as `kubectl drain` or a queue does"
        return _failure(pod.terminating, Reason.EVICTED, text, node.name, pod.rank)
    if pod.terminating:
        return _failure(pod.terminating, Reason.POD_DELETED, f"pod {pod.name} was deleted", None, pod.rank, FaultClass.RETRY)
    if pod.phase == "Failed":
        return _failure(
            now, Reason.POD_FAILED, f"pod {pod.name} failed: {pod.message or 'no reason given'}", node.name, pod.rank
        )
    return None


def _crashed(pod: Pod, namespace: str, entry: RankPlan, now: datetime) -> Failure | None:
    """What a supervisor in CrashLoopBackOff left as its termination message."""
    if not pod.crash_looping:
        return None
    words = LastWords.parse(pod.last_words)
    if words is not None:
        # A supervisor that cannot serve its state reports its failure this way.
        return _failure(now, words.reason, words.message, entry.node, entry.rank, words.fault)
    if pod.restarts >= CRASHES:
        last = next(iter(pod.last_words.splitlines()[-1:]), pod.waiting)
        log = f"`kubectl logs -n {namespace} --previous {pod.name}`"
        text = f"the container of pod {pod.name} exited {pod.restarts} times: {last}; see {log}"
        return _failure(now, Reason.CRASH_LOOP, text, entry.node, entry.rank, FaultClass.BUG)
    return None


def _stopped(report: Report, now: datetime) -> Failure | None:
    state = report.state
    if state is None or state.phase is not GroupPhase.DRAINING or report.phase_seconds < STOPPED_SECONDS:
        return None
    text = "the group finished its requests and stopped, although it is still needed; it restarts automatically"
    return _failure(now, Reason.STOPPED, text, None, None, FaultClass.RETRY)


def _unready_macs(plan: Plan, report: Report, nodes: Mapping[str, Node], now: datetime) -> Trouble:
    """Reports a Mac that is not Ready, but only if the group has lost the connection to it too, or does not answer."""
    absent = {rank.rank for rank in report.state.ranks if rank.phase is RankPhase.ABSENT} if report.state else set[int]()
    silent = report.silent_seconds >= SILENT_SECONDS
    recheck: float | None = None
    for entry in plan.ranks:
        if nodes[entry.node].ready:
            continue
        if entry.rank in absent or silent:
            why = "rank 0 has lost the connection to it" if entry.rank in absent else "rank 0 has not answered for a minute"
            text = f"Node {entry.node} is not Ready and {why}: switch it on, or check its kubelet"
            return Trouble(_failure(now, Reason.NODE_NOT_READY, text, entry.node, entry.rank))
        recheck = NOT_READY_RECHECK_SECONDS
    return Trouble(recheck_seconds=recheck)
