"""What ``kubectl get md`` and ``kubectl describe md`` tell. Pure: the same facts give the same status, so nothing is rewritten.

Conditions say what to do next; a text that somebody would otherwise look for in logs stands here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds import group as report
from thunderfleet_crds.common import MAX_RANKS, Condition, binary_size, quantity, set_condition
from thunderfleet_crds.modeldeployment import (
    BenchmarkResult,
    Failure,
    Group,
    LayerRange,
    ModelDeployment,
    ModelDeploymentStatus,
    Rank,
    TerminatingPod,
)
from thunderfleet_crds.modeldeployment import Unplaceable as NearMissStatus
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.vocabulary import (
    Backend,
    ConditionType,
    FaultClass,
    GroupPhase,
    PlacedTransport,
    RankPhase,
    Split,
    Transport,
)

from thunderfleet_operator.decide.lifecycle import PROVEN_SECONDS, Decision, Heard, Verdict
from thunderfleet_operator.decide.manifests import served_name, serving_selector
from thunderfleet_operator.observe.snapshot import GroupView, PodView
from thunderfleet_operator.placement import Unplaceable

FRESH_SECONDS = 10.0
"""For so long what rank 0 said last (or the last status, after a restart of the operator) stands though it is silent."""
MESSAGE_LENGTH = 1500
LISTED = 64
"""Entries of ``status.unplaceable``."""

FORMED = (GroupPhase.LOADING, GroupPhase.READY, GroupPhase.DRAINING)
TRANSPORTS: dict[Backend, PlacedTransport] = {
    Backend.NONE: Transport.NONE,
    Backend.RING: Transport.RING,
    Backend.JACCL: Transport.JACCL,
}


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something other than the placement keeps a group from being made: a refusal of the API server, no port left."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """Whether the model was found on a Mac's disk."""

    found: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One group after this round."""

    view: GroupView
    decision: Decision
    heard: Heard
    placed_now: bool = False
    outdated: bool = False
    unplaceable: Unplaceable | None = None
    blocked: Blocked | None = None
    better: str | None = None
    """A better place that exists today; a group never moves for it alone."""


def host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def endpoint(plan: Plan) -> str:
    return f"http://{host_port(plan.ranks[0].address, plan.ranks[0].gateway_port)}/v1"


def transport(plan: Plan) -> PlacedTransport:
    return Transport.JACCL_RING if plan.jaccl_ring else TRANSPORTS[plan.backend]


def _failure(told: report.Failure) -> Failure:
    return Failure(class_=told.fault, reason=told.reason, rank=told.rank, node=told.node, message=told.message, time=told.at)


def _carried(outcome: Outcome, plan: Plan) -> Group | None:
    """The last status of this very placement, while rank 0 has not been silent for long."""
    before = outcome.view.status
    if before is None or before.epoch != plan.epoch or outcome.heard.silent_seconds >= FRESH_SECONDS:
        return None
    if before.state in (GroupPhase.PENDING, GroupPhase.STARTING, GroupPhase.BACKING_OFF):
        return None
    return before


def _pod_text(pod: PodView | None, name: str, node: str) -> str | None:
    """What a pod that does not run yet waits for."""
    if pod is None:
        return f"pod {name} is being made"
    if pod.terminating:
        return f"pod {name} on {node} is ending"
    if not pod.scheduled:
        return f"pod {name} is to be scheduled to {node}" + (
            f": {pod.unschedulable_message}" if pod.unschedulable_message else ""
        )
    if pod.waiting:
        said = pod.last_words.splitlines()[-1:] if pod.crash_looping else []
        return f"pod {name} on {node}: {pod.waiting}" + "".join(f"; last it said: {line}" for line in said)
    if not pod.running:
        return f"pod {name} on {node} is starting"
    return None


def _ranks(plan: Plan, pods: Mapping[int, PodView], state: report.GroupState | None, carried: Group | None) -> tuple[Rank, ...]:
    told = {entry.rank: entry for entry in state.ranks} if state else {}
    before = {entry.rank: entry for entry in carried.ranks} if carried else {}
    found = []
    for entry in plan.ranks:
        pod = pods.get(entry.rank)
        stage = RankPhase.STARTING if pod is not None and pod.scheduled else RankPhase.PENDING
        error = None
        if entry.rank in told:
            stage = told[entry.rank].phase
            if told[entry.rank].phase is RankPhase.FAILED:
                error = told[entry.rank].message or None
        elif entry.rank in before:
            stage, error = before[entry.rank].state, before[entry.rank].last_error
        size, load = len(plan.ranks), told.get(entry.rank)
        past = before.get(entry.rank)
        attempts = state.attempt if state else (before[entry.rank].attempts if entry.rank in before else 0)
        found.append(
            Rank(
                rank=entry.rank,
                node=entry.node,
                pod=entry.pod,
                address=entry.address,
                layers=LayerRange(first=entry.layers[0], count=entry.layers[1] - entry.layers[0]) if entry.layers else None,
                shard=f"{entry.rank + 1}/{size}" if plan.split is Split.TENSOR else None,
                memory_bytes=entry.memory_bytes,
                state=stage,
                loaded_bytes=load.loaded_bytes or None if load else past.loaded_bytes if past else None,
                total_bytes=load.total_bytes or None if load else past.total_bytes if past else None,
                loaded_layers=load.loaded_layers or None if load else past.loaded_layers if past else None,
                attempts=attempts,
                last_error=error,
            )
        )
    return tuple(found)


def _loading(state: report.GroupState) -> str:
    """How far each rank is with the model; those that have it are not mentioned."""
    parts = []
    for rank in state.ranks:
        if not rank.total_bytes or rank.loaded_bytes < rank.total_bytes:
            done = rank.loaded_bytes * 100 // rank.total_bytes if rank.total_bytes else 0
            bytes_ = f"{done} % of {binary_size(rank.total_bytes)}" if rank.total_bytes else ""
            layers = f"{rank.loaded_layers} layers" if rank.loaded_layers else ""
            how = ", ".join(part for part in (bytes_, layers) if part) or "begins"
            parts.append(f"rank {rank.rank} on {rank.node} ({how})")
    return f"loading the model: {'; '.join(parts)}" if parts else state.message


def group_status(outcome: Outcome, deployment: ModelDeployment, now: datetime) -> Group:
    """One entry of ``status.groups``."""
    view, decision, before, plan = outcome.view, outcome.decision, outcome.view.status, outcome.view.plan
    restarts = before.restarts if before else 0
    failure = decision.failure or (before.last_failure if before else None)
    until = decision.until if decision.verdict in (Verdict.BACK_OFF, Verdict.DRAIN) else None
    if outcome.unplaceable and before is not None:
        # The wait is over, and is not to begin anew for want of a place.
        until = before.next_restart_time or decision.until
    if outcome.placed_now:
        restarts = restarts + 1 if decision.counts else (0 if outcome.outdated else restarts)
    if plan is None:
        wait = outcome.unplaceable or outcome.blocked
        return Group(
            index=view.index,
            epoch=view.last_epoch,
            state=GroupPhase.PENDING,
            message=wait.message[:MESSAGE_LENGTH] if wait else "no placement has been made yet",
            restarts=restarts,
            last_failure=failure,
        )
    state = outcome.heard.state if outcome.heard.silent_seconds < FRESH_SECONDS else None
    carried = _carried(outcome, plan) if state is None else None
    pods = {pod.rank: pod for pod in view.pods}
    waits = [text for entry in plan.ranks if (text := _pod_text(pods.get(entry.rank), entry.pod, entry.node))]
    if outcome.blocked:
        stage, message = GroupPhase.PENDING, outcome.blocked.message
    elif decision.verdict is Verdict.SPENT:
        stage = GroupPhase.GAVE_UP
        message = f"all {restarts} restarts of spec.recovery are spent; a change of spec begins anew" + _because(failure)
    elif decision.verdict is Verdict.BACK_OFF and decision.until is not None:
        stage, message = (
            GroupPhase.BACKING_OFF,
            f"the next placement (restart {restarts + 1} of {deployment.spec.recovery.max_restarts}) is made at "
            f"{decision.until:%H:%M:%S} UTC" + _because(failure),
        )
    elif decision.verdict is Verdict.DRAIN and not outcome.unplaceable:
        why = f"{decision.failure.message}: " if decision.failure else "the spec has changed: "
        told = state.message if state and state.phase is GroupPhase.DRAINING else "no new requests"
        stage, message = GroupPhase.DRAINING, f"{why}{told}; then the group is placed anew"
    elif decision.verdict is Verdict.PLACE and not outcome.placed_now and not outcome.outdated:
        stage = GroupPhase.BACKING_OFF
        message = f"waits for a place: see the condition {ConditionType.PLACED}" + _because(failure)
    elif state is not None:
        stage = state.phase
        message = _loading(state) if state.phase is GroupPhase.LOADING else state.message
        if state.failure is not None:
            failure = _failure(state.failure)
        if state.phase is GroupPhase.READY and state.ready_since is not None:
            restarts = 0 if (now - state.ready_since).total_seconds() >= PROVEN_SECONDS else restarts
    elif carried is not None and not waits:
        stage, message = carried.state, carried.message
    else:
        stage = GroupPhase.STARTING
        message = "; ".join(waits) or f"rank 0 on {plan.ranks[0].node} does not answer yet"
    return Group(
        index=view.index,
        uid=f"{plan.uid}-{plan.index}",
        epoch=plan.epoch,
        state=stage,
        message=message[:MESSAGE_LENGTH],
        transport=transport(plan),
        parallelism=plan.split,
        reason=view.epoch.reason if view.epoch else "",
        coordinator=host_port(plan.ranks[0].address, plan.ranks[0].control_port),
        endpoint=endpoint(plan),
        ranks=_ranks(plan, pods, state, carried),
        restarts=restarts,
        next_restart_time=until,
        last_failure=failure,
    )


def _because(failure: Failure | None) -> str:
    if failure is None:
        return ""
    where = f" on {failure.node}" if failure.node else ""
    held = f" ({failure.node} is quarantined until it is rebooted)" if failure.class_ is FaultClass.REBOOT and where else ""
    return f"; last failure{where}: {failure.reason}: {failure.message}{held}"


def benchmark(told: report.BenchmarkReport, plan: Plan) -> BenchmarkResult:
    return BenchmarkResult(
        prefill_tokens_per_second=quantity(told.prefill_tokens_per_second),
        decode_tokens_per_second=(
            quantity(told.decode_tokens_per_second) if told.decode_tokens_per_second is not None else None
        ),
        time_to_first_token_microseconds=told.time_to_first_token_microseconds,
        peak_memory_bytes=told.peak_memory_bytes,
        all_reduce_megabytes_per_second=(
            quantity(told.all_reduce_megabytes_per_second) if told.all_reduce_megabytes_per_second is not None else None
        ),
        all_reduce_microseconds=told.all_reduce_microseconds,
        ran=told.ran or None,
        prompt_tokens=told.prompt_tokens,
        generation_tokens=told.generation_tokens,
        group=plan.index,
        epoch=plan.epoch,
        world_size=plan.world_size,
        transport=transport(plan),
        parallelism=plan.split,
        measured_at=told.measured_at,
    )


def _short(parts: Sequence[str]) -> str:
    text = "; ".join(dict.fromkeys(part for part in parts if part))
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"


def _waits(group: Group) -> str:
    """What a group that does not serve waits for. What a place lacks is long, and stands in another condition."""
    if group.state is GroupPhase.PENDING and not group.ranks:
        return f"group {group.index} has no place yet: see the condition {ConditionType.PLACED}"
    return f"group {group.index}: {group.state}: {group.message}"


def _ready(groups: Sequence[Group], wanted: int, resolution: Resolution, outcomes: Sequence[Outcome]) -> tuple[bool, str, str]:
    """Ready's status, its reason (the STATUS column) and message."""
    serving = [group for group in groups if group.state is GroupPhase.READY]
    if wanted == 0:
        return False, "ScaledToZero", "spec.replicas is 0"
    if len(serving) == wanted:
        return True, "Ready", f"{len(serving)} of {wanted} groups serve"
    waiting = [group for group in groups if group.state is not GroupPhase.READY]
    message = _short([_waits(group) for group in waiting])
    if serving:
        return False, "PartlyReady", f"{len(serving)} of {wanted} groups serve; {message}"
    if not resolution.found:
        return False, resolution.reason, resolution.message
    first = waiting[0]
    outcome = next(entry for entry in outcomes if entry.view.index == first.index)
    wait = outcome.unplaceable or outcome.blocked
    return False, wait.reason if wait else first.state.value, message


def _unplaceable(index: int, found: Unplaceable) -> list[NearMissStatus]:
    """The whole of why a group has no place: what nearly worked, then every Mac by what it lacks."""
    entries = [
        NearMissStatus(
            group=index,
            transport=miss.transport,
            parallelism=miss.split,
            nodes=miss.nodes,
            message=miss.message,
        )
        for miss in found.near_misses
    ]
    who: dict[str, list[str]] = {}
    for entry in found.macs:
        who.setdefault(entry.message, []).append(entry.node)
    for message, nodes in who.items():
        for first in range(0, len(nodes), MAX_RANKS):
            entries.append(NearMissStatus(group=index, nodes=tuple(nodes[first : first + MAX_RANKS]), message=message))
    left_out = sum(len(entry.nodes) for entry in entries[LISTED - 1 :])
    if len(entries) > LISTED:
        entries[LISTED - 1 :] = [NearMissStatus(group=index, message=f"and {left_out} more Macs")]
    return entries


def build(
    deployment: ModelDeployment,
    outcomes: Sequence[Outcome],
    resolution: Resolution,
    terminating: Sequence[PodView],
    now: datetime,
) -> ModelDeploymentStatus:
    """The whole status. ``outcomes``: one a wanted group, by index; ``terminating``: pods of the past that have not ended."""
    before, wanted = deployment.status, deployment.spec.replicas
    generation = deployment.metadata.generation
    groups = tuple(group_status(outcome, deployment, now) for outcome in outcomes)
    serving = [group for group in groups if group.state is GroupPhase.READY]
    measured = next(
        (
            benchmark(outcome.heard.state.benchmark, outcome.view.plan)
            for outcome in outcomes
            if outcome.heard.state and outcome.heard.state.benchmark and outcome.view.plan
        ),
        # What was measured of another spec says nothing of this one.
        None if any(outcome.placed_now and outcome.outdated for outcome in outcomes) else before.benchmark,
    )
    conditions: tuple[Condition, ...] = before.conditions

    def say(kind: str, status: bool | None, reason: str, message: str) -> None:
        nonlocal conditions
        conditions = set_condition(
            conditions, kind, status, reason, message[:MESSAGE_LENGTH], now=now, observed_generation=generation
        )

    say(ConditionType.MODEL_RESOLVED, resolution.found, resolution.reason, resolution.message)

    unplaced = [outcome for outcome in outcomes if outcome.unplaceable or outcome.blocked]
    if not wanted:
        say(ConditionType.PLACED, True, "ScaledToZero", "spec.replicas is 0")
    elif unplaced and not resolution.found:
        say(ConditionType.PLACED, False, "ModelNotResolved", "no Mac has the model: see the condition ModelResolved")
    elif unplaced:
        wait = unplaced[0].unplaceable or unplaced[0].blocked
        assert wait is not None
        who = [str(outcome.view.index) for outcome in unplaced]
        prefix = f"group{'s' if len(who) > 1 else ''} {', '.join(who)}: " if wanted > 1 else ""
        say(ConditionType.PLACED, False, wait.reason, prefix + wait.message)
    elif all(outcome.view.plan for outcome in outcomes):
        where = [f"group {group.index} on {', '.join(rank.node for rank in group.ranks)} ({group.reason})" for group in groups]
        where += [
            f"group {outcome.view.index} would be placed better today, and stays: on {outcome.better}"
            for outcome in outcomes
            if outcome.better
        ]
        say(ConditionType.PLACED, True, "Placed", _short(where))
    else:
        say(ConditionType.PLACED, False, "Pending", "placements are being made")

    formed = [group for group in groups if group.state in FORMED]
    if wanted and len(formed) == wanted:
        say(ConditionType.BOOTSTRAPPED, True, "Formed", f"{wanted} of {wanted} groups have formed")
    else:
        missing = [_waits(group) for group in groups if group.state not in FORMED]
        say(
            ConditionType.BOOTSTRAPPED,
            False,
            "NotFormed" if wanted else "ScaledToZero",
            _short(missing) or "spec.replicas is 0",
        )

    say(ConditionType.READY, *_ready(groups, wanted, resolution, outcomes))

    if measured is not None:
        rate, ran = measured.decode_tokens_per_second, measured.ran or "prefill and decode"
        found = f"{rate} tokens/s decoded" if rate is not None else "too little was generated to say a decode rate"
        say(ConditionType.BENCHMARKED, True, "Measured", f"{found}: {ran}")
    else:
        say(ConditionType.BENCHMARKED, False, "NotMeasured", "measured when the first group is Ready and idle")

    bad = [group for group in groups if group.state in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP)]
    if bad:
        failure = bad[0].last_failure
        say(
            ConditionType.DEGRADED,
            True,
            failure.reason if failure else "Failed",
            _short([f"group {g.index}: {g.message}" for g in bad]),
        )
    else:
        say(ConditionType.DEGRADED, False, "AsExpected", "no group has failed")

    nodes = dict.fromkeys(rank.node for group in groups for rank in group.ranks)
    transports = dict.fromkeys(group.transport.value for group in groups if group.transport)
    lacking = [
        entry for outcome in unplaced if outcome.unplaceable for entry in _unplaceable(outcome.view.index, outcome.unplaceable)
    ]
    selector = serving_selector(deployment.metadata.name)
    return ModelDeploymentStatus(
        observed_generation=generation,
        replicas=sum(outcome.view.plan is not None for outcome in outcomes),
        ready_replicas=len(serving),
        selector=",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        endpoint=serving[0].endpoint if serving else None,
        model=served_name(deployment)[-128:],
        ready=f"{len(serving)}/{wanted}",
        nodes=",".join(nodes) or None,
        transport=",".join(transports)[:64] or None,
        tokens_per_second=measured.decode_tokens_per_second if measured else None,
        groups=groups,
        unplaceable=tuple(lacking[:LISTED]),
        terminating_pods=tuple(
            TerminatingPod(name=pod.name, uid=pod.uid, node=pod.node, since=pod.terminating) for pod in terminating[:256]
        ),
        benchmark=measured,
        conditions=conditions,
    )
