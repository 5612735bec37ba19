"""A WebSocket between two agents over mutual TLS: one message at a time, every step with a limit."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import aiohttp
from pydantic import ValidationError
from thunderfleet_lib.net import redirects

from thunderfleet_agent.measure.session.messages import MAX_MESSAGE_BYTES, Message
from thunderfleet_agent.measure.session.result import SessionFailed
from thunderfleet_agent.measure.session.streams import bind_to, family
from thunderfleet_agent.peers.dial import NODE_HEADER
from thunderfleet_agent.peers.dial_plan import PeerAddress

PATH = "/v1/measure"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0

MessageType = TypeVar("MessageType", bound=Message)


class Socket(Protocol):
    """A WebSocket of either side."""

    async def send_str(self, data: str) -> None: ...
    async def receive(self) -> aiohttp.WSMessage: ...


class Channel:
    """One end of the connection; ``peer`` names the other in errors."""

    def __init__(self, ws: Any, peer: str) -> None:
        self._ws: Socket = ws
        self.peer = peer

    async def send(self, message: Message) -> None:
        """Sends a message. Raises SessionFailed."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ws.send_str(json.dumps(message.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
        except TimeoutError:
            raise SessionFailed(f"{self.peer} accepted no message within {ANSWER_SECONDS:g} s") from None
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            raise SessionFailed(f"the connection to {self.peer} was lost: {error}") from None

    async def receive(self, kind: type[MessageType], seconds: float = ANSWER_SECONDS) -> MessageType:
        """Waits for the next message. Raises SessionFailed."""
        try:
            async with asyncio.timeout(seconds):
                message = await self._ws.receive()
        except TimeoutError:
            raise SessionFailed(f"{self.peer} sent no message within {seconds:g} s") from None
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            raise SessionFailed(f"the connection to {self.peer} was lost: {error}") from None
        if message.type is not aiohttp.WSMsgType.TEXT:
            why = message.extra if message.type is aiohttp.WSMsgType.CLOSE and message.extra else "it closed the connection"
            raise SessionFailed(f"{self.peer} ended the session: {str(why)[:200]}")
        try:
            return kind.model_validate_json(message.data)
        except (ValidationError, RecursionError) as error:
            what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "nested too deeply"
            raise SessionFailed(f"{self.peer} sent an invalid message: {what}") from None


def abort(sock: Any) -> None:
    """Ends a connection at once: a TLS shutdown would wait half a minute for a peer that is cut off."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _why(error: Exception) -> str:
    """Why the connection failed, in the words of the operating system if it has any."""
    if (
        isinstance(error, aiohttp.ClientConnectorError)
        and not isinstance(error, aiohttp.ClientSSLError)
        and error.os_error.errno
    ):
        return f"{os.strerror(error.os_error.errno)} (check that the Mac is on and that its agent is running)"
    return " ".join(str(error).split())[:200]


@asynccontextmanager
async def connect(
    target: PeerAddress, node: str, context: ssl.SSLContext, source: str | None
) -> AsyncIterator[tuple[Channel, str, str]]:
    """Connects to the agent at ``target``; gives the channel and the socket's two addresses. Raises SessionFailed."""
    opened: list[socket.socket] = []

    def make_socket(info: Any) -> socket.socket:
        sock = socket.socket(family(target.address), socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            bind_to(sock, source, target.interface)
        except OSError:
            sock.close()
            raise
        opened.append(sock)
        return sock

    where = f"{target.node} at {target.address} port {target.port}"
    host = f"[{target.address}]" if ":" in target.address else target.address
    connector = aiohttp.TCPConnector(ssl=context, socket_factory=make_socket, force_close=True, limit=1)
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        trace_configs=[redirects.refused()],
    )
    try:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                ws = await session.ws_connect(
                    f"https://{host}:{target.port}{PATH}",
                    headers={NODE_HEADER: node},
                    max_msg_size=MAX_MESSAGE_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except TimeoutError:
            raise SessionFailed(f"{where} did not answer within {CONNECT_SECONDS:g} s") from None
        except (OSError, ssl.SSLError, aiohttp.ClientError, ValueError) as error:
            raise SessionFailed(f"{where}: {_why(error)}") from None
        try:
            tls = ws.get_extra_info("ssl_object")
            certificate = (tls.getpeercert(binary_form=True) if tls else None) or b""
            if hashlib.sha256(certificate).hexdigest() != target.sha256:
                raise SessionFailed(
                    f"{where}: the certificate is not the one in the NodeProfile (another machine may use this address now)"
                )
            ours, theirs = ws.get_extra_info("sockname"), ws.get_extra_info("peername")
            yield Channel(ws, where), str(ours[0]), str(theirs[0])
        finally:
            await ws.close()
    finally:
        await session.close()
        for sock in opened:
            abort(sock)
