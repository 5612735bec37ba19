"""One end of a connection between supervisors: sends messages in order, and ends when the other side is silent.

Liveness does not rely on TCP: both ends send every second. Silence is counted in ticks of this process, so that a process that
was suspended itself does not count its peer as silent.
"""

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web
from pydantic import BaseModel

from thunderfleet_runner.net import peers

TICK_SECONDS = 0.5
SILENT_TICKS = round(peers.CUT_OFF_SECONDS / TICK_SECONDS)


class CutOff(Exception):
    """The connection has ended; the text describes how."""


class Connection:
    """Sends in order without blocking, and ends when the other end is silent."""

    def __init__(self, socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse, peer: str) -> None:
        self.peer = peer
        self._socket = socket
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._silent = 0
        self._cut: str | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def send(self, message: BaseModel) -> None:
        """Queues a message."""
        self._outgoing.put_nowait(message.model_dump_json())

    def cut(self, why: str) -> None:
        """Ends the connection soon; ``serve`` returns ``why``."""
        if self._cut is None:
            self._cut = why
        if self._reading is not None:
            self._reading.cancel()

    async def flush(self, seconds: float) -> None:
        """Waits until all messages are handed to the socket or the connection has ended, at most ``seconds``."""
        waits = [asyncio.ensure_future(self._outgoing.join()), asyncio.ensure_future(self._ended.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def serve(self, on_text: Callable[[str], None], on_tick: Callable[[], None]) -> str:
        """Reads until the connection ends; returns how it ended. ``on_tick`` runs every TICK_SECONDS.

        A text that ``on_text`` rejects with ValueError ends the connection.
        """
        self._reading = asyncio.create_task(self._read(on_text), name="control-read")
        writing = asyncio.create_task(self._write(), name="control-write")
        ticking = asyncio.create_task(self._tick(on_tick), name="control-tick")
        if self._cut is not None:
            self._reading.cancel()
        tasks = (self._reading, writing, ticking)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ended.set()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, CutOff):
                return self._cut or str(end)
            if isinstance(end, (ConnectionError, ValueError)):
                return self._cut or f"{type(end).__name__}: {' '.join(str(end).split())[:300]}"
            if isinstance(end, Exception):
                raise end
        return self._cut or "closed"

    async def _read(self, on_text: Callable[[str], None]) -> None:
        while True:
            message = await self._socket.receive()
            self._silent = 0
            if message.type is aiohttp.WSMsgType.TEXT:
                on_text(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR:
                raise CutOff(f"{self.peer} sent invalid websocket data: {self._socket.exception()}")
            else:
                raise CutOff(f"{self.peer} closed the connection")

    async def _write(self) -> None:
        while True:
            text = await self._outgoing.get()
            await self._socket.send_str(text)
            self._outgoing.task_done()

    async def _tick(self, on_tick: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._silent += 1
            if self._silent > SILENT_TICKS:
                raise CutOff(f"{self.peer} has been silent for {peers.CUT_OFF_SECONDS:g} s")
            on_tick()
