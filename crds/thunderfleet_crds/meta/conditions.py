"""Conditions: the type, and pure functions that read and set them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from pydantic import Field

from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.meta.fields import Int64, Message, ReasonText, Time
from thunderfleet_crds.vocabulary import ConditionStatus


class Condition(ApiModel):
    """One aspect of the observed state, with the fields of Kubernetes' own conditions."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Type of the condition in CamelCase.")
    status: ConditionStatus = Field(description="Status of the condition: True, False or Unknown.")
    observed_generation: Int64 | None = Field(
        default=None, description="The metadata.generation that the condition was set for."
    )
    last_transition_time: Time = Field(description="Time of the last change of status.")
    reason: ReasonText = Field(description="Machine-readable reason for the status in CamelCase.")
    message: Message = Field(default="", description="Human-readable explanation of the status and of what to do.")


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


def set_condition(
    conditions: Iterable[Condition],
    type_: str,
    status: ConditionStatus | bool | None,
    reason: str,
    message: str,
    *,
    now: datetime,
    observed_generation: int | None = None,
) -> tuple[Condition, ...]:
    """The conditions with that one set, sorted by type. ``status`` may be a bool, or None for Unknown.

    ``lastTransitionTime`` changes only with the status, so that setting the same condition again changes nothing.
    """
    if not isinstance(status, ConditionStatus):
        status = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[status]
    by_type = {condition.type: condition for condition in conditions}
    old = by_type.get(type_)
    by_type[type_] = Condition(
        type=type_,
        status=status,
        observed_generation=observed_generation,
        last_transition_time=old.last_transition_time if old and old.status is status else now,
        reason=reason,
        message=message,
    )
    return tuple(by_type[key] for key in sorted(by_type))
