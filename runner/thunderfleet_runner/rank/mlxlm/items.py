"""The items that mlx-lm's loop reports about a request, as our own types."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlx_lm import server as _server
from mlx_lm.tool_parsers import json_tools

from thunderfleet_runner.rank.mlxlm import families


@dataclass(frozen=True)
class Admitted:
    """The loop has admitted the request. ``stop()`` ends it after the running step."""

    prompt_tokens: int
    cached_tokens: int
    initial_state: str
    machine: Any
    stop: Callable[[], None]


@dataclass(frozen=True)
class Sampled:
    """One token. ``top`` are (id, log probability) in mlx-lm's order, which is not sorted."""

    token: int
    text: str
    logprob: float
    finish_reason: str | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Finished:
    """The request has ended."""


@dataclass(frozen=True)
class Prefilling:
    """A step of the prompt is computed."""


@dataclass(frozen=True)
class Embedded:
    """The vectors of a request for them: float32, one after the other. The request has ended."""

    tokens: int
    vectors: bytes


@dataclass(frozen=True)
class Broken:
    """This request failed."""

    error: Exception


def classify(item: Any) -> Admitted | Sampled | Finished | Prefilling | Broken:
    """mlx-lm's queue item as one of ours. Raises TypeError for an unknown one."""
    match item:
        case None:
            return Finished()
        case Exception():
            return Broken(item)
        case _server.GenerationContext():
            return Admitted(
                prompt_tokens=len(item.prompt),
                cached_tokens=max(item.prompt_cache_count, 0),
                initial_state=item.initial_state,
                machine=item.text_sm,
                stop=item.stop,
            )
        case _server.Response():
            top = tuple((int(entry["id"]), float(entry["logprob"])) for entry in item.top_tokens)
            return Sampled(int(item.token), item.text, float(item.logprob), item.finish_reason, top)
        case tuple():
            return Prefilling()
    raise TypeError(f"mlx-lm's loop reported an unknown {type(item).__name__}")


class TextMachine:
    """Splits decoded text into kinds (normal, reasoning, tool) and strips the marks between them."""

    def __init__(self, machine: Any, initial: str) -> None:
        self._state = machine.make_state(initial)

    def feed(self, text: str, finish_reason: str | None) -> list[tuple[str, str]]:
        """(kind, text) in order; the last kind is the one of the next text. At the end, nothing is held back.

        mlx-lm drops what it holds back when a stop word ended the answer; here it never gets stop words, so that is text.
        """
        machine = _server.TextStateMachine
        self._state, segments = machine.split(self._state, text)
        pieces = [(str(kind), str(piece)) for kind, piece in segments]
        if finish_reason is not None:
            self._state, rest, kind = machine.flush(self._state)
            pieces.append((str(kind or "normal"), str(rest)))
        return pieces


def call_format(tokenizer: Any) -> Literal["marked", "json", "bare"]:
    """How a model writes tool calls: see ``intakeprotocol.Options``."""
    if tokenizer.tool_parser is families.llama:
        return "bare"
    return "json" if tokenizer.tool_parser is json_tools.parse_tool_call else "marked"


def parse_tools(parser: Any, tools: Sequence[dict[str, Any]], texts: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """OpenAI's ``function`` objects from what the model wrote between its tool marks, and the texts that are no tool calls.

    A model may write anything there, and mlx-lm's parsers do not expect that: any exception makes the text an unparsed one.
    """
    calls: list[dict[str, Any]] = []
    unread: list[str] = []
    for text in texts:
        try:
            # Some parsers modify their arguments.
            parsed = parser(text, json.loads(json.dumps(list(tools))))
            found = [_function(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
        except Exception:
            unread.append(text)
        else:
            calls += found
    return calls, unread


def _function(call: Any) -> dict[str, Any]:
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call has no name")
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
