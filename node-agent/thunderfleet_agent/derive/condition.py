"""The value of one condition, as a rule decides it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConditionValue:
    """Status (None: Unknown), reason, and a message that names the fault and its fix."""

    holds: bool | None
    reason: str
    message: str
