"""The kubelet's HTTPS server: logs, exec, attach, port-forward and metrics, for the API server and authorized callers."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web
from thunderfleet_lib.net.listener import Listener

from thunderfleet_kubelet.containers.streams.logs import LogOptions
from thunderfleet_kubelet.node.usage import machine_usage
from thunderfleet_kubelet.pods.queries import PodLookupError, PodQueries
from thunderfleet_kubelet.serving import channels, stats
from thunderfleet_kubelet.serving.auth import Guard, Refused
from thunderfleet_kubelet.serving.channels import failure
from thunderfleet_kubelet.serving.metrics import Metrics, resource_text
from thunderfleet_kubelet.serving.parameters import BadRequest, log_options, stream_options
from thunderfleet_kubelet.serving.portforward import tunnel
from thunderfleet_kubelet.serving.portforward.tunnel import ConnectionCount, Tunnel

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0

CONNECTIONS = 256
"""The most connections at once. Each followed log and each exec keeps one; each costs up to 0.3 MiB."""

TEXT = "text/plain; charset=utf-8"
STREAMS = ("exec", "attach", "portForward")


def server_context(ca: Path) -> ssl.SSLContext:
    """TLS for the server. A client certificate is optional; if there is one, the cluster's CA must have signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(str(ca))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    return context


class Server:
    """Listens on ``address`` and ``port``. A new certificate needs no new listener."""

    def __init__(
        self, pods: PodQueries, guard: Guard, metrics: Metrics, context: ssl.SSLContext, address: str, port: int
    ) -> None:
        self.pods = pods
        self.guard = guard
        self.metrics = metrics
        self.context = context
        self.address = address
        self.port = port
        self._listener = Listener(CONNECTIONS)
        self._runner: web.AppRunner | None = None
        self._connections = ConnectionCount()

    @property
    def listening(self) -> bool:
        """Whether the server accepts connections."""
        return self._runner is not None

    def use(self, pair: Path) -> None:
        """Uses the key and certificate in ``pair`` for new connections."""
        self.context.load_cert_chain(str(pair))

    async def start(self) -> None:
        """Starts listening, unless it already does. Raises OSError."""
        if self._runner is not None:
            return
        # Cancelled when the caller disconnects: a followed log would otherwise wait forever.
        runner = web.AppRunner(
            self.application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            handle_signals=False,
        )
        await runner.setup()
        try:
            self.port = await self._listener.listen(runner, self.address, self.port, self.context)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        log.info("serving on %s:%d", self.address, self.port)

    async def stop(self) -> None:
        """Stops listening and ends all requests."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(middlewares=[self._listener.track, self._guarded])
        routes = application.router
        routes.add_get("/healthz", self._healthz)
        routes.add_get("/pods", self._pods)
        routes.add_get("/metrics", self._metrics)
        routes.add_get("/metrics/resource", self._resource)
        routes.add_get("/metrics/cadvisor", self._cadvisor)
        routes.add_get("/metrics/probes", self._probes)
        routes.add_get("/stats/summary", self._summary)
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
            # Authorization uses the route and not the raw path, because the route determines the action.
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else "/"
            await self.guard.check(request.method, path, peer, request.headers.get("Authorization"))
            answer = await handler(request)
        except Refused as refused:
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            answer = web.Response(status=refused.status, text=f"{refused}\n", headers=headers)
        except BadRequest as error:
            if kind in STREAMS:
                # API servers parse this as YAML. A text with a colon would become a Status without a message.
                answer = web.json_response(failure(str(error), "BadRequest", 400), status=400)
            else:
                answer = web.Response(status=400, text=f"{error}\n")
        except PodLookupError as error:
            answer = web.Response(status=error.status, text=f"{error}\n")
        except web.HTTPException as error:
            answer = web.Response(status=error.status, text=f"{request.method} {request.path}: {error.reason}\n")
        self.metrics.served(kind, answer.status)
        return answer

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _pods(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods.pods()})

    async def _metrics(self, request: web.Request) -> web.Response:
        # A process may have to read certificates for it.
        text = await asyncio.to_thread(self.metrics.text, self.pods.counts())
        return web.Response(body=text, headers={"Content-Type": self.metrics.content_type})

    async def _resource(self, request: web.Request) -> web.Response:
        text = resource_text(await self.pods.usage())
        return web.Response(body=text, headers={"Content-Type": self.metrics.content_type})

    async def _cadvisor(self, request: web.Request) -> web.Response:
        text = stats.cadvisor_text(await self.pods.usage())
        return web.Response(body=text, headers={"Content-Type": self.metrics.content_type})

    async def _probes(self, request: web.Request) -> web.Response:
        text = stats.probes_text(self.pods.probe_results())
        return web.Response(body=text, headers={"Content-Type": self.metrics.content_type})

    async def _summary(self, request: web.Request) -> web.Response:
        usage, used, disk = await self.pods.usage(), await self.pods.disk_usage(), self.pods.file_system()
        found = stats.summary(self.guard.node_name, usage, machine_usage(), disk, used, datetime.now(UTC))
        return web.json_response(found)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        options, previous = log_options(request.query, datetime.now(UTC))
        where = request.match_info
        chunks = self.pods.open_log(where["namespace"], where["pod"], where["container"], options, previous=previous)
        answer = web.StreamResponse(headers={"Content-Type": TEXT})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            async with contextlib.aclosing(channels.closable(chunks)) as stream:
                async for chunk in stream:
                    await answer.write(chunk)
            await answer.write_eof()
        return answer

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        options = stream_options(request.query)
        command = request.query.getall("command", [])
        if not command:
            raise BadRequest("command: required")
        where = request.match_info
        socket = await channels.upgrade(request)
        try:
            session = await self.pods.exec(
                where["namespace"], where["pod"], where["container"], command, stdin=options.stdin, tty=options.tty
            )
        except (PodLookupError, OSError) as error:
            text = str(error) if isinstance(error, PodLookupError) else f"{command[0]}: {error.strerror or error}"
            code = error.status if isinstance(error, PodLookupError) else 500
            return await channels.finish(socket, failure(text, code=code))
        try:
            status = await channels.carry(socket, session, options)
        finally:
            await asyncio.shield(session.kill())
        return await channels.finish(socket, status) if status else socket

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        options = stream_options(request.query)
        where = request.match_info
        socket = await channels.upgrade(request)
        names = (where["namespace"], where["pod"], where["container"])
        try:
            session = await self.pods.attach(*names, stdin=options.stdin)
            if session is None:
                # Without input and terminal, only whole lines of the log are available.
                chunks = self.pods.open_log(*names, LogOptions(follow=True, tail=0))
        except (PodLookupError, OSError) as error:
            code = error.status if isinstance(error, PodLookupError) else 500
            return await channels.finish(socket, failure(str(error), code=code))
        if session is not None:
            try:
                status = await channels.carry(socket, session, replace(options, tty=session.tty))
            finally:
                await asyncio.shield(session.kill())
            return await channels.finish(socket, status) if status else socket
        sender = asyncio.ensure_future(channels.send_all(socket, channels.STDOUT, chunks))
        await channels.until_either(sender, channels.drain(socket))
        return await channels.finish(socket, channels.success())

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        self.pods.require_running(namespace, pod)
        socket = await channels.accept(request, (tunnel.PROTOCOL,), tunnel.MESSAGE_BYTES)

        async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await self.pods.open_port(namespace, pod, port)

        await Tunnel(socket, dial, self._connections, f"{namespace}/{pod}").run()
        return socket
