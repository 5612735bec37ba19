"""Bodies made to stop a supervisor: the group and its heartbeats go on, and a request that asks too much fails alone."""

import asyncio
import io
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.suite.tiers import quick

HOSTILE = Path(__file__).parents[2] / "hostile_bodies.py"
MODEL = "thunderfleet/tiny"
FIXED: dict[str, Any] = {
    "model": MODEL, "temperature": 0, "max_tokens": 12, "return_token_ids": True, "messages": list(tinymodel.MESSAGES),
}  # fmt: skip
TOGETHER = 6
"""More bodies than a gateway takes at once: 64 MiB."""
GAP_SECONDS = 0.5
"""A rank counts as frozen after 3 s without a heartbeat."""
SHAPES = (
    "lists", "objects", "numbers", "texts", "deep", "deep objects", "one text", "words", "keys", "a long number",
    "a long fraction", "escapes", "surrogates", "backslashes", "quotes", "no UTF-8", "spaces", "tool calls",
)  # fmt: skip


class Pauses:
    """How long the event loop of the supervisors works without a pause.

    In CPU seconds: time that this machine gives to others does not count.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.thread_time() - before)


def _body(body: dict[str, Any]) -> io.BytesIO:
    return io.BytesIO(json.dumps(body).encode())


async def ask(client: aiohttp.ClientSession, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, Any]:
    async with asyncio.timeout(120), client.post(path, data=_body(body)) as response:
        return response.status, await response.json()


async def check_tokens(client: aiohttp.ClientSession, yardstick: list[int]) -> None:
    status, answer = await ask(client, FIXED)
    assert status == 200, answer
    assert answer["choices"][0]["token_ids"] == yardstick[:12]


async def attack(url: str, *shapes: str) -> dict[str, int]:
    """The status of each shape's last body."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(HOSTILE), url, *shapes, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(300):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return dict(zip(shapes, json.loads(out), strict=True))


@pytest.mark.parametrize("together", quick([TOGETHER], [TOGETHER, 16]))
async def test_bodies_of_the_largest_size_stop_nothing(
    served: Callable[..., Any], tiny: Path, yardstick: list[int], together: int
) -> None:
    async with served(tiny, 2, "Tensor") as (group, client):
        await check_tokens(client, yardstick)
        leader, member = group.running[0][0], group.running[1][0]
        before = [supervisor.member.pid for supervisor in (leader, member)]
        url = str(client._base_url)
        pauses = Pauses()
        async with pauses.watched():
            assert set((await attack(url, *["lists"] * together)).values()) <= {0, 400, 429}
            attacking = asyncio.create_task(attack(url, *SHAPES))
            while not attacking.done():
                # Small requests are served beside them.
                await check_tokens(client, yardstick)
            found = await attacking
        assert pauses.longest <= GAP_SECONDS
        # 400: refused; 429: too many bytes of bodies at once; 503: waited too long; 0: cut while sending.
        assert {name for name, status in found.items() if status not in (0, 400, 429, 503)} <= {"spaces"}, found
        assert 400 in found.values()
        assert [supervisor.member.pid for supervisor in (leader, member)] == before
        assert (leader.state.attempt, leader.state.recoveries) == (1, 0)


def templated(tiny: Path, folder: Path, template: str) -> Path:
    """The tiny model with a template that begins with this one."""
    shutil.copytree(tiny, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"chat_template": template + config["chat_template"]}))
    return folder


# What the template does to a chat that says the name, and a word of the refusal.
TOO_MUCH = {
    "loop": ("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3, "CPU"),
    "text": ("{{ messages[0]['content'] * 10**10 }}", "memory"),
    "lists": ("{% set n = namespace(x=[0]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}", "too much"),
    "power": ("{{ (messages|length + 9) ** (10 ** 9) }}", "too much"),
}


async def check_templates(client: aiohttp.ClientSession) -> None:
    for name, (_, word) in TOO_MUCH.items():
        bad = FIXED | {"messages": [{"role": "user", "content": name}]}
        (status, answer), *others = await asyncio.gather(ask(client, bad), *(ask(client, FIXED) for _ in range(3)))
        assert status == 400, (name, answer)
        assert word in answer["error"]["message"] and answer["error"]["code"] == "request_too_expensive", (name, answer)
        assert [each for each, _ in others] == [200] * 3, name
    loop = [{"role": "user", "content": "loop"}]
    for path, other in (("/v1/messages", {"messages": loop}), ("/v1/messages/count_tokens", {"messages": loop}),
                        ("/v1/responses", {"input": "loop"}), ("/tokenize", {"messages": loop})):  # fmt: skip
        status, answer = await ask(client, other, path)
        assert status == 400 and "CPU" in answer["error"]["message"], (path, answer)
    async with client.get("/metrics") as response:
        assert 'thunderfleet_runner_intake_ends_total{cause="' in await response.text()


async def check_texts(client: aiohttp.ClientSession) -> None:
    """Texts that are slow to tokenize."""
    for text in ("a" * (1 << 20), " " * (4 << 20), "\n" * (1 << 17), "<|im_end|>" * (1 << 20)):
        status, answer = await ask(client, {"model": MODEL, "prompt": text, "max_tokens": 1}, "/v1/completions")
        assert status == 400, answer
        status, answer = await ask(client, FIXED | {"messages": [{"role": "user", "content": text}]})
        # The tiny model has no token for a line break: that prompt is short.
        assert status == (200 if text[0] == "\n" else 400), answer


async def test_a_chat_or_text_that_takes_too_much_fails_alone(
    served: Callable[..., Any], tiny: Path, tmp_path: Path, yardstick: list[int]
) -> None:
    parts = [f"{{% if messages[0]['content'] == '{name}' %}}{part}{{% endif %}}" for name, (part, _) in TOO_MUCH.items()]
    async with served(templated(tiny, tmp_path / "model", "".join(parts)), 1, "None") as (group, client):
        await check_tokens(client, yardstick)
        pauses = Pauses()
        async with pauses.watched():
            await check_templates(client)
            await check_tokens(client, yardstick)
            await check_texts(client)
        await check_tokens(client, yardstick)
        assert pauses.longest <= GAP_SECONDS
        assert (group.running[0][0].state.attempt, group.running[0][0].state.recoveries) == (1, 0)


async def test_a_template_that_cannot_be_compiled_within_the_limits_leaves_completions(
    served: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    # Jinja computes constants when it compiles.
    template = "{% if messages[0]['content'].startswith('bad') %}{{ 10 ** (10 ** 9) }}{% endif %}"
    async with served(templated(tiny, tmp_path / "model", template), 1, "None") as (group, client):
        for _ in range(2):
            status, answer = await ask(client, FIXED)
            assert status == 400 and "too much" in answer["error"]["message"], answer
            status, answer = await ask(client, {"model": MODEL, "prompt": "Hello", "max_tokens": 2}, "/v1/completions")
            assert status == 200, answer
        assert (group.running[0][0].state.attempt, group.running[0][0].state.recoveries) == (1, 0)
