"""Messages between a supervisor and its intake process, which checks, renders and tokenizes requests (see ``intake``).

Each is one frame of JSON (see ``framing``). The intake sends ``Up`` when it can work, then one answer to each question.
``Prepare``, ``Examine`` and ``Embed`` are followed by one more frame: the body as the client sent it.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from thunderfleet_runner.protocol import Message, Prompt, Sampling, decode

Endpoint = Literal["chat", "completion", "messages", "responses"]
CallFormat = Literal["marked", "json", "bare"]
Subject = Literal["count", "tokenize", "detokenize"]


class ModelLimits(Message):
    """Properties of the served model against which requests are checked."""

    model: str
    names: tuple[str, ...] = ()
    """Other names by which clients may call the model."""
    vocabulary: int
    """Number of token ids; 0 when unknown."""
    context_tokens: int
    chat_template: bool = True


class Options(Message):
    """What a client requests besides its prompt."""

    endpoint: Endpoint
    max_tokens: int
    clamped: bool = False
    """Whether the client requested more tokens than fit."""
    choices: int = 1
    """Number of answers."""
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    ignored: tuple[str, ...] = ()
    """Fields of the request without effect, which the response names."""
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    sampling: Sampling = Sampling()
    tools: str = ""
    """The request's tools as JSON, for ``ParseTools``; empty without any."""
    calls: CallFormat = "marked"
    """How the model writes tool calls: between marks; as JSON between marks; as JSON that is all of its answer."""
    forced: str = ""
    """The tool that the answer must call; ``*`` for any; empty if it is free."""
    parallel: bool = True
    """Whether one answer may have several calls."""
    echo: str = ""
    """Fields of the request that the response repeats, as a JSON object; empty without any."""


# --- supervisor -> intake -------------------------------------------------------------------------------------------


class Prepare(Message):
    """Check, render and tokenize the body in the next frame. Answered by ``Prepared`` or ``Rejected``."""

    type: Literal["prepare"] = "prepare"
    endpoint: Endpoint
    limits: ModelLimits


class ParseTools(Message):
    """Parse what the model wrote as tool calls. Answered by ``ToolsParsed``."""

    type: Literal["parse_tools"] = "parse_tools"
    tools: str
    texts: tuple[str, ...]


class Examine(Message):
    """Answer the body in the next frame, which requests only numbers of tokens. Answered by ``Examined`` or ``Rejected``."""

    type: Literal["examine"] = "examine"
    subject: Subject
    limits: ModelLimits


class Embed(Message):
    """Check and tokenize the texts in the next frame. Answered by ``Texts`` or ``Rejected``."""

    type: Literal["embed"] = "embed"
    limits: ModelLimits


Question = Annotated[Prepare | ParseTools | Examine | Embed, Field(discriminator="type")]

# --- intake -> supervisor -------------------------------------------------------------------------------------------


class Up(Message):
    """The tokenizer is loaded."""

    type: Literal["up"] = "up"


class Prepared(Message):
    """A checked request in tokens."""

    type: Literal["prepared"] = "prepared"
    options: Options
    prompt: Prompt
    grammar: str = ""
    """The format of the answer, for ``protocol.Request``."""


class Rejected(Message):
    """The fields of an ``ApiError``."""

    type: Literal["rejected"] = "rejected"
    status: int
    message: str
    error: str
    param: str | None = None
    code: str | None = None


class ToolsParsed(Message):
    """OpenAI ``function`` objects ({"name", "arguments"}), and the texts that are no tool calls."""

    type: Literal["tools_parsed"] = "tools_parsed"
    calls: tuple[dict[str, Any], ...] = ()
    unparsed: tuple[str, ...] = ()


class Examined(Message):
    """The response to a question about tokens."""

    type: Literal["examined"] = "examined"
    body: str
    """JSON."""


class Texts(Message):
    """Texts whose vectors a client requests, in tokens."""

    type: Literal["texts"] = "texts"
    texts: Prompt
    """A segment for each text."""
    size: int
    """Values of a vector."""
    packed: bool = False
    """Whether the client requests base64, not lists of numbers."""
    ignored: tuple[str, ...] = ()


Answer = Annotated[Up | Prepared | Rejected | ToolsParsed | Examined | Texts, Field(discriminator="type")]

_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)


def decode_question(body: bytes) -> Question:
    """The message in a frame's body. Raises BrokenStream."""
    return decode(_QUESTION, body, "a supervisor")


def decode_answer(body: bytes) -> Answer:
    """The message in a frame's body. Raises BrokenStream."""
    return decode(_ANSWER, body, "an intake")
