"""The server with real TLS: logs, exec and its channels, metrics, access."""

import asyncio
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import WSMsgType
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client.parser import text_string_to_metric_families
from thunderfleet_kubelet.containers.streams.exec_session import Session
from thunderfleet_kubelet.containers.streams.logs import LogOptions
from thunderfleet_kubelet.pods.decide import eviction
from thunderfleet_kubelet.pods.queries import (
    ContainerNotRunning,
    ContainerUsage,
    NoInput,
    NoSuchPod,
    PodCounts,
    PodQueries,
    ProbeResult,
)
from thunderfleet_kubelet.pressure import FileSystem
from thunderfleet_kubelet.serving import server as serving
from thunderfleet_kubelet.serving.auth import Guard
from thunderfleet_kubelet.serving.channels import exit_status, resize_of
from thunderfleet_kubelet.serving.metrics import Metrics
from thunderfleet_kubelet.serving.parameters import BadRequest, log_options, stream_options
from thunderfleet_kubelet.serving.server import Server, server_context
from thunderfleet_lib.kube import Kube

from tests.support.waiting import until_async

PEM = serialization.Encoding.PEM
NOW = datetime.now(UTC)


def certificate(subject: list[tuple[Any, str]], issuer: Any = None, usage: Any = None) -> tuple[bytes, Any]:
    """(key and certificate PEM, (key, certificate)); self-signed CA without ``issuer``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
    ca_key, ca = issuer or (key, None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(ca.subject if ca else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(minutes=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if usage:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
    signed = builder.sign(ca_key, hashes.SHA256())
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + signed.public_bytes(PEM), (key, signed)


class Reviewer:
    """Accepts the token ``good``; allows ``kubelet-client`` everything and the user of ``good`` to read metrics."""

    async def request(self, method: str, path: str, *, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        spec = body["spec"]
        if "tokenreviews" in path:
            known = spec["token"] == "good"
            return {"status": {"authenticated": known, "user": {"username": "reader", "groups": []}}}
        subresource = spec["resourceAttributes"]["subresource"]
        return {"status": {"allowed": spec["user"] == "kubelet-client" or subresource == "metrics"}}


class Pipe:
    """A stream of bytes that the test fills."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, data: bytes | None) -> None:
        self.queue.put_nowait(data)

    async def read(self) -> AsyncIterator[bytes]:
        while (data := await self.queue.get()) is not None:
            yield data


class Program:
    """A program run by exec: gives back its input in capitals, then ends with ``code``."""

    def __init__(self, code: int, forever: bool = False) -> None:
        self.out, self.err = Pipe(), Pipe()
        self.code = code
        self.forever = forever
        self.tty = False
        self.sizes: list[tuple[int, int]] = []
        self.killed = asyncio.Event()
        self.ended = asyncio.Event()
        self.stdin = self
        if not forever:
            self.err.put(b"a warning\n")

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        return self.out.read()

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        return self.err.read()

    async def write(self, data: bytes) -> None:
        self.out.put(data.upper())

    async def close(self) -> None:
        self.finish()

    def finish(self) -> None:
        self.out.put(None)
        self.err.put(None)
        self.ended.set()

    def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))
        self.finish()

    async def wait(self) -> int:
        await self.ended.wait()
        return self.code

    async def kill(self) -> None:
        self.killed.set()


@dataclass
class Pods:
    """The part of the kubelet's pods that the server uses."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    program: Program | None = None
    log: Pipe = field(default_factory=Pipe)
    log_closed: asyncio.Event = field(default_factory=asyncio.Event)

    def pods(self) -> list[dict[str, Any]]:
        return [{"metadata": {"name": "p"}}]

    def counts(self) -> PodCounts:
        return PodCounts(pods=1, containers=2, restarts=3)

    async def usage(self) -> list[ContainerUsage]:
        return [
            ContainerUsage("default", "p", name, 1.5, 1024, NOW, NOW, "u1", "i:1", f"id-{name}", resident, gpu)
            for name, resident, gpu in (("a", 300, 900), ("b", 1024, None))
        ]

    async def disk_usage(self) -> dict[str, eviction.Usage]:
        return {"u1": eviction.Usage({"scratch": 40}, {"a": 9, "b": 5}, {"a": 2, "b": 5})}

    def probe_results(self) -> list[ProbeResult]:
        return [ProbeResult("default", "p", "u1", "a", "liveness", "failed", 2)]

    def file_system(self) -> FileSystem:
        return FileSystem(available=30, capacity=100, inodes_free=3, inodes=10)

    def require_running(self, namespace: str, pod: str) -> None:
        if pod != "p":
            raise NoSuchPod(f"no pod {namespace}/{pod} runs here")

    def open_log(
        self, namespace: str, pod: str, container: str | None, options: LogOptions, *, previous: bool = False
    ) -> AsyncIterator[bytes]:
        if pod != "p":
            raise NoSuchPod(f"no pod {namespace}/{pod} runs here")
        self.asked.append({**vars(options), "previous": previous})
        return self._log(options.follow)

    async def _log(self, follow: bool) -> AsyncIterator[bytes]:
        try:
            yield b"one\n"
            yield b"two\n"
            if follow:
                async for line in self.log.read():
                    yield line
        finally:
            self.log_closed.set()

    async def attach(self, namespace: str, pod: str, container: str | None, *, stdin: bool) -> Any:
        if stdin and self.program is None:
            raise NoInput("container c has no input; use kubectl exec -i")
        return self.program

    async def exec(self, namespace: str, pod: str, container: str | None, command: list[str], **options: Any) -> Session:
        self.asked.append({"command": command, **options})
        if pod != "p":
            raise ContainerNotRunning(f"container {container} of pod {namespace}/{pod} does not run")
        if command[0] == "nosuch":
            raise FileNotFoundError(2, "No such file or directory")
        assert self.program is not None
        return cast(Session, self.program)


@dataclass
class Served:
    """A listening server, and a client with and without a certificate of the cluster."""

    pods: Pods
    server: Server
    folder: Path
    authority: Any
    session: aiohttp.ClientSession
    trusted: ssl.SSLContext
    stranger: ssl.SSLContext
    other: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"

    async def get(self, path: str, *, known: bool = True, token: str | None = None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = self.trusted if known else self.stranger
        async with self.session.get(self.url + path, ssl=context, headers=headers) as answer:
            return answer.status, await answer.text()

    def socket(self, path: str, protocol: str = "v5.channel.k8s.io") -> Any:
        return self.session.ws_connect(self.url + path, ssl=self.trusted, protocols=[protocol])


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    _, authority = certificate([(NameOID.COMMON_NAME, "kubernetes")])
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(authority[1].public_bytes(PEM))
    files = {}
    for name, usage in (
        ("serving", ExtendedKeyUsageOID.SERVER_AUTH),
        ("next", ExtendedKeyUsageOID.SERVER_AUTH),
        ("kubelet-client", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        files[name] = tmp_path / f"{name}.pem"
        files[name].write_bytes(certificate([(NameOID.COMMON_NAME, name)], authority, usage)[0])
    pods = Pods()
    guard = Guard("studio-1", lambda: cast(Kube, Reviewer()))
    server = Server(
        cast(PodQueries, pods), guard, Metrics("studio-1", "v0", lambda: (5, 2)), server_context(ca_file), "127.0.0.1", 0
    )
    server.use(files["serving"])
    await server.start()
    stranger = ssl.create_default_context(cafile=str(ca_file))
    trusted = ssl.create_default_context(cafile=str(ca_file))
    trusted.load_cert_chain(files["kubelet-client"])
    async with aiohttp.ClientSession() as session:
        yield Served(pods, server, tmp_path, authority, session, trusted, stranger, files["next"])
    await server.stop()


# Access


@pytest.mark.parametrize(
    "path", ["/healthz", "/pods", "/metrics", "/containerLogs/d/p/c", "/exec/d/p/c?command=id", "/nothing"]
)
async def test_unauthenticated_clients_get_nothing(served: Served, path: str) -> None:
    assert await served.get(path, known=False) == (
        401,
        "authentication required: use a client certificate signed by the cluster's CA, or a bearer token\n",
    )
    assert (await served.get(path, known=False, token="bad"))[0] == 401


async def test_a_token_gets_what_its_user_may(served: Served) -> None:
    assert (await served.get("/metrics", known=False, token="good"))[0] == 200
    status, text = await served.get("/pods", known=False, token="good")
    assert (status, text) == (403, "reader cannot get nodes/proxy of node studio-1\n")


async def test_a_certificate_of_another_ca_ends_the_connection(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "forged.pem"
    _, other = certificate([(NameOID.COMMON_NAME, "kubernetes")])
    file.write_bytes(certificate([(NameOID.COMMON_NAME, "kubelet-client")], other, ExtendedKeyUsageOID.CLIENT_AUTH)[0])
    served.stranger.load_cert_chain(file)
    with pytest.raises(aiohttp.ClientError):
        await served.get("/healthz", known=False)


async def test_a_serving_certificate_is_no_client(served: Served) -> None:
    # A node's serving certificate is from the same CA, but is not a client's.
    served.stranger.load_cert_chain(served.other)
    with pytest.raises(aiohttp.ClientError):
        await served.get("/healthz", known=False)


async def test_a_new_certificate_needs_no_new_listener(served: Served) -> None:
    async def shown() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", served.server.port, ssl=served.trusted)
        subject = writer.get_extra_info("peercert")["subject"]
        writer.close()
        await writer.wait_closed()
        return str(subject[0][0][1])

    async with served.session.get(served.url + "/containerLogs/d/p/c?follow=true", ssl=served.trusted) as answer:
        assert await answer.content.readline() == b"one\n"
        assert await shown() == "serving"
        served.server.use(served.other)
        assert await shown() == "next"
        assert await answer.content.readline() == b"two\n"
        served.pods.log.put(b"three\n")
        assert await answer.content.readline() == b"three\n", "a stream that was open goes on"


async def test_connections_that_send_nothing_are_bounded_and_block_no_client(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.server.stop()
    monkeypatch.setattr(serving, "CONNECTIONS", 8)
    server = Server(served.server.pods, served.server.guard, served.server.metrics, served.server.context, "127.0.0.1", 0)
    await server.start()
    try:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        await until_async(lambda: sum(reader.at_eof() for reader, _ in silent) >= 12)
        async with served.session.get(f"https://127.0.0.1:{server.port}/healthz", ssl=served.trusted) as answer:
            assert (answer.status, await answer.text()) == (200, "ok")
        for _, writer in silent:
            writer.close()
    finally:
        await server.stop()


# Logs


async def test_logs_with_every_option(served: Served) -> None:
    query = "tailLines=5&sinceSeconds=60&timestamps=true&previous=true&limitBytes=100"
    assert await served.get(f"/containerLogs/default/p/c?{query}") == (200, "one\ntwo\n")
    (asked,) = served.pods.asked
    assert timedelta(seconds=60) <= datetime.now(UTC) - asked.pop("since") < timedelta(seconds=120)
    assert asked == (
        {
            "follow": False,
            "tail": 5,
            "timestamps": True,
            "previous": True,
            "limit_bytes": 100,
            "stream": None,
        }
    )


async def test_logs_of_one_stream(served: Served) -> None:
    assert (await served.get("/containerLogs/default/p/c?stream=Stderr"))[0] == 200
    assert served.pods.asked[0]["stream"] == "stderr"


async def test_followed_logs_come_as_they_are_written_and_end_with_the_container(served: Served) -> None:
    async with served.session.get(served.url + "/containerLogs/d/p/c?follow=true", ssl=served.trusted) as answer:
        assert [await answer.content.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        served.pods.log.put(b"three\n")
        assert await answer.content.readline() == b"three\n"
        served.pods.log.put(None)
        assert await answer.content.read() == b""


async def test_a_reader_that_stops_following_is_forgotten(served: Served) -> None:
    answer = await served.session.get(served.url + "/containerLogs/d/p/c?follow=true", ssl=served.trusted)
    assert await answer.content.readline() == b"one\n"
    answer.close()
    await asyncio.wait_for(served.pods.log_closed.wait(), 60)


async def test_a_pod_that_is_not_here(served: Served) -> None:
    assert await served.get("/containerLogs/default/q/c") == (404, "no pod default/q runs here\n")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tailLines=-1", "integer of at least 0"),
        ("tailLines=many", "tailLines=many"),
        ("sinceSeconds=0", "at least 1"),
        ("limitBytes=0", "at least 1"),
        ("sinceTime=yesterday", "2026-01-31T12:00:00Z"),
        ("sinceTime=2026-13-31T12:00:00Z", "not a valid time"),
        ("sinceTime=0001-01-01T00:00:00%2B14:00", "not a valid time"),
        ("sinceTime=9999-12-31T23:59:59-14:00", "not a valid time"),
        ("sinceSeconds=1&sinceTime=2026-01-31T12:00:00Z", "at most one"),
        ("follow=perhaps", "true or false"),
        ("stream=Stdin", "one of All, Stdout, Stderr"),
        ("stream=Stdout&tailLines=3", "only supported with stream=All"),
    ],
)
async def test_a_wrong_query_is_an_error(served: Served, query: str, words: str) -> None:
    status, text = await served.get(f"/containerLogs/default/p/c?{query}")
    assert status == 400
    assert words in text
    assert served.pods.asked == []


def test_go_writes_nanoseconds() -> None:
    options, _ = log_options({"sinceTime": "2026-01-31T12:00:00.123456789+01:00"}, NOW)
    assert options.since == datetime.fromisoformat("2026-01-31T12:00:00.123456+01:00")


# Exec


async def messages(socket: aiohttp.ClientWebSocketResponse) -> dict[int, bytes]:
    """All messages until the server closes, by channel."""
    heard: dict[int, bytes] = {}
    async for message in socket:
        assert message.type is WSMsgType.BINARY
        heard[message.data[0]] = heard.get(message.data[0], b"") + message.data[1:]
    return heard


async def test_exec_carries_input_output_errors_and_the_exit_code(served: Served) -> None:
    served.pods.program = Program(3)
    path = "/exec/default/p/c?command=sh&command=-c&command=x+y&input=1&output=1&error=1"
    async with served.socket(path) as socket:
        assert socket.protocol == "v5.channel.k8s.io"
        await socket.send_bytes(b"\x00hello")
        await socket.send_bytes(b"\xff\x00")
        heard = await messages(socket)
    assert served.pods.asked == [{"command": ["sh", "-c", "x y"], "stdin": True, "tty": False}]
    assert heard[1] == b"HELLO"
    assert heard[2] == b"a warning\n"
    status = json.loads(heard[3])
    assert status["status"] == "Failure"
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert served.pods.program.killed.is_set()


async def test_exec_has_only_the_requested_streams(served: Served) -> None:
    served.pods.program = Program(0)
    served.pods.program.out.put(b"hi")
    served.pods.program.finish()
    async with served.socket("/exec/default/p/c?command=x&output=1") as socket:
        heard = await messages(socket)
    assert heard.keys() == {1, 3}
    assert json.loads(heard[3])["status"] == "Success"


async def test_v4_has_no_closing_of_input(served: Served) -> None:
    served.pods.program = Program(0)
    async with served.socket("/exec/default/p/c?command=x&input=1&output=1", "v4.channel.k8s.io") as socket:
        assert socket.protocol == "v4.channel.k8s.io"
        await socket.send_bytes(b"\xff\x00")
        await socket.send_bytes(b"\x00still open")
        first = await socket.receive(10)
        assert first.data == b"\x01STILL OPEN"
        served.pods.program.finish()
        assert json.loads((await messages(socket))[3])["status"] == "Success"


async def test_a_terminal_can_be_resized(served: Served) -> None:
    served.pods.program = Program(0)
    async with served.socket("/exec/default/p/c?command=x&input=1&output=1&tty=1") as socket:
        await socket.send_bytes(b'\x04{"Width": 0, "Height": 0}')
        await socket.send_bytes(b'\x04{"Width": 120, "Height": 40}')
        heard = await messages(socket)
    assert served.pods.program.sizes == [(120, 40)]
    assert 2 not in heard, "a terminal has one output"


async def test_a_caller_who_goes_ends_the_program(served: Served) -> None:
    served.pods.program = Program(0, forever=True)
    async with served.socket("/exec/default/p/c?command=x&output=1") as socket:
        await socket.close()
    await asyncio.wait_for(served.pods.program.killed.wait(), 60)


@pytest.mark.parametrize(
    ("path", "words", "code"),
    [
        ("/exec/default/p/c?command=nosuch&output=1", "nosuch: No such file or directory", 500),
        ("/exec/default/q/c?command=id&output=1", "container c of pod default/q does not run", 400),
        ("/attach/default/q/c?output=1", "no pod default/q runs here", 404),
        ("/attach/default/p/c?input=1&output=1", "kubectl exec -i", 400),
    ],
)
async def test_what_cannot_start_says_so_on_the_status_channel(served: Served, path: str, words: str, code: int) -> None:
    async with served.socket(path) as socket:
        heard = await messages(socket)
    status = json.loads(heard[3])
    assert (status["status"], status["code"]) == ("Failure", code)
    assert words in status["message"]


async def test_attach_shows_what_is_written_from_now_on(served: Served) -> None:
    async with served.socket("/attach/default/p/c?output=1&error=1") as socket:
        served.pods.log.put(b"three\n")
        served.pods.log.put(None)
        heard = await messages(socket)
    assert heard[1].endswith(b"three\n")
    assert json.loads(heard[3])["status"] == "Success"
    assert served.pods.asked == [{**vars(LogOptions(follow=True, tail=0)), "previous": False}]


async def test_attach_carries_input_and_leaves_the_program_its_exit_code(served: Served) -> None:
    served.pods.program = Program(0)
    async with served.socket("/attach/default/p/c?input=1&output=1&error=1") as socket:
        await socket.send_bytes(b"\x00hello")
        await socket.send_bytes(b"\xff\x00")
        heard = await messages(socket)
    assert heard[1] == b"HELLO" and json.loads(heard[3])["status"] == "Success"
    assert served.pods.asked == [], "the log is for containers without input"


async def test_exec_needs_a_websocket_a_command_and_a_stream(served: Served) -> None:
    status, text = await served.get("/exec/default/p/c?command=id&output=1")
    assert (status, "Kubernetes 1.36 or later" in text) == (400, True)
    assert json.loads(text)["status"] == "Failure", "an API server passes the message of a Status on"
    status, text = await served.get("/exec/default/p/c?output=1")
    assert (status, json.loads(text)["message"]) == (400, "command: required")
    status, text = await served.get("/exec/default/p/c?command=id")
    assert (status, "input, output and error" in text) == (400, True)
    assert served.pods.asked == []


async def test_port_forward_needs_a_pod_that_runs_and_a_websocket(served: Served) -> None:
    assert await served.get("/portForward/default/q") == (404, "no pod default/q runs here\n")
    status, text = await served.get("/portForward/default/p")
    assert (status, "WebSocket required" in text) == (400, True)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await served.socket("/portForward/default/p", "v4.channel.k8s.io")
    assert refused.value.status == 400
    async with served.socket("/portForward/default/p", "SPDY/3.1+portforward.k8s.io") as socket:
        assert socket.protocol == "SPDY/3.1+portforward.k8s.io"


def test_resizes() -> None:
    assert resize_of(b'{"Width": 80, "Height": 24}') == (80, 24)
    for wrong in (b"", b"[]", b"1", b'{"Width": 80}', b'{"Width": -1, "Height": 1}', b'{"Width": null, "Height": 1}'):
        assert resize_of(wrong) is None


def test_success_has_no_details() -> None:
    assert exit_status(0) == {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def test_stream_options() -> None:
    assert vars(stream_options({"input": "1", "tty": "true"})) == {"stdin": True, "stdout": False, "stderr": False, "tty": True}
    with pytest.raises(BadRequest):
        stream_options({})


# Metrics


async def test_figures(served: Served) -> None:
    assert await served.get("/healthz") == (200, "ok")
    _, pods = await served.get("/pods")
    assert json.loads(pods)["items"] == [{"metadata": {"name": "p"}}]
    _, text = await served.get("/metrics")
    for line in (
        'thunderfleet_kubelet_http_requests_total{code="200",kind="healthz"} 1.0',
        "thunderfleet_kubelet_api_requests_total 5.0",
        "thunderfleet_kubelet_api_writes_total 2.0",
        "thunderfleet_kubelet_container_restarts_total 3.0",
        "thunderfleet_kubelet_containers 2.0",
    ):
        assert line in text.splitlines()


async def test_resource_figures_are_summed_by_pod(served: Served) -> None:
    _, text = await served.get("/metrics/resource")
    milliseconds = int(NOW.timestamp() * 1000)
    assert f'container_cpu_usage_seconds_total{{container="a",namespace="default",pod="p"}} 1.5 {milliseconds}' in text
    assert f'pod_cpu_usage_seconds_total{{namespace="default",pod="p"}} 3.0 {milliseconds}' in text
    assert f'pod_memory_working_set_bytes{{namespace="default",pod="p"}} 2048.0 {milliseconds}' in text


async def test_figures_that_prometheus_stacks_read(served: Served) -> None:
    _, text = await served.get("/metrics/cadvisor", known=False, token="good")
    found = {
        (sample.name, sample.labels["container"]): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    cpu = found["container_cpu_usage_seconds_total", "a"]
    labels = {"namespace": "default", "pod": "p", "container": "a", "image": "i:1", "name": "id-a", "id": "id-a"}
    assert (cpu.value, cpu.labels) == (1.5, labels)
    for name in ("container_memory_working_set_bytes", "container_memory_rss"):
        assert found[name, "b"].value == 1024
    assert found["container_memory_rss", "a"].value == 300
    gpu = {name: sample for name, sample in found.items() if name[0] == "container_accelerator_memory_used_bytes"}
    assert {name[1]: sample.value for name, sample in gpu.items()} == {"a": 900}, "b's is unknown"
    _, text = await served.get("/metrics/probes")
    (sample,) = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert (sample.name, sample.value, sample.labels["probe_type"], sample.labels["result"]) == (
        "prober_probe_total",
        2,
        "Liveness",
        "failed",
    )


async def test_the_summary_has_node_pods_and_containers(served: Served) -> None:
    # The user of the token may read metrics, which are another resource than statistics.
    assert (await served.get("/stats/summary", known=False, token="good"))[0] == 403
    status, text = await served.get("/stats/summary")
    assert status == 200
    found = json.loads(text)
    assert found["node"]["nodeName"] == "studio-1"
    fs = {key: value for key, value in found["node"]["fs"].items() if key != "time"}
    assert fs == {
        **{"availableBytes": 30, "capacityBytes": 100, "usedBytes": 70},
        **{"inodes": 10, "inodesFree": 3, "inodesUsed": 7},
    }
    (pod,) = found["pods"]
    assert pod["podRef"] == {"name": "p", "namespace": "default", "uid": "u1"}
    assert pod["cpu"]["usageCoreNanoSeconds"] == 3 * 10**9
    assert [one["memory"]["workingSetBytes"] for one in pod["containers"]] == [1024, 1024]
    assert [one["memory"]["rssBytes"] for one in pod["containers"]] == [300, 1024]
    assert [one.get("accelerators") for one in pod["containers"]] == [[{"make": "apple", "id": "0", "memoryUsed": 900}], None]
    sizes = [(one["rootfs"]["usedBytes"], one["logs"]["usedBytes"]) for one in pod["containers"]]
    assert sizes == [(7, 2), (0, 5)]
    assert pod["ephemeral-storage"]["usedBytes"] == 54
    assert [(one["name"], one["usedBytes"], one["capacityBytes"]) for one in pod["volume"]] == [("scratch", 40, 100)]


async def test_the_kind_of_a_stranger_path_does_not_grow_the_figures(served: Served) -> None:
    await served.get("/made-up-by-somebody")
    _, text = await served.get("/metrics")
    assert 'kind="other"' in text
    assert "made-up" not in text
