"""The ways from the user's shell into the cluster's network: the TCP forwarder and the HTTP proxy with its token."""

import asyncio
import base64
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_localcluster.network.forward import serve_forward
from thunderfleet_localcluster.network.http_proxy import (
    RefusedError,
    Target,
    check_token,
    proxy_url,
    read_request,
    serve_proxy,
)

from tests.support.network.ports import claim

ALLOWED = [IPv4Network("127.0.0.0/8")]
TOKEN = "0123456789abcdef"


def credentials(text: str) -> bytes:
    """A header line with Basic credentials."""
    return b"Proxy-Authorization: Basic " + base64.b64encode(text.encode())


def test_an_absolute_url_becomes_a_path() -> None:
    head = (
        b"GET http://127.0.0.5:8080/v1/models?a=b HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\nA: b\r\n"
        + credentials("thunderfleet:secret")
        + b"\r\nConnection: keep-alive\r\n\r\n"
    )
    rewritten = b"GET /v1/models?a=b HTTP/1.1\r\nHost: x\r\nA: b\r\nConnection: close\r\n\r\n"
    assert read_request(head, ALLOWED) == Target("127.0.0.5", 8080, rewritten)


def test_a_url_without_port_and_path() -> None:
    target = read_request(b"GET http://127.0.0.5 HTTP/1.1\r\n\r\n", ALLOWED)
    assert target == Target("127.0.0.5", 80, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")


def test_connect() -> None:
    target = read_request(b"CONNECT 127.0.0.5:6443 HTTP/1.1\r\nHost: x\r\n\r\n", ALLOWED)
    assert target == Target("127.0.0.5", 6443, None)


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        (b"GET / HTTP/1.1", "400", "absolute http:// URL"),
        (b"GET https://127.0.0.1/ HTTP/1.1", "400", "absolute http:// URL"),
        (b"GET http://10.0.0.1/ HTTP/1.1", "403", r"not an address of this cluster \(127.0.0.0/8\)"),
        (b"GET http://example.com/ HTTP/1.1", "403", "use an IPv4 address"),
        (b"CONNECT 10.0.0.1:22 HTTP/1.1", "403", "not an address of this cluster"),
        (b"GET http://127.0.0.1:99999/ HTTP/1.1", "400", "invalid URL"),
        (b"GET http://127.0.0.1/ HTTP/2", "400", "HTTP/1 only"),
        (b"nonsense", "400", "HTTP/1 only"),
    ],
)
def test_refused_requests(line: bytes, status: str, text: str) -> None:
    with pytest.raises(RefusedError, match=text) as caught:
        read_request(line + b"\r\n\r\n", ALLOWED)
    assert caught.value.status.startswith(status)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(data: bytes) -> None:
    for check in (lambda head: check_token(head, TOKEN), lambda head: read_request(head, ALLOWED)):
        with contextlib.suppress(RefusedError):
            target = check(data + b"\r\n\r\n")
            if isinstance(target, Target):
                assert target.host.startswith("127.") and 0 <= target.port <= 65535


@pytest.mark.parametrize("text", [f"thunderfleet:{TOKEN}", f"anybody:{TOKEN}", f"{TOKEN}:", TOKEN])
def test_the_token_is_the_password_or_the_only_word(text: str) -> None:
    check_token(b"GET http://127.0.0.5/ HTTP/1.1\r\nHost: x\r\n" + credentials(text) + b"\r\n\r\n", TOKEN)


@pytest.mark.parametrize(
    "line",
    [
        b"A: b",
        b"Authorization: Basic " + base64.b64encode(f"thunderfleet:{TOKEN}".encode()),
        credentials("thunderfleet:wrong"),
        credentials(f"{TOKEN}:wrong"),
        credentials(":"),
        b"Proxy-Authorization: Bearer " + TOKEN.encode(),
        b"Proxy-Authorization: Bearer " + base64.b64encode(f"thunderfleet:{TOKEN}".encode()),
        b"Proxy-Authorization: Basic %%%",
        b"Proxy-Authorization:",
    ],
)
def test_without_the_token_the_proxy_asks_for_it(line: bytes) -> None:
    with pytest.raises(RefusedError, match="thunderfleet local status") as caught:
        check_token(b"GET http://127.0.0.5/ HTTP/1.1\r\n" + line + b"\r\n\r\n", TOKEN)
    assert caught.value.status == "407 Proxy Authentication Required"


def test_the_request_line_is_no_header() -> None:
    with pytest.raises(RefusedError):
        check_token(credentials(f"thunderfleet:{TOKEN}") + b"\r\n\r\n", TOKEN)


def test_the_proxy_url_holds_the_token_as_password() -> None:
    assert proxy_url(8080, TOKEN) == f"http://thunderfleet:{TOKEN}@127.0.0.1:8080"


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """Port of a server that answers with what it received, once the client has closed its side."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got:" + await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def proxy() -> AsyncIterator[int]:
    """Port of a proxy."""
    server = await serve_proxy(socket.create_server(("127.0.0.1", 0)), ALLOWED, TOKEN)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def _say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_forwarder_carries_both_directions(echo: int) -> None:
    forward = await serve_forward(socket.create_server(("127.0.0.1", 0)), "127.0.0.1", echo)
    assert await _say(forward.sockets[0].getsockname()[1], b"x" * 200_000) == b"got:" + b"x" * 200_000
    forward.close()
    await forward.wait_closed()


async def test_the_forwarder_passes_a_reset_on() -> None:
    """Otherwise a client waits for the answer of a server that has given the connection up."""

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    forward = await serve_forward(socket.create_server(("127.0.0.1", 0)), "127.0.0.1", server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.sockets[0].getsockname()[1])
    writer.write(b"x")
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.transport.abort()
    for one in (forward, server):
        one.close()
        await one.wait_closed()


async def test_the_proxy_carries_both_directions(echo: int) -> None:
    known = credentials(f"thunderfleet:{TOKEN}").decode()
    async with proxy() as port:
        answer = await _say(port, f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\n{known}\r\n\r\nhello".encode())
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\ngot:hello"
        answer = await _say(port, f"POST http://127.0.0.1:{echo}/a HTTP/1.1\r\nA: b\r\n{known}\r\n\r\nbody".encode())
        assert answer == b"got:POST /a HTTP/1.1\r\nA: b\r\nConnection: close\r\n\r\nbody"


@pytest.mark.parametrize("request_line", ["CONNECT 127.0.0.1:{port} HTTP/1.1", "GET http://127.0.0.1:{port}/ HTTP/1.1"])
async def test_the_proxy_is_closed_to_other_users_of_the_machine(echo: int, request_line: str) -> None:
    async with proxy() as port:
        answer = await _say(port, f"{request_line.format(port=echo)}\r\nHost: x\r\n\r\nhello".encode())
    assert answer.startswith(b"HTTP/1.1 407 Proxy Authentication Required\r\n")
    assert b'\r\nProxy-Authenticate: Basic realm="thunderfleet"\r\n' in answer and b"got:" not in answer


async def test_the_proxy_says_what_it_cannot_reach() -> None:
    (port,) = claim(1)
    known = credentials(f"thunderfleet:{TOKEN}").decode()
    async with proxy() as at:
        answer = await _say(at, f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n{known}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ") and f"cannot connect to 127.0.0.1:{port}".encode() in answer
