"""Events: what changed between two statuses, told once. Compared, not remembered, so a restarted operator repeats nothing."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from thunderfleet_crds.common import API_VERSION, find_condition
from thunderfleet_crds.modeldeployment import Group, ModelDeployment, ModelDeploymentStatus
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType
from thunderfleet_lib.kube import Json

About = ModelDeployment | NodeProfile | ThunderboltLink
REPORTER = "thunderfleet-operator"
_BAD_WHEN_FALSE = (ConditionType.MODEL_RESOLVED, ConditionType.PLACED)


@dataclass(frozen=True, slots=True)
class Occurrence:
    reason: str
    message: str
    warning: bool = False


def occurrences(before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> list[Occurrence]:
    """What is worth an Event."""
    found: list[Occurrence] = []
    degraded = find_condition(after.conditions, ConditionType.DEGRADED)
    failed = degraded is not None and degraded.status is ConditionStatus.TRUE
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
        holds = new.status is ConditionStatus.TRUE
        if kind == ConditionType.DEGRADED:
            if holds:
                found.append(Occurrence(new.reason, new.message, warning=True))
        elif kind in _BAD_WHEN_FALSE and not holds:
            if new.reason != "Pending":
                found.append(Occurrence(new.reason, new.message, warning=True))
        elif holds and kind in (ConditionType.READY, ConditionType.BENCHMARKED):
            found.append(Occurrence(new.reason, new.message))
        elif kind == ConditionType.READY and not failed and old is not None and old.status is ConditionStatus.TRUE:
            # A failure is told of once, by its own reason.
            found.append(Occurrence(new.reason, new.message, warning=new.reason not in ("ScaledToZero", "Draining")))
    known = {group.index: group for group in before.groups if group.ranks}
    for group in after.groups:
        past = known.get(group.index)
        if not group.ranks or (past is not None and past.epoch == group.epoch):
            continue
        nodes, told = _nodes(group), f"group {group.index}, epoch {group.epoch}"
        why = _cause(past, group) if past is not None else ""
        if past is not None and _nodes(past) != nodes:
            found.append(Occurrence("Moved", f"{told}, from {_nodes(past)} to {nodes}{why}: {group.reason}"))
        else:
            found.append(Occurrence("Placed", f"{told}, on {nodes}{why}: {group.reason}"))
    return found


def _cause(past: Group, group: Group) -> str:
    """What ended the place before: a failure that is new, or that was waited for; an older one says nothing of it."""
    failure = group.last_failure
    if failure is None or (past.next_restart_time is None and past.last_failure == failure):
        return ""
    return f" after {failure.reason} ({failure.message})"


def _nodes(group: Group) -> str:
    return ", ".join(rank.node for rank in group.ranks)


def manifest(about: About, occurrence: Occurrence, instance: str) -> Json:
    """An Event about an object. Its name differs with text and time. What has no namespace is told of in `default`, where
    `kubectl describe` looks for it.
    """
    meta = about.metadata
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{occurrence}{now.isoformat()}{meta.uid}".encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta.name[:230]}.{digest}", "namespace": meta.namespace or "default"},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": about.kind,
            "name": meta.name,
            **({"namespace": meta.namespace} if meta.namespace else {}),
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "type": "Warning" if occurrence.warning else "Normal",
        "reason": occurrence.reason,
        "message": occurrence.message[:1000],
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
