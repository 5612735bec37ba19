"""TCP forwarding from the host's network into the network of the cluster.

Listening sockets are created in the host's network before the supervisor leaves it; outgoing connections are made in the
network of the cluster. This needs no change to the host's addresses, routes or names.
"""

import asyncio
import logging
import socket

log = logging.getLogger(__name__)

CHUNK = 65536
CONNECT_SECONDS = 10


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        # A reset is passed on; otherwise the other end would wait for the rest forever.
        writer.transport.abort()


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reader2: asyncio.StreamReader, writer2: asyncio.StreamWriter
) -> None:
    """Copy both directions until both ends are closed; closes the second connection."""
    try:
        await asyncio.gather(_copy(reader, writer2), _copy(reader2, writer))
    finally:
        writer2.close()


async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection. Raises OSError or TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS):
        return await asyncio.open_connection(host, port)


async def serve_forward(listener: socket.socket, host: str, port: int) -> asyncio.Server:
    """Forward every connection on ``listener`` to ``host:port``."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await relay(reader, writer, *await connect(host, port))
        except (OSError, TimeoutError) as error:
            log.debug("forwarding to %s:%d failed: %s", host, port, error)
        finally:
            writer.close()

    return await asyncio.start_server(handle, sock=listener)
