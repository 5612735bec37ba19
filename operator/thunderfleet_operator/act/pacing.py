"""Limits how often the progress of a ModelDeployment is written.

A group that starts reports something new several times a second: which rank has joined, what a rank does, how much it has
loaded. Each report would be a write to the API server, and an event for all watches.
"""

import time
from collections.abc import Callable

from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeploymentStatus, Rank

PROGRESS_SECONDS = 1.0
"""Seconds from one status to the next one that differs in progress only."""


class Pacing:
    """Records when the status of each ModelDeployment was written. ``clock``: monotonic seconds."""

    def __init__(self, seconds: float = PROGRESS_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._written: dict[str, float] = {}

    def left(self, key: str, before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> float:
        """Seconds until ``after`` may be written in place of ``before``; 0 unless they differ in progress only."""
        written = self._written.get(key)
        if written is None or _without_progress(before) != _without_progress(after):
            return 0.0
        return max(0.0, written + self._seconds - self._clock())

    def wrote(self, key: str) -> None:
        """The status has been written."""
        self._written[key] = self._clock()

    def forget(self, key: str) -> None:
        """The ModelDeployment has been deleted."""
        self._written.pop(key, None)


def _without_progress(status: ModelDeploymentStatus) -> object:
    conditions = [(one.type, one.status, one.reason, one.observed_generation) for one in status.conditions]
    groups = [_group(group) for group in status.groups]
    return status.model_copy(update={"conditions": conditions, "groups": groups, "weights": None})


def _group(group: Group) -> object:
    return group.model_copy(update={"state": None, "message": "", "ranks": [_rank(rank) for rank in group.ranks]})


def _rank(rank: Rank) -> object:
    return rank.model_copy(update={"state": None, "loaded_bytes": None, "total_bytes": None, "loaded_layers": None})
