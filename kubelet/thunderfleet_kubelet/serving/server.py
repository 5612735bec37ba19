"""The kubelet's own HTTPS server: logs, exec, attach and figures, for the API server and whoever it lets.

Everything goes by the guard first. A program's streams travel as Kubernetes' channels over one WebSocket: the first byte of a
message is the channel. Errors that come before a stream are sent on the status channel, since `kubectl` prints that and hides
a refused handshake behind a second try.
"""

import asyncio
import contextlib
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from thunderfleet_lib.kube import Json

from thunderfleet_kubelet.pods.manager import ExecSession, PodLookupError, PodManager
from thunderfleet_kubelet.serving.auth import Guard, Refused
from thunderfleet_kubelet.serving.metrics import Metrics, resource_text

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
# A client's message: stdin comes in pieces of at most 32 KiB; more is a mistake or an attack.
MESSAGE_BYTES = 4 * 1024**2
PING_SECONDS = 30.0
SHUTDOWN_SECONDS = 2.0
TEXT = "text/plain; charset=utf-8"
STREAMS = {"All": None, "Stdout": "stdout", "Stderr": "stderr"}
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class BadRequest(Exception):
    """A query that cannot be answered; the message says what is allowed (HTTP 400)."""


def _flag(query: Any, name: str) -> bool:
    text = str(query.get(name, "false")).lower()
    if text not in ("true", "false", "1", "0", ""):
        raise BadRequest(f"{name}={text}: must be true or false")
    return text in ("true", "1")


def _count(query: Any, name: str, least: int) -> int | None:
    text = query.get(name)
    if text is None or text == "":
        return None
    if not re.fullmatch(r"-?\d{1,18}", text) or int(text) < least:
        raise BadRequest(f"{name}={text}: must be a whole number, {least} or more")
    return int(text)


@dataclass(frozen=True)
class LogOptions:
    """What `kubectl logs` may ask for."""

    follow: bool = False
    tail: int | None = None
    since_seconds: float | None = None
    since_time: datetime | None = None
    timestamps: bool = False
    previous: bool = False
    limit_bytes: int | None = None
    stream: str | None = None


def log_options(query: Any) -> LogOptions:
    """The query of ``/containerLogs``. Raises BadRequest."""
    seconds = _count(query, "sinceSeconds", 1)
    since = None
    if text := query.get("sinceTime"):
        if not RFC3339.fullmatch(text):
            raise BadRequest(f"sinceTime={text}: must be a time like 2026-01-31T12:00:00Z")
        # Nanoseconds, as Go writes them, are more than datetime can hold.
        try:
            since = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
        except ValueError:
            raise BadRequest(f"sinceTime={text}: there is no such time") from None
    if seconds is not None and since is not None:
        raise BadRequest("sinceSeconds and sinceTime: at most one of them")
    stream, tail = query.get("stream") or "All", _count(query, "tailLines", 0)
    if stream not in STREAMS:
        raise BadRequest(f"stream={stream}: must be one of {', '.join(STREAMS)}")
    if STREAMS[stream] is not None and tail is not None:
        raise BadRequest("tailLines and stream: the last lines can only be had of All")
    return LogOptions(
        follow=_flag(query, "follow"),
        tail=tail,
        since_seconds=seconds,
        since_time=since,
        timestamps=_flag(query, "timestamps"),
        previous=_flag(query, "previous"),
        limit_bytes=_count(query, "limitBytes", 1),
        stream=STREAMS[stream],
    )


@dataclass(frozen=True)
class StreamOptions:
    """Which streams an exec or attach has."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def stream_options(query: Any) -> StreamOptions:
    """The query of ``/exec`` and ``/attach``. Raises BadRequest."""
    options = StreamOptions(_flag(query, "input"), _flag(query, "output"), _flag(query, "error"), _flag(query, "tty"))
    if not (options.stdin or options.stdout or options.stderr):
        raise BadRequest("at least one of input, output and error must be 1")
    return options


def success() -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def failure(message: str, reason: str = "InternalError", code: int = 500) -> Json:
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
    """A program's end as kubectl reads it."""
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
    """(columns, rows) out of a resize message; None when it is none."""
    try:
        size = json.loads(data)
        columns, rows = int(size["Width"]), int(size["Height"])
    except (ValueError, KeyError, TypeError):
        return None
    return (columns, rows) if 0 < columns <= 65535 and 0 < rows <= 65535 else None


def server_context(ca: Path) -> ssl.SSLContext:
    """TLS for the server: client certificates of the cluster's CA are checked when shown, and none is demanded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(str(ca))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    return context


class Server:
    """Listens once it has a certificate; another certificate later needs no new listener."""

    def __init__(
        self, pods: PodManager, guard: Guard, metrics: Metrics, context: ssl.SSLContext, address: str, port: int
    ) -> None:
        self.pods = pods
        self.guard = guard
        self.metrics = metrics
        self.context = context
        self.address = address
        self.port = port
        self._runner: web.AppRunner | None = None

    @property
    def listening(self) -> bool:
        return self._runner is not None

    def use(self, pair: Path) -> None:
        """New connections are served with the key and certificate in ``pair``."""
        self.context.load_cert_chain(str(pair))

    async def start(self) -> None:
        """Binds and serves; raises OSError when it cannot. Nothing when it serves already."""
        if self._runner is not None:
            return
        # A caller who goes away ends what was done for it: a followed log may otherwise wait for ever.
        runner = web.AppRunner(
            self.application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            handle_signals=False,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self.address, self.port, ssl_context=self.context, reuse_address=True).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        if self.port == 0:
            self.port = int(runner.addresses[0][1])
        log.info("serving on %s:%d", self.address, self.port)

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guarded])
        routes = application.router
        routes.add_get("/healthz", self._healthz)
        routes.add_get("/pods", self._pods)
        routes.add_get("/metrics", self._metrics)
        routes.add_get("/metrics/resource", self._resource)
        routes.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        for method in ("GET", "POST"):
            routes.add_route(method, "/exec/{namespace}/{pod}/{container}", self._exec)
            routes.add_route(method, "/attach/{namespace}/{pod}/{container}", self._attach)
            routes.add_route(method, "/portForward/{namespace}/{pod}", self._port_forward)
        return application

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        kind = request.path.strip("/").split("/", 1)[0]
        if request.match_info.http_exception is not None:
            kind = "other"
        try:
            peer = request.transport.get_extra_info("peercert") if request.transport else None
            # Asked is about what will be done, so about the route, not about what the path looks like.
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else "/"
            await self.guard.check(request.method, path, peer, request.headers.get("Authorization"))
            answer = await handler(request)
        except Refused as refused:
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            answer = web.Response(status=refused.status, text=f"{refused}\n", headers=headers)
        except BadRequest as error:
            answer = web.Response(status=400, text=f"{error}\n")
        except PodLookupError as error:
            answer = web.Response(status=error.status, text=f"{error}\n")
        except web.HTTPException as error:
            said = f"{request.method} {request.path}: this kubelet serves nothing there\n"
            answer = web.Response(status=error.status, text=said)
        self.metrics.served(kind, answer.status)
        return answer

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _pods(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods.pods()})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(self.pods.statistics()), headers={"Content-Type": self.metrics.content_type})

    async def _resource(self, request: web.Request) -> web.Response:
        text = resource_text(await self.pods.usage())
        return web.Response(body=text, headers={"Content-Type": self.metrics.content_type})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        options = log_options(request.query)
        where = request.match_info
        chunks = self.pods.open_log(where["namespace"], where["pod"], where["container"], **vars(options))
        answer = web.StreamResponse(headers={"Content-Type": TEXT})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            async with contextlib.aclosing(_closable(chunks)) as stream:
                async for chunk in stream:
                    await answer.write(chunk)
            await answer.write_eof()
        return answer

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        options = stream_options(request.query)
        command = request.query.getall("command", [])
        if not command:
            raise BadRequest("command: at least one is needed")
        where = request.match_info
        socket = await _upgrade(request)
        try:
            session = await self.pods.exec(
                where["namespace"], where["pod"], where["container"], command, stdin=options.stdin, tty=options.tty
            )
        except (PodLookupError, OSError) as error:
            text = str(error) if isinstance(error, PodLookupError) else f"{command[0]}: {error.strerror or error}"
            code = error.status if isinstance(error, PodLookupError) else 500
            return await _finish(socket, failure(text, code=code))
        try:
            status = await _carry(socket, session, options)
        finally:
            await asyncio.shield(session.kill())
        return await _finish(socket, status) if status else socket

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        options = stream_options(request.query)
        where = request.match_info
        socket = await _upgrade(request)
        if options.stdin or options.tty:
            sentence = "attach shows output only here; for input use `kubectl exec -i`"
            return await _finish(socket, failure(sentence, "BadRequest", 400))
        try:
            chunks = self.pods.open_log(where["namespace"], where["pod"], where["container"], follow=True, tail=0)
        except PodLookupError as error:
            return await _finish(socket, failure(str(error), code=error.status))
        sender = asyncio.ensure_future(_send_all(socket, STDOUT, chunks))
        await _until_either(sender, _drain(socket))
        return await _finish(socket, success())

    async def _port_forward(self, request: web.Request) -> web.Response:
        sentence = "port-forward is not built yet: a pod shares its Mac's network, so reach its port on the node's address\n"
        return web.Response(status=501, text=sentence)


async def _closable(chunks: AsyncIterator[bytes]) -> Any:
    """An iterator that can be closed, so that a caller who goes away ends the reading of the file too."""
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def _upgrade(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=(V5, V4), heartbeat=PING_SECONDS, max_msg_size=MESSAGE_BYTES, compress=False)
    ready = socket.can_prepare(request)
    if not ready.ok:
        raise BadRequest(
            "this kubelet carries streams over WebSocket only: the API server must speak it to nodes that declare "
            "ExtendWebSocketsToKubelet (Kubernetes 1.36 or newer)"
        )
    if ready.protocol is None:
        raise BadRequest(f"Sec-WebSocket-Protocol: must offer {V5} or {V4}")
    await socket.prepare(request)
    return socket


async def _finish(socket: web.WebSocketResponse, status: Json) -> web.WebSocketResponse:
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([STATUS]) + json.dumps(status).encode())
        await socket.close(code=WSCloseCode.OK)
    return socket


async def _send_all(socket: web.WebSocketResponse, channel: int, chunks: AsyncIterator[bytes]) -> None:
    head = bytes([channel])
    async with contextlib.aclosing(_closable(chunks)) as stream:
        async for chunk in stream:
            if chunk:
                await socket.send_bytes(head + chunk)


async def _discard(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


async def _drain(socket: web.WebSocketResponse) -> None:
    async for _ in socket:
        pass


async def _receive(socket: web.WebSocketResponse, session: ExecSession, options: StreamOptions) -> None:
    """Hands what the caller sends to the program; returns when the caller is gone."""
    closed = not options.stdin
    async for message in socket:
        data = _bytes(message)
        if not data:
            continue
        channel, body = data[0], data[1:]
        if channel == STDIN and not closed:
            if body:
                await session.stdin.write(body)
        elif channel == CLOSE and body[:1] == bytes([STDIN]) and not closed and socket.ws_protocol == V5:
            closed = True
            await session.stdin.close()
        elif channel == RESIZE and options.tty:
            size = resize_of(body)
            if size:
                session.resize(*size)


def _bytes(message: WSMessage) -> bytes:
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    return str(message.data).encode() if message.type is WSMsgType.TEXT else b""


async def _until_either(*coroutines: Any) -> None:
    """Returns when one has ended; the others are ended with it."""
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


async def _carry(socket: web.WebSocketResponse, session: ExecSession, options: StreamOptions) -> Json | None:
    """Carries streams until the program ends (its status) or the caller goes (None)."""

    async def program() -> int:
        outputs = [_send_all(socket, STDOUT, session.stdout) if options.stdout else _discard(session.stdout)]
        if not options.tty:
            outputs.append(_send_all(socket, STDERR, session.stderr) if options.stderr else _discard(session.stderr))
        _, code = await asyncio.gather(asyncio.gather(*outputs), session.wait())
        return code

    running = asyncio.ensure_future(program())
    await _until_either(running, _receive(socket, session, options))
    if running.cancelled() or running.exception() is not None:
        return None
    return exit_status(running.result())
