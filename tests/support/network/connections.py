"""Connections that are held open without a request."""

import asyncio
import contextlib


class HeldConnections:
    """Connections that a client opens and keeps: half of them silent, half in the middle of a header that never ends."""

    def __init__(self, address: str, port: int) -> None:
        self._at = (address, port)
        self.ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, count: int) -> None:
        for number in range(count):
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*self._at), 60)
            if number % 2:
                writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            self.ends.append((reader, writer))

    async def until_all_closed(self) -> None:
        async with asyncio.timeout(60):
            for reader, _ in self.ends:
                with contextlib.suppress(ConnectionError):
                    while await reader.read(4096):
                        pass

    def drop(self) -> None:
        for _, writer in self.ends:
            writer.transport.abort()
