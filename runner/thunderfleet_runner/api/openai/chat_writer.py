"""Responses of ``/v1/chat/completions`` and ``/v1/completions``, whole or streamed. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thunderfleet_runner import protocol
from thunderfleet_runner.api.answer.parts import CallArguments, CallBegin, End, Part, Text
from thunderfleet_runner.api.answer.writer import Event, Head, Usage
from thunderfleet_runner.api.errors import ApiError


@dataclass
class _Choice:
    """One whole choice so far. Lists of log probabilities are encoded, element by element."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """By kind."""
    ids: list[int] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)
    logprobs: dict[str, list[str]] = field(default_factory=dict)
    offset: int = 0
    end: End | None = None

    def text(self, kind: str) -> str:
        return "".join(self.texts.get(kind, ()))

    def whole_calls(self) -> list[dict[str, Any]]:
        return [
            {**call, "function": {**call["function"], "arguments": "".join(pieces)}}
            for call, pieces in zip(self.calls, self.arguments, strict=True)
        ]


class ChatWriter:
    """Both endpoints: they differ in the names of a choice's fields."""

    marks_end = True

    def __init__(self, head: Head) -> None:
        self._head = head
        self._options = head.options
        self._chat = head.options.endpoint == "chat"
        self._usage = Usage()
        self._choices = [_Choice() for _ in range(head.options.choices)]

    # streamed

    def begin(self) -> list[Event]:
        if not self._chat:
            return []
        return [self._chunk(choice, {"delta": {"role": "assistant", "content": ""}}) for choice in range(len(self._choices))]

    def part(self, choice: int, part: Part) -> list[Event]:
        match part:
            case Text():
                return self._text(choice, part)
            case CallBegin(index=index, id=identifier, name=name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": identifier, "type": "function", "function": function}
                return [self._chunk(choice, {"delta": {"tool_calls": [call]}})]
            case CallArguments(index=index, text=text):
                call = {"index": index, "function": {"arguments": text}}
                return [self._chunk(choice, {"delta": {"tool_calls": [call]}})]
        return []

    def _text(self, choice: int, part: Text) -> list[Event]:
        token = part.token
        ids = [token.token] if token is not None and token.token != protocol.NO_TOKEN else []
        scored = token if token is not None and token.logprob is not None else None
        if not part.text and not (self._options.return_token_ids and ids) and scored is None:
            return []
        fields: dict[str, Any] = {}
        if self._chat:
            fields["delta"] = {("reasoning_content" if part.kind == "reasoning" else "content"): part.text}
        else:
            fields["text"] = part.text
        if scored is not None:
            fields["logprobs"] = self._logprobs(choice, [scored])
        if self._options.return_token_ids:
            fields["token_ids"] = ids
        return [self._chunk(choice, fields)]

    def end(self, choice: int, end: End) -> list[Event]:
        self._usage.add(end.done)
        return [self._chunk(choice, {"finish_reason": end.reason, **({"delta": {}} if self._chat else {"text": ""})})]

    def finish(self) -> list[Event]:
        if not self._options.include_usage:
            return []
        return [Event({**self._top(streamed=True), "choices": [], "usage": usage(self._usage)})]

    def error(self, error: ApiError) -> Event:
        return Event(error.body())

    # whole

    def add(self, choice: int, part: Part) -> None:
        whole = self._choices[choice]
        match part:
            case Text(kind=kind, text=text, token=token):
                whole.texts.setdefault(kind, []).append(text)
                if token is not None:
                    self._add_token(choice, token)
            case CallBegin(id=identifier, name=name):
                whole.calls.append({"id": identifier, "type": "function", "function": {"name": name}})
                whole.arguments.append([])
            case CallArguments(index=index, text=text):
                whole.arguments[index].append(text)

    def _add_token(self, choice: int, token: protocol.Token) -> None:
        whole = self._choices[choice]
        if token.token != protocol.NO_TOKEN:
            whole.ids.append(token.token)
        if self._options.logprobs and token.logprob is not None:
            for name, elements in self._logprobs(choice, [token]).items():
                whole.logprobs.setdefault(name, []).extend(map(json.dumps, elements))

    def close(self, choice: int, end: End) -> None:
        self._usage.add(end.done)
        self._choices[choice].end = end

    def whole(self) -> bytes:
        choices = ", ".join(self._whole(choice) for choice in range(len(self._choices)))
        return _with({**self._top(streamed=False), "usage": usage(self._usage)}, "choices", f"[{choices}]").encode()

    def _whole(self, number: int) -> str:
        whole = self._choices[number]
        choice: dict[str, Any] = {"index": number, "finish_reason": whole.end.reason if whole.end is not None else None}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": whole.text("text")}
            if whole.text("reasoning"):
                message["reasoning_content"] = whole.text("reasoning")
            if whole.calls:
                message |= {"tool_calls": whole.whole_calls(), "content": whole.text("text") or None}
            choice["message"] = message
        else:
            choice["text"] = whole.text("text")
        if self._options.return_token_ids:
            choice["token_ids"] = whole.ids
        return _with(choice, "logprobs", self._encoded_logprobs(number))

    def _encoded_logprobs(self, choice: int) -> str:
        if not self._options.logprobs:
            return "null"
        lists = {name: self._choices[choice].logprobs.get(name, []) for name in self._logprobs(choice, [])}
        return "{" + ", ".join(f'"{name}": [{", ".join(elements)}]' for name, elements in lists.items()) + "}"

    # both

    def _top(self, *, streamed: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if streamed else "chat.completion") if self._chat else "text_completion"
        return {"id": self._head.answer_id, "object": kind, "created": self._head.created, "model": self._head.model}

    def _chunk(self, choice: int, fields: dict[str, Any]) -> Event:
        first = {"index": choice, "logprobs": None, "finish_reason": None, **fields}
        return Event({**self._top(streamed=True), "choices": [first]})

    def _logprobs(self, choice: int, tokens: Sequence[protocol.Token]) -> dict[str, list[Any]]:
        if self._chat:
            return {
                "content": [
                    {**_spelled(token.text, token.logprob or 0.0),
                     "top_logprobs": [_spelled(top.text, top.logprob) for top in token.top_logprobs]}
                    for token in tokens
                ]
            }  # fmt: skip
        whole = self._choices[choice]
        offsets: list[int] = []
        for token in tokens:
            offsets.append(whole.offset)
            whole.offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{top.text: top.logprob for top in token.top_logprobs} for token in tokens],
            "text_offset": offsets,
        }


def usage(found: Usage) -> dict[str, Any]:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": found.prompt,
        "completion_tokens": found.generated,
        "total_tokens": found.prompt + found.generated,
        "prompt_tokens_details": {"cached_tokens": found.cached},
        **({"completion_tokens_details": {"reasoning_tokens": found.reasoning}} if found.reasoning else {}),
    }


def _with(fields: dict[str, Any], name: str, encoded: str) -> str:
    """``fields`` as JSON with one more field, which is encoded already."""
    return f'{json.dumps(fields)[:-1]}, "{name}": {encoded}}}'


def _spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
