"""The health of an entity, which the page shows as a color: a fault is red, work in progress is not. Pure."""

from enum import StrEnum
from typing import Final

from thunderfleet_crds.names import CONDITION_DESCRIPTORS
from thunderfleet_crds.reasons import WITHOUT_RDMA, Reason
from thunderfleet_crds.vocabulary import ConditionType, GroupPhase

from thunderfleet_view.facts import Json


class Health(StrEnum):
    """The health of an entity, which determines its color on the page."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """It works with a problem, or it is starting."""
    BAD = "bad"
    IDLE = "idle"
    """Nothing is wrong with it and nothing uses it."""


FAILED: Final = frozenset((GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP))
"""Phases of a group that has failed."""
_FAULTS: Final = frozenset(
    (ConditionType.DEGRADED, ConditionType.QUARANTINED, ConditionType.STALLED, "NetworkUnavailable", CONDITION_DESCRIPTORS)
)
"""Conditions that are True only because of a fault."""
_WANTED: Final = frozenset((*WITHOUT_RDMA, Reason.SUSPENDED, Reason.ASLEEP, Reason.SCALED_TO_ZERO, Reason.DISABLED))
"""Reasons of conditions that are False because of the hardware or of a user's setting."""
_FOLLOWING: Final = frozenset(
    (Reason.MODEL_NOT_RESOLVED, Reason.NOT_FORMED, Reason.PARTLY_READY, Reason.SCHEDULING_GATED, Reason.ONE_END)
)
"""Reasons that do not distinguish a fault from work in progress. If there is a fault, another condition reports it."""
_WORK: Final = frozenset(phase for phase in GroupPhase if phase not in FAILED)
_BY_THEMSELVES: Final = frozenset(reason for reason in Reason if reason.remedy.startswith(("None:", "Wait")))
_PASSING: Final = (frozenset[str]() | _FOLLOWING | _WORK | _BY_THEMSELVES) - FAILED
"""Reasons of work in progress, and of problems that end without a change by a user."""
_MEASURED: Final = frozenset((ConditionType.BENCHMARKED, ConditionType.BENCHMARKS_FRESH))
_LOST_WHEN_UNKNOWN: Final = frozenset((ConditionType.READY, ConditionType.CONNECTED))


def of_condition(condition: Json) -> Health:
    """The health that a condition shows. IDLE: the condition is False, and nothing is wrong."""
    kind, status, reason = (str(condition.get(word) or "") for word in ("type", "status", "reason"))
    if kind == ConditionType.RECONCILING:
        # The condition Stalled reports what stops the work.
        return Health.DOUBTFUL if status == "True" else Health.GOOD
    fault = kind in _FAULTS or kind.endswith("Pressure")
    if status == ("False" if fault else "True"):
        return Health.GOOD
    if status not in ("True", "False"):
        return Health.BAD if kind in _LOST_WHEN_UNKNOWN else Health.DOUBTFUL
    if fault:
        return Health.BAD
    if reason in _WANTED:
        return Health.IDLE
    if reason in _PASSING:
        return Health.IDLE if kind in _MEASURED else Health.DOUBTFUL
    return Health.BAD
