"""The official ``openai`` client against a real group of two ranks: features work, and failures raise errors.

The model is made for it: see ``walker``.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel
from thunderfleet_runner.api.http import gateway

from tests.support.suite.later import Later
from tests.unit.runner.walker import MODEL, NO_CALL, THOUGHT, walked, walker

if TYPE_CHECKING:
    import openai
    from openai import AsyncOpenAI
else:
    openai = Later("openai")


def generated(group: Any) -> float:
    """Tokens that rank 0 has generated for finished requests, from its metrics."""
    value = group.running[0][0].service.registry.get_sample_value("thunderfleet_runner_generated_tokens_total")
    return float(value or 0)


CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
TEXT: Any = {"model": MODEL, "prompt": "hi ", "temperature": 0}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
RULE: Any = {
    "type": "function",
    "function": {
        "name": "rule",
        "parameters": {
            "type": "object",
            "properties": {"ruling": {"enum": ["yes", "no"]}, "weight": {"enum": [1, 2]}},
            "required": ["ruling", "weight"],
            "additionalProperties": False,
        },
    },
}
BAD_TOOL: Any = {"type": "function", "function": {"name": "bad"}}


async def check_whole_answers(client: "AsyncOpenAI") -> None:
    assert [model.id for model in (await client.models.list()).data] == [MODEL]
    chat = await client.chat.completions.create(**CHAT, max_completion_tokens=9)
    assert chat.choices[0].message.content == walked(9)
    assert (chat.choices[0].finish_reason, chat.choices[0].message.role) == ("length", "assistant")
    assert chat.usage is not None and chat.usage.completion_tokens == 9
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + 9
    text = await client.completions.create(**TEXT, max_tokens=9)
    assert (text.choices[0].text, text.choices[0].finish_reason) == (walked(9), "length")
    assert text.usage is not None and text.usage.prompt_tokens == 2


async def check_streams(client: "AsyncOpenAI") -> None:
    stream = await client.chat.completions.create(**CHAT, max_tokens=9, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    *_, end, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == walked(9)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert end.choices[0].finish_reason == "length"
    assert usage.choices == [] and usage.usage is not None and usage.usage.completion_tokens == 9
    assert len({chunk.id for chunk in chunks}) == 1

    texts = await client.completions.create(**TEXT, max_tokens=9, stream=True, stream_options={"include_usage": True})
    pieces = [piece async for piece in texts]
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == walked(9)
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 9


async def check_stops(client: "AsyncOpenAI") -> None:
    stop = walked(3, start=6)
    for stops in (stop, ["never", stop]):
        chat = await client.chat.completions.create(**CHAT, max_tokens=40, stop=stops)
        assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (walked(5), "stop")
    stream = await client.chat.completions.create(**CHAT, max_tokens=40, stop=stop, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == walked(5)
    assert chunks[-1].choices[0].finish_reason == "stop"
    text = await client.completions.create(**TEXT, max_tokens=40, stop=[stop])
    assert (text.choices[0].text, text.choices[0].finish_reason) == (walked(5), "stop")


async def check_logprobs(client: "AsyncOpenAI") -> None:
    def check_chat(entries: Any, count: int) -> None:
        assert [entry.token for entry in entries] == [walked(1, start=1 + at) for at in range(count)]
        for entry in entries:
            assert bytes(entry.bytes).decode() == entry.token
            first, second = entry.top_logprobs
            assert (first.token, first.logprob) == (entry.token, pytest.approx(entry.logprob))
            assert first.logprob > second.logprob

    asked: Any = {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 4}
    chat = await client.chat.completions.create(**asked)
    assert chat.choices[0].logprobs is not None
    check_chat(chat.choices[0].logprobs.content, 4)
    stream = await client.chat.completions.create(**asked, stream=True)
    entries = [e async for chunk in stream for e in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or []]
    check_chat(entries, 4)

    def check_text(found: Any, count: int) -> None:
        assert found.tokens == [walked(1, start=1 + at) for at in range(count)]
        assert found.text_offset == [len(walked(at)) for at in range(count)]
        for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
            assert top[token] == pytest.approx(logprob) and len(top) == 2

    text = await client.completions.create(**TEXT, logprobs=2, max_tokens=4)
    check_text(text.choices[0].logprobs, 4)
    pieces = await client.completions.create(**TEXT, logprobs=2, max_tokens=4, stream=True)
    merged: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    async for piece in pieces:
        for name, values in merged.items():
            values += getattr(piece.choices[0].logprobs, name, None) or []
    check_text(openai.types.completion_choice.Logprobs(**merged), 4)


async def check_tools(client: "AsyncOpenAI") -> None:
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    chat = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    choice = chat.choices[0]
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.id
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    # And the result goes back, as clients send it.
    messages += [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    chat = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
    assert chat.choices[0].message.content == walked(5)

    stream = await client.chat.completions.create(model=MODEL, messages=messages[:1], tools=[TOOL], stream=True)
    chunks = [chunk async for chunk in stream]
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert {delta.index for delta in deltas} == {0}
    assert [delta.function.name for delta in deltas if delta.function and delta.function.name] == ["weather"]
    arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    assert json.loads(arguments) == {"city": "Oslo"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"

    # Text that is not a call stays text.
    for streamed in (False, True):
        odd: Any = await client.chat.completions.create(model=MODEL, messages=messages[:1], tools=[BAD_TOOL], stream=streamed)
        if streamed:
            texts = [chunk.choices[0].delta.content or "" async for chunk in odd]
            assert "".join(texts) == NO_CALL
        else:
            assert (odd.choices[0].message.content, odd.choices[0].finish_reason) == (NO_CALL, "stop")
    ignored = await client.chat.completions.create(**CHAT, max_tokens=5, tools=[TOOL], tool_choice="none")
    assert ignored.choices[0].message.content == walked(5)


class Verdict(BaseModel):
    """A format for the model's answer."""

    ruling: Literal["yes", "no"]
    weight: Literal[1, 2]


async def check_formats(client: "AsyncOpenAI") -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for choice in ("required", {"type": "function", "function": {"name": "rule"}}):
        forced: Any = await client.chat.completions.create(model=MODEL, messages=messages, tools=[RULE], tool_choice=choice)  # type: ignore[call-overload]
        (call,) = forced.choices[0].message.tool_calls
        assert call.function.name == "rule" and Verdict.model_validate_json(call.function.arguments)
        stream: Any = await client.chat.completions.create(  # type: ignore[call-overload]
            model=MODEL, messages=messages, tools=[RULE], tool_choice=choice, stream=True
        )
        deltas = [delta async for chunk in stream for delta in chunk.choices[0].delta.tool_calls or []]
        assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments and len(deltas) > 3
    parsed = await client.chat.completions.parse(model=MODEL, messages=messages, response_format=Verdict)
    assert parsed.choices[0].message.parsed is not None
    thought: Any = await client.chat.completions.create(**CHAT, max_tokens=8, reasoning_effort="high")
    assert thought.choices[0].message.reasoning_content == THOUGHT


async def check_errors(client: "AsyncOpenAI") -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(**CHAT | {"temperature": 9})
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="leaves no room in the context of 30000 tokens") as long:
        await client.completions.create(**TEXT | {"prompt": "a " * 30000})
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as other:
        await client.chat.completions.create(**CHAT | {"model": "gpt-5"})
    assert other.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model=MODEL, input="a")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def check_cancel(group: Any, client: "AsyncOpenAI") -> None:
    service = group.running[0][0].service
    before = generated(group)
    stream = await client.chat.completions.create(**CHAT, max_tokens=20000, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    await group.until(lambda: service.running == 0, "rank 0 has ended the request")
    spent = generated(group) - before
    assert 0 < spent < 20000
    # No tokens are generated afterwards: the ranks have left their turn.
    await group.until(lambda: not service._turn_open, "the turn has ended")
    assert generated(group) - before == spent


async def check_too_many(group: Any, client: "AsyncOpenAI") -> None:
    """Two requests run, and none may wait."""
    streams = [await client.chat.completions.create(**CHAT, max_tokens=14000, stream=True) for _ in range(2)]
    for stream in streams:
        await anext(aiter(stream))
    with pytest.raises(openai.RateLimitError) as many:
        await client.chat.completions.create(**CHAT)
    assert int(many.value.response.headers["retry-after"]) > 0
    for stream in streams:
        await stream.close()
    service = group.running[0][0].service
    await group.until(lambda: service.running == 0, "both have ended")


async def check_a_cut_stream(group: Any, client: "AsyncOpenAI") -> None:
    service = group.running[0][0].service
    stream = await client.chat.completions.create(**CHAT, max_tokens=20000, stream=True)
    chunks = aiter(stream)
    await anext(chunks)
    os.kill(group.running[1][0].member.pid, 9)
    finished = []
    # Rank 0 often notices it first; the end of the stream waits for rank 1's failure.
    with pytest.raises(openai.APIError, match=r"the group failed and is restarting: rank 1: .*SIGKILL"):
        async for chunk in chunks:
            finished.append(chunk.choices[0].finish_reason)
    assert not any(finished)
    await group.until(lambda: not service.ready, "the failure is noticed")
    with pytest.raises(openai.InternalServerError) as away:
        await client.chat.completions.create(**CHAT)
    assert away.value.status_code == 503 and int(away.value.response.headers["retry-after"]) > 0
    await group.until_ready()
    assert group.running[0][0].state.failure.rank == 1
    await check_whole_answers(client)


async def test_the_official_client(
    served: Callable[..., Any], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "SMALLEST_QUEUE", 0)
    monkeypatch.setattr(gateway, "QUEUE_PER_SLOT", 0)
    async with walker(served, tiny, tmp_path / "walker") as (group, client):
        await check_whole_answers(client)
        await check_streams(client)
        await check_stops(client)
        await check_logprobs(client)
        await check_tools(client)
        await check_formats(client)
        await check_errors(client)
        await check_cancel(group, client)
        await check_too_many(group, client)
        await check_a_cut_stream(group, client)
