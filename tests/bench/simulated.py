"""Processes for the benchmark of the router: a gateway with simulated steps, and a router before such gateways.

``python -m tests.bench.simulated gateway SLOTS STEP_SECONDS``, ``… gateway silent`` (streams of one token without an end),
``… gateway flood BYTES`` (streams that have so much at once) and ``… router SLOTS URL …`` print their URL and run until they
are ended.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from aiohttp import web
from thunderfleet_lib.net.listener import allow_descriptors

from tests.support.router import Kit
from tests.support.routing import Gateway, Model

START_SECONDS = 30.0


class Stepping(Gateway):
    """A gateway whose requests get one token in each step, at most ``slots`` of them at once."""

    def __init__(self, slots: int, step_seconds: float) -> None:
        super().__init__("g")
        self._places = asyncio.Semaphore(slots)
        self._seconds = step_seconds
        self._step = asyncio.Event()

    async def steps(self) -> None:
        """Makes steps until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            step, self._step = self._step, asyncio.Event()
            step.set()

    async def answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        tokens = json.loads(body).get("max_tokens", 16)
        self.requests.clear()
        async with self._places:
            response = await self.begin(request)
            for number in range(tokens):
                await self._step.wait()
                await response.write(self.token(number))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
            return response


async def _endless(flood: int) -> None:
    """A gateway whose streams have one token, or ``flood`` bytes, and do not end."""
    gateway = Gateway("g")

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        gateway.requests.clear()
        response = await gateway.begin(request)
        token = gateway.token(0)
        await response.write(token)
        many = token * (16_384 // len(token))
        for _ in range(flood // len(many)):
            await response.write(many)
        await asyncio.Event().wait()
        return response

    gateway.behaves = answer
    await gateway.start()
    print(gateway.url, flush=True)
    await asyncio.Event().wait()


async def _gateway(slots: int, seconds: float) -> None:
    gateway = Stepping(slots, seconds)
    await gateway.start()
    print(gateway.url, flush=True)
    await gateway.steps()


async def _router(slots: int, urls: Sequence[str]) -> None:
    kit = Kit(Model(urls=urls, slots=slots))
    runner = kit.server.runner()
    await runner.setup()
    port = await kit.server.listener.listen(runner, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def running(*words: str) -> Iterator[tuple[str, int]]:
    """The URL and process id of one of these processes, while the block runs."""
    command = [sys.executable, "-m", "tests.bench.simulated", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"{' '.join(words)} did not start")
            yield url, process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    allow_descriptors()
    with contextlib.suppress(KeyboardInterrupt):
        if kind == "gateway" and arguments[0] in ("silent", "flood"):
            asyncio.run(_endless(int(arguments[1]) if arguments[0] == "flood" else 0))
        elif kind == "gateway":
            asyncio.run(_gateway(int(arguments[0]), float(arguments[1])))
        else:
            asyncio.run(_router(int(arguments[0]), arguments[1:]))
