"""Whether a group has passed the checks of its plan. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from thunderfleet_crds.group import VerifiedReport
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, Verify

from thunderfleet_runner.api.passages import CONTROL, Answers
from thunderfleet_runner.group.attempts import Phase, StateMachine

_FAILED = (Phase.ENDING, Phase.BACKOFF, Phase.GAVE_UP)
_SERVING = (Phase.READY, Phase.DRAINING)
LATER = "answers: will be checked when the model is loaded"
_WRONG = (Reason.LINK_CORRUPTS, Reason.OUTPUT_WRONG)


class Proved(NamedTuple):
    """A rank's check of its connections: how many exchanges it had with others, and how long they took."""

    exchanges: int
    seconds: float


def verified(
    plan: Plan, machine: StateMachine, proved: Mapping[int, Proved], answers: Answers, fit: Sequence[int]
) -> VerifiedReport:
    """``proved``: by rank, its check in the present attempt, if that has passed. ``fit``: lengths of passages to ask."""
    found = _verified(plan, machine, proved, answers, fit)
    return found.model_copy(update={"digest": answers.digest, "lengths": answers.ever})


def _verified(
    plan: Plan, machine: StateMachine, proved: Mapping[int, Proved], answers: Answers, fit: Sequence[int]
) -> VerifiedReport:
    if plan.verify is Verify.NONE:
        return _unknown(Reason.VERIFICATION_DISABLED, "spec.verify is None, so nothing is checked")
    cause = machine.cause
    if machine.phase in _FAILED and cause is not None and cause.fault.reason in _WRONG:
        return VerifiedReport(status=ConditionStatus.FALSE, reason=cause.fault.reason, message=cause.fault.message)
    if len(proved) < plan.world_size > 1:
        return _unknown(Reason.NOT_VERIFIED, "the ranks check their connections before they load the model")
    connections = _connections(proved) if plan.world_size > 1 else "a single Mac has no connections to check"
    if plan.verify is Verify.QUICK:
        return _true(connections)
    if machine.phase not in _SERVING and plan.proven_lengths is not None:
        return _unknown(Reason.NOT_VERIFIED, f"{connections}; {LATER}")
    if answers.suspect is not None and answers.suspect not in answers.passed:
        text = f"{connections}; answers: a passage of {answers.suspect} tokens will be checked before the group serves"
        return _unknown(Reason.NOT_VERIFIED, text)
    unlike = [text for length, text in answers.failed if length != CONTROL]
    if unlike:
        text = (
            f"{connections}; answers: {unlike[0]}. These weights have never continued a passage of this length, so it is not "
            "known whether they can"
        )
        return _unknown(Reason.LENGTH_NOT_PROVED, text)
    return _true(f"{connections}; {_continued(machine, answers, fit)}")


def _connections(proved: Mapping[int, Proved]) -> str:
    exchanges, seconds = (max(values) for values in zip(*proved.values(), strict=True))
    return f"connections: {exchanges} exchanges of known values in {seconds:.2f} s, every bit right"


def _continued(machine: StateMachine, answers: Answers, fit: Sequence[int]) -> str:
    """What is known of the passages of this attempt, of which none has failed but perhaps the shortest."""
    if machine.phase not in _SERVING:
        return LATER
    if not fit:
        return f"answers: not checked, because the context or the vocabulary is too small for a passage of {CONTROL} tokens"
    if not answers.able:
        return f"answers: not checked, because this model cannot continue a passage of {CONTROL} tokens"
    done = ", ".join(str(length) for length in sorted(answers.passed))
    left = ", ".join(str(length) for length in fit if length not in answers.passed)
    parts = [f"passages of {done} tokens continued correctly"] if done else []
    parts += [f"passages of {left} tokens will be checked when the group is idle"] if left else []
    return f"answers: {'; '.join(parts)}"


def _true(message: str) -> VerifiedReport:
    return VerifiedReport(status=ConditionStatus.TRUE, reason=Reason.VERIFIED, message=message)


def _unknown(reason: Reason, message: str) -> VerifiedReport:
    return VerifiedReport(status=ConditionStatus.UNKNOWN, reason=reason, message=message)
