"""One dial of another agent: TLS with both certificates pinned, and a few echoes.

The certificate proves who answers before a request is sent; the peer reads this Mac's certificate from its NodeProfile, so no
token is transmitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import time
from dataclasses import dataclass

from thunderfleet_lib import jsonbounds

from thunderfleet_agent.peers.dial_plan import PeerAddress

SECONDS = 5.0
ECHOES = 4
MAX_ANSWER_BYTES = 4096
MAX_ANSWER_VALUES = 64
PATH = "/v1/hello"
NODE_HEADER = "Thunderfleet-Node"


class DialError(Exception):
    """The dial failed; the message names the address."""


@dataclass(frozen=True)
class DialResult:
    """The round trip in microseconds (the fastest of some echoes) and the local address of the socket."""

    rtt_microseconds: int
    local: str


async def dial(target: PeerAddress, node: str, context: ssl.SSLContext, source: str | None = None) -> DialResult:
    """Dials ``target`` as ``node`` with ``context``'s certificate, for at most SECONDS. Raises DialError."""
    where = f"{target.node} at {target.address} port {target.port}"
    try:
        async with asyncio.timeout(SECONDS):
            return await _talk(target, node, context, source)
    except TimeoutError:
        raise DialError(f"{where} did not answer within {SECONDS:g} s") from None
    except (OSError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise DialError(f"{where}: {error}") from None


async def _talk(target: PeerAddress, node: str, context: ssl.SSLContext, source: str | None) -> DialResult:
    reader, writer = await asyncio.open_connection(
        target.address,
        target.port,
        ssl=context,
        limit=MAX_ANSWER_BYTES,
        server_hostname="",
        local_addr=(source, 0) if source else None,
    )
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        if hashlib.sha256(certificate).hexdigest() != target.sha256:
            raise ValueError("the certificate is not the one in the NodeProfile (another machine may use this address now)")
        local = str(writer.get_extra_info("sockname")[0])
        best = min([await _echo(reader, writer, target, node) for _ in range(ECHOES)])
        return DialResult(max(1, round(best * 1e6)), local)
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            writer.transport.abort()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: PeerAddress, node: str) -> float:
    """One request, in seconds."""
    started = time.perf_counter()
    writer.write(f"GET {PATH} HTTP/1.1\r\nHost: thunderfleet-agent\r\n{NODE_HEADER}: {node}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next((line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")), "0")
    if not length.strip().isdigit() or int(length) > MAX_ANSWER_BYTES:
        raise ValueError("answered without a valid Content-Length")
    body = await reader.readexactly(int(length))
    seconds = time.perf_counter() - started
    status = head.split(" ")[1:2]
    if status != ["200"]:
        raise ValueError(f"refused: {body.decode('utf-8', 'replace')[:200]}")
    named = _node_in(body)
    if named != target.node:
        raise ValueError(f"another node answered: {str(named)[:100]}")
    return seconds


def _node_in(body: bytes) -> object:
    """The name in an answer. Raises ValueError."""
    found = jsonbounds.loads(body, values=MAX_ANSWER_VALUES, depth=1)
    if not isinstance(found, dict):
        raise ValueError("answered with something other than a JSON object")
    return found.get("node")
