"""Ranks that diverge: their digests differ, and they end before a client gets a token on which they differ."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.host import preflight
from thunderfleet_runner.host.rankprocess import RANK_MODULE
from thunderfleet_runner.protocol import NO_TOKEN

from tests.support.suite.tiers import quick

# A rank that once uses another token than the sampled one: after the check, in the middle of an answer.
LIAR = """
import os, sys
from pathlib import Path
from thunderfleet_runner.rank import __main__, rank

lied = Path(os.environ["THUNDERFLEET_TEST_FOLDER"]) / "lied"
load, seen = rank.Rank._load, 0


def load_and_lie(self, *arguments):
    # Not before init, whose deadline this import would take.
    from mlx_lm import server

    honest = server.BatchGenerator.next

    def lie(self):
        global seen
        prompts, tokens = honest(self)
        for response in tokens:
            seen += 1
            if seen == AT and not lied.exists():
                lied.touch()
                LIE
        return prompts, tokens

    server.BatchGenerator.next = lie
    return load(self, *arguments)


rank.Rank._load = load_and_lie
sys.exit(__main__.main())
"""
AT = 20
CHECKED = 8
TOKEN = "response.token = (response.token + 1) % 256"
# Of an answer's first token, after those of the check.
LOGITS = "response.logprobs = response.logprobs * 1.001"
LIES = [(AT, TOKEN), (CHECKED + 1, LOGITS)]


@pytest.mark.parametrize(
    ("liar", "at", "lie"),
    quick([(1, AT, TOKEN), (1, CHECKED + 1, LOGITS)], [(liar, *how) for liar in (0, 1) for how in LIES]),
)
async def test_no_wrong_token_leaves_a_group_that_parts(
    served: Callable[..., Any], tiny: Path, yardstick: list[int], liar: int, at: int, lie: str
) -> None:
    def command(group: str, epoch: int, rank: int) -> list[str]:
        told = [RANK_MODULE, "--group", group, "--rank", str(rank)]
        program = (
            LIAR if rank == liar else "import sys\nfrom thunderfleet_runner.rank import __main__\nsys.exit(__main__.main())"
        )
        return [sys.executable, "-P", "-c", program.replace("AT", str(at)).replace("LIE", lie), *told]

    async with served(tiny, 2, "Tensor", command=command) as (group, client):
        body = {
            "model": "thunderfleet/tiny", "messages": list(tinymodel.MESSAGES), "max_tokens": tinymodel.TOKENS,
            "stream": True, "return_token_ids": True, "temperature": 0,
        }  # fmt: skip
        async with client.post("/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=120)) as response:
            text = await response.text()
        # Without any token the answer is a plain error.
        said = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")] or [json.loads(text)]
        *pieces, end = said
        assert (group.faults / "lied").exists()
        assert "[DONE]" not in text
        assert "error" in end, end
        tokens = [token for piece in pieces for token in piece["choices"][0].get("token_ids", ()) if token != NO_TOKEN]
        assert tokens == yardstick[: len(tokens)]
        assert len(tokens) < at - CHECKED
        service = group.running[0][0].service
        await group.until(lambda: not service.ready or group.running[0][0].state.recoveries, "the failure is noticed")
        await group.until_ready()
        failure = group.running[0][0].state.failure
        assert failure.reason == "Diverged"
        assert "no longer compute the same" in failure.message, failure
        # The group serves again with correct tokens.
        answer = await client.post("/v1/chat/completions", json=body | {"stream": False})
        assert (await answer.json())["choices"][0]["token_ids"] == yardstick


def _other_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": "2.0"}')


def _missing_tensor(model: Path) -> None:
    header = b"{}"
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def _cut_short(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_other_tokenizer, "is not the one on studio-0"),
        (_missing_tensor, "is not the one on studio-0"),
        (_cut_short, "model.safetensors is truncated: tensor w"),
    ],
)
async def test_a_rank_with_another_model_is_refused_by_name(
    make_group: Callable[..., Any], make_model: Callable[[Path], Path], spoil: Callable[[Path], None], words: str
) -> None:
    group = make_group(2)
    odd = make_model(group.folder / "odd")
    spoil(odd)
    leader = group.start(0)
    group.start(1, plan=group.plan.model_copy(update={"model_path": str(odd)}))
    await group.until(lambda: words in leader.state.message, "the leader says what is wrong")
    assert "studio-1" in leader.state.message
    assert leader.state.phase is not GroupPhase.READY
    if spoil is _other_tokenizer:
        (odd / "tokenizer.json").unlink()
        await group.until_ready()


async def test_a_rank_with_another_version_is_refused_by_name(
    make_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    monkeypatch.setattr(preflight, "version", lambda name: "0.0.1")
    group.start(1)
    await group.until(lambda: "runs mlx" in leader.state.message, "the leader says what is wrong")
    assert leader.state.phase is not GroupPhase.READY
