"""Figures of the HTTP API: what a second turn takes from the prompt cache, and Anthropic's dialect beside OpenAI's.

``python -m tests.bench.groups.dialects`` runs without a cluster: a group of two ranks on loopback, with the gateway.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from thunderfleet_crds.exchange.plan import MemoryPlan
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.group.decide.attempts import Phase

from tests.bench.figures import Bound, Figure, table
from tests.bench.groups import formation
from tests.bench.line import BenchFailed

TOOLS = 30
CONTEXT = 16_384
CLIENTS = 4
TOKENS = 160
"""Of one answer: the test model ends its answers later."""
ROUNDS = 10
MODEL = "m"
TEMPLATE = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"

Say = Callable[[str], None]
Pairs = list[tuple[float, float]]


def _model(folder: Path) -> Path:
    """The test model, with a template that writes tools."""
    tinymodel.make(folder, layers=2)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"chat_template": TEMPLATE + config["chat_template"]}))
    return folder


def _schema(number: int) -> dict[str, Any]:
    properties = {f"field{field}": {"type": "string", "description": f"What field {field} means"} for field in range(3)}
    return {"type": "object", "properties": properties, "required": [f"field{number % 3}"]}


def _of_openai() -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"tool{n}", "description": f"Does {n}", "parameters": _schema(n)}}
        for n in range(TOOLS)
    ]


def _of_anthropic() -> list[dict[str, Any]]:
    return [{"name": f"tool{n}", "description": f"Does {n}", "input_schema": _schema(n)} for n in range(TOOLS)]


async def _post(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
    async with client.post(path, json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise BenchFailed(f"{path}: {response.status} {answer}")
        return answer


async def _second_turn_of_openai(client: aiohttp.ClientSession) -> float:
    """The share of a second turn's prompt that came from the cache."""
    body = {"model": MODEL, "tools": _of_openai(), "max_tokens": 24, "messages": [{"role": "user", "content": "Which tool?"}]}
    first = await _post(client, "/v1/chat/completions", body)
    message = first["choices"][0]["message"]
    more = [*body["messages"], {"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Why?"}]  # type: ignore[misc]
    usage = (await _post(client, "/v1/chat/completions", body | {"messages": more}))["usage"]
    return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


async def _second_turn_of_anthropic(client: aiohttp.ClientSession) -> float:
    """As above; Anthropic's count of input tokens leaves the cached ones out."""
    body = {"model": MODEL, "tools": _of_anthropic(), "max_tokens": 24, "messages": [{"role": "user", "content": "What tool?"}]}
    first = await _post(client, "/v1/messages", body)
    more = [*body["messages"], {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "Why?"}]  # type: ignore[misc]
    usage = (await _post(client, "/v1/messages", body | {"messages": more}))["usage"]
    return float(usage["cache_read_input_tokens"] / (usage["input_tokens"] + usage["cache_read_input_tokens"]))


async def _streams(client: aiohttp.ClientSession, path: str, end: bytes, seed: int) -> tuple[float, float]:
    """Tokens a second of several streams at once, of prompts never seen before; microseconds of CPU of this process a token."""

    async def one(number: int) -> None:
        messages = [{"role": "user", "content": f"{seed}/{number}: {tinymodel.MESSAGES[0]['content']}"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, "stream": True, "temperature": 0}
        async with client.post(path, json=body) as response:
            text = await response.read()
            if response.status != 200 or end not in text[-2000:]:
                raise BenchFailed(f"{path}: {response.status} {text[-300:]!r}")

    began, used, tokens = time.perf_counter(), time.process_time(), CLIENTS * TOKENS
    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return tokens / (time.perf_counter() - began), 1e6 * (time.process_time() - used) / tokens


async def _measured(model: Path, folder: Path, say: Say) -> list[Figure]:
    group = formation.Group(folder, 2, model, gateway=True)
    memory = MemoryPlan(context_tokens=CONTEXT, concurrent_requests=CLIENTS, cached_tokens=CONTEXT)
    group.plan = group.plan.model_copy(update={"memory": memory})
    try:
        group.start(0)
        group.start(1)
        await group.until(Phase.READY)
        entry = group.plan.ranks[0]
        timeout = aiohttp.ClientTimeout(total=formation.WAIT_SECONDS)
        async with aiohttp.ClientSession(f"http://{entry.address}:{entry.gateway_port}", timeout=timeout) as client:
            shares = (await _second_turn_of_openai(client), await _second_turn_of_anthropic(client))
            say(f"dialects: a second turn takes {', '.join(f'{share:.3f}' for share in shares)} from the cache")
            chats, messages = list[tuple[float, float]](), list[tuple[float, float]]()
            for number in range(ROUNDS + 1):
                chat = await _streams(client, "/v1/chat/completions", b"[DONE]", 2 * number)
                message = await _streams(client, "/v1/messages", b"message_stop", 2 * number + 1)
                # The first round compiles shapes.
                if number:
                    chats.append(chat)
                    messages.append(message)
                    say(f"dialects {number}/{ROUNDS}: chat {chat[0]:.0f}, messages {message[0]:.0f} tokens/s")
    finally:
        await group.end()
    note = f"{TOOLS} tools, in both dialects"
    rates = f"median of {ROUNDS}, {CLIENTS} streams of {TOKENS} tokens, with a model that takes hardly any time"
    return [
        Figure("second turn from the cache", "", (min(shares),), bound=Bound(">=", 0.9), note=note),
        Figure("messages", "tokens/s", *_columns(messages, chats, 0), "chat completions", Bound(">=", 0.99), rates),
        Figure(
            "messages, CPU",
            "µs",
            *_columns(messages, chats, 1),
            "chat completions",
            note="a token, gateway and client together",
        ),
    ]


def _columns(ours: Pairs, other: Pairs, column: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(entry[column] for entry in ours), tuple(entry[column] for entry in other)


def figures(say: Say) -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="dialects-") as name:
        folder = Path(name)
        return asyncio.run(_measured(_model(folder / "model"), folder, say))


def run(_: object, repeats: int, say: Say) -> list[Figure]:
    """As one of the benchmarks; it needs no line."""
    return figures(say)


if __name__ == "__main__":
    found = figures(lambda text: print(text, file=sys.stderr, flush=True))
    print(table(found))
