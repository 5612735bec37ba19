"""Messages between a supervisor and its intake process, which checks, renders and tokenizes requests (see ``intake``).

Each is one frame of JSON (see ``framing``). The intake sends ``Up`` when it can work, then one answer to each question.
``Prepare`` is followed by one more frame: the body as the client sent it.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from thunderfleet_runner.protocol import Message, Prompt, Sampling, decode

Endpoint = Literal["chat", "completion"]


class ModelLimits(Message):
    """Properties of the served model against which requests are checked."""

    model: str
    vocabulary: int
    """Number of token ids; 0 when unknown."""
    context_tokens: int
    chat_template: bool = True


class Options(Message):
    """What a client asks for besides its prompt."""

    endpoint: Endpoint
    max_tokens: int
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


Question = Annotated[Prepare | ParseTools, Field(discriminator="type")]

# --- intake -> supervisor -------------------------------------------------------------------------------------------


class Up(Message):
    """The tokenizer is loaded."""

    type: Literal["up"] = "up"


class Prepared(Message):
    """A checked request in tokens."""

    type: Literal["prepared"] = "prepared"
    options: Options
    prompt: Prompt


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


Answer = Annotated[Up | Prepared | Rejected | ToolsParsed, Field(discriminator="type")]

_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)


def decode_question(body: bytes) -> Question:
    """The message in a frame's body. Raises BrokenStream."""
    return decode(_QUESTION, body, "a supervisor")


def decode_answer(body: bytes) -> Answer:
    """The message in a frame's body. Raises BrokenStream."""
    return decode(_ANSWER, body, "an intake")
