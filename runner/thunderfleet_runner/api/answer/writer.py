"""The interface of each API's writer. Pure: ids and times come from the caller."""

from dataclasses import dataclass
from typing import Any, Protocol

from thunderfleet_runner import protocol
from thunderfleet_runner.api.answer.parts import End, Part
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.intakeprotocol import Options


@dataclass(frozen=True)
class Event:
    """An event of a stream; ``name`` is empty where a dialect's events have none."""

    data: dict[str, Any]
    name: str = ""


@dataclass(frozen=True)
class Head:
    """The fields at the start of an answer's bodies. ``created`` is in seconds since 1970."""

    options: Options
    model: str
    answer_id: str
    created: int
    prompt_tokens: int = 0


class Writer(Protocol):
    """Builds the response to one request, streamed or whole. ``choice`` is from 0 to ``Options.choices`` - 1.

    A whole response is encoded part by part as they arrive: with log probabilities it has megabytes, and encoding them at once
    would stop the supervisor for seconds.
    """

    marks_end: bool
    """Whether a complete stream ends with ``[DONE]``."""

    # streamed

    def begin(self) -> list[Event]:
        """The events before the first part."""

    def part(self, choice: int, part: Part) -> list[Event]:
        """The events of a part."""

    def end(self, choice: int, end: End) -> list[Event]:
        """The events at the end of a choice."""

    def finish(self) -> list[Event]:
        """The events after the last choice."""

    def error(self, error: ApiError) -> Event:
        """The event that ends a stream that was cut."""

    # whole

    def add(self, choice: int, part: Part) -> None:
        """Adds a part to the whole response."""

    def close(self, choice: int, end: End) -> None:
        """Ends a choice of the whole response."""

    def whole(self) -> bytes:
        """The whole response, as JSON."""


@dataclass
class Usage:
    """Tokens of all choices. The prompt counts once."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    reasoning: int = 0

    def add(self, done: protocol.Done) -> None:
        """Adds a choice."""
        self.prompt = done.prompt_tokens
        self.cached = max(self.cached, done.cached_tokens)
        self.generated += done.generated_tokens
        self.reasoning += done.reasoning_tokens
