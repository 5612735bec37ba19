"""What counting and timing a request for Prometheus costs, at the gateway of a group and at the router; without a cluster.

Both are the real programs' servers, in this process. The group is scripted: it gives a token in each step. Every call to a
metric is timed where it happens, so what timing itself takes counts as cost of the metrics. ``python -m
tests.bench.routing.metering`` measures it alone.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import metrics as prometheus
from thunderfleet_runner import protocol
from thunderfleet_runner.api.http.gateway import Gateway
from thunderfleet_runner.api.intake import Intake

from tests.bench.figures import Bound, Figure, table
from tests.bench.routing.simulated import Stepping
from tests.support.routers.router import Kit, client_of
from tests.support.routers.routing import Model
from tests.support.routers.scriptedgroup import Script

Say = Callable[[str], None]
TOKENS = 48
STEP_SECONDS = 0.005
"""A small model on a fast Mac: a slower one makes metrics a smaller part of a request."""
CALLS = {
    prometheus.MetricWrapperBase: ("labels",),
    prometheus.Counter: ("inc",),
    prometheus.Gauge: ("inc", "dec", "set"),
    prometheus.Histogram: ("observe",),
}
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": TOKENS}


class Meter:
    """Calls to metrics and the seconds that they took."""

    def __init__(self) -> None:
        self.calls, self.seconds = 0, 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Counts while the block runs."""
        with contextlib.ExitStack() as stack:
            for kind, names in CALLS.items():
                for name in names:
                    original = getattr(kind, name)
                    setattr(kind, name, self._timed(original))
                    stack.callback(setattr, kind, name, original)
            yield

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began
                self.calls += 1

        return call


class Stepped(Script):
    """Gives a request's tokens one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._answering: asyncio.Task[None] | None = None

    def send(self, message: protocol.ToRank) -> None:
        if isinstance(message, protocol.Generate):
            self.requests.append(message.request)
            self._answering = asyncio.create_task(self._answer(message.request.id))

    async def _answer(self, name: str) -> None:
        for number in range(TOKENS):
            await asyncio.sleep(STEP_SECONDS)
            self.service.deliver(protocol.Token(id=name, token=number, text=f"t{number} "))
        self.service.deliver(self.done(name, "stop", TOKENS))


async def _request(client: TestClient[Any, Any], model: str) -> float:
    """Seconds of a streamed request. Raises ValueError if it has not all tokens."""
    began = time.perf_counter()
    async with client.post("/v1/chat/completions", json={"model": model, **BODY}) as answer:
        text = await answer.text()
    seconds = time.perf_counter() - began
    if answer.status != 200 or text.count('"delta"') < TOKENS:
        raise ValueError(f"HTTP {answer.status} with {text.count(chr(34) + 'delta' + chr(34))} tokens: {text[:200]}")
    return seconds


async def _shares(client: TestClient[Any, Any], model: str, requests: int) -> tuple[list[float], float, float]:
    """Percent of each request that its metrics took, their calls, and percent of the processor time of all requests."""
    # The first one also creates the children of metrics with labels.
    await _request(client, model)
    meter, shares = Meter(), []
    with meter.running():
        used = time.process_time()
        for _ in range(requests):
            before = meter.seconds
            seconds = await _request(client, model)
            shares.append(100 * (meter.seconds - before) / seconds)
        used = time.process_time() - used
    if not meter.calls:
        raise ValueError("a request touched no metric")
    return shares, meter.calls / requests, 100 * meter.seconds / used


def _figure(where: str, found: tuple[list[float], float, float], say: Say) -> Figure:
    shares, calls, of_cpu = found
    note = (
        f"median of {len(shares)} requests, {TOKENS} tokens, a step each {1000 * STEP_SECONDS:g} ms; {calls:.0f} calls a "
        f"request; {of_cpu:.1f} % of the processor time, client included"
    )
    say(f"metrics at the {where}: {note}")
    return Figure(f"{where}, metrics", "% of a request", tuple(shares), bound=Bound("<=", 1.0), note=note)


async def _measure(requests: int, say: Say) -> list[Figure]:
    script = Stepped()
    served = Gateway(script.service, Intake(script.process), ()).app()
    async with TestClient[Any, Any](TestServer(served, handler_cancellation=True)) as client:
        found = [_figure("gateway", await _shares(client, script.service.plan.model, requests), say)]
    group = Stepping(4, STEP_SECONDS)
    await group.start()
    steps = asyncio.create_task(group.steps())
    try:
        async with client_of(Kit(Model(urls=[group.url]))) as client:
            return [*found, _figure("router", await _shares(client, "tiny", requests), say)]
    finally:
        steps.cancel()
        await group.stop()


def figures(say: Say, requests: int = 30) -> list[Figure]:
    """The gateway's and the router's. Raises ValueError, OSError."""
    return asyncio.run(_measure(requests, say))


if __name__ == "__main__":
    print(table(figures(print)))
