"""One client of a port-forward: SPDY/3.1 inside the messages of a WebSocket, as kubectl and the API server send it.

Limits: forwarded connections of a tunnel and of all tunnels, waiting bytes, and the time without a connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from aiohttp import ClientError, WSCloseCode, WSMsgType, web

from thunderfleet_kubelet.serving.portforward.forward import Dial, Forward
from thunderfleet_kubelet.serving.portforward.frames import (
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Data,
    Frame,
    FrameReader,
    FrameWriter,
    GoAway,
    Opened,
    Ping,
    ProtocolError,
    Reset,
)

log = logging.getLogger(__name__)

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
MESSAGE_BYTES = 256 * 1024
"""The largest message that is read. Clients send frames of at most 32 KiB."""

TUNNEL_CONNECTIONS = 100
CONNECTIONS = 256
"""The most forwarded connections of one tunnel, and of all. Each holds up to 0.4 MiB; a stream beyond is refused."""

PAIR_SECONDS = 30.0
"""How long the second stream of a connection may take after the first."""

IDLE_SECONDS = 4 * 3600.0
"""A tunnel that carries only pings for this time is closed, as in the Kubernetes kubelet by default."""

_TYPES = ("error", "data")


class ConnectionCount:
    """The number of forwarded connections of all tunnels that are open."""

    def __init__(self) -> None:
        self.open = 0


class _Pair:
    """The streams of one connection until both are open."""

    def __init__(self, port: int, expiry: asyncio.TimerHandle) -> None:
        self.port = port
        self.streams: dict[str, int] = {}
        self.expiry = expiry


class Tunnel:
    """Serves one client over ``socket``. ``dial`` connects to ports of the pod. ``name``: the pod's, for the log."""

    def __init__(self, socket: web.WebSocketResponse, dial: Dial, connections: ConnectionCount, name: str) -> None:
        self._socket, self._dial, self._connections, self._name = socket, dial, connections, name
        self._reader, self._writer = FrameReader(), FrameWriter()
        self._highest = 0
        self._refused = False
        self._pairs: dict[str, _Pair] = {}
        self._half: dict[int, str] = {}
        """Streams of connections that are not complete, with the request's id."""
        self._forwards: dict[int, Forward] = {}
        """By stream; each connection is in it twice."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.timeout(IDLE_SECONDS)

    async def run(self) -> None:
        """Serves until the client disconnects, violates the protocol, or is idle for IDLE_SECONDS."""
        code, reason = WSCloseCode.OK, ""
        try:
            async with self._idle:
                await self._receive()
        except ProtocolError as error:
            code, reason = WSCloseCode.PROTOCOL_ERROR, str(error)
        except TimeoutError:
            code, reason = WSCloseCode.GOING_AWAY, f"idle for {IDLE_SECONDS:.0f} s"
        except (ConnectionError, ClientError):
            # The client is gone.
            reason = ""
        finally:
            await self._end()
        if reason:
            log.info("port-forward to pod %s ended: %s", self._name, reason)
        with contextlib.suppress(ConnectionError, ClientError):
            await self._socket.close(code=code, message=reason.encode()[:120])

    async def _end(self) -> None:
        # The server cancels this when the client is gone, so the necessary steps come before the first wait.
        for request in list(self._pairs):
            self._forget(request)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> None:
        while True:
            message = await self._socket.receive()
            if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                return
            if message.type is not WSMsgType.BINARY:
                raise ProtocolError("messages must be binary")
            for frame in self._reader.feed(message.data):
                if isinstance(frame, GoAway):
                    return
                await self._handle(frame)

    async def _send(self, frames: bytes) -> None:
        self._alive()
        await self._socket.send_bytes(frames)

    def _alive(self) -> None:
        with contextlib.suppress(RuntimeError):
            # The time may have run out in this turn of the loop.
            self._idle.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)

    async def _handle(self, frame: Frame) -> None:
        if isinstance(frame, Data):
            await self._data(frame)
        elif isinstance(frame, Opened):
            await self._open(frame)
        elif isinstance(frame, Reset):
            self._reset(frame.stream)
        elif isinstance(frame, Ping) and frame.number % 2:
            # A ping does not show use: clients ping for as long as they run.
            await self._socket.send_bytes(self._writer.ping(frame.number))

    async def _data(self, frame: Data) -> None:
        forward = self._forwards.get(frame.stream)
        # A stream that has ended here may still get data that was on its way; nothing is sent on an error stream.
        if forward is None or frame.stream != forward.data:
            return
        self._alive()
        await forward.inbox.put(frame.data)
        if frame.fin:
            forward.inbox.finish()

    def _reset(self, stream: int) -> None:
        forward = self._forwards.get(stream)
        if forward is not None:
            forward.reset()
        elif stream in self._half:
            self._forget(self._half[stream])

    async def _open(self, frame: Opened) -> None:
        if not frame.stream % 2 or frame.stream <= self._highest:
            raise ProtocolError(f"stream {frame.stream}: must be odd and above {self._highest}")
        self._highest = frame.stream
        request, kind, port = _asked(frame.headers)
        pair = self._pairs.get(request)
        if not port or kind not in _TYPES or (pair is not None and (pair.port != port or kind in pair.streams)):
            await self._send(self._writer.reset(frame.stream, PROTOCOL_ERROR))
            return
        if pair is None:
            if len(self._pairs) + len(self._tasks) >= TUNNEL_CONNECTIONS or self._connections.open >= CONNECTIONS:
                if not self._refused:
                    log.warning("port-forward to pod %s: too many connections, at most %d", self._name, TUNNEL_CONNECTIONS)
                self._refused = True
                await self._send(self._writer.reset(frame.stream, REFUSED_STREAM))
                return
            pair = self._new(request, port)
        pair.streams[kind] = frame.stream
        self._half[frame.stream] = request
        # Must come before the connection starts, because the connection may write to the stream.
        await self._send(self._writer.reply(frame.stream))
        if len(pair.streams) == len(_TYPES) and request in self._pairs:
            self._start(request, pair)

    def _new(self, request: str, port: int) -> _Pair:
        expiry = asyncio.get_running_loop().call_later(PAIR_SECONDS, self._forget, request)
        self._connections.open += 1
        pair = self._pairs[request] = _Pair(port, expiry)
        return pair

    def _forget(self, request: str) -> None:
        """Closes a connection of which only one stream is open."""
        pair = self._pairs.pop(request)
        pair.expiry.cancel()
        self._connections.open -= 1
        for stream in pair.streams.values():
            self._half.pop(stream, None)

    def _start(self, request: str, pair: _Pair) -> None:
        self._forget(request)
        self._connections.open += 1
        forward = Forward(pair.port, pair.streams["error"], pair.streams["data"], self._dial, self._send)
        self._forwards |= {forward.errors: forward, forward.data: forward}
        task = asyncio.create_task(forward.run())
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._connections.open -= 1
            del self._forwards[forward.errors], self._forwards[forward.data]
            if not task.cancelled() and task.exception() is not None:
                log.error("port-forward to pod %s failed", self._name, exc_info=task.exception())

        task.add_done_callback(ended)


def _asked(headers: Mapping[str, str]) -> tuple[str, str, int]:
    """(id of the request, type of the stream, port) of a new stream; port 0 if it is invalid."""
    port = headers.get("port", "")
    valid = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return headers.get("requestid", ""), headers.get("streamtype", ""), int(port) if valid else 0
