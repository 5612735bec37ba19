"""Port-forwards: SPDY frames, tunnels over a real WebSocket to real sockets, and which sockets are a pod's."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import ClientWebSocketResponse, web
from aiohttp.test_utils import TestClient, TestServer
from thunderfleet_kubelet.containers.listeners import Listening, choose, on_port, parse_lsof, parse_table
from thunderfleet_kubelet.pods.queries import NoSuchPod, PodNotRunning, PortRefused
from thunderfleet_kubelet.serving.portforward import forward, frames, tunnel
from thunderfleet_kubelet.serving.portforward.forward import Dial
from thunderfleet_kubelet.serving.portforward.frames import Data, FrameReader, FrameWriter, GoAway, Opened, Ping, Reset
from thunderfleet_kubelet.serving.portforward.headers import BLOCK_BYTES, Compressor, Decompressor, HeaderError
from thunderfleet_kubelet.serving.portforward.tunnel import ConnectionCount, Tunnel

from tests.support.network.ports import claim
from tests.support.pods import World, sh
from tests.support.waiting import until_async

# What the SPDY library of kubectl (moby/spdystream) writes: two streams, the end of one, data, a ping, a reset, a farewell.
RECORDED = bytes.fromhex(
    "800300010000003e0000000100000000000078f9e3c6a7c202253a48f95b044eea160616060c0c0c9c4590f8ca04a5634603704a2c294a4dcc8516"
    "36aca9a0a800000000ffff800300010000001a00000003000000000000826a469502954389848d04000000ffff0000000101000000000000030000"
    "000568656c6c6f8003000600000004000000018003000300000008000000030000000580030007000000080000000000000000"
)
ECHO, QUIET = 1, 2


# Frames


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_of_kubectl_in_pieces_of_any_size(size: int) -> None:
    reader = FrameReader()
    found = [frame for at in range(0, len(RECORDED), size) for frame in reader.feed(RECORDED[at : at + size])]
    asked = {"port": "8080", "requestid": "0"}
    text = b"".join(frame.data for frame in found if isinstance(frame, Data) and frame.stream == 3)
    assert [frame for frame in found if not isinstance(frame, Data) or frame.stream == 1] == [
        Opened(1, {**asked, "streamtype": "error"}, fin=False),
        Opened(3, {**asked, "streamtype": "data"}, fin=False),
        Data(1, b"", fin=True),
        Ping(1),
        Reset(3),
        GoAway(),
    ]
    assert text == b"hello"


def test_a_giant_data_frame_is_not_kept() -> None:
    reader = FrameReader()
    head = FrameWriter.data(5, b"")[:4] + b"\x01\xff\xff\xff"
    (first,) = reader.feed(head + b"x" * 100)
    assert first == Data(5, b"x" * 100, fin=False)
    rest = 0xFFFFFF - 100
    assert [frame.fin for frame in reader.feed(bytes(rest)) if isinstance(frame, Data)] == [True]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02\x00\x01\x00\x00\x00\x0a", "version 2"),
        (b"\x80\x03\x00\x01\x00\xff\xff\xff", "16777215 bytes"),
        (b"\x80\x03\x00\x06\x00\x00\x00\x00", "0 bytes"),
        (b"\x80\x03\x00\x01\x00\x00\x00\x0c" + bytes(12), "not compressed"),
        (b"\x80\x03\x00\x08\x00\x00\x00\x00", "end too early"),
    ],
)
def test_frames_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(frames.ProtocolError, match=message):
        list(FrameReader().feed(data))


def test_headers_that_unpack_to_more_than_allowed() -> None:
    with pytest.raises(HeaderError, match=f"larger than {BLOCK_BYTES}"):
        Decompressor().unpack(Compressor().pack({"port": "8" * 100 * BLOCK_BYTES}))


# Tunnels


class Client:
    """The client's side of a tunnel."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.writer, self.stream = FrameWriter(), -1
        self.received: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self.replied: set[int] = set()
        self.closed: tuple[int | None, str] | None = None
        self.pings: list[int] = []
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        """Takes the frames of the server apart."""
        rest = b""
        async for message in self.socket:
            rest += message.data
            while len(rest) >= frames.HEAD and len(rest) >= (end := frames.HEAD + int.from_bytes(rest[5:8], "big")):
                self.take(rest[: frames.HEAD], rest[frames.HEAD : end])
                rest = rest[end:]
        self.closed = (self.socket.close_code, "")

    def take(self, head: bytes, body: bytes) -> None:
        number = int.from_bytes(body[:4], "big")
        if not head[0] & 0x80:
            stream = int.from_bytes(head[:4], "big")
            self.received.setdefault(stream, bytearray()).extend(body)
            if head[4] & frames.FIN:
                self.ended.add(stream)
        elif head[3] == frames.SYN_REPLY:
            self.replied.add(number)
        elif head[3] == frames.RST_STREAM:
            self.reset.add(number)
        elif head[3] == frames.PING:
            self.pings.append(number)

    async def open(self, port: int, request: str, kind: str) -> int:
        """Opens one stream; returns its number."""
        self.stream += 2
        headers = {"streamtype": kind, "port": str(port), "requestid": request}
        await self.socket.send_bytes(self.writer.opening(self.stream, headers))
        return self.stream

    async def connect(self, port: int, request: str = "0") -> tuple[int, int]:
        """The error stream and the data stream of a new connection."""
        return await self.open(port, request, "error"), await self.open(port, request, "data")

    async def send(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        await self.socket.send_bytes(FrameWriter.data(stream, data, fin=fin))


@dataclass
class Process:
    """What listens: returns everything on port ECHO at once; on QUIET reads only what the test lets it read."""

    let: asyncio.Event = field(default_factory=asyncio.Event)
    lost: int = 0
    open: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if await reader.readexactly(1) == b"q":
                await self.let.wait()
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"bye")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.lost += 1
        finally:
            self.open -= 1
            writer.close()


@dataclass
class Forwarded:
    """A tunnel and its two ends."""

    client: Client
    process: Process
    connections: ConnectionCount
    ended: asyncio.Event


@asynccontextmanager
async def forwarded() -> AsyncIterator[Forwarded]:
    """A tunnel to a process that listens."""
    process, connections, ended = Process(), ConnectionCount(), asyncio.Event()
    server = await asyncio.start_server(process, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def dial(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if number not in (ECHO, QUIET):
            raise PortRefused(f"pod d/p does not listen on TCP port {number}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"q" if number == QUIET else b"e")
        return reader, writer

    dialing: Dial = dial

    async def handle(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(tunnel.PROTOCOL,), max_msg_size=tunnel.MESSAGE_BYTES, compress=False)
        await socket.prepare(request)
        try:
            await Tunnel(socket, dialing, connections, "d/p").run()
        finally:
            ended.set()
        return socket

    application = web.Application()
    application.router.add_get("/", handle)
    async with TestClient(TestServer(application)) as http, http.ws_connect("/", protocols=[tunnel.PROTOCOL]) as socket:
        assert socket.protocol == tunnel.PROTOCOL
        client = Client(socket)
        yield Forwarded(client, process, connections, ended)
        await socket.close()
        await until_async(ended.is_set)
        await until_async(lambda: connections.open == 0, describe=lambda: f"{connections.open} connections are open")
        await until_async(lambda: process.open == 0)
    server.close()


async def test_bytes_go_both_ways_and_ends_are_passed_on() -> None:
    text = bytes(range(256)) * 4096
    async with forwarded() as it:
        errors, data = await it.client.connect(ECHO)
        await it.client.send(errors, b"", fin=True)
        for at in range(0, len(text), 30000):
            await it.client.send(data, text[at : at + 30000])
        await it.client.send(data, b"", fin=True)
        await until_async(lambda: {errors, data} <= it.client.ended)
        assert bytes(it.client.received[data]) == text + b"bye"
        assert not it.client.received[errors]
        assert it.client.replied == {errors, data}
        await it.client.socket.send_bytes(FrameWriter.ping(1) + FrameWriter.ping(2) + FrameWriter.ping(3))
        await until_async(lambda: len(it.client.pings) == 2)
        # Even numbers are answers to pings of the server, which sends none.
        assert it.client.pings == [1, 3]


async def test_a_refusal_names_its_reason_and_leaves_the_others_alone() -> None:
    async with forwarded() as it:
        _, echo = await it.client.connect(ECHO, "1")
        errors, data = await it.client.connect(9, "2")
        await until_async(lambda: {errors, data} <= it.client.ended)
        assert it.client.received[errors] == b"pod d/p does not listen on TCP port 9"
        await it.client.send(echo, b"still there")
        await until_async(lambda: it.client.received.get(echo, bytearray()) == bytearray(b"still there"))


async def test_a_reset_closes_the_connection_and_ends_the_error_stream() -> None:
    async with forwarded() as it:
        errors, data = await it.client.connect(ECHO)
        await it.client.send(data, b"x")
        await until_async(lambda: it.client.received.get(data))
        await it.client.socket.send_bytes(FrameWriter.reset(data, frames.CANCEL))
        await until_async(lambda: errors in it.client.ended)
        await until_async(lambda: it.process.open == 0)


async def test_a_process_that_reads_nothing_holds_a_bounded_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "STALL_SECONDS", 0.2)
    async with forwarded() as it:
        errors, data = await it.client.connect(QUIET)

        async def flood() -> None:
            while True:
                await it.client.send(data, bytes(32000))

        flooding = asyncio.create_task(flood())
        # The connection is reset when the process has read nothing for the limit; the tunnel goes on.
        await until_async(lambda: data in it.client.reset and errors in it.client.ended)
        flooding.cancel()
        _, echo = await it.client.connect(ECHO, "2")
        await it.client.send(echo, b"!")
        await until_async(lambda: it.client.received.get(echo, bytearray()) == bytearray(b"!"))
        it.process.let.set()


async def test_streams_beyond_the_limit_are_refused() -> None:
    async with forwarded() as it:
        # Half of a connection takes a place too.
        for number in range(10_000):
            await it.client.open(ECHO, str(number), "error")
        await until_async(lambda: len(it.client.replied) + len(it.client.reset) == 10_000)
        assert len(it.client.replied) == tunnel.TUNNEL_CONNECTIONS == it.connections.open


async def test_half_a_connection_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "PAIR_SECONDS", 0.01)
    async with forwarded() as it:
        await it.client.open(ECHO, "1", "error")
        await until_async(lambda: it.client.replied and it.connections.open == 0)
        await it.client.open(ECHO, "2", "data")
        await it.client.socket.send_bytes(FrameWriter.reset(it.client.stream, frames.CANCEL))
        await until_async(lambda: len(it.client.replied) == 2 and it.connections.open == 0)


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "８０", "x"])
async def test_streams_without_a_valid_port_are_reset(port: str) -> None:
    async with forwarded() as it:
        headers = {"streamtype": "data", "port": port.encode().decode("latin-1"), "requestid": "0"}
        await it.client.socket.send_bytes(it.client.writer.opening(1, headers))
        await until_async(lambda: it.client.reset == {1})


@pytest.mark.parametrize("opened", [[2], [3, 3], [3, 1]])
async def test_streams_that_break_the_protocol_end_the_tunnel(opened: list[int]) -> None:
    async with forwarded() as it:
        for number in opened:
            headers = {"streamtype": "data", "port": "1", "requestid": str(number)}
            await it.client.socket.send_bytes(it.client.writer.opening(number, headers))
        await until_async(lambda: it.client.closed)
        assert it.client.closed == (1002, "")


async def test_text_messages_end_the_tunnel() -> None:
    async with forwarded() as it:
        await it.client.socket.send_str("hello")
        await until_async(lambda: it.client.closed)
        assert it.client.socket.close_code == 1002


async def test_a_tunnel_over_which_only_pings_go_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "IDLE_SECONDS", 0.1)
    async with forwarded() as it:
        number = -1
        with contextlib.suppress(ConnectionError):
            while it.client.closed is None and not it.client.socket.closed:
                await it.client.socket.send_bytes(FrameWriter.ping(number := number + 2))
                await asyncio.sleep(0)
        await until_async(lambda: it.client.closed)
        assert it.client.socket.close_code == 1001


async def test_a_client_that_does_not_read_is_not_buffered_for() -> None:
    async with forwarded() as it:
        _, data = await it.client.connect(ECHO)
        await until_async(lambda: data in it.client.replied)
        it.client.reading.cancel()
        await asyncio.gather(it.client.reading, return_exceptions=True)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 256 * 2**20:
                async with asyncio.timeout(1):
                    await it.client.send(data, bytes(32000))
                sent += 32000
        # As when kubectl is killed.
        it.client.socket._writer.transport.abort()


# Which sockets are a pod's

LISTENER = """exec python3 -c '
import socket, sys, time
for address in sys.argv[1:]:
    server = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    print(address, server.getsockname()[1], flush=True)
    globals()[address] = server
time.sleep(3600)
' """


async def ports(world: World, name: str, count: int) -> dict[str, int]:
    """Address to port of the sockets that a pod prints."""
    file = world.folder(name).log("main", 0)
    await until_async(lambda: file.exists() and file.read_bytes().count(b"\n") == count)
    rows = [line.split() for line in (await world.log(name)).splitlines()]
    return {row[0]: int(row[1]) for row in rows}


async def test_only_the_pods_own_sockets_are_reached(world: World) -> None:
    manager = await world.boot()
    world.api.add_pod("one", {"containers": [sh(LISTENER + "127.0.0.1 0.0.0.0")]})
    world.api.add_pod("two", {"containers": [sh(LISTENER + "127.0.0.1")]})
    for name in ("one", "two"):
        await world.phase(name, "Running")
    one, two = await ports(world, "one", 2), await ports(world, "two", 1)
    for port in one.values():
        _, writer = await manager.queries.open_port("default", "one", port)
        assert writer.get_extra_info("peername")[:2] == ("127.0.0.1", port)
        writer.close()
    with pytest.raises(PortRefused, match=r"a process outside this pod listens there"):
        await manager.queries.open_port("default", "one", two["127.0.0.1"])
    (mine,) = claim(1)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", mine)
    with pytest.raises(PortRefused, match=r"pod default/one does not listen on TCP port \d+ of node node-1"):
        await manager.queries.open_port("default", "one", mine)
    server.close()
    await server.wait_closed()
    with pytest.raises(PortRefused, match="no process listens there"):
        await manager.queries.open_port("default", "one", mine)
    with pytest.raises(NoSuchPod):
        manager.queries.require_running("default", "none")
    world.api.add_pod("ended", {"containers": [sh("true")]})
    await world.phase("ended", "Succeeded")
    with pytest.raises(PodNotRunning):
        await manager.queries.open_port("default", "ended", mine)


@pytest.mark.linux
def test_addresses_in_the_tables_of_linux() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rest = "00000000:00000000 00:00000000 00000000     0        0"
    four = f"{head}   0: 0100007F:094B 00000000:0000 0A {rest} 111 1\n   1: 0100007F:094B 0100007F:8000 01 {rest} 112 1\n"
    assert parse_table(four, 2379) == {"111": ("127.0.0.1", 2379)}
    six = f"{head}   0: 00000000000000000000000001000000:094B {'0' * 32}:0000 0A {rest} 113 1\n"
    assert parse_table(six, 2379) == {"113": ("::1", 2379)}
    mapped = f"{head}   0: 0000000000000000FFFF00000100007F:094B {'0' * 32}:0000 0A {rest} 114 1\n"
    assert parse_table(mapped, 2379) == {"114": ("127.0.0.1", 2379)}


def test_sockets_in_the_output_of_lsof() -> None:
    output = "p101\nf5\ntIPv4\nn*:8080\np102\nf7\ntIPv6\nn*:8080\nf8\ntIPv6\nn[::1]:8080\np103\nf3\ntIPv4\nn127.0.0.1:8080\n"
    assert parse_lsof(output, {101, 103}) == [
        Listening("0.0.0.0", 8080, frozenset({101})),
        Listening("127.0.0.1", 8080, frozenset({103})),
        Listening("::", 8080),
        Listening("::1", 8080),
    ]
    assert parse_lsof("", {101}) == []
    shared = "p101\nf5\ntIPv4\nn*:8080\np102\nf7\ntIPv4\nn*:8080\n"
    assert parse_lsof(shared, {101, 102}) == [Listening("0.0.0.0", 8080, frozenset({101, 102}))]
    assert parse_lsof(shared, {101}) == [Listening("0.0.0.0", 8080, frozenset({101})), Listening("0.0.0.0", 8080)]


@pytest.mark.parametrize(
    ("found", "address"),
    [
        ([Listening("127.0.0.1", 1, frozenset({1}))], "127.0.0.1"),
        ([Listening("0.0.0.0", 1, frozenset({1})), Listening("192.0.2.1", 1, frozenset({1}))], "192.0.2.1"),
        ([Listening("0.0.0.0", 1, frozenset({1})), Listening("::", 1, frozenset({1}))], "127.0.0.1"),
        ([Listening("::1", 1, frozenset({1}))], "::1"),
        # On macOS both may exist, and a connection to 127.0.0.1 would reach the foreign one.
        ([Listening("0.0.0.0", 1, frozenset({1})), Listening("127.0.0.1", 1)], None),
        ([Listening("0.0.0.0", 1, frozenset({1})), Listening("127.0.0.1", 1), Listening("::", 1, frozenset({1}))], "::1"),
        # Both have SO_REUSEPORT: the system chooses.
        ([Listening("0.0.0.0", 1, frozenset({1})), Listening("0.0.0.0", 1)], None),
        ([Listening("127.0.0.1", 1, frozenset({1})), Listening("127.0.0.1", 1)], None),
        ([Listening("0.0.0.0", 1)], None),
        ([], None),
    ],
)
def test_the_socket_to_connect_to(found: list[Listening], address: str | None) -> None:
    chosen = choose(found)
    assert (chosen.reached_at if chosen else None) == address


def test_a_machine_that_does_not_say_is_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("lsof", 1)

    monkeypatch.setattr("os.path.exists", lambda path: False)
    monkeypatch.setattr("subprocess.run", slow)
    with pytest.raises(TimeoutError, match="lsof did not answer"):
        on_port(80, {1})
