"""What the router costs, and what it is worth: before gateways with simulated steps, and in a simulation of conversations."""

import asyncio
import contextlib
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from tests.bench import connections, conversations, processes, simulated
from tests.bench.figures import Bound, Figure
from tests.bench.line import BenchFailed

CLIENTS = (1, 16, 64)
TOKENS = 48
STEP_SECONDS = 0.02
ROUNDS = 5
"""Measured for each number of clients, both sides in turns."""
SPREAD_SECONDS = 0.5
"""In which the clients of a round send their requests."""
SHORT = {1: 3, 16: 12}
"""Tokens of further requests, by number of clients, of which only the first token is measured: it comes with a step, so one
alone is up to a step early or late by chance. 64 clients are enough."""
FIRSTS = 96
"""Further requests in each round."""
SEED = 2026
KILLED_CLIENTS = 40
KILLED_PLACES = 8
KILLED_TOKENS = 100
"""More than are generated until the group is killed, also on a busy machine."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """What one client saw. ``first`` is None if it got no token."""

    first: float | None
    seconds: float
    tokens: int
    complete: bool


async def _ask(
    session: aiohttp.ClientSession, url: str, number: int, tokens: int, started: Callable[[], None] = lambda: None
) -> Answer:
    began = time.monotonic()
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"{number}"}], "stream": True, "max_tokens": tokens}
    first, text = None, b""
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            async for data in answer.content.iter_any():
                text += data
                if first is None and b'data: {"choices"' in text:
                    first = time.monotonic() - began
                    started()
    except aiohttp.ClientError:
        pass
    return Answer(first, time.monotonic() - began, text.count(b'"delta"'), text.rstrip().endswith(b"data: [DONE]"))


async def _clients(
    url: str,
    clients: int,
    tokens: int = TOKENS,
    each: int = 1,
    spread: float = 0.0,
    pause: float = 0.0,
    started: Callable[[], None] = lambda: None,
) -> tuple[list[Answer], float]:
    """The answers of that many clients, each with some requests, and the seconds for all.

    They start within ``spread``. ``pause``: before each request, at most.
    """
    chance = random.Random(SEED)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def client(number: int) -> list[Answer]:
            await asyncio.sleep(spread * number / clients)
            answers = []
            for _ in range(each):
                await asyncio.sleep(chance.random() * pause)
                answers.append(await _ask(session, url, number, tokens, started))
            return answers

        began = time.monotonic()
        found = await asyncio.gather(*(client(number) for number in range(clients)))
        return [answer for answers in found for answer in answers], time.monotonic() - began


def _rate(answers: list[Answer], seconds: float) -> float:
    if not all(answer.complete for answer in answers):
        raise BenchFailed("a request got no complete answer")
    return sum(answer.tokens for answer in answers) / seconds


def _first(answers: list[Answer]) -> float:
    return 1000 * statistics.median(answer.first for answer in answers if answer.first is not None)


async def _short(url: str, clients: int) -> list[Answer]:
    # An answer ends with a step; without the pause, the next request would always come at the same time of a step.
    answers, _ = await _clients(url, clients, SHORT[clients], FIRSTS // clients, pause=STEP_SECONDS)
    return answers


def _cost(say: Say) -> list[Figure]:
    """Throughput and first token through the router, against the gateway itself."""
    figures = []
    slots = str(max(CLIENTS))
    with contextlib.ExitStack() as stack:
        gateway, _ = stack.enter_context(simulated.running("gateway", slots, str(STEP_SECONDS)))
        router, pid = stack.enter_context(simulated.running("router", slots, gateway))
        for clients in CLIENTS:
            rates: tuple[list[float], list[float]] = ([], [])
            firsts: tuple[list[Answer], list[Answer]] = ([], [])
            used = tokens = 0.0
            for number in range(ROUNDS + 1):
                for side, url in enumerate((router, gateway)):
                    before = processes.usage(pid)
                    answers, seconds = asyncio.run(_clients(url, clients, spread=SPREAD_SECONDS))
                    after = processes.usage(pid)
                    if not number:
                        continue
                    rates[side].append(_rate(answers, seconds))
                    firsts[side].extend(answers)
                    if clients in SHORT:
                        firsts[side].extend(asyncio.run(_short(url, clients)))
                    if url == router and before and after:
                        used += after.cpu_seconds - before.cpu_seconds
                        tokens += sum(answer.tokens for answer in answers)
            name = f"router {clients} client{'s' if clients > 1 else ''}"
            note = (
                f"median of {ROUNDS}, steps of {1000 * STEP_SECONDS:g} ms, {TOKENS} tokens, starts within {SPREAD_SECONDS:g} s"
            )
            say(f"{name}: {statistics.median(rates[0]):.0f} tokens/s, direct {statistics.median(rates[1]):.0f}")
            figures.append(Figure(name, "tokens/s", tuple(rates[0]), tuple(rates[1]), "gateway", Bound(">=", 0.99), note))
            added = _first(firsts[0]) - _first(firsts[1])
            of = f"medians of {len(firsts[0])} requests"
            figures.append(Figure(f"{name}, first token added", "ms", (added,), bound=Bound("<=", 2.0), note=of))
            if tokens:
                figures.append(Figure(f"{name}, CPU", "µs/token", (1e6 * used / tokens,), note="of the router's process"))
    return figures


def _two_groups(say: Say) -> list[Figure]:
    """Throughput of two groups behind a router, against one behind the same router."""
    rates = []
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(simulated.running("gateway", "4", str(STEP_SECONDS)))[0] for _ in range(2)]
        for chosen in (urls, urls[:1]):
            router, _ = stack.enter_context(simulated.running("router", "4", *chosen))
            asyncio.run(_clients(router, 8, 4))
            rates.append(_rate(*asyncio.run(_clients(router, 16, 12, each=12))))
    say(f"two groups: {rates[0]:.0f} tokens/s, one {rates[1]:.0f}")
    note = "16 clients with 12 requests each, 4 places in a group"
    return [Figure("router, two groups", "tokens/s", (rates[0],), (rates[1],), "one group", Bound(">=", 1.9), note)]


def _killed(say: Say) -> list[Figure]:
    """Requests without a complete answer when one of two groups is killed under them, among those not yet started."""

    async def kill(router: str, victim: int) -> list[Answer]:
        # Two groups with 8 places each: when more have started than one has, others of both wait.
        started = asyncio.Semaphore(0)
        asking = asyncio.create_task(_clients(router, KILLED_CLIENTS, KILLED_TOKENS, started=started.release))
        for _ in range(KILLED_PLACES + 1):
            await started.acquire()
        os.kill(victim, signal.SIGKILL)
        return (await asking)[0]

    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(simulated.running("gateway", str(KILLED_PLACES), str(STEP_SECONDS))) for _ in range(2)]
        router, _ = stack.enter_context(simulated.running("router", str(KILLED_PLACES), *(url for url, _ in started)))
        answers = asyncio.run(kill(router, started[0][1]))
    lost = sum(not answer.tokens for answer in answers)
    cut = sum(bool(answer.tokens) and not answer.complete for answer in answers)
    say(f"a group was killed under {KILLED_CLIENTS} requests: {lost} not answered, {cut} cut after they had started")
    note = f"SIGKILL of one of two groups under {KILLED_CLIENTS} requests; {cut} had started and were cut"
    return [Figure("router, requests lost with a group", "", (float(lost),), bound=Bound("<=", 0.0), note=note)]


def balancing(say: Say) -> list[Figure]:
    """Cached tokens and first token of conversations, in simulated time."""
    figures = []
    for groups in (2, 4, 8):
        results = {
            name: conversations.simulate(make(), groups, SEED, 60 * groups) for name, make in conversations.POLICIES.items()
        }
        limit = conversations.limit(groups, SEED, 60 * groups)
        mine, others = results["ours"], ("round robin", "least loaded", "oracle", "longest prefix", "cache aware")
        shown = ", ".join(f"{name} {results[name].first_token:.2f} s" for name in ("ours", *others))
        say(f"conversations on {groups} groups, first token: {shown}")
        for name in others:
            other = results[name]
            note = f"{60 * groups} conversations, seed {SEED}, simulated time"
            # What no router can exceed: a bound above it cannot hold.
            most = f"; at most {limit / (other.cached_tokens / other.prompt_tokens):.2f} is possible"
            bound = Bound(">=", 1.5) if name == "round robin" else None
            title = f"balancing, {groups} groups"
            pair = (mine.cached_tokens / mine.prompt_tokens,), (other.cached_tokens / other.prompt_tokens,)
            figures.append(Figure(f"{title}, cached", "of prompt", *pair, name, bound, note + most))
            faster = (1 / mine.first_token,), (1 / other.first_token,)
            figures.append(Figure(f"{title}, first tokens", "1/s", *faster, name, bound, note))
    return figures


def figures(say: Say) -> list[Figure]:
    """All that need no cluster."""
    return [*_cost(say), *_two_groups(say), *_killed(say), *connections.figures(say), *balancing(say)]
