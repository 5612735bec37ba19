"""When a group checks, forms, loads, serves, ends and tries again: the leader's decisions as a pure state machine.

Events go in; a new state and actions come out (see ``events``). No clock, no socket, no process. The machine keeps ranks of
two attempts apart: it starts ranks only when every member has confirmed that no process of an earlier attempt runs.

At most one timer runs. Entering a phase sets or stops it. A timer that fires carries the number it was set with, so that an
outdated one is ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from thunderfleet_crds.exchange.plan import DRAIN_SECONDS
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_lib.backoff import Backoff

from thunderfleet_runner import faults
from thunderfleet_runner.faults import Fault
from thunderfleet_runner.group.decide.events import (
    Action,
    Admit,
    AttemptEvent,
    Cause,
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


class Phase(StrEnum):
    """State of the group; more detailed than ``GroupPhase``, which users see."""

    WAITING = "Waiting"
    """Not all members have joined."""
    CHECKING = "Checking"
    """Preflight runs on every rank; ranks start when the last one has passed."""
    FORMING = "Forming"
    LOADING = "Loading"
    COMPARING = "Comparing"
    """All ranks have loaded and run the test prompt."""
    PROVING = "Proving"
    """The group checks passages and answers that its weights have given before."""
    READY = "Ready"
    ENDING = "Ending"
    """All ranks are being ended and reaped."""
    BACKOFF = "Backoff"
    GAVE_UP = "GaveUp"
    DRAINING = "Draining"
    """Running requests may finish within the grace period."""
    STOPPING = "Stopping"
    """The ranks stop together."""
    STOPPED = "Stopped"


BACKOFF = Backoff(0.5, 30.0)

RUNNING = frozenset({Phase.FORMING, Phase.LOADING, Phase.COMPARING, Phase.PROVING, Phase.READY, Phase.DRAINING, Phase.STOPPING})
"""Phases in which processes of the attempt may exist."""


@dataclass(frozen=True)
class Limits:
    """The number of attempts, and time limits in seconds."""

    attempts: int
    form_seconds: float
    check_seconds: float = 60.0
    compare_seconds: float = 120.0
    prove_seconds: float = 120.0
    """After this time the group serves. Checks that have not ended by then are made when it is idle."""
    still_seconds: float = 5.0
    """If the group makes no step at that time, it does not begin to serve; this is the delay until it is checked again."""
    end_seconds: float = 20.0
    drain_seconds: float = DRAIN_SECONDS
    stop_seconds: float = 6.0
    backoff: Backoff = BACKOFF
    slow_retry_seconds: float = 60.0
    """Between attempts while a user must change something."""
    steady_seconds: float = 60.0
    """After this long in Ready, the back-off is reset."""
    trusted_seconds: float = 7200.0
    """After this time in Ready, earlier wrong answers no longer count. Longer than the time between two checks of the longest
    passage, so that a fault which only some answers show does not restart the group forever."""


@dataclass(frozen=True)
class StateMachine:
    """The leader's state. ``nodes``: by rank; ``attempt`` numbers the attempts, ``spent`` counts those charged to the budget.

    If a member leaves during preflight, the group returns to Waiting and the attempt is not counted: the next one has the same
    number. A late result of the first preflight does no harm, because it was true a moment ago and nothing had been started.
    """

    nodes: tuple[str, ...]
    limits: Limits
    phase: Phase = Phase.WAITING
    attempt: int = 0
    used: bool = True
    """Whether ranks of ``attempt`` were started or a check of it failed."""
    spent: int = 0
    failures: int = 0
    """Consecutive failures, which set the back-off."""
    load_failures: int = 0
    load_texts: frozenset[tuple[int | None, str]] = frozenset()
    recoveries: int = 0
    was_ready: bool = False
    proves: bool = False
    """Whether there is anything to check between the test prompt and Ready."""
    wrong: bool = False
    """Whether an answer was wrong since the group last served for a long time. The next wrong answer then ends the attempts."""
    steady: bool = False
    """Whether the group has been Ready for a while."""
    diverged: bool = False
    """Whether ranks have diverged since the group last served for a while."""
    present: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    """Ranks that have completed the phase."""
    early: frozenset[int] = frozenset()
    """Ranks that had loaded before the last rank reported that it had formed."""
    ports: Mapping[int, int] = field(default_factory=dict)
    tokens: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    cause: Cause | None = None
    """Cause of the most recent failure."""
    cut: str = ""
    """Message for requests that the failure has cut, without its cause; empty when there were none."""
    draining: bool = False
    for_good: bool = False
    timer: int = 0
    timer_on: bool = False

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.nodes)

    def names(self, ranks: Iterable[int]) -> str:
        """Ranks and their Macs in a message."""
        return ", ".join(f"rank {rank} ({self.nodes[rank]})" for rank in ranks)

    @property
    def complete(self) -> bool:
        return len(self.present) == self.size

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Ranks that the phase still waits for."""
        return tuple(
            rank for rank in range(self.size) if rank not in (self.present if self.phase is Phase.WAITING else self.done)
        )

    @property
    def awaits_cause(self) -> bool:
        """Whether a failure has ended requests of which only an echo is known, and the first cause may still be reported.

        The cause may be in any other rank whose supervisor is connected and has not confirmed yet that its rank has ended: the
        supervisor reports the rank's own failure before that.
        """
        if not self.cut or self.cause is None or not self.cause.fault.echo:
            return False
        return bool(self.present - self.done - {self.cause.rank})

    def step(self, event: Event) -> tuple["StateMachine", list[Action]]:
        """The state after ``event``, and the actions to carry out, in order."""
        match event:
            case Joined(rank):
                return replace(self, present=self.present | {rank})._start_attempt()
            case Left(rank, why):
                return self._left(rank, why)
            case Timer(number, late, still) if self.timer_on and number == self.timer:
                return replace(self, timer_on=False)._expired(late, still=still)
            case Drain(for_good):
                return self._drain(for_good)
            case Quiet() if self.phase is Phase.DRAINING:
                return self._stop()
            case Timer() | Quiet():
                return self, []
            case _:
                return self._of_attempt(event) if event.attempt == self.attempt else (self, [])

    def _of_attempt(self, event: AttemptEvent) -> tuple["StateMachine", list[Action]]:
        """An event of the current attempt; one that the phase does not expect is ignored."""
        match event:
            case Checked(rank, _, port) if self.phase is Phase.CHECKING:
                return self._checked(rank, port)
            case RankFormed(rank) if self.phase is Phase.FORMING:
                return self._formed(rank)
            case RankLoaded(rank) if self.phase in (Phase.LOADING, Phase.FORMING):
                return self._loaded(rank)
            case RankReady(rank, _, tokens) if self.phase is Phase.COMPARING:
                return self._compared(rank, tokens)
            case Proved() if self.phase is Phase.PROVING:
                return self._serve()
            case Wrong(attempt, fault) if self.phase in RUNNING:
                return self._failed(Cause(None, attempt, faults.Stage.CHECK, fault))
            case RankFailed(rank, attempt, fault, stage):
                return self._failed(Cause(rank, attempt, stage, fault))
            case Stalled(attempt, rank, fault) if self.phase in RUNNING:
                return self._failed(Cause(rank, attempt, self._stage, fault))
            case RankEnded(rank):
                return self._ended(rank)
            case _:
                return self, []

    # --- an attempt ---

    def _start_attempt(self) -> tuple["StateMachine", list[Action]]:
        """From Waiting to the next attempt, when all members have joined."""
        if self.phase is not Phase.WAITING or not self.complete or self.draining:
            return self, []
        number = self.attempt + 1 if self.used else self.attempt
        state = replace(self, attempt=number, used=False, ports={}, tokens={}, early=frozenset())
        state, timer = state._enter(Phase.CHECKING, self.limits.check_seconds)
        return state, [Preflight(state.attempt), *timer]

    def _checked(self, rank: int, port: int) -> tuple["StateMachine", list[Action]]:
        state = replace(self, done=self.done | {rank}, ports={**self.ports, rank: port})
        if len(state.done) < state.size:
            return state, []
        state = replace(state, used=True, spent=state.spent + 1)
        state, timer = state._enter(Phase.FORMING, state.limits.form_seconds)
        return state, [StartRanks(state.attempt, state.ports), *timer]

    def _formed(self, rank: int) -> tuple["StateMachine", list[Action]]:
        state = replace(self, done=self.done | {rank})
        return (state, []) if len(state.done) < state.size else state._enter(Phase.LOADING, None)

    def _loaded(self, rank: int) -> tuple["StateMachine", list[Action]]:
        # A rank that loads quickly can finish before the last rank reports that the group has formed.
        if self.phase is Phase.FORMING:
            return replace(self, early=self.early | {rank}), []
        state = replace(self, done=self.done | self.early | {rank})
        if len(state.done) < state.size:
            return state, []
        state, timer = state._enter(Phase.COMPARING, state.limits.compare_seconds)
        return state, [Compare(state.attempt), *timer]

    def _compared(self, rank: int, tokens: tuple[int, ...]) -> tuple["StateMachine", list[Action]]:
        state = replace(self, done=self.done | {rank}, tokens={**self.tokens, rank: tokens})
        if len(state.done) < state.size:
            return state, []
        first = state.tokens[0]
        for other, theirs in sorted(state.tokens.items()):
            if theirs != first:
                at = next(
                    (i for i, (a, b) in enumerate(zip(first, theirs, strict=False)) if a != b), min(len(first), len(theirs))
                )
                detail = f"for the test prompt, rank 0 and rank {other} differ from token {at} on"
                return state._failed(Cause(other, state.attempt, faults.Stage.CHECK, faults.tokens_differ(detail)))
        if not state.proves:
            return state._serve()
        state, timer = state._enter(Phase.PROVING, state.limits.prove_seconds)
        return state, [Prove(state.attempt), *timer]

    def _serve(self) -> tuple["StateMachine", list[Action]]:
        state = replace(
            self,
            spent=0,
            load_failures=0,
            load_texts=frozenset(),
            recoveries=self.recoveries + (1 if self.was_ready else 0),
            was_ready=True,
        )
        state, timer = state._enter(Phase.READY, state.limits.steady_seconds)
        return state, [Serve(state.attempt), *timer]

    # --- failure ---

    @property
    def _stage(self) -> faults.Stage:
        return {
            Phase.CHECKING: faults.Stage.PREFLIGHT,
            Phase.FORMING: faults.Stage.INIT,
            Phase.LOADING: faults.Stage.LOAD,
            Phase.COMPARING: faults.Stage.CHECK,
            Phase.PROVING: faults.Stage.CHECK,
            Phase.STOPPING: faults.Stage.STOP,
        }.get(self.phase, faults.Stage.SERVE)

    def _failed(self, cause: Cause) -> tuple["StateMachine", list[Action]]:
        if self._hears:
            return self._heard(cause)
        if self.phase is Phase.CHECKING:
            state = replace(self, cause=cause, used=True, spent=self.spent + 1)
            return state._end()
        if self.phase is Phase.STOPPING:
            return self._end()
        if self.phase in RUNNING:
            return replace(self, cause=cause)._end()
        return self, []

    @property
    def _hears(self) -> bool:
        """Whether the ranks are being ended after a failure of this attempt, and not just because the group stops."""
        return self.phase is Phase.ENDING and self.cause is not None and (bool(self.cut) or not self.draining)

    def _heard(self, cause: Cause) -> tuple["StateMachine", list[Action]]:
        """A further report while the ranks are already being ended."""
        assert self.cause is not None
        state = replace(self, cause=self.cause.heard(cause))
        known = self.cause.fault.echo and not cause.fault.echo
        return state, state._tell() if known else []

    def _tell(self) -> list[Action]:
        """Ends the requests that the failure has cut, once its cause is final."""
        return [Unserve(f"{self.cut}: {self.cause.line}")] if self.cut and self.cause is not None else []

    def _left(self, rank: int, why: str) -> tuple["StateMachine", list[Action]]:
        if rank not in self.present:
            return self, []
        state = replace(self, present=self.present - {rank})
        if state.phase is Phase.CHECKING:
            # Nothing was started and nothing failed: wait for the member; the attempt is not counted.
            state, timer = state._enter(Phase.WAITING, None)
            return state, timer
        if state.phase is Phase.ENDING:
            heard: list[Action] = []
            if state._hears and state.cause is not None and state.cause.fault.echo:
                # The known cause was only an echo of a lost peer. That peer was this member, which was lost together with its
                # supervisor.
                lost = Cause(rank, state.attempt, state.cause.stage, faults.supervisor_lost(why))
                state, heard = state._heard(lost)
            state, actions = state._ended(rank)
            return state, [*heard, *actions]
        if state.phase is Phase.STOPPING:
            return state._ended(rank)
        if state.phase is Phase.STOPPED:
            return state._rejoin()
        if state.phase in RUNNING:
            return state._failed(Cause(rank, state.attempt, state._stage, faults.supervisor_lost(why)))
        return state, []

    def _end(self) -> tuple["StateMachine", list[Action]]:
        """Ends all ranks. Requests end first: no rank may answer them when others have ended."""
        first = self.cause.line if self.cause is not None else "the group was stopped"
        cut = {
            Phase.READY: "the group failed and is restarting",
            Phase.DRAINING: "the group failed while its deployment was being stopped or moved",
        }.get(self.phase, "")
        unsure = bool(cut) and self.cause is not None and self.cause.fault.echo
        unserve = {
            Phase.PROVING: f"the group failed and is restarting: {first}",
            Phase.READY: f"{cut}: {first}",
            Phase.DRAINING: f"{cut}: {first}",
            Phase.STOPPING: faults.GRACE_IS_OVER,
        }.get(self.phase)
        state, timer = self._enter(Phase.ENDING, self.limits.end_seconds)
        state = replace(state, done=frozenset(range(self.size)) - state.present, cut=cut)
        actions: list[Action] = [Unserve(unserve, settled=not unsure)] if unserve is not None else []
        actions += [EndRanks(state.attempt), *timer]
        if len(state.done) < state.size:
            return state, actions
        state, more = state._all_ended()
        return state, [*actions, *more]

    def _ended(self, rank: int) -> tuple["StateMachine", list[Action]]:
        if self.phase not in (Phase.ENDING, Phase.STOPPING):
            return self, []
        state = replace(self, done=self.done | {rank})
        return (state, []) if len(state.done) < state.size else state._all_ended()

    def _all_ended(self) -> tuple["StateMachine", list[Action]]:
        if self.draining:
            state, timer = replace(self, cut="")._enter(Phase.STOPPED, None)
            return state, [*self._tell(), Unserve("the group has stopped"), *timer, ReleaseAll()]
        state, actions = self._after_failure()
        return replace(state, cut=""), [*self._tell(), *actions]

    def _after_failure(self) -> tuple["StateMachine", list[Action]]:
        """Decides by budget and fault class: another attempt, a slow retry, or none."""
        assert self.cause is not None
        state = replace(self, failures=self.failures + 1)
        cause = self.cause
        if cause.fault.reason == Reason.OUTPUT_WRONG:
            return state._after_wrong(cause)
        if cause.fault.reason == Reason.DIVERGED:
            cause = replace(cause, fault=faults.diverged_again(cause.fault)) if self.diverged else cause
            state = replace(state, cause=cause, diverged=True)
        if cause.stage in (faults.Stage.LOAD, faults.Stage.CHECK):
            # A load failure does not mean that the group cannot form: it has a separate budget.
            key = (cause.rank, cause.fault.message)
            repeated = key in state.load_texts and not cause.fault.echo
            state = replace(state, spent=0, load_failures=state.load_failures + 1, load_texts=state.load_texts | {key})
            if repeated and cause.fault.fault in (FaultClass.BUG, FaultClass.RETRY) and cause.fault.reason not in _PASSING:
                cause = replace(cause, fault=replace(cause.fault, fault=FaultClass.CONFIGURE))
                state = replace(state, cause=cause)
        elif cause.stage is faults.Stage.SERVE:
            state = replace(state, spent=0)
        kind = cause.fault.fault
        spent = max(state.spent, state.load_failures) >= state.limits.attempts
        if kind is FaultClass.CONFIGURE:
            # A person must act; a slow retry notices the change by itself.
            state, timer = state._enter(Phase.GAVE_UP, state.limits.slow_retry_seconds)
            return replace(state, spent=0, load_failures=0), [GiveUp(cause), *timer]
        if kind in (FaultClass.REPLAN, FaultClass.REBOOT) or spent:
            state, timer = state._enter(Phase.GAVE_UP, None)
            return state, [GiveUp(cause), *timer]
        return state._enter(Phase.BACKOFF, state.backoff)

    def _after_wrong(self, cause: Cause) -> tuple["StateMachine", list[Action]]:
        """Starts one more attempt, which checks the same before the group serves. If that fails, a user must act."""
        if not self.wrong:
            return replace(self, wrong=True)._enter(Phase.BACKOFF, self.backoff)
        state, timer = self._enter(Phase.GAVE_UP, None)
        return state, [GiveUp(cause), *timer]

    @property
    def backoff(self) -> float:
        """Seconds before the next attempt after ``failures`` consecutive failures."""
        return self.limits.backoff.seconds(self.failures)

    # --- stopping ---

    def _drain(self, for_good: bool) -> tuple["StateMachine", list[Action]]:
        state = replace(self, draining=True, for_good=self.for_good or for_good)
        if state.phase in (Phase.DRAINING, Phase.STOPPING, Phase.ENDING):
            return state, []
        if state.phase is Phase.STOPPED:
            return state, [ReleaseAll()]
        if state.phase is Phase.READY:
            state, timer = state._enter(Phase.DRAINING, state.limits.drain_seconds)
            return state, [Admit(False), *timer]
        if state.phase in RUNNING:
            state, actions = state._end()
            return state, [Admit(False), *actions]
        state, timer = state._enter(Phase.STOPPED, None)
        return state, [Admit(False), *timer, ReleaseAll()]

    def _stop(self) -> tuple["StateMachine", list[Action]]:
        state, timer = self._enter(Phase.STOPPING, self.limits.stop_seconds)
        state = replace(state, done=frozenset(range(self.size)) - state.present)
        return state, [StopRanks(state.attempt), *timer]

    # --- time ---

    def _expired(self, late: tuple[int, ...], *, still: bool) -> tuple["StateMachine", list[Action]]:
        waited_for = late or tuple(rank for rank in range(self.size) if rank not in self.done)
        missing = self.names(waited_for)
        slow = next(iter(waited_for), None)
        match self.phase:
            case Phase.CHECKING:
                text = (
                    f"the preflight checks did not complete within {self.limits.check_seconds:g} s on {missing}; if this "
                    "recurs, check that the model's disk there responds"
                )
                fault = Fault(FaultClass.RETRY, Reason.PREFLIGHT_DEADLINE, text)
                return self._failed(Cause(slow, self.attempt, faults.Stage.PREFLIGHT, fault))
            case Phase.FORMING:
                fault = faults.init_deadline(int(self.limits.form_seconds), missing)
                return self._failed(Cause(slow, self.attempt, faults.Stage.INIT, fault))
            case Phase.COMPARING:
                text = (
                    f"the test prompt did not complete within {self.limits.compare_seconds:g} s on {missing}; if this recurs, "
                    "stop other programs that use the GPU there"
                )
                fault = Fault(FaultClass.RETRY, Reason.CHECK_DEADLINE, text)
                return self._failed(Cause(slow, self.attempt, faults.Stage.CHECK, fault))
            case Phase.PROVING:
                return self._enter(Phase.PROVING, self.limits.still_seconds) if still else self._serve()
            case Phase.READY:
                return self._steady()
            case Phase.BACKOFF | Phase.GAVE_UP:
                state, timer = self._enter(Phase.WAITING, None)
                state, actions = state._start_attempt()
                return state, [*timer, *actions]
            case Phase.DRAINING:
                return self._stop()
            case Phase.STOPPING:
                return self._end()
            case Phase.ENDING:
                # A disconnected supervisor ends its rank by itself before it joins again. Requests do not wait any longer,
                # because rank 0's own supervisor, which is never cut off, may be the one that is late.
                state, timer = self._enter(Phase.ENDING, self.limits.end_seconds)
                state = replace(state, done=self.done, cut="")
                tell = self._tell() if self.cause is not None and self.cause.fault.echo else []
                return state, [*tell, *(Cut(rank) for rank in range(self.size) if rank not in self.done), *timer]
            case _:
                return self, []

    def _steady(self) -> tuple["StateMachine", list[Action]]:
        """The group has been Ready for a while, or for a long time."""
        if self.steady or not self.wrong:
            return replace(self, failures=0, diverged=False, wrong=False), []
        state, timer = self._enter(Phase.READY, max(0.0, self.limits.trusted_seconds - self.limits.steady_seconds))
        return replace(state, failures=0, diverged=False, steady=True), timer

    def _enter(self, phase: Phase, seconds: float | None) -> tuple["StateMachine", list[Action]]:
        state = replace(self, phase=phase, done=frozenset(), timer=self.timer + 1, timer_on=seconds is not None, steady=False)
        return state, [] if seconds is None else [SetTimer(state.timer, seconds)]

    def _rejoin(self) -> tuple["StateMachine", list[Action]]:
        """After a drain for a leaving member: wait for its successor."""
        if self.phase is not Phase.STOPPED or self.for_good:
            return self, []
        state, timer = replace(self, draining=False)._enter(Phase.WAITING, None)
        state, actions = state._start_attempt()
        return state, [Admit(True), *timer, *actions]


_PASSING = frozenset({"RankKilled", "SupervisorLost", "RankFrozen", "Stalled", "PeerLost", "OutOfMemory", "CheckDeadline"})
"""Failures that do not indicate a problem with the model, however often they repeat."""
