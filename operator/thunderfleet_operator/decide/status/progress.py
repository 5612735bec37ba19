"""The conditions Reconciling and Stalled, by which tools that read only generic conditions (kstatus) decide whether to wait.

At most one of them is True: Reconciling while the operator works on the spec, Stalled once a user must change something. A
wait that can end by itself, such as for a Mac with room, is Reconciling at first. A group that restarts although its fault does
not seem to be fixed stays Stalled, so that the two conditions do not alternate with each restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.kinds.modeldeployment import Failure, Group, ModelDeployment
from thunderfleet_crds.meta.conditions import Condition, find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, FaultClass, GroupPhase
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.decide.status.verdict import Verdict, joined, no_groups

UNPLACED_SECONDS = 600.0
"""A ModelDeployment that cannot be placed is Stalled after this long: as long as a Deployment may make no progress."""
ACTION_REQUIRED = frozenset(
    (
        Reason.GATED,
        Reason.TOKEN_REFUSED,
        Reason.REPOSITORY_NOT_FOUND,
        Reason.REPOSITORY_MOVED,
        Reason.REVISION_NOT_FOUND,
        Reason.FILES_REFUSED,
        Reason.QUANTIZATION_REFUSED,
        Reason.HOST_NOT_ALLOWED,
        Reason.MANIFEST_NOT_FOUND,
        Reason.MANIFEST_MISMATCH,
    )
)
"""What the hub or a server refuses until a user changes something."""
NOT_STALLED = Verdict(False, Reason.AS_EXPECTED, "nothing has to be changed")
STARTS = frozenset(GroupPhase) - {GroupPhase.READY, GroupPhase.DRAINING, GroupPhase.GAVE_UP, GroupPhase.BACKING_OFF}
"""Phases of a group before it serves."""
SEE_STALLED = Verdict(False, Reason.ACTION_REQUIRED, f"see condition {ConditionType.STALLED}")
"""Reconciling while Stalled is True."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the two conditions follow from. ``wanted``: number of groups that should run; ``groups`` are theirs.

    ``service``: why there is no Service. ``ending``: number of groups that still stop.
    """

    deployment: ModelDeployment
    groups: Sequence[Group]
    outcomes: Sequence[Outcome]
    resolution: Resolution
    placed: Verdict
    ready: Verdict
    wanted: int
    service: Blocked | None = None
    ending: int = 0


def _needs_a_person(failure: Failure | None) -> bool:
    return failure is not None and failure.class_ is FaultClass.CONFIGURE


def _still_stalled(of: Progress) -> Condition | None:
    """The condition Stalled, if it is True for the present spec."""
    found = find_condition(of.deployment.status.conditions, ConditionType.STALLED)
    same = found is not None and found.observed_generation == of.deployment.metadata.generation
    return found if same and found is not None and found.status is ConditionStatus.TRUE else None


def _tries_again(group: Group, before: Condition | None) -> bool:
    """Whether a group whose fault a user must fix starts again with the same placement, and has not served since."""
    failure = group.last_failure
    if before is None or failure is None or not _needs_a_person(failure) or group.state not in STARTS:
        return False
    there = failure.node is None or any(rank.node == failure.node for rank in group.ranks)
    return there and before.reason == failure.reason


def _stuck(of: Progress) -> Verdict | None:
    """Groups that do not serve before a user has changed something."""
    before, found = _still_stalled(of), list[tuple[Failure | None, str]]()
    for group in of.groups:
        failure = group.last_failure
        if group.state is GroupPhase.GAVE_UP or (group.state is GroupPhase.BACKING_OFF and _needs_a_person(failure)):
            found.append((failure, f"group {group.index}: {group.message}"))
        elif failure is not None and _tries_again(group, before):
            # Without the progress of the start, which would change the condition all the time.
            found.append((failure, f"group {group.index} starts again after {failure.reason}: {failure.message}"))
    if not found:
        return None
    failure = found[0][0]
    return Verdict(True, failure.reason if failure is not None else Reason.GAVE_UP, joined(text for _, text in found))


def _blocked(of: Progress) -> Verdict | None:
    """What the API server refuses."""
    found = next((outcome.blocked for outcome in of.outcomes if outcome.blocked is not None), of.service)
    return Verdict(True, found.reason, found.message) if found is not None else None


def _since(conditions: Sequence[Condition], kind: ConditionType, status: ConditionStatus, now: datetime) -> datetime:
    """Since when a condition has this status; now, if it has another one."""
    found = find_condition(conditions, kind)
    return found.last_transition_time if found is not None and found.status is status else now


def _unplaced(of: Progress, now: datetime) -> Verdict | None:
    """No placement for a long time. A change of the spec starts the time again."""
    if of.placed.status is not False:
        return None
    if not of.resolution.found and of.resolution.reason in ACTION_REQUIRED:
        return Verdict(True, of.resolution.reason, of.resolution.message)
    if of.resolution.reason == Reason.QUANTIZING:
        # Quantizing takes longer than the download of the whole repository.
        return None
    if not of.resolution.found and of.resolution.stalled is not None:
        # Its ModelCache records how long the fault has lasted.
        return Verdict(True, of.resolution.reason, of.resolution.message) if of.resolution.stalled else None
    before = of.deployment.status.conditions
    if _still_stalled(of) is None:
        since = max(
            _since(before, ConditionType.PLACED, ConditionStatus.FALSE, now),
            _since(before, ConditionType.RECONCILING, ConditionStatus.TRUE, now),
        )
        if age_seconds(since, now) < UNPLACED_SECONDS:
            return None
    if not of.resolution.found:
        return Verdict(True, of.resolution.reason, of.resolution.message)
    return Verdict(True, of.placed.reason, of.placed.message)


def stalled(of: Progress, now: datetime) -> Verdict:
    """Whether a user must change something."""
    if not of.wanted:
        return NOT_STALLED
    return _stuck(of) or _blocked(of) or _unplaced(of, now) or NOT_STALLED


def reconciling(of: Progress, *, stalled: bool) -> Verdict:
    """Whether the operator still works on the spec."""
    if stalled:
        return SEE_STALLED
    if of.ending:
        return Verdict(True, Reason.STOPPING, f"{_count(of.ending)} to stop")
    if not of.wanted:
        return Verdict(False, *no_groups(of.deployment))
    outdated = sum(outcome.outdated and not outcome.placed_now for outcome in of.outcomes)
    if outdated:
        return Verdict(True, Reason.ROLLING_OUT, f"{_count(outdated)} an earlier spec and will be replaced")
    if of.ready.status is not True:
        return Verdict(True, Reason.PROGRESSING, f"see condition {ConditionType.READY}")
    return Verdict(False, Reason.READY, of.ready.message)


def _count(groups: int) -> str:
    return f"{groups} group{'s have' if groups > 1 else ' has'}"
