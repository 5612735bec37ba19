"""The messages of a chat, as templates expect them. Pure."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request import fields

_ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a body in OpenAI's format, rebuilt from the parts that templates support. Raises ApiError."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "messages must be a non-empty list")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(where, f"{where} must be an object with role and content")
    role = value.get("role")
    if role not in _ROLES:
        raise refused(f"{where}.role", f"{where}.role must be one of {', '.join(_ROLES)}")
    # Templates support system; developer is OpenAI's newer name for it.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(value.get("tool_calls"), where)
    if calls and role != "assistant":
        raise refused(f"{where}.tool_calls", f"{where}.tool_calls is allowed for the role assistant only")
    message["content"] = content(value.get("content"), f"{where}.content", optional=role == "assistant")
    if calls:
        message["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        if value.get(name) is not None:
            message[name] = _string(value[name], f"{where}.{name}")
    if role == "assistant":
        thought = value.get("reasoning_content", value.get("reasoning"))
        if thought is not None:
            message["reasoning_content"] = _string(thought, f"{where}.reasoning_content")
    return message


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise refused(where, f"{where} must be a string")
    return value


def content(value: Any, where: str, *, optional: bool = False, kinds: Collection[str] = TEXT_PARTS) -> str:
    """The text of a message: a string, or parts of it. ``optional``: null is no text. Raises ApiError."""
    if isinstance(value, str):
        return value
    if value is None and optional:
        return ""
    if not isinstance(value, list):
        raise refused(where, f"{where} must be a string or a list of text parts")
    return "".join(_part(part, where, kinds) for part in value)


def _part(part: Any, where: str, kinds: Collection[str]) -> str:
    if isinstance(part, dict):
        if part.get("type") in kinds and isinstance(part.get("text"), str):
            return str(part["text"])
        if part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            return str(part["refusal"])
    raise refused(where, f"{where} must have parts of type text only: images, audio and files are not supported")


def arguments(value: Any, where: str, sentence: str) -> str:
    """The arguments of a tool call as a JSON object in a string; clients send them as either. Raises ApiError."""
    try:
        parsed = fields.parsed(value or "{}") if isinstance(value, str) else value
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise refused(where, sentence)
    return (value or "{}") if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def call(name: str, arguments: str, identifier: str | None) -> dict[str, Any]:
    """A tool call of an assistant's message."""
    entry: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return entry if identifier is None else {**entry, "id": identifier}


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    where = f"{where}.tool_calls"
    sentence = f"{where} must be a list of function calls with arguments as a JSON object in a string"
    if value is None:
        return []
    if not isinstance(value, list):
        raise refused(where, sentence)
    return [_tool_call(entry, where, sentence) for entry in value]


def _tool_call(value: Any, where: str, sentence: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refused(where, sentence)
    given = arguments(function.get("arguments") or "{}", where, sentence)
    return call(function["name"], given, value["id"] if isinstance(value.get("id"), str) else None)


def merged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins neighbors that are one turn of the assistant: some formats list its thoughts, texts and calls one by one."""
    found: list[dict[str, Any]] = []
    for message in messages:
        before = found[-1] if found else {}
        # Text after calls is a turn of its own: templates write calls last.
        same = message["role"] == "assistant" == before.get("role") and not (before.get("tool_calls") and message["content"])
        if same:
            found[-1] = _joined(before, message)
        else:
            found.append(message)
    return found


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    joined = {"role": "assistant", "content": one["content"] + other["content"]}
    thoughts = one.get("reasoning_content", "") + other.get("reasoning_content", "")
    calls = [*one.get("tool_calls", ()), *other.get("tool_calls", ())]
    if thoughts:
        joined["reasoning_content"] = thoughts
    return {**joined, "tool_calls": calls} if calls else joined
