"""OpenAI's format, both ways: a client's body becomes a request of ours, tokens become a client's answer.

A request is built anew from an allow-list, never passed on: one field that mlx-lm does not expect can end every rank of a
group. What is not understood and would change the answer is refused with a sentence; what is only bookkeeping is dropped;
``seed`` is ignored and a header says so. No network and no clock here; anything may come in, only ApiError comes out.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from thunderfleet_runner import protocol

Endpoint = Literal["chat", "completion"]

MAX_DEPTH = 32
"""Nested lists and objects of a body."""
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_CONTEXT_SIZE = 4096
SMALLEST_TEMPERATURE = 1e-3
"""Below it sampling would divide by next to nothing; it is taken as greedy."""

_COMMON = frozenset({
    "model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "repetition_context_size", "presence_penalty", "presence_context_size", "frequency_penalty", "frequency_context_size",
    "logit_bias", "logprobs", "stop", "n", "seed", "return_token_ids",
})  # fmt: skip
_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "response_format"}
_COMPLETION = _COMMON | {"prompt", "echo", "best_of"}
# Bookkeeping that changes no token.
_DROPPED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
})  # fmt: skip
_IGNORED = frozenset({"seed"})
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ApiError(Exception):
    """An answer that is an error. ``status`` is HTTP's; the rest is OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


def _refuse(param: str | None, sentence: str, code: str | None = None) -> ApiError:
    return ApiError(400, sentence, param=param, code=code)


@dataclass(frozen=True)
class Limits:
    """What of the served model a request is checked against."""

    model: str
    vocabulary: int
    """Number of token ids; 0 when not known."""
    context_tokens: int
    chat_template: bool = True


@dataclass(frozen=True)
class Call:
    """A checked request, but for what only the prompt's length can tell. ``max_tokens`` unset: as many as fit."""

    endpoint: Endpoint
    fields: dict[str, Any]
    """Of protocol.Request, without ``id`` and ``max_tokens``."""
    max_tokens: int | None
    stream: bool
    include_usage: bool
    return_token_ids: bool
    ignored: tuple[str, ...] = ()

    def request(self, request_id: str, max_tokens: int) -> protocol.Request:
        return protocol.Request(id=request_id, max_tokens=max_tokens, **self.fields)


# --- in -------------------------------------------------------------------------------------------------------------


def parse(endpoint: Endpoint, raw: bytes, limits: Limits) -> Call:
    """The request in a body. Raises ApiError, whatever the bytes are."""
    body = _body(raw)
    allowed = _CHAT if endpoint == "chat" else _COMPLETION
    body = {name: value for name, value in body.items() if value is not None and name not in _DROPPED}
    unknown = sorted(set(body) - allowed)
    if unknown:
        raise _refuse(unknown[0][:64], f"{_quoted(unknown)} is not supported here; allowed are {', '.join(sorted(allowed))}")
    _model(body, limits)
    if _integer(body, "n", 1, 1 << 31, default=1) != 1:
        raise _refuse("n", "n must be 1: one answer a request")
    fields = _chat(body, limits) if endpoint == "chat" else _completion(body, limits)
    fields["sampling"] = _sampling(body, limits)
    fields["stop"] = _stop(body)
    stream = _boolean(body, "stream")
    return Call(
        endpoint=endpoint,
        fields=fields,
        max_tokens=_max_tokens(body, limits),
        stream=stream,
        include_usage=_include_usage(body, stream),
        return_token_ids=_boolean(body, "return_token_ids"),
        ignored=tuple(sorted(_IGNORED & set(body))),
    )


def fit(call: Call, prompt_tokens: int, limits: Limits) -> int:
    """How many tokens to generate at most after a prompt of so many. Raises ApiError when they do not fit the context."""
    if prompt_tokens <= 0:
        raise _refuse("messages" if call.endpoint == "chat" else "prompt", "the prompt has no tokens")
    room = limits.context_tokens - prompt_tokens
    if room < 1:
        raise _refuse(
            None,
            f"the prompt has {prompt_tokens} tokens and leaves no room: the context is {limits.context_tokens} tokens",
            "context_length_exceeded",
        )
    if call.max_tokens is not None and call.max_tokens > room:
        raise _refuse(
            "max_tokens",
            f"max_tokens is {call.max_tokens}, at most {room} fit: the context is {limits.context_tokens} tokens and the "
            f"prompt has {prompt_tokens}",
            "context_length_exceeded",
        )
    return call.max_tokens or room


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(name[:64] for name in names[:5])


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise _refuse(None, f"the body is not JSON in UTF-8: {str(error)[:200]}") from error
    if not isinstance(body, dict):
        raise _refuse(None, "the body must be a JSON object")
    _sane(body)
    return body


def _sane(body: Any) -> None:
    """Refuses what later encoders and decoders disagree on: deep nesting, huge numbers, halves of surrogate pairs."""
    waiting = [(body, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _refuse(None, f"the body is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            waiting += [(name, depth + 1) for name in value]
            waiting += [(entry, depth + 1) for entry in value.values()]
        elif isinstance(value, list):
            waiting += [(entry, depth + 1) for entry in value]
        elif isinstance(value, str):
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                raise _refuse(None, "the body has text that is not Unicode (half of a surrogate pair)")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise _refuse(None, "the body has a number that is too large")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise _refuse(None, "the body has a number that is too large")


def _model(body: Mapping[str, Any], limits: Limits) -> None:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _refuse("model", f"model must name the served model, {limits.model}")
    if model != limits.model:
        raise ApiError(
            404,
            f"the model {model[:200]!r} is not served here; {limits.model!r} is",
            param="model",
            code="model_not_found",
        )


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise _refuse(name, f"{name} must be true or false")
    return value


def _integer(body: Mapping[str, Any], name: str, low: int, high: int, *, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refuse(name, f"{name} must be an integer from {low} to {high}")
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float, *, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _refuse(name, f"{name} must be a number from {low:g} to {high:g}")
    return float(value)


def _max_tokens(body: Mapping[str, Any], limits: Limits) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    if not names:
        return None
    return _integer(body, names[0], 1, max(limits.context_tokens, 1), default=1)


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise _refuse("stream_options", "stream_options needs stream to be true")
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise _refuse("stream_options", "stream_options takes include_usage only")
    return _boolean({name: value for name, value in options.items() if value is not None}, "include_usage")


def _sampling(body: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    temperature = _number(body, "temperature", 0, 2, default=0)
    last = limits.vocabulary - 1 if limits.vocabulary else (1 << 31) - 1
    return {
        "temperature": temperature if temperature >= SMALLEST_TEMPERATURE else 0.0,
        "top_p": _number(body, "top_p", 0, 1, default=1),
        "top_k": _integer(body, "top_k", 0, last, default=0),
        "min_p": _number(body, "min_p", 0, 1, default=0),
        "repetition_penalty": _number(body, "repetition_penalty", 0, 10, default=0),
        "repetition_context_size": _integer(body, "repetition_context_size", 1, MAX_CONTEXT_SIZE, default=20),
        "presence_penalty": _number(body, "presence_penalty", -2, 2, default=0),
        "presence_context_size": _integer(body, "presence_context_size", 1, MAX_CONTEXT_SIZE, default=20),
        "frequency_penalty": _number(body, "frequency_penalty", -2, 2, default=0),
        "frequency_context_size": _integer(body, "frequency_context_size", 1, MAX_CONTEXT_SIZE, default=20),
        "logit_bias": _logit_bias(body, last),
    }


def _logit_bias(body: Mapping[str, Any], last: int) -> dict[int, float]:
    value = body.get("logit_bias", {})
    sentence = f"logit_bias must map token ids from 0 to {last} to numbers from -100 to 100, at most {MAX_BIASES} of them"
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise _refuse("logit_bias", sentence)
    biases: dict[int, float] = {}
    for token, bias in value.items():
        usable = token.isascii() and token.isdigit() and len(token) < 12 and int(token) <= last
        if not usable or isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise _refuse("logit_bias", sentence)
        biases[int(token)] = float(bias)
    return biases


def _stop(body: Mapping[str, Any]) -> list[str]:
    value = body.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise _refuse("stop", f"stop must be a non-empty string or a list of at most {MAX_STOPS} of them")
    return stops


def _top_logprobs(value: int, limits: Limits) -> int:
    # mlx-lm partitions by it, and falls over at the vocabulary's size.
    return min(value, limits.vocabulary - 1) if limits.vocabulary else value


def _chat(body: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    if not limits.chat_template:
        raise _refuse("messages", f"{limits.model} has no chat template; use /v1/completions")
    logprobs = _boolean(body, "logprobs")
    top = _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS, default=0)
    if top and not logprobs:
        raise _refuse("top_logprobs", "top_logprobs needs logprobs to be true")
    form = body.get("response_format", {"type": "text"})
    if not isinstance(form, dict) or form.get("type") != "text":
        raise _refuse("response_format", 'response_format can only be {"type": "text"}')
    tools = _tools(body)
    return {
        "kind": "chat",
        "messages": _messages(body.get("messages")),
        "tools": tools,
        "logprobs": logprobs,
        "top_logprobs": _top_logprobs(top, limits),
    }


def _completion(body: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    for name, default in (("echo", False), ("best_of", 1)):
        if body.get(name, default) not in (default,):
            raise _refuse(name, f"{name} can only be {json.dumps(default)}")
    fields = _prompt(body.get("prompt"), limits)
    # Here logprobs is a number: the alternatives to show, of which there may be none.
    wanted = body.get("logprobs", False)
    if wanted is not False:
        top = _integer(body, "logprobs", 0, MAX_TOP_LOGPROBS, default=0)
        fields |= {"logprobs": True, "top_logprobs": _top_logprobs(top, limits)}
    return fields


def _prompt(prompt: Any, limits: Limits) -> dict[str, Any]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return {"kind": "completion", "prompt": prompt}
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        if min(prompt) < 0 or (limits.vocabulary and max(prompt) >= limits.vocabulary):
            raise _refuse("prompt", f"the prompt's token ids must be from 0 to {limits.vocabulary - 1}")
        if len(prompt) > limits.context_tokens:
            raise _refuse(
                "prompt",
                f"the prompt has {len(prompt)} tokens, the context is {limits.context_tokens}",
                "context_length_exceeded",
            )
        return {"kind": "tokens", "tokens": prompt}
    raise _refuse("prompt", "prompt must be one non-empty string or one non-empty list of token ids")


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _refuse("messages", "messages must be a non-empty list")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(where, f"{where} must be an object with role and content")
    role = value.get("role")
    if role not in _ROLES:
        raise _refuse(f"{where}.role", f"{where}.role must be one of {', '.join(_ROLES)}")
    # Templates know system; developer is OpenAI's newer name of it.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(value.get("tool_calls"), where)
    if calls and role != "assistant":
        raise _refuse(f"{where}.tool_calls", f"{where}.tool_calls belongs to the role assistant only")
    message["content"] = _content(value.get("content"), where, optional=bool(calls))
    if calls:
        message["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        text = value.get(name)
        if text is not None:
            if not isinstance(text, str):
                raise _refuse(f"{where}.{name}", f"{where}.{name} must be a string")
            message[name] = text
    return message


def _content(value: Any, where: str, *, optional: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and optional:
        return ""
    if isinstance(value, list):
        texts: list[str] = []
        for part in value:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise _refuse(f"{where}.content", f"{where}.content can only have parts of type text")
            texts.append(part["text"])
        return "".join(texts)
    raise _refuse(f"{where}.content", f"{where}.content must be a string or a list of text parts")


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    sentence = f"{where}.tool_calls must be a list of function calls, their arguments a JSON object in a string"
    calls: list[dict[str, Any]] = []
    if not isinstance(value, list):
        raise _refuse(f"{where}.tool_calls", sentence)
    for call in value:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _refuse(f"{where}.tool_calls", sentence)
        arguments = function.get("arguments") or "{}"
        try:
            parsed = json.loads(arguments, parse_constant=_constant) if isinstance(arguments, str) else None
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise _refuse(f"{where}.tool_calls", sentence)
        _sane(parsed)
        entry: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        if isinstance(call.get("id"), str):
            entry["id"] = call["id"]
        calls.append(entry)
    return calls


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools", [])
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise _refuse("tool_choice", "tool_choice can only be auto or none")
    sentence = "tools must be a list of functions, each with a name"
    if not isinstance(tools, list):
        raise _refuse("tools", sentence)
    kept: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise _refuse("tools", sentence)
        parts = {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}
        if not isinstance(parts.get("parameters", {}), dict) or not isinstance(parts.get("description", ""), str):
            raise _refuse("tools", "a tool's description must be a string and its parameters an object")
        kept.append({"type": "function", "function": parts})
    return [] if choice == "none" else kept


# --- out ------------------------------------------------------------------------------------------------------------


def models(model: str, created: int) -> dict[str, Any]:
    """``GET /v1/models``. ``created`` is in seconds since 1970."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": created, "owned_by": "thunderfleet"}]}


def usage(done: protocol.Done) -> dict[str, Any]:
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.generated_tokens,
        "total_tokens": done.prompt_tokens + done.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }


@dataclass
class Writer:
    """Makes the answer to one call, in pieces or whole. ``answer_id`` and ``created`` (seconds) are the caller's."""

    call: Call
    model: str
    answer_id: str
    created: int
    _tokens: list[protocol.Token] = field(default_factory=list)
    _offset: int = 0

    # streamed

    def first(self) -> dict[str, Any] | None:
        """What precedes the first token."""
        if self.call.endpoint != "chat":
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}})

    def token(self, token: protocol.Token) -> dict[str, Any] | None:
        """One step; None when it says nothing to this client."""
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
        """The end: the finish reason, then the usage if it was asked for."""
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
        self._tokens.append(token)

    def whole(self, done: protocol.Done) -> dict[str, Any]:
        """The whole answer of the tokens added."""
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


def allowed_fields(endpoint: Endpoint) -> Collection[str]:
    """The fields that ``parse`` understands, for documentation and tests."""
    return _CHAT if endpoint == "chat" else _COMPLETION
