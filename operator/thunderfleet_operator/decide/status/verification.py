"""Whether groups have passed the checks of ``spec.verify``."""

from collections.abc import Sequence

from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.kinds.modeldeployment import (
    MAX_PROVEN_LENGTHS,
    MAX_RECORDED_ANSWERS,
    MAX_RECORDED_TOKENS,
    MAX_WEIGHTS_COPIES,
    Group,
    ModelDeployment,
    ProvenLengths,
    RecordedAnswer,
    VerifiedStatus,
    WeightsCopy,
)
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, Verify

from thunderfleet_operator.decide.status.verdict import Verdict, joined, no_groups
from thunderfleet_operator.observe.objects.plans import GroupView

DISABLED = "spec.verify is None, so nothing is checked"
OUTCOMES = {ConditionStatus.TRUE: True, ConditionStatus.FALSE: False, ConditionStatus.UNKNOWN: None}


def of_group(view: GroupView, state: GroupState | None) -> VerifiedStatus | None:
    """What rank 0 reports, or else what is known from before.

    A failed check counts until another check has ended, also across placements.
    """
    before = view.status.verified if view.status is not None else None
    checked = state.verified if state is not None else None
    failed = before is not None and before.status is ConditionStatus.FALSE
    if checked is None:
        # A runner of an earlier version reports a state without it.
        same = state is None and view.status is not None and view.status.epoch == view.last_epoch
        return before if failed or same else None
    if failed and checked.reason == Reason.NOT_VERIFIED:
        return before
    return VerifiedStatus(status=checked.status, reason=checked.reason, message=checked.message)


def proven_lengths(view: GroupView, state: GroupState | None) -> ProvenLengths | None:
    """The lengths of passages that the group has continued with the current model, also in earlier placements."""
    before = view.status.proven_lengths if view.status is not None else None
    checked = state.verified if state is not None else None
    if checked is None or not checked.digest:
        return before
    known = before.lengths if before is not None and before.digest == checked.digest else ()
    lengths = sorted({*known, *checked.lengths})[:MAX_PROVEN_LENGTHS]
    return ProvenLengths(digest=checked.digest[:128], lengths=tuple(lengths)) if lengths else None


def weights(view: GroupView, state: GroupState | None) -> tuple[WeightsCopy, ...]:
    """Copies of the model that groups have hashed, the newest ones last."""
    before = view.status.weights if view.status is not None else ()
    hashed = state.verified.weights if state is not None and state.verified is not None else ()
    found = {copy.node: copy for copy in before}
    for one in hashed:
        found.pop(one.node, None)
        found[one.node] = WeightsCopy(node=one.node, signature=one.signature[:128], digest=one.digest[:128])
    return tuple(found.values())[-MAX_WEIGHTS_COPIES:]


def recorded_answers(view: GroupView, state: GroupState | None) -> tuple[RecordedAnswer, ...]:
    """Recorded answers to the test prompt, one for each combination that an answer depends on. The first answer is kept."""
    before = view.status.recorded_answers if view.status is not None else ()
    answer = state.verified.recorded if state is not None and state.verified is not None else None
    if answer is None or len(answer.tokens) > MAX_RECORDED_TOKENS or any(one.key == answer.key for one in before):
        return before
    try:
        new = RecordedAnswer(key=answer.key, tokens=answer.tokens, costs=answer.costs, margins=answer.margins)
    except ValueError:
        return before
    return (*before, new)[-MAX_RECORDED_ANSWERS:]


def verified(deployment: ModelDeployment, groups: Sequence[Group], wanted: int) -> Verdict:
    """Whether every group has passed. A group that has failed counts before one that is not known to have passed.

    ``wanted``: the number of groups that should run.
    """
    if not wanted:
        return Verdict(None, *no_groups(deployment))
    if deployment.spec.verify is Verify.NONE:
        return Verdict(None, Reason.VERIFICATION_DISABLED, DISABLED)
    waiting = VerifiedStatus(status=ConditionStatus.UNKNOWN, reason=Reason.NOT_VERIFIED, message="not checked yet")
    known = [(group.index, group.verified or waiting) for group in groups]
    for status in (ConditionStatus.FALSE, ConditionStatus.UNKNOWN, ConditionStatus.TRUE):
        found = [(index, one) for index, one in known if one.status is status]
        if found:
            message = joined(f"group {index}: {one.message}" for index, one in found)
            return Verdict(OUTCOMES[status], found[0][1].reason, message)
    return Verdict(None, Reason.NOT_VERIFIED, waiting.message)
