"""The group's state as text: one sentence, and a phase for each rank."""

from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_crds.exchange.group import RankReport
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_runner import faults
from thunderfleet_runner.group.decide import status
from thunderfleet_runner.group.decide.attempts import Limits, Phase, StateMachine
from thunderfleet_runner.group.decide.events import Cause

CAUSE = Cause(1, 4, faults.Stage.SERVE, faults.Fault(FaultClass.RETRY, "RankKilled", "it was killed"))


def machine(phase: Phase, **changes: Any) -> StateMachine:
    return replace(
        StateMachine(("studio-0", "studio-1"), Limits(3, 60)), phase=phase, attempt=4, present=frozenset({0, 1}), **changes
    )


def sentence(state: StateMachine, **changes: Any) -> str:
    given: dict[str, Any] = {"failure": "it broke", "refusals": {}, "exchange_missing": (), "running": 2, **changes}
    return status.message(state, **given)


def test_a_waiting_group_names_the_missing_ranks_and_why() -> None:
    alone = replace(machine(Phase.WAITING), present=frozenset({0}))
    assert sentence(alone) == "waiting for rank 1 (studio-1) to join rank 0"
    refused = {1: "epoch 2 is stale"}
    assert sentence(alone, refusals=refused) == "waiting for rank 1 (studio-1) to join rank 0; refused: epoch 2 is stale"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (machine(Phase.CHECKING, done=frozenset({0})), "attempt 4: running preflight checks on rank 1 (studio-1)"),
        (machine(Phase.ENDING), "attempt 4 failed, ending its ranks: it broke"),
        (machine(Phase.BACKOFF, failures=2), "next attempt in 1 s; the last one failed: it broke"),
        (machine(Phase.ENDING, cause=CAUSE), "attempt 4 failed on rank 1 (studio-1), ending its ranks: it broke"),
        (
            machine(Phase.BACKOFF, failures=2, cause=CAUSE),
            "next attempt in 1 s; the last one failed on rank 1 (studio-1): it broke",
        ),
        (machine(Phase.GAVE_UP), "it broke"),
        (machine(Phase.DRAINING), "draining: 2 requests still running"),
        (machine(Phase.READY), "serving"),
    ],
)
def test_every_phase_has_a_sentence(state: StateMachine, words: str) -> None:
    assert sentence(state) == words


def test_one_request_is_no_plural_and_a_missing_part_is_named() -> None:
    assert sentence(machine(Phase.DRAINING), running=1) == "draining: 1 request still running"
    forming = machine(Phase.FORMING, done=frozenset({0}))
    assert sentence(forming) == "attempt 4: the ranks connect to each other; waiting for rank 1 (studio-1)"
    assert sentence(forming, exchange_missing=(0,)).endswith("; no JACCL connection data from rank 0 (studio-0)")


def test_all_phases_are_known() -> None:
    assert set(status.GROUP_PHASES) == set(Phase)
    for phase in Phase:
        assert sentence(machine(phase))
    assert status.GROUP_PHASES[Phase.GAVE_UP] is GroupPhase.GAVE_UP


def test_an_absent_rank_says_why_it_was_refused() -> None:
    report = RankReport(rank=1, node="studio-1", phase=RankPhase.JOINED, message="old")
    alone = replace(machine(Phase.WAITING), present=frozenset({0}))
    found = status.rank_report(report, alone, "epoch 2 is stale")
    assert (found.phase, found.message) == (RankPhase.ABSENT, "refused: epoch 2 is stale")
    assert status.rank_report(report, alone, "").message == ""


def test_the_rank_that_failed_says_so_until_the_next_attempt() -> None:
    reports = [RankReport(rank=rank, node=f"studio-{rank}", phase=RankPhase.SERVING) for rank in (0, 1)]
    for phase in (Phase.ENDING, Phase.BACKOFF, Phase.GAVE_UP):
        found = [status.rank_report(report, machine(phase, cause=CAUSE), "") for report in reports]
        assert [(entry.phase, entry.message) for entry in found] == [
            (RankPhase.JOINED, ""),
            (RankPhase.FAILED, "it was killed"),
        ]
    checking = machine(Phase.CHECKING, cause=CAUSE, done=frozenset({0}))
    found = [status.rank_report(report, checking, "") for report in reports]
    assert [entry.phase for entry in found] == [RankPhase.CHECKED, RankPhase.JOINED]
