"""One entry of ``status.groups``."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.exchange import group as report
from thunderfleet_crds.exchange.plan import Plan, RankPlan
from thunderfleet_crds.kinds.modeldeployment import Failure, Group, LayerRange, LostPlace, ModelDeployment, Predicted, Rank
from thunderfleet_crds.meta.fields import binary_size
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import (
    ConditionType,
    FastSynch,
    FaultClass,
    GroupPhase,
    RankPhase,
    Split,
)

from thunderfleet_operator.decide.group.lifecycle import PROVEN_SECONDS, Step, by_cable
from thunderfleet_operator.decide.group.trouble import reported
from thunderfleet_operator.decide.manifests import transport, uses_fast_synch
from thunderfleet_operator.decide.status import verification
from thunderfleet_operator.decide.status.outcome import Outcome
from thunderfleet_operator.decide.status.verdict import MESSAGE_LENGTH
from thunderfleet_operator.observe.objects.pods import Pod

FRESH_SECONDS = 10.0
"""How long rank 0's last report is shown after it stops answering; the last status, after a restart of the operator."""
RETURNS = "the group goes back to a better placement"
LEAVING = "autoscaling: the group is stopped when its requests have ended"
PLANNING = "waiting for the planner to choose a placement"

UNREPORTED = (GroupPhase.PENDING, GroupPhase.STARTING, GroupPhase.BACKING_OFF)
"""Stages that the operator sets without a report of rank 0."""


SERVING = (GroupPhase.READY, GroupPhase.DRAINING)
"""Stages in which a group has requests."""


def host_port(address: str, port: int) -> str:
    """``address:port``, with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def endpoint(plan: Plan) -> str:
    """The base URL of the group's API."""
    return f"http://{host_port(plan.ranks[0].address, plan.ranks[0].gateway_port)}/v1"


def _because(failure: Failure | None) -> str:
    if failure is None:
        return ""
    where = f" on {failure.node}" if failure.node else ""
    held = f" ({failure.node} is quarantined until it reboots)" if failure.class_ is FaultClass.REBOOT and where else ""
    return f"; last failure{where}: {failure.reason}: {failure.message}{held}"


# --- ranks -----------------------------------------------------------------------------------------------------------


def _pod_wait(pod: Pod | None, name: str, node: str) -> str | None:
    """Why a rank's pod does not run yet; None if it does."""
    if pod is None:
        return f"creating pod {name}"
    if pod.terminating:
        return f"pod {name} on {node} is terminating"
    if pod.gates:
        return f"pod {name} waits until its scheduling gates are removed: {', '.join(pod.gates)}"
    if not pod.scheduled:
        return f"waiting for the scheduler to bind pod {name} to {node}" + (
            f": {pod.unschedulable_message}" if pod.unschedulable_message else ""
        )
    if pod.waiting:
        last = pod.last_words.splitlines()[-1:] if pod.crash_looping else []
        return f"pod {name} on {node}: {pod.waiting}" + "".join(f"; last output: {line}" for line in last)
    if not pod.running:
        return f"pod {name} on {node} is starting"
    return None


def _rank(
    plan: Plan, entry: RankPlan, pod: Pod | None, reported: report.RankReport | None, past: Rank | None, attempts: int
) -> Rank:
    """One rank, from its report or else from its last status."""
    stage, error = (RankPhase.STARTING if pod is not None and pod.scheduled else RankPhase.PENDING), None
    loaded, total, layers = (past.loaded_bytes, past.total_bytes, past.loaded_layers) if past else (None, None, None)
    if reported is not None:
        stage = reported.phase
        error = (reported.message or None) if reported.phase is RankPhase.FAILED else None
        loaded, total, layers = reported.loaded_bytes or None, reported.total_bytes or None, reported.loaded_layers or None
    elif past is not None:
        stage, error = past.state, past.last_error
    return Rank(
        rank=entry.rank,
        node=entry.node,
        pod=entry.pod,
        address=entry.address,
        layers=LayerRange(first=entry.layers[0], count=entry.layers[1] - entry.layers[0]) if entry.layers else None,
        shard=f"{entry.rank + 1}/{plan.world_size}" if plan.split is Split.TENSOR else None,
        memory_bytes=entry.memory_bytes,
        state=stage,
        loaded_bytes=loaded,
        total_bytes=total,
        loaded_layers=layers,
        attempts=attempts,
        last_error=error,
    )


def _ranks(plan: Plan, pods: Mapping[int, Pod], state: report.GroupState | None, carried: Group | None) -> tuple[Rank, ...]:
    reported = {entry.rank: entry for entry in state.ranks} if state else {}
    before = {entry.rank: entry for entry in carried.ranks} if carried else {}
    found = []
    for entry in plan.ranks:
        past = before.get(entry.rank)
        attempts = state.attempt if state else past.attempts if past else 0
        found.append(_rank(plan, entry, pods.get(entry.rank), reported.get(entry.rank), past, attempts))
    return tuple(found)


def _reason(reason: str, plan: Plan, deployment: ModelDeployment) -> str:
    """The reason for the placement, and which setting has no effect, if any."""
    wanted = deployment.spec.runtime.fast_synch is FastSynch.ENABLED
    if not wanted or uses_fast_synch(transport(plan), plan.split):
        return reason
    unused = "runtime.fastSynch has no effect: it needs parallelism Tensor and transport JACCL"
    return "; ".join(part for part in (reason[: MESSAGE_LENGTH - len(unused) - 2], unused) if part)


# --- the group -------------------------------------------------------------------------------------------------------


def _loading(state: report.GroupState) -> str:
    """The progress of each rank that still loads."""
    parts = []
    for rank in state.ranks:
        if not rank.total_bytes or rank.loaded_bytes < rank.total_bytes:
            done = rank.loaded_bytes * 100 // rank.total_bytes if rank.total_bytes else 0
            bytes_ = f"{done} % of {binary_size(rank.total_bytes)}" if rank.total_bytes else ""
            layers = f"{rank.loaded_layers} layers" if rank.loaded_layers else ""
            progress = ", ".join(part for part in (bytes_, layers) if part) or "starting"
            parts.append(f"rank {rank.rank} on {rank.node} ({progress})")
    return f"loading the model: {'; '.join(parts)}" if parts else state.message


@dataclass(frozen=True, slots=True)
class _Stage:
    stage: GroupPhase
    message: str


def _decided(outcome: Outcome, deployment: ModelDeployment, state: report.GroupState | None, restarts: int) -> _Stage | None:
    """The stage that follows from the operator's own decision; None if the group's report counts."""
    step, failure = outcome.next, _last_failure(outcome)
    if outcome.blocked:
        return _Stage(GroupPhase.PENDING, outcome.blocked.message)
    if outcome.fetching is not None and step.step in (Step.KEEP, Step.PLACE):
        return _Stage(GroupPhase.PENDING, outcome.fetching)
    if step.step is Step.GIVE_UP and failure is not None and failure.reason == Reason.OUTPUT_WRONG:
        return _Stage(GroupPhase.GAVE_UP, f"{failure.message}; to try again, delete the pods of the group")
    if step.step is Step.GIVE_UP:
        most = deployment.spec.recovery.max_restarts
        used = f"{restarts} of {most} restarts used; to retry, raise spec.recovery.maxRestarts"
        return _Stage(GroupPhase.GAVE_UP, used + _because(failure))
    if step.step is Step.BACK_OFF and step.until is not None and by_cable(failure) and failure is not None:
        return _Stage(GroupPhase.BACKING_OFF, f"{failure.message}; the group is placed elsewhere if this persists")
    if step.step is Step.BACK_OFF and step.until is not None:
        count = f"restart {restarts + 1} of {deployment.spec.recovery.max_restarts}"
        return _Stage(GroupPhase.BACKING_OFF, f"{count} at {step.until:%H:%M:%S} UTC" + _because(failure))
    if step.step is Step.DRAIN and not outcome.unplaceable and not outcome.planning:
        why = step.failure.message if step.failure else RETURNS if step.returns else "the spec has changed"
        progress = state.message if state and state.phase is GroupPhase.DRAINING else "admitting no new requests"
        return _Stage(GroupPhase.DRAINING, f"{why}: {progress}; the group is replaced when it has drained")
    if step.step is Step.PLACE and not outcome.placed_now and not outcome.outdated:
        lack = f"cannot be placed: see condition {ConditionType.PLACED}" if outcome.unplaceable else PLANNING
        return _Stage(GroupPhase.BACKING_OFF, lack + _because(failure))
    return None


def _reported(plan: Plan, outcome: Outcome, state: report.GroupState | None, carried: Group | None) -> _Stage:
    """The stage that rank 0 reports, or that its pods are in while it reports nothing."""
    if state is not None:
        loading = state.phase is GroupPhase.LOADING
        return _Stage(state.phase, _loading(state) if loading else state.message)
    pods = {pod.rank: pod for pod in outcome.view.pods}
    waits = [text for entry in plan.ranks if (text := _pod_wait(pods.get(entry.rank), entry.pod, entry.node))]
    if carried is not None and not waits:
        return _Stage(carried.state, carried.message)
    return _Stage(GroupPhase.STARTING, "; ".join(waits) or f"rank 0 on {plan.ranks[0].node} does not answer yet")


def _last_failure(outcome: Outcome) -> Failure | None:
    before = outcome.view.status
    return outcome.next.failure or (before.last_failure if before else None)


def _next_restart(outcome: Outcome) -> datetime | None:
    step, before = outcome.next, outcome.view.status
    if (outcome.unplaceable or outcome.planning) and before is not None:
        # The back-off is over; a missing placement does not start it again.
        return before.next_restart_time or step.until
    return step.until if step.step in (Step.BACK_OFF, Step.DRAIN) else None


def _restarts(outcome: Outcome) -> int:
    before = outcome.view.status.restarts if outcome.view.status else 0
    if not outcome.placed_now:
        return before
    if outcome.next.counts:
        return before + 1
    return 0 if outcome.outdated else before


def _lost_place(outcome: Outcome) -> LostPlace | None:
    """The placement that the group lost after a failure, until it has an equally good one again or its spec changes."""
    before, step = outcome.view.status, outcome.next
    lost = before.lost_place if before is not None else None
    if not outcome.placed_now:
        return lost.model_copy(update={"returning": step.returns and step.step is Step.DRAIN}) if lost is not None else None
    return outcome.lost


def _carried(outcome: Outcome, plan: Plan) -> Group | None:
    """The last status of this placement, while rank 0 has been silent only briefly."""
    before = outcome.view.status
    if before is None or before.epoch != plan.epoch or outcome.report.silent_seconds >= FRESH_SECONDS:
        return None
    return None if before.state in UNREPORTED else before


def _version(outcome: Outcome, plan: Plan, state: report.GroupState | None) -> str | None:
    """What rank 0 reports, or has reported in this epoch."""
    if state is not None:
        return state.runner_version[:64] if state.runner_version else None
    before = outcome.view.status
    return before.runner_version if before is not None and before.epoch == plan.epoch else None


def _intake(stage: GroupPhase, state: report.GroupState | None, carried: Group | None) -> str | None:
    """What is wrong with the intake of a group that serves."""
    if stage not in SERVING:
        return None
    return (state.intake if state is not None else carried.intake if carried is not None else None) or None


def group_status(outcome: Outcome, deployment: ModelDeployment, predicted: Predicted | None = None) -> Group:
    """One entry of ``status.groups``."""
    view, plan = outcome.view, outcome.view.plan
    restarts, failure = _restarts(outcome), _last_failure(outcome)
    if plan is None:
        planning = f"it is not known yet whether cable {outcome.unknown} carries RDMA" if outcome.unknown else PLANNING
        message = outcome.wait.message if outcome.wait else planning if outcome.planning else "not placed yet"
        return Group(
            index=view.index,
            epoch=view.last_epoch,
            state=GroupPhase.PENDING,
            message=message[:MESSAGE_LENGTH],
            restarts=restarts,
            last_failure=failure,
            verified=verification.of_group(view, None),
            proven_lengths=verification.proven_lengths(view, None),
            weights=verification.weights(view, None),
            recorded_answers=verification.recorded_answers(view, None),
            lost_place=_lost_place(outcome),
            avoided_links=outcome.avoided,
        )
    state = outcome.report.state if outcome.report.silent_seconds < FRESH_SECONDS else None
    carried = _carried(outcome, plan) if state is None else None
    found = _decided(outcome, deployment, state, restarts)
    if found is None:
        found = _reported(plan, outcome, state, carried)
        if outcome.leaving and found.stage is GroupPhase.READY:
            found = _Stage(GroupPhase.DRAINING, LEAVING)
        if state is not None:
            failure = reported(plan, state.failure) if state.failure is not None else failure
            if state.phase is GroupPhase.READY and outcome.report.phase_seconds >= PROVEN_SECONDS:
                # Uses the operator's clock, because the time in the report comes from the clock of a Mac.
                restarts = 0
    return Group(
        index=view.index,
        uid=f"{plan.uid}-{plan.index}",
        epoch=plan.epoch,
        plan_digest=view.epoch.digest if view.epoch else None,
        state=found.stage,
        message=found.message[:MESSAGE_LENGTH],
        transport=transport(plan),
        parallelism=plan.split,
        reason=_reason(view.epoch.reason if view.epoch else "", plan, deployment),
        coordinator=host_port(plan.ranks[0].address, plan.ranks[0].control_port),
        endpoint=endpoint(plan),
        runner_version=_version(outcome, plan, state),
        intake=_intake(found.stage, state, carried),
        environment=tuple(f"{name}={value}" for name, value in sorted(plan.runtime.environment.items())),
        verified=verification.of_group(view, state),
        proven_lengths=verification.proven_lengths(view, state),
        weights=verification.weights(view, state),
        recorded_answers=verification.recorded_answers(view, state),
        predicted=predicted,
        ranks=_ranks(plan, {pod.rank: pod for pod in view.pods}, state, carried),
        restarts=restarts,
        next_restart_time=_next_restart(outcome),
        last_failure=failure,
        lost_place=_lost_place(outcome),
        avoided_links=outcome.avoided,
    )
