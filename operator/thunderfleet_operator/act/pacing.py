"""Limits how often the progress of a ModelDeployment is written.

A group that starts reports something new several times a second: which rank has joined, what a rank does, how much it has
loaded. Both ends of a cable describe the same failure one after the other. Each text would be a write to the API server, and an
event for all watches.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeploymentStatus, Rank
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType

from thunderfleet_operator.decide.status.progress import STARTS

PROGRESS_SECONDS = 1.0
"""Minimum seconds between statuses that differ only in progress, just after a change of anything else."""
PAUSE_LIMIT = 3.0
"""Maximum factor by which these seconds grow while only progress changes."""
PAUSE_SHARE = 0.2
"""The seconds grow to this fraction of the time since the last other change."""


class _Written(NamedTuple):
    """When a status was written, and when one was that differed in more than progress."""

    at: float
    changed_at: float


class Pacing:
    """Records when the status of each ModelDeployment was written. ``clock``: monotonic seconds."""

    def __init__(self, seconds: float = PROGRESS_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._written: dict[str, _Written] = {}

    def left(self, key: str, before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> float:
        """Seconds until ``after`` may be written in place of ``before``; 0 unless they differ in progress only."""
        written = self._written.get(key)
        if written is None or _differ(before, after):
            return 0.0
        pause = min(max(self._seconds, PAUSE_SHARE * (written.at - written.changed_at)), PAUSE_LIMIT * self._seconds)
        return max(0.0, written.at + pause - self._clock())

    def wrote(self, key: str, before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> None:
        """The status ``after`` has been written in place of ``before``."""
        now, written = self._clock(), self._written.get(key)
        changed = written is None or _differ(before, after)
        self._written[key] = _Written(now, now if written is None or changed else written.changed_at)

    def forget(self, key: str) -> None:
        """The ModelDeployment has been deleted."""
        self._written.pop(key, None)


def _differ(before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> bool:
    """Whether anything but progress differs: what people and other programs act on."""
    return _without_progress(before) != _without_progress(after)


def _without_progress(status: ModelDeploymentStatus) -> object:
    scaling = status.autoscaling
    # A group that starts forms, and passes its first checks, before it has loaded. If that fails, Degraded says so, too.
    starts = any(group.state in STARTS for group in status.groups)
    return status.model_copy(
        update={
            "conditions": [_condition(one, starts) for one in status.conditions if one.type != ConditionType.BOOTSTRAPPED],
            "groups": [_group(group) for group in status.groups],
            "copies": [(copy.node, copy.phase, copy.layers, copy.reason) for copy in status.copies],
            "weights": None,
            "unplaceable": (),
            "terminating_pods": (),
            "autoscaling": scaling.model_copy(update={"message": ""}) if scaling is not None else None,
        }
    )


def _condition(one: Condition, starts: bool) -> object:
    if starts and one.type == ConditionType.VERIFIED and one.status is not ConditionStatus.FALSE:
        return one.type, one.observed_generation
    # The reason of Ready is the state of the group that starts.
    reason = None if one.reason in STARTS else one.reason
    return one.type, one.status, reason, one.observed_generation


def _group(group: Group) -> object:
    failure, verified = group.last_failure, group.verified
    failed = verified is not None and verified.status is ConditionStatus.FALSE
    return group.model_copy(
        update={
            "state": None if group.state in STARTS else group.state,
            "message": "",
            "ranks": [_rank(rank) for rank in group.ranks],
            "runner_version": None,
            "predicted": None,
            "intake": group.intake is None,
            "verified": (verified.status, verified.reason) if verified and (failed or group.state not in STARTS) else None,
            "last_failure": failure.model_copy(update={"message": ""}) if failure is not None else None,
        }
    )


def _rank(rank: Rank) -> object:
    done = {"state": None, "loaded_bytes": None, "total_bytes": None, "loaded_layers": None}
    return rank.model_copy(update={**done, "attempts": 0, "last_error": None})
