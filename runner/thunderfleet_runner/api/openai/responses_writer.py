"""Responses of ``/v1/responses``, whole or streamed. Pure."""

import itertools
import json
from typing import Any

from thunderfleet_runner.api.answer.blocks import Block, Blocks, Change
from thunderfleet_runner.api.answer.parts import End, Part
from thunderfleet_runner.api.answer.writer import Event, Head
from thunderfleet_runner.api.errors import ApiError

_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}


class ResponsesWriter:
    """One response. Each block of the answer is an item of its output."""

    marks_end = False

    def __init__(self, head: Head) -> None:
        self._head = head
        self._blocks = Blocks()
        self._numbers = itertools.count()
        self._end: End | None = None
        self._echo: dict[str, Any] = json.loads(head.options.echo) if head.options.echo else {}

    # streamed

    def begin(self) -> list[Event]:
        response = self._response("in_progress")
        return [self._event("response.created", response=response), self._event("response.in_progress", response=response)]

    def part(self, choice: int, part: Part) -> list[Event]:
        return [event for change in self._blocks.feed(part) for event in self._events(change)]

    def end(self, choice: int, end: End) -> list[Event]:
        closing = [event for change in self._blocks.close() for event in self._events(change)]
        self._end = end
        status = _status(end)
        return [*closing, self._event(f"response.{status}", response=self._response(status))]

    def finish(self) -> list[Event]:
        return []

    def error(self, error: ApiError) -> Event:
        failed = self._response("failed") | {"error": {"code": "server_error", "message": str(error)}}
        return self._event("response.failed", response=failed)

    # whole

    def add(self, choice: int, part: Part) -> None:
        self._blocks.feed(part)

    def close(self, choice: int, end: End) -> None:
        self._end = end

    def whole(self) -> bytes:
        status = _status(self._end) if self._end is not None else "failed"
        return json.dumps(self._response(status)).encode()

    # --- inside ---

    def _event(self, type_: str, /, **fields: Any) -> Event:
        return Event({"type": type_, "sequence_number": next(self._numbers), **fields}, type_)

    def _events(self, change: Change) -> list[Event]:
        block = change.block
        place = {"item_id": self._id(block), "output_index": block.index}
        within = place if block.kind == "call" else {**place, "content_index": 0}
        match change.kind:
            case "open":
                added = self._event(
                    "response.output_item.added", output_index=block.index, item=self._item(block, "in_progress")
                )
                if block.kind == "call":
                    return [added]
                return [added, self._event("response.content_part.added", **within, part=_part(block, ""))]
            case "more":
                more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
                return [self._event(f"response.{_channel(block)}.delta", **within, delta=change.text, **more)]
            case "close":
                return self._closed(block, within)

    def _closed(self, block: Block, within: dict[str, Any]) -> list[Event]:
        name = f"response.{_channel(block)}.done"
        if block.kind == "call":
            ended = [self._event(name, **within, arguments=block.text, name=block.name)]
        else:
            more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
            ended = [
                self._event(name, **within, text=block.text, **more),
                self._event("response.content_part.done", **within, part=_part(block, block.text)),
            ]
        item = self._item(block, "completed")
        return [*ended, self._event("response.output_item.done", output_index=block.index, item=item)]

    def _id(self, block: Block) -> str:
        return f"{_PREFIX[block.kind]}_{self._head.answer_id}_{block.index}"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        text = "" if status == "in_progress" else block.text
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        match block.kind:
            case "text":
                content = [] if status == "in_progress" else [_part(block, text)]
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "reasoning":
                content = [] if status == "in_progress" else [_part(block, text)]
                return {**item, "type": "reasoning", "summary": [], "content": content}
            case "call":
                return {**item, "type": "function_call", "call_id": block.id, "name": block.name, "arguments": text}

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._head.answer_id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._head.model,
            "output": [] if self._end is None else self._output(status),
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None if self._end is None else _usage(self._end),
            **self._echo,
        }

    def _output(self, status: str) -> list[dict[str, Any]]:
        last = len(self._blocks.all) - 1
        return [
            self._item(block, "incomplete" if status == "incomplete" and block.index == last else "completed")
            for block in self._blocks.all
        ]


def _channel(block: Block) -> str:
    return {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}[block.kind]


def _part(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(end: End) -> str:
    return "incomplete" if end.reason == "length" else "completed"


def _usage(end: End) -> dict[str, Any]:
    done = end.done
    return {
        "input_tokens": done.prompt_tokens,
        "input_tokens_details": {"cached_tokens": done.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": done.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
        "total_tokens": done.prompt_tokens + done.generated_tokens,
    }
