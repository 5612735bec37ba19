"""Connections to servers that tenants name in URIs.

A URI in a spec causes a request from a Mac, which can reach servers that the author of the spec cannot. So the host must be in
a list of the chart's values. Its name is resolved once for each connection: every address is checked, and the connection goes
to one of the checked addresses, even if the name resolves differently a moment later. Redirects are followed to such hosts
only. Proxies are not used.
"""

import contextlib
import http.client
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import truststore
from thunderfleet_crds.fetching import URI_AUTHORITIES, URI_HOSTS, URI_PRIVATE_HOSTS
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.uris import HTTPS_PORT, host_of, is_listed, not_allowed
from thunderfleet_lib.net.scopes import Scope, scope

from thunderfleet_runner.hub.errors import HubFault

DNS_SECONDS = 10.0
TIMEOUT_SECONDS = 20.0
"""For a connection, and between two packets of an answer."""
MAX_REDIRECTS = 3
MAX_LOCATION = 4096
REDIRECTS = (301, 302, 303, 307, 308)
BLOCK = 1024 * 1024


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises OSError."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def dial(address: str, port: int) -> socket.socket:
    """A connection to an address. Raises OSError."""
    return socket.create_connection((address, port), TIMEOUT_SECONDS)


@dataclass(frozen=True)
class Network:
    """The hosts that may be contacted, from the chart's values. ``resolve`` and ``dial`` are the calls to the system."""

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    authorities: str = field(default="", repr=False)
    """Certificates in PEM, accepted beside those of the system."""
    resolve: Callable[[str, int], list[str]] = resolve
    dial: Callable[[str, int], socket.socket] = dial
    dns_seconds: float = DNS_SECONDS

    @classmethod
    def from_environment(cls) -> "Network":
        """The settings that the operator has given this pod in its environment."""
        hosts, private = (tuple(os.environ.get(name, "").split()) for name in (URI_HOSTS, URI_PRIVATE_HOSTS))
        return cls(hosts, private, os.environ.get(URI_AUTHORITIES, ""))

    # --- which addresses -------------------------------------------------------------------------------------------------

    def check(self, url: str) -> str:
        """The host of a URL to which requests are allowed, as ``host_of`` gives it. Raises HubFault."""
        try:
            parts, host = urlsplit(url), host_of(url)
        except ValueError:
            raise HubFault(Reason.HUB_FAILED, f"a redirect leads to {url[:200]!r}, which is not a URL") from None
        if parts.scheme != "https" or parts.username is not None or parts.password is not None:
            raise HubFault(
                Reason.HOST_NOT_ALLOWED, f"a redirect leads to {_plain(url)}: only https URLs without a user are followed"
            )
        why = not_allowed(host, self.hosts)
        if why is not None:
            raise HubFault(Reason.HOST_NOT_ALLOWED, why)
        return host

    def addresses(self, url: str) -> list[str]:
        """The checked addresses of a URL's host. Raises HubFault."""
        host, parts = self.check(url), urlsplit(url)
        found = self._resolved(parts.hostname or "", parts.port or HTTPS_PORT)
        for text in found:
            why = refusal(text, private=is_listed(host, self.private_hosts))
            if why is not None:
                raise HubFault(Reason.HOST_NOT_ALLOWED, f"{host} has the address {text}, {why}")
        return found

    def _resolved(self, host: str, port: int) -> list[str]:
        # The system has no time limit for this, and a thread cannot be stopped: it ends with the process.
        answer: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answer.put(self.resolve(host, port))
            except (OSError, UnicodeError) as error:
                answer.put(OSError(str(error)))

        threading.Thread(target=ask, name="resolve", daemon=True).start()
        try:
            found = answer.get(timeout=self.dns_seconds)
        except queue.Empty:
            found = OSError(f"no answer in {self.dns_seconds:g} s")
        if isinstance(found, OSError) or not found:
            raise HubFault(Reason.HUB_UNREACHABLE, f"the name {host} cannot be resolved: {found or 'it has no address'}")
        return list(dict.fromkeys(found))

    # --- requests ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self, url: str, method: str = "GET", first: int = 0, last: int | None = None) -> Iterator["Reply"]:
        """The answer to a request for bytes ``first`` to ``last`` of a file, after redirects. Raises HubFault."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "thunderfleet"}
        if first or last is not None:
            headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        for _ in range(MAX_REDIRECTS + 1):
            connection = self._connection(url)
            try:
                with faults(url):
                    connection.request(method, _target(url), headers=headers)
                    response = connection.getresponse()
                if response.status not in REDIRECTS:
                    yield Reply(url, response)
                    return
                location = response.headers.get("Location") or ""
                if not location or len(location) > MAX_LOCATION or not location.isprintable():
                    raise HubFault(Reason.HUB_FAILED, f"{_plain(url)} redirects without a target")
                url = urljoin(url, location)
            finally:
                connection.close()
        raise HubFault(Reason.HUB_FAILED, f"{_plain(url)}: more than {MAX_REDIRECTS} redirects")

    def _connection(self, url: str) -> "_Checked":
        parts = urlsplit(url)
        addresses = self.addresses(url)
        return _Checked(parts.hostname or "", parts.port or HTTPS_PORT, addresses, self.dial, self._context())

    def _context(self) -> ssl.SSLContext:
        # Like the client of the hub, because Python itself does not use the keychain of macOS.
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.authorities:
            try:
                context.load_verify_locations(cadata=self.authorities)
            except (ssl.SSLError, ValueError) as error:
                raise HubFault(
                    Reason.HUB_UNREACHABLE, f"the chart's value uris.certificateAuthorities is not valid PEM: {error}"
                ) from None
        return context


class _Checked(http.client.HTTPSConnection):
    """A connection to one of the addresses; certificate and Host are of the name."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[str],
        dial: Callable[[str, int], socket.socket],
        context: ssl.SSLContext,
    ) -> None:
        super().__init__(host, port, timeout=TIMEOUT_SECONDS, context=context)
        self._addresses = addresses
        self._dial = dial
        self._tls = context

    def connect(self) -> None:
        """Connects to the first address that answers."""
        failed: OSError | None = None
        for address in self._addresses:
            try:
                plain = self._dial(address, self.port)
            except OSError as error:
                failed = error
                continue
            try:
                self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
            except BaseException:
                plain.close()
                raise
            return
        raise failed or OSError("no address")


@dataclass(frozen=True)
class Reply:
    """The answer of a server, which is not a redirect."""

    url: str
    response: http.client.HTTPResponse

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return self.response.status

    @property
    def size(self) -> int | None:
        """Its Content-Length; None without a valid one."""
        text = self.response.headers.get("Content-Length") or ""
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None

    def starts_at(self, first: int) -> bool:
        """Whether it is the part of a file from byte ``first`` on."""
        return self.status == 206 and (self.response.headers.get("Content-Range") or "").startswith(f"bytes {first}-")

    def blocks(self, limit: int, seconds: float | None = None) -> Iterator[bytes]:
        """Its body, at most ``limit`` bytes. Raises HubFault, also after ``seconds``."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while limit > 0:
            with faults(self.url):
                block = self.response.read1(min(BLOCK, limit))
            if not block:
                if self.response.length:
                    raise HubFault(
                        Reason.HUB_UNREACHABLE,
                        f"{host_of(self.url)} ended the connection {self.response.length} bytes before the end of a file",
                    )
                return
            limit -= len(block)
            if deadline is not None and time.monotonic() > deadline:
                raise HubFault(Reason.HUB_UNREACHABLE, f"{_plain(self.url)}: the answer takes more than {seconds:g} s")
            yield block


@contextlib.contextmanager
def faults(url: str) -> Iterator[None]:
    """Converts errors of the network to HubFault."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        text = f"the certificate of {host_of(url)} is not trusted: {error.verify_message}"
        advice = "if a private authority signed it, add that to the chart's value uris.certificateAuthorities"
        raise HubFault(Reason.HUB_UNREACHABLE, f"{text}; {advice}") from error
    except (OSError, http.client.HTTPException) as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise HubFault(Reason.HUB_UNREACHABLE, f"cannot connect to {host_of(url)}: {said}") from error


def refusal(text: str, *, private: bool) -> str | None:
    """Why no request may go to an address, as the end of a sentence; None if it may. ``private``: whether private ones may."""
    match scope(text):
        case None:
            return "which is not an IP address"
        case Scope.NO_MACHINE:
            return "which is not an address of another machine, so it is never allowed"
        case Scope.PRIVATE if not private:
            return "which is private: if that is intended, add the host to the chart's value uris.privateHosts"
    return None


def _target(url: str) -> str:
    """The path and query of a request. Other characters in a redirect are percent-encoded."""
    parts = urlsplit(url)
    text = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return "".join(sign if "!" <= sign <= "~" else "".join(f"%{byte:02X}" for byte in sign.encode()) for sign in text)


def _plain(url: str) -> str:
    """A URL for messages: without user and query, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:300]
