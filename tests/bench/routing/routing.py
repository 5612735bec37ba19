"""What the router costs, and what it is worth: before gateways with simulated steps, and in a simulation of conversations."""

import asyncio
import contextlib
import os
import random
import re
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from tests.bench import processes
from tests.bench.figures import Bound, Figure
from tests.bench.line import BenchFailed
from tests.bench.routing import connections, conversations, simulated

CLIENTS = (1, 16, 64)
TOKENS = 48
STEP_SECONDS = 0.02
ROUNDS = 5
"""Measured for each number of clients, both sides in turns."""
SPREAD_SECONDS = 0.5
"""In which the clients of a round send their requests."""
SHORT = {1: 3, 16: 12}
"""Tokens of further requests, by number of clients, of which only the first token is measured. 64 clients are enough."""
FIRSTS = 96
"""Further requests in each round."""
SEED = 2026
KILLED_CLIENTS = 40
KILLED_PLACES = 8
KILLED_TOKENS = 100
"""More than are generated until the group is killed, also on a busy machine."""

_FIRST = re.compile(rb'data: {"choices".*?(?:, "waited": ([0-9.]+))?}\n')
Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """What one client saw.

    ``first``: seconds to the first token, without those that the gateway says the request waited there for a step: they are up
    to a step by chance, on any way. None if it got no token.
    """

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
                if first is None and (event := _FIRST.search(text)) is not None:
                    first = time.monotonic() - began - float(event[1] or 0)
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


@dataclass
class _Side:
    """What is measured of one way to the gateway: through the router, through a forwarder of bytes, or directly."""

    url: str
    pids: tuple[int, ...]
    """The processes on the way, the gateway last."""
    rates: list[float] = field(default_factory=list)
    firsts: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    cpu: list[float] = field(default_factory=list)
    """Processor seconds of the client and of each process."""
    tokens: int = 0

    def measure(self, clients: int, *, counts: bool) -> None:
        """One round. ``counts``: False for the first one, which only warms up."""
        before = self._used()
        answers, seconds = asyncio.run(_clients(self.url, clients, spread=SPREAD_SECONDS))
        after = self._used()
        if not counts:
            return
        self.rates.append(_rate(answers, seconds))
        self.firsts += answers
        self.seconds += seconds
        self.tokens += sum(answer.tokens for answer in answers)
        spent = [end - start for start, end in zip(before, after, strict=True)]
        self.cpu = [sum(one) for one in zip(self.cpu, spent, strict=True)] if self.cpu else spent
        if clients in SHORT:
            self.firsts += asyncio.run(_short(self.url, clients))

    def _used(self) -> list[float]:
        mine = os.times()
        found = [processes.usage(pid) for pid in self.pids]
        return [mine.user + mine.system, *(one.cpu_seconds if one is not None else 0.0 for one in found)]

    @property
    def busy(self) -> float:
        """Percent of all processors that the client and the processes on the way took."""
        return 100 * sum(self.cpu) / self.seconds / (os.cpu_count() or 1)


def _cost(say: Say) -> list[Figure]:
    """Throughput and first token through the router, against the gateway itself, and against any way with one more process."""
    figures = []
    slots = str(max(CLIENTS))
    with contextlib.ExitStack() as stack:
        gateway, behind = stack.enter_context(simulated.running("gateway", slots, str(STEP_SECONDS)))
        ways = {
            "router": stack.enter_context(simulated.running("router", slots, gateway)),
            "forwarder": stack.enter_context(simulated.running("forwarder", gateway)),
        }
        for clients in CLIENTS:
            sides = {name: _Side(url, (pid, behind)) for name, (url, pid) in ways.items()}
            sides["gateway"] = _Side(gateway, (behind,))
            for number in range(ROUNDS + 1):
                # Each side is first, second and last in turns.
                order = list(sides.values())
                for side in order[number % len(order) :] + order[: number % len(order)]:
                    side.measure(clients, counts=number > 0)
            figures += _costs(f"router {clients} client{'s' if clients > 1 else ''}", sides, say)
    return figures


def _costs(name: str, sides: dict[str, _Side], say: Say) -> list[Figure]:
    router, forwarder, gateway = sides["router"], sides["forwarder"], sides["gateway"]
    note = f"median of {ROUNDS}, steps of {1000 * STEP_SECONDS:g} ms, {TOKENS} tokens, starts within {SPREAD_SECONDS:g} s"
    added, any_hop = (_first(side.firsts) - _first(gateway.firsts) for side in (router, forwarder))
    busy = ", ".join(f"{one} {side.busy:.0f} %" for one, side in sides.items())
    say(
        f"{name}: {statistics.median(router.rates):.0f} tokens/s, direct {statistics.median(gateway.rates):.0f}; first token "
        f"{added:+.2f} ms, {any_hop:+.2f} ms with a forwarder of bytes; processors: {busy}"
    )
    of = (
        f"medians of {len(router.firsts)} requests; a process that only forwards bytes adds {any_hop:.2f} ms; the processors "
        f"were busy with the benchmark: {busy}"
    )
    return [
        Figure(name, "tokens/s", tuple(router.rates), tuple(gateway.rates), "gateway", Bound(">=", 0.99), note),
        Figure(f"{name}, first token added", "ms", (added,), bound=Bound("<=", 2.0), note=of),
        Figure(f"{name}, CPU", "µs/token", (1e6 * router.cpu[1] / router.tokens,), note="of the router's process"),
    ]


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
