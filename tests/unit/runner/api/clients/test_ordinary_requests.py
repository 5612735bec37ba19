"""What people's tools send: each of these requests must work on a real group, whatever the tool that writes it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from thunderfleet_localcluster.models import tinymodel

from tests.unit.runner.at_once import at_once

MODEL = "thunderfleet/tiny"
AT_ONCE = 4
"""As many answers as the group computes together; two of them end when the context is full."""
USER = [{"role": "user", "content": "hi"}]
KEY = {"Authorization": "Bearer k"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": USER, "max_tokens": 4}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}}},
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}

CHATS: dict[str, dict[str, Any]] = {
    "a plain chat": {},
    "no model": {"model": None},
    "the deployment's name": {"model": "tiny"},
    "namespace and name": {"model": "default/tiny"},
    "reasoning_effort": {"reasoning_effort": "low"},
    "no reasoning": {"reasoning_effort": "none"},
    "verbosity": {"verbosity": "low"},
    "template arguments": {"chat_template_kwargs": {"enable_thinking": False}},
    "top_k -1": {"top_k": -1},
    "max_tokens -1": {"max_tokens": -1},
    "max_tokens beyond the context": {"max_tokens": 32000},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 4},
    "content null": {"messages": [*USER, {"role": "assistant", "content": None}, *USER]},
    "content parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    "developer": {"messages": [{"role": "developer", "content": "be brief"}, *USER]},
    "thoughts of earlier turns": {"messages": [*USER, {"role": "assistant", "content": "a", "reasoning_content": "b"}, *USER]},
    "n 2": {"n": 2},
    "seed": {"seed": 7, "temperature": 1},
    "a stream": {"stream": True, "stream_options": {"include_usage": True}},
    "stop": {"stop": "\n\n"},
    "log probabilities": {"logprobs": True, "top_logprobs": 3},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"7": -100}},
    "keep_alive": {"keep_alive": "5m"},
    "prediction": {"prediction": {"type": "content", "content": "hi"}},
    "bookkeeping": {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k"},
    "an unknown field": {"num_ctx": 4096},
    "nulls": {"temperature": None, "tools": None, "stop": None, "functions": None},
    "tools, free": {"tools": [WEATHER]},
    "tools, none": {"tools": [WEATHER], "tool_choice": "none"},
    "a tool's answer": {
        "messages": [
            *USER,
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "sun"},
        ],
    },
    "text format": {"response_format": {"type": "text"}},
    "JSON": {"response_format": {"type": "json_object"}},
    "JSON of a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    "tools, required": {"tools": [WEATHER], "tool_choice": "required"},
    "tools, named": {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
}  # fmt: skip


async def answered(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
    """The body of the response, or of its last events. Every request must be served."""
    async with client.post(path, json=body) as response:
        text = await response.text()
        assert response.status == 200, (body, text)
        return json.loads(text) if response.content_type == "application/json" else text


async def check_chat(client: aiohttp.ClientSession, name: str, change: dict[str, Any]) -> None:
    answer = await answered(client, "/v1/chat/completions", CHAT | change)
    if change.get("stream"):
        assert answer.endswith("data: [DONE]\n\n") and '"usage"' in answer, name
        return
    assert len(answer["choices"]) == change.get("n", 1), name
    assert answer["model"] == MODEL, name
    assert answer["usage"]["completion_tokens"] > 0, name


async def check_ordinary_requests(client: aiohttp.ClientSession) -> None:
    await at_once(AT_ONCE, (check_chat(client, *entry) for entry in CHATS.items()))
    text = await answered(client, "/v1/completions", {"model": MODEL, "prompt": "hi ", "max_tokens": 4})
    assert text["choices"][0]["text"]
    message = await answered(client, "/v1/messages", {"model": "tiny", "messages": USER, "max_tokens": 4})
    assert message["content"][0]["text"]
    response = await answered(client, "/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 4})
    assert response["output"][0]["content"][0]["text"]
    assert (await answered(client, "/tokenize", {"prompt": "hi "}))["count"] == 2


async def check_models_and_health(client: aiohttp.ClientSession) -> None:
    """``client`` sends no key by itself."""
    for name in (MODEL, "tiny", "default/tiny", "thunderfleet%2Ftiny"):
        async with client.get(f"/v1/models/{name}", headers=KEY) as response:
            assert response.status == 200, name
            assert (await response.json()).items() >= {"id": MODEL, "object": "model", "max_model_len": 512}.items()
    async with client.get("/v1/models/gpt-5", headers=KEY) as response:
        assert response.status == 404 and (await response.json())["error"]["code"] == "model_not_found"
    async with client.get("/v1/models/tiny") as response:
        assert response.status == 401
    async with client.get("/health") as response:
        assert response.status == 200 and await response.json() == {"status": "ok"}
    async with client.post("/v1/embeddings", json={"model": MODEL, "input": "a"}, headers=KEY) as response:
        assert response.status == 404 and "cannot compute embeddings" in (await response.json())["error"]["message"]


async def check_what_was_ignored_and_clamped(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=CHAT | {"verbosity": "low", "max_tokens": 999}) as response:
        answer = await response.json()
        assert response.headers["X-Thunderfleet-Ignored"] == "verbosity"
        room = 512 - answer["usage"]["prompt_tokens"]
        assert response.headers["X-Thunderfleet-Clamped"] == f"max_tokens={room}"
    async with client.post("/v1/chat/completions", json=CHAT | {"messages": [USER[0] | {"content": "a" * 600}]}) as response:
        assert response.status == 400 and (await response.json())["error"]["code"] == "context_length_exceeded"


async def check_tokens_of_texts_and_chats(client: aiohttp.ClientSession) -> None:
    async def asked(path: str, body: dict[str, Any], status: int = 200) -> Any:
        async with client.post(path, json=body) as response:
            assert response.status == status, await response.text()
            return await response.json()

    found = await asked("/tokenize", {"model": MODEL, "prompt": "Hello Macs", "return_token_strs": True})
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 512
    assert "".join(found["token_strs"]) == "Hello Macs"
    assert (await asked("/detokenize", {"model": MODEL, "tokens": found["tokens"]}))["prompt"] == "Hello Macs"
    chat = await asked("/tokenize", {"messages": USER})
    answer = await asked("/v1/chat/completions", {"messages": USER, "max_tokens": 1})
    assert chat["count"] == answer["usage"]["prompt_tokens"]
    for path, body in (
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "a" * 2000}),
        ("/detokenize", {"tokens": [256]}),
        ("/detokenize", {"tokens": "a"}),
        ("/v1/messages/count_tokens", {"messages": []}),
    ):
        await asked(path, body, 400)
    await asked("/tokenize", {"model": "other", "prompt": "a"}, 404)


async def test_ordinary_requests_work(served: Callable[..., Any], tiny: Path) -> None:
    async with served(tiny, 1, "None", api_keys=frozenset({"k"})) as (_, keyless):
        async with aiohttp.ClientSession(keyless._base_url, headers=KEY) as client:
            await check_ordinary_requests(client)
            await check_what_was_ignored_and_clamped(client)
            await check_tokens_of_texts_and_chats(client)
        await check_models_and_health(keyless)


async def test_seeds_repeat_answers_and_choices_differ(served: Callable[..., Any], tiny: Path) -> None:
    hot = CHAT | {"temperature": 1, "max_tokens": 24, "seed": 11, "return_token_ids": True}

    def ids(answer: Any) -> list[list[int]]:
        return [choice["token_ids"] for choice in answer["choices"]]

    async with served(tiny, 2, "Tensor") as (_, client):
        (alone,) = ids(await answered(client, "/v1/chat/completions", hot))
        both = ids(await answered(client, "/v1/chat/completions", hot | {"n": 3}))
        assert both[0] == alone and len({tuple(one) for one in both}) == 3
        (other,) = ids(await answered(client, "/v1/chat/completions", hot | {"seed": 12}))
        assert other not in both or other == both[1]
        streamed = await answered(client, "/v1/chat/completions", hot | {"n": 2, "stream": True})
        chunks = [json.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith("data: {")]
        for index in (0, 1):
            found = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert [token for choice in found for token in choice.get("token_ids", ())] == both[index]
            assert found[-1]["finish_reason"] in ("stop", "length")


async def test_the_models_own_sampling_applies(served: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hot"
    shutil.copytree(tiny, folder)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 1.5, "top_k": 200}))
    asked = {"messages": list(tinymodel.MESSAGES), "max_tokens": 16, "seed": 1, "return_token_ids": True}
    async with served(folder, 1, "None") as (_, client):
        path = "/v1/chat/completions"
        own = await answered(client, path, asked)
        same = await answered(client, path, asked | {"temperature": 1.5, "top_k": 200})
        greedy = await answered(client, path, asked | {"temperature": 0})
        assert own["choices"] == same["choices"] != greedy["choices"]
