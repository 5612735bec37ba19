"""The official clients of Anthropic's API and of OpenAI's Responses API against a real group of two ranks."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel

from tests.support.suite.later import Later
from tests.unit.runner.walker import KEY, MODEL, THOUGHT, walked, walker

if TYPE_CHECKING:
    import anthropic
    import openai
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
else:
    anthropic, openai = Later("anthropic"), Later("openai")


class Verdict(BaseModel):
    """A format for the model's answer."""

    ruling: Literal["yes", "no"]
    weight: Literal[1, 2]


USER: list[Any] = [{"role": "user", "content": "hi"}]
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"name": "weather", "description": "of a city", "input_schema": CITY}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
MESSAGE: Any = {"model": MODEL, "max_tokens": 9, "messages": USER}
RESPONSE: Any = {"model": MODEL, "max_output_tokens": 16, "input": "hi", "temperature": 0}
HARD: Any = {"output_config": {"effort": "high"}}


async def check_messages(client: "AsyncAnthropic") -> None:
    message = await client.messages.create(**MESSAGE, system=[{"type": "text", "text": "be brief"}])
    (block,) = message.content
    assert (block.type, message.role, message.stop_reason, message.model) == ("text", "assistant", "max_tokens", MODEL)
    assert block.type == "text" and block.text == walked(9)
    assert message.usage.output_tokens == 9
    counted = await client.messages.count_tokens(model=MODEL, messages=USER, system="be brief")
    used = message.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)

    stop = walked(3, start=6)
    stopped = await client.messages.create(**MESSAGE | {"max_tokens": 99}, stop_sequences=["never", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    async with client.messages.stream(**MESSAGE) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(texts) == walked(9) and len(texts) > 3
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 9)


async def check_thinking(client: "AsyncAnthropic") -> None:
    message = await client.messages.create(**MESSAGE, **HARD)
    thinking, text = message.content
    assert thinking.type == "thinking" and thinking.thinking == THOUGHT
    assert (text.type == "text" and text.text == walked(6).lstrip()) or text.type == "text"
    async with client.messages.stream(**MESSAGE, **HARD) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[0].type == "thinking" and final.content[0].thinking == THOUGHT
    assert kinds.count("content_block_stop") == 2
    # The whole turn goes back.
    again = [*USER, {"role": "assistant", "content": final.content}, *USER]
    assert (await client.messages.create(**MESSAGE | {"messages": again})).content


async def check_message_tools(client: "AsyncAnthropic") -> None:
    asked: Any = MESSAGE | {"tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]}
    raw = await client.messages.with_raw_response.create(**asked)
    assert raw.headers["X-Thunderfleet-Ignored"] == "tools.web_search_20250305"
    message = await raw.parse()
    (call,) = message.content
    assert call.type == "tool_use" and (call.name, call.input) == ("weather", {"city": "Oslo"})
    assert message.stop_reason == "tool_use"
    async with client.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    (streamed,) = final.content
    assert streamed.type == "tool_use" and (streamed.name, streamed.input) == ("weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sun"}]}
    turns = [*USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = await client.messages.create(**MESSAGE | {"messages": turns})
    assert after.content[0].type == "text" and after.content[0].text == walked(9)


async def check_forced(messages: "AsyncAnthropic", client: "AsyncOpenAI") -> None:
    tool: Any = {"name": "rule", "input_schema": Verdict.model_json_schema()}
    choices: tuple[Any, ...] = ({"type": "any"}, {"type": "tool", "name": "rule"})
    for choice in choices:
        async with messages.messages.stream(**MESSAGE | {"max_tokens": 99}, tools=[tool], tool_choice=choice) as stream:
            (block,) = (await stream.get_final_message()).content
        assert block.type == "tool_use" and Verdict.model_validate(block.input)
    parsed = await client.responses.parse(**RESPONSE | {"max_output_tokens": 99}, text_format=Verdict)
    assert parsed.output_parsed is not None


async def check_message_errors(client: "AsyncAnthropic") -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature must be a number") as bad:
        await client.messages.create(**MESSAGE, extra_body={"temperature": 9})
    assert isinstance(bad.value.body, dict) and bad.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**MESSAGE | {"model": "claude-opus-4"})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    with pytest.raises(anthropic.BadRequestError, match="images"):
        await client.messages.create(**MESSAGE | {"messages": [{"role": "user", "content": [image]}]})
    with pytest.raises(anthropic.BadRequestError, match="last message"):
        await client.messages.create(**MESSAGE | {"messages": [*USER, {"role": "assistant", "content": "So"}]})
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="wrong").messages.create(**MESSAGE)


async def check_responses(client: "AsyncOpenAI") -> None:
    response = await client.responses.create(**RESPONSE, instructions="be brief")
    assert response.output_text == walked(16)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 16
    assert response.instructions == "be brief" and not response.store
    stream = await client.responses.create(**RESPONSE, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[-1].type] == ["response.created", "response.incomplete"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == walked(16) and len(deltas) > 3
    thought = await client.responses.create(**RESPONSE, reasoning={"effort": "high"})
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert thought.output[0].type == "reasoning" and thought.output[0].content
    assert thought.output[0].content[0].text == THOUGHT
    turns: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, *thought.output, *USER]
    assert (await client.responses.create(**RESPONSE | {"input": turns})).output_text


async def check_response_tools(client: "AsyncOpenAI") -> None:
    asked: Any = RESPONSE | {"tools": [FUNCTION, {"type": "web_search"}]}
    response = await client.responses.create(**asked)
    (call,) = response.output
    assert call.type == "function_call" and (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    assert response.status == "completed"
    stream = await client.responses.create(**asked, stream=True)
    events = [event async for event in stream]
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments) == {"city": "Oslo"}
    assert events[-1].type == "response.completed" and events[-1].response.output[0].type == "function_call"
    turns: Any = [*USER, call, {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}]
    assert (await client.responses.create(**RESPONSE | {"input": turns})).output_text == walked(16)


async def check_response_errors(client: "AsyncOpenAI") -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"input": []},
        {"temperature": 9},
    )
    for wrong in bodies:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(**RESPONSE | wrong)
        assert bad.value.param in wrong


async def check_cut_streams(group: Any, messages: "AsyncAnthropic", client: "AsyncOpenAI") -> None:
    """A stream that is cut ends with its dialect's error."""
    long: Any = await messages.messages.create(**MESSAGE | {"max_tokens": 20000}, stream=True)
    other: Any = await client.responses.create(**RESPONSE | {"max_output_tokens": 20000}, stream=True)
    await anext(aiter(long))
    await anext(aiter(other))
    os.kill(group.running[1][0].member.pid, 9)
    with pytest.raises(anthropic.APIStatusError, match="the group failed"):
        async for event in long:
            assert event.type != "message_stop"
    kinds = [event.type async for event in other]
    assert kinds[-1] == "response.failed"


async def test_official_clients_of_other_dialects(served: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    async with walker(served, tiny, tmp_path / "walker") as (group, client):
        url = group.running[0][0].service.leader_url
        async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60) as messages:
            await check_messages(messages)
            await check_thinking(messages)
            await check_message_tools(messages)
            await check_message_errors(messages)
            await check_forced(messages, client)
            await check_responses(client)
            await check_response_tools(client)
            await check_response_errors(client)
            await check_cut_streams(group, messages, client)
