"""Two real ranks of a model whose caches do not batch.

mlx-lm serves such a model one request at a time, and cannot end a request on all ranks together or notice ranks that differ.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.host.rankprocess import RANK_MODULE
from thunderfleet_runner.protocol import NO_TOKEN

CONTEXT = 8192
LONG: dict[str, Any] = {"max_tokens": CONTEXT - 512, "stream": True, "logit_bias": {"0": -100, "2": -100}}
"""An answer that the model does not end by itself: it never samples an end token."""
# The tiny model with the caches of one that attends in chunks. Rank 1 reports another token than the sampled one while a
# file exists.
PROGRAM = """
import os, sys
from pathlib import Path
from thunderfleet_runner.rank import __main__, rank

lie = Path(os.environ["THUNDERFLEET_TEST_FOLDER"]) / "lie"
load = rank.Rank._load


def load_unbatched(self, *arguments):
    from mlx_lm.models import qwen2
    from mlx_lm.models.cache import ChunkedKVCache
    from mlx_lm import server

    qwen2.Model.make_cache = lambda model: [ChunkedKVCache(1 << 20) for _ in model.layers]
    honest = server.stream_generate

    def told(*positional, **named):
        for response in honest(*positional, **named):
            if "--liar" in sys.argv and lie.exists():
                lie.unlink()
                response.token = (response.token + 1) % 256
            yield response

    server.stream_generate = told
    engine = load(self, *arguments)
    assert not engine._stoppable, "these caches must not batch"
    return engine


rank.Rank._load = load_unbatched
sys.exit(__main__.main())
"""


def _command(group: str, epoch: int, rank: int) -> list[str]:
    liar = ["--liar"] if rank == 1 else []
    return [sys.executable, "-P", "-c", PROGRAM, RANK_MODULE, "--group", group, "--rank", str(rank), *liar]


def _body(**changes: Any) -> dict[str, Any]:
    chat = {"model": "thunderfleet/tiny", "messages": list(tinymodel.MESSAGES), "return_token_ids": True}
    return {**chat, "temperature": 0, "max_tokens": tinymodel.TOKENS, **changes}


async def _whole(client: aiohttp.ClientSession, **changes: Any) -> list[int]:
    async with client.post("/v1/chat/completions", json=_body(**changes)) as response:
        assert response.status == 200, await response.text()
        tokens: list[int] = (await response.json())["choices"][0]["token_ids"]
        return tokens


async def check_a_client_that_leaves(group: Any, client: aiohttp.ClientSession) -> None:
    leader = group.running[0][0]

    async def steps() -> int:
        """Of rank 0, when it is idle."""
        await group.until(lambda: not leader.service._turn_open, "the turn has ended")
        before = leader.member.heartbeats.last
        await group.until(lambda: leader.member.heartbeats.last is not before, "it says so")
        assert not leader.member.heartbeats.last.in_step
        return int(leader.member.heartbeats.last.steps)

    before = await steps()
    leaving = await client.post("/v1/chat/completions", json=_body(**LONG))
    await leaving.content.readline()
    leaving.close()
    assert await steps() - before < LONG["max_tokens"] // 2


async def check_a_stop(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=_body()) as response:
        text = (await response.json())["choices"][0]["message"]["content"]
    async with client.post("/v1/chat/completions", json=_body(stop=[text[20:23]], max_tokens=400)) as response:
        choice = (await response.json())["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(text[20:23])]


async def check_a_liar(group: Any, client: aiohttp.ClientSession, yardstick: list[int]) -> None:
    response = await client.post("/v1/chat/completions", json=_body(**LONG))
    first = await response.content.readline()
    (group.faults / "lie").touch()
    text = (first + await response.read()).decode()
    *pieces, end = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert "[DONE]" not in text
    assert "error" in end, end
    tokens = [token for piece in pieces for token in piece["choices"][0].get("token_ids", ()) if token != NO_TOKEN]
    assert tokens[: len(yardstick)] == yardstick[: len(tokens)]
    assert len(tokens) < LONG["max_tokens"]
    await group.until(lambda: group.running[0][0].state.recoveries, "the group has come back")
    await group.until_ready()
    failure = group.running[0][0].state.failure
    assert "no longer compute the same" in failure.message, failure


@pytest.mark.parametrize("split", ["Tensor", "Pipeline"])
async def test_a_model_whose_caches_do_not_batch_over_two_ranks(
    served: Callable[..., Any], tiny: Path, yardstick: list[int], split: str
) -> None:
    memory = {"contextTokens": CONTEXT, "cachedTokens": 4096}
    timeout = aiohttp.ClientTimeout(total=120)
    async with served(tiny, 2, split, memory=memory, command=_command) as (group, client):
        client._timeout = timeout
        assert await _whole(client) == yardstick
        assert await _whole(client) == yardstick
        await check_a_stop(client)
        await check_a_client_that_leaves(group, client)
        assert await _whole(client) == yardstick
        assert group.running[0][0].state.recoveries == 0
        if split == "Tensor":
            await check_a_liar(group, client, yardstick)
            assert await _whole(client) == yardstick
