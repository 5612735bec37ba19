"""The live page, served by a router: the fleet for viewers, and for holders of an API key their own models.

Each request has its credential in the header ``Authorization``, never in an address or a cookie. It is checked again
while a stream is open. The chat of the page uses the router's API.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from thunderfleet_lib.kube import Kube
from thunderfleet_view.details import details
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.watch import Watch
from thunderfleet_view.web import assets, guard, responses

from thunderfleet_router.decide.callers import Caller, caller
from thunderfleet_router.decide.catalog import Catalog
from thunderfleet_router.decide.shown import MAX_TOKEN, host_names, host_refused, own_models
from thunderfleet_router.viewers import Viewers

log = logging.getLogger(__name__)

MAX_STREAMS: Final = 32
"""Maximum open pages of viewers, and of holders of keys."""
MAX_STREAMS_EACH: Final = 8
"""Maximum open pages of one credential."""
CHECK_SECONDS: Final = 30.0
"""How often the credential of an open page is checked again."""
LOOK_SECONDS: Final = 1.0
"""How soon a change is shown to the holder of a key."""
LINGER_SECONDS: Final = 60.0
"""How long Macs and cables are watched after the last viewer has gone."""
OTHER_NAME: Final = (
    "the page is not served under this name: use an IP address, or add the name to the chart's value router.page.hosts"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """The page's paths. ``catalog``: None before it is known. ``hosts``: names of this router, in addition to IP addresses.

    ``release``: the namespace of the release, where routers may read pods.
    """

    def __init__(
        self, kube: Kube, viewers: Viewers, catalog: Callable[[], Catalog | None], hosts: Collection[str], release: str
    ) -> None:
        self._kube = kube
        self._release = release
        self._viewers = viewers
        self._catalog = catalog
        self._hosts = host_names(hosts)
        self._files = assets.load()
        self._feed = Feed()
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._streams: Counter[str] = Counter()
        """Number of open pages, by credential (a digest) and by kind of credential."""

    def add_to(self, app: web.Application) -> None:
        """Adds the paths."""
        for path, handler in (
            ("/", self._index),
            ("/assets/{name}", self._asset),
            ("/session", self._opening),
            ("/api/feed", self._changes),
            ("/api/details", self._details),
        ):
            app.router.add_get(path, self._guarded(handler), allow_head=False)

    async def close(self) -> None:
        """Stops the watch."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._watching

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            reason = self._refusal(request)
            response = responses.problem(403, reason) if reason else await handler(request)
            if not response.prepared:
                response.headers.update(guard.HEADERS)
            return response

        return guarded

    def _refusal(self, request: web.Request) -> str | None:
        if host_refused(request.headers.get("Host", ""), self._hosts):
            return OTHER_NAME
        # A proxy in front of the router may have ended TLS.
        reasons = [guard.refusal(request.headers, None, scheme) for scheme in (request.scheme, "https")]
        return reasons[0] if all(reasons) else None

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return responses.file(self._files, request, "index.html")

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        return responses.file(self._files, request, request.match_info["name"])

    async def _opening(self, request: web.Request) -> web.StreamResponse:
        """Answers that the page must request a credential from the user."""
        return responses.values({"credential": True})

    # --- callers ---

    async def _who(self, request: web.Request) -> Caller | web.Response | None:
        """The holder of a key, None for a viewer, or the refusal of anybody else."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        credential = given.strip() if scheme.lower() == "bearer" else ""
        if not credential or len(credential) > MAX_TOKEN:
            return responses.problem(401, "send an API key, or the token of a viewer (docs/page.md)")
        catalog = self._catalog()
        if catalog is None:
            return responses.problem(503, "the router has not read the ModelDeployments yet", {"Retry-After": "5"})
        holder = caller(catalog, {"Authorization": f"Bearer {credential}"}, "")
        if holder.known:
            return holder
        review = await self._viewers.check(credential, request.remote or "")
        if review.allowed:
            return None
        retry = {"Retry-After": "10"} if review.status in (429, 503) else {}
        return responses.problem(review.status, review.message, retry)

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        who = await self._who(request)
        if isinstance(who, web.Response):
            return who
        kind, name = ("viewers", f"viewer {hash(guard.bearer(request.headers))}") if who is None else ("keys", who.id)
        if self._streams[kind] >= MAX_STREAMS or self._streams[name] >= MAX_STREAMS_EACH:
            return responses.problem(503, "too many pages are open; close one", {"Retry-After": "10"})
        self._streams.update((kind, name))
        try:
            return await (self._fleet(request) if who is None else self._own(request))
        finally:
            self._streams.subtract((kind, name))
            self._streams += Counter()

    async def _still(self, request: web.Request, viewer: bool) -> bool:
        """Whether the credential of an open page still grants the same rights."""
        who = await self._who(request)
        if isinstance(who, web.Response):
            # While the API server does not answer, or a review must wait for others, the last answer counts.
            return who.status in (429, 503)
        return (who is None) is viewer

    async def _fleet(self, request: web.Request) -> web.StreamResponse:
        """All Macs, cables and models, for a viewer."""
        self._start()
        reader, checked = self._feed.open(), time.monotonic()

        async def take(seconds: float) -> str | None:
            nonlocal checked
            # It may have failed, or have ended just when this page was opened.
            self._start()
            if time.monotonic() - checked > CHECK_SECONDS:
                if not await self._still(request, viewer=True):
                    return ""
                checked = time.monotonic()
            return await reader.take(seconds)

        try:
            return await responses.stream(request, take)
        finally:
            self._feed.close(reader)

    async def _own(self, request: web.Request) -> web.StreamResponse:
        """The models of a key."""
        sent: dict[str, dict[str, Any]] | None = None
        seen: Catalog | None = None
        found: dict[str, dict[str, Any]] = {}

        async def take(seconds: float) -> str | None:
            nonlocal sent, seen, found
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                # Looked up in each new catalog, because keys are part of it.
                if (catalog := self._catalog()) is not seen and catalog is not None:
                    holder = await self._who(request)
                    if not isinstance(holder, Caller):
                        return ""
                    seen, found = catalog, own_models(catalog, holder)
                    if found != sent:
                        message = _message(sent, found)
                        sent = found
                        return message
                await asyncio.sleep(LOOK_SECONDS)
            return None

        return await responses.stream(request, take)

    async def _details(self, request: web.Request) -> web.StreamResponse:
        who = await self._who(request)
        if isinstance(who, web.Response):
            return who
        wanted = request.query.get("id", "")
        if who is not None:
            known = wanted in own_models(self._catalog() or Catalog(), who)
            return responses.values({"id": wanted, "conditions": [], "why": None}) if known else _gone()
        if self._watch is None:
            return _gone()
        found = details(self._watch.fleet, wanted, (), None)
        # The path to a cause needs the pods of models, which routers may not read.
        return _gone() if found is None else responses.values({**found, "why": None})

    # --- the fleet, while a page is open ---

    def _start(self) -> None:
        if self._watching is None or self._watching.done():
            self._watch = Watch(self._kube, self._feed, leased=True, release=self._release)
            self._feed.publish(dict.fromkeys(list(self._feed.texts)))
            self._watching = asyncio.create_task(self._run(self._watch))

    async def _run(self, watch: Watch) -> None:
        """Watches Macs, cables and models until no page has been open for a while."""
        work = asyncio.create_task(watch.run())
        try:
            last = time.monotonic()
            while not work.done() and (self._feed.readers or time.monotonic() - last < LINGER_SECONDS):
                if self._feed.readers:
                    last = time.monotonic()
                await asyncio.sleep(LOOK_SECONDS)
            if work.done():
                log.error("the watch for the page has ended: %s", work.exception())
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work


def _gone() -> web.Response:
    return responses.problem(404, "there is no such Mac, cable or model")


def _message(old: dict[str, dict[str, Any]] | None, new: dict[str, dict[str, Any]]) -> str:
    put = [one for name, one in new.items() if old is None or old.get(name) != one]
    found: dict[str, Any] = {"put": put, "drop": [name for name in old or () if name not in new]}
    return json.dumps({**found, "whole": True, "notes": [], "own": True} if old is None else found)
