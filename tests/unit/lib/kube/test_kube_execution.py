"""Commands in containers, over a real WebSocket."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration
from thunderfleet_lib.kube import ApiError, Kube, execution
from thunderfleet_lib.kube.execution import Ran, run_in_pod

Serve = Callable[[web.WebSocketResponse], Coroutine[Any, Any, None]]
DONE = json.dumps({"status": "Success"}).encode()


class Api:
    """An API server whose containers do what the test says."""

    def __init__(self) -> None:
        self.serve: Serve | None = None
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        if self.serve is None:
            return web.Response(status=403, text="forbidden")
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await self.serve(socket)
        await socket.close()
        return socket


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, Kube]]:
    made, application = Api(), web.Application()
    application.router.add_get("/{path:.*}", made.handle)
    server = TestServer(application)
    await server.start_server()
    configuration = Configuration()
    configuration.host = str(server.make_url("")).rstrip("/")
    async with Kube(configuration) as kube:
        yield made, kube
    await server.close()


async def run(kube: Kube, seconds: float = 10) -> Ran:
    return await run_in_pod(kube, "system", "agent-a", "agent", ("echo", "a b"), seconds=seconds)


async def test_output_and_exit_code(api: tuple[Api, Kube]) -> None:
    made, kube = api

    async def serve(socket: web.WebSocketResponse) -> None:
        for channel, data in ((1, b"one "), (2, b"wrong"), (1, b"two"), (9, b"?")):
            await socket.send_bytes(bytes([channel]) + data)
        causes = {"causes": [{"reason": "ExitCode", "message": "3"}]}
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Failure", "details": causes}).encode())

    made.serve = serve
    assert await run(kube) == Ran(3, "one two", "wrong")
    assert made.asked == [
        "/api/v1/namespaces/system/pods/agent-a/exec?container=agent&stdout=true&stderr=true&command=echo&command=a+b"
    ]


async def test_a_command_that_does_not_end_or_run(api: tuple[Api, Kube], monkeypatch: pytest.MonkeyPatch) -> None:
    made, kube = api
    with pytest.raises(ApiError, match="refuses the stream") as refused:
        await run(kube)
    assert refused.value.status == 403

    async def cut(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01half")

    async def failed(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x03" + json.dumps({"status": "Failure", "message": "no such container"}).encode())

    async def endless(socket: web.WebSocketResponse) -> None:
        await socket.receive()

    async def flood(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01" + b"x" * 100)

    for serve, said in (
        (cut, "ended before the command did"),
        (failed, "no such container"),
        (endless, "did not end within"),
        (flood, "printed more than"),
    ):
        made.serve = serve
        if serve is flood:
            monkeypatch.setattr(execution, "LIMIT_BYTES", 50)
        with pytest.raises(ApiError, match=said):
            await run(kube, 0.2 if serve is endless else 10)
