"""Messages between ranks that change on their way while the group serves: no client gets a wrong token.

The activations of a pipeline are not among them: nobody but a check of answers can know these.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.protocol import NO_TOKEN

from tests.support.suite.tiers import quick
from tests.unit.runner.ranks.test_corruptions import with_program

SPOIL = """
def change(mx, values, found):
    CHANGE

def spoil():
    import os, sys
    from pathlib import Path
    import mlx.core as mx
    now = Path(os.environ["THUNDERFLEET_TEST_FOLDER"]) / ("now-" + sys.argv[sys.argv.index("--rank") + 1])
    right = mx.distributed.all_sum
    def wrong(values, **options):
        found = right(values, **options)
        if not now.exists() or (changed := change(mx, values, found)) is None:
            return found
        now.unlink()
        return changed
    mx.distributed.all_sum = wrong
"""
PROMPT = """
    if values.dtype == mx.uint8:
        data = bytearray(memoryview(found))
        at = data.index(b'"segments":[[') + 13
        data[at] = ord('3') if data[at] != ord('3') else ord('4')
        return mx.array(memoryview(data))
"""
TOKEN = "if values.dtype == mx.uint32: return (found + 1) % 256"
FLAG = "if values.dtype == mx.int64 and values[-1].item(): return found + mx.array([1, 0, 0])"
LENGTH = "if values.dtype == mx.int64 and not values[-1].item(): return found + mx.array([1 << 40, 0, 0])"
CASES = {
    "the prompt at one rank": (PROMPT, (1,)),
    "the prompt at all ranks": (PROMPT, (0, 1)),
    "a token at one rank": (TOKEN, (1,)),
    "a token at all ranks": (TOKEN, (0, 1)),
    "a flag": (FLAG, (1,)),
    "a length": (LENGTH, (1,)),
}


@pytest.mark.parametrize("case", quick(["the prompt at one rank", "a token at all ranks"], CASES))
async def test_no_wrong_token_leaves_a_pipeline_whose_messages_change(
    served: Callable[..., Any], tiny: Path, yardstick: list[int], case: str
) -> None:
    change, ranks = CASES[case]
    program = with_program(SPOIL.replace("    CHANGE", change if change.startswith("\n") else f"    {change}"))
    async with served(tiny, 2, "Pipeline", command=program) as (group, client):
        body = {
            "model": "thunderfleet/tiny", "messages": list(tinymodel.MESSAGES), "max_tokens": tinymodel.TOKENS,
            "stream": True, "return_token_ids": True, "temperature": 0,
        }  # fmt: skip
        for rank in ranks:
            (group.faults / f"now-{rank}").touch()
        async with client.post("/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=120)) as response:
            text = await response.text()
        said = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")] or [json.loads(text)]
        assert not list(group.faults.glob("now-*")), "it was changed"
        tokens = [token for piece in said for choice in piece.get("choices", ()) for token in choice.get("token_ids", ())]
        assert [token for token in tokens if token != NO_TOKEN] == yardstick[: len(tokens)]
        assert "error" in said[-1] and "[DONE]" not in text, text[-500:]
        await group.until_ready()
        failure = group.running[0][0].state.failure
        assert failure.reason == "Diverged", failure.message
        answer = await client.post("/v1/chat/completions", json=body | {"stream": False})
        assert (await answer.json())["choices"][0]["token_ids"] == yardstick
