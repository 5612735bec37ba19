"""What two agents say to each other about a probe, over their mutual TLS: values with bounds, and a connection that has limits.

Every message is JSON, bounded in size, and read into one of the values here, so a hostile peer can be wrong but not large.
"""

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
from typing import Annotated, Any, Protocol, TypeVar

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.probes import Kind
from thunderfleet_agent.measure.session.streams import bind_to, family
from thunderfleet_agent.peers.dial import NODE_HEADER
from thunderfleet_agent.peers.reach import Target

PATH = "/v1/measure"
MAX_MESSAGE_BYTES = 160 * 1024
"""Of a gather: two parts of JACCL's are a few hundred bytes; see PART_BYTES."""
PART_BYTES = 48 * 1024
MAX_GATHERS = 64
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0

Bounded = Annotated[int, Field(ge=0, le=2**40)]
Words = Annotated[str, Field(max_length=500)]
Data = Annotated[str, Field(max_length=PART_BYTES * 3)]


class Refused(Exception):
    """The peer says no, and why. ``again``: in how many seconds it may say yes; None: it is a failure."""

    def __init__(self, why: str, again: float | None = None) -> None:
        super().__init__(why)
        self.again = again


class Broken(Exception):
    """The peer did not keep to the protocol, or has gone."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Ask(_Message):
    """The first message: which probe, and with which limits at most."""

    kind: Kind
    link: Annotated[str, Field(max_length=253)] = ""
    bytes: Bounded = 0
    seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    streams: Annotated[int, Field(ge=1, le=16)] = 1
    transport: MeasurementTransport = MeasurementTransport.SOCKET
    device: Annotated[str, Field(max_length=64)] = ""
    host: Annotated[str, Field(max_length=80)] = ""
    node: Annotated[str, Field(max_length=253)] = ""
    """Of somebody at this Mac's terminal: whom he wants to measure, while the agent keeps the Mac out of other probes."""
    by_hand: bool = False
    """Of somebody at the peer's terminal, who has his turn before what agents do by themselves."""


class Answer(_Message):
    """Yes, with the limits that hold (and where the streams go), or why not."""

    refused: Words = ""
    again: Annotated[float, Field(ge=0, le=3600)] | None = None
    bytes: Bounded = 0
    seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    token: Annotated[str, Field(max_length=128, pattern="^[0-9a-f]*$")] = ""
    device: Annotated[str, Field(max_length=64)] = ""
    host: Annotated[str, Field(max_length=80)] = ""


class Step(_Message):
    """Everything after that; what is set says what it is."""

    next: Annotated[str, Field(max_length=16)] = ""
    mbps: Annotated[int, Field(ge=0, le=10**8)] | None = None
    rtt: Annotated[int, Field(ge=0, le=10**9)] | None = None
    jitter: Annotated[int, Field(ge=0, le=10**9)] | None = None
    gather: Annotated[int, Field(ge=1, le=MAX_GATHERS)] | None = None
    part: Data = ""
    whole: Data = ""
    error: Words = ""


Kind_ = TypeVar("Kind_", bound=_Message)


class Socket(Protocol):
    """A WebSocket of either side."""

    async def send_str(self, data: str) -> None: ...
    async def receive(self) -> aiohttp.WSMessage: ...


class Line:
    """One side of the conversation."""

    def __init__(self, ws: Any, peer: str) -> None:
        self._ws: Socket = ws
        self.peer = peer

    async def say(self, message: _Message) -> None:
        """Raises Broken."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ws.send_str(json.dumps(message.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
        except TimeoutError:
            raise Broken(f"{self.peer} took in no message for {ANSWER_SECONDS:g} s") from None
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            raise Broken(f"{self.peer} has gone: {error}") from None

    async def hear(self, kind: type[Kind_], seconds: float = ANSWER_SECONDS) -> Kind_:
        """The next message. Raises Broken."""
        try:
            async with asyncio.timeout(seconds):
                message = await self._ws.receive()
        except TimeoutError:
            raise Broken(f"{self.peer} said nothing for {seconds:g} s") from None
        except (OSError, RuntimeError, aiohttp.ClientError) as error:
            raise Broken(f"{self.peer} has gone: {error}") from None
        if message.type is not aiohttp.WSMsgType.TEXT:
            why = message.extra if message.type is aiohttp.WSMsgType.CLOSE and message.extra else "the connection ended"
            raise Broken(f"{self.peer} broke off: {str(why)[:200]}")
        try:
            return kind.model_validate_json(message.data)
        except (ValidationError, RecursionError) as error:
            what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "nested too deeply"
            raise Broken(f"{self.peer} said what cannot be read: {what}") from None


def hang_up(sock: Any) -> None:
    """Ends a connection whose conversation is over: TLS would wait half a minute for the goodbye of a peer that is cut off."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _why(error: Exception) -> str:
    """Why nobody could be reached, in the system's words where it has some."""
    if (
        isinstance(error, aiohttp.ClientConnectorError)
        and not isinstance(error, aiohttp.ClientSSLError)
        and error.os_error.errno
    ):
        return f"{os.strerror(error.os_error.errno)} (is that Mac on, and does its agent run?)"
    return " ".join(str(error).split())[:200]


@asynccontextmanager
async def call(target: Target, node: str, context: ssl.SSLContext, source: str | None) -> AsyncIterator[tuple[Line, str, str]]:
    """A conversation with the agent at ``target``, and the socket's two addresses (ours, theirs). Raises Broken."""
    opened: list[socket.socket] = []

    def made(info: Any) -> socket.socket:
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
    connector = aiohttp.TCPConnector(ssl=context, socket_factory=made, force_close=True, limit=1)
    session = aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
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
            raise Broken(f"{where} did not answer within {CONNECT_SECONDS:g} s") from None
        except (OSError, ssl.SSLError, aiohttp.ClientError, ValueError) as error:
            raise Broken(f"{where}: {_why(error)}") from None
        try:
            tls = ws.get_extra_info("ssl_object")
            certificate = (tls.getpeercert(binary_form=True) if tls else None) or b""
            if hashlib.sha256(certificate).hexdigest() != target.sha256:
                raise Broken(f"{where}: another certificate answers than the NodeProfile shows")
            ours, theirs = ws.get_extra_info("sockname"), ws.get_extra_info("peername")
            yield Line(ws, where), str(ours[0]), str(theirs[0])
        finally:
            await ws.close()
    finally:
        await session.close()
        for sock in opened:
            hang_up(sock)
