"""The page's paths, the stream of changes, and its limits."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from thunderfleet_lib.net.listener import Listener

from thunderfleet_view.details import details
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.watch import Watch
from thunderfleet_view.web import assets, chat, guard, responses
from thunderfleet_view.web.sessions import Sessions

CONNECTIONS: Final = 256
MAX_READERS: Final = 64
"""Maximum browsers that get changes; the whole fleet may be in flight to each of them."""
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
        app.router.add_get("/session", self.opening)
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
            response = responses.problem(error.status, error.reason)
        except chat.Refused as error:
            response = responses.problem(error.status, str(error))
        if not response.prepared:
            response.headers.update(guard.HEADERS)
        return response

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        reason = guard.refusal(request.headers, self.hosts, "http")
        if reason is not None:
            return responses.problem(403, reason)
        # With other content types, a browser sends cross-origin requests without a preflight.
        if request.method == "POST" and request.content_type != JSON:
            return responses.problem(415, f"the content type must be {JSON}")
        if request.path.startswith("/api/") and not self._sessions.valid(guard.bearer(request.headers)):
            return responses.problem(
                401, "no open session: press Enter in the terminal of `thunderfleet ui`, and open the address that it prints"
            )
        return await handler(request)

    async def page(self, request: web.Request) -> web.StreamResponse:
        """The page itself, without data of the fleet."""
        return responses.file(self._assets, request, "index.html")

    async def asset(self, request: web.Request) -> web.StreamResponse:
        """A file of the page."""
        return responses.file(self._assets, request, request.match_info["name"])

    async def opening(self, request: web.Request) -> web.StreamResponse:
        """Shows the page that a session comes from the address and not from a credential."""
        return responses.values({"credential": False})

    async def session(self, request: web.Request) -> web.StreamResponse:
        """Exchanges the token of the address for a session."""
        try:
            token = json.loads(await request.read())["token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return responses.problem(400, 'the body must be {"token": "…"}')
        opened = self._sessions.exchange(token) if isinstance(token, str) else None
        if opened is None:
            return responses.problem(
                401,
                "this address has been used or has expired: press Enter in the terminal of `thunderfleet ui` for another one",
            )
        return responses.values({"session": opened})

    async def feed(self, request: web.Request) -> web.StreamResponse:
        """The whole fleet, then changes, one JSON object per line, until the browser disconnects."""
        if self._feed.readers >= MAX_READERS:
            return responses.problem(503, f"{MAX_READERS} pages are open; close one", {"Retry-After": "10"})
        reader = self._feed.open()
        try:
            return await responses.stream(request, reader.take)
        finally:
            self._feed.close(reader)

    async def details(self, request: web.Request) -> web.StreamResponse:
        """Conditions and causes of an entity."""
        wanted = request.query.get("id", "")
        entity = self._watch.fleet.entity(wanted)
        if entity is None:
            return responses.problem(404, "there is no such Mac, cable or model")
        pods, operators = await self._watch.pods_of(entity) if wanted.startswith("model/") else ((), ())
        found = details(self._watch.fleet, wanted, pods, operators, self._watch.signs)
        return responses.values(found) if found is not None else responses.problem(404, "it has just been deleted")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Sends a chat to a model."""
        model, messages = chat.parse(await request.read())
        endpoint = self._watch.endpoint(model)
        if endpoint is None:
            return responses.problem(503, "the model does not serve now")
        return await self._chats.answer(request, endpoint, model.rpartition("/")[2], messages)
