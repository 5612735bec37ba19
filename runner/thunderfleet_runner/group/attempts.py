"""When a group checks, forms, loads, serves, ends and tries again: the leader's decisions, as a pure machine.

Events go in, a new state and actions come out; no clock, no socket, no process. What keeps ranks of two attempts apart is
here: ranks are started only from the stage in which every member has said that no process of an earlier attempt is left.

One timer runs at a time. Every stage that is entered sets it anew (or stops it), so a timer that fires carries the number
that it was set with and an old one is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from thunderfleet_crds.plan import DRAIN_SECONDS
from thunderfleet_crds.vocabulary import FaultClass

from thunderfleet_runner import faults
from thunderfleet_runner.faults import Fault


class Stage(StrEnum):
    WAITING = "Waiting"
    """Not all members are there."""
    CHECKING = "Checking"
    """Preflight runs; when the last member has passed it, that is the barrier."""
    FORMING = "Forming"
    LOADING = "Loading"
    COMPARING = "Comparing"
    """All have loaded; the fixed prompt runs."""
    READY = "Ready"
    ENDING = "Ending"
    """Ranks are being ended and reaped, everywhere."""
    BACKOFF = "Backoff"
    GAVE_UP = "GaveUp"
    DRAINING = "Draining"
    """Running requests get their grace."""
    STOPPING = "Stopping"
    """The ranks leave together."""
    STOPPED = "Stopped"


RUNNING = frozenset({Stage.FORMING, Stage.LOADING, Stage.COMPARING, Stage.READY, Stage.DRAINING, Stage.STOPPING})
"""Stages in which processes of the attempt may be there."""


@dataclass(frozen=True)
class Limits:
    """Budgets and waits, in seconds."""

    attempts: int
    form_seconds: float
    check_seconds: float = 60.0
    compare_seconds: float = 120.0
    end_seconds: float = 20.0
    drain_seconds: float = DRAIN_SECONDS
    stop_seconds: float = 6.0
    backoff_seconds: float = 0.5
    backoff_most_seconds: float = 30.0
    slow_retry_seconds: float = 60.0
    """Between tries while a person must change something."""
    steady_seconds: float = 60.0
    """After this long Ready, back-off begins from the bottom again."""


# --- events ---


@dataclass(frozen=True)
class Joined:
    """A member is there, and no rank process is left on its Mac."""

    rank: int


@dataclass(frozen=True)
class Left:
    rank: int
    why: str


@dataclass(frozen=True)
class Checked:
    rank: int
    attempt: int
    port: int


@dataclass(frozen=True)
class RankFormed:
    rank: int
    attempt: int


@dataclass(frozen=True)
class RankLoaded:
    rank: int
    attempt: int


@dataclass(frozen=True)
class RankReady:
    rank: int
    attempt: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Failed:
    rank: int
    attempt: int
    fault: Fault
    stage: faults.Stage


@dataclass(frozen=True)
class Stalled:
    """No rank of the attempt moves (seen from outside)."""

    attempt: int
    rank: int
    fault: Fault


@dataclass(frozen=True)
class Ended:
    rank: int
    attempt: int


@dataclass(frozen=True)
class Timer:
    """``late``: the ranks that others are known to wait for, when more is known than who is not done."""

    number: int
    late: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drain:
    """``for_good``: the leader itself ends. Otherwise a member leaves, and the group forms anew without being asked."""

    for_good: bool


@dataclass(frozen=True)
class Quiet:
    """No request runs any more."""


Event = Joined | Left | Checked | RankFormed | RankLoaded | RankReady | Failed | Stalled | Ended | Timer | Drain | Quiet

# --- actions ---


@dataclass(frozen=True)
class Preflight:
    attempt: int


@dataclass(frozen=True)
class StartRanks:
    attempt: int
    ports: Mapping[int, int]


@dataclass(frozen=True)
class Compare:
    attempt: int


@dataclass(frozen=True)
class Serve:
    attempt: int


@dataclass(frozen=True)
class Unserve:
    """Whatever runs ends as Unavailable. It may come again, with more that is known."""

    why: str
    settled: bool = True
    """False: ``why`` is what one rank saw of another that went first, and whose own word may come in a moment."""


@dataclass(frozen=True)
class Admit:
    """Whether new requests are taken."""

    admit: bool


@dataclass(frozen=True)
class StopRanks:
    attempt: int


@dataclass(frozen=True)
class EndRanks:
    attempt: int


@dataclass(frozen=True)
class Cut:
    """This member does not answer: close its connection (it ends its rank by itself then)."""

    rank: int


@dataclass(frozen=True)
class SetTimer:
    number: int
    seconds: float


@dataclass(frozen=True)
class ReleaseAll:
    """Supervisors that were told to end may go."""


@dataclass(frozen=True)
class GiveUp:
    cause: "Cause"


Action = (
    Preflight | StartRanks | Compare | Serve | Unserve | Admit | StopRanks | EndRanks | Cut | SetTimer | ReleaseAll | GiveUp
)


@dataclass(frozen=True)
class Cause:
    """The first cause of a failure, and what was said after it."""

    rank: int | None
    attempt: int
    stage: faults.Stage
    fault: Fault
    echoes: tuple[str, ...] = ()

    def heard(self, other: "Cause") -> "Cause":
        """With another failure of the same attempt: an own error beats an echo that came before it."""
        if self.fault.echo and not other.fault.echo:
            return replace(other, echoes=(*self.echoes, self.line))
        if other.line == self.line or other.line in self.echoes:
            return self
        return replace(self, echoes=(*self.echoes, other.line))

    @property
    def line(self) -> str:
        return f"rank {self.rank}: {self.fault.message}" if self.rank is not None else self.fault.message


@dataclass(frozen=True)
class Machine:
    """The leader's state. ``size`` members; ``attempt`` counts every try, ``spent`` those that the budget pays for.

    A preflight that ends because a member has left is waiting, and costs no attempt: the next one has the same number. A word
    of the first one that comes in late does no harm: it is true of a moment ago, and nothing had been started.
    """

    size: int
    limits: Limits
    stage: Stage = Stage.WAITING
    attempt: int = 0
    used: bool = True
    """Whether ranks of ``attempt`` were started, or a check of it failed."""
    spent: int = 0
    failures: int = 0
    """In a row; the back-off's exponent."""
    load_failures: int = 0
    load_texts: frozenset[tuple[int | None, str]] = frozenset()
    recoveries: int = 0
    was_ready: bool = False
    present: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    """Members that have passed the stage."""
    early: frozenset[int] = frozenset()
    """Members that had loaded before the last one had formed."""
    ports: Mapping[int, int] = field(default_factory=dict)
    tokens: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    cause: Cause | None = None
    """Of the last failure."""
    cut: str = ""
    """How requests that the failure has cut are told of it, but for its cause; empty when there were none."""
    draining: bool = False
    for_good: bool = False
    timer: int = 0
    timer_on: bool = False

    @property
    def complete(self) -> bool:
        return len(self.present) == self.size

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Ranks that the stage still waits for."""
        return tuple(
            rank for rank in range(self.size) if rank not in (self.present if self.stage is Stage.WAITING else self.done)
        )

    def step(self, event: Event) -> tuple["Machine", list[Action]]:
        """The state after ``event``, and what is to be done, in order."""
        match event:
            case Joined(rank):
                return replace(self, present=self.present | {rank})._go_on()
            case Left(rank, why):
                return self._left(rank, why)
            case Checked(rank, attempt, port) if self._now(Stage.CHECKING, attempt):
                return self._checked(rank, port)
            case RankFormed(rank, attempt) if self._now(Stage.FORMING, attempt):
                return self._passed(rank, Stage.LOADING)
            case RankLoaded(rank, attempt) if attempt == self.attempt and self.stage in (Stage.LOADING, Stage.FORMING):
                return self._loaded(rank)
            case RankReady(rank, attempt, tokens) if self._now(Stage.COMPARING, attempt):
                return self._compared(rank, tokens)
            case Failed(rank, attempt, fault, stage) if attempt == self.attempt:
                return self._failed(Cause(rank, attempt, stage, fault))
            case Stalled(attempt, rank, fault) if attempt == self.attempt and self.stage in RUNNING:
                return self._failed(Cause(rank, attempt, self._where, fault))
            case Ended(rank, attempt) if attempt == self.attempt:
                return self._ended(rank)
            case Timer(number, late) if self.timer_on and number == self.timer:
                return replace(self, timer_on=False)._timer(late)
            case Drain(for_good):
                return self._drain(for_good)
            case Quiet() if self.stage is Stage.DRAINING:
                return self._stop()
            case _:
                return self, []

    # --- stages forward ---

    def _go_on(self) -> tuple["Machine", list[Action]]:
        """From Waiting to the next attempt, when all are there."""
        if self.stage is not Stage.WAITING or not self.complete or self.draining:
            return self, []
        number = self.attempt + 1 if self.used else self.attempt
        state = replace(self, attempt=number, used=False, ports={}, tokens={}, early=frozenset())
        state, timer = state._enter(Stage.CHECKING, self.limits.check_seconds)
        return state, [Preflight(state.attempt), *timer]

    def _checked(self, rank: int, port: int) -> tuple["Machine", list[Action]]:
        state = replace(self, done=self.done | {rank}, ports={**self.ports, rank: port})
        if len(state.done) < state.size:
            return state, []
        state = replace(state, used=True, spent=state.spent + 1)
        state, timer = state._enter(Stage.FORMING, state.limits.form_seconds)
        return state, [StartRanks(state.attempt, state.ports), *timer]

    def _passed(self, rank: int, following: Stage) -> tuple["Machine", list[Action]]:
        state = replace(self, done=self.done | {rank})
        if len(state.done) < state.size:
            return state, []
        return state._enter(following, None)

    def _loaded(self, rank: int) -> tuple["Machine", list[Action]]:
        # A rank that loads quickly can be done before the last rank's word that the group has formed comes in.
        if self.stage is Stage.FORMING:
            return replace(self, early=self.early | {rank}), []
        state = replace(self, done=self.done | self.early | {rank})
        if len(state.done) < state.size:
            return state, []
        state, timer = state._enter(Stage.COMPARING, state.limits.compare_seconds)
        return state, [Compare(state.attempt), *timer]

    def _compared(self, rank: int, tokens: tuple[int, ...]) -> tuple["Machine", list[Action]]:
        state = replace(self, done=self.done | {rank}, tokens={**self.tokens, rank: tokens})
        if len(state.done) < state.size:
            return state, []
        first = state.tokens[0]
        for other, theirs in sorted(state.tokens.items()):
            if theirs != first:
                at = next(
                    (i for i, (a, b) in enumerate(zip(first, theirs, strict=False)) if a != b), min(len(first), len(theirs))
                )
                detail = f"of the fixed prompt's tokens, rank 0 and rank {other} differ from token {at} on"
                return state._failed(Cause(other, state.attempt, faults.Stage.CHECK, faults.tokens_differ(detail)))
        state = replace(
            state,
            spent=0,
            load_failures=0,
            load_texts=frozenset(),
            recoveries=state.recoveries + (1 if state.was_ready else 0),
            was_ready=True,
        )
        state, timer = state._enter(Stage.READY, state.limits.steady_seconds)
        return state, [Serve(state.attempt), *timer]

    # --- failure ---

    @property
    def _where(self) -> faults.Stage:
        return {
            Stage.CHECKING: faults.Stage.PREFLIGHT,
            Stage.FORMING: faults.Stage.INIT,
            Stage.LOADING: faults.Stage.LOAD,
            Stage.COMPARING: faults.Stage.CHECK,
            Stage.STOPPING: faults.Stage.STOP,
        }.get(self.stage, faults.Stage.SERVE)

    def _failed(self, cause: Cause) -> tuple["Machine", list[Action]]:
        if self.stage is Stage.ENDING and self.cause is not None and not self.draining:
            return self._heard(cause)
        if self.stage is Stage.CHECKING:
            state = replace(self, cause=cause, used=True, spent=self.spent + 1)
            return state._end()
        if self.stage is Stage.STOPPING:
            return self._end()
        if self.stage in RUNNING:
            return replace(self, cause=cause)._end()
        return self, []

    def _heard(self, cause: Cause) -> tuple["Machine", list[Action]]:
        """Another word of the failure that ends the ranks already."""
        assert self.cause is not None
        state = replace(self, cause=self.cause.heard(cause))
        known = self.cause.fault.echo and not cause.fault.echo
        return state, state._tell() if known else []

    def _tell(self) -> list[Action]:
        """What the requests are told that the failure has cut, when its cause is as well known as it will be."""
        return [Unserve(f"{self.cut}: {self.cause.line}")] if self.cut and self.cause is not None else []

    def _left(self, rank: int, why: str) -> tuple["Machine", list[Action]]:
        if rank not in self.present:
            return self, []
        state = replace(self, present=self.present - {rank})
        if state.stage is Stage.CHECKING:
            # Nothing was started and nobody failed: wait for it again, the attempt is not counted.
            state, timer = state._enter(Stage.WAITING, None)
            return state, timer
        if state.stage is Stage.ENDING:
            heard: list[Action] = []
            if state.cause is not None and state.cause.fault.echo and not state.draining:
                # Somebody saw a peer go: this one, its supervisor and all.
                lost = Cause(rank, state.attempt, state.cause.stage, faults.supervisor_lost(why))
                state, heard = state._heard(lost)
            state, actions = state._ended(rank)
            return state, [*heard, *actions]
        if state.stage is Stage.STOPPING:
            return state._ended(rank)
        if state.stage is Stage.STOPPED:
            return state._rejoin()
        if state.stage in RUNNING:
            return state._failed(Cause(rank, state.attempt, state._where, faults.supervisor_lost(why)))
        return state, []

    def _end(self) -> tuple["Machine", list[Action]]:
        """Ends all ranks everywhere. Requests end first: they must not be answered by half a group."""
        first = self.cause.line if self.cause is not None else "the group was stopped"
        unsure = self.stage is Stage.READY and self.cause is not None and self.cause.fault.echo
        cut = "the group failed and forms anew" if self.stage is Stage.READY else ""
        unserve = {
            Stage.READY: f"{cut}: {first}",
            Stage.DRAINING: f"the group failed while its deployment was being stopped or moved: {first}",
            Stage.STOPPING: faults.GRACE_IS_OVER,
        }.get(self.stage)
        state, timer = self._enter(Stage.ENDING, self.limits.end_seconds)
        state = replace(state, done=frozenset(range(self.size)) - state.present, cut=cut)
        actions: list[Action] = [Unserve(unserve, settled=not unsure)] if unserve is not None else []
        actions += [EndRanks(state.attempt), *timer]
        if len(state.done) < state.size:
            return state, actions
        state, more = state._all_ended()
        return state, [*actions, *more]

    def _ended(self, rank: int) -> tuple["Machine", list[Action]]:
        if self.stage not in (Stage.ENDING, Stage.STOPPING):
            return self, []
        state = replace(self, done=self.done | {rank})
        return (state, []) if len(state.done) < state.size else state._all_ended()

    def _all_ended(self) -> tuple["Machine", list[Action]]:
        if self.draining:
            state, timer = replace(self, cut="")._enter(Stage.STOPPED, None)
            return state, [*self._tell(), Unserve("the group has stopped"), *timer, ReleaseAll()]
        state, actions = self._after_failure()
        return replace(state, cut=""), [*self._tell(), *actions]

    def _after_failure(self) -> tuple["Machine", list[Action]]:
        """Budget and class decide between another attempt, a slow one, and none."""
        assert self.cause is not None
        state = replace(self, failures=self.failures + 1)
        cause = self.cause
        if cause.stage in (faults.Stage.LOAD, faults.Stage.CHECK):
            # A load failure does not say that the group cannot form: it has a budget of its own.
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
            # A person must act; it is tried again slowly, so that nobody has to tell the group that it was done.
            state, timer = state._enter(Stage.GAVE_UP, state.limits.slow_retry_seconds)
            return replace(state, spent=0, load_failures=0), [GiveUp(cause), *timer]
        if kind in (FaultClass.REPLAN, FaultClass.REBOOT) or spent:
            state, timer = state._enter(Stage.GAVE_UP, None)
            return state, [GiveUp(cause), *timer]
        return state._enter(Stage.BACKOFF, state.backoff)

    @property
    def backoff(self) -> float:
        """Seconds before the next attempt after ``failures`` in a row; all ranks share it, since only the leader waits."""
        return min(self.limits.backoff_most_seconds, self.limits.backoff_seconds * 2.0 ** max(0, min(self.failures - 1, 30)))

    # --- stopping ---

    def _drain(self, for_good: bool) -> tuple["Machine", list[Action]]:
        state = replace(self, draining=True, for_good=self.for_good or for_good)
        if state.stage in (Stage.DRAINING, Stage.STOPPING, Stage.ENDING):
            return state, []
        if state.stage is Stage.STOPPED:
            return state, [ReleaseAll()]
        if state.stage is Stage.READY:
            state, timer = state._enter(Stage.DRAINING, state.limits.drain_seconds)
            return state, [Admit(False), *timer]
        if state.stage in RUNNING:
            state, actions = state._end()
            return state, [Admit(False), *actions]
        state, timer = state._enter(Stage.STOPPED, None)
        return state, [Admit(False), *timer, ReleaseAll()]

    def _stop(self) -> tuple["Machine", list[Action]]:
        state, timer = self._enter(Stage.STOPPING, self.limits.stop_seconds)
        state = replace(state, done=frozenset(range(self.size)) - state.present)
        return state, [StopRanks(state.attempt), *timer]

    # --- time ---

    def _timer(self, late: tuple[int, ...]) -> tuple["Machine", list[Action]]:
        waited_for = late or tuple(rank for rank in range(self.size) if rank not in self.done)
        missing = ", ".join(f"rank {rank}" for rank in waited_for)
        slow = next(iter(waited_for), None)
        match self.stage:
            case Stage.CHECKING:
                text = f"preflight did not end within {self.limits.check_seconds:g} s on {missing}"
                fault = Fault(FaultClass.RETRY, "PreflightDeadline", text)
                return self._failed(Cause(slow, self.attempt, faults.Stage.PREFLIGHT, fault))
            case Stage.FORMING:
                fault = faults.init_deadline(int(self.limits.form_seconds), missing)
                return self._failed(Cause(slow, self.attempt, faults.Stage.INIT, fault))
            case Stage.COMPARING:
                text = f"the fixed prompt did not end within {self.limits.compare_seconds:g} s on {missing}"
                fault = Fault(FaultClass.RETRY, "CheckDeadline", text)
                return self._failed(Cause(slow, self.attempt, faults.Stage.CHECK, fault))
            case Stage.READY:
                return replace(self, failures=0), []
            case Stage.BACKOFF | Stage.GAVE_UP:
                state, timer = self._enter(Stage.WAITING, None)
                state, actions = state._go_on()
                return state, [*timer, *actions]
            case Stage.DRAINING:
                return self._stop()
            case Stage.STOPPING:
                return self._end()
            case Stage.ENDING:
                # Who does not answer is cut off; a supervisor that is cut off ends its rank by itself, and joins without one.
                state, timer = self._enter(Stage.ENDING, self.limits.end_seconds)
                state = replace(state, done=self.done)
                return state, [*(Cut(rank) for rank in range(self.size) if rank not in self.done), *timer]
            case _:
                return self, []

    def _now(self, stage: Stage, attempt: int) -> bool:
        return self.stage is stage and attempt == self.attempt

    def _enter(self, stage: Stage, seconds: float | None) -> tuple["Machine", list[Action]]:
        state = replace(self, stage=stage, done=frozenset(), timer=self.timer + 1, timer_on=seconds is not None)
        return state, [] if seconds is None else [SetTimer(state.timer, seconds)]

    def _rejoin(self) -> tuple["Machine", list[Action]]:
        """After a drain that a leaving member asked for: wait for its successor."""
        if self.stage is not Stage.STOPPED or self.for_good:
            return self, []
        state, timer = replace(self, draining=False)._enter(Stage.WAITING, None)
        state, actions = state._go_on()
        return state, [Admit(True), *timer, *actions]


_PASSING = frozenset({"RankKilled", "SupervisorLost", "RankFrozen", "Stalled", "PeerLost", "OutOfMemory", "CheckDeadline"})
"""Failures that say nothing of the model, however often they come."""
