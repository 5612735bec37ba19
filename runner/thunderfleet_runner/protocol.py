"""Messages between a supervisor and its rank process.

The supervisor runs asyncio without MLX; the rank runs MLX and threads. They share plain values only: each message is a JSON
object whose ``type`` names it, sent as one frame (see ``framing``). When either end closes the socket, the rank exits.

A rank process sends ``Waiting`` and idles until an attempt needs it. Then: ``Start`` -> ``Formed`` -> ``Progress``... ->
``Loaded``. When all ranks have loaded, every supervisor sends ``Check`` and every rank answers ``Ready``. From then on a rank
is idle: it blocks on the socket, not in a collective, until ``Turn`` arrives. In a turn all ranks run mlx-lm's loop together,
and rank 0 shares its requests within the group. When no work is left, rank 0 ends the turn for all ranks, and every rank sends
``Idle``. A request that reaches rank 0 too late for the turn stays queued: the leader sees ``Idle`` with work outstanding and
announces the next turn. A rank handles ``Stop`` between turns: rank 0 ends the running turn and cancels its requests, then
every rank frees its model, passes a barrier and exits 0. ``Prepare`` is answered at any time after ``Ready``, in a turn or not.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from thunderfleet_crds.plan import MemoryPlan
from thunderfleet_crds.vocabulary import Backend, Split

from thunderfleet_runner.framing import BrokenStream, frame

HEARTBEAT_SECONDS = 1.0
"""How often a rank's heartbeat thread speaks, from ``Formed`` to its end."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sampling(_Message):
    """How tokens are chosen; names and meanings are mlx-lm's. Zero temperature is greedy."""

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
    """Token id -> bias added to its logit."""
    seed: int | None = None


class Request(_Message):
    """One generation, as the gateway built it from its allow-list. One of the three prompts is set, as ``kind`` says."""

    id: str
    kind: Literal["chat", "completion", "tokens"]
    messages: tuple[dict[str, Any], ...] = ()
    """``chat``: OpenAI messages with text contents; the rank applies the model's own template."""
    tools: tuple[dict[str, Any], ...] = ()
    prompt: str = ""
    """``completion``: text that the rank tokenizes."""
    tokens: tuple[int, ...] = ()
    """``tokens``: token ids as they stand (benchmark)."""
    max_tokens: int = Field(ge=1)
    stop: tuple[str, ...] = ()
    """Non-empty strings."""
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0)
    sampling: Sampling = Sampling()
    cache: bool = True
    """False: neither use nor feed the prompt cache (benchmark)."""
    no_end: bool = False
    """True: the model's end token does not end the answer, ``max_tokens`` does (benchmark)."""


# --- supervisor -> rank ---------------------------------------------------------------------------------------------


class Start(_Message):
    """First message, unless it is ``Stop``. It may come long after ``Waiting``."""

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
    memory_bytes: int
    """The reservation: the wired limit is at most this."""
    memory: MemoryPlan
    hostfile: str | None = None
    jaccl_environment: bool = False
    """JACCL: let MLX do its own exchange, with what it finds in the environment; otherwise ``Gather`` does it."""
    environment: dict[str, str] = {}
    """What the rank adds to its environment before MLX's init, which looks there. Nothing of MLX's for one Mac alone: with
    it, MLX would look for a group."""


class Check(_Message):
    """All ranks have loaded: run the fixed prompt together and answer ``Ready``."""

    type: Literal["check"] = "check"


class Turn(_Message):
    """Join the group's loop now. Numbers grow by one; every rank gets every turn."""

    type: Literal["turn"] = "turn"
    number: int


class Prepare(_Message):
    """Rank 0 only: template and count, generate nothing. Answered by ``Prepared``."""

    type: Literal["prepare"] = "prepare"
    request: Request


class Generate(_Message):
    """Rank 0 only: queue this request; a ``Turn`` is announced besides.

    Answered by ``Token``..., then ``Done`` or ``RequestError``.
    """

    type: Literal["generate"] = "generate"
    request: Request


class Cancel(_Message):
    """Rank 0 only: end this request soon. Answered by ``Done`` with ``finish_reason`` cancelled, unless it ended before."""

    type: Literal["cancel"] = "cancel"
    id: str


class Measure(_Message):
    """Every rank, between turns: measure the group's all-reduce together. Every rank answers ``Measured``."""

    type: Literal["measure"] = "measure"


class Stop(_Message):
    """End the turn if one runs, free the model, pass the group's barrier, exit 0. Instead of ``Start``: exit 0."""

    type: Literal["stop"] = "stop"


class Gathered(_Message):
    """The answer to the rank's ``Gather`` of that number: every rank's bytes, in order of ranks, base64."""

    type: Literal["gathered"] = "gathered"
    number: int
    data: str


ToRank = Annotated[Start | Check | Turn | Prepare | Generate | Cancel | Measure | Stop | Gathered, Field(discriminator="type")]

# --- rank -> supervisor ---------------------------------------------------------------------------------------------


class Waiting(_Message):
    """MLX is imported and this process belongs to no attempt yet: what it does from ``Start`` on, it does at once."""

    type: Literal["waiting"] = "waiting"


class Formed(_Message):
    """The group's own answer after init, and what the all-sum of every rank's (rank + 1) gave: size*(size+1)/2 when right."""

    type: Literal["formed"] = "formed"
    rank: int
    size: int
    all_sum: int


class Gather(_Message):
    """JACCL's init gathers bytes of all ranks (its exchange of RDMA addresses); numbered from 1 in each attempt."""

    type: Literal["gather"] = "gather"
    number: int
    data: str
    """This rank's bytes, base64."""


class Progress(_Message):
    type: Literal["progress"] = "progress"
    loaded_bytes: int
    total_bytes: int
    layers: int


class Loaded(_Message):
    type: Literal["loaded"] = "loaded"
    total_bytes: int
    peak_memory_bytes: int = 0


class Ready(_Message):
    """The fixed prompt was generated, greedily; ``tokens`` must be the same on every rank."""

    type: Literal["ready"] = "ready"
    tokens: tuple[int, ...]
    vocabulary: int = 0
    """Number of token ids that the model knows: ids are 0 <= id < vocabulary. 0: not known."""
    chat_template: bool = True
    """Whether the tokenizer can render chats."""
    peak_memory_bytes: int = 0


class Prepared(_Message):
    """``error`` says why the request cannot be served (a client's mistake: 400); then ``prompt_tokens`` is 0."""

    type: Literal["prepared"] = "prepared"
    id: str
    prompt_tokens: int = 0
    error: str | None = None


class TopLogprob(_Message):
    token: int
    text: str
    logprob: float


NO_TOKEN = -1


class Token(_Message):
    """One step of one request. ``text`` is what became printable with it (may be empty, may close earlier tokens).

    ``token`` is NO_TOKEN when a step's text was of two kinds: the second kind's text follows by itself.
    """

    type: Literal["token"] = "token"
    id: str
    token: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()
    kind: Literal["text", "reasoning", "tool"] = "text"
    """What mlx-lm's state machine says this token belongs to."""


class Done(_Message):
    type: Literal["done"] = "done"
    id: str
    finish_reason: Literal["stop", "length", "tool_calls", "cancelled"]
    prompt_tokens: int
    cached_tokens: int = 0
    """Of the prompt's, how many came from the prompt cache."""
    generated_tokens: int
    tool_calls: tuple[dict[str, Any], ...] = ()
    """OpenAI ``function`` objects ({"name", "arguments"}) parsed from the text, when ``finish_reason`` is tool_calls."""
    peak_memory_bytes: int = 0


class RequestError(_Message):
    """This request failed and the group did not."""

    type: Literal["request_error"] = "request_error"
    id: str
    text: str


class Heartbeat(_Message):
    """From a thread of the rank, every HEARTBEAT_SECONDS: that the process runs, and whether its work moves."""

    type: Literal["heartbeat"] = "heartbeat"
    steps: int
    """Steps ended since the start: layers loaded, tokens decoded, prompt chunks. Any change is movement."""
    in_step: bool
    """Whether the rank is at work (in a turn, loading, checking) rather than idle."""
    step_seconds: float = 0.0
    """How long the running step has taken."""
    longest_step_seconds: float = 0.0
    """The longest ended step of the running step's shape (loading, prefill, decode)."""
    peak_memory_bytes: int = 0


class Idle(_Message):
    """This rank has left turn ``turn``."""

    type: Literal["idle"] = "idle"
    turn: int


class Measured(_Message):
    """What the all-reduce of ``Measure`` took on this rank."""

    type: Literal["measured"] = "measured"
    latency_microseconds: int
    """Median of small ones."""
    megabytes_per_second: float
    """Of large ones: an array's bytes by the time that its sum took."""


class Failed(_Message):
    """Last words: the rank exits 1 after them. ``text`` is the error as its library said it."""

    type: Literal["failed"] = "failed"
    stage: Literal["start", "init", "load", "check", "serve", "stop"]
    text: str


class Log(_Message):
    type: Literal["log"] = "log"
    level: Literal["debug", "info", "warning", "error"]
    text: str


FromRank = Annotated[
    Waiting
    | Formed
    | Gather
    | Progress
    | Loaded
    | Ready
    | Prepared
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

_TO_RANK: TypeAdapter[ToRank] = TypeAdapter(ToRank)
_FROM_RANK: TypeAdapter[FromRank] = TypeAdapter(FromRank)


def encode(message: BaseModel) -> bytes:
    """One frame."""
    return frame(message.model_dump_json(exclude_defaults=False).encode())


def _text(error: ValueError) -> str:
    return " ".join(str(error).split())[:300]


def decode_to_rank(body: bytes) -> ToRank:
    """The message in a frame's body. Raises BrokenStream."""
    try:
        return _TO_RANK.validate_json(body)
    except ValueError as error:
        raise BrokenStream(f"not a message from a supervisor: {_text(error)}") from error


def decode_from_rank(body: bytes) -> FromRank:
    """The message in a frame's body. Raises BrokenStream."""
    try:
        return _FROM_RANK.validate_json(body)
    except ValueError as error:
        raise BrokenStream(f"not a message from a rank: {_text(error)}") from error
