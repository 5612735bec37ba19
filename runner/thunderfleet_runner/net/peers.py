"""Messages between supervisors on the control connection: JSON texts on a websocket.

The leader, rank 0's supervisor, sends orders to every member including itself; members send reports. Every message about an
attempt carries its number, so that one that was in flight when the attempt ended is recognized as stale.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.vocabulary import FaultClass, RuntimeVariable

CUT_OFF_SECONDS = 3.0
"""Silence after which a connection is closed."""


TEXT_CHARACTERS = 4096
"""Maximum characters of a failure's message; longer ones are cut where they arise."""
MOST_TOKENS = 1024
# Text of a member becomes part of the state, which every other member gets in messages of bounded size.
Number = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Name = Annotated[str, Field(max_length=1024)]
Text = Annotated[str, Field(max_length=TEXT_CHARACTERS)]
Part = Annotated[str, Field(max_length=32 * 1024)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Hello(_Message):
    """A member's first message: its identity and versions. ``digest`` is empty while its model cannot be read."""

    type: Literal["hello"] = "hello"
    uid: Name
    index: Number
    epoch: Number
    rank: Number
    node: Name
    mlx: Name
    mlx_lm: Name
    digest: Name = ""
    environment: dict[Name, Name] | None = Field(default=None, max_length=len(RuntimeVariable) + 1)
    """MLX's settings that its rank gets; None if that is not known. The maximum is one more than a ModelDeployment may set."""


class Checked(_Message):
    """Preflight has passed; ``port`` is the ring port for this attempt, 0 without a ring."""

    type: Literal["checked"] = "checked"
    attempt: Number
    port: Number
    digest: Name
    weights: Name = ""
    """The hash of the values of the weights, if it is known."""
    signature: Name = ""
    """Of the files with these weights."""


class WeightsRead(_Message):
    """The member has hashed the values of its copy of the model's weights."""

    type: Literal["weights"] = "weights"
    weights: Name
    signature: Name


class RankFailed(_Message):
    """The rank, or its preflight, has failed; sent once an attempt."""

    type: Literal["failure"] = "failure"
    attempt: Number
    stage: Name
    fault: FaultClass
    reason: Name
    message: Text
    echo: bool = False
    peer: Number | None = None


class RankFormed(_Message):
    """The rank's MLX has formed its group."""

    type: Literal["formed"] = "formed"
    attempt: Number
    rank: Number
    size: Number
    all_sum: Number


class RankProved(_Message):
    """The rank's connections carry values unchanged; see ``protocol.Proved``."""

    type: Literal["proved"] = "proved"
    attempt: Number
    exchanges: Number
    seconds: float


class RankProgress(_Message):
    """How much of the model the rank has loaded."""

    type: Literal["progress"] = "progress"
    attempt: Number
    loaded_bytes: Number
    total_bytes: Number
    layers: Number


class Products(_Message):
    """See ``protocol.Products``."""

    checked: Number = 0
    kinds: Number = 0
    layers: tuple[Number, ...] = Field(default=(), max_length=16)
    layers_left: Text = ""
    seconds: float = 0.0


class RankLoaded(_Message):
    """The rank has loaded its part of the model."""

    type: Literal["loaded"] = "loaded"
    attempt: Number
    total_bytes: Number
    peak_memory_bytes: Number
    products: Products = Products()


class RankReady(_Message):
    """The rank has run the test prompt; see ``protocol.Ready``."""

    type: Literal["ready"] = "ready"
    attempt: Number
    tokens: tuple[Number, ...] = Field(max_length=MOST_TOKENS)
    costs: tuple[float, ...] = Field(default=(), max_length=MOST_TOKENS)
    margins: tuple[float, ...] = Field(default=(), max_length=MOST_TOKENS)
    kind: Number = 0
    vocabulary: Number
    chat_template: bool
    peak_memory_bytes: Number


class RankEnded(_Message):
    """No process of this attempt or an earlier one is left on this Mac."""

    type: Literal["ended"] = "ended"
    attempt: Number


class Gather(_Message):
    """The rank's part of JACCL's exchange; see ``protocol.Gather``."""

    type: Literal["gather"] = "gather"
    attempt: Number
    number: Number
    data: Part


class Leaving(_Message):
    """This supervisor has received SIGTERM and waits for ``Release``."""

    type: Literal["leaving"] = "leaving"


class Pulse(_Message):
    """The member is alive; and the progress of its rank's work, when the rank sends heartbeats."""

    type: Literal["pulse"] = "pulse"
    attempt: Number = 0
    steps: Number = 0
    in_step: bool = False
    expected_step_seconds: float = 0.0
    step_known: bool = False
    heartbeat_age_seconds: float = 0.0
    peak_memory_bytes: Number = 0


Report = Annotated[
    Checked
    | RankFailed
    | RankFormed
    | RankProved
    | RankProgress
    | RankLoaded
    | RankReady
    | RankEnded
    | Gather
    | Leaving
    | WeightsRead
    | Pulse,
    Field(discriminator="type"),
]


class Welcome(_Message):
    """The claim is accepted."""

    type: Literal["welcome"] = "welcome"


class Refusal(_Message):
    """The claim is refused; the connection closes."""

    type: Literal["refusal"] = "refusal"
    reason: str
    message: str

    @property
    def explanation(self) -> str:
        """Reason and message, for logs and the state of the group."""
        return f"{self.reason}: {self.message}"


class Preflight(_Message):
    """Run the preflight checks; answer ``Checked`` or ``RankFailed``."""

    type: Literal["preflight"] = "preflight"
    attempt: int


class Launch(_Message):
    """Start the rank now.

    ``hosts`` lists ``ip:port`` by rank and is empty without a ring. With a ``coordinator`` (``ip:port``) JACCL runs its own
    exchange there; without one, the supervisors do.
    """

    type: Literal["launch"] = "launch"
    attempt: int
    hosts: tuple[str, ...] = ()
    coordinator: str = ""


class End(_Message):
    """End and reap the rank, whatever it does; answer ``RankEnded``."""

    type: Literal["end"] = "end"
    attempt: int


class Gathered(_Message):
    """The parts of all ranks of one gather."""

    type: Literal["gathered"] = "gathered"
    attempt: int
    number: int
    data: str


class CheckRank(_Message):
    """Run the test prompt."""

    type: Literal["check"] = "check"
    attempt: int


class TurnRank(_Message):
    """Join the group's loop; see ``protocol.Turn``."""

    type: Literal["turn"] = "turn"
    attempt: int
    number: int


class MeasureRank(_Message):
    """Measure the all-reduce, between turns."""

    type: Literal["measure"] = "measure"
    attempt: int


class ProbeDevices(_Message):
    """No rank makes progress: probe this rank's RDMA devices, and answer ``RankFailed`` when one is down."""

    type: Literal["look"] = "look"
    attempt: int


class StopRank(_Message):
    """Stop together: the rank exits by itself; answer ``RankEnded`` when it has."""

    type: Literal["stop"] = "stop"
    attempt: int


class Release(_Message):
    """The group has stopped: a supervisor that has received SIGTERM may exit."""

    type: Literal["release"] = "release"


class Beat(_Message):
    """The leader is alive; ``state`` when it has changed."""

    type: Literal["beat"] = "beat"
    state: GroupState | None = None


Order = Annotated[
    Preflight | Launch | Gathered | End | CheckRank | TurnRank | MeasureRank | ProbeDevices | StopRank | Release | Beat,
    Field(discriminator="type"),
]
Answer = Annotated[Welcome | Refusal, Field(discriminator="type")]

REPORT: TypeAdapter[Report] = TypeAdapter(Report)
ORDER: TypeAdapter[Order] = TypeAdapter(Order)
ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)
