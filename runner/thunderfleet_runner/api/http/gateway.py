"""The group's public HTTP server, in OpenAI's format. It runs in the supervisor's process, without MLX or a tokenizer.

Rank 0's gateway serves requests; the other ranks answer with its address. A stream that is cut ends with an error event and
without ``[DONE]``, so that no client takes a partial answer as complete.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from thunderfleet_lib.listener import Listener

from thunderfleet_runner import protocol
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.http.admission import Admission, Full, Slot
from thunderfleet_runner.api.http.bodies import MAX_BODY, Bodies
from thunderfleet_runner.api.http.metrics import GatewayMetrics
from thunderfleet_runner.api.http.stream import ClientGone, EventStream
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.openai import responses
from thunderfleet_runner.api.openai.responses import Writer
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable
from thunderfleet_runner.intakeprotocol import Endpoint, ModelLimits, Options, Prepared, ToolsParsed

log = logging.getLogger(__name__)

ANSWER_SECONDS = 3600.0
"""Time limit for one answer, without its wait in the queue."""
QUEUE_PER_SLOT = 4
SMALLEST_QUEUE = 16
SPARE_REQUESTS = 16
"""Requests that may be read and prepared in addition to those that run or wait; others get 429 before their body is read."""
SPARE_CONNECTIONS = 128
"""Connections in addition to those of requests: idle ones, probes, and clients that get 429."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Event = protocol.Token | protocol.Done

CLIENT_GONE = 499
"""Metric label for a client that closed its connection, as in nginx."""


class Gateway:
    """The handlers. With empty ``api_keys`` no key is required."""

    def __init__(self, service: Service, intake: Intake, api_keys: Collection[str] = ()) -> None:
        self._service = service
        self._intake = intake
        self._bodies = Bodies()
        # All digests are compared every time: the time taken reveals neither a key's length nor its position.
        self._keys = [hashlib.sha256(key.encode()).digest() for key in api_keys]
        memory = service.memory
        slots = memory.concurrent_requests
        self._admission = Admission(
            budget=memory.context_tokens * slots,
            slots=slots,
            queue=max(SMALLEST_QUEUE, QUEUE_PER_SLOT * slots),
            waited=lambda seconds: self._metrics.queued.observe(seconds),
        )
        self._metrics = GatewayMetrics(service.registry, lambda: self._admission)
        intake.on_end = lambda cause: self._metrics.intake_ends.labels(cause.value).inc()
        self._inside = 0
        self.listener = Listener(self._admission.limit + SPARE_REQUESTS + SPARE_CONNECTIONS)
        """Accepts the connections."""
        self._created = int(time.time())

    def app(self) -> web.Application:
        """The application with all paths. The error for an unknown path (``_from_http``) lists those below ``/v1/``.

        A path with a body also needs an ``Endpoint`` (``intakeprotocol``), its parser (``requests``) and its response
        (``responses``).
        """
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self.listener.track, self._middleware])
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        return app

    # --- around every request ---

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        code = 500
        try:
            if request.path.startswith("/v1/"):
                self._authorize(request)
                self._lead()
            response = await handler(request)
            code = response.status
            return response
        except ApiError as error:
            code = error.status
            return _error(error)
        except web.HTTPException as error:
            code = error.status
            if error.status < 400 or not request.path.startswith("/v1/"):
                raise
            return _error(_from_http(error, request))
        except ClientGone as error:
            code = CLIENT_GONE
            log.warning("%s: %s", request.remote, error)
            raise
        except (asyncio.CancelledError, ConnectionError):
            code = CLIENT_GONE
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _error(
                ApiError(500, "the gateway failed to handle this request; see the log of the rank 0 pod", type="server_error")
            )
        finally:
            if request.path.startswith("/v1/"):
                route = request.match_info.route.resource
                self._metrics.requests.labels(route.canonical if route is not None else "unknown", str(code)).inc()

    def _authorize(self, request: web.Request) -> None:
        if not self._keys:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "the API key is missing or not accepted: send the header Authorization: Bearer <key>",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _lead(self) -> None:
        service = self._service
        if not service.leader:
            raise ApiError(
                421,
                f"rank {service.rank} does not serve the API; use rank 0 at {service.leader_url}/v1",
                code="not_leader",
                headers={"Location": f"{service.leader_url}/v1"},
            )

    # --- the API ---

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(responses.models(self._service.model_name, self._created))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completion")

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        if not self._service.ready:
            raise self._not_ready()
        if self._inside >= self._admission.limit + SPARE_REQUESTS:
            raise _api_error(Full(f"too many requests: {self._inside} are running or waiting; retry later", 5))
        self._inside += 1
        try:
            return await self._answer(request, endpoint)
        finally:
            self._inside -= 1

    async def _answer(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        service = self._service
        arrived = time.monotonic()
        try:
            prepared = await self._prepared(request, endpoint)
            service.arrival.set()
            options = prepared.options
            name = f"{'chatcmpl' if endpoint == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
            writer = Writer(options, service.model_name, name, int(time.time()))
            slot = await self._admission.enter(prepared.prompt.count + options.max_tokens)
            try:
                async with contextlib.aclosing(self._timed(request_of(name, prepared), arrived, slot)) as events:
                    return await self._send(request, options, writer, events)
            finally:
                # Freed when rank 0 is done with the request, not when a slow client has read all of it.
                if not service.works_on(name):
                    slot.free()
        except (Refused, Unavailable, GenerationFailed, Full) as error:
            raise _api_error(error) from error

    async def _prepared(self, request: web.Request, endpoint: Endpoint) -> Prepared:
        """The request in tokens. Nothing here looks into the body: its bytes could stop this process."""
        service = self._service
        limits = ModelLimits(
            model=service.model_name,
            vocabulary=service.vocabulary.size,
            context_tokens=service.memory.context_tokens,
            chat_template=service.vocabulary.chat_template,
        )
        async with self._bodies.read(request) as body:
            return await self._intake.prepare(endpoint, body, limits)

    async def _send(
        self, request: web.Request, options: Options, writer: Writer, events: AsyncIterator[Event]
    ) -> web.StreamResponse:
        if options.stream:
            return await self._stream(request, options, writer, events)
        async for event in events:
            if isinstance(event, protocol.Done):
                body = writer.whole(_complete(event), await self._tool_calls(options, event))
                return web.Response(body=body, content_type="application/json", charset="utf-8", headers=_headers(options))
            writer.add(event)
        raise GenerationFailed("the response ended unexpectedly")

    async def _tool_calls(self, options: Options, done: protocol.Done) -> ToolsParsed:
        """The tool calls in an answer."""
        if not done.tool_texts:
            return ToolsParsed()
        return await self._intake.parse_tools(options.tools, done.tool_texts)

    async def _timed(self, request: protocol.Request, arrived: float, slot: Slot) -> AsyncGenerator[Event, None]:
        metrics = self._metrics
        first = last = 0.0

        def ended(done: protocol.Done | None) -> None:
            slot.free()
            if done is not None:
                metrics.prompt.inc(done.prompt_tokens)
                metrics.cached.inc(done.cached_tokens)
                metrics.generated.inc(done.generated_tokens)

        until = time.monotonic() + ANSWER_SECONDS
        async with contextlib.aclosing(self._service.submit(request, ended)) as events:  # type: ignore[type-var]
            async for event in events:
                last = time.monotonic()
                if isinstance(event, protocol.Done):
                    if event.generated_tokens > 1 and last > first:
                        metrics.rate.observe((event.generated_tokens - 1) / (last - first))
                elif last > until:
                    raise GenerationFailed(f"the response took longer than {ANSWER_SECONDS:g} s and was cancelled")
                elif not first:
                    first = last
                    metrics.first.observe(first - arrived)
                yield event

    async def _stream(
        self, request: web.Request, options: Options, writer: Writer, events: AsyncIterator[Event]
    ) -> web.StreamResponse:
        stream = EventStream(request, _headers(options))
        stream.put(writer.first())
        async with stream.kept_alive():
            try:
                async for event in events:
                    if isinstance(event, protocol.Token):
                        stream.put(writer.token(event))
                        if not self._service.queued(writer.answer_id):
                            await stream.flush()
                        continue
                    for chunk in writer.last(_complete(event), await self._tool_calls(options, event)):
                        stream.put(chunk)
                    stream.put_done()
            except ConnectionError:
                raise
            except Exception as error:
                if not stream.started:
                    raise
                if not isinstance(error, Refused | Unavailable | GenerationFailed):
                    log.exception("a stream failed")
                self._metrics.errors.inc()
                stream.put(_api_error(error).body())
        return await stream.end()

    def _not_ready(self) -> ApiError:
        return _api_error(Unavailable(self._sentence(), 30 if self._service.draining else 5))

    def _sentence(self) -> str:
        state = self._service.state
        if self._service.draining:
            return "the group is draining and accepts no new requests"
        return f"the group is not Ready: {state.phase.value}{': ' if state.message else ''}{state.message}"

    # --- for probes and Prometheus ---

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        if self._service.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=self._sentence() + "\n", headers={"Retry-After": "5"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._service.registry), headers={"Content-Type": content_type})


def request_of(name: str, prepared: Prepared) -> protocol.Request:
    """The request for rank 0."""
    options = prepared.options
    return protocol.Request(
        id=name,
        prompt=prepared.prompt,
        max_tokens=options.max_tokens,
        stop=options.stop,
        logprobs=options.logprobs,
        top_logprobs=options.top_logprobs,
        sampling=options.sampling,
    )


def _complete(done: protocol.Done) -> protocol.Done:
    """Raises GenerationFailed for an answer that was cut: a client must not take it as complete."""
    if done.finish_reason == "cancelled":
        raise GenerationFailed("the request was cancelled")
    return done


def _headers(options: Options) -> dict[str, str]:
    return {"X-Thunderfleet-Ignored": ", ".join(options.ignored)} if options.ignored else {}


def _api_error(error: Exception) -> ApiError:
    match error:
        case Unavailable():
            retry = {"Retry-After": str(error.retry_after)}
            return ApiError(503, str(error), type="server_error", code="not_ready", headers=retry)
        case Full():
            retry = {"Retry-After": str(error.retry_after)}
            return ApiError(429, str(error), type="rate_limit_error", code="queue_full", headers=retry)
        case Refused():
            return ApiError(400, str(error))
    return ApiError(500, str(error), type="server_error", code="generation_failed")


def _from_http(error: web.HTTPException, request: web.Request) -> ApiError:
    match error.status:
        case 404:
            sentence = f"{request.path} does not exist; use /v1/models, /v1/chat/completions or /v1/completions"
        case 405:
            sentence = f"{request.method} is not allowed on {request.path}"
        case 413:
            sentence = f"the body is larger than {MAX_BODY} bytes"
        case _:
            sentence = error.reason
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return ApiError(error.status, sentence, headers=headers)


def _error(error: ApiError) -> web.Response:
    return web.json_response(error.body(), status=error.status, headers=error.headers)
