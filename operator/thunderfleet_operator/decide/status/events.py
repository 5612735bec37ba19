"""What changed between two statuses and is worth an Event. A restarted operator repeats none: it compares, and remembers nothing."""

from dataclasses import dataclass

from thunderfleet_crds.common import Condition, ConditionStatus, find_condition
from thunderfleet_crds.modeldeployment import (
    BENCHMARKED,
    BOOTSTRAPPED,
    DEGRADED,
    MODEL_RESOLVED,
    PLACED,
    READY,
    Group,
    ModelDeploymentStatus,
)

_BAD_WHEN_FALSE = (MODEL_RESOLVED, PLACED)
_NO_WARNING = ("ScaledToZero", "Draining")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What one Event says."""

    reason: str
    message: str
    warning: bool = False


def occurrences(before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> list[Occurrence]:
    """The Events for what changed from ``before`` to ``after``."""
    degraded = find_condition(after.conditions, DEGRADED)
    failed = degraded is not None and degraded.status is ConditionStatus.TRUE
    found: list[Occurrence] = []
    for kind in (MODEL_RESOLVED, PLACED, BOOTSTRAPPED, READY, BENCHMARKED, DEGRADED):
        old, new = find_condition(before.conditions, kind), find_condition(after.conditions, kind)
        if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
            continue
        occurrence = _of_condition(old, new, failed=failed)
        if occurrence is not None:
            found.append(occurrence)
    known = {group.index: group for group in before.groups if group.ranks}
    return [*found, *(o for group in after.groups if (o := _of_placement(known.get(group.index), group)) is not None)]


def _of_condition(old: Condition | None, new: Condition, *, failed: bool) -> Occurrence | None:
    """The Event for a condition with a new status or reason. ``failed``: whether the deployment is Degraded now."""
    holds = new.status is ConditionStatus.TRUE
    if new.type == DEGRADED:
        return Occurrence(new.reason, new.message, warning=True) if holds else None
    if new.type in _BAD_WHEN_FALSE:
        return None if holds or new.reason == "Pending" else Occurrence(new.reason, new.message, warning=True)
    if holds:
        return Occurrence(new.reason, new.message) if new.type in (READY, BENCHMARKED) else None
    if new.type == READY and not failed and old is not None and old.status is ConditionStatus.TRUE:
        # A failure has an Event already, with its own reason.
        return Occurrence(new.reason, new.message, warning=new.reason not in _NO_WARNING)
    return None


def _of_placement(past: Group | None, group: Group) -> Occurrence | None:
    """The Event for a group that has been placed. ``past``: its status before, if it had a place."""
    if not group.ranks or (past is not None and past.epoch == group.epoch):
        return None
    nodes, which = _nodes(group), f"group {group.index}, epoch {group.epoch}"
    if past is None:
        return Occurrence("Placed", f"{which}, on {nodes}: {group.reason}")
    why = _cause(past, group)
    if _nodes(past) != nodes:
        return Occurrence("Moved", f"{which}, from {_nodes(past)} to {nodes}{why}: {group.reason}")
    return Occurrence("Placed", f"{which}, on {nodes}{why}: {group.reason}")


def _cause(past: Group, group: Group) -> str:
    """The failure that ended the last placement: a new one, or one that a back-off followed. An older one is not the cause."""
    failure = group.last_failure
    if failure is None or (past.next_restart_time is None and past.last_failure == failure):
        return ""
    return f" after {failure.reason} ({failure.message})"


def _nodes(group: Group) -> str:
    return ", ".join(rank.node for rank in group.ranks)
