"""Messages between a supervisor and its rank process.

The supervisor runs asyncio without MLX; the rank runs MLX and threads. They share plain values only: each message is a JSON
object whose ``type`` names it, sent as one frame (see ``framing``). When either end closes the socket, the rank exits.

A rank process sends ``Waiting`` and idles until an attempt needs it. Then: ``Start`` -> ``Formed`` -> ``Progress``... ->
``Loaded``. When all ranks have loaded, every supervisor sends ``Check`` and every rank answers ``Ready``. From then on a rank
is idle: it blocks on the socket, not in a collective, until ``Turn`` arrives. In a turn all ranks run mlx-lm's loop together,
and rank 0 shares its requests within the group. When no work is left, rank 0 ends the turn for all ranks, and every rank sends
``Idle``. A request that reaches rank 0 too late for the turn stays queued: the leader sees ``Idle`` with work outstanding and
announces the next turn. A rank handles ``Stop`` between turns: rank 0 ends the running turn and cancels its requests, then
every rank frees its model, passes a barrier and exits 0.

Requests reach a rank in tokens: another process renders and tokenizes them (see ``intakeprotocol``).
"""

import base64
import itertools
from array import array
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from thunderfleet_crds.exchange.plan import MemoryPlan
from thunderfleet_crds.vocabulary import Backend, Split

from thunderfleet_runner.framing import BrokenStream, frame

HEARTBEAT_SECONDS = 1.0
"""Interval of a rank's heartbeats, from ``Formed`` to its exit."""


EMBED_TOKENS = 2048
"""Tokens of a request's texts, each padded to the longest, if it has several: they are computed in one step."""


class Message(BaseModel):
    """A message of this program's own processes: immutable, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sampling(Message):
    """How tokens are sampled, with mlx-lm's names and meanings. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: dict[int, float] = {}
    """Token id to the bias added to its logit."""
    seed: int | None = None


class Prompt(Message):
    """A prompt in tokens, packed: it may have a million of them, and the supervisor only passes it on."""

    tokens: str
    """Token ids as unsigned 32-bit integers, little-endian, base64."""
    segments: tuple[tuple[str, int], ...]
    """Type and number of tokens of the parts whose caches are worth keeping, in order."""
    initial_state: str = "normal"
    """The state in which mlx-lm's text machine starts."""

    @classmethod
    def of(cls, *segments: Sequence[int], types: Sequence[str] = ("assistant",), initial_state: str = "normal") -> "Prompt":
        """Packs ``segments``, each of the type at its place in ``types``. Raises OverflowError for an id out of range."""
        ids = array("I", [token for segment in segments for token in segment])
        lengths = tuple((kind, len(segment)) for kind, segment in zip(types, segments, strict=True))
        return cls(tokens=base64.b64encode(ids.tobytes()).decode(), segments=lengths, initial_state=initial_state)

    @property
    def count(self) -> int:
        """Number of tokens."""
        return sum(length for _, length in self.segments)

    def unpacked(self) -> tuple[tuple[int, ...], ...]:
        """The segments' token ids. Raises ValueError when the bytes do not match ``segments``."""
        ids = array("I")
        ids.frombytes(base64.b64decode(self.tokens, validate=True))
        if len(ids) != self.count or any(length < 0 for _, length in self.segments):
            raise ValueError(f"the prompt has {len(ids)} tokens, its segments have {self.count}")
        ends = list(itertools.accumulate((length for _, length in self.segments), initial=0))
        return tuple(tuple(ids[begin:end]) for begin, end in itertools.pairwise(ends))


class Request(Message):
    """One generation, or some vectors."""

    id: str
    prompt: Prompt
    max_tokens: int = Field(ge=1)
    stop: tuple[str, ...] = ()
    """Non-empty strings."""
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0)
    sampling: Sampling = Sampling()
    cache: bool = True
    """False: neither read nor fill the prompt cache (benchmark)."""
    grammar: str = ""
    """A format that the answer must have, in llguidance's form; empty for none."""
    no_end: bool = False
    """True: only ``max_tokens`` ends the answer, not the model's end token (benchmark)."""
    embed: int = Field(default=0, ge=0)
    """If not 0: instead of an answer, compute an embedding for each of the prompt's segments, and return this many values of
    it."""


# --- supervisor -> rank ---------------------------------------------------------------------------------------------


class Start(Message):
    """First message, unless it is ``Stop``. May arrive long after ``Waiting``."""

    type: Literal["start"] = "start"
    attempt: int
    rank: int
    size: int
    backend: Backend
    split: Split
    layers: tuple[int, int] | None = None
    """Pipeline: this rank's first layer (included) and last (excluded)."""
    pipeline: tuple[tuple[int, int], ...] = ()
    """Pipeline: the layers of every rank, by rank; empty otherwise."""
    model: str
    """The name that clients use; mlx-lm's requests carry it on every rank."""
    model_path: str
    prove: bool = True
    """Whether the ranks check their connections before they load the model."""
    prove_seconds: float
    """Limit of one exchange in this check."""
    memory_bytes: int
    """The reservation."""
    check_products: bool = False
    """Whether each rank checks its kernels, and all of them the layers of a model that is split by tensor parallelism."""
    wired: bool = True
    """Whether the reservation is the wired limit; otherwise none is set."""
    memory: MemoryPlan
    hostfile: str | None = None
    mesh: bool = False
    """Every two ranks are connected, not only those next to each other."""
    equal_logits: bool = False
    """All ranks must compute the same logits, to the bit, if their Macs are alike."""
    jaccl_environment: bool = False
    """JACCL: MLX runs its own exchange from environment variables; otherwise through ``Gather``."""
    environment: dict[str, str] = {}
    """Variables for MLX's init. For a single rank it has none of MLX's variables, because with them MLX would look for a
    group."""


class Check(Message):
    """All ranks have loaded: run the test prompt together and answer ``Ready``."""

    type: Literal["check"] = "check"


class Turn(Message):
    """Join the group's loop now. Numbers increase by one; every rank gets every turn."""

    type: Literal["turn"] = "turn"
    number: int


class Generate(Message):
    """Rank 0 only: queue this request; a ``Turn`` follows.

    Answered by ``Token``..., then ``Done`` or ``RequestError``.
    """

    type: Literal["generate"] = "generate"
    request: Request


class Cancel(Message):
    """Rank 0 only: end this request soon. Answered by ``Done`` with ``finish_reason`` cancelled, unless it has ended."""

    type: Literal["cancel"] = "cancel"
    id: str


class Measure(Message):
    """Between turns: measure the group's all-reduce together. Every rank answers ``Measured``."""

    type: Literal["measure"] = "measure"


class Stop(Message):
    """End a running turn, free the model, pass the group's barrier, exit 0. Instead of ``Start``: exit 0."""

    type: Literal["stop"] = "stop"


class Gathered(Message):
    """The answer to ``Gather`` of the same number: the bytes of all ranks, in order of ranks, base64."""

    type: Literal["gathered"] = "gathered"
    number: int
    data: str


ToRank = Annotated[Start | Check | Turn | Generate | Cancel | Measure | Stop | Gathered, Field(discriminator="type")]

# --- rank -> supervisor ---------------------------------------------------------------------------------------------


class Waiting(Message):
    """MLX is imported and the process waits for its attempt."""

    type: Literal["waiting"] = "waiting"


class Formed(Message):
    """MLX's rank and size after init, and the all-sum of (rank + 1): size*(size+1)/2 when correct."""

    type: Literal["formed"] = "formed"
    rank: int
    size: int
    all_sum: int


class Gather(Message):
    """Bytes of each rank for all ranks; numbered from 1 in each attempt.

    JACCL's init exchanges RDMA addresses, and three or more ranks exchange the results of the check of connections.
    """

    type: Literal["gather"] = "gather"
    number: int
    data: str
    """This rank's bytes, base64."""


class Proved(Message):
    """All exchanges of known values with the other ranks were right."""

    type: Literal["proved"] = "proved"
    exchanges: int
    seconds: float


class Progress(Message):
    """How much of its part of the model the rank has loaded."""

    type: Literal["progress"] = "progress"
    loaded_bytes: int
    total_bytes: int
    layers: int


REASON_CHARACTERS = 512


class Products(Message):
    """The checked computations of a rank: products with ``checked`` of ``kinds`` kinds of matrices, and whole ``layers``."""

    checked: int = 0
    kinds: int = 0
    layers: tuple[int, ...] = ()
    """Only rank 0 compares them."""
    layers_left: str = ""
    """Why a layer was not compared."""
    seconds: float = 0.0


class Loaded(Message):
    """The rank has loaded its part of the model."""

    type: Literal["loaded"] = "loaded"
    total_bytes: int
    peak_memory_bytes: int = 0
    products: Products = Products()


class Ready(Message):
    """The rank has run the test prompt, greedily; ``tokens`` must be the same on every rank."""

    type: Literal["ready"] = "ready"
    tokens: tuple[int, ...]
    costs: tuple[float, ...] = ()
    """The log probability of each token, with the opposite sign."""
    margins: tuple[float, ...] = ()
    """How much likelier each token was than the second most likely one: the difference of their log probabilities."""
    kind: int = 0
    """Equal for Macs with the same chip and build of macOS."""
    vocabulary: int = 0
    """Number of the model's token ids: 0 <= id < vocabulary. 0: unknown."""
    chat_template: bool = True
    """Whether the tokenizer can render chats."""
    peak_memory_bytes: int = 0


class TopLogprob(Message):
    """An alternative to a token."""

    token: int
    text: str
    logprob: float


NO_TOKEN = -1


class Token(Message):
    """One step of one request. ``text`` is what became printable with it, which may be empty or complete earlier tokens.

    ``token`` is NO_TOKEN for the second kind of text of one step, which follows separately.
    """

    type: Literal["token"] = "token"
    id: str
    token: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()
    kind: Literal["text", "reasoning", "tool"] = "text"
    """The kind of text according to mlx-lm's state machine."""
    ends_tool: bool = False
    """Whether what the model wrote as a tool call is complete. ``text`` is not part of it then."""


class Done(Message):
    """The request has ended."""

    type: Literal["done"] = "done"
    id: str
    finish_reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    cached_tokens: int = 0
    """Prompt tokens taken from the prompt cache."""
    generated_tokens: int
    reasoning_tokens: int = 0
    """Of the generated ones."""
    stop: str = ""
    """The stop string that ended the answer."""
    vectors: str = ""
    """Of a request for vectors: one after the other, each of ``Request.embed`` float32 in little-endian order, base64."""
    peak_memory_bytes: int = 0


class RequestError(Message):
    """This request failed; the group continues."""

    type: Literal["request_error"] = "request_error"
    id: str
    text: str
    refused: bool = False
    """Whether it is the request's fault, not the rank's."""


class Heartbeat(Message):
    """Every HEARTBEAT_SECONDS, from a separate thread: the process is alive, and the progress of its work."""

    type: Literal["heartbeat"] = "heartbeat"
    steps: int
    """Steps completed since the start: layers loaded, tokens decoded, prompt chunks. Any change is progress."""
    in_step: bool
    """Whether the rank works (in a turn, loading, checking) rather than idles."""
    step_seconds: float = 0.0
    """Duration of the running step so far."""
    expected_step_seconds: float = 0.0
    """Maximum expected duration of the running step, from the slowest earlier steps of its kind; 0 if there were none."""
    step_known: bool = False
    """Whether a step with as many tokens has been completed."""
    peak_memory_bytes: int = 0


class Idle(Message):
    """This rank has left turn ``turn``."""

    type: Literal["idle"] = "idle"
    turn: int


class Measured(Message):
    """The all-reduce measured on this rank."""

    type: Literal["measured"] = "measured"
    latency_microseconds: int
    """Median of small all-reduces."""
    megabytes_per_second: float
    """Of large all-reduces: an array's bytes divided by the time of its sum."""


class Failed(Message):
    """The last message before the rank exits 1. ``text`` is the library's error."""

    type: Literal["failed"] = "failed"
    stage: Literal["start", "init", "prove", "load", "check", "serve", "stop"]
    text: str
    corrupted: bool = False
    """A value was corrupted; ``text`` names it."""
    peer: int | None = None
    """The rank that sent it, if that is known."""
    echo: bool = False
    """Another rank of the group has the details."""


class Log(Message):
    """A line for the supervisor's log."""

    type: Literal["log"] = "log"
    level: Literal["debug", "info", "warning", "error"]
    text: str


FromRank = Annotated[
    Waiting
    | Formed
    | Gather
    | Proved
    | Progress
    | Loaded
    | Ready
    | Token
    | Done
    | RequestError
    | Heartbeat
    | Idle
    | Measured
    | Failed
    | Log,
    Field(discriminator="type"),
]

M = TypeVar("M")
_TO_RANK: TypeAdapter[ToRank] = TypeAdapter(ToRank)
_FROM_RANK: TypeAdapter[FromRank] = TypeAdapter(FromRank)


def encode(message: BaseModel) -> bytes:
    """One frame."""
    return frame(message.model_dump_json(exclude_defaults=False).encode())


def decode(messages: TypeAdapter[M], body: bytes, sender: str) -> M:
    """The message in a frame's body. ``sender``: for the error, such as "a rank". Raises BrokenStream."""
    try:
        return messages.validate_json(body)
    except ValueError as error:
        raise BrokenStream(f"not a message from {sender}: {' '.join(str(error).split())[:300]}") from error


def decode_to_rank(body: bytes) -> ToRank:
    """The message in a frame's body. Raises BrokenStream."""
    return decode(_TO_RANK, body, "a supervisor")


def decode_from_rank(body: bytes) -> FromRank:
    """The message in a frame's body. Raises BrokenStream."""
    return decode(_FROM_RANK, body, "a rank")
