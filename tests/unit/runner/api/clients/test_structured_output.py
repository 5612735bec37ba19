"""Answers of a format: JSON, schemas, forced tools, regular expressions and grammars, on real groups of ranks."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.rank import grammar, mlxlm

from tests.unit.runner.walker import MODEL, WORDS, walker

MESSAGES: list[Any] = list(tinymodel.MESSAGES)
ASKED: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 60, "return_token_ids": True}
SHORT = {"type": "string", "maxLength": 4}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": SHORT, "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
OTHER = {"type": "function", "function": {"name": "nothing", "parameters": {"type": "object", "additionalProperties": False}}}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"structured_outputs": {"regex": "[ab]{3}-[0-9]{2}"}}, "[ab]{3}-[0-9]{2}"),
    "guided regex": ({"guided_regex": "x[yz]{2}"}, "x[yz]{2}"),
    "choice": ({"guided_choice": ["yes", 'no "way"', "a\\b"]}, r'yes|no "way"|a\\b'),
    "lark": ({"guided_grammar": 'start: "a" x\nx: "b" | "c" "d"'}, "ab|acd"),
    "gbnf": ({"structured_outputs": {"grammar": 'root ::= "a" x\nx ::= "b" | "c"'}}, "a[bc]"),
    "schema": ({"guided_json": json.dumps({"enum": ["p", "q"]})}, '"[pq]"'),
}


async def answered(client: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(60), client.post("/v1/chat/completions", json=ASKED | body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        choice: dict[str, Any] = answer["choices"][0]
        return choice


def schema(form: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": form, "strict": True}}}


def check_schema(choice: dict[str, Any]) -> None:
    found = json.loads(choice["message"]["content"])
    assert found["a"] in (1, 2) and len(found["b"]) <= 4 and len(found["c"]) <= 2 and set(found) == {"a", "b", "c"}
    assert choice["finish_reason"] == "stop"


async def check_tools(client: aiohttp.ClientSession) -> None:
    named = {"tools": [OTHER, WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    required = {"tools": [OTHER, WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    for body in (named, required):
        choice = await answered(client, body)
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9
        else:
            assert body is required and (call["function"]["name"], arguments) == ("nothing", {})


async def check_formats_that_cannot_be_used(group: Any, client: aiohttp.ClientSession, yardstick: list[int]) -> None:
    """They are refused and end nothing."""
    refused: tuple[dict[str, Any], ...] = (
        {"guided_regex": "(a"},
        {"guided_regex": "(?<=a)b"},
        {"guided_grammar": "this is none ("},
        {"guided_grammar": "start: nothing"},
        schema({"type": "strng"}),
        schema({"$ref": "http://127.0.0.1/x"}),
        schema({"$ref": "file:///etc/passwd"}),
        schema({"type": "array", "uniqueItems": True}),
        schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}}),
        schema(False),  # type: ignore[arg-type]
    )  # fmt: skip
    pids = [supervisor.member.pid for supervisor, _ in group.running.values()]
    for body in refused:
        async with asyncio.timeout(60), client.post("/v1/chat/completions", json=ASKED | body) as response:
            answer = await response.json()
            assert response.status == 400 and answer["error"]["message"], (str(body)[:200], answer)
    # What becomes too complex on the way fails alone, and not as an error of the server.
    many = "|".join(f"({'.*'.join('abcdefghij')}){{1,{n}}}" for n in range(200, 400))
    found = []
    for regex in ("(([a-z]{1,100}){1,100}){1,100}", many):
        deep = {"guided_regex": regex, "temperature": 1, "seed": 1, "max_tokens": 200}
        async with asyncio.timeout(60), client.post("/v1/chat/completions", json=ASKED | deep) as response:
            answer = await response.json()
            assert response.status in (200, 400), answer
            found.append(answer.get("error", {}).get("message", ""))
    assert "can no longer follow the requested format" in found[0]
    assert (await answered(client, {"max_tokens": 30}))["token_ids"] == yardstick[:30]
    assert [supervisor.member.pid for supervisor, _ in group.running.values()] == pids


async def check_formats(client: aiohttp.ClientSession, yardstick: list[int]) -> None:
    """Answers have their format, and their neighbors are unchanged."""
    # Hot, so that ranks with different masks would sample different tokens, which ends a group.
    hot = {"temperature": 1.5, "seed": 3}
    forms = [schema(SCHEMA), schema(SCHEMA) | hot, {"response_format": {"type": "json_object"}, "max_tokens": 20}]
    plain, first, second, third = await asyncio.gather(
        answered(client, {"max_tokens": 30}), *(answered(client, f) for f in forms)
    )
    assert plain["token_ids"] == yardstick[:30]
    for choice in (first, second):
        check_schema(choice)
    assert third["message"]["content"].startswith("{")
    assert first["token_ids"] != second["token_ids"]
    assert (await answered(client, forms[1]))["token_ids"] == second["token_ids"]
    for name, (body, pattern) in FORMS.items():
        choice = await answered(client, body | hot)
        assert re.fullmatch(pattern, choice["message"]["content"]), (name, choice)
    await check_tools(client)
    assert (await answered(client, {"max_tokens": 30}))["token_ids"] == yardstick[:30]


async def test_pipelines_answer_in_formats(served: Callable[..., Any], tiny: Path, yardstick: list[int]) -> None:
    async with served(tiny, 2, "Pipeline") as (group, client):
        await check_formats(client, yardstick)
        assert group.running[0][0].state.recoveries == 0


async def test_tensor_ranks_answer_in_formats_and_refuse_those_that_cannot_be_used(
    served: Callable[..., Any], tiny: Path, yardstick: list[int]
) -> None:
    async with served(tiny, 2, "Tensor") as (group, client):
        await check_formats(client, yardstick)
        assert group.running[0][0].state.recoveries == 0
        await check_formats_that_cannot_be_used(group, client, yardstick)


async def test_forced_tools_and_formats_in_other_dialects(served: Callable[..., Any], tiny: Path) -> None:
    async with served(tiny, 1, "None") as (_, client):
        tool = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}  # type: ignore[index]
        body = {"messages": MESSAGES, "max_tokens": 60, "tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
        async with client.post("/v1/messages", json=body) as response:
            message = await response.json()
            assert message["stop_reason"] == "tool_use", message
            assert message["content"][0]["input"]["city"] in ("Oslo", "Rome")
        form = {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}}
        async with client.post("/v1/responses", json={"input": "hi", "text": form, "temperature": 1}) as response:
            answer = await response.json()
            assert answer["status"] == "completed", answer
            assert json.loads(answer["output"][0]["content"][0]["text"])["a"] in (1, 2)


async def test_a_format_begins_after_the_models_thoughts(served: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    async with walker(served, tiny, tmp_path / "walker") as (_, client):
        asked: Any = {"model": MODEL, "messages": MESSAGES, "reasoning_effort": "high", "max_tokens": 40}
        chat = await client.chat.completions.create(**asked, extra_body={"guided_regex": "[ab]{3}"})
        message = chat.choices[0].message
        assert (message.to_dict()["reasoning_content"], chat.choices[0].finish_reason) == ("hmm", "stop")
        assert re.fullmatch("[ab]{3}", message.content or "")
        # The marks of tool calls are text within a format.
        body = {"guided_regex": "<(tool_call|b)>x", "logit_bias": {str(WORDS.index("b")): -100}}
        marked = await client.chat.completions.create(**asked, extra_body=body, tools=[OTHER])  # type: ignore[list-item]
        assert marked.choices[0].message.content == "<tool_call>x"


def _folder(tmp_path: Path) -> Path:
    tinymodel.make(tmp_path / "tiny", layers=1)
    return tmp_path / "tiny"


def test_masks_allow_what_the_format_allows_and_then_only_the_end(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    tokenizer = mlxlm.load_tokenizer(folder, json.loads((folder / "config.json").read_text()))
    formats = grammar.Formats(tokenizer)
    found = grammar.compiled("regex", "a[bc]", (), lenient=False)
    formats.check(found)
    reasons: list[str] = []
    mask = grammar.Mask(formats, found, (), reasons.append)
    import mlx.core as mx

    def allowed(*tokens: int) -> set[str]:
        # More logits than the tokenizer has tokens.
        logits = numpy.array(mask(mx.array(tokens), mx.zeros((1, 300))))[0]
        ids = [int(index) for index in numpy.nonzero(numpy.isfinite(logits))[0]]
        assert all(index < tinymodel.VOCABULARY for index in ids)
        return {tokenizer.decode([index]) for index in ids}

    a, b, end = (tokenizer.convert_tokens_to_ids(word) for word in ("a", "b", "<|im_end|>"))
    assert allowed(5) == {"a"}
    assert allowed(5, a) == {"b", "c"}
    assert allowed(5, a, b) == {"<|im_end|>"}
    # mlx-lm computes one step more than it uses.
    assert allowed(5, a, b, end) == {"<|im_end|>"}
    assert not reasons
