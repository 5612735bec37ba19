"""Bodies of ``/v1/responses``, without state: nothing is stored, so clients send the whole conversation. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request import constraints, messages, names, refusals, sampling, templates, tools
from thunderfleet_runner.api.request.call import Call
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits
from thunderfleet_runner.protocol import Sampling

MAX_ECHO = 16 * 1024
"""Characters of the fields that a response repeats: each is encoded in the supervisor, three times for a stream."""
_REFUSED: dict[str, tuple[Any, ...]] = {"background": (False,), "conversation": (), "previous_response_id": (), "prompt": ()}
_BOOKKEEPING = ("client_metadata", "include", "max_tool_calls")


def parse(body: Mapping[str, Any], limits: ModelLimits, defaults: Sampling) -> Call:
    """The request in a body. Raises ApiError."""
    templates.require(limits, "input")
    fields = Fields(body)
    refusals.check(fields, _REFUSED)
    fields.drop(_BOOKKEEPING)
    names.check(fields, limits)
    offered, hosted = _tools(fields.take("tools", []))
    choice = fields.take("tool_choice", "auto")
    chosen = tools.chosen(offered, choice, parallel=fields.boolean("parallel_tool_calls", True))
    reasoning = fields.inner("reasoning")
    template = templates.arguments(fields)
    if "effort" in reasoning:
        template = templates.effort(reasoning.one_of("effort", templates.EFFORTS, "medium")) | template
    form = fields.inner("text").take("format")
    streamed, _ = sampling.stream(fields)
    limit = sampling.max_tokens(fields, "max_output_tokens")
    system = fields.text("instructions")
    return Call(
        endpoint="responses",
        messages=[*([{"role": "system", "content": system}] if system else []), *_input(fields.take("input"))],
        tools=chosen,
        template=template,
        max_tokens=limit,
        stream=streamed,
        sampling=sampling.sampling(fields, limits, defaults),
        constraint=constraints.of_format(form, "text.format"),
        echo=_echo(body, limit),
        ignored=(*fields.left(), *hosted),
    )


def _echo(body: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    """The fields that the response repeats, without large ones. They were checked."""
    defaults = {"tool_choice": "auto", "tools": [], "parallel_tool_calls": True, "temperature": None, "top_p": None,
                "instructions": None, "metadata": {}}  # fmt: skip
    found = {name: default if body.get(name) is None else body[name] for name, default in defaults.items()}
    if not isinstance(found["metadata"], dict):
        found["metadata"] = {}
    reasoning = body.get("reasoning") or {}
    text = body.get("text") or {}
    echo = {
        **found,
        "max_output_tokens": limit,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "text": {"format": text.get("format") or {"type": "text"}},
    }
    if len(json.dumps(echo)) <= MAX_ECHO:
        return echo
    return echo | {
        "tools": [],
        "tool_choice": "auto",
        "instructions": None,
        "metadata": {},
        "text": {"format": {"type": "text"}},
    }


def _input(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise refused("input", "input must be a non-empty string or a non-empty list of items")
    found = [message for number, item in enumerate(value) for message in _item(item, f"input[{number}]")]
    return messages.merged(found)


def _item(item: Any, where: str) -> list[dict[str, Any]]:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    match kind:
        case "message":
            (message,) = messages.messages([item])
            return [message]
        case "reasoning":
            text = _thoughts(item, where)
            return [{"role": "assistant", "content": "", "reasoning_content": text}] if text else []
        case "function_call" if isinstance(item.get("name"), str):
            sentence = f"the arguments of {where} must be a JSON object in a string"
            given = messages.arguments(item.get("arguments") or "{}", where, sentence)
            identifier = item.get("call_id")
            call = messages.call(item["name"], given, identifier if isinstance(identifier, str) else None)
            return [{"role": "assistant", "content": "", "tool_calls": [call]}]
        case "custom_tool_call" if isinstance(item.get("name"), str) and isinstance(item.get("input"), str):
            # A call without JSON, of a conversation that began at OpenAI.
            given = json.dumps({"input": item["input"]}, ensure_ascii=False)
            identifier = item.get("call_id")
            call = messages.call(item["name"], given, identifier if isinstance(identifier, str) else None)
            return [{"role": "assistant", "content": "", "tool_calls": [call]}]
        case "web_search_call":
            # What was found is in the message that follows.
            return []
        case "function_call_output" | "custom_tool_call_output" if isinstance(item.get("call_id"), str):
            text = messages.content(item.get("output"), f"{where}.output", optional=True)
            return [{"role": "tool", "content": text, "tool_call_id": item["call_id"]}]
    raise refused(where, f"{where} must be a message, reasoning, function_call or function_call_output")


def _thoughts(item: dict[str, Any], where: str) -> str:
    kinds = ("reasoning_text", "summary_text", "text")
    for name in ("content", "summary"):
        if item.get(name):
            return messages.content(item[name], f"{where}.{name}", kinds=kinds)
    return ""


def _tools(value: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The functions, and the names of the tools that OpenAI would run, or that are no functions."""
    offered: list[dict[str, Any]] = []
    others: list[str] = []
    for tool in tools.listed(value):
        if isinstance(tool, dict) and tool.get("type") == "function":
            inner = tool["function"] if isinstance(tool.get("function"), dict) else tool
            offered.append(tools.function(inner.get("name"), inner.get("description"), inner.get("parameters")))
        elif isinstance(tool, dict) and isinstance(tool.get("type"), str):
            others.append(f"tools.{tool['type']}")
        else:
            raise refused("tools", "tools must be a list of functions, each with a name")
    return offered, others
