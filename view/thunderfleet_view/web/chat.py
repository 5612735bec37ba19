"""Sends a chat to a model and returns the answer, which the page shows as text."""

import asyncio
import logging
from typing import Any, Final

import aiohttp
from aiohttp import web
from thunderfleet_lib import jsonbounds
from thunderfleet_lib.net import redirects

from thunderfleet_view.web import guard

log = logging.getLogger(__name__)

MAX_BODY: Final = 1 << 20
MAX_ANSWER: Final = 8 << 20
MAX_MESSAGES: Final = 200
MAX_CHATS: Final = 8
SILENCE_SECONDS: Final = 300.0
"""Long, because of the first token of a long prompt."""
WRITE_SECONDS: Final = 30.0


class Refused(Exception):
    """A chat that is refused, with the status and the message of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse(body: bytes) -> tuple[str, list[dict[str, str]]]:
    """The model (``namespace/name``) and the messages in a body. Raises Refused."""
    try:
        found = jsonbounds.loads(body, values=10_000, depth=8)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from error
    model, messages = (found.get("model"), found.get("messages")) if isinstance(found, dict) else (None, None)
    if not isinstance(model, str) or not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise Refused(400, f"the body must have a model and 1 to {MAX_MESSAGES} messages")
    return model, [_message(one) for one in messages]


def _message(found: Any) -> dict[str, str]:
    role, content = (found.get("role"), found.get("content")) if isinstance(found, dict) else (None, None)
    if role not in ("user", "assistant") or not isinstance(content, str):
        raise Refused(400, "each message must have the role user or assistant, and a string as content")
    return {"role": role, "content": content}


class Chat:
    """``proxy``: the URL of the HTTP proxy to a local cluster's endpoints; None for a direct connection."""

    def __init__(self, proxy: str | None) -> None:
        self._proxy = proxy
        self._running = 0

    async def answer(
        self, request: web.Request, endpoint: str, name: str, messages: list[dict[str, str]]
    ) -> web.StreamResponse:
        """Sends a chat to the model at an endpoint. Raises Refused."""
        if self._running >= MAX_CHATS:
            raise Refused(429, f"{MAX_CHATS} chats are running; wait until one has ended")
        self._running += 1
        try:
            return await self._pass_on(request, endpoint, name, messages)
        except (aiohttp.ClientError, OSError) as error:
            raise Refused(502, f"cannot reach {endpoint} from this machine: {error}") from error
        finally:
            self._running -= 1

    async def _pass_on(
        self, request: web.Request, endpoint: str, name: str, messages: list[dict[str, str]]
    ) -> web.StreamResponse:
        headers = {"X-Api-Key": key} if (key := request.headers.get("X-Api-Key", "")) else {}
        body = {"model": name, "messages": messages, "stream": True}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_SECONDS)
        async with (
            # A gateway must not lead this machine to servers that only it can reach, nor the key to others.
            aiohttp.ClientSession(timeout=timeout, trace_configs=[redirects.refused()]) as client,
            client.post(f"{endpoint}/chat/completions", json=body, headers=headers, proxy=self._proxy) as found,
        ):
            response = web.StreamResponse(status=found.status, headers={**guard.HEADERS, "Cache-Control": "no-store"})
            # Always text for the browser, whatever content type the model's server sends.
            response.content_type = "text/plain"
            await response.prepare(request)
            try:
                try:
                    await self._copy(found, response)
                except aiohttp.ClientError as error:
                    # The status was already sent, so no other response can follow; the page notices that the last event is
                    # missing.
                    log.info("an answer of %s ended early: %s", endpoint, error)
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write_eof()
            except OSError as error:
                log.info("a browser stopped reading an answer of %s: %s", endpoint, error or "it does not read")
                if request.transport is not None:
                    request.transport.abort()
            return response

    async def _copy(self, found: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        sent = 0
        async for part in found.content.iter_any():
            sent += len(part)
            if sent > MAX_ANSWER:
                break
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(part)
