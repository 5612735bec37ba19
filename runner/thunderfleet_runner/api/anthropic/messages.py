"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``. Pure."""

from collections.abc import Mapping
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request import constraints, messages, names, refusals, sampling, templates, tools
from thunderfleet_runner.api.request.call import Call
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits
from thunderfleet_runner.protocol import Sampling

_REFUSED: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "container": ()}
_BOOKKEEPING = ("betas", "cache_control", "context_management", "diagnostics", "inference_geo", "speed", "user_profile_id",
                "workspace_id")  # fmt: skip


def parse(body: Mapping[str, Any], limits: ModelLimits, defaults: Sampling) -> Call:
    """The request in a body. Raises ApiError."""
    templates.require(limits, "messages")
    fields = Fields(body)
    refusals.check(fields, _REFUSED)
    fields.drop(_BOOKKEEPING)
    names.check(fields, limits)
    offered, hosted = _tools(fields.take("tools", []))
    template, form = _template(fields)
    return Call(
        endpoint="messages",
        messages=[*_system(fields.take("system")), *_messages(fields.take("messages"))],
        tools=_chosen(offered, fields),
        template=template,
        max_tokens=sampling.max_tokens(fields, "max_tokens"),
        stream=fields.boolean("stream"),
        stop=sampling.stops(fields, "stop_sequences"),
        sampling=sampling.sampling(fields, limits, defaults),
        constraint=form,
        ignored=(*fields.left(), *hosted),
    )


def _template(fields: Fields) -> tuple[dict[str, Any], constraints.Constraint | None]:
    """The arguments of the template in ``thinking`` and ``output_config``, and the format of the answer."""
    template = templates.arguments(fields)
    thinking = fields.inner("thinking")
    kind = thinking.one_of("type", ("enabled", "disabled", "adaptive"), "adaptive")
    if kind != "adaptive":
        template["enable_thinking"] = kind == "enabled"
    output = fields.inner("output_config")
    if "effort" in output:
        template |= templates.effort(output.one_of("effort", templates.EFFORTS, "medium"))
    form = constraints.of_format(output.take("format", fields.take("output_format")), "output_config.format")
    return template, form


def _system(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    parts = value if isinstance(value, list) else [value]
    texts = [messages.content(part if isinstance(part, str) else [part], "system") for part in parts]
    text = "\n".join(text for text in texts if text)
    return [{"role": "system", "content": text}] if text else []


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise refused("messages", "messages must be a non-empty list")
    found: list[dict[str, Any]] = []
    for number, message in enumerate(value):
        where = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise refused(where, f"{where} must be an object with a role, user or assistant, and content")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise refused(f"{where}.content", f"{where}.content must be a string or a list of blocks")
        found += _assistant(blocks, where) if role == "assistant" else _user(blocks, role, where)
    if found and found[-1]["role"] == "assistant":
        raise refused("messages", "the last message must not have the role assistant: an answer cannot be prefilled")
    return messages.merged(found)


def _assistant(blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                found.append({"role": "assistant", "content": messages.content([block], f"{where}.content")})
            case "thinking" if isinstance(block.get("thinking"), str):
                found.append({"role": "assistant", "content": "", "reasoning_content": block["thinking"]})
            case "redacted_thinking":
                continue
            case "tool_use" if isinstance(block.get("name"), str):
                found.append({"role": "assistant", "content": "", "tool_calls": [_tool_use(block, where)]})
            case _:
                raise refused(
                    f"{where}.content", f"{where}.content of the assistant must have text, thinking and tool_use only"
                )
    return messages.merged(found) or [{"role": "assistant", "content": ""}]


def _tool_use(block: dict[str, Any], where: str) -> dict[str, Any]:
    sentence = f"the input of a tool_use block in {where}.content must be an object"
    given = messages.arguments(block.get("input", {}), f"{where}.content", sentence)
    return messages.call(block["name"], given, block["id"] if isinstance(block.get("id"), str) else None)


def _user(blocks: list[dict[str, Any]], role: str, where: str) -> list[dict[str, Any]]:
    """The results of tools, then the text: templates have a message of its own for each result."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for block in blocks:
        if block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str):
            text = messages.content(block.get("content"), f"{where}.content", optional=True)
            results.append({"role": "tool", "content": text, "tool_call_id": block["tool_use_id"]})
        else:
            texts.append(messages.content([block], f"{where}.content"))
    return [*results, {"role": role, "content": "\n".join(texts)}] if texts or not results else results


def _tools(value: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The tools that clients run, and the names of those that Anthropic would run."""
    offered: list[dict[str, Any]] = []
    hosted: list[str] = []
    for tool in tools.listed(value):
        if isinstance(tool, dict) and tool.get("type", "custom") == "custom":
            offered.append(tools.function(tool.get("name"), tool.get("description"), tool.get("input_schema")))
        elif isinstance(tool, dict) and isinstance(tool.get("type"), str):
            hosted.append(f"tools.{tool['type']}")
        else:
            raise refused("tools", "tools must be a list of functions, each with a name")
    return offered, hosted


def _chosen(offered: list[dict[str, Any]], fields: Fields) -> tools.Tools:
    choice = fields.inner("tool_choice")
    parallel = not choice.boolean("disable_parallel_tool_use")
    match choice.take("type", "auto"):
        case "auto":
            return tools.chosen(offered, "auto", parallel=parallel)
        case "none":
            return tools.chosen(offered, "none", parallel=parallel)
        case "any":
            return tools.chosen(offered, "required", parallel=parallel)
        case "tool":
            return tools.chosen(offered, {"type": "function", "name": choice.take("name")}, parallel=parallel)
    raise refused("tool_choice", "tool_choice.type must be auto, any, tool or none")
