"""Whether a group has passed the checks of its plan. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from thunderfleet_crds.exchange.group import VerifiedReport
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, Verify

from thunderfleet_runner.api.passages import CONTROL, Answers
from thunderfleet_runner.group.decide.attempts import Phase, StateMachine

_FAILED = (Phase.ENDING, Phase.BACKOFF, Phase.GAVE_UP)
_SERVING = (Phase.READY, Phase.DRAINING)
LATER = "answers: will be checked when the model is loaded"
_WRONG = (Reason.LINK_CORRUPTS, Reason.OUTPUT_WRONG, Reason.KERNEL_WRONG, Reason.SPLIT_WRONG)


class Proved(NamedTuple):
    """A rank's check of its connections: how many exchanges it had with others, and how long they took."""

    exchanges: int
    seconds: float


class Products(Protocol):
    """See ``protocol.Products``."""

    @property
    def checked(self) -> int: ...
    @property
    def kinds(self) -> int: ...
    @property
    def layers(self) -> tuple[int, ...]: ...
    @property
    def layers_left(self) -> str: ...
    @property
    def seconds(self) -> float: ...


class Proofs(NamedTuple):
    """Results of the ranks' checks in the current attempt, by rank, and results of the passages."""

    proved: Mapping[int, Proved]
    products: Mapping[int, Products]
    answers: Answers
    fit: Sequence[int]
    """Lengths of passages to check."""


def verified(plan: Plan, machine: StateMachine, proofs: Proofs) -> VerifiedReport:
    """The report about the group's checks."""
    found = _verified(plan, machine, proofs)
    return found.model_copy(update={"digest": proofs.answers.digest, "lengths": proofs.answers.ever})


def _verified(plan: Plan, machine: StateMachine, proofs: Proofs) -> VerifiedReport:
    proved, products, answers, fit = proofs
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
    if len(products) == plan.world_size and any(one.kinds for one in products.values()):
        connections = f"{connections}; {_right(products)}"
    if machine.phase not in _SERVING and plan.proven_lengths is not None:
        return _unknown(Reason.NOT_VERIFIED, f"{connections}; {LATER}")
    if answers.suspect is not None and answers.suspect not in answers.passed:
        when = "when the group is idle" if machine.phase in _SERVING else "before the group serves"
        text = f"{connections}; answers: a passage of {answers.suspect} tokens will be checked {when}"
        return _unknown(Reason.NOT_VERIFIED, text)
    if answers.failed:
        length, wrong = answers.failed[0]
        longer = " Longer passages are not tried." if length == CONTROL and len(fit) > 1 else ""
        text = (
            f"{connections}; answers: {wrong}. These weights have never continued a passage of this length, so it is not "
            f"known whether they can, or whether something is wrong.{longer}"
        )
        return _unknown(Reason.LENGTH_NOT_PROVED, text)
    return _true(f"{connections}; {_continued(machine, answers, fit)}")


def _connections(proved: Mapping[int, Proved]) -> str:
    exchanges, seconds = (max(values) for values in zip(*proved.values(), strict=True))
    return f"connections: {exchanges} exchanges of known values in {seconds:.2f} s, every bit right"


def _right(products: Mapping[int, Products]) -> str:
    """The text about the checks of the ranks' computation."""
    fewest = min(products.values(), key=lambda one: one.checked - one.kinds)
    seconds = max(one.seconds for one in products.values())
    found = f"products with {fewest.checked} of {fewest.kinds} kinds of the model's matrices are right, in {seconds:.2f} s"
    first = products.get(0)
    if first is not None and first.layers:
        found += f"; layers {', '.join(map(str, first.layers))} give the same as on one Mac"
    if first is not None and first.layers_left:
        found += f"; not compared: {first.layers_left}"
    return found


def _continued(machine: StateMachine, answers: Answers, fit: Sequence[int]) -> str:
    """The text about the passages of this attempt, of which none has failed."""
    if machine.phase not in _SERVING:
        return LATER
    if not fit:
        return f"answers: not checked, because the context or the vocabulary is too small for a passage of {CONTROL} tokens"
    done = ", ".join(str(length) for length in sorted(answers.passed))
    left = ", ".join(str(length) for length in fit if length not in answers.passed)
    parts = [f"passages of {done} tokens continued correctly"] if done else []
    parts += [f"passages of {left} tokens will be checked when the group is idle"] if left else []
    return f"answers: {'; '.join(parts)}"


def _true(message: str) -> VerifiedReport:
    return VerifiedReport(status=ConditionStatus.TRUE, reason=Reason.VERIFIED, message=message)


def _unknown(reason: Reason, message: str) -> VerifiedReport:
    return VerifiedReport(status=ConditionStatus.UNKNOWN, reason=reason, message=message)
