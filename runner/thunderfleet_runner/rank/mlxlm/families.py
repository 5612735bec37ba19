"""Formats of chats that mlx-lm does not support: the tool calls of DeepSeek, Llama 3 and gpt-oss, and gpt-oss' channels.

They are those of the models' published chat templates, and of OpenAI's description of harmony. ``adopt`` gives a tokenizer
what mlx-lm's loader would have given it for a format that it supports. Parsers take what the model wrote between the marks.
"""

import json
import re
from collections.abc import Callable
from typing import Any

Parser = Callable[[str, Any], list[dict[str, Any]]]

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCED = re.compile(r"([^\n`]+)\n```json\n(.*?)\n?```\s*", re.DOTALL)
_DSML = "｜DSML｜"
_INVOKE = re.compile(rf'<{_DSML}invoke name="([^"]+)">(.*?)</{_DSML}invoke>', re.DOTALL)
_PARAMETER = re.compile(rf'<{_DSML}parameter name="([^"]+)" string="(true|false)">(.*?)</{_DSML}parameter>', re.DOTALL)
_HARMONY = {
    "initial_state": "header",
    "transitions": {
        "header": [
            ("<|channel|>analysis<|message|>", "reasoning"),
            ("<|channel|>final<|message|>", "normal"),
            ("<|channel|>commentary<|message|>", "normal"),
            (" to=functions.", "tool"),
        ],
        "reasoning": [("<|end|>", "header")],
        "normal": [("<|end|>", "header")],
        "tool": [("<|end|>", "header")],
    },
}
HARMONY_ANSWER = "<|channel|>final<|message|>"
"""What gpt-oss writes before its answer."""
PYTHON_TAG = "<|python_tag|>"
"""What Llama 3 may write before a call."""


def adopt(tokenizer: Any) -> str:
    """Completes mlx-lm's tokenizer of a family that mlx-lm does not support. Returns the family's name, or "" for any other."""
    vocabulary = tokenizer.get_vocab()
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    if tokenizer.has_tool_calling:
        return ""
    if {"<|channel|>", "<|constrain|>", "<|call|>"} <= vocabulary.keys():
        _set(tokenizer, " to=functions.", "<|call|>", harmony, _HARMONY)
        return "harmony"
    if _BEGIN in template or _BEGIN in vocabulary:
        _set(tokenizer, _BEGIN, _END, deepseek)
        return "deepseek"
    if _DSML in vocabulary:
        _set(tokenizer, f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", deepseek_dsml)
        return "deepseek"
    if PYTHON_TAG in vocabulary and '"parameters"' in template:
        # Its calls have no marks: see ``Options.calls``.
        tokenizer._tool_parser = llama
        return "llama"
    return ""


def _set(tokenizer: Any, start: str, end: str, parser: Parser, form: dict[str, Any] | None = None) -> None:
    """As mlx-lm's loader does. These names are mlx-lm's own; the contract test checks them."""
    tokenizer._tool_parser = parser
    tokenizer._tool_call_start, tokenizer._tool_call_end = start, end
    tokenizer._tool_call_start_tokens = tuple(tokenizer.encode(start, add_special_tokens=False))
    tokenizer._tool_call_end_tokens = tuple(tokenizer.encode(end, add_special_tokens=False))
    if form is not None:
        tokenizer._response_format = form


def deepseek(text: str, _tools: Any = None) -> list[dict[str, Any]]:
    """DeepSeek V3 and R1 (type, name and fenced JSON), and V3.1 (name and JSON). Raises ValueError."""
    calls = []
    for first, second in _DEEPSEEK.findall(text):
        fenced = _FENCED.fullmatch(second)
        name, arguments = (fenced[1], fenced[2]) if fenced else (first, second)
        calls.append({"name": name.strip(), "arguments": _object(arguments)})
    return _some(calls, text)


def deepseek_dsml(text: str, _tools: Any = None) -> list[dict[str, Any]]:
    """DeepSeek V3.2: tags, with values that are strings or JSON. Raises ValueError."""
    calls = []
    for name, inner in _INVOKE.findall(text):
        values = {key: value if kind == "true" else json.loads(value) for key, kind, value in _PARAMETER.findall(inner)}
        calls.append({"name": name, "arguments": values})
    return _some(calls, text)


def llama(text: str, _tools: Any = None) -> list[dict[str, Any]]:
    """Llama 3: JSON objects with a name and parameters, one after the other. Raises ValueError."""
    calls = []
    decoder = json.JSONDecoder()
    rest = text.removeprefix(PYTHON_TAG).strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        arguments = value.get("parameters", value.get("arguments")) if isinstance(value, dict) else None
        if not isinstance(arguments, dict) or not isinstance(value.get("name"), str):
            raise ValueError("not a tool call")
        calls.append({"name": value["name"], "arguments": arguments})
        rest = rest[end:].lstrip("; \n\t")
    return _some(calls, text)


def harmony(text: str, _tools: Any = None) -> list[dict[str, Any]]:
    """gpt-oss: what follows ``to=functions.``: a name, the rest of the header, and JSON. Raises ValueError."""
    header, mark, arguments = text.partition("<|message|>")
    name = re.match(r"[^\s<]+", header)
    if not mark or name is None:
        raise ValueError("not a tool call")
    return [{"name": name[0], "arguments": _object(arguments or "{}")}]


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the arguments are no object")
    return value


def _some(calls: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if not calls:
        raise ValueError(f"no tool call in {text[:100]!r}")
    return calls
