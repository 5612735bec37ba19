"""Connections to one API server: credentials, TLS and a pool of connections, on aiohttp.

The transport of the official client would do, but importing any module of that package imports all of it, which takes a
third of a second of processor time whenever a program starts.
"""

import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from thunderfleet_lib.sandbox import SERVICE_ACCOUNT_FOLDER, mounted

CONNECTIONS = 100
READ_BYTES = 2 * 1024**2
"""The most that is buffered of one response. A line of a watch is an object, which must fit in twice this."""
TOKEN_SECONDS = 60.0
"""How long a token that was read from a file is used. The kubelet renews it many minutes before it expires."""


class CredentialsError(Exception):
    """There are no credentials for an API server, or they cannot be used."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach an API server. ``authorization``: the value of that header. ``ca``, ``certificate``, ``key``: paths.

    ``tls_name`` is the name in the server's certificate if it is not that in the URL; ``proxy`` the URL of an HTTP proxy.
    """

    server: str
    ca: str | None = None
    insecure: bool = False
    authorization: str | None = None
    certificate: str | None = None
    key: str | None = None
    tls_name: str | None = None
    proxy: str | None = None


def of_pod() -> tuple[Credentials, Path]:
    """The service account of this pod, and the file of its token, which changes. Raises CredentialsError outside a pod."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise CredentialsError("this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    folder = mounted(SERVICE_ACCOUNT_FOLDER)
    for name in ("token", "ca.crt"):
        if not (folder / name).is_file():
            raise CredentialsError(f"{folder / name} does not exist: mount the token of the pod's service account")
    return Credentials(f"https://{f'[{host}]' if ':' in host else host}:{port}", ca=str(folder / "ca.crt")), folder / "token"


class Transport:
    """Sends requests with ``credentials``; with ``token_file``, its content is the bearer token.

    Certificates are read now, and when ``again`` makes another one. Raises OSError if they cannot be.
    """

    def __init__(self, credentials: Credentials, token_file: Path | None = None) -> None:
        self._credentials = credentials
        self._token_file = token_file
        self._read_at = float("-inf")
        self._tls = _tls(credentials)
        self._session: aiohttp.ClientSession | None = None

    def again(self) -> "Transport":
        """The same with new connections."""
        return Transport(self._credentials, self._token_file)

    def current(self) -> Credentials:
        """The credentials with the present token. Raises OSError, CredentialsError."""
        if self._token_file and time.monotonic() - self._read_at >= TOKEN_SECONDS:
            token = self._token_file.read_text(encoding="ascii").strip()
            if not token:
                raise CredentialsError(f"{self._token_file} is empty")
            self._credentials = replace(self._credentials, authorization=f"Bearer {token}")
            self._read_at = time.monotonic()
        return self._credentials

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: object, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Sends ``body``, if any, as JSON; returns when the head of the response has come. Raises as aiohttp, and OSError."""
        now = self.current()
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._tls)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=READ_BYTES)
        authorization = {"Authorization": now.authorization} if now.authorization else {}
        return await self._session.request(
            method,
            url,
            headers={**headers, **authorization},
            data=None if body is None else json.dumps(body),
            timeout=timeout,
            server_hostname=now.tls_name,
            proxy=now.proxy,
        )

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()


def _tls(given: Credentials) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=given.ca)
    if given.certificate:
        context.load_cert_chain(given.certificate, given.key)
    if given.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
