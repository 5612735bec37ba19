"""Real ranks behind real supervisors on loopback: answers, idle load, and hostile clients."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.processes import PROC

MODEL = "thunderfleet/tiny"
REQUEST = {"model": MODEL, "temperature": 0, "max_tokens": tinymodel.TOKENS, "return_token_ids": True}
CHAT = {**REQUEST, "messages": list(tinymodel.MESSAGES)}


async def ask(client: aiohttp.ClientSession, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, Any]:
    async with asyncio.timeout(60), client.post(path, json=body) as response:
        return response.status, await response.json()


async def streamed(client: aiohttp.ClientSession, body: dict[str, Any]) -> list[str]:
    """The ``data:`` lines of a streamed chat."""
    async with asyncio.timeout(60), client.post("/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]


def processes(group: Any) -> list[int]:
    return [supervisor.member.pid for supervisor, _ in group.running.values()]


def ticks(pid: int) -> int:
    """CPU time that a process has used, in clock ticks."""
    fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


async def check_answer(client: aiohttp.ClientSession, yardstick: list[int]) -> dict[str, Any]:
    """The one choice of a whole response, which has the tokens of a single mlx-lm process."""
    status, answer = await ask(client, CHAT)
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    assert choice["token_ids"] == yardstick
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == tinymodel.TOKENS
    return choice


async def check_answers(client: aiohttp.ClientSession, yardstick: list[int]) -> None:
    """Whole, streamed, cached and batched responses have the tokens of a single mlx-lm process."""
    choice = await check_answer(client, yardstick)
    *pieces, end = await streamed(client, CHAT | {"stream_options": {"include_usage": True}})
    assert end == "[DONE]"
    chunks = [json.loads(piece) for piece in pieces]
    assert [t for chunk in chunks for c in chunk["choices"] for t in c.get("token_ids", [])] == yardstick
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    assert text == choice["message"]["content"]
    # The second time the prompt is in the cache, and the answer is the same.
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    # Several at once, so that batches form and dissolve; each answer is the beginning of the one alone.
    together = await asyncio.gather(*(ask(client, CHAT | {"max_tokens": n}) for n in (5, 17, 40, 48)))
    for n, ids in zip((5, 17, 40, 48), (body["choices"][0]["token_ids"] for _, body in together), strict=True):
        assert ids == yardstick[:n]


async def check_stops_and_logprobs(client: aiohttp.ClientSession) -> None:
    _, whole = await ask(client, CHAT)
    text = whole["choices"][0]["message"]["content"]
    stop = text[20:23]
    _, stopped = await ask(client, CHAT | {"stop": [stop]})
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["message"]["content"] == text[: text.index(stop)]

    _, told = await ask(client, CHAT | {"max_tokens": 3, "logprobs": True, "top_logprobs": 2})
    entries = told["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3
    for entry in entries:
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"])
        assert entry["top_logprobs"][0]["logprob"] > entry["top_logprobs"][1]["logprob"]


async def check_no_tools(client: aiohttp.ClientSession) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    status, answer = await ask(client, CHAT | {"tools": [tool], "max_tokens": 4})
    assert status == 200 and answer["choices"][0]["message"]["content"], "a model without a format for calls answers in text"


async def check_a_client_that_leaves(group: Any, client: aiohttp.ClientSession) -> None:
    service = group.running[0][0].service
    long = CHAT | {"max_tokens": 400, "stream": True}
    leaving = await client.post("/v1/chat/completions", json=long)
    await leaving.content.readline()
    leaving.close()
    await group.until(lambda: service.running == 0, "the request of the client that left has ended")
    assert (await ask(client, CHAT | {"max_tokens": 4}))[0] == 200


async def check_idle(group: Any) -> None:
    """Idle ranks are blocked and use no processor; waiting in a collective would use a core."""
    service = group.running[0][0].service
    await group.until(lambda: not service._turn_open, "the turn has ended")
    before = {pid: ticks(pid) for pid in processes(group)}
    # Waits until the supervisors have used some processor time, which takes seconds when they are idle.
    began = asyncio.get_running_loop().time()
    await group.until(lambda: asyncio.get_running_loop().time() - began > 3, "three seconds have gone")
    used = {pid: ticks(pid) - count for pid, count in before.items()}
    # A rank that polls its peers uses a core: 300 ticks of 10 ms.
    assert all(count < 60 for count in used.values()), used


@pytest.mark.usefixtures("preferred")
async def test_a_pipeline_answers_the_same_and_measures_itself(
    served: Callable[..., Any], tiny: Path, yardstick: list[int]
) -> None:
    async with served(tiny, 2, "Pipeline", benchmark=True) as (group, client):
        own = {os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, *processes(group))}
        assert min(own) >= 0, "what is ready is equal to other programs"
        await check_answers(client, yardstick)
        service = group.running[0][0].service
        await group.until(lambda: service.benchmark is not None, "the benchmark has been made")
        report = service.benchmark
        assert (report.prompt_tokens, report.generation_tokens) == (64, 32)
        assert report.prefill_tokens_per_second > 0 < report.decode_tokens_per_second
        assert report.all_reduce_microseconds > 0 < report.all_reduce_megabytes_per_second
        # Turns go on after it.
        await check_answer(client, yardstick)


def check_compared_shards(group: Any) -> None:
    told = group.running[0][0].state.verified
    assert told.status == "True"
    assert "matrices are right, in " in told.message and " s; layers 0 give the same as on one Mac; " in told.message


async def check_a_killed_rank(group: Any, client: aiohttp.ClientSession) -> None:
    """Streams end with an error event, never as if complete, and the group recovers."""
    long = CHAT | {"max_tokens": 470, "stream": True}
    async with client.post("/v1/chat/completions", json=long) as response:
        await response.content.readline()
        os.kill(processes(group)[1], 9)
        rest = (await response.content.read()).decode()
    assert "[DONE]" not in rest
    assert '"error"' in rest.strip().split("\n\n")[-1]
    service = group.running[0][0].service
    await group.until(lambda: not service.ready, "the failure is noticed")
    await group.until_ready()


async def test_one_rank_with_compiled_kernels_answers_the_same(
    served: Callable[..., Any], tiny: Path, yardstick: list[int]
) -> None:
    async with served(tiny, 1, "None", compiled=True) as (_, client):
        await check_answers(client, yardstick)


async def test_two_tensor_ranks_answer_the_same_and_come_back(
    served: Callable[..., Any], tiny: Path, yardstick: list[int]
) -> None:
    async with served(tiny, 2, "Tensor", spinning=True) as (group, client):
        check_compared_shards(group)
        await check_answers(client, yardstick)
        await check_stops_and_logprobs(client)
        await check_a_client_that_leaves(group, client)
        if sys.platform == "linux":
            await check_idle(group)
        await check_no_tools(client)
        await check_a_killed_rank(group, client)
        await check_answer(client, yardstick)
