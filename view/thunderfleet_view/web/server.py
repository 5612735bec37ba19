"""The page's paths, the stream of changes, and its limits."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from thunderfleet_lib.listener import Listener

from thunderfleet_view.details import details
from thunderfleet_view.feed import Feed, Reader
from thunderfleet_view.watch import Watch
from thunderfleet_view.web import assets, chat, guard
from thunderfleet_view.web.sessions import Sessions

log = logging.getLogger(__name__)

CONNECTIONS: Final = 256
MAX_READERS: Final = 64
"""Browsers that get changes; each may have the whole fleet on its way."""
ALIVE_SECONDS: Final = 10.0
"""An empty line at least this often: the page sees from its absence that the server is away."""
WRITE_SECONDS: Final = 30.0
"""How long a browser that does not read is waited for."""
JSON: Final = "application/json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The page of one fleet. ``hosts``: allowed values of ``Host``, known once the port is."""

    def __init__(self, watch: Watch, feed: Feed, sessions: Sessions, chats: chat.Chat) -> None:
        self.listener = Listener(CONNECTIONS)
        self.hosts: frozenset[str] = frozenset()
        self._watch = watch
        self._feed = feed
        self._sessions = sessions
        self._chats = chats
        self._assets = assets.load()

    def app(self) -> web.Application:
        """The application with all paths."""
        app = web.Application(client_max_size=chat.MAX_BODY, middlewares=[self.listener.track, self._middleware])
        app.router.add_get("/", self.page)
        app.router.add_get("/assets/{name}", self.asset)
        app.router.add_post("/session", self.session)
        app.router.add_get("/api/feed", self.feed)
        app.router.add_get("/api/details", self.details)
        app.router.add_post("/api/chat", self.chat)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await self._checked(request, handler)
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
        except chat.Refused as error:
            response = _problem(error.status, str(error))
        if not response.prepared:
            response.headers.update(guard.HEADERS)
        return response

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        reason = guard.refusal(request.headers, self.hosts, "http")
        if reason is not None:
            return _problem(403, reason)
        # Of another content type, a browser sends a request of another page without asking first.
        if request.method == "POST" and request.content_type != JSON:
            return _problem(415, f"the content type must be {JSON}")
        if request.path.startswith("/api/") and not self._sessions.valid(guard.bearer(request.headers)):
            return _problem(401, "no open session: run `thunderfleet ui` again, and open the address that it prints")
        return await handler(request)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """The page itself, which has nothing of the fleet."""
        return self._file(request, "index.html")

    async def asset(self, request: web.Request) -> web.StreamResponse:
        """A file of the page."""
        return self._file(request, request.match_info["name"])

    def _file(self, request: web.Request, name: str) -> web.StreamResponse:
        found = self._assets.get(name)
        if found is None:
            return _problem(404, "there is no such file")
        headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        if packed:
            headers["Content-Encoding"] = "gzip"
        body = found.packed if packed else found.plain
        return web.Response(body=body, content_type=found.content_type, charset="utf-8", headers=headers)

    async def session(self, request: web.Request) -> web.StreamResponse:
        """Exchanges the token of the address for a session."""
        try:
            token = json.loads(await request.read())["token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return _problem(400, 'the body must be {"token": "…"}')
        opened = self._sessions.exchange(token) if isinstance(token, str) else None
        if opened is None:
            return _problem(401, "this address has been used, or is too old: run `thunderfleet ui` again")
        return _json({"session": opened})

    async def feed(self, request: web.Request) -> web.StreamResponse:
        """The whole fleet, then changes: a JSON object a line, until the browser goes."""
        if self._feed.readers >= MAX_READERS:
            return _problem(503, f"{MAX_READERS} pages are open; close one", {"Retry-After": "10"})
        reader = self._feed.open()
        try:
            return await self._stream(request, reader)
        finally:
            self._feed.close(reader)

    async def _stream(self, request: web.Request, reader: Reader) -> web.StreamResponse:
        headers = {**guard.HEADERS, "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        while True:
            message = await reader.take(ALIVE_SECONDS)
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(f"{message or ''}\n".encode())
            except TimeoutError:
                log.info("a browser has not read for %g s and is cut off", WRITE_SECONDS)
                if request.transport is not None:
                    request.transport.abort()
                return response

    async def details(self, request: web.Request) -> web.StreamResponse:
        """Conditions and causes of an entity."""
        wanted = request.query.get("id", "")
        entity = self._watch.fleet.entity(wanted)
        if entity is None:
            return _problem(404, "there is no such Mac, cable or model")
        pods, operators = await self._watch.pods_of(entity) if wanted.startswith("model/") else ((), ())
        found = details(self._watch.fleet, wanted, pods, operators)
        return _json(found) if found is not None else _problem(404, "it is gone")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Asks a model."""
        model, messages = chat.parse(await request.read())
        endpoint = self._watch.endpoint(model)
        if endpoint is None:
            return _problem(503, "the model does not serve now")
        return await self._chats.answer(request, endpoint, model.rpartition("/")[2], messages)


def _json(values: object) -> web.Response:
    return web.json_response(values, headers={"Cache-Control": "no-store"})


def _problem(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"message": message}, status=status, headers={"Cache-Control": "no-store", **(headers or {})})
