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
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from thunderfleet_lib import logs
from thunderfleet_lib.httpapi import errors, paths
from thunderfleet_lib.httpapi.bodies import MAX_BODY
from thunderfleet_lib.httpapi.refusals import refusal
from thunderfleet_lib.httpapi.requestid import request_id
from thunderfleet_lib.metrics import Labelled
from thunderfleet_lib.net.listener import EARLY_BYTES, Listener

from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.http.admission import Admission, Full
from thunderfleet_runner.api.http.embeddings import Embeddings
from thunderfleet_runner.api.http.generation import Generation, api_error
from thunderfleet_runner.api.http.metrics import GatewayMetrics
from thunderfleet_runner.api.http.stream import ClientGone
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.openai import models
from thunderfleet_runner.api.service import Service, Unavailable
from thunderfleet_runner.host.intakeprocess import Cause
from thunderfleet_runner.intakeprotocol import Endpoint

log = logging.getLogger(__name__)

QUEUE_PER_SLOT = 4
SMALLEST_QUEUE = 16
SPARE_REQUESTS = 16
"""Requests that may be read and prepared in addition to those that run or wait; others get 429 before their body is read."""
SPARE_CONNECTIONS = 128
"""Connections in addition to those of requests: idle ones, probes, and clients that get 429."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_GONE = 499
"""Metric label for a client that closed its connection, as in nginx."""


class Gateway:
    """The handlers. With empty ``api_keys`` no key is required; routers may use the credential in the plan as well."""

    def __init__(self, service: Service, intake: Intake, api_keys: Collection[str] = ()) -> None:
        self._service = service
        # All digests are compared every time: the time taken reveals neither a key's length nor its position.
        self._keys = [hashlib.sha256(key.encode()).digest() for key in api_keys]
        router = service.plan.router
        if self._keys and router is not None:
            self._keys.append(bytes.fromhex(router.digest))
        memory = service.memory
        slots = memory.concurrent_requests
        self._admission = Admission(
            budget=memory.context_tokens * slots,
            slots=slots,
            queue=max(SMALLEST_QUEUE, QUEUE_PER_SLOT * slots),
            waited=lambda seconds: self._metrics.queued.observe(seconds),
        )
        self._metrics = GatewayMetrics(service.registry, lambda: self._admission)
        self._exposed = CollectorRegistry()
        self._exposed.register(Labelled(service.registry, service.labels))
        self._generation = Generation(service, intake, self._admission, self._metrics)
        self._embeddings = Embeddings(service, intake, self._admission, self._metrics)
        for cause in Cause:
            # Exported from the start, so that the first exit is an increase.
            self._metrics.intake_ends.labels(cause.value)
        intake.on_end = lambda cause: self._metrics.intake_ends.labels(cause.value).inc()
        self.listener = Listener(self._admission.limit + SPARE_REQUESTS + SPARE_CONNECTIONS, early_bytes=EARLY_BYTES)
        """Accepts the connections."""
        self._created = int(time.time())

    def app(self) -> web.Application:
        """The application with all paths.

        A new path that takes a body begins in ``httpapi.paths`` of the library. A path that generates text also needs an
        ``Endpoint`` (``intakeprotocol``), a parser (``api/prepare``) and a writer of its response (``api/http/generation``); a
        question about tokens needs a ``Subject`` and an answer (``api/examine``). Its handler goes through ``_bounded``.
        """
        handlers: dict[str, Handler] = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completions,
            "/v1/responses": self.responses,
            "/v1/messages": self.messages,
            "/v1/messages/count_tokens": self.count_tokens,
            "/v1/embeddings": self.embeddings,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self.listener.track, self._middleware])
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{name:.+}", self.model)
        for path in paths.POSTS:
            app.router.add_post(path, handlers[path])
        app.router.add_get("/health", self.health)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        return app

    # --- around every request ---

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with logs.fields(request=request_id(request.headers)):
            return await self._handled(request, handler)

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        code = 500
        try:
            if paths.of_api(request.path):
                self._authorize(request)
                self._lead()
            response = await handler(request)
            code = response.status
            return response
        except ApiError as error:
            code = error.status
            return _error(error, request)
        except web.HTTPException as error:
            code = error.status
            if error.status < 400 or not paths.of_api(request.path):
                raise
            return _error(refusal(error, request, paths.FOR_CLIENTS), request)
        except ClientGone as error:
            code = CLIENT_GONE
            log.warning("%s: %s", request.remote, error)
            raise
        except (asyncio.CancelledError, ConnectionError):
            code = CLIENT_GONE
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            sentence = "the gateway failed to handle this request; see the log of the rank 0 pod"
            return _error(ApiError(500, sentence, type="server_error"), request)
        finally:
            if paths.of_api(request.path):
                route = request.match_info.route.resource
                self._metrics.requests.labels(route.canonical if route is not None else "unknown", str(code)).inc()

    def _authorize(self, request: web.Request) -> None:
        if not self._keys:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # Anthropic's clients send the other header.
        sent = [given.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "").strip()]
        digests = [hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() for key in sent]
        matches = [hmac.compare_digest(digest, key) for digest in digests for key in self._keys]
        if not any(matches):
            raise ApiError(
                401,
                "the API key is missing or not accepted: send the header Authorization: Bearer <key>, or x-api-key: <key>",
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
        service = self._service
        return web.json_response(models.models(service.model_name, self._created, service.memory.context_tokens))

    async def model(self, request: web.Request) -> web.StreamResponse:
        limits = self._generation.limits
        name = request.match_info["name"]
        if name != limits.model and name not in limits.names:
            raise ApiError(
                404, f"the model {name[:200]!r} is not served here; use {limits.model!r}", param="model", code="model_not_found"
            )
        return web.json_response(models.model(limits.model, self._created, limits.context_tokens))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completion")

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "messages")

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "responses")

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        return await self._bounded(self._generation.examine(request, "count"))

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        return await self._bounded(self._generation.examine(request, "tokenize"))

    async def detokenize(self, request: web.Request) -> web.StreamResponse:
        return await self._bounded(self._generation.examine(request, "detokenize"))

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        return await self._bounded(self._embeddings.answer(request, self._generation.limits))

    async def _generate(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        return await self._bounded(self._generation.answer(request, endpoint))

    async def _bounded(self, answer: Coroutine[Any, Any, web.StreamResponse]) -> web.StreamResponse:
        """Waits for the answer, unless the group is not ready or too many requests are waiting."""
        with contextlib.closing(answer):
            if not self._service.ready:
                raise self._not_ready()
            visits = self._service.visits
            if visits.inside >= self._admission.limit + SPARE_REQUESTS:
                raise api_error(Full(f"too many requests: {visits.inside} are running or waiting; retry later", 5))
            visits.enter()
            try:
                return await answer
            finally:
                visits.leave()

    def _not_ready(self) -> ApiError:
        return api_error(Unavailable(self._sentence(), 30 if self._service.draining else 5))

    def _sentence(self) -> str:
        state = self._service.state
        if self._service.draining:
            return "the group is draining and accepts no new requests"
        return f"the group is not Ready: {state.phase.value}{': ' if state.message else ''}{state.message}"

    # --- for probes and Prometheus ---

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def health(self, request: web.Request) -> web.StreamResponse:
        """Answers the health check that clients of other servers make before they send requests."""
        if self._service.ready:
            return web.json_response({"status": "ok"})
        return web.json_response(
            {"status": "unavailable", "message": self._sentence()}, status=503, headers={"Retry-After": "5"}
        )

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        if self._service.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=self._sentence() + "\n", headers={"Retry-After": "5"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._exposed), headers={"Content-Type": content_type})


def _error(error: ApiError, request: web.Request) -> web.Response:
    return web.json_response(errors.of_path(error, request.path), status=error.status, headers=error.headers)
