"""The router's HTTP server: its paths, and what happens around every request."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from itertools import chain
from typing import Final

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from thunderfleet_lib import logs
from thunderfleet_lib.httpapi import paths
from thunderfleet_lib.httpapi.bodies import MAX_BODY
from thunderfleet_lib.httpapi.errors import ApiError, of_path
from thunderfleet_lib.httpapi.refusals import refusal
from thunderfleet_lib.httpapi.requestid import request_id
from thunderfleet_lib.net.listener import EARLY_BYTES, Listener

from thunderfleet_router.decide import names
from thunderfleet_router.decide.callers import caller
from thunderfleet_router.decide.catalog import Catalog
from thunderfleet_router.http.exchange import MAX_REQUESTS, UNKNOWN, Exchanges, Record, Settings
from thunderfleet_router.http.metrics import RouterMetrics
from thunderfleet_router.http.page import Page
from thunderfleet_router.http.reply import ClientGone, Reply
from thunderfleet_router.tracing import OFF, Tracing

log = logging.getLogger(__name__)

CONNECTIONS: Final = 1536
"""Maximum connections of clients. There are as many to groups; together they stay below the limit of descriptors."""
MAX_HEADERS: Final = 64
"""Maximum number of headers of a request."""
HEAD_BYTES: Final = 32 * 1024
"""Maximum bytes of all headers of a request, which are kept while it waits. As much as common proxies forward."""
START_SECONDS: Final = 5.0
"""How long a request waits for a router that has just started."""
POLL_SECONDS: Final = 0.05
CLIENT_GONE: Final = 499
_CORS_HEADERS: Final = "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta, X-Request-Id, traceparent"
_EXPOSED: Final = "X-Request-Id, Retry-After, X-Thunderfleet-Ignored, X-Thunderfleet-Clamped"

RECORD: Final = web.RequestKey("record", Record)
HEADERS: Final = web.RequestKey("headers", dict[str, str])

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The handlers. ``origins``: of web pages that may use the API; ``*`` for all. ``problem``: why the router is not ready.

    ``page``: the live page, if it is served.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        exchanges: Exchanges,
        metrics: RouterMetrics,
        settings: Settings,
        problem: Callable[[], str | None],
        origins: Collection[str] = (),
        tracing: Tracing = OFF,
        page: Page | None = None,
    ) -> None:
        self._page = page
        self._catalog = catalog
        self._exchanges = exchanges
        self._metrics = metrics
        self._settings = settings
        self._problem = problem
        self._origins = frozenset(origins)
        self._tracing = tracing
        self.listener = Listener(CONNECTIONS, early_bytes=EARLY_BYTES)
        self.ending = False
        """Whether the router is about to end: it is not ready for new clients, and each response ends its connection."""
        self.inside = 0
        """Requests for groups that are being answered."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()

    def app(self) -> web.Application:
        """The application with all paths."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self.listener.track, self._middleware])
        app.on_response_prepare.append(self._last)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{name:.+}", self.model)
        for path in paths.POSTS:
            app.router.add_post(path, self.ask)
        app.router.add_get("/health", self.health)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.health)
        app.router.add_get("/metrics", self.metrics)
        if self._page is not None:
            self._page.add_to(app)
        return app

    def runner(self) -> web.AppRunner:
        """Serves the application, at the addresses where ``listener`` listens."""
        return web.AppRunner(
            self.app(), access_log=None, handle_signals=False, handler_cancellation=True, auto_decompress=False,
            shutdown_timeout=1.0, logger=_unlogged(), max_headers=MAX_HEADERS,
        )  # fmt: skip

    # --- around every request ---

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not paths.of_api(request.path):
            return await handler(request)
        started = time.monotonic()
        name = f"{request.method} {_endpoint(request)}"
        with (
            logs.fields(request=(found := request_id(request.headers))),
            self._tracing.request(name, request.headers) as span,
        ):
            return await self._recorded(request, handler, Record(found, span), started)

    async def _recorded(self, request: web.Request, handler: Handler, record: Record, started: float) -> web.StreamResponse:
        code = 500
        request[RECORD], request[HEADERS] = record, {"X-Request-Id": record.request_id, **self._cors(request)}
        try:
            if request.method == "OPTIONS" and self._origins:
                response: web.StreamResponse = web.Response(status=204, headers=request[HEADERS])
            else:
                _check_head(request)
                await self._until_ready()
                response = await handler(request)
            code = response.status
            return response
        except ApiError as error:
            code = error.status
            return _error(error, request)
        except web.HTTPException as error:
            code = error.status
            return _error(refusal(error, request, paths.FOR_CLIENTS), request)
        except (ClientGone, asyncio.CancelledError, ConnectionError):
            code = CLIENT_GONE
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            sentence = "the router failed to handle this request; see its log"
            return _error(ApiError(500, sentence, type="server_error"), request)
        finally:
            self._log(request, record, code, time.monotonic() - started)

    async def _last(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.ending:
            response.force_close()
            # The headers are already complete, without this one.
            response.headers["Connection"] = "close"

    async def _until_ready(self) -> None:
        """Waits for the catalog, without which every model would seem to be missing. Raises ApiError after START_SECONDS."""
        until = time.monotonic() + START_SECONDS
        while (problem := self._problem()) is not None:
            if time.monotonic() >= until:
                raise ApiError(503, problem, type="server_error", code="not_ready", headers={"Retry-After": "5"})
            await asyncio.sleep(POLL_SECONDS)

    def _log(self, request: web.Request, record: Record, code: int, seconds: float) -> None:
        endpoint = _endpoint(request)
        self._metrics.requests.labels(endpoint, str(code), record.model).inc()
        numbers = {"tokens": record.tokens, "waited": round(record.waited, 3), "seconds": round(seconds, 3)}
        more = {"code": code, "key": record.key, "attempts": record.attempts, **numbers}
        known = logs.of_key(record.model) if record.model != UNKNOWN else {}
        group = int(record.group) if record.group != UNKNOWN else None
        log.info("%s %s: %d", request.method, endpoint, code, extra=logs.about(more, group=group, **known))
        record.describe(request.method, endpoint, code)

    def _cors(self, request: web.Request) -> dict[str, str]:
        origin = request.headers.get("Origin", "")
        if not origin or not ({origin, "*"} & self._origins):
            return {}
        return {
            "Access-Control-Allow-Origin": "*" if "*" in self._origins else origin,
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": _CORS_HEADERS,
            "Access-Control-Expose-Headers": _EXPOSED,
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        }

    # --- the API ---

    async def models(self, request: web.Request) -> web.StreamResponse:
        catalog = self._catalog()
        entries = names.listing(catalog, caller(catalog, request.headers, request.remote or ""), self._settings.aliases)
        return web.json_response({"object": "list", "data": entries}, headers=request[HEADERS])

    async def model(self, request: web.Request) -> web.StreamResponse:
        catalog, name = self._catalog(), request.match_info["name"]
        found = names.resolve(catalog, caller(catalog, request.headers, request.remote or ""), name, self._settings.aliases)
        return web.json_response(names.described(name, found), headers=request[HEADERS])

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """A request for a group."""
        if self.inside >= MAX_REQUESTS:
            raise ApiError(
                429, f"too many requests: {self.inside} are waiting or running in this router; retry later",
                type="rate_limit_error", code="queue_full", headers={"Retry-After": "5"},
            )  # fmt: skip
        record: Record = request[RECORD]
        own: dict[str, str] = request[HEADERS]
        reply = Reply(request, own)
        started = time.monotonic()
        self.inside += 1
        self.idle.clear()
        try:
            try:
                await self._exchanges.answer(request, reply, record)
            except ApiError as error:
                if error.status == 429:
                    self._metrics.limited.labels(error.code or UNKNOWN, *self._metrics.caller(record.model, record.key)).inc()
                await reply.error(error)
        finally:
            self.inside -= 1
            if not self.inside:
                self.idle.set()
            self._metrics.waited.observe(record.waited)
            self._metrics.tokens.labels(*self._metrics.caller(record.model, record.key)).inc(record.tokens)
            if reply.first_byte is not None:
                self._metrics.first.observe(reply.first_byte - started)
        assert reply.response is not None
        return reply.response

    # --- for probes and Prometheus ---

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def health(self, request: web.Request) -> web.StreamResponse:
        problem = "the router is stopping" if self.ending else self._problem()
        if problem is None:
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "unavailable", "message": problem}, status=503, headers={"Retry-After": "5"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._metrics.registry), headers={"Content-Type": content_type})


def _unlogged() -> logging.Logger:
    """A logger that is silent: aiohttp logs a traceback for each connection that does not speak HTTP."""
    logger = logging.getLogger(f"{__name__}.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


def _check_head(request: web.Request) -> None:
    """Raises ApiError if the headers are too large."""
    size = sum(map(len, chain.from_iterable(request.raw_headers)))
    if size > HEAD_BYTES:
        raise ApiError(431, f"the headers have {size} bytes; at most {HEAD_BYTES} are allowed")


def _endpoint(request: web.Request) -> str:
    """The route's path for metrics, so that the number of label values is small."""
    route = request.match_info.route.resource
    return route.canonical if route is not None else "unknown"


def _error(error: ApiError, request: web.Request) -> web.Response:
    own: dict[str, str] = request[HEADERS]
    headers = {**error.headers, **own}
    return web.json_response(of_path(error, request.path), status=error.status, headers=headers)
