"""Responses of ``/v1/messages``, whole or streamed. Pure."""

import json
from typing import Any

from thunderfleet_lib.httpapi.errors import ApiError, anthropic

from thunderfleet_runner.api.answer.blocks import Block, Blocks, Change
from thunderfleet_runner.api.answer.parts import End, Part
from thunderfleet_runner.api.answer.writer import Event, Head

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessagesWriter:
    """One message."""

    marks_end = False

    def __init__(self, head: Head) -> None:
        self._head = head
        self._blocks = Blocks()
        self._end: End | None = None

    # streamed

    def begin(self) -> list[Event]:
        start = {**self._message(), "content": [], "usage": _usage(self._head.prompt_tokens, 0, 0)}
        return [_event("message_start", message=start)]

    def part(self, choice: int, part: Part) -> list[Event]:
        return [event for change in self._blocks.feed(part) for event in _events(change)]

    def end(self, choice: int, end: End) -> list[Event]:
        reason, stop = _stop(end)
        done = end.done
        closing = [event for change in self._blocks.close() for event in _events(change)]
        usage = _usage(done.prompt_tokens, done.cached_tokens, done.generated_tokens)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        return [*closing, _event("message_delta", delta=delta, usage=usage), _event("message_stop")]

    def finish(self) -> list[Event]:
        return []

    def error(self, error: ApiError) -> Event:
        return Event(anthropic(error), "error")

    # whole

    def add(self, choice: int, part: Part) -> None:
        self._blocks.feed(part)

    def close(self, choice: int, end: End) -> None:
        self._end = end

    def whole(self) -> bytes:
        message = self._message()
        if self._end is not None:
            done = self._end.done
            message["stop_reason"], message["stop_sequence"] = _stop(self._end)
            message["usage"] = _usage(done.prompt_tokens, done.cached_tokens, done.generated_tokens)
        return json.dumps({**message, "content": [_whole(block) for block in self._blocks.all]}).encode()

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._head.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "stop_reason": None,
            "stop_sequence": None,
        }


def _event(name: str, /, **fields: Any) -> Event:
    return Event({"type": name, **fields}, name)


def _events(change: Change) -> list[Event]:
    index = change.block.index
    match change.kind:
        case "open":
            return [_event("content_block_start", index=index, content_block=_empty(change.block))]
        case "more":
            return [_event("content_block_delta", index=index, delta=_delta(change))]
        case "close":
            return [_event("content_block_stop", index=index)]


def _empty(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}


def _delta(change: Change) -> dict[str, Any]:
    match change.block.kind:
        case "text":
            return {"type": "text_delta", "text": change.text}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": change.text}
        case "call":
            return {"type": "input_json_delta", "partial_json": change.text}


def _whole(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text}
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block.text)}


def _input(arguments: str) -> Any:
    """A call's arguments. Those of one that was cut may be incomplete."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _stop(end: End) -> tuple[str, str | None]:
    if end.reason == "stop" and end.done.stop:
        return "stop_sequence", end.done.stop
    return _REASONS.get(end.reason, "end_turn"), None


def _usage(prompt: int, cached: int, generated: int) -> dict[str, int]:
    """Anthropic counts cached tokens separately."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }
