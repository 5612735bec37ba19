"""What rank 0 reports of its group's checks."""

from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_runner import faults
from thunderfleet_runner.api.passages import Answers
from thunderfleet_runner.group.decide.attempts import Limits, Phase, StateMachine
from thunderfleet_runner.group.decide.events import Cause
from thunderfleet_runner.group.decide.verification import Proofs, Proved, verified
from thunderfleet_runner.net import peers

LINK = faults.link_corrupts("from rank 1 (b) to rank 0 (a)", "value 7 is 1 instead of 2")
CORRUPT = Cause(0, 1, faults.Stage.PROVE, LINK)
OTHER = Cause(0, 1, faults.Stage.SERVE, faults.Fault(FaultClass.RETRY, "RankKilled", "it was killed"))
BOTH = {0: Proved(41, 0.2), 1: Proved(41, 0.35)}


def plan(ranks: int = 2, **more: Any) -> Plan:
    entries = [
        {"rank": rank, "node": f"n{rank}", "pod": f"p{rank}", "address": "10.0.0.1", "controlPort": 1, "gatewayPort": 2,
         "memoryBytes": 7, "ringAddress": "10.0.0.1", "ringPorts": [3]}
        for rank in range(ranks)
    ]  # fmt: skip
    memory = {"contextTokens": 1, "concurrentRequests": 1, "cachedTokens": 0}
    return Plan.model_validate(
        {"namespace": "ns", "deployment": "md", "uid": "u", "index": 0, "epoch": 1, "model": "m", "modelPath": "/m",
         "backend": "ring" if ranks > 1 else "none", "split": "Tensor" if ranks > 1 else "None", "ranks": entries,
         "memory": memory, **more}
    )  # fmt: skip


def found(
    proved: dict[int, Proved],
    phase: Phase = Phase.LOADING,
    cause: Cause | None = None,
    answers: Answers | None = None,
    fit: tuple[int, ...] = (300, 2600),
    **more: Any,
) -> tuple[str, str]:
    made = plan(**more)
    machine = replace(StateMachine(tuple(entry.node for entry in made.ranks), Limits(3, 60)), phase=phase, cause=cause)
    told = verified(made, machine, Proofs(proved, {}, answers or Answers(), fit))
    return told.status, told.reason


def test_a_group_has_passed_when_every_rank_has() -> None:
    assert found({}) == found({1: Proved(41, 0.2)}) == ("Unknown", "NotVerified")
    assert found(BOTH) == ("True", "Verified")
    told = verified(plan(verify="Quick"), StateMachine(("a", "b"), Limits(3, 60)), Proofs(BOTH, {}, Answers(), ()))
    assert told.message == "connections: 41 exchanges of known values in 0.35 s, every bit right"


def test_a_single_mac_has_no_connections() -> None:
    assert found({}, ranks=1) == ("True", "Verified")


@pytest.mark.parametrize("phase", [Phase.ENDING, Phase.BACKOFF, Phase.GAVE_UP])
def test_a_changed_value_is_a_failed_check_until_the_next_attempt(phase: Phase) -> None:
    assert found({}, phase, CORRUPT) == found(BOTH, phase, CORRUPT) == ("False", "LinkCorrupts")
    assert found({}, phase, OTHER) == ("Unknown", "NotVerified"), "another failure says nothing about the connections"
    assert found({}, Phase.FORMING, CORRUPT) == ("Unknown", "NotVerified")
    assert found(BOTH, Phase.READY, CORRUPT) == ("True", "Verified")


def test_products_are_those_of_the_rank_that_has_checked_least() -> None:
    made = plan()
    machine = replace(StateMachine(("n0", "n1"), Limits(3, 60)), phase=Phase.READY)
    full = peers.Products(checked=7, kinds=7, layers=(0, 3), seconds=0.25)
    some = peers.Products(checked=5, kinds=7, seconds=0.5)
    told = verified(made, machine, Proofs(BOTH, {0: full, 1: some}, Answers(), ()))
    right = "; products with 5 of 7 kinds of the model's matrices are right, in 0.50 s"
    assert f"{right}; layers 0, 3 give the same as on one Mac; answers: " in told.message
    left = full.model_copy(update={"layers": (), "layers_left": "the whole layer 0 of 9.0 GiB is too large"})
    told = verified(made, machine, Proofs(BOTH, {0: left, 1: full}, Answers(), ()))
    assert "right, in 0.25 s; not compared: the whole layer 0 of 9.0 GiB is too large; " in told.message
    for unknown in ({0: full}, {0: peers.Products(), 1: peers.Products()}):
        assert "products" not in verified(made, machine, Proofs(BOTH, unknown, Answers(), ())).message


@pytest.mark.parametrize("text", ["KernelWrong: the product of 1 tokens", "LayerWrong: layer 3"])
def test_a_wrong_product_is_a_failed_check(text: str) -> None:
    fault = faults.from_text(faults.Stage.LOAD, text)
    assert found(BOTH, Phase.GAVE_UP, Cause(1, 1, faults.Stage.LOAD, fault)) == ("False", fault.reason)


ABLE = Answers().again("d", (300,)).right(300)


def said(answers: Answers, phase: Phase = Phase.READY, fit: tuple[int, ...] = (300, 2600)) -> tuple[str, str, str]:
    made = plan(1)
    told = verified(made, replace(StateMachine(("n0",), Limits(3, 60)), phase=phase), Proofs({}, {}, answers, fit))
    assert (told.digest, told.lengths) == (answers.digest, answers.ever)
    return told.status, told.reason, told.message.partition("; ")[2]


def test_what_is_said_of_answers() -> None:
    begun = Answers().again("d")
    idle = "answers: passages of 300, 2600 tokens will be checked when the group is idle"
    assert said(begun) == ("True", "Verified", idle)
    some = "answers: passages of 300 tokens continued correctly; passages of 2600 tokens will be checked when the group is idle"
    assert said(ABLE) == ("True", "Verified", some)
    assert said(ABLE.right(2600)) == ("True", "Verified", "answers: passages of 300, 2600 tokens continued correctly")
    no_room = "answers: not checked, because the context or the vocabulary is too small for a passage of 300 tokens"
    assert said(begun, fit=()) == ("True", "Verified", no_room)
    assert said(begun, Phase.LOADING) == ("True", "Verified", "answers: will be checked when the model is loaded")


def test_a_long_passage_that_was_never_continued_is_not_known_to_be_right() -> None:
    status, reason, message = said(ABLE.wrong(2600, "number 3 is wrong"))
    assert (status, reason) == ("Unknown", "LengthNotProved")
    text = (
        "answers: number 3 is wrong. These weights have never continued a passage of this length, so it is not known whether "
        "they can, or whether something is wrong."
    )
    assert message == text
    never = Answers().again("d").wrong(300, "number 3 is wrong")
    assert said(never) == ("Unknown", "LengthNotProved", f"{text} Longer passages are not tried.")
    assert said(never, fit=(300,)) == ("Unknown", "LengthNotProved", text)


def test_after_a_wrong_answer_nothing_is_known_until_the_same_is_right() -> None:
    wrong = ABLE.again("d").unlike(300)
    # After its time limit, the check of a group that serves follows when the group is idle.
    when = {Phase.READY: "when the group is idle"}
    for phase in (Phase.LOADING, Phase.PROVING, Phase.READY):
        status, reason, message = said(wrong.again("d"), phase)
        assert (status, reason) == ("Unknown", "NotVerified")
        assert message == f"answers: a passage of 300 tokens will be checked {when.get(phase, 'before the group serves')}"
    known: dict[str, Any] = {"provenLengths": {"digest": "d", "lengths": [300]}}
    assert found(BOTH, **known) == found(BOTH, Phase.PROVING, **known) == ("Unknown", "NotVerified")
    assert found(BOTH, Phase.READY, **known) == ("True", "Verified")
    assert said(wrong.again("d").right(300))[:2] == ("True", "Verified")
    cause = Cause(None, 1, faults.Stage.CHECK, faults.output_wrong("number 3 is wrong"))
    assert found(BOTH, Phase.GAVE_UP, cause) == ("False", "OutputWrong")


def test_without_checks_nothing_is_known() -> None:
    for proved in ({}, BOTH):
        assert found(proved, verify="None") == found(proved, ranks=1, verify="None") == ("Unknown", "VerificationDisabled")
    assert found(BOTH, verify="Quick") == ("True", "Verified")
