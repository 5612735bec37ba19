"""Generated tokens become OpenAI response bodies, whole or streamed. Pure: ids and times come from the caller."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thunderfleet_runner import protocol
from thunderfleet_runner.intakeprotocol import Options, ToolsParsed


def models(model: str, created: int) -> dict[str, Any]:
    """``GET /v1/models``. ``created`` is in seconds since 1970."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": created, "owned_by": "thunderfleet"}]}


def usage(done: protocol.Done) -> dict[str, Any]:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.generated_tokens,
        "total_tokens": done.prompt_tokens + done.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }


@dataclass
class Writer:
    """Builds the response to one request, streamed or whole. ``created`` is in seconds since 1970.

    A whole response is encoded token by token as they arrive: with log probabilities it has megabytes, and encoding them at
    once would stop the supervisor for seconds.
    """

    options: Options
    model: str
    answer_id: str
    created: int
    _texts: dict[str, list[str]] = field(default_factory=dict)
    """By the tokens' kind."""
    _ids: list[int] = field(default_factory=list)
    _encoded: dict[str, list[str]] = field(default_factory=dict)
    """Encoded elements of the lists of log probabilities, by the list's name."""
    _offset: int = 0

    # streamed

    def first(self) -> dict[str, Any] | None:
        """The chunk before the first token, if there is one."""
        if self.options.endpoint != "chat":
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}})

    def token(self, token: protocol.Token) -> dict[str, Any] | None:
        """The chunk of one token; None when it has nothing for this client."""
        ids = [token.token] if token.token != protocol.NO_TOKEN else []
        if not token.text and not (self.options.return_token_ids and ids) and token.logprob is None:
            return None
        choice: dict[str, Any] = {}
        if self.options.endpoint == "chat":
            choice["delta"] = {("reasoning_content" if token.kind == "reasoning" else "content"): token.text}
        else:
            choice["text"] = token.text
        if token.logprob is not None:
            choice["logprobs"] = self._logprobs([token])
        if self.options.return_token_ids:
            choice["token_ids"] = ids
        return self._chunk(choice)

    def last(self, done: protocol.Done, tools: ToolsParsed) -> list[dict[str, Any]]:
        """The final chunks: text that is no tool call after all, the finish reason, then the usage if requested."""
        choice: dict[str, Any] = {"finish_reason": _finish_reason(done, tools)}
        if self.options.endpoint == "chat":
            calls = [{"index": number, **call} for number, call in enumerate(self._tool_calls(tools))]
            choice["delta"] = {"tool_calls": calls} if calls else {}
        else:
            choice["text"] = ""
        more = self.token(_unparsed(done, tools))
        chunks = [self._chunk(choice)] if more is None else [more, self._chunk(choice)]
        if self.options.include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(done)})
        return chunks

    # whole

    def add(self, token: protocol.Token) -> None:
        """Adds a token to the whole response."""
        self._texts.setdefault(token.kind, []).append(token.text)
        if token.token != protocol.NO_TOKEN:
            self._ids.append(token.token)
        if self.options.logprobs and token.logprob is not None:
            for name, elements in self._logprobs([token]).items():
                self._encoded.setdefault(name, []).extend(map(json.dumps, elements))

    def whole(self, done: protocol.Done, tools: ToolsParsed) -> bytes:
        """The whole response of the tokens added, as JSON."""
        text = "".join([*self._texts.get("text", ()), *tools.unparsed])
        choice: dict[str, Any] = {"index": 0, "finish_reason": _finish_reason(done, tools)}
        if self.options.endpoint == "chat":
            message: dict[str, Any] = {"role": "assistant", "content": text}
            reasoning = "".join(self._texts.get("reasoning", ()))
            if reasoning:
                message["reasoning_content"] = reasoning
            calls = self._tool_calls(tools)
            if calls:
                message |= {"tool_calls": calls, "content": text or None}
            choice["message"] = message
        else:
            choice["text"] = text
        if self.options.return_token_ids:
            choice["token_ids"] = self._ids
        kind = "chat.completion" if self.options.endpoint == "chat" else "text_completion"
        choices = f"[{_with(choice, 'logprobs', self._encoded_logprobs())}]"
        return _with({**self._head(kind), "usage": usage(done)}, "choices", choices).encode()

    def _encoded_logprobs(self) -> str:
        if not self.options.logprobs:
            return "null"
        lists = {name: self._encoded.get(name, []) for name in self._logprobs([])}
        return "{" + ", ".join(f'"{name}": [{", ".join(elements)}]' for name, elements in lists.items()) + "}"

    # both

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.options.endpoint == "chat" else "text_completion"
        return {**self._head(kind), "choices": [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]}

    def _tool_calls(self, tools: ToolsParsed) -> list[dict[str, Any]]:
        return [
            {"id": f"call_{self.answer_id}_{number}", "type": "function", "function": call}
            for number, call in enumerate(tools.calls)
        ]

    def _logprobs(self, tokens: Sequence[protocol.Token]) -> dict[str, list[Any]]:
        if self.options.endpoint == "chat":
            return {
                "content": [
                    {**_spelled(token.text, token.logprob or 0.0),
                     "top_logprobs": [_spelled(top.text, top.logprob) for top in token.top_logprobs]}
                    for token in tokens
                ]
            }  # fmt: skip
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{top.text: top.logprob for top in token.top_logprobs} for token in tokens],
            "text_offset": offsets,
        }


def _finish_reason(done: protocol.Done, tools: ToolsParsed) -> str:
    return "tool_calls" if tools.calls and done.finish_reason == "stop" else done.finish_reason


def _unparsed(done: protocol.Done, tools: ToolsParsed) -> protocol.Token:
    return protocol.Token(id=done.id, token=protocol.NO_TOKEN, text="".join(tools.unparsed))


def _with(fields: dict[str, Any], name: str, encoded: str) -> str:
    """``fields`` as JSON with one more field, which is encoded already."""
    return f'{json.dumps(fields)[:-1]}, "{name}": {encoded}}}'


def _spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
