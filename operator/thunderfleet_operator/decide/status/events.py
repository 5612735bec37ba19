"""What changed between two statuses and is worth an Event.

The statuses are compared and there is no other state, so an operator that restarts repeats no Event.
"""

from dataclasses import dataclass

from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeploymentStatus
from thunderfleet_crds.meta.conditions import Condition, find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, GroupPhase

_BAD_WHEN_FALSE = (ConditionType.MODEL_RESOLVED, ConditionType.PLACED)
_NO_WARNING = (Reason.SCALED_TO_ZERO, Reason.SUSPENDED, Reason.ASLEEP, GroupPhase.DRAINING)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Reason and message of one Event."""

    reason: str
    message: str
    warning: bool = False


def occurrences(before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> list[Occurrence]:
    """The Events for what changed from ``before`` to ``after``."""
    degraded = find_condition(after.conditions, ConditionType.DEGRADED)
    failed = degraded is not None and degraded.status is ConditionStatus.TRUE
    found: list[Occurrence] = []
    for kind in (
        ConditionType.MODEL_RESOLVED,
        ConditionType.PLACED,
        ConditionType.BOOTSTRAPPED,
        ConditionType.READY,
        ConditionType.BENCHMARKED,
        ConditionType.DEGRADED,
    ):
        old, new = find_condition(before.conditions, kind), find_condition(after.conditions, kind)
        if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
            continue
        occurrence = _of_condition(old, new, failed=failed)
        if occurrence is not None:
            found.append(occurrence)
    scaled = _of_scaling(before, after)
    found += [scaled] if scaled is not None else []
    known = {group.index: group for group in before.groups if group.ranks}
    return [*found, *(o for group in after.groups if (o := _of_placement(known.get(group.index), group)) is not None)]


def _of_condition(old: Condition | None, new: Condition, *, failed: bool) -> Occurrence | None:
    """The Event for a condition with a new status or reason. ``failed``: whether the deployment is Degraded now."""
    holds = new.status is ConditionStatus.TRUE
    if new.type == ConditionType.DEGRADED:
        return Occurrence(new.reason, new.message, warning=True) if holds else None
    if new.type in _BAD_WHEN_FALSE:
        return None if holds or new.reason == Reason.PENDING else Occurrence(new.reason, new.message, warning=True)
    if holds:
        return Occurrence(new.reason, new.message) if new.type in (ConditionType.READY, ConditionType.BENCHMARKED) else None
    if new.type == ConditionType.READY and not failed and old is not None and old.status is ConditionStatus.TRUE:
        # A failure has an Event already, with its own reason.
        return Occurrence(new.reason, new.message, warning=new.reason not in _NO_WARNING)
    return None


def _of_scaling(before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> Occurrence | None:
    """The Event for another number of groups."""
    old, new = before.autoscaling, after.autoscaling
    if old is None or new is None or old.replicas == new.replicas:
        return None
    return Occurrence(Reason.SCALED, f"from {old.replicas} to {new.replicas} groups: {new.message}")


def _of_placement(past: Group | None, group: Group) -> Occurrence | None:
    """The Event for a group that has been placed. ``past``: its status before, if it had a place."""
    if not group.ranks or (past is not None and past.epoch == group.epoch):
        return None
    nodes, name, number = _nodes(group), f"group {group.index}", f"placement (epoch) {group.epoch}"
    if past is None:
        return Occurrence(Reason.PLACED, f"{name} is placed on {nodes}, {number}: {group.reason}")
    why = _cause(past, group)
    if _nodes(past) != nodes:
        return Occurrence(Reason.MOVED, f"{name} moves from {_nodes(past)} to {nodes}, {number}{why}: {group.reason}")
    return Occurrence(Reason.PLACED, f"{name} is placed on {nodes} again, {number}{why}: {group.reason}")


def _cause(past: Group, group: Group) -> str:
    """The failure that ended the last placement: a new one, or one after which the group waited. No older one."""
    failure = group.last_failure
    waited = past.next_restart_time is not None or past.state is GroupPhase.GAVE_UP
    if failure is None or (not waited and past.last_failure == failure):
        return ""
    where = f" on {failure.node}" if failure.node else ""
    return f", after {failure.reason}{where} ({failure.message})"


def _nodes(group: Group) -> str:
    return ", ".join(rank.node for rank in group.ranks)
