"""The value of one condition, as a rule decides it."""

from __future__ import annotations

from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason


@dataclass(frozen=True)
class ConditionValue:
    """Status (None: Unknown), reason, and a message that names the fault and its fix."""

    holds: bool | None
    reason: Reason
    message: str
