"""Input (events) and output (actions) of the state machine of attempts. Plain values; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunderfleet_runner import faults
from thunderfleet_runner.faults import Fault

# --- events ---


@dataclass(frozen=True)
class Joined:
    """A member has joined, and no rank process runs on its Mac."""

    rank: int


@dataclass(frozen=True)
class Left:
    """A member's connection has ended; ``why`` is its reason."""

    rank: int
    why: str


@dataclass(frozen=True)
class Checked:
    """A rank's preflight has passed; ``port`` is its ring port for this attempt, 0 without a ring."""

    rank: int
    attempt: int
    port: int


@dataclass(frozen=True)
class RankFormed:
    """A rank's MLX has formed its group."""

    rank: int
    attempt: int


@dataclass(frozen=True)
class RankLoaded:
    """A rank has loaded its part of the model."""

    rank: int
    attempt: int


@dataclass(frozen=True)
class RankReady:
    """A rank has run the test prompt; ``tokens`` must be the same on every rank."""

    rank: int
    attempt: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class RankFailed:
    """A rank, or its preflight, has failed."""

    rank: int
    attempt: int
    fault: Fault
    stage: faults.Stage


@dataclass(frozen=True)
class Stalled:
    """No rank of the attempt makes progress, as seen from outside; ``rank`` is the slowest."""

    attempt: int
    rank: int
    fault: Fault


@dataclass(frozen=True)
class Proved:
    """The group's answers are right, as far as they are checked before it serves."""

    attempt: int


@dataclass(frozen=True)
class Wrong:
    """An answer of the group is wrong."""

    attempt: int
    fault: Fault


@dataclass(frozen=True)
class RankEnded:
    """No process of this attempt is left on the rank's Mac."""

    rank: int
    attempt: int


@dataclass(frozen=True)
class Timer:
    """A timer has fired. ``late``: the ranks that others wait for, if they are known.

    ``still``: the ranks should work, but have completed no step for a while.
    """

    number: int
    late: tuple[int, ...] = ()
    still: bool = False


@dataclass(frozen=True)
class Drain:
    """``for_good``: the leader itself ends. Otherwise a member leaves, and the group forms again by itself."""

    for_good: bool


@dataclass(frozen=True)
class Quiet:
    """No request is running any more."""


AttemptEvent = Checked | RankFormed | RankLoaded | RankReady | Proved | Wrong | RankFailed | Stalled | RankEnded
"""Events that concern one attempt; the machine ignores those of an earlier one."""
Event = Joined | Left | AttemptEvent | Timer | Drain | Quiet

# --- actions ---


@dataclass(frozen=True)
class Preflight:
    """Run the preflight checks on every rank."""

    attempt: int


@dataclass(frozen=True)
class StartRanks:
    """Start every rank's process; ``ports`` are the ring ports by rank."""

    attempt: int
    ports: Mapping[int, int]


@dataclass(frozen=True)
class Compare:
    """Run the test prompt on all ranks together."""

    attempt: int


@dataclass(frozen=True)
class Prove:
    """Check the group's answers; no client's request is admitted yet."""

    attempt: int


@dataclass(frozen=True)
class Serve:
    """Admit requests to this attempt."""

    attempt: int


@dataclass(frozen=True)
class Unserve:
    """Running requests end as Unavailable. May follow a first one with a better-known cause."""

    why: str
    settled: bool = True
    """False: ``why`` comes from a rank whose peer failed first, and the peer's own report may follow."""


@dataclass(frozen=True)
class Admit:
    """Whether new requests are admitted."""

    admit: bool


@dataclass(frozen=True)
class StopRanks:
    """Send all ranks the order to stop together."""

    attempt: int


@dataclass(frozen=True)
class EndRanks:
    """End and reap every rank's process."""

    attempt: int


@dataclass(frozen=True)
class Cut:
    """Close this member's connection, because it does not answer; the member then ends its rank by itself."""

    rank: int


@dataclass(frozen=True)
class SetTimer:
    """Fire ``Timer(number)`` after ``seconds``; replaces a timer that is running."""

    number: int
    seconds: float


@dataclass(frozen=True)
class ReleaseAll:
    """Supervisors that have received SIGTERM may exit."""


@dataclass(frozen=True)
class Cause:
    """The first cause of a failure, and the failures reported after it."""

    rank: int | None
    attempt: int
    stage: faults.Stage
    fault: Fault
    echoes: tuple[str, ...] = ()

    def heard(self, other: "Cause") -> "Cause":
        """With another failure of the same attempt: a primary error takes precedence over an echo reported before it."""
        if self.fault.echo and not other.fault.echo:
            return replace(other, echoes=(*self.echoes, self.line))
        if other.line == self.line or other.line in self.echoes:
            return self
        return replace(self, echoes=(*self.echoes, other.line))

    @property
    def line(self) -> str:
        """One line for people: the rank and its message."""
        return f"rank {self.rank}: {self.fault.message}" if self.rank is not None else self.fault.message


@dataclass(frozen=True)
class GiveUp:
    """Start no further attempt for now."""

    cause: Cause


Action = (
    Preflight
    | StartRanks
    | Compare
    | Prove
    | Serve
    | Unserve
    | Admit
    | StopRanks
    | EndRanks
    | Cut
    | SetTimer
    | ReleaseAll
    | GiveUp
)
