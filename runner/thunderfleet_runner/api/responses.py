"""Generated tokens become OpenAI response bodies, whole or streamed. Pure: ids and times come from the caller."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thunderfleet_runner import protocol
from thunderfleet_runner.api.requests import Call


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
    """Builds the response to one call, streamed or whole. ``created`` is in seconds since 1970."""

    call: Call
    model: str
    answer_id: str
    created: int
    _tokens: list[protocol.Token] = field(default_factory=list)
    _offset: int = 0

    # streamed

    def first(self) -> dict[str, Any] | None:
        """The chunk before the first token, if there is one."""
        if self.call.endpoint != "chat":
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}})

    def token(self, token: protocol.Token) -> dict[str, Any] | None:
        """The chunk of one token; None when it has nothing for this client."""
        ids = [token.token] if token.token != protocol.NO_TOKEN else []
        if not token.text and not (self.call.return_token_ids and ids) and token.logprob is None:
            return None
        choice: dict[str, Any] = {}
        if self.call.endpoint == "chat":
            choice["delta"] = {("reasoning_content" if token.kind == "reasoning" else "content"): token.text}
        else:
            choice["text"] = token.text
        if token.logprob is not None:
            choice["logprobs"] = self._logprobs([token])
        if self.call.return_token_ids:
            choice["token_ids"] = ids
        return self._chunk(choice)

    def last(self, done: protocol.Done) -> list[dict[str, Any]]:
        """The final chunks: the finish reason, then the usage if requested."""
        choice: dict[str, Any] = {"finish_reason": done.finish_reason}
        if self.call.endpoint == "chat":
            calls = [{"index": number, **call} for number, call in enumerate(self._tool_calls(done))]
            choice["delta"] = {"tool_calls": calls} if calls else {}
        else:
            choice["text"] = ""
        chunks = [self._chunk(choice)]
        if self.call.include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(done)})
        return chunks

    # whole

    def add(self, token: protocol.Token) -> None:
        """Adds a token to the whole response."""
        self._tokens.append(token)

    def whole(self, done: protocol.Done) -> dict[str, Any]:
        """The whole response of the tokens added."""
        text = "".join(token.text for token in self._tokens if token.kind == "text")
        choice: dict[str, Any] = {"index": 0, "finish_reason": done.finish_reason, "logprobs": None}
        if self.call.endpoint == "chat":
            message: dict[str, Any] = {"role": "assistant", "content": text}
            reasoning = "".join(token.text for token in self._tokens if token.kind == "reasoning")
            if reasoning:
                message["reasoning_content"] = reasoning
            calls = self._tool_calls(done)
            if calls:
                message |= {"tool_calls": calls, "content": text or None}
            choice["message"] = message
        else:
            choice["text"] = text
        if self.call.fields.get("logprobs"):
            choice["logprobs"] = self._logprobs([token for token in self._tokens if token.logprob is not None])
        if self.call.return_token_ids:
            choice["token_ids"] = [token.token for token in self._tokens if token.token != protocol.NO_TOKEN]
        kind = "chat.completion" if self.call.endpoint == "chat" else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": usage(done)}

    # both

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.call.endpoint == "chat" else "text_completion"
        return {**self._head(kind), "choices": [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]}

    def _tool_calls(self, done: protocol.Done) -> list[dict[str, Any]]:
        return [
            {"id": f"call_{self.answer_id}_{number}", "type": "function", "function": call}
            for number, call in enumerate(done.tool_calls)
        ]

    def _logprobs(self, tokens: Sequence[protocol.Token]) -> dict[str, Any]:
        if self.call.endpoint == "chat":
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


def _spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
