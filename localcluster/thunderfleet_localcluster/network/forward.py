"""From the user's shell into the cluster's network: a TCP forward to the API server and an HTTP proxy to everything else.

The listening sockets are made in the host's network before the keeper leaves it and are handed in; connections out of here
happen in the cluster's network. So nothing of the host's own network is touched, and no name or route has to be set up.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

CHUNK = 65536
HEAD_LIMIT = 65536
HEAD_SECONDS = 30
CONNECT_SECONDS = 10


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reader2: asyncio.StreamReader, writer2: asyncio.StreamWriter
) -> None:
    try:
        await asyncio.gather(_pump(reader, writer2), _pump(reader2, writer))
    finally:
        writer2.close()


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(CONNECT_SECONDS):
        return await asyncio.open_connection(host, port)


async def serve_forward(listener: socket.socket, host: str, port: int) -> asyncio.Server:
    """Forwards every connection on ``listener`` to ``host:port``."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _join(reader, writer, *await _connect(host, port))
        except (OSError, TimeoutError) as error:
            log.debug("forward to %s:%d: %s", host, port, error)
        finally:
            writer.close()

    return await asyncio.start_server(handle, sock=listener)


class Refused(Exception):
    """The proxy does not do that: an HTTP status and a sentence."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


def read_request(head: bytes, allowed: Sequence[ipaddress.IPv4Network]) -> tuple[str, int, bytes | None]:
    """Where a request (its head up to and with the empty line) wants to go: host, port, and the head to send there, or None
    for CONNECT. Raises Refused.
    """
    lines = head.split(b"\r\n")
    parts = lines[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1"):
        raise Refused("400 Bad Request", "this is an HTTP/1 proxy")
    method, target, version = parts
    try:
        url = urlsplit("//" + target if method == "CONNECT" else target)
        host, port = url.hostname or "", url.port or 80
    except ValueError as error:
        raise Refused("400 Bad Request", f"cannot read the address {target}") from error
    if method != "CONNECT" and url.scheme != "http":
        raise Refused("400 Bad Request", f"this is a proxy: ask it for a whole http:// address, not {target}")
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError as error:
        raise Refused("403 Forbidden", f"{host or target}: this proxy knows IPv4 addresses of the cluster, no names") from error
    if not any(address in network for network in allowed):
        networks = ", ".join(map(str, allowed))
        raise Refused("403 Forbidden", f"{host} is not an address of this cluster ({networks})")
    if method == "CONNECT":
        return host, port, None
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [
        line
        for line in lines[1:]
        if line and line.split(b":", 1)[0].strip().lower() not in (b"proxy-connection", b"connection", b"proxy-authorization")
    ]
    # One request a connection: the next one may want to go elsewhere.
    rewritten = [f"{method} {path} {version}".encode("latin-1"), *kept, b"Connection: close", b"", b""]
    return host, port, b"\r\n".join(rewritten)


async def serve_proxy(listener: socket.socket, allowed: Sequence[ipaddress.IPv4Network]) -> asyncio.Server:
    """An HTTP proxy (CONNECT and absolute addresses) on ``listener`` to addresses in the ``allowed`` networks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            host, port, rewritten = read_request(head, allowed)
            try:
                peer = await _connect(host, port)
            except (OSError, TimeoutError) as error:
                raise Refused("502 Bad Gateway", f"cannot connect to {host}:{port}: {error or 'no answer in time'}") from error
        except Refused as refused:
            body = f"{refused}\n".encode()
            writer.write(f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\n".encode())
            writer.write(f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
            return
        if rewritten is None:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            peer[1].write(rewritten)
        await _join(reader, writer, *peer)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("proxy: %s", error)
        finally:
            writer.close()

    return await asyncio.start_server(handle, sock=listener, limit=HEAD_LIMIT)
