"""Responses that every server of the page sends: files, JSON, refusals, and the stream of changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from thunderfleet_view.web import guard
from thunderfleet_view.web.assets import Asset

log = logging.getLogger(__name__)

ALIVE_SECONDS: Final = 10.0
"""An empty line at least this often: its absence shows the page that the server is away."""
WRITE_SECONDS: Final = 30.0
"""A browser that reads nothing for this time is disconnected."""


def values(found: object) -> web.Response:
    """A JSON response."""
    return web.json_response(found, headers={"Cache-Control": "no-store"})


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A refusal, as a sentence that the page shows."""
    return web.json_response({"message": message}, status=status, headers={"Cache-Control": "no-store", **(headers or {})})


def file(files: Mapping[str, Asset], request: web.Request, name: str) -> web.Response:
    """A file of the page."""
    found = files.get(name)
    if found is None:
        return problem(404, "there is no such file")
    headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("If-None-Match") == found.tag:
        return web.Response(status=304, headers=headers)
    packed = "gzip" in request.headers.get("Accept-Encoding", "")
    if packed:
        headers["Content-Encoding"] = "gzip"
    body = found.packed if packed else found.plain
    return web.Response(body=body, content_type=found.content_type, charset="utf-8", headers=headers)


async def stream(request: web.Request, take: Callable[[float], Awaitable[str | None]]) -> web.StreamResponse:
    """Sends each result of ``take`` as a line, until the browser disconnects or ``take`` returns ""; None: an empty line.

    ``take`` gets the seconds after which it must return.
    """
    response = web.StreamResponse(headers={**guard.HEADERS, "Cache-Control": "no-store"})
    response.content_type = "application/x-ndjson"
    await response.prepare(request)
    while (message := await take(ALIVE_SECONDS)) != "":
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(f"{message or ''}\n".encode())
        except TimeoutError:
            log.info("a browser has read nothing for %g s and is disconnected", WRITE_SECONDS)
            if request.transport is not None:
                request.transport.abort()
            break
    return response
