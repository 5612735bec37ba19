"""Whether a group has passed the checks of its plan. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from thunderfleet_crds.group import VerifiedReport
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, Verify

from thunderfleet_runner.group.attempts import Phase, StateMachine

_FAILED = (Phase.ENDING, Phase.BACKOFF, Phase.GAVE_UP)


class Proved(NamedTuple):
    """A rank's check of its connections: how many exchanges it had with others, and how long they took."""

    exchanges: int
    seconds: float


def verified(plan: Plan, machine: StateMachine, proved: Mapping[int, Proved]) -> VerifiedReport:
    """``proved``: by rank, its check in the present attempt, if that has passed."""
    if plan.verify is Verify.NONE:
        return _unknown(Reason.VERIFICATION_DISABLED, "spec.verify is None, so nothing is checked")
    cause = machine.cause
    if machine.phase in _FAILED and cause is not None and cause.fault.reason == Reason.LINK_CORRUPTS:
        return VerifiedReport(status=ConditionStatus.FALSE, reason=Reason.LINK_CORRUPTS, message=cause.fault.message)
    if plan.world_size == 1:
        return _true("a single Mac has no connections to check")
    if len(proved) < plan.world_size:
        return _unknown(Reason.NOT_VERIFIED, "the ranks check their connections before they load the model")
    exchanges, seconds = (max(values) for values in zip(*proved.values(), strict=True))
    return _true(f"connections: {exchanges} exchanges of known values in {seconds:.2f} s, every bit right")


def _true(message: str) -> VerifiedReport:
    return VerifiedReport(status=ConditionStatus.TRUE, reason=Reason.VERIFIED, message=message)


def _unknown(reason: Reason, message: str) -> VerifiedReport:
    return VerifiedReport(status=ConditionStatus.UNKNOWN, reason=reason, message=message)
