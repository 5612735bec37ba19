"""The streams of exec and attach as Kubernetes channels over one WebSocket: the first byte of a message is the channel.

Errors before the first stream go to the status channel: ``kubectl`` prints them, but retries after a refused handshake.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from thunderfleet_lib.kube import Json

from thunderfleet_kubelet.containers.streams.attach import Attached
from thunderfleet_kubelet.containers.streams.exec_session import Session
from thunderfleet_kubelet.serving.parameters import BadRequest, StreamOptions

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
MESSAGE_BYTES = 4 * 1024**2
"""The largest message that is read. Clients send stdin in pieces of at most 32 KiB."""
PING_SECONDS = 30.0


def success() -> Json:
    """A Status of success."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def failure(message: str, reason: str = "InternalError", code: int = 500) -> Json:
    """A Status of failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def exit_status(code: int) -> Json:
    """The Status of a command that ended with ``code``, as kubectl reads it."""
    if code == 0:
        return success()
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def resize_of(data: bytes) -> tuple[int, int] | None:
    """(columns, rows) of a resize message; None if it is invalid."""
    try:
        size = json.loads(data)
        columns, rows = int(size["Width"]), int(size["Height"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return (columns, rows) if 0 < columns <= 65535 and 0 < rows <= 65535 else None


async def closable(chunks: AsyncIterator[bytes]) -> Any:
    """An iterator that can be closed, so that the file closes when the caller disconnects."""
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def upgrade(request: web.Request) -> web.WebSocketResponse:
    """Accepts a WebSocket for the streams of exec or attach. Raises BadRequest."""
    return await accept(request, (V5, V4), MESSAGE_BYTES, heartbeat=PING_SECONDS)


async def accept(
    request: web.Request, protocols: tuple[str, ...], message_bytes: int, heartbeat: float | None = None
) -> web.WebSocketResponse:
    """Accepts a WebSocket with one of ``protocols``. Raises BadRequest."""
    socket = web.WebSocketResponse(protocols=protocols, heartbeat=heartbeat, max_msg_size=message_bytes, compress=False)
    ready = socket.can_prepare(request)
    if not ready.ok:
        raise BadRequest(
            "WebSocket required: this kubelet needs an API server that sends streams as WebSockets to nodes that declare "
            "ExtendWebSocketsToKubelet (Kubernetes 1.36 or later)"
        )
    if ready.protocol is None:
        raise BadRequest(f"Sec-WebSocket-Protocol: must offer {' or '.join(protocols)}")
    await socket.prepare(request)
    return socket


async def finish(socket: web.WebSocketResponse, status: Json) -> web.WebSocketResponse:
    """Sends the final Status and closes the socket."""
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([STATUS]) + json.dumps(status).encode())
        await socket.close(code=WSCloseCode.OK)
    return socket


async def send_all(socket: web.WebSocketResponse, channel: int, chunks: AsyncIterator[bytes]) -> None:
    """Sends all of a stream on one channel."""
    head = bytes([channel])
    async with contextlib.aclosing(closable(chunks)) as stream:
        async for chunk in stream:
            if chunk:
                await socket.send_bytes(head + chunk)


async def _discard(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


async def drain(socket: web.WebSocketResponse) -> None:
    """Reads and ignores messages until the caller disconnects."""
    async for _ in socket:
        pass


async def _receive(socket: web.WebSocketResponse, session: Session | Attached, options: StreamOptions) -> None:
    """Passes input and resizes to the command; returns when the caller disconnects."""
    closed = not options.stdin
    async for message in socket:
        data = _bytes(message)
        channel, body = data[:1], data[1:]
        if channel == bytes([STDIN]) and body and not closed:
            await session.stdin.write(body)
        elif channel == bytes([CLOSE]) and body[:1] == bytes([STDIN]) and not closed and socket.ws_protocol == V5:
            closed = True
            await session.stdin.close()
        elif channel == bytes([RESIZE]) and options.tty:
            size = resize_of(body)
            if size:
                session.resize(*size)


def _bytes(message: WSMessage) -> bytes:
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    return str(message.data).encode() if message.type is WSMsgType.TEXT else b""


async def until_either(*coroutines: Any) -> None:
    """Returns when the first one ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, ConnectionError):
            raise result


async def carry(socket: web.WebSocketResponse, session: Session | Attached, options: StreamOptions) -> Json | None:
    """Copies streams until the command ends; returns its Status, or None if the caller disconnected."""

    async def command() -> int:
        outputs = [send_all(socket, STDOUT, session.stdout) if options.stdout else _discard(session.stdout)]
        if not options.tty:
            outputs.append(send_all(socket, STDERR, session.stderr) if options.stderr else _discard(session.stderr))
        _, code = await asyncio.gather(asyncio.gather(*outputs), session.wait())
        return code

    running = asyncio.ensure_future(command())
    await until_either(running, _receive(socket, session, options))
    if running.cancelled() or running.exception() is not None:
        return None
    return exit_status(running.result())
