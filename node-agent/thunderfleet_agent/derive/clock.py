"""Condition ClockSynchronized: whether this Mac's clock matches the API server's."""

from __future__ import annotations

from thunderfleet_crds.reasons import Reason

from thunderfleet_agent.derive.condition import ConditionValue

UNKNOWN = ConditionValue(None, Reason.NOT_OBSERVED, "no response of the API server has contained its time yet")


def clock_synchronized(known: bool, ahead: int | None) -> ConditionValue:
    """``known``: whether the clocks were compared. ``ahead``: seconds by which this Mac's is wrong; None if it is not."""
    if not known:
        return UNKNOWN
    if ahead is None:
        return ConditionValue(True, Reason.SYNCHRONIZED, "the clock of this Mac agrees with the API server's")
    differs = f"the clock of this Mac is {abs(ahead):,} s {'ahead of' if ahead > 0 else 'behind'} the API server's"
    remedy = (
        "run `sudo sntp -sS time.apple.com` on this Mac, and let it set its time automatically (System Settings, General, Date "
        "& Time). If all Macs have this condition, the clock of the API server's machine is wrong"
    )
    return ConditionValue(False, Reason.CLOCK_WRONG, f"{differs}: {remedy}")
