"""Functions that the model may call, and which of them it must call. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request.constraints import Constraint, schema

MAX_TOOLS = 512
ANY = "*"
"""``Tools.forced``: the model must call one or more of its tools."""


@dataclass(frozen=True)
class Tools:
    """The tools of a request."""

    offered: Sequence[dict[str, Any]] = ()
    """In OpenAI's format, for the template; empty if the model must call none."""
    forced: str = ""
    """The name of the tool that the model must call; ANY; or empty if it is free."""
    parallel: bool = True
    """Whether one answer may have several calls."""

    def constraint(self) -> Constraint | None:
        """The format of an answer that must be a call: the arguments of the tool, or a list of calls."""
        if not self.forced:
            return None
        if self.forced != ANY:
            return schema(_parameters(next(tool for tool in self.offered if _name(tool) == self.forced)), "tools")
        calls = [_call(tool, f"#/items/anyOf/{number}/properties/arguments") for number, tool in enumerate(self.offered)]
        many = {} if self.parallel else {"maxItems": 1}
        return schema({"type": "array", "minItems": 1, **many, "items": {"anyOf": calls}}, "tools")


def _name(tool: dict[str, Any]) -> str:
    return str(tool["function"]["name"])


def _parameters(tool: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tool["function"].get("parameters") or {}
    return found if "type" in found or "$ref" in found or "anyOf" in found else {**found, "type": "object"}


def _call(tool: dict[str, Any], root: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": _name(tool)}, "arguments": _rooted(_parameters(tool), root)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _rooted(value: Any, root: str) -> Any:
    """A schema as part of another one, at ``root``: its references begin there."""
    if isinstance(value, list):
        return [_rooted(entry, root) for entry in value]
    if not isinstance(value, dict):
        return value
    rooted = {name: _rooted(entry, root) for name, entry in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        rooted["$ref"] = root + reference[1:]
    return rooted


def function(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A tool in OpenAI's format. Raises ApiError."""
    if not isinstance(name, str) or not name:
        raise refused("tools", "tools must be a list of functions, each with a name")
    if not isinstance({} if parameters is None else parameters, dict) or not isinstance(description or "", str):
        raise refused("tools", "a tool's description must be a string and its parameters an object")
    parts = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in parts.items() if value is not None}}


def openai(value: Any) -> list[dict[str, Any]]:
    """The tools in the format of chat completions."""
    found: list[dict[str, Any]] = []
    for tool in listed(value):
        inner = tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
        if not isinstance(inner, dict):
            raise refused("tools", "tools must be a list of functions, each with a name")
        found.append(function(inner.get("name"), inner.get("description"), inner.get("parameters")))
    return found


def listed(value: Any) -> list[Any]:
    """The list of tools, bounded. Raises ApiError."""
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise refused("tools", f"tools must be a list of at most {MAX_TOOLS} functions")
    return value


def chosen(offered: Sequence[dict[str, Any]], choice: Any, *, parallel: bool) -> Tools:
    """The tools with OpenAI's ``tool_choice``, also as the Responses API writes it. Raises ApiError."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        offered, choice = _allowed(offered, choice.get("allowed_tools", choice))
    if choice == "none":
        return Tools(parallel=parallel)
    if choice == "auto":
        return Tools(offered, parallel=parallel)
    forced = ANY if choice == "required" else _named(choice)
    if not forced:
        raise refused("tool_choice", "tool_choice must be auto, none, required, or an object that names a function")
    if not offered:
        raise refused("tool_choice", "tool_choice requires tools")
    if forced != ANY and forced not in [_name(tool) for tool in offered]:
        raise refused("tool_choice", f"tool_choice names {json.dumps(forced)[:100]}, which is none of the tools")
    return Tools(offered, forced, parallel)


def _named(choice: Any) -> str:
    """The name in {"type": "function", "function": {"name": …}}, or without the inner object."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return ""
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) and name != ANY else ""


def _allowed(offered: Sequence[dict[str, Any]], allowed: Any) -> tuple[Sequence[dict[str, Any]], Any]:
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list) or allowed.get("mode") not in ("auto", "required"):
        raise refused("tool_choice", "tool_choice of type allowed_tools needs a mode, auto or required, and tools")
    names = [_named(tool) for tool in tools]
    return [tool for tool in offered if _name(tool) in names], allowed["mode"]
