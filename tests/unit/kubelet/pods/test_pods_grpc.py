"""gRPC probes: against gRPC's own server, and against servers that answer something else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from h2.exceptions import H2Error
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_kubelet.pods.act import grpc_health, probes

from tests.support.network.grpchealth import Server, serving
from tests.support.pods import World, sh

Json = dict[str, Any]
SERVING = b"\0\0\0\0\2\x08\1"
"""HealthCheckResponse with the status SERVING, as a message of gRPC."""
BEGIN = [(":status", "200"), ("content-type", "application/grpc")]
RUNS = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


async def ask(port: int, service: str | None = None, seconds: float = 60) -> tuple[bool, str]:
    async def no_exec(command: list[str], seconds: float) -> tuple[int, str]:
        raise AssertionError

    action = {"grpc": {"port": port} | ({} if service is None else {"service": service})}
    return await probes.run(action, {"name": "c"}, "127.0.0.1", no_exec, seconds)


async def test_a_server_of_grpc_is_asked_for_the_service(server: Server) -> None:
    assert await ask(server.port) == (True, "")
    assert await ask(server.port, "") == (True, "")
    where = f"gRPC 127.0.0.1:{server.port}"
    assert await ask(server.port, "sick") == (False, f'{where}: service unhealthy (responded with "NOT_SERVING")')
    good, said = await ask(server.port, "none")
    assert not good and said.startswith(f"{where}: health rpc failed: NOT_FOUND")
    name = "a.name/that takes two bytes for its length" * 4
    server.set(name, "SERVING")
    assert await ask(server.port, name) == (True, "")
    server.set(name, "UNKNOWN")
    assert (await ask(server.port, name))[1].endswith('(responded with "UNKNOWN")')


async def test_a_server_that_does_not_answer_or_has_no_health_service(server: Server) -> None:
    with serving("slow") as slow:
        assert await ask(slow.port, seconds=1) == (False, f"gRPC 127.0.0.1:{slow.port}: timed out after 1 s")
    with serving("other") as other:
        good, said = await ask(other.port)
        assert not good and "does not implement the grpc health protocol" in said
    good, said = await ask(1)
    assert not good and said.startswith("gRPC 127.0.0.1:1: ")


async def test_probes_of_a_pod_follow_the_server(world: World, server: Server) -> None:
    await world.boot()
    for service in ("begun", "ready", "alive"):
        server.set(service, "SERVING" if service == "alive" else "NOT_SERVING")

    def probe(service: str, **more: int) -> Json:
        return {"grpc": {"port": server.port, "service": service}, "periodSeconds": 1, "timeoutSeconds": 60, **more}

    kinds = {
        "startupProbe": probe("begun", failureThreshold=1000),
        "readinessProbe": probe("ready", failureThreshold=1),
        "livenessProbe": probe("alive", failureThreshold=1),
    }
    world.api.add_pod("asked", {"containers": [sh(RUNS, **kinds)], "restartPolicy": "Always"})

    def status() -> Json:
        return dict(world.api.pod("asked")["status"]["containerStatuses"][0])

    await world.phase("asked", "Running")
    assert not status()["started"]
    server.set("begun", "SERVING")
    await world.until(lambda: status()["started"] and not status()["ready"], 60)
    server.set("ready", "SERVING")
    await world.until(lambda: status()["ready"], 60)
    server.set("ready", "NOT_SERVING")
    await world.until(lambda: not status()["ready"], 60)
    assert status()["restartCount"] == 0
    server.set("alive", "NOT_SERVING")
    await world.until(lambda: status()["restartCount"] >= 1, 60)
    messages = [event["message"] for event in world.api.events if event["reason"] == "Unhealthy"]
    assert f'Liveness probe failed: gRPC 127.0.0.1:{server.port}: service unhealthy (responded with "NOT_SERVING")' in messages


# Servers that answer something else

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass  # The kubelet has enough.
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


Answer = Callable[[H2Connection], None]


def http2(answer: Answer) -> Serve:
    """A server that sends what ``answer`` does to a connection, once there is a request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        connection.initiate_connection()
        while data := await reader.read(65536):
            try:
                events = connection.receive_data(data)
            except H2Error:
                return
            for event in events:
                if isinstance(event, RequestReceived):
                    headers = {bytes(name): bytes(value) for name, value in event.headers}
                    assert headers[b":path"] == b"/grpc.health.v1.Health/Check" and headers[b"te"] == b"trailers"
                if isinstance(event, StreamEnded):
                    answer(connection)
            writer.write(connection.data_to_send())
            await writer.drain()

    return serve


def answers(
    *data: bytes, begin: list[tuple[str, str]] = BEGIN, end: list[tuple[str, str]] | None = None, padding: int | None = None
) -> Answer:
    def answer(connection: H2Connection) -> None:
        connection.send_headers(1, begin)
        for piece in data:
            connection.send_data(1, piece, pad_length=padding)
        connection.send_headers(1, [("grpc-status", "0")] if end is None else end, end_stream=True)

    return answer


def error(code: str, message: str) -> Answer:
    """An error without a message has its trailers as headers."""
    headers = [*BEGIN, ("grpc-status", code), ("grpc-message", message)]
    return lambda connection: connection.send_headers(1, headers, end_stream=True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (answers(SERVING), ""),
        (answers(*(bytes([one]) for one in SERVING), padding=7), ""),
        (answers(b"\0\0\0\0\6" + b"\x12\2ab\x08\1"), ""),
        (answers(b"\0\0\0\0\0"), 'service unhealthy (responded with "UNKNOWN")'),
        (answers(b"\0\0\0\0\2\x08\3"), 'service unhealthy (responded with "SERVICE_UNKNOWN")'),
        (answers(b"\0\0\0\0\2\x08\7"), 'service unhealthy (responded with "7")'),
        (answers(b"\0\0\0\0\3\x08\1\x08"), "the server answered with a message that is not a HealthCheckResponse"),
        (answers(b"\0\0\0\0\3\x12\x7fa"), "the server answered with a message that is not a HealthCheckResponse"),
        (answers(b"\1\0\0\0\2\x08\1"), "the server answered with a compressed message, which was not requested"),
        (answers(SERVING, SERVING), "the server answered with 14 bytes, which are not one message"),
        (answers(), "the server answered with 0 bytes, which are not one message"),
        (answers(SERVING, end=[("x-other", "0")]), "the server does not speak gRPC: its answer has no grpc-status"),
        (answers(b"not found", begin=[(":status", "404")]), "the server answered with HTTP status 404"),
        (error("5", "no%20such%20service"), "health rpc failed: NOT_FOUND: no such service"),
        (error("14", "%zz%C3"), "health rpc failed: UNAVAILABLE: %zz�"),
        (error("99", ""), "health rpc failed: 99: "),
        (error("-1", ""), "the server does not speak gRPC: its answer has no grpc-status"),
        (lambda connection: connection.reset_stream(1, 7), "the server reset the stream: REFUSED_STREAM"),
        (lambda connection: connection.reset_stream(1, 99), "the server reset the stream: 99"),
        (lambda connection: connection.close_connection(), "the server ends the connection: NO_ERROR"),
    ],
)  # fmt: skip
async def test_answers_over_http2(answer: Answer, expected: str) -> None:
    async with listening(http2(answer)) as port:
        good, said = await ask(port)
        assert (good, said) == (not expected, expected and f"gRPC 127.0.0.1:{port}: {expected}")


async def test_what_a_server_sends_is_bounded() -> None:
    def headers(connection: H2Connection) -> None:
        connection.send_headers(1, [*BEGIN, *((f"x-{number}", "x" * 4000) for number in range(30))])

    async with listening(http2(headers)) as port:
        good, said = await ask(port)
        assert not good and "the server does not speak gRPC: " in said

    async def pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        while True:
            writer.write(connection.data_to_send())
            connection.ping(b"12345678")
            await writer.drain()

    async with listening(pings) as port:
        good, said = await ask(port)
        assert not good and said.endswith(f"the server sent more than {grpc_health.ANSWER_BYTES} bytes")


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\3\3\0\2\2\x46", b"\0" * 100])
async def test_a_server_of_another_protocol_has_failed(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(said)

    async with listening(serve) as port:
        good, text = await ask(port)
        assert not good and ("the server does not speak gRPC" in text or "the server closed the connection" in text)


@given(st.binary(max_size=300))
def test_no_bytes_of_a_server_are_more_than_a_failure(data: bytes) -> None:
    call = grpc_health._Call("127.0.0.1:1", "")
    with pytest.raises(grpc_health.NoAnswer):
        call.receive(data)
        raise grpc_health.NoAnswer("more is needed")


@given(st.binary(max_size=40))
def test_no_message_is_more_than_a_failure(message: bytes) -> None:
    with suppress(grpc_health.NoAnswer):
        assert grpc_health.status_of(message)
