"""GET requests to one registry: redirects, authorization and limits.

Redirects are followed here and not by aiohttp, because what authorizes a request is for the registry only: registries redirect
to stores of other owners, and a malicious registry redirects anywhere.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from yarl import URL

from thunderfleet_kubelet.images.errors import PullError, Refused, Transient
from thunderfleet_kubelet.images.registry import challenge
from thunderfleet_kubelet.images.registry.challenge import Challenge
from thunderfleet_kubelet.images.registry.clients import Clients
from thunderfleet_kubelet.images.registry.reference import Reference, is_named, is_plain
from thunderfleet_kubelet.images.registry.secrets import Credential
from thunderfleet_kubelet.images.settings import PullSettings

ANSWER_SECONDS = 60.0
"""How long the head of an answer may take. A registry that sends it byte by byte, or sends interim answers, is never silent."""
SMALL_SECONDS = 60.0
"""How long a manifest or a token may take."""
MAX_REDIRECTS = 5
MAX_SMALL = 4 * 1024**2
MAX_TOKEN = 64 * 1024
REDIRECTS = (301, 302, 303, 307, 308)


class Requests:
    """Sends requests to the registry of ``reference``, and to where it leads."""

    def __init__(self, clients: Clients, reference: Reference, settings: PullSettings, credential: Credential | None) -> None:
        self._clients = clients
        self._settings = settings
        self._reference = reference
        self._credential = credential
        self._authorization = ""
        scheme = "http" if is_plain(reference.host, settings.plain_http) else "https"
        self.origin = URL(f"{scheme}://{reference.host}")

    @contextlib.asynccontextmanager
    async def get(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a GET of ``path``, whatever its status. Raises PullError."""
        response = await self._ask(path, headers)
        try:
            yield response
        finally:
            # Closed and not released: the rest of a large answer is not read.
            response.close()

    async def _ask(self, path: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        response, from_registry = await self._follow(self.origin.join(URL(path, encoded=True)), headers)
        if response.status != 401 or not from_registry:
            return response
        asked = challenge.parse(response.headers.getall("WWW-Authenticate", []))
        response.close()
        # Also when an authorization was sent: tokens expire while large layers are fetched.
        self._authorization = await self._authorize(asked)
        response, _ = await self._follow(self.origin.join(URL(path, encoded=True)), headers)
        return response

    async def _follow(self, url: URL, headers: Mapping[str, str]) -> tuple[aiohttp.ClientResponse, bool]:
        """The last answer of a chain of redirects, and whether it is the registry's own."""
        at_home = True
        for _ in range(MAX_REDIRECTS + 1):
            sent = {**headers, "Authorization": self._authorization} if at_home and self._authorization else dict(headers)
            response = await self._send(url, sent)
            if response.status not in REDIRECTS:
                return response, at_home
            location = response.headers.get("Location", "")
            response.close()
            url = self._next(url, location)
            # A host in the chain of redirects is not trusted to send anything else.
            at_home = at_home and url.origin() == self.origin
        raise PullError(f"{self.origin.host} redirects more than {MAX_REDIRECTS} times")

    def _next(self, url: URL, location: str) -> URL:
        try:
            found = url.join(URL(location))
            found.origin()
        except ValueError:
            raise PullError(f"{url.host} redirects to an invalid address") from None
        if found.user is not None or found.password is not None:
            raise PullError(f"{url.host} redirects to an address with a user name")
        self._check_scheme(found, f"{url.host} redirects to")
        return found

    def _check_scheme(self, url: URL, words: str) -> None:
        plain = url.scheme == "http" and self.origin.scheme == "http" and is_plain(url.authority, self._settings.plain_http)
        if url.scheme != "https" and not plain:
            raise PullError(f"{words} {url.scheme}://{url.authority}, which is not encrypted")

    def _is_trusted(self, url: URL) -> bool:
        """Whether the host may have a private address: it is the registry's own, or the configuration names it."""
        named = (*self._settings.registries, *self._settings.plain_http)
        return url.host == self.origin.host or is_named(url.host or "", url.port, url.scheme, named)

    async def _send(self, url: URL, headers: dict[str, str]) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._clients.get(url, headers, trusted=self._is_trusted(url))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Transient(f"{url.host}: {said(error)}") from None

    async def _authorize(self, asked: Challenge | None) -> str:
        """The value of the Authorization header that the registry requires. Raises PullError."""
        if asked is None:
            raise Refused(f"{self.origin.host} refuses access and does not offer a way to authenticate")
        if asked.scheme == "basic":
            if self._credential is None:
                raise Refused(f"{self.origin.host} requires a user name and a password; name a Secret in imagePullSecrets")
            return self._credential.basic
        return f"Bearer {await self._token(asked)}"

    async def _token(self, asked: Challenge) -> str:
        try:
            realm = URL(asked.realm)
            realm.origin()
        except ValueError:
            raise PullError(f"{self.origin.host} names an invalid URL for tokens") from None
        self._check_scheme(realm, f"{self.origin.host} requires a token of")
        scope = asked.scope or f"repository:{self._reference.repository}:pull"
        query = {"scope": scope} | ({"service": asked.service} if asked.service else {})
        headers = {"Authorization": self._credential.basic} if self._credential is not None else {}
        async with within(SMALL_SECONDS, f"{realm.host}: no token"):
            # A redirect is not followed: the password would go with it.
            response = await self._send(realm.update_query(query), headers)
            try:
                if response.status != 200:
                    kind = _kind(response.status)
                    raise kind(f"{realm.host} gives no token (HTTP {response.status}); check imagePullSecrets")
                content = await read(response, MAX_TOKEN)
            finally:
                response.close()
        return _token_of(content, str(realm.host))


def _kind(status: int) -> type[PullError]:
    """What it means that there is no token."""
    if status >= 500 or status in (408, 429):
        return Transient
    return Refused if status >= 400 else PullError


def _token_of(content: bytes, host: str) -> str:
    try:
        answer: Any = json.loads(content)
        token = str(answer.get("token") or answer.get("access_token") or "")
    except (ValueError, AttributeError, RecursionError):
        token = ""
    if not token or not token.isascii() or not token.isprintable():
        raise PullError(f"{host} gives no usable token")
    return token


async def read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body of a small answer. Raises PullError if it is larger than ``limit``."""
    parts, size = [], 0
    async for chunk in chunks(response):
        size += len(chunk)
        if size > limit:
            raise PullError(f"{response.url.host} sends more than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body in pieces. Raises Transient if it breaks off."""
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Transient(f"{response.url.host}: {said(error)}") from None


@contextlib.asynccontextmanager
async def within(seconds: float, words: str) -> AsyncIterator[None]:
    """Limits what is done inside. Raises Transient."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Transient(f"{words} within {seconds:g} s") from None


def said(error: BaseException) -> str:
    """An error in words, without addresses, which may be signed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"certificate not trusted: {error.certificate_error}"[:300]
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.os_error.strerror or error.os_error}"[:300]
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection broke off"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
