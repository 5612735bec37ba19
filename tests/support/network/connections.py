"""Connections that are held open without a request."""

import asyncio
import contextlib

from tests.support.waiting import until_async

CLOSE_SECONDS = 40.0
"""Longer than asyncio waits for the other end of a TLS connection."""


async def until_closed() -> None:
    """Waits for connections of this loop that are being closed; call it when no others are left. Raises NotInTimeError.

    A TLS connection whose request is given up is open until the server has closed its end, too, and nobody else waits for that.
    """
    # asyncio has no public list of them.
    transports = vars(asyncio.get_running_loop())["_transports"]

    def closed() -> bool:
        return all(one.get_extra_info("socket").fileno() < 0 for one in list(transports.values()))

    await until_async(closed, "the server closes its end of connections", CLOSE_SECONDS)


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
