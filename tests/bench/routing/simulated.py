"""Processes for the benchmark of the router: a gateway with simulated steps, and a router before such gateways.

``python -m tests.bench.routing.simulated gateway SLOTS STEP_SECONDS``, ``… gateway silent`` (streams of one token without an
end), ``… gateway flood BYTES`` (streams that have so much at once), ``… router SLOTS URL …`` and ``… forwarder URL`` (passes
bytes on and knows nothing of HTTP) print their URL and run until they are ended.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from aiohttp import web
from thunderfleet_lib.host.descriptors import allow_descriptors

from tests.support.routers.router import Kit
from tests.support.routers.routing import Gateway, Model

START_SECONDS = 30.0


class Stepping(Gateway):
    """A gateway whose requests get one token in each step, at most ``slots`` of them at once.

    The first event of an answer says in ``waited`` for how many seconds its request was there before the step.
    """

    def __init__(self, slots: int, step_seconds: float) -> None:
        super().__init__("g")
        self._places = asyncio.Semaphore(slots)
        self._seconds = step_seconds
        self._step = asyncio.Event()
        self._stepped = 0.0

    async def steps(self) -> None:
        """Makes steps until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            step, self._step = self._step, asyncio.Event()
            self._stepped = time.monotonic()
            step.set()

    async def answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        tokens = json.loads(body).get("max_tokens", 16)
        self.requests.clear()
        came = time.monotonic()
        async with self._places:
            response = await self.begin(request)
            for number in range(tokens):
                await self._step.wait()
                token = self.token(number)
                if not number:
                    token = token.replace(b"}\n\n", b', "waited": %.6f}\n\n' % max(self._stepped - came, 0.0))
                await response.write(token)
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


class _Forwarded(asyncio.Protocol):
    """One of two connections; what arrives on it goes to the other."""

    def __init__(self, other: "_Forwarded | None" = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _forwarder(url: str) -> None:
    loop, to = asyncio.get_running_loop(), urlsplit(url)
    opening = set[asyncio.Task[None]]()

    class Client(_Forwarded):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert self.transport is not None
            # Nothing is lost before there is a second connection.
            self.transport.pause_reading()
            opening.add(task := loop.create_task(self.open()))
            task.add_done_callback(opening.discard)

        async def open(self) -> None:
            _, self.other = await loop.create_connection(lambda: _Forwarded(self), str(to.hostname), int(to.port or 80))
            assert self.transport is not None
            self.transport.resume_reading()

    server = await loop.create_server(Client, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def running(*words: str) -> Iterator[tuple[str, int]]:
    """The URL and process id of one of these processes, while the block runs."""
    command = [sys.executable, "-m", "tests.bench.routing.simulated", *words]
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
        elif kind == "forwarder":
            asyncio.run(_forwarder(arguments[0]))
        else:
            asyncio.run(_router(int(arguments[0]), arguments[1:]))
