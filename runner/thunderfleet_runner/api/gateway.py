"""The public API of a group, in the supervisor's process: HTTP in, OpenAI's format out. No MLX and no tokenizer here.

Rank 0's gateway serves; the others say where it is. A stream that is cut ends with an error event and without ``[DONE]``, so
that no client takes half an answer for a whole one.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from aiohttp import web
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from thunderfleet_lib.listener import Listener

from thunderfleet_runner import protocol
from thunderfleet_runner.api import openai
from thunderfleet_runner.api.admission import Admission, Full, Place
from thunderfleet_runner.api.openai import ApiError, Endpoint
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable

log = logging.getLogger(__name__)

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a request's body."""
FIRST_EVENT_SECONDS = 5.0
"""How long an error can still become a proper HTTP status before a stream begins with a comment."""
KEEPALIVE_SECONDS = 15.0
BODY_SECONDS = 60.0
"""How long a body may take to arrive."""
ANSWER_SECONDS = 3600.0
"""How long one answer may take, its wait in the queue not counted."""
READ_SECONDS = 60.0
"""How long a client may read nothing of a stream while there is something for it."""
QUEUE_PER_PLACE = 4
SMALLEST_QUEUE = 16
SPARE_REQUESTS = 16
"""Requests that may be read and counted beside those that run or wait; more are turned away before their body is read."""
SPARE_CONNECTIONS = 128
"""Connections beside those of requests that may be there: kept for later, of probes, and of who is told to come again."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Event = protocol.Token | protocol.Done

CLIENT_GONE = 499
"""nginx's number for a client that has left."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_RATES = (1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 5000)


class ClientGone(ConnectionError):
    """The client does not read its answer; the text says since when."""


class _Metrics:
    def __init__(self, service: Service, admission: Callable[[], Admission]) -> None:
        registry = service.registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"thunderfleet_runner_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"thunderfleet_runner_{name}", text, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"thunderfleet_runner_{name}", text, registry=registry).set_function(value)

        self.requests = counter("requests", "API requests by endpoint and HTTP status.", "endpoint", "code")
        self.errors = counter("stream_errors", "Streams that ended with an error event.")
        self.first = histogram("time_to_first_token_seconds", "From a request's arrival to its first token.", _SECONDS)
        self.rate = histogram("decode_tokens_per_second", "Tokens per second of one request after its first.", _RATES)
        self.queued = histogram("queue_seconds", "Time that requests waited for a place.", _SECONDS)
        self.prompt = counter("prompt_tokens", "Tokens of prompts served.")
        self.cached = counter("cached_tokens", "Of the prompts' tokens, those from the prompt cache.")
        self.generated = counter("generated_tokens", "Tokens generated for clients.")
        gauge("queue_depth", "Requests that wait for a place.", lambda: admission().waiting)
        gauge("requests_running", "Requests at work.", lambda: admission().running)


class Gateway:
    """The handlers. ``api_keys`` empty: no key is asked for."""

    def __init__(self, service: Service, api_keys: Collection[str] = ()) -> None:
        self._service = service
        # Compared as digests, all of them every time: neither a key's length nor its place shows in the time taken.
        self._keys = [hashlib.sha256(key.encode()).digest() for key in api_keys]
        memory = service.memory
        places = memory.concurrent_requests
        self._admission = Admission(
            budget=memory.context_tokens * places,
            places=places,
            queue=max(SMALLEST_QUEUE, QUEUE_PER_PLACE * places),
            waited=lambda seconds: self._metrics.queued.observe(seconds),
        )
        self._metrics = _Metrics(service, lambda: self._admission)
        self._inside = 0
        self.listener = Listener(self._admission.limit + SPARE_REQUESTS + SPARE_CONNECTIONS)
        """Where its clients come in."""
        self._created = int(time.time())

    def app(self) -> web.Application:
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
            return _error(ApiError(500, "the gateway failed at this request; its log says why", type="server_error"))
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
                "this deployment asks for an API key: send the header Authorization: Bearer <key>",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _lead(self) -> None:
        service = self._service
        if not service.leader:
            raise ApiError(
                421,
                f"rank {service.rank} does not serve the API; ask rank 0 at {service.leader_url}/v1",
                code="not_leader",
                headers={"Location": f"{service.leader_url}/v1"},
            )

    # --- the API ---

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(openai.models(self._service.model_name, self._created))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completion")

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        if not self._service.ready:
            raise self._not_ready()
        if self._inside >= self._admission.limit + SPARE_REQUESTS:
            raise _api_error(Full(f"{self._inside} requests are being served or wait already", 5))
        self._inside += 1
        try:
            return await self._answer(request, endpoint)
        finally:
            self._inside -= 1

    async def _answer(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        service = self._service
        arrived = time.monotonic()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                raw = await request.read()
        except TimeoutError as error:
            raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from error
        vocabulary = service.vocabulary
        limits = openai.Limits(
            model=service.model_name,
            vocabulary=vocabulary.size,
            context_tokens=service.memory.context_tokens,
            chat_template=vocabulary.chat_template,
        )
        call = openai.parse(endpoint, raw, limits)
        service.visitor.set()
        name = f"{'chatcmpl' if endpoint == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
        writer = openai.Writer(call, service.model_name, name, int(time.time()))
        try:
            count = await service.prepare(call.request(name, 1))
            prepared = call.request(name, openai.fit(call, count, limits))
            place = await self._admission.enter(count + prepared.max_tokens)
            try:
                async with contextlib.aclosing(self._timed(prepared, arrived, place)) as events:
                    return await self._send(request, call, writer, events)
            finally:
                # Left when rank 0 is done with the request, not when a slow client has read all of it.
                if not service.works_on(name):
                    place.leave()
        except (Refused, Unavailable, GenerationFailed, Full) as error:
            raise _api_error(error) from error

    async def _send(
        self, request: web.Request, call: openai.Call, writer: openai.Writer, events: AsyncIterator[Event]
    ) -> web.StreamResponse:
        if call.stream:
            return await self._stream(request, call, writer, events)
        async for event in events:
            if isinstance(event, protocol.Done):
                return web.json_response(writer.whole(_complete(event)), headers=_headers(call))
            writer.add(event)
        raise GenerationFailed("the answer ended without an end")

    async def _timed(self, request: protocol.Request, arrived: float, place: Place) -> AsyncGenerator[Event, None]:
        metrics = self._metrics
        first = last = 0.0

        def ended(done: protocol.Done | None) -> None:
            place.leave()
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
                    raise GenerationFailed(f"the answer took longer than {ANSWER_SECONDS:g} s and was ended")
                elif not first:
                    first = last
                    metrics.first.observe(first - arrived)
                yield event

    async def _stream(
        self, request: web.Request, call: openai.Call, writer: openai.Writer, events: AsyncIterator[Event]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={
            "Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", **_headers(call)
        })  # fmt: skip

        written = time.monotonic()
        waiting = bytearray()
        turn = asyncio.Lock()

        def put(piece: dict[str, Any] | None) -> None:
            if piece is not None:
                waiting.extend(b"data: " + json.dumps(piece, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n")

        async def flush() -> None:
            """Everything that waits, in one write."""
            nonlocal written
            async with turn:
                if not response.prepared:
                    await response.prepare(request)
                data = bytes(waiting)
                waiting.clear()
                try:
                    async with asyncio.timeout(READ_SECONDS):
                        await response.write(data)
                except TimeoutError:
                    if request.transport is not None:
                        # Not closed: that would wait for the client to take what is left.
                        request.transport.abort()
                    raise ClientGone(f"the client read nothing for {READ_SECONDS:g} s") from None
                written = time.monotonic()

        async def keep_alive() -> None:
            patience = FIRST_EVENT_SECONDS
            while True:
                await asyncio.sleep(max(patience - (time.monotonic() - written), 0.1))
                if time.monotonic() - written >= patience and not turn.locked():
                    waiting.extend(b": still at work\n\n")
                    await flush()
                    patience = KEEPALIVE_SECONDS

        put(writer.first())
        keeping = asyncio.create_task(keep_alive())
        try:
            async for event in events:
                if isinstance(event, protocol.Token):
                    put(writer.token(event))
                    if waiting and not self._service.queued(writer.answer_id):
                        await flush()
                    continue
                for piece in writer.last(_complete(event)):
                    put(piece)
                waiting.extend(b"data: [DONE]\n\n")
        except ConnectionError:
            raise
        except Exception as error:
            if not response.prepared:
                raise
            if not isinstance(error, Refused | Unavailable | GenerationFailed):
                log.exception("a stream failed")
            self._metrics.errors.inc()
            put(_api_error(error).body())
        finally:
            # Not in the midst of a write.
            async with turn:
                keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await flush()
        await response.write_eof()
        return response

    def _not_ready(self) -> ApiError:
        return _api_error(Unavailable(self._sentence(), 30 if self._service.draining else 5))

    def _sentence(self) -> str:
        state = self._service.state
        if self._service.draining:
            return "the group is draining and takes no new requests"
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


def create_app(service: Service, api_keys: Collection[str] = ()) -> web.Application:
    """The gateway of one supervisor. A key of ``api_keys`` is asked for on ``/v1/`` when there are any."""
    return Gateway(service, api_keys).app()


def _complete(done: protocol.Done) -> protocol.Done:
    """Raises GenerationFailed for an answer that was cut: a client must not take it for a whole one."""
    if done.finish_reason == "cancelled":
        raise GenerationFailed("the request was cancelled before it ended")
    return done


def _headers(call: openai.Call) -> dict[str, str]:
    return {"X-Thunderfleet-Ignored": ", ".join(call.ignored)} if call.ignored else {}


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
            sentence = f"{request.path} is not served; /v1/models, /v1/chat/completions and /v1/completions are"
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
