"""The conditions of a ModelDeployment. A message describes what is wrong and what to do."""

from collections.abc import Sequence
from datetime import datetime

from thunderfleet_crds.kinds.modeldeployment import BenchmarkResult, Group, ModelDeployment
from thunderfleet_crds.meta.conditions import Condition, set_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionType, FailbackPolicy, GroupPhase

from thunderfleet_operator.decide.group.lifecycle import by_cable
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.decide.status.progress import Progress, reconciling, stalled
from thunderfleet_operator.decide.status.verdict import MESSAGE_LENGTH, Verdict, joined, no_groups
from thunderfleet_operator.decide.status.verification import verified
from thunderfleet_operator.observe.objects.proofs import Proof

FORMED = (GroupPhase.LOADING, GroupPhase.READY, GroupPhase.DRAINING)


def _waits(group: Group) -> str:
    """Returns why a group does not serve. Without a placement, it refers to the condition Placed, which has the long reason."""
    if group.state is GroupPhase.PENDING and not group.ranks:
        return f"group {group.index} is not placed yet: see condition {ConditionType.PLACED}"
    return f"group {group.index}: {group.state}: {group.message}"


def placed(
    deployment: ModelDeployment, groups: Sequence[Group], outcomes: Sequence[Outcome], resolution: Resolution, wanted: int
) -> Verdict:
    """Whether every group has a place."""
    unplaced = [(outcome, outcome.wait) for outcome in outcomes]
    waits = [(outcome, wait) for outcome, wait in unplaced if wait is not None]
    if not wanted:
        return Verdict(True, *no_groups(deployment))
    if waits and not resolution.found and resolution.reason != Reason.NO_MACS:
        unsupported = resolution.reason == Reason.MODEL_UNSUPPORTED
        why = "no Mac can run the model" if unsupported else "no Mac has a complete copy of the model"
        text = f"{why}: see condition {ConditionType.MODEL_RESOLVED}"
        return Verdict(False, Reason.MODEL_NOT_RESOLVED, text)
    if waits:
        indexes = [str(outcome.view.index) for outcome, _ in waits]
        prefix = f"group{'s' if len(indexes) > 1 else ''} {', '.join(indexes)}: " if wanted > 1 else ""
        _, first = waits[0]
        return Verdict(False, first.reason, prefix + first.message)
    if not all(outcome.view.plan for outcome in outcomes):
        return Verdict(False, Reason.PENDING, "waiting for a placement")
    where = [f"group {group.index} on {', '.join(rank.node for rank in group.ranks)} ({group.reason})" for group in groups]
    pending = any(outcome.waits and deployment.spec.recovery.failback is FailbackPolicy.WHEN_IDLE for outcome in outcomes)
    reason = Reason.FAILBACK_PENDING if pending else Reason.PLACED
    more = [*(_better(outcome, deployment) for outcome in outcomes), _small_caches(outcomes)]
    return Verdict(True, reason, joined([*where, *more]))


def _small_caches(outcomes: Sequence[Outcome]) -> str:
    """Which groups cannot keep the longest conversation in their prompt caches."""
    plans = [outcome.view.plan for outcome in outcomes if outcome.view.plan is not None]
    small = [plan for plan in plans if plan.memory.cached_tokens < plan.memory.context_tokens]
    if not small:
        return ""
    memory = small[0].memory
    groups = f"group{'s' if len(small) > 1 else ''} {', '.join(str(plan.index) for plan in small)}"
    return (
        f"the prompt cache of {groups} holds {memory.cached_tokens} tokens, less than the context of "
        f"{memory.context_tokens}: only the beginning of a longer conversation is reused, or nothing if the model's cache "
        "cannot be shortened. To hold a whole context, unset spec.memory.cachedTokens, which takes effect with the next "
        "placement"
    )


def _better(outcome: Outcome, deployment: ModelDeployment) -> str:
    """Whether there is a better placement for a group, and when the group moves there."""
    index = outcome.view.index
    if outcome.waits is not None:
        better = f"; a better placement exists: on {outcome.better}" if outcome.better else ""
        return f"group {index} {outcome.waits}{better}"
    if outcome.better is not None:
        stop, start = _stop_and_start(deployment)
        return (
            f"a better placement exists for group {index}: on {outcome.better}. Serving groups are not moved; to place all "
            f"groups again, run `{stop}`, wait until their pods are gone, and run `{start}`"
        )
    return ""


def _stop_and_start(deployment: ModelDeployment) -> tuple[str, str]:
    """The commands that stop all groups and start them again."""
    meta, spec = deployment.metadata, deployment.spec
    if spec.autoscaling is None:
        scale = f"kubectl scale md/{meta.name} -n {meta.namespace} --replicas"
        return f"{scale}=0", f"{scale}={spec.replicas}"
    patch = f"kubectl patch md/{meta.name} -n {meta.namespace} --type=merge -p"
    return f'{patch} \'{{"spec":{{"suspend":true}}}}\'', f'{patch} \'{{"spec":{{"suspend":false}}}}\''


def bootstrapped(deployment: ModelDeployment, groups: Sequence[Group], wanted: int) -> Verdict:
    """Whether every group has formed."""
    missing = [group for group in groups if group.state not in FORMED]
    if not wanted:
        return Verdict(False, *no_groups(deployment))
    if not missing:
        return Verdict(True, Reason.FORMED, f"{wanted} of {wanted} groups have formed")
    return Verdict(False, Reason.NOT_FORMED, joined(map(_waits, missing)))


def ready(
    deployment: ModelDeployment, groups: Sequence[Group], outcomes: Sequence[Outcome], wanted: int, resolution: Resolution
) -> Verdict:
    """Whether every group serves. The reason is the column STATUS of `kubectl get`."""
    waiting = [group for group in groups if group.state is not GroupPhase.READY]
    serving = len(groups) - len(waiting)
    if wanted == 0:
        return Verdict(False, *no_groups(deployment))
    if serving == wanted:
        return Verdict(True, Reason.READY, f"{serving} of {wanted} groups are Ready")
    message = joined(map(_waits, waiting))
    if serving:
        return Verdict(False, Reason.PARTLY_READY, f"{serving} of {wanted} groups are Ready; {message}")
    if not resolution.found:
        return Verdict(False, resolution.reason, resolution.message)
    first = next(outcome for outcome in outcomes if outcome.view.index == waiting[0].index)
    failure = first.next.failure
    if failure is not None and by_cable(failure):
        # The next placement may have started in the same round: then the group's message is about that.
        named = message if failure.message in message else f"{failure.message}; {message}"
        return Verdict(False, failure.reason, named)
    if first.fetching is not None and first.wait is None:
        return Verdict(False, Reason.FETCHING, message)
    if waiting[0].state is GroupPhase.STARTING and any(pod.gates for pod in first.view.pods):
        return Verdict(False, Reason.SCHEDULING_GATED, message)
    return Verdict(False, first.wait.reason if first.wait else waiting[0].state.value, message)


def benchmarked(measured: BenchmarkResult | None) -> Verdict:
    """Whether the deployment has been benchmarked."""
    if measured is None:
        return Verdict(False, Reason.NOT_MEASURED, "the benchmark runs when the first group is Ready and idle")
    rate, ran = measured.decode_tokens_per_second, measured.ran or "prefill and decode"
    found = f"generation rate {rate} tokens/s" if rate is not None else "too few tokens to compute a generation rate"
    return Verdict(True, Reason.MEASURED, f"{found}: {ran}")


def _unverified(outcome: Outcome) -> tuple[str, str] | None:
    """Returns the problem of a group whose plan cannot be verified; None if it is only older than signatures and answers."""
    epoch = outcome.view.epoch
    if epoch is None or epoch.proven or (epoch.finding.proof is Proof.NONE and not outcome.report.by_pods):
        return None
    name = f"ConfigMap {epoch.plan.namespace}/{epoch.config_map}"
    if epoch.finding.proof is Proof.WRONG:
        return (
            Reason.PLAN_CHANGED,
            f"group {epoch.group}: {name} was changed after the operator wrote it; the group continues to serve. To place it "
            "again, run `kubectl delete pod` for one of its pods",
        )
    return (
        Reason.OPERATOR_KEY_LOST,
        f"group {epoch.group} was placed with a key that the operator no longer has. The group continues to serve, but "
        "its state is known from its pods only. Add the lost key from a backup to the operator's Secret (docs/operate.md), or "
        "run `kubectl delete pod` for one of the group's pods to place it again with the new key",
    )


def _intakes(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Which groups serve, but cannot read requests."""
    return [
        (
            Reason.INTAKE_FAILED,
            f"group {group.index}: requests wait or fail, because the intake, the process of rank 0 on {group.ranks[0].node} "
            f"that tokenizes them, does not work: {group.intake}. It restarts automatically; if this persists, check whether "
            "the Mac is short of memory or overloaded",
        )
        for group in groups
        if group.intake and group.ranks
    ]


def degraded(groups: Sequence[Group], outcomes: Sequence[Outcome] = (), service: Blocked | None = None) -> Verdict:
    """Whether a group has failed, or something that it needs is missing."""
    bad = [group for group in groups if group.state in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP)]
    if not bad:
        found = [problem for outcome in outcomes if (problem := _unverified(outcome)) is not None]
        if service is not None:
            found.append((service.reason, service.message))
        found += _intakes(groups)
        if found:
            return Verdict(True, found[0][0], joined(message for _, message in found))
        return Verdict(False, Reason.AS_EXPECTED, "no group has failed")
    failure = bad[0].last_failure
    return Verdict(
        True, failure.reason if failure else Reason.FAILED, joined(f"group {group.index}: {group.message}" for group in bad)
    )


def conditions(
    deployment: ModelDeployment,
    groups: Sequence[Group],
    outcomes: Sequence[Outcome],
    resolution: Resolution,
    measured: BenchmarkResult | None,
    now: datetime,
    *,
    wanted: int,
    service: Blocked | None = None,
    ending: int = 0,
) -> tuple[Condition, ...]:
    """All conditions, with the transition times of those that stay.

    ``wanted``: the number of groups that should run; ``groups`` and ``outcomes`` are theirs. ``service``: why there is no
    Service. ``ending``: number of groups that are still stopping.
    """
    place = placed(deployment, groups, outcomes, resolution, wanted)
    serving = ready(deployment, groups, outcomes, wanted, resolution)
    progress = Progress(deployment, groups, outcomes, resolution, place, serving, wanted, service, ending)
    stuck = stalled(progress, now)
    verdicts = {
        ConditionType.MODEL_RESOLVED: Verdict(resolution.found, resolution.reason, resolution.message),
        ConditionType.PLACED: place,
        ConditionType.BOOTSTRAPPED: bootstrapped(deployment, groups, wanted),
        ConditionType.READY: serving,
        ConditionType.BENCHMARKED: benchmarked(measured),
        ConditionType.DEGRADED: degraded(groups, outcomes, service),
        ConditionType.VERIFIED: verified(deployment, groups, wanted),
        ConditionType.RECONCILING: reconciling(progress, stalled=stuck.status is True),
        ConditionType.STALLED: stuck,
    }
    found = deployment.status.conditions
    for kind, verdict in verdicts.items():
        found = set_condition(
            found,
            kind,
            verdict.status,
            verdict.reason,
            verdict.message[:MESSAGE_LENGTH],
            now=now,
            observed_generation=deployment.metadata.generation,
        )
    return found
