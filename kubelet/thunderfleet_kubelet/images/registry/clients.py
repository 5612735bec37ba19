"""The HTTP clients of all registries: one for hosts whose addresses may be private, and one that connects to public ones only.

The author of a pod names a registry, and the registry names other hosts: in redirects, and as the place where tokens are. The
kubelet reaches servers that neither of them may reach, on this Mac and in its networks.
"""

import socket
import ssl
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from thunderfleet_lib.net.scopes import Scope, scope
from yarl import URL

from thunderfleet_kubelet.images.errors import PullError

CONNECT_SECONDS = 15.0
SILENCE_SECONDS = 30.0
"""How long a registry may send nothing."""
CHUNK = 256 * 1024


class Clients:
    """``trusted``: connects to any address. ``other``: connects to public addresses only, whatever a name resolves to.

    They share no connections: one that was made for a trusted host is not used for another one's redirect.
    """

    def __init__(self, ca_file: Path | None, agent: str) -> None:
        """``ca_file``: trusted beside the system's authorities. Raises OSError and ssl.SSLError."""
        context = ssl.create_default_context()
        if ca_file is not None:
            context.load_verify_locations(ca_file)
        self._trusted = _session(context, agent, aiohttp.ThreadedResolver())
        self._other = _session(context, agent, _PublicOnly())

    async def get(self, url: URL, headers: dict[str, str], *, trusted: bool) -> aiohttp.ClientResponse:
        """The answer to a request. Raises PullError for an address that is not allowed, and what aiohttp raises."""
        if not trusted:
            # The resolver is not asked about addresses.
            _check(url.host or "", url.host or "")
        return await (self._trusted if trusted else self._other).get(url, headers=headers, allow_redirects=False)

    async def close(self) -> None:
        """Closes all connections."""
        await self._trusted.close()
        await self._other.close()


def _session(context: ssl.SSLContext, agent: str, resolver: AbstractResolver) -> aiohttp.ClientSession:
    """A client that keeps no cookies, and reads neither the environment nor .netrc, which has credentials."""
    timeout = aiohttp.ClientTimeout(
        total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
    )
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=16, limit_per_host=8, resolver=resolver),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": agent, "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
        read_bufsize=CHUNK,
    )


class _PublicOnly(aiohttp.ThreadedResolver):
    """The connection goes to one of the addresses that were checked, even if the name resolves differently a moment later."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """The addresses of a host. Raises OSError, and PullError if one of them is not public."""
        found = await super().resolve(host, port, family)
        for one in found:
            _check(host, one["host"])
        return found


def _check(host: str, address: str) -> None:
    """Raises PullError for an address that is not public; names pass."""
    where = {Scope.PRIVATE: "a private address", Scope.NO_MACHINE: "an address of this Mac or of its links"}.get(
        scope(address) or Scope.PUBLIC
    )
    if where is not None:
        # Without the address, which the author of the pod may not be allowed to know.
        raise PullError(
            f"the registry leads to {host}, which has {where}: if that is intended, add the host (with its port unless that is "
            "443) to imagePulls.registries in the kubelet's configuration"
        )
