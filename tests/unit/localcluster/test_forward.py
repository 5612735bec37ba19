"""The way into the cluster's network: requests are rewritten, strangers' addresses are refused."""

import asyncio
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_localcluster.network.forward import Refused, read_request, serve_forward, serve_proxy

ALLOWED = [IPv4Network("127.0.0.0/8")]


def test_an_absolute_address_becomes_a_path() -> None:
    head = b"GET http://127.0.0.5:8080/v1/models?a=b HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\nA: b\r\n\r\n"
    host, port, rewritten = read_request(head, ALLOWED)
    assert (host, port) == ("127.0.0.5", 8080)
    assert rewritten == b"GET /v1/models?a=b HTTP/1.1\r\nHost: x\r\nA: b\r\nConnection: close\r\n\r\n"


def test_connect() -> None:
    assert read_request(b"CONNECT 127.0.0.5:6443 HTTP/1.1\r\nHost: x\r\n\r\n", ALLOWED) == ("127.0.0.5", 6443, None)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/1.1", "400"),
        (b"GET https://127.0.0.1/ HTTP/1.1", "400"),
        (b"GET http://10.0.0.1/ HTTP/1.1", "403"),
        (b"GET http://example.com/ HTTP/1.1", "403"),
        (b"CONNECT 10.0.0.1:22 HTTP/1.1", "403"),
        (b"GET http://127.0.0.1:99999/ HTTP/1.1", "400"),
        (b"nonsense", "400"),
    ],
)
def test_what_the_proxy_refuses(line: bytes, status: str) -> None:
    with pytest.raises(Refused) as caught:
        read_request(line + b"\r\n\r\n", ALLOWED)
    assert caught.value.status.startswith(status)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(data: bytes) -> None:
    try:
        host, port, _ = read_request(data + b"\r\n\r\n", ALLOWED)
    except Refused:
        return
    assert host.startswith("127.") and 0 <= port <= 65535


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """A server that answers with what it got once the other side has ended."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got:" + await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def _say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_forward_and_proxy_carry_both_directions(echo: int) -> None:
    forward = await serve_forward(socket.create_server(("127.0.0.1", 0)), "127.0.0.1", echo)
    proxy = await serve_proxy(socket.create_server(("127.0.0.1", 0)), ALLOWED)
    ports = [server.sockets[0].getsockname()[1] for server in (forward, proxy)]
    assert await _say(ports[0], b"x" * 200_000) == b"got:" + b"x" * 200_000
    answer = await _say(ports[1], f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\n\r\nhello".encode())
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\ngot:hello"
    answer = await _say(ports[1], f"POST http://127.0.0.1:{echo}/a HTTP/1.1\r\nA: b\r\n\r\nbody".encode())
    assert answer == b"got:POST /a HTTP/1.1\r\nA: b\r\nConnection: close\r\n\r\nbody"
    for server in (forward, proxy):
        server.close()
        await server.wait_closed()


async def test_the_proxy_says_what_it_cannot_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    proxy = await serve_proxy(socket.create_server(("127.0.0.1", 0)), ALLOWED)
    answer = await _say(proxy.sockets[0].getsockname()[1], f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ") and f"cannot connect to 127.0.0.1:{port}".encode() in answer
    proxy.close()
    await proxy.wait_closed()
