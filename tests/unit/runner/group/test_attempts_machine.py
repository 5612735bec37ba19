"""The leader's state machine: its usual path, its budgets, and what must never happen in any order of events."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_crds.exchange.plan import LEAVE_SECONDS, POD_GRACE_SECONDS
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_runner import faults
from thunderfleet_runner.faults import GRACE_IS_OVER, Fault
from thunderfleet_runner.group.decide.attempts import Limits, Phase, StateMachine
from thunderfleet_runner.group.decide.events import (
    Action,
    Admit,
    Checked,
    Compare,
    Cut,
    Drain,
    EndRanks,
    Event,
    GiveUp,
    Joined,
    Left,
    Preflight,
    Prove,
    Proved,
    Quiet,
    RankEnded,
    RankFailed,
    RankFormed,
    RankLoaded,
    RankReady,
    ReleaseAll,
    Serve,
    SetTimer,
    Stalled,
    StartRanks,
    StopRanks,
    Timer,
    Unserve,
    Wrong,
)
from thunderfleet_runner.host import rankprocess

from tests.support.generated import examples

MACS = ("mac-0", "mac-1", "mac-2")
RETRY = Fault(FaultClass.RETRY, "RankKilled", "killed")
BUG = Fault(FaultClass.BUG, "Unknown", "odd")
WRONG = faults.output_wrong("token 3 is 4")


def run(machine: StateMachine, *events: Event) -> tuple[StateMachine, list[Action]]:
    actions: list[Action] = []
    for event in events:
        machine, more = machine.step(event)
        actions += more
    return machine, actions


def formed(size: int = 2, limits: Limits | None = None) -> StateMachine:
    machine = StateMachine(MACS[:size], limits or Limits(3, 60))
    machine, _ = run(machine, *(Joined(rank) for rank in range(size)))
    return to_ready(machine)


def to_ready(machine: StateMachine) -> StateMachine:
    n, size = machine.attempt, machine.size
    machine, _ = run(
        machine,
        *(Checked(rank, n, 21000 + rank) for rank in range(size)),
        *(RankFormed(rank, n) for rank in range(size)),
        *(RankLoaded(rank, n) for rank in range(size)),
        *(RankReady(rank, n, (7,)) for rank in range(size)),
    )
    assert machine.phase is Phase.READY
    return machine


def proving(machine: StateMachine) -> StateMachine:
    """Up to the check of answers, which the test prompt comes before."""
    n = machine.attempt
    machine, actions = run(
        replace(machine, proves=True),
        *(Checked(rank, n, 1) for rank in range(2)),
        *(RankFormed(rank, n) for rank in range(2)),
        *(RankLoaded(rank, n) for rank in range(2)),
        *(RankReady(rank, n, (7,)) for rank in range(2)),
    )
    assert machine.phase is Phase.PROVING and Prove(n) in actions and Serve(n) not in actions
    return machine


def joined() -> StateMachine:
    return run(StateMachine(MACS[:2], Limits(3, 60)), Joined(0), Joined(1))[0]


def again(machine: StateMachine) -> StateMachine:
    """The next attempt after a failure."""
    machine, _ = run(machine, *(RankEnded(rank, machine.attempt) for rank in range(2)))
    assert machine.phase is Phase.BACKOFF
    return run(machine, Timer(machine.timer))[0]


def test_a_group_serves_when_its_answers_are_right_or_when_that_takes_long() -> None:
    machine = proving(joined())
    ready, actions = run(machine, Proved(machine.attempt))
    assert ready.phase is Phase.READY and Serve(1) in actions and ready.was_ready
    late, actions = run(machine, Timer(machine.timer))
    assert late.phase is Phase.READY and Serve(1) in actions
    assert run(ready, Proved(1))[0] is ready and run(machine, Proved(2))[0] is machine


def test_a_wrong_answer_costs_one_attempt_and_the_second_one_ends_them() -> None:
    machine, actions = run(proving(joined()), Wrong(1, WRONG))
    assert machine.phase is Phase.ENDING and any(isinstance(action, Unserve) for action in actions)
    machine, _ = run(proving(again(machine)), Wrong(2, WRONG))
    machine, actions = run(machine, RankEnded(0, 2), RankEnded(1, 2))
    assert machine.phase is Phase.GAVE_UP and not machine.timer_on, "no attempt follows by itself"
    assert machine.cause is not None and machine.cause.fault == WRONG and machine.cause.rank is None
    assert any(isinstance(action, GiveUp) for action in actions)


def test_a_wrong_answer_after_a_long_time_is_the_first_again() -> None:
    """Longer than a fault needs that only the hourly check notices."""
    machine, _ = run(proving(joined()), Wrong(1, WRONG))
    machine, _ = run(proving(again(machine)), Proved(2))
    while_, timer = run(machine, Timer(machine.timer))
    assert while_.failures == 0 and timer == [SetTimer(while_.timer, 7200.0 - 60.0)]
    long, timer = run(while_, Timer(while_.timer))
    assert long.phase is Phase.READY and not timer
    for served, phase in ((machine, Phase.GAVE_UP), (while_, Phase.GAVE_UP), (long, Phase.BACKOFF)):
        wrong, _ = run(served, Wrong(2, WRONG), RankEnded(0, 2), RankEnded(1, 2))
        assert wrong.phase is phase


def test_a_group_whose_answers_were_never_wrong_needs_one_timer_only() -> None:
    machine, _ = run(proving(joined()), Proved(1))
    steady, actions = run(machine, Timer(machine.timer))
    assert not actions and not steady.timer_on


def test_a_group_that_makes_no_step_does_not_serve_when_the_time_for_its_checks_is_over() -> None:
    machine = proving(joined())
    for _ in range(3):
        machine, actions = run(machine, Timer(machine.timer, still=True))
        assert machine.phase is Phase.PROVING and actions == [SetTimer(machine.timer, 5.0)]
    served, actions = run(machine, Timer(machine.timer))
    assert served.phase is Phase.READY and Serve(1) in actions
    stalled, _ = run(machine, Stalled(1, 0, RETRY))
    assert stalled.phase is Phase.ENDING


def test_ranks_that_diverge_again_although_nothing_was_found_are_a_bug() -> None:
    diverged = faults.from_text(faults.Stage.SERVE, "Diverged: rank 1: the ranks no longer compute the same")

    def part(machine: StateMachine) -> StateMachine:
        machine, _ = run(to_ready(machine), RankFailed(1, machine.attempt, diverged, faults.Stage.SERVE))
        return run(machine, *(RankEnded(rank, machine.attempt) for rank in range(machine.size)))[0]

    first = part(formed())
    assert first.cause is not None and (first.cause.fault.fault, first.phase) == (FaultClass.RETRY, Phase.BACKOFF)
    second = part(again(first))
    assert second.cause is not None and (second.cause.fault.fault, second.phase) == (FaultClass.BUG, Phase.BACKOFF)
    assert second.cause.fault.message == (
        "Diverged: rank 1: the ranks no longer compute the same; the checks of spec.verify have found nothing since the "
        "last time: report a bug"
    )


def test_a_group_whose_answers_are_checked_can_be_drained() -> None:
    machine, _ = run(proving(joined()), Drain(for_good=True), RankEnded(0, 1), RankEnded(1, 1))
    assert machine.phase is Phase.STOPPED


def fail_in_init(machine: StateMachine, fault: Fault = RETRY) -> tuple[StateMachine, list[Action]]:
    n = machine.attempt
    machine, _ = run(machine, *(Checked(rank, n, 1) for rank in range(machine.size)))
    return run(machine, RankFailed(1, n, fault, faults.Stage.INIT), *(RankEnded(rank, n) for rank in range(machine.size)))


def test_the_usual_path_in_order() -> None:
    machine, actions = run(
        StateMachine(MACS[:2], Limits(3, 60)),
        Joined(0), Joined(1), Checked(0, 1, 5), Checked(1, 1, 6), RankFormed(0, 1), RankLoaded(0, 1), RankFormed(1, 1),
        RankLoaded(1, 1), RankReady(1, 1, (7,)), RankReady(0, 1, (7,)),
    )  # fmt: skip
    told = [type(action) for action in actions if not isinstance(action, SetTimer)]
    assert told == [Preflight, StartRanks, Compare, Serve]
    assert next(action for action in actions if isinstance(action, StartRanks)).ports == {0: 5, 1: 6}
    assert machine.phase is Phase.READY


def test_waiting_costs_nothing() -> None:
    machine, actions = run(StateMachine(MACS[:2], Limits(1, 60)), *(Joined(0), Joined(1), Left(1, "gone")) * 5, Joined(1))
    assert (machine.phase, machine.attempt, machine.spent) == (Phase.CHECKING, 1, 0)
    assert not [action for action in actions if isinstance(action, GiveUp)]


def test_an_attempt_counts_from_the_barrier_on_or_when_a_check_fails() -> None:
    checking, _ = run(StateMachine(MACS[:2], Limits(3, 60)), *(Joined(0), Joined(1), Left(1, "the LAN was cut")) * 2, Joined(1))
    started, _ = run(checking, Checked(0, 1, 5), Checked(1, 1, 6))
    lost, _ = run(started, Left(1, "the LAN was cut"), RankEnded(0, 1), Joined(1))
    failed, _ = run(checking, RankFailed(1, 1, BUG, faults.Stage.PREFLIGHT), RankEnded(0, 1), RankEnded(1, 1))
    for machine in (lost, failed):
        assert (machine.phase, machine.attempt, machine.spent) == (Phase.BACKOFF, 1, 1)
        machine, _ = run(machine, Timer(machine.timer))
        assert (machine.phase, machine.attempt, machine.spent) == (Phase.CHECKING, 2, 1)


def test_the_budget_is_spent_in_init_and_no_sooner() -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(3, 60)), Joined(0), Joined(1))
    for _ in range(2):
        machine, actions = fail_in_init(machine)
        assert machine.phase is Phase.BACKOFF
        machine, _ = run(machine, Timer(machine.timer))
    machine, actions = fail_in_init(machine)
    assert machine.phase is Phase.GAVE_UP
    assert isinstance(actions[-1], GiveUp)
    assert not machine.timer_on


def test_a_ready_period_gives_the_budget_back() -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(2, 60)), Joined(0), Joined(1))
    for _ in range(4):
        machine, _ = fail_in_init(machine)
        machine, _ = run(machine, Timer(machine.timer))
        machine = to_ready(machine)
        n = machine.attempt
        machine, _ = run(machine, RankFailed(0, n, RETRY, faults.Stage.SERVE), RankEnded(0, n), RankEnded(1, n))
        assert machine.phase is Phase.BACKOFF
        machine, _ = run(machine, Timer(machine.timer))
    assert machine.recoveries == 3


def test_a_group_that_served_and_was_moved_has_its_whole_budget_and_no_more() -> None:
    machine, _ = fail_in_init(joined())
    machine = to_ready(run(machine, Timer(machine.timer))[0])
    n = machine.attempt
    machine, _ = run(machine, Drain(for_good=False), Quiet(), RankEnded(0, n), RankEnded(1, n), Left(1, "closed"), Joined(1))
    for phase in (Phase.BACKOFF, Phase.BACKOFF, Phase.GAVE_UP):
        assert machine.phase is Phase.CHECKING
        machine, _ = fail_in_init(machine)
        assert machine.phase is phase
        machine, _ = run(machine, Timer(machine.timer))


@pytest.mark.parametrize("kind", [FaultClass.REPLAN, FaultClass.REBOOT])
def test_a_placement_that_cannot_work_is_given_up_at_once(kind: FaultClass) -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(8, 60)), Joined(0), Joined(1))
    machine, actions = run(
        machine, RankFailed(1, 1, Fault(kind, "X", "x"), faults.Stage.PREFLIGHT), RankEnded(0, 1), RankEnded(1, 1)
    )
    assert machine.phase is Phase.GAVE_UP
    assert not machine.timer_on
    assert not [action for action in actions if isinstance(action, StartRanks)]


def test_what_a_person_must_change_is_tried_again_slowly() -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(1, 60)), Joined(0), Joined(1))
    for _ in range(3):
        n = machine.attempt
        fault = Fault(FaultClass.CONFIGURE, "ModelNotFound", "no model")
        machine, actions = run(machine, RankFailed(1, n, fault, faults.Stage.PREFLIGHT), RankEnded(0, n), RankEnded(1, n))
        assert machine.phase is Phase.GAVE_UP
        assert SetTimer(machine.timer, machine.limits.slow_retry_seconds) in actions
        machine, _ = run(machine, Timer(machine.timer))
        assert machine.phase is Phase.CHECKING


def test_the_same_load_error_twice_is_for_a_person() -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(8, 60)), Joined(0), Joined(1))
    for stage in (Phase.BACKOFF, Phase.GAVE_UP):
        n = machine.attempt
        machine, _ = run(machine, Checked(0, n, 1), Checked(1, n, 2), RankFormed(0, n), RankFormed(1, n))
        machine, _ = run(machine, RankFailed(1, n, BUG, faults.Stage.LOAD), RankEnded(0, n), RankEnded(1, n))
        assert machine.phase is stage
        machine, _ = run(machine, Timer(machine.timer))
    assert machine.cause is not None
    assert machine.cause.fault.fault is FaultClass.CONFIGURE


def test_the_first_cause_is_kept_and_echoes_are_attached() -> None:
    machine = formed()
    echo = Fault(FaultClass.RETRY, "PeerLost", "[ring] connection to a peer was lost", echo=True)
    machine, _ = run(machine, RankFailed(0, 1, RETRY, faults.Stage.SERVE), RankFailed(1, 1, echo, faults.Stage.SERVE))
    assert machine.cause is not None
    assert (machine.cause.rank, machine.cause.echoes) == (0, ("rank 1: [ring] connection to a peer was lost",))


def test_an_echo_that_comes_first_gives_way_to_the_error_itself() -> None:
    machine = formed()
    echo = Fault(FaultClass.RETRY, "PeerLost", "peer lost", echo=True)
    machine, _ = run(machine, RankFailed(0, 1, echo, faults.Stage.SERVE), RankFailed(1, 1, BUG, faults.Stage.SERVE))
    assert machine.cause is not None
    assert (machine.cause.rank, machine.cause.fault, machine.cause.echoes) == (1, BUG, ("rank 0: peer lost",))


def test_an_old_timer_and_an_old_attempts_word_change_nothing() -> None:
    machine = formed()
    assert run(machine, Timer(machine.timer - 1)) == (machine, [])
    assert run(machine, RankFailed(1, 0, BUG, faults.Stage.INIT)) == (machine, [])
    assert run(machine, RankEnded(0, 0)) == (machine, [])


def test_who_does_not_end_its_rank_is_cut_off() -> None:
    machine = formed()
    machine, _ = run(machine, RankFailed(0, 1, RETRY, faults.Stage.SERVE), RankEnded(0, 1))
    machine, actions = run(machine, Timer(machine.timer))
    assert actions == [Cut(1), SetTimer(machine.timer, machine.limits.end_seconds)]
    machine, _ = run(machine, Left(1, "cut off"))
    assert machine.phase is Phase.BACKOFF


def test_drain_lets_requests_end_then_stops_together() -> None:
    machine, actions = run(formed(), Drain(for_good=True))
    assert machine.phase is Phase.DRAINING
    machine, actions = run(machine, Quiet())
    assert actions[0] == StopRanks(1)
    machine, actions = run(machine, RankEnded(1, 1), RankEnded(0, 1))
    assert machine.phase is Phase.STOPPED
    assert ReleaseAll() in actions
    assert run(machine, Left(1, "gone"))[0].phase is Phase.STOPPED


def test_a_drain_for_a_leaving_member_ends_with_its_successor() -> None:
    machine, _ = run(formed(), Drain(for_good=False), Quiet(), RankEnded(0, 1), RankEnded(1, 1))
    assert (machine.phase, machine.draining) == (Phase.STOPPED, True)
    machine, actions = run(machine, Left(1, "closed"))
    assert (machine.phase, machine.draining) == (Phase.WAITING, False)
    assert Admit(True) in actions
    machine, _ = run(machine, Joined(1))
    assert machine.phase is Phase.CHECKING


def test_a_group_that_is_drained_takes_no_member_and_no_request_in_any_phase() -> None:
    waiting = run(StateMachine(MACS[:2], Limits(1, 60)), Joined(0))[0]
    backing_off, _ = fail_in_init(joined())
    given_up, _ = fail_in_init(run(waiting, Joined(1))[0])
    assert (backing_off.phase, given_up.phase) == (Phase.BACKOFF, Phase.GAVE_UP)
    for machine in (waiting, backing_off, given_up):
        stopped, actions = run(machine, Drain(for_good=True))
        assert stopped.phase is Phase.STOPPED and not stopped.timer_on
        assert [action for action in actions if isinstance(action, (Admit, ReleaseAll))] == [Admit(False), ReleaseAll()]
    for machine in (joined(), formed()):
        _, actions = run(machine, Drain(for_good=True))
        assert Admit(False) in actions and Admit(True) not in actions


def test_a_load_failure_resets_the_budget_of_forming() -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(3, 60)), Joined(0), Joined(1))
    machine, _ = fail_in_init(machine)
    machine, _ = run(machine, Timer(machine.timer))
    assert (machine.phase, machine.spent) == (Phase.CHECKING, 1)
    n = machine.attempt
    machine, _ = run(machine, *(Checked(rank, n, 1) for rank in (0, 1)), *(RankFormed(rank, n) for rank in (0, 1)))
    machine, _ = run(machine, RankFailed(0, n, RETRY, faults.Stage.LOAD), RankEnded(0, n), RankEnded(1, n))
    assert (machine.phase, machine.spent, machine.load_failures) == (Phase.BACKOFF, 0, 1)


def test_ranks_that_do_not_stop_are_ended() -> None:
    machine, _ = run(formed(), Drain(for_good=True), Quiet())
    machine, actions = run(machine, Timer(machine.timer))
    assert EndRanks(1) in actions
    machine, actions = run(machine, RankEnded(0, 1), RankEnded(1, 1))
    assert machine.phase is Phase.STOPPED


def test_running_requests_get_most_of_the_pods_grace_and_each_limit_leaves_room_for_the_next() -> None:
    drain = Limits(3, 60).drain_seconds
    assert POD_GRACE_SECONDS / 2 < drain <= LEAVE_SECONDS - 3
    # SIGTERM and SIGKILL to the rank, error events in streams, closed connections.
    assert LEAVE_SECONDS <= POD_GRACE_SECONDS - 4 * rankprocess.TERM_SECONDS


@pytest.mark.parametrize("for_good", [True, False])
def test_requests_that_end_with_a_drain_get_a_true_reason(for_good: bool) -> None:
    draining, _ = run(formed(), Drain(for_good))
    _, actions = run(draining, RankFailed(1, 1, RETRY, faults.Stage.SERVE))
    assert Unserve("the group failed while its deployment was being stopped or moved: rank 1: killed") in actions
    # The old failure is not the reason, and the group does not restart.
    machine, _ = fail_in_init(run(StateMachine(MACS[:2], Limits(3, 60)), Joined(0), Joined(1))[0])
    machine = to_ready(run(machine, Timer(machine.timer))[0])
    stopping, _ = run(machine, Drain(for_good), Timer(machine.timer + 1))
    assert stopping.phase is Phase.STOPPING
    _, actions = run(stopping, Timer(stopping.timer))
    assert Unserve(GRACE_IS_OVER) in actions


def test_requests_cut_by_a_failure_end_with_its_first_cause() -> None:
    ready = formed()
    echo = Fault(FaultClass.RETRY, "PeerLost", "lost a peer", echo=True)
    ending, actions = run(ready, RankFailed(0, 1, echo, faults.Stage.SERVE))
    assert Unserve("the group failed and is restarting: rank 0: lost a peer", settled=False) in actions
    # Its own failure, the end of its supervisor, or nothing.
    _, actions = run(ending, RankFailed(1, 1, RETRY, faults.Stage.SERVE))
    assert actions == [Unserve("the group failed and is restarting: rank 1: killed")]
    gone, actions = run(ending, Left(1, "closed"))
    assert gone.cause is not None and gone.cause.rank == 1
    assert [action.why for action in actions if isinstance(action, Unserve)] == [
        f"the group failed and is restarting: {gone.cause.line}"
    ]
    _, actions = run(ending, RankEnded(0, 1), RankEnded(1, 1))
    assert Unserve("the group failed and is restarting: rank 0: lost a peer") in actions
    # Its own failure suffices.
    _, actions = run(ready, RankFailed(1, 1, RETRY, faults.Stage.SERVE))
    assert Unserve("the group failed and is restarting: rank 1: killed") in actions


@pytest.mark.parametrize("draining", [False, True])
def test_a_first_cause_is_awaited_from_ranks_whose_supervisors_are_connected(draining: bool) -> None:
    echo = Fault(FaultClass.RETRY, "PeerLost", "lost a peer", echo=True)
    serving = formed()
    if draining:
        serving, _ = run(serving, Drain(for_good=True))
    cut = (
        "the group failed while its deployment was being stopped or moved" if draining else "the group failed and is restarting"
    )
    ending, actions = run(serving, RankFailed(0, 1, echo, faults.Stage.SERVE))
    assert Unserve(f"{cut}: rank 0: lost a peer", settled=False) in actions
    assert ending.awaits_cause
    known, actions = run(ending, RankFailed(1, 1, RETRY, faults.Stage.SERVE))
    assert not known.awaits_cause and actions == [Unserve(f"{cut}: rank 1: killed")]
    # What reported the echo is not the cause; the other one would have said it before its end.
    assert run(ending, RankEnded(0, 1))[0].awaits_cause
    assert not run(ending, RankEnded(1, 1))[0].awaits_cause
    assert not run(ending, Left(1, "closed"))[0].awaits_cause
    # A rank that does not end has no more time than this.
    late, actions = run(ending, Timer(ending.timer))
    assert not late.awaits_cause and Unserve(f"{cut}: rank 0: lost a peer") in actions
    assert not run(serving, RankFailed(1, 1, RETRY, faults.Stage.SERVE))[0].awaits_cause


def test_backoff_grows_and_is_bounded() -> None:
    waits = [StateMachine(MACS[:2], Limits(9, 60), failures=count).backoff for count in range(1, 40)]
    assert waits == sorted(waits)
    assert waits[0] == 0.5
    assert waits[-1] == 30.0


def test_a_group_that_does_not_form_in_time_names_the_macs_that_did_not_answer() -> None:
    machine, _ = run(StateMachine(MACS[:2], Limits(3, 60)), Joined(0), Joined(1))
    machine, _ = run(machine, Checked(0, 1, 1), Checked(1, 1, 1), RankFormed(0, 1))
    machine, _ = run(machine, Timer(machine.timer))
    assert machine.cause is not None
    assert machine.cause.fault.message == (
        "the group did not form within 60 s: no answer from rank 1 (mac-1); if this recurs, check the cables of these Macs "
        "with `kubectl get tbl`"
    )


def happenings(size: int) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    names = st.sampled_from(
        ["join", "leave", "checked", "formed", "loaded", "ready", "odd", "retry", "bug", "replan", "configure", "echo",
         "ended", "timer", "old-timer", "stall", "drain", "member-drain", "quiet", "honest", "honest", "honest", "honest"]
    )  # fmt: skip
    return st.lists(st.tuples(names, st.integers(0, size - 1), st.integers(0, 1)), max_size=120)


class World:
    """The members, which run processes of attempts and obey orders, except where the events say otherwise."""

    def __init__(self, size: int, budget: int) -> None:
        self.machine = StateMachine(MACS[:size], Limits(budget, 60))
        self.processes: dict[int, int] = {}
        self.started = 0
        self.waits: list[float] = []
        self.serving = False

    def feed(self, event: Event) -> None:
        before = self.machine
        self.machine, actions = before.step(event)
        assert self.machine.attempt >= before.attempt
        for action in actions:
            self.act(action, before)
        if self.machine.phase is Phase.BACKOFF and before.phase is not Phase.BACKOFF:
            self.waits.append(self.machine.backoff)

    def act(self, action: Action, before: StateMachine) -> None:
        match action:
            case StartRanks(attempt=attempt, ports=ports):
                assert not self.processes, f"attempt {attempt} starts beside {self.processes}"
                assert attempt > self.started, "no number is given to ranks twice"
                self.started = attempt
                assert self.machine.present == set(range(self.machine.size))
                assert set(ports) == set(range(self.machine.size))
                self.processes = dict.fromkeys(range(self.machine.size), attempt)
            case Serve():
                assert len(set(self.processes.values())) == 1
                assert not self.serving
                self.serving = True
            case Unserve():
                self.serving = False
            case GiveUp(cause=cause):
                never = {FaultClass.REPLAN, FaultClass.REBOOT, FaultClass.CONFIGURE}
                machine = self.machine
                spent = max(machine.spent, machine.load_failures) >= machine.limits.attempts
                assert cause.fault.fault in never or spent
            case Cut(rank=rank):
                self.leave(rank)

    def leave(self, rank: int) -> None:
        # A supervisor without its leader ends its rank before it joins again.
        self.processes.pop(rank, None)
        self.feed(Left(rank, "gone"))

    def happen(self, name: str, rank: int, back: int) -> None:
        machine = self.machine
        n = machine.attempt - back
        kinds = {"retry": RETRY, "bug": BUG, "echo": Fault(FaultClass.RETRY, "PeerLost", "lost", True),
                 "replan": Fault(FaultClass.REPLAN, "R", "r"), "configure": Fault(FaultClass.CONFIGURE, "C", "c")}  # fmt: skip
        where = {Phase.CHECKING: faults.Stage.PREFLIGHT, Phase.FORMING: faults.Stage.INIT, Phase.LOADING: faults.Stage.LOAD}
        if name == "join":
            if rank not in machine.present:
                self.feed(Joined(rank))
        elif name == "leave":
            self.leave(rank)
        elif name == "ended":
            if machine.phase in (Phase.ENDING, Phase.STOPPING) and rank in machine.present:
                self.processes.pop(rank, None)
                self.feed(RankEnded(rank, machine.attempt))
        elif name in kinds:
            if rank in machine.present:
                self.feed(RankFailed(rank, n, kinds[name], where.get(machine.phase, faults.Stage.SERVE)))
        elif name == "honest":
            self.honest()
        elif rank in machine.present or name in ("timer", "old-timer", "drain", "quiet", "stall"):
            answers: dict[str, Event] = {
                "checked": Checked(rank, n, 21000),
                "formed": RankFormed(rank, n),
                "loaded": RankLoaded(rank, n),
                "ready": RankReady(rank, n, (1,)),
                "odd": RankReady(rank, n, (2,)),
                "timer": Timer(machine.timer),
                "old-timer": Timer(machine.timer - 1),
                "stall": Stalled(n, rank, RETRY),
                "drain": Drain(for_good=back == 0),
                "member-drain": Drain(for_good=False),
                "quiet": Quiet(),
            }
            self.feed(answers[name])

    def honest(self) -> None:
        """Every rank does what the phase expects."""
        machine = self.machine
        for rank in range(machine.size):
            self.obey(rank, machine)

    def obey(self, rank: int, machine: StateMachine) -> None:
        n = machine.attempt
        events: dict[Phase, Event] = {
            Phase.CHECKING: Checked(rank, n, 21000),
            Phase.FORMING: RankFormed(rank, n),
            Phase.LOADING: RankLoaded(rank, n),
            Phase.COMPARING: RankReady(rank, n, (1,)),
        }
        match machine.phase:
            case Phase.WAITING:
                if rank not in self.machine.present:
                    self.feed(Joined(rank))
            case Phase.ENDING | Phase.STOPPING:
                if rank in self.machine.present:
                    self.processes.pop(rank, None)
                    self.feed(RankEnded(rank, n))
            case Phase.BACKOFF | Phase.GAVE_UP:
                if rank == 0:
                    self.feed(Timer(machine.timer))
            case phase if phase in events:
                self.feed(events[phase])
            case _:
                pass


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), size=st.integers(1, 3), budget=st.integers(1, 4))
def test_no_order_of_events_mixes_attempts_or_gives_up_early(data: st.DataObject, size: int, budget: int) -> None:
    world = World(size, budget)
    for name, rank, back in data.draw(happenings(size)):
        steady = world.machine.failures
        world.happen(name, rank, back)
        machine = world.machine
        assert world.serving == (machine.phase in (Phase.READY, Phase.DRAINING, Phase.STOPPING))
        if machine.phase in (Phase.WAITING, Phase.CHECKING, Phase.BACKOFF, Phase.GAVE_UP, Phase.STOPPED):
            assert not world.processes
        if machine.failures < steady:
            world.waits.clear()
        assert world.waits == sorted(world.waits)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), size=st.integers(1, 3))
def test_from_any_state_a_correct_group_becomes_ready(data: st.DataObject, size: int) -> None:
    world = World(size, 3)
    for name, rank, back in data.draw(happenings(size)):
        if name not in ("drain", "member-drain"):
            world.happen(name, rank, back)
    for _ in range(20):
        world.honest()
    lasting = world.machine.phase is Phase.GAVE_UP and not world.machine.timer_on
    assert world.machine.phase is Phase.READY or lasting
