"""What supervisors say to each other over the control connection: JSON texts on a websocket.

Orders go from rank 0's supervisor (the leader) to every member, itself included; reports come back. Everything that concerns
an attempt carries its number, so that a word that was under way when the attempt ended is known as stale.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from thunderfleet_crds.group import GroupState
from thunderfleet_crds.vocabulary import FaultClass

BEAT_SECONDS = 1.0
"""How often both ends speak when they have nothing to say."""
CUT_OFF_SECONDS = 3.0
"""Silence after which a connection is dead."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Hello(_Message):
    """First word of a member: who it is and what it runs. ``digest`` is empty while its model cannot be read."""

    type: Literal["hello"] = "hello"
    uid: str
    index: int
    epoch: int
    rank: int
    node: str
    mlx: str
    mlx_lm: str
    digest: str = ""


class Checked(_Message):
    """Preflight is passed; ``port`` is the ring port for this attempt (0 without a ring)."""

    type: Literal["checked"] = "checked"
    attempt: int
    port: int
    digest: str


class Failure(_Message):
    type: Literal["failure"] = "failure"
    attempt: int
    stage: str
    fault: FaultClass
    reason: str
    message: str
    echo: bool = False


class RankFormed(_Message):
    type: Literal["formed"] = "formed"
    attempt: int
    rank: int
    size: int
    all_sum: int


class RankProgress(_Message):
    type: Literal["progress"] = "progress"
    attempt: int
    loaded_bytes: int
    total_bytes: int
    layers: int


class RankLoaded(_Message):
    type: Literal["loaded"] = "loaded"
    attempt: int
    total_bytes: int
    peak_memory_bytes: int


class RankReady(_Message):
    type: Literal["ready"] = "ready"
    attempt: int
    tokens: tuple[int, ...]
    vocabulary: int
    chat_template: bool
    peak_memory_bytes: int


class Ended(_Message):
    """No process of this attempt, or of one before it, is left on this Mac."""

    type: Literal["ended"] = "ended"
    attempt: int


class Gather(_Message):
    """The rank's part of JACCL's exchange; see ``protocol.Gather``."""

    type: Literal["gather"] = "gather"
    attempt: int
    number: int
    data: str


class Leaving(_Message):
    """This supervisor was told to end (SIGTERM) and waits for the leader's word."""

    type: Literal["leaving"] = "leaving"


class Pulse(_Message):
    """The member lives; and, when it has a rank that speaks, how the rank's work moves."""

    type: Literal["pulse"] = "pulse"
    attempt: int = 0
    steps: int = 0
    in_step: bool = False
    longest_step_seconds: float = 0.0
    heartbeat_age_seconds: float = 0.0
    peak_memory_bytes: int = 0


Report = Annotated[
    Checked | Failure | RankFormed | RankProgress | RankLoaded | RankReady | Ended | Gather | Leaving | Pulse,
    Field(discriminator="type"),
]


class Welcome(_Message):
    type: Literal["welcome"] = "welcome"


class Refusal(_Message):
    """The claim is not accepted; the connection ends after it."""

    type: Literal["refusal"] = "refusal"
    reason: str
    message: str


class Preflight(_Message):
    type: Literal["preflight"] = "preflight"
    attempt: int


class Launch(_Message):
    """Start the rank now. ``hosts`` is rank by rank ``ip:port``; empty without a ring. With a ``coordinator`` (``ip:port``)
    JACCL does its own exchange there; without, the supervisors do it.
    """

    type: Literal["launch"] = "launch"
    attempt: int
    hosts: tuple[str, ...] = ()
    coordinator: str = ""


class End(_Message):
    """End and reap the rank, whatever it does; answer Ended."""

    type: Literal["end"] = "end"
    attempt: int


class Gathered(_Message):
    """All ranks' parts of one gather."""

    type: Literal["gathered"] = "gathered"
    attempt: int
    number: int
    data: str


class CheckRank(_Message):
    type: Literal["check"] = "check"
    attempt: int


class TurnRank(_Message):
    type: Literal["turn"] = "turn"
    attempt: int
    number: int


class MeasureRank(_Message):
    """Measure the all-reduce; between turns."""

    type: Literal["measure"] = "measure"
    attempt: int


class LookAtDevices(_Message):
    """No rank moves: is this rank's RDMA device still up? A Failure is the answer when it is not."""

    type: Literal["look"] = "look"
    attempt: int


class StopRank(_Message):
    """Stop together: the rank leaves by itself; answer Ended when it has."""

    type: Literal["stop"] = "stop"
    attempt: int


class Release(_Message):
    """The group has stopped: a supervisor that was told to end may go."""

    type: Literal["release"] = "release"


class Beat(_Message):
    """The leader lives; ``state`` when it has changed."""

    type: Literal["beat"] = "beat"
    state: GroupState | None = None


Order = Annotated[
    Preflight | Launch | Gathered | End | CheckRank | TurnRank | MeasureRank | LookAtDevices | StopRank | Release | Beat,
    Field(discriminator="type"),
]
Answer = Annotated[Welcome | Refusal, Field(discriminator="type")]

REPORT: TypeAdapter[Report] = TypeAdapter(Report)
ORDER: TypeAdapter[Order] = TypeAdapter(Order)
ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)
