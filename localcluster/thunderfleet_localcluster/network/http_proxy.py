"""HTTP proxy from the user's shell to addresses of the cluster: CONNECT and absolute http:// URLs.

It listens on 127.0.0.1, which every user of the machine can reach, so each request must carry the cluster's token as the
password in ``Proxy-Authorization: Basic``. Clients send it when the token is in the proxy URL:
``http://thunderfleet:TOKEN@127.0.0.1:PORT``.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from thunderfleet_localcluster.network.forward import connect, relay

log = logging.getLogger(__name__)

USER = "thunderfleet"
"""User name in the proxy URL. The proxy ignores it; some clients send no credentials without one."""
HEAD_LIMIT = 65536
HEAD_SECONDS = 30
_HOP_BY_HOP = (b"proxy-connection", b"connection", b"proxy-authorization")


class RefusedError(Exception):
    """The proxy refuses a request: an HTTP status line and a message."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Target:
    """The destination of a request. ``head`` is the request head to send there; None for CONNECT."""

    host: str
    port: int
    head: bytes | None


def proxy_url(port: int, token: str) -> str:
    """The URL for ``http_proxy``."""
    return f"http://{USER}:{token}@127.0.0.1:{port}"


def check_token(head: bytes, token: str) -> None:
    """Check the credentials in a request head. Raises RefusedError unless their password is ``token``."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"proxy-authorization":
            scheme, _, encoded = value.strip().partition(b" ")
            if scheme.lower() == b"basic" and hmac.compare_digest(_password(encoded), token.encode()):
                return
    raise RefusedError(
        "407 Proxy Authentication Required",
        "this proxy needs a token; use the proxy URL that `thunderfleet local status` prints",
    )


def _password(encoded: bytes) -> bytes:
    """The password in Basic credentials, or the user name if there is no password (``http://TOKEN@…``)."""
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return b""
    return password or user


def read_request(head: bytes, allowed: Sequence[ipaddress.IPv4Network]) -> Target:
    """Parse a request head (with its empty line). Raises RefusedError if the target is not in the ``allowed`` networks."""
    lines = head.split(b"\r\n")
    parts = lines[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1"):
        raise RefusedError("400 Bad Request", "this proxy supports HTTP/1 only")
    method, target, version = parts
    try:
        url = urlsplit("//" + target if method == "CONNECT" else target)
        host, port = url.hostname or "", url.port or 80
    except ValueError as error:
        raise RefusedError("400 Bad Request", f"invalid URL {target}") from error
    if method != "CONNECT" and url.scheme != "http":
        raise RefusedError("400 Bad Request", f"this is a proxy: it needs an absolute http:// URL, not {target}")
    _check_address(host or target, allowed)
    if method == "CONNECT":
        return Target(host, port, None)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    kept = [line for line in lines[1:] if line and line.split(b":", 1)[0].strip().lower() not in _HOP_BY_HOP]
    # One request per connection: the next request may have another target.
    rewritten = [f"{method} {path} {version}".encode("latin-1"), *kept, b"Connection: close", b"", b""]
    return Target(host, port, b"\r\n".join(rewritten))


def _check_address(host: str, allowed: Sequence[ipaddress.IPv4Network]) -> None:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError as error:
        raise RefusedError("403 Forbidden", f"{host}: use an IPv4 address of the cluster; names are not resolved") from error
    if not any(address in network for network in allowed):
        networks = ", ".join(map(str, allowed))
        raise RefusedError("403 Forbidden", f"{host} is not an address of this cluster ({networks})")


async def serve_proxy(listener: socket.socket, allowed: Sequence[ipaddress.IPv4Network], token: str) -> asyncio.Server:
    """Serve the proxy on ``listener`` for addresses in the ``allowed`` networks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            check_token(head, token)
            target = read_request(head, allowed)
            try:
                peer = await connect(target.host, target.port)
            except (OSError, TimeoutError) as error:
                reason = f"cannot connect to {target.host}:{target.port}: {error or 'timeout'}"
                raise RefusedError("502 Bad Gateway", reason) from error
        except RefusedError as refused:
            writer.write(_response(refused))
            await writer.drain()
            return
        if target.head is None:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            peer[1].write(target.head)
        await relay(reader, writer, *peer)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("proxy: %s", error)
        finally:
            writer.close()

    return await asyncio.start_server(handle, sock=listener, limit=HEAD_LIMIT)


def _response(refused: RefusedError) -> bytes:
    body = f"{refused}\n".encode()
    challenge = f'Proxy-Authenticate: Basic realm="{USER}"\r\n' if refused.status.startswith("407") else ""
    head = (
        f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\n{challenge}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
