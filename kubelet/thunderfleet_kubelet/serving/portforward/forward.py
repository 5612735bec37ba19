"""One forwarded connection: a pair of streams of the client, and a TCP connection to a process of the pod.

The client opens an error stream and a data stream. What is written to the error stream is shown to the user, and kubectl then
closes all connections of the tunnel. So only a connection that could not be opened writes to it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from thunderfleet_kubelet.pods.queries import PodLookupError
from thunderfleet_kubelet.serving.portforward.frames import CANCEL, FrameWriter

Dial = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a port of the pod. Raises PodLookupError with the reason, or OSError."""

Send = Callable[[bytes], Awaitable[None]]
"""Sends frames to the client; waits while the client does not read. Raises ConnectionError."""

INBOX_BYTES = 128 * 1024
"""Bytes of an upload that are buffered. A process that reads slowly blocks the whole tunnel, because SPDY clients have no flow
control."""

READ_BYTES = 64 * 1024
STALL_SECONDS = 300.0
"""A connection whose process reads nothing for so long, while there is something to read, is reset."""


class Inbox:
    """Bytes from the client that wait for the process."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = self._closed = False
        self._filled, self._room = asyncio.Event(), asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Adds ``data``; returns when there is room for more, or when the reader has ended."""
        if self._closed or self._ended or not data:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._filled.set()
        while self._size > INBOX_BYTES and not self._closed:
            self._room.clear()
            await self._room.wait()

    def finish(self) -> None:
        """The writer adds no more bytes."""
        self._ended = True
        self._filled.set()

    def close(self) -> None:
        """The reader takes no more bytes."""
        self._closed = True
        self._pieces.clear()
        self._room.set()

    async def take(self) -> bytes:
        """All waiting bytes, at least one; empty at the end."""
        while not self._pieces:
            if self._ended:
                return b""
            self._filled.clear()
            await self._filled.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._room.set()
        return data


class Forward:
    """The forwarded connection of the streams ``errors`` and ``data`` to ``port``."""

    def __init__(self, port: int, errors: int, data: int, dial: Dial, send: Send) -> None:
        self.port, self.errors, self.data = port, errors, data
        self.inbox = Inbox()
        self._dial, self._send = dial, send
        self._reset = asyncio.Event()

    def reset(self) -> None:
        """The client gave the connection up."""
        self._reset.set()

    async def run(self) -> None:
        """Connects, copies both ways until the process or the client ends it, and ends both streams."""
        try:
            last = await self._carry()
        except (PodLookupError, OSError) as error:
            # The error of a connection that could not be opened.
            last = FrameWriter.data(self.errors, str(error).encode()) + FrameWriter.data(self.data, b"", fin=True)
        finally:
            self.inbox.close()
        with contextlib.suppress(ConnectionError):
            # The client waits for the end of the error stream, even after it has reset the other one.
            await self._send(last + FrameWriter.data(self.errors, b"", fin=True))

    async def _carry(self) -> bytes:
        """Returns the frame that ends the data stream. Raises PodLookupError or OSError if there is no connection."""
        reader, writer = await self._dial(self.port)
        up = asyncio.ensure_future(self._upload(writer))
        down = asyncio.ensure_future(self._download(reader))
        reset = asyncio.ensure_future(self._reset.wait())
        try:
            await asyncio.wait({up, down, reset}, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and up.exception() is None:
                # The client has sent everything; the answer may be on its way.
                await asyncio.wait({down, reset}, return_when=asyncio.FIRST_COMPLETED)
            whole = down.done() and down.exception() is None
        finally:
            for task in (up, down, reset):
                task.cancel()
            await asyncio.gather(up, down, reset, return_exceptions=True)
            writer.transport.abort()
        return FrameWriter.data(self.data, b"", fin=True) if whole else FrameWriter.reset(self.data, CANCEL)

    async def _upload(self, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await self.inbox.take():
                writer.write(data)
                async with asyncio.timeout(STALL_SECONDS):
                    await writer.drain()
            writer.write_eof()
        except ConnectionError:
            # The process may have answered before it closed the connection.
            self.inbox.close()

    async def _download(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(READ_BYTES):
            await self._send(FrameWriter.data(self.data, data))
