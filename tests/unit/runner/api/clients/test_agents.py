"""What chat interfaces and coding agents send: fields and shapes, not their texts. docs/clients.md says what they follow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.unit.runner.at_once import at_once

MODEL = "thunderfleet/tiny"
AT_ONCE = 4
USAGE = {"include_usage": True}
SHELL = {
    "name": "shell",
    "description": "Runs a command",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
FUNCTION = {"type": "function", "function": SHELL}
CALL = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": '{"command": ["ls"]}'}}
SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "hi"}
TURNS = [SYSTEM, ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "call_1", "content": "README.md"}]  # fmt: skip
PARTS = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "<environment/>"}]}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 5}}, "required": ["title"],
          "additionalProperties": False}  # fmt: skip
CACHED = {"cache_control": {"type": "ephemeral"}}
BLOCK = {"type": "text", "text": "hi", **CACHED}

CHATS: dict[str, dict[str, Any]] = {
    "Open WebUI, a chat": {
        "stream": True, "messages": [SYSTEM, ASK], "temperature": 0.8, "top_p": 0.9, "max_tokens": 2048, "seed": 3,
        "frequency_penalty": 0.1, "presence_penalty": 0.0, "stop": ["\n\n\n"], "stream_options": USAGE, "top_k": 40,
        "min_p": 0.0, "repeat_penalty": 1, "num_ctx": 8192, "think": True, "reasoning_effort": "low", "logit_bias": {"7": -10},
    },
    "Open WebUI, a title": {
        "messages": [ASK], "stream": False, "max_completion_tokens": 1000,
        "metadata": {"task": "title_generation", "chat_id": "c"},
    },
    "Open WebUI, native tools": {
        "messages": TURNS, "tools": [FUNCTION], "stream": True, "params": {"function_calling": "native"},
    },
    "Cline": {
        "messages": [SYSTEM, PARTS], "temperature": 0, "max_tokens": 8192, "stream": True, "stream_options": USAGE,
        "tools": [FUNCTION | {"function": SHELL | {"strict": False}}], "tool_choice": "auto",
    },
    "Cline, reasoning model": {
        "messages": [{"role": "developer", "content": "Be brief."}, PARTS], "reasoning_effort": "medium", "stream": True,
        "stream_options": USAGE,
    },
    "Roo Code": {
        "messages": [*TURNS, PARTS], "temperature": 0, "stream": True, "stream_options": USAGE, "tools": [FUNCTION],
        "parallel_tool_calls": True, "max_completion_tokens": 32768, "thinking": {"type": "enabled"},
    },
    "Continue": {
        "messages": [SYSTEM, PARTS], "max_tokens": 4096, "stream": True, "stream_options": USAGE, "parallel_tool_calls": False,
        "tools": [FUNCTION], "prediction": {"type": "content", "content": "hi"},
    },
    "opencode": {
        "messages": TURNS, "max_tokens": 32000, "temperature": 0.55, "top_p": 1, "tools": [FUNCTION], "tool_choice": "auto",
        "stream": True, "stream_options": USAGE, "reasoningEffort": "medium",
    },
    "Zed": {
        "messages": TURNS, "stream": True, "max_completion_tokens": 8192, "stop": [], "temperature": 1.0, "tools": [FUNCTION],
        "tool_choice": "auto", "parallel_tool_calls": False, "prompt_cache_key": "thread",
    },
    "Qwen Code": {
        "messages": TURNS, "stream": True, "stream_options": USAGE, "temperature": 0.7, "top_p": 0.95, "max_tokens": 16000,
        "tools": [FUNCTION], "metadata": {"sessionId": "s", "promptId": "p"}, "enable_thinking": True,
    },
    "aider": {"messages": [SYSTEM, ASK, {"role": "assistant", "content": "Ok."}, ASK], "temperature": 0, "stream": True},
    "goose": {
        "messages": TURNS, "tools": [FUNCTION], "temperature": 0.2, "max_tokens": 4096, "stream": True, "stream_options": USAGE,
    },
    "Copilot with a model of one's own": {
        "messages": [SYSTEM | {"copilot_cache_control": {"type": "ephemeral"}}, ASK], "temperature": 0.1, "top_p": 1, "n": 1,
        "max_tokens": 4096, "stream": True, "snippy": {"enabled": False}, "intent": False, "tools": [FUNCTION],
        "tool_choice": "auto", "stream_options": USAGE,
    },
    "LiteLLM": {
        "messages": [SYSTEM, PARTS], "stream": True, "stream_options": USAGE, "extra_body": {}, "drop_params": True,
        "caching": False, "user": "u",
        "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}},
    },
    "LangChain, structured": {
        "messages": [ASK],
        "response_format": {"type": "json_schema", "json_schema": {"name": "T", "schema": SCHEMA, "strict": True}},
        "stream": False, "parallel_tool_calls": False, "n": 1, "temperature": 0.7,
    },
    "AI SDK, an object": {
        "messages": [SYSTEM, ASK], "temperature": 0, "response_format": {"type": "json_schema", "json_schema": {
            "schema": SCHEMA | {"$schema": "http://json-schema.org/draft-07/schema#"}, "name": "response"}},
    },
}  # fmt: skip
CODEX = {
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "README.md"},
        {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    ],
    "tools": [
        {"type": "function", "strict": False, **SHELL},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "local_shell"},
    ],
    "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
    "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "thread", "text": {"verbosity": "medium"},
    "client_metadata": {"x": "y"}, "service_tier": "priority",
}  # fmt: skip
CLAUDE = {
    "max_tokens": 32000, "stream": True, "temperature": 1, "metadata": {"user_id": "u"}, "system": [BLOCK, BLOCK],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder/>"}, BLOCK]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {"command": ["ls"]}, **CACHED}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False, **CACHED,
                                      "content": [{"type": "text", "text": "README.md"}]}]},
    ],
    "tools": [
        {"name": "shell", "description": "d", "input_schema": SHELL["parameters"], **CACHED, "defer_loading": False},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 31999}, "context_management": {"edits": []},
    "output_config": {"effort": "high"},
}  # fmt: skip
ELSEWHERE: dict[str, tuple[str, dict[str, Any], str]] = {
    "Codex": ("/v1/responses", CODEX, "event: response."),
    "Codex, a schema": (
        "/v1/responses",
        CODEX | {"text": {"format": {"type": "json_schema", "strict": True, "schema": SCHEMA, "name": "codex_output_schema"}}},
        "event: response.",
    ),
    "Claude Code": ("/v1/messages?beta=true", CLAUDE, "event: message_stop"),
    "Claude Code, its quota check": (
        "/v1/messages?beta=true", {"max_tokens": 1, "messages": [ASK], "metadata": {"user_id": "u"}}, "",
    ),
    "Claude Code, counting": (
        "/v1/messages/count_tokens?beta=true",
        {name: CLAUDE[name] for name in ("messages", "tools", "system", "thinking")},
        "",
    ),
    "Continue, filling in": (
        "/v1/completions",
        {"prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "max_tokens": 64, "temperature": 0.01, "stream": True,
         "stop": ["<|endoftext|>", "\n\n", "/src/"], "suffix": ""},
        "data: [DONE]",
    ),
    "a script for llama.cpp": ("/v1/completions", {"prompt": "a", "n_predict": 8, "cache_prompt": True, "max_tokens": 4}, ""),
}  # fmt: skip


async def _asked(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> tuple[str, str, str]:
    """The kind of the response, its text, and the fields that it names as ignored."""
    async with client.post(path, json=body) as response:
        text = await response.text()
        assert response.status == 200, (path, body, text)
        return response.content_type, text, response.headers.get("X-Thunderfleet-Ignored", "")


async def _chat(client: aiohttp.ClientSession, name: str, change: dict[str, Any]) -> None:
    kind, text, _ = await _asked(client, "/v1/chat/completions", {"model": MODEL, **change})
    if not change.get("stream"):
        message = json.loads(text)["choices"][0]["message"]
        assert message["content"], name
        if "response_format" in change:
            assert set(json.loads(message["content"])) == {"title"}, name
        return
    assert kind == "text/event-stream" and text.endswith("data: [DONE]\n\n"), name
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert ("usage" in chunks[-1] and not chunks[-1]["choices"]) == ("stream_options" in change), name


async def _elsewhere(client: aiohttp.ClientSession, name: str, path: str, body: dict[str, Any], end: str) -> None:
    _, text, ignored = await _asked(client, path, {"model": MODEL, **body})
    assert end in text[-4000:], (name, text[-1000:])
    if path == "/v1/responses":
        assert "response.completed" in text[-8000:] or "response.incomplete" in text[-8000:], name
        assert ignored == "tools.custom, tools.web_search, tools.local_shell", name
    if path == "/v1/messages?beta=true" and end:
        assert ignored == "tools.web_search_20250305", name


async def test_chat_interfaces_and_agents_are_understood(served: Callable[..., Any], tiny: Path) -> None:
    """Several at once, because the model answers many of them until its context is full."""
    async with served(tiny, 1, "None", memory={"contextTokens": 288, "concurrentRequests": AT_ONCE}) as (group, client):
        chats = [_chat(client, *entry) for entry in CHATS.items()]
        others = [_elsewhere(client, name, *entry) for name, entry in ELSEWHERE.items()]
        await at_once(AT_ONCE, [*chats, *others])
        assert group.running[0][0].state.recoveries == 0
