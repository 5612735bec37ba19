"""Converts the body of an OpenAI request into a request to the ranks. Pure.

The request is built from an allow-list and never passed on as received: one field that mlx-lm does not expect can end every
rank of a group. A field that is not supported and would change the answer is refused with a message, a field that is only
bookkeeping is dropped, and ``seed`` is ignored, which a response header says. Any bytes may come in; only ApiError is raised.

It runs in the intake process: parsing 16 MiB takes longer than heartbeats may pause.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_lib import jsonbounds

from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.intakeprotocol import Endpoint, ModelLimits, Options, Prepare, Prepared, Rejected
from thunderfleet_runner.protocol import Prompt

MAX_VALUES = 100_000
"""Values and names in a body, in addition to the tokens of the context, which a prompt may list one by one."""
MAX_DEPTH = 32
"""Levels of nested lists and objects in a body."""
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
"""Rank 0 compares the text with all beginnings of a stop string, between two steps of the whole group."""
MAX_BIASES = 1024
MAX_CONTEXT_SIZE = 4096
SMALLEST_TEMPERATURE = 1e-3
"""A lower temperature means greedy: sampling would divide by almost zero."""

_COMMON = frozenset({
    "model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "repetition_context_size", "presence_penalty", "presence_context_size", "frequency_penalty", "frequency_context_size",
    "logit_bias", "logprobs", "stop", "n", "seed", "return_token_ids",
})  # fmt: skip
_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "response_format"}
_COMPLETION = _COMMON | {"prompt", "echo", "best_of"}
# Bookkeeping that does not change the answer.
_DROPPED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
})  # fmt: skip
_IGNORED = frozenset({"seed"})
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Call:
    """A checked request; only the prompt's length in tokens is unknown. ``max_tokens`` None: as many as fit."""

    endpoint: Endpoint
    fields: dict[str, Any]
    """The prompt: ``messages`` and ``tools``, ``prompt`` or ``tokens``; and ``Options``' sampling, stop and logprobs."""
    max_tokens: int | None
    stream: bool
    include_usage: bool
    return_token_ids: bool
    ignored: tuple[str, ...] = ()

    def options(self, max_tokens: int) -> Options:
        """What the client asks for besides its prompt."""
        tools = self.fields.get("tools")
        return Options(
            endpoint=self.endpoint,
            max_tokens=max_tokens,
            stream=self.stream,
            include_usage=self.include_usage,
            return_token_ids=self.return_token_ids,
            ignored=self.ignored,
            stop=self.fields["stop"],
            logprobs=self.fields.get("logprobs", False),
            top_logprobs=self.fields.get("top_logprobs", 0),
            sampling=self.fields["sampling"],
            tools=json.dumps(tools) if tools else "",
        )


def prepare(question: Prepare, raw: bytes, tokenize: Callable[[Call], Prompt]) -> Prepared | Rejected:
    """The request in a body, in tokens. ``tokenize`` may raise ApiError."""
    try:
        call = parse(question.endpoint, raw, question.limits)
        prompt = tokenize(call)
        vocabulary = question.limits.vocabulary
        highest = max((max(segment, default=0) for segment in prompt.unpacked()), default=0)
        if vocabulary and highest >= vocabulary:
            raise refused(None, f"the prompt contains token id {highest}; the model has ids 0 to {vocabulary - 1} only")
        return Prepared(options=call.options(fit(call, prompt.count, question.limits)), prompt=prompt)
    except ApiError as error:
        return Rejected(status=error.status, message=str(error), error=error.type, param=error.param, code=error.code)


def parse(endpoint: Endpoint, raw: bytes, limits: ModelLimits) -> Call:
    """The request in a body. Raises ApiError, whatever the bytes are."""
    body = _body(raw, limits)
    allowed = _CHAT if endpoint == "chat" else _COMPLETION
    body = {name: value for name, value in body.items() if value is not None and name not in _DROPPED}
    unknown = sorted(set(body) - allowed)
    if unknown:
        raise refused(unknown[0][:64], f"not supported: {_quoted(unknown)}; allowed fields are {', '.join(sorted(allowed))}")
    _model(body, limits)
    if _integer(body, "n", 1, 1 << 31, default=1) != 1:
        raise refused("n", "n must be 1")
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


def fit(call: Call, prompt_tokens: int, limits: ModelLimits) -> int:
    """Maximum tokens to generate after a prompt of ``prompt_tokens``. Raises ApiError when they exceed the context."""
    if prompt_tokens <= 0:
        raise refused("messages" if call.endpoint == "chat" else "prompt", "the prompt has no tokens")
    room = limits.context_tokens - prompt_tokens
    if room < 1:
        raise refused(
            None,
            f"the prompt has {prompt_tokens} tokens, which leaves no room in the context of {limits.context_tokens} tokens",
            "context_length_exceeded",
        )
    if call.max_tokens is not None and call.max_tokens > room:
        raise refused(
            "max_tokens",
            f"max_tokens is {call.max_tokens}, at most {room} fit: the context is {limits.context_tokens} tokens, "
            f"the prompt has {prompt_tokens}",
            "context_length_exceeded",
        )
    return call.max_tokens or room


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(name[:64] for name in names[:5])


def _body(raw: bytes, limits: ModelLimits) -> dict[str, Any]:
    try:
        body = jsonbounds.loads(raw, values=MAX_VALUES + limits.context_tokens, depth=MAX_DEPTH)
    except jsonbounds.TooLarge as error:
        raise refused(None, f"the body is too large: {error}") from error
    except ValueError as error:
        raise refused(None, f"the body is not JSON in UTF-8: {str(error)[:200]}") from error
    if not isinstance(body, dict):
        raise refused(None, "the body must be a JSON object")
    _sane(body)
    return body


def _sane(body: Any) -> None:
    """Refuses what later encoders and decoders disagree on: huge numbers, lone surrogates."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise refused(None, "the body has text that is not valid Unicode (a lone surrogate)") from error
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise refused(None, "the body has a number that is too large")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise refused(None, "the body has a number that is too large")


def _model(body: Mapping[str, Any], limits: ModelLimits) -> None:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise refused("model", f"model must name the served model, {limits.model}")
    if model != limits.model:
        raise ApiError(
            404,
            f"the model {model[:200]!r} is not served here; use {limits.model!r}",
            param="model",
            code="model_not_found",
        )


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise refused(name, f"{name} must be true or false")
    return value


def _integer(body: Mapping[str, Any], name: str, low: int, high: int, *, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refused(name, f"{name} must be an integer from {low} to {high}")
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float, *, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise refused(name, f"{name} must be a number from {low:g} to {high:g}")
    return float(value)


def _max_tokens(body: Mapping[str, Any], limits: ModelLimits) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    if not names:
        return None
    return _integer(body, names[0], 1, max(limits.context_tokens, 1), default=1)


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise refused("stream_options", "stream_options requires stream to be true")
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise refused("stream_options", "stream_options accepts only include_usage")
    return _boolean({name: value for name, value in options.items() if value is not None}, "include_usage")


def _sampling(body: Mapping[str, Any], limits: ModelLimits) -> dict[str, Any]:
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
    sentence = f"logit_bias must map at most {MAX_BIASES} token ids from 0 to {last} to numbers from -100 to 100"
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise refused("logit_bias", sentence)
    biases: dict[int, float] = {}
    for token, bias in value.items():
        usable = token.isascii() and token.isdigit() and len(token) < 12 and int(token) <= last
        if not usable or isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise refused("logit_bias", sentence)
        biases[int(token)] = float(bias)
    return biases


def _stop(body: Mapping[str, Any]) -> list[str]:
    value = body.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops)
    ):
        raise refused(
            "stop", f"stop must be a string of 1 to {MAX_STOP_CHARACTERS} characters or a list of at most {MAX_STOPS} of them"
        )
    return stops


def _top_logprobs(value: int, limits: ModelLimits) -> int:
    # mlx-lm partitions by this number and fails when it equals the size of the vocabulary.
    return min(value, limits.vocabulary - 1) if limits.vocabulary else value


def _chat(body: Mapping[str, Any], limits: ModelLimits) -> dict[str, Any]:
    if not limits.chat_template:
        raise refused("messages", f"{limits.model} has no chat template; use /v1/completions")
    logprobs = _boolean(body, "logprobs")
    top = _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS, default=0)
    if top and not logprobs:
        raise refused("top_logprobs", "top_logprobs requires logprobs to be true")
    form = body.get("response_format", {"type": "text"})
    if not isinstance(form, dict) or form.get("type") != "text":
        raise refused("response_format", 'response_format must be {"type": "text"}')
    tools = _tools(body)
    return {
        "kind": "chat",
        "messages": _messages(body.get("messages")),
        "tools": tools,
        "logprobs": logprobs,
        "top_logprobs": _top_logprobs(top, limits),
    }


def _completion(body: Mapping[str, Any], limits: ModelLimits) -> dict[str, Any]:
    for name, default in (("echo", False), ("best_of", 1)):
        if body.get(name, default) not in (default,):
            raise refused(name, f"{name} must be {json.dumps(default)}")
    fields = _prompt(body.get("prompt"), limits)
    # In this endpoint logprobs is the number of alternatives to return, which may be 0.
    wanted = body.get("logprobs", False)
    if wanted is not False:
        top = _integer(body, "logprobs", 0, MAX_TOP_LOGPROBS, default=0)
        fields |= {"logprobs": True, "top_logprobs": _top_logprobs(top, limits)}
    return fields


def _prompt(prompt: Any, limits: ModelLimits) -> dict[str, Any]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return {"kind": "completion", "prompt": prompt}
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        if min(prompt) < 0 or (limits.vocabulary and max(prompt) >= limits.vocabulary):
            raise refused("prompt", f"the prompt's token ids must be from 0 to {limits.vocabulary - 1}")
        if len(prompt) > limits.context_tokens:
            raise refused(
                "prompt",
                f"the prompt has {len(prompt)} tokens, the context is {limits.context_tokens} tokens",
                "context_length_exceeded",
            )
        return {"kind": "tokens", "tokens": prompt}
    raise refused("prompt", "prompt must be one non-empty string or one non-empty list of token ids")


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise refused("messages", "messages must be a non-empty list")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(where, f"{where} must be an object with role and content")
    role = value.get("role")
    if role not in _ROLES:
        raise refused(f"{where}.role", f"{where}.role must be one of {', '.join(_ROLES)}")
    # Templates know system; developer is OpenAI's newer name for it.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(value.get("tool_calls"), where)
    if calls and role != "assistant":
        raise refused(f"{where}.tool_calls", f"{where}.tool_calls is allowed for the role assistant only")
    message["content"] = _content(value.get("content"), where, optional=bool(calls))
    if calls:
        message["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        text = value.get(name)
        if text is not None:
            if not isinstance(text, str):
                raise refused(f"{where}.{name}", f"{where}.{name} must be a string")
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
                raise refused(f"{where}.content", f"{where}.content must have parts of type text only")
            texts.append(part["text"])
        return "".join(texts)
    raise refused(f"{where}.content", f"{where}.content must be a string or a list of text parts")


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    sentence = f"{where}.tool_calls must be a list of function calls with arguments as a JSON object in a string"
    calls: list[dict[str, Any]] = []
    if not isinstance(value, list):
        raise refused(f"{where}.tool_calls", sentence)
    for call in value:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refused(f"{where}.tool_calls", sentence)
        arguments = function.get("arguments") or "{}"
        try:
            parsed = _arguments(arguments) if isinstance(arguments, str) else None
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise refused(f"{where}.tool_calls", sentence)
        _sane(parsed)
        entry: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        if isinstance(call.get("id"), str):
            entry["id"] = call["id"]
        calls.append(entry)
    return calls


def _arguments(text: str) -> Any:
    """Raises ValueError for what is not JSON, or too much of it."""
    return jsonbounds.loads(text.encode(), values=MAX_VALUES, depth=MAX_DEPTH)


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools", [])
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise refused("tool_choice", "tool_choice must be auto or none")
    sentence = "tools must be a list of functions, each with a name"
    if not isinstance(tools, list):
        raise refused("tools", sentence)
    kept: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise refused("tools", sentence)
        parts = {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}
        if not isinstance(parts.get("parameters", {}), dict) or not isinstance(parts.get("description", ""), str):
            raise refused("tools", "a tool's description must be a string and its parameters an object")
        kept.append({"type": "function", "function": parts})
    return [] if choice == "none" else kept


def allowed_fields(endpoint: Endpoint) -> Collection[str]:
    """The fields that ``parse`` understands, for documentation and tests."""
    return _CHAT if endpoint == "chat" else _COMPLETION
