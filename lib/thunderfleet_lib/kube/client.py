"""A client of the API server: paths in, plain dictionaries out.

A thin layer over the transport of the official client (``kubernetes.aio``). The generated classes are not used: objects that
Thunderfleet owns are applied server-side from pydantic models, and custom resources have no generated class. The layer adds
credentials that are read again when they rotate, a time limit on every request, typed errors and paged lists.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from thunderfleet_lib.clock import Moment
from thunderfleet_lib.host.sandbox import SERVICE_ACCOUNT_FOLDER, mounted
from thunderfleet_lib.kube.names import Json, key_of
from thunderfleet_lib.kube.proxy import transport
from thunderfleet_lib.kube.server_clock import ServerClock

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_OTHER_MEANING = re.compile(r"[?#%\\\s\x00-\x1f\x7f]")
"""Characters that end a path or that clients of HTTP decode or remove."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

REQUEST_SECONDS = 30.0
WATCH_SECONDS = 300
LINE_BYTES = 1 << 20
BODY_BYTES = 64 << 20
"""Longest response, and longest event of a watch. An object of the usual limit of etcd, 1.5 MiB, can take 9 MiB as JSON."""
PAGE = 100
"""Objects of one page of a list. A NodeProfile with many models takes hundreds of kilobytes while it is read."""
PAGE_BYTES = 8 << 20
"""Longest page of more than one object. While it is read, it takes several times as much memory."""


class ApiError(Exception):
    """A request failed: ``status`` (HTTP), ``reason`` (``NotFound``, ``Conflict``, …), ``message``, ``details`` of the Status.

    Status 0 means that there was no response; ``reason`` is then ``Unreachable`` or ``Timeout``.
    """

    def __init__(self, status: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}

    @property
    def unanswered(self) -> bool:
        """Whether there was no response: the request may or may not have been executed."""
        return self.status == 0

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 429, 500, 502, 503, 504)


class TooLarge(ApiError):
    """The response is longer than this client reads."""

    def __init__(self, what: str, most: int) -> None:
        super().__init__(
            413,
            "ResponseTooLarge",
            f"{what}: the response has more than {most >> 20} MiB; shorten or delete the largest objects",
        )


def _error(status: int, text: str) -> ApiError:
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    message = str(body.get("message") or text.strip()[:500] or f"HTTP {status}")
    return ApiError(status, str(body.get("reason") or f"HTTP{status}"), message, body.get("details"))


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach an API server. ``authorization``: the value of that header. ``ca``, ``certificate``, ``key``: paths."""

    server: str
    ca: str | None
    insecure: bool
    authorization: str | None
    certificate: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. ``version``: the resourceVersion of the whole list."""

    items: list[Json]
    version: str


class Kube:
    """A client of one API server. Tasks may share it; call ``close`` when done, or use ``async with``."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self._rest = transport(configuration)
        self.host: str = str(configuration.host).rstrip("/")
        self._watched: set[aiohttp.StreamReader] = set()
        """Streams that watches are reading now."""
        self.writes = 0
        """Number of requests other than GET, for metrics."""
        self.requests = 0
        """Number of all requests, for metrics."""
        self.clock = ServerClock()
        """The difference between the clock of this machine and the API server's."""

    @classmethod
    def in_pod(cls) -> "Kube":
        """Uses the service account of this pod, mounted in the container's sandbox. Raises ConfigException outside a pod."""
        configuration = Configuration()
        folder = mounted(SERVICE_ACCOUNT_FOLDER)
        InClusterConfigLoader(token_filename=str(folder / "token"), cert_filename=str(folder / "ca.crt")).load_and_set(
            configuration
        )
        return cls(configuration)

    @classmethod
    async def from_kubeconfig(cls, path: Path, context: str | None = None) -> "Kube":
        """Uses the current (or named) context of a kubeconfig file. Raises ConfigException and OSError."""
        # Programs on Macs and in pods read no kubeconfig, and its reader takes 3 MB.
        from kubernetes.aio.config.kube_config import load_kube_config

        from thunderfleet_lib.kube import kubeconfig, plugin

        made, file = Configuration(), str(path)
        plugin.use()
        with kubeconfig.reading():
            await load_kube_config(config_file=file, context=context, client_configuration=made, persist_config=False)
        return cls(made)

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None) -> "Kube":
        """Uses ``kubeconfig`` if given, otherwise the service account of this pod."""
        return await cls.from_kubeconfig(kubeconfig) if kubeconfig else cls.in_pod()

    @classmethod
    def with_files(
        cls,
        server: str,
        ca: Path,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        token: str | None = None,
    ) -> "Kube":
        """Uses credentials in PEM files or a bearer ``token``; ``server`` is the URL ``https://host:port``."""
        configuration = Configuration()
        configuration.host = server
        configuration.ssl_ca_cert = str(ca)
        configuration.cert_file = str(certificate) if certificate else None
        configuration.key_file = str(key) if key else None
        if token:
            configuration.api_key["BearerToken"] = "Bearer " + token
        return cls(configuration)

    async def credentials(self) -> "Credentials":
        """The credentials of this client, for other clients of the same server. They are read again if they have rotated."""
        configuration = self._configuration
        token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return Credentials(
            server=self.host,
            ca=configuration.ssl_ca_cert or None,
            insecure=not configuration.verify_ssl,
            authorization=token or None,
            certificate=configuration.cert_file or None,
            key=configuration.key_file or None,
        )

    async def close(self) -> None:
        await self._rest.close()

    async def reconnect(self) -> None:
        """Closes all connections and uses new ones, because this machine's address has changed.

        Requests in flight fail with ApiError (unanswered). Watches notice the change at once, instead of after minutes of
        silence.
        """
        old, self._rest = self._rest, transport(self._configuration)
        for content in self._watched:
            # Closing the connection does not wake the task that reads from it.
            content.set_exception(aiohttp.ClientConnectionError("the client closed the connection"))
        await old.close()

    async def __aenter__(self) -> "Kube":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: object,
        content: str,
        timeout: object,
        accept: str = JSON,
    ) -> Any:
        url = self.host + _checked(path) + ("?" + urlencode({k: _text(v) for k, v in query.items()}) if query else "")
        headers = {"Accept": accept, "Content-Type": content}
        self.requests += 1
        if method != "GET":
            self.writes += 1
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            if token:
                headers["Authorization"] = token
            sent = Moment.now()
            response = await self._rest.request(method, url, headers=headers, body=body, _request_timeout=timeout)
            self.clock.note(response.getheader("Date"), sent, Moment.now())
            return response
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{method} {path}: no response from {self.host} in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: cannot reach {self.host}: {error}") from error

    @asynccontextmanager
    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket connection, for ``exec``. Raises ApiError. The caller sets a limit on the time."""
        url = f"{self.host}{_checked(path)}?{urlencode(query)}"
        headers = {}
        self.requests += 1
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            if token:
                headers["Authorization"] = token
            if self._rest.pool_manager is None:
                self._rest.pool_manager = self._rest._create_pool_manager()
            socket = await self._rest.pool_manager.ws_connect(
                url, protocols=protocols, headers=headers, max_msg_size=1 << 20, proxy=self._rest.proxy
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(
                error.status, f"HTTP{error.status}", f"{path}: {self.host} refuses the stream: {error.message}"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{path}: cannot reach {self.host}: {error}") from error
        try:
            yield socket
        finally:
            await socket.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        content: str = JSON,
        seconds: float = REQUEST_SECONDS,
        accept: str = JSON,
    ) -> Json:
        """Sends one request; returns the JSON object of the response. Raises ApiError."""
        return (await self._answer(method, path, query, body, content, seconds, accept, BODY_BYTES))[0]

    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: object,
        content: str,
        seconds: float,
        accept: str,
        most: int,
    ) -> tuple[Json, int]:
        """The JSON object of the response to one request, and its size in bytes. ``most``: the size that is accepted."""
        response = await self._send(method, path, query, body, content, aiohttp.ClientTimeout(total=seconds), accept)
        try:
            data = await _read(response.response, most)
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{method} {path}: {self.host} stopped in the middle of the response") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {self.host} closed the connection: {error}") from error
        if data is None:
            raise TooLarge(f"{method} {path}", most)
        if response.status >= 400:
            raise _error(response.status, data.decode("utf-8", "replace"))
        return _object(data), len(data)

    async def get(self, path: str, **query: object) -> Json:
        return await self.request("GET", path, query=query)

    async def get_or_none(self, path: str) -> Json | None:
        """The object, or None if it does not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def pages(self, path: str, query: Mapping[str, object], accept: str = JSON) -> AsyncIterator[Page]:
        """All items of a collection, page by page; at least one page. Raises ApiError.

        A page that is too large is read again in smaller ones: any user may create hundreds of objects of a megabyte each.
        """
        token, most = "", int(str(query.get("limit", PAGE)))
        limit = most
        while True:
            full = {**query, "limit": limit, **({"continue": token} if token else {})}
            size = PAGE_BYTES if limit > 1 else BODY_BYTES
            try:
                page, read = await self._answer("GET", path, full, None, JSON, REQUEST_SECONDS, accept, size)
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2
                continue
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            yield Page(page.get("items") or [], str(metadata.get("resourceVersion") or ""))
            if not token:
                return
            if read < PAGE_BYTES // 4:
                limit = min(2 * limit, most)

    async def list(self, path: str, **query: object) -> tuple[list[Json], str]:
        """All items of a collection, read page by page, and the resourceVersion of the list."""
        items: list[Json] = []
        version = ""
        async for page in self.pages(path, query):
            items.extend(page.items)
            version = page.version
        return items, version

    async def list_keys(self, path: str, **query: object) -> tuple[set[str], str]:
        """The keys of all items of a collection and the list's resourceVersion. The server sends only metadata."""
        keys: set[str] = set()
        version = ""
        async for page in self.pages(path, query, METADATA_LIST):
            keys.update(map(key_of, page.items))
            version = page.version
        return keys, version

    async def create(self, path: str, body: Json) -> Json:
        return await self.request("POST", path, body=body)

    async def apply(self, path: str, body: Json, manager: str, *, force: bool = True) -> Json:
        """Applies ``body`` server-side to the object or subresource at ``path``, as the field manager ``manager``."""
        query = {"fieldManager": manager, "force": force}
        return await self.request("PATCH", path, query=query, body=body, content=APPLY)

    async def patch(self, path: str, body: object, content: str = MERGE_PATCH, manager: str | None = None) -> Json:
        query = {"fieldManager": manager} if manager else None
        return await self.request("PATCH", path, query=query, body=body, content=content)

    async def delete(
        self, path: str, *, grace_seconds: int | None = None, uid: str | None = None, propagation: str | None = None
    ) -> Json | None:
        """Deletes the object. None if it does not exist, or, with ``uid``, if another object has the name now."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        try:
            return await self.request("DELETE", path, body=options)
        except ApiError as error:
            if error.status == 404 or (uid and error.status == 409):
                return None
            raise

    async def lines(self, path: str, query: Mapping[str, object]) -> AsyncIterator[str]:
        """The lines of a text that grows, such as a log that is followed, until the server ends it. Raises ApiError.

        A part of LINE_BYTES without a line break counts as a line. Nothing limits the time between two lines.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        response = await self._send("GET", path, query, None, JSON, timeout)
        try:
            if response.status >= 400:
                raise _error(response.status, (await response.read()).decode("utf-8", "replace"))
            rest = b""
            async for part in response.response.content.iter_any():
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace")
                if len(rest) > LINE_BYTES:
                    yield rest.decode("utf-8", "replace")
                    rest = b""
            if rest:
                yield rest.decode("utf-8", "replace")
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"GET {path}: {self.host} closed the connection: {error}") from error
        finally:
            response.response.close()

    async def watch(
        self, path: str, resource_version: str, *, opened: Callable[[], None] | None = None, **query: object
    ) -> AsyncIterator[tuple[str, Json]]:
        """One watch connection: (type, object) pairs until the server closes it. Raises ApiError (410: list again).

        ``opened`` is called when the server has accepted it; the first object may take long.
        """
        full = {
            **query,
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        # The server sends a bookmark every minute; a connection that is silent for much longer is dead.
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_connect=10, sock_read=150)
        response = await self._send("GET", path, full, None, JSON, timeout)
        content: aiohttp.StreamReader = response.response.content
        self._watched.add(content)
        try:
            if response.status >= 400:
                raise _error(response.status, (await response.read()).decode("utf-8", "replace"))
            if opened is not None:
                opened()
            while line := await content.readline(max_line_length=BODY_BYTES):
                if not line.strip():
                    continue
                event = json.loads(line)
                kind, item = str(event.get("type")), event.get("object") or {}
                if kind == "ERROR":
                    raise ApiError(int(item.get("code") or 500), str(item.get("reason")), str(item.get("message")), item)
                yield kind, item
        except LineTooLong as error:
            raise TooLarge(f"watch of {path}", BODY_BYTES) from error
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"watch of {path}: {self.host} stopped responding") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"watch of {path}: {self.host} closed the connection: {error}") from error
        finally:
            self._watched.discard(content)
            response.response.close()


def _checked(path: str) -> str:
    """The path, if it leads where it seems to. Raises ApiError.

    Users choose many names in paths. The API server does not check those that a pod gives to its Secrets, and the HTTP client
    resolves ``..``.
    """
    if _OTHER_MEANING.search(path) or any(name in ("", ".", "..") for name in path.split("/")[1:]):
        text = "a name in it is empty, '.' or '..', or contains a character that names of objects cannot have"
        raise ApiError(400, "BadRequest", f"{path!r} is not a path of the API: {text}")
    return path


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body of a response; None if it has more than ``most`` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            response.close()
            return None
        parts.append(part)
    return b"".join(parts)


def _object(data: bytes) -> Json:
    """The JSON object of a body; another value as ``value``, and a body that is no JSON as ``text``."""
    if not data:
        return {}
    try:
        answer = json.loads(data)
    except ValueError:
        return {"text": data.decode("utf-8", "replace")}
    return answer if isinstance(answer, dict) else {"value": answer}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
