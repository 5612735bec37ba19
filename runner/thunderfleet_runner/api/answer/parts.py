"""The pieces of an answer, in the order in which they become known. Pure."""

from dataclasses import dataclass
from typing import Literal

from thunderfleet_runner import protocol


@dataclass(frozen=True)
class Text:
    """A piece of text or of the model's thoughts. ``token``: the token it came with, for log probabilities and ids."""

    kind: Literal["text", "reasoning"]
    text: str
    token: protocol.Token | None = None


@dataclass(frozen=True)
class CallBegin:
    """A tool call begins; ``index`` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON in the end."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call is complete."""

    index: int


@dataclass(frozen=True)
class End:
    """The answer is complete. ``reason``: as in chat completions."""

    done: protocol.Done
    reason: Literal["stop", "length", "tool_calls"]


Part = Text | CallBegin | CallArguments | CallEnd
