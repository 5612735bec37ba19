"""The balancer: which API server it chooses, and connections through real sockets."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_controlplane.balancer import disk, learn, proxy
from thunderfleet_controlplane.balancer.health import Health
from thunderfleet_controlplane.balancer.proxy import Balancer, Pool
from thunderfleet_controlplane.balancer.servers import (
    CONFIG_MAP,
    LIMIT,
    SLICE,
    ApiServer,
    api_server,
    bounded,
    entry,
    from_text,
    order,
    recorded_servers,
    to_text,
)
from thunderfleet_controlplane.pki import make_pki

from tests.support.network.ports import claim
from tests.support.waiting import until_async

ONE, TWO, THREE = (ApiServer(f"192.168.64.{number}", 6443) for number in (11, 12, 13))
LOCAL = ApiServer("127.0.0.1", 6443)
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def test_what_is_written_is_read() -> None:
    servers = (ONE, ApiServer("fd00::7", 6443), ApiServer("studio-1.local", 6443))
    assert from_text(to_text(servers)) == servers


@given(st.text(max_size=200))
def test_other_files_are_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(from_text(text)) <= LIMIT


@pytest.mark.parametrize(
    ("host", "port"),
    [("", 1), ("a b", 1), ("-a", 1), ("a" * 300, 1), (None, 1), ("a", 0), ("a", 65536), ("a", "1"), ("a", True), ("a/b", 1)],
)
def test_what_is_no_api_server(host: object, port: object) -> None:
    assert api_server(host, port) is None


def test_what_the_cluster_says() -> None:
    data = {"studio-1": entry("192.168.64.11", ("studio-1", "studio-1.local")), "studio-2": entry("192.168.64.12", ())}
    endpoints = {"endpoints": [{"addresses": ["192.168.64.12"]}, {"addresses": ["192.168.64.13"]}]}
    assert recorded_servers({"data": data}, endpoints, 6443) == (ONE, TWO, THREE, ApiServer("studio-1.local", 6443))
    assert recorded_servers(None, None, 6443) == ()
    many = {"data": {"a": " ".join(f"10.0.0.{number}" for number in range(100))}}
    assert len(recorded_servers(many, None, 6443)) == LIMIT
    assert recorded_servers({"data": {"a": "../etc 10.0.0.1"}}, None, 6443) == (ApiServer("10.0.0.1", 6443),)


def test_the_own_is_first_and_what_fails_is_last() -> None:
    servers = bounded((ONE, TWO, THREE))
    assert order(servers, (), None, None) == [ONE, TWO, THREE]
    assert order(servers, (), LOCAL, TWO) == [LOCAL, TWO, ONE, THREE]
    assert order(servers, (LOCAL, TWO), LOCAL, TWO) == [ONE, THREE, LOCAL, TWO]
    assert order(servers, servers, None, None) == [ONE, TWO, THREE], "a check may be wrong"
    assert order((ONE,), (), None, THREE) == [ONE], "what the cluster does not name any more is not used"


class Upstream:
    """An API server for these tests: it answers each word with its name and the word."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while data := await reader.read(100):
                writer.write(self.name.encode() + b":" + data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def serving(upstream: Upstream) -> AsyncIterator[ApiServer]:
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0)
    try:
        yield ApiServer("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


@contextlib.asynccontextmanager
async def balancing(balancer: Balancer) -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(balancer.serve(listening))
    try:
        yield int(listening.getsockname()[1])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def says(ends: Ends, word: bytes) -> bytes:
    ends[1].write(word)
    return await asyncio.wait_for(ends[0].read(100), 60)


def closed_port() -> ApiServer:
    return ApiServer("127.0.0.1", claim(1)[0])


def test_a_connection_goes_to_one_that_accepts_it() -> None:
    async def run() -> None:
        async with serving(Upstream("b")) as second:
            pool = Pool()
            pool.use((closed_port(), second))
            async with balancing(Balancer(pool)) as port, connected(port) as ends:
                assert await says(ends, b"one") == b"b:one"
                assert await says(ends, b"two") == b"b:two"
                assert pool.current == second and len(pool.failing) == 1

    asyncio.run(run())


def test_without_an_api_server_the_connection_ends() -> None:
    async def run() -> None:
        pool = Pool()
        pool.use((closed_port(),))
        async with balancing(Balancer(pool)) as port, connected(port) as ends:
            with contextlib.suppress(OSError):
                assert await says(ends, b"one") == b""

    asyncio.run(run())


def test_connections_to_one_that_fails_are_cut() -> None:
    """A Mac without power never says that it is gone."""

    async def run() -> None:
        async with serving(Upstream("a")) as first, serving(Upstream("b")) as second:
            pool = Pool()
            pool.use((first, second))
            async with balancing(Balancer(pool)) as port, connected(port) as ends:
                assert await says(ends, b"one") == b"a:one"
                pool.report(first, works=False)
                pool.cut(first)
                with contextlib.suppress(OSError):
                    assert await asyncio.wait_for(ends[0].read(100), 60) == b""
                async with connected(port) as again:
                    assert await says(again, b"one") == b"b:one"

    asyncio.run(run())


def test_a_client_that_says_nothing_troubles_no_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "FIRST_SECONDS", 0.2)

    async def run() -> None:
        upstream = Upstream("a")
        async with serving(upstream) as first:
            pool = Pool()
            pool.use((first,))
            balancer = Balancer(pool)
            async with balancing(balancer) as port, connected(port) as ends:
                await until_async(lambda: balancer.open == 1, "it is counted")
                with contextlib.suppress(OSError):
                    assert await asyncio.wait_for(ends[0].read(100), 60) == b""
                assert upstream.open == 0
                await until_async(lambda: balancer.open == 0, "it is gone")

    asyncio.run(run())


def test_many_connections_do_not_keep_out_another() -> None:
    async def run() -> None:
        async with serving(Upstream("a")) as first:
            pool = Pool()
            pool.use((first,))
            balancer = Balancer(pool, limit=3)
            async with balancing(balancer) as port, connected(port) as useful, contextlib.AsyncExitStack() as silent:
                assert await says(useful, b"one") == b"a:one"
                for _ in range(10):
                    await silent.enter_async_context(connected(port))
                await until_async(lambda: balancer.open == 3, "there are as many as may be")
                async with connected(port) as new:
                    assert await says(new, b"two") == b"a:two"
                    assert await says(useful, b"three") == b"a:three", "one that was answered is kept"

    asyncio.run(run())


def test_it_ends_while_connections_are_open() -> None:
    """Launchd would kill it after twenty seconds."""

    async def run() -> None:
        upstream = Upstream("a")
        async with serving(upstream) as first:
            pool = Pool()
            pool.use((first,))
            listening = socket.create_server(("127.0.0.1", 0))
            task = asyncio.create_task(Balancer(pool).serve(listening))
            async with connected(int(listening.getsockname()[1])) as ends:
                assert await says(ends, b"one") == b"a:one"
                task.cancel()
                await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)
                with contextlib.suppress(OSError):
                    assert await asyncio.wait_for(ends[0].read(100), 60) == b""
                await until_async(lambda: upstream.open == 0, "the API server has no connection left")

    asyncio.run(run())


def test_large_bodies_pass_and_ends_are_passed_on() -> None:
    size = 3_000_000

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read(-1)
        writer.write(received[::-1])
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        pool = Pool()
        pool.use((ApiServer("127.0.0.1", server.sockets[0].getsockname()[1]),))
        async with balancing(Balancer(pool)) as port, connected(port) as (reader, writer):
            data = bytes(range(256)) * (size // 256)
            writer.write(data)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(-1), 60) == data[::-1]
        server.close()

    asyncio.run(run())


def test_health_finds_what_fails_and_what_works_again(tmp_path: Path) -> None:
    async def run() -> None:
        gone = closed_port()
        async with serving(Upstream("a")) as first:
            pool, cut = Pool(), list[ApiServer]()
            pool.use((gone, first))
            pool.cut = cut.append
            task = asyncio.create_task(Health(pool, tmp_path, seconds=0.01).run())
            await until_async(lambda: pool.failing == {gone} and set(cut) == {gone}, "only the one that is gone fails")
            server = await asyncio.start_server(Upstream("b").handle, gone.host, gone.port)
            await until_async(lambda: not pool.failing, "it works again")
            pool.use((first,))
            server.close()
            await until_async(lambda: pool.every == (first,) and not pool.failing, "what is not in the list is not asked")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


class RecordedApi:
    """An API server with TLS that answers the holders of a certificate of the cluster."""

    def __init__(self, folder: Path) -> None:
        self.pki = make_pki(folder / "pki", ["127.0.0.1", "localhost"], ["127.0.0.1"])
        self.identity = folder / "identity"
        self.identity.mkdir()
        (self.identity / "ca.crt").write_bytes(self.pki.ca.read_bytes())
        self.ready = 200
        self.works_at = 0
        """A port at which it is ready in any case."""
        self.asked: list[tuple[str, str]] = []

    def join(self) -> None:
        """The kubelet has a certificate; that of the controller manager stands in for it."""
        own = self.pki.pair("kube-controller-manager")
        (self.identity / "client.pem").write_bytes(own.key.read_bytes() + own.certificate.read_bytes())

    async def answer(self, request: web.Request) -> web.Response:
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        self.asked.append((request.path, dict(part[0] for part in certificate["subject"])["commonName"] if certificate else ""))
        if request.path == "/readyz":
            return web.Response(status=200 if request.url.port == self.works_at else self.ready)
        if request.path == CONFIG_MAP:
            return web.json_response({"data": {"studio-1": "127.0.0.1", "studio-2": "192.168.64.12 studio-2.local"}})
        return web.json_response({"endpoints": [{"addresses": ["192.168.64.13"]}]} if request.path == SLICE else {}, status=200)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ApiServer]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.pki.ca))
        own = self.pki.pair("apiserver")
        context.load_cert_chain(own.certificate, own.key)
        context.verify_mode = ssl.CERT_OPTIONAL
        application = web.Application()
        application.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        try:
            yield ApiServer("127.0.0.1", runner.addresses[0][1])
        finally:
            await runner.cleanup()


def test_one_that_is_slow_keeps_its_connections_unless_another_works(tmp_path: Path) -> None:
    """Clients of the only API server would connect and list everything again, which makes it slower."""

    async def run() -> None:
        api = RecordedApi(tmp_path)
        api.join()
        async with api.serving() as server:
            # An API server that is in the list twice, as that of a Mac with its local and its other address.
            pool, cut, alias = Pool(server), list[ApiServer](), ApiServer("localhost", server.port)
            pool.use((alias,))
            pool.cut = cut.append
            task = asyncio.create_task(Health(pool, api.identity, seconds=0.01).run())
            await until_async(lambda: len(api.asked) > 3 and not pool.failing, "it works")
            api.ready = 500
            await until_async(lambda: pool.failing == {server, alias}, "it fails")
            asked = len(api.asked)
            await until_async(lambda: len(api.asked) > asked + 4, "it is asked again")
            assert cut == [], "no other one would answer"
            async with api.serving() as second:
                api.works_at = second.port
                pool.use((alias, second))
                await until_async(lambda: {server, alias} <= set(cut), "another one answers")
                assert second not in cut
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_the_balancer_asks_as_the_kubelet(tmp_path: Path) -> None:
    async def run() -> None:
        api = RecordedApi(tmp_path)
        async with api.serving() as server:
            pool = Pool(server)
            health = asyncio.create_task(Health(pool, api.identity, seconds=0.01).run())
            learner = learn.Learner(pool, tmp_path / "servers.json", api.identity, f"https://{server}", server.port)
            assert not await learner._learn(), "this Mac has not joined yet"
            assert not pool.failing and api.asked == []
            api.join()
            await until_async(
                lambda: ("/readyz", "system:kube-controller-manager") in api.asked, "it asks with the certificate"
            )
            api.ready = 500
            await until_async(lambda: pool.failing == {server}, "an API server that is not ready fails")
            api.ready = 401
            await until_async(lambda: not pool.failing, "one that answers works")
            assert await learner._learn()
            health.cancel()
            await asyncio.gather(health, return_exceptions=True)
            hosts = ["127.0.0.1", "192.168.64.12", "192.168.64.13", "studio-2.local"]
            assert [one.host for one in pool.servers] == hosts
            assert disk.read(tmp_path / "servers.json") == pool.servers

    asyncio.run(run())


def test_an_impostor_fails(tmp_path: Path) -> None:
    """Another machine may have the address of an API server that is gone."""

    async def run() -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "other").mkdir()
        own, other = RecordedApi(tmp_path / "own"), RecordedApi(tmp_path / "other")
        own.join()
        async with other.serving() as server:
            pool = Pool(server)
            health = asyncio.create_task(Health(pool, own.identity, seconds=0.01).run())
            await until_async(lambda: pool.failing == {server}, "it is not trusted")
            health.cancel()
            await asyncio.gather(health, return_exceptions=True)
            assert other.asked == []

    asyncio.run(run())


def test_the_list_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    assert disk.read(file) == ()
    disk.write(file, (ONE, TWO))
    stamp = file.stat().st_mtime_ns, file.stat().st_ino
    disk.write(file, (ONE, TWO))
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == stamp, "what is the same is not written"
    pool = Pool()
    learner = learn.Learner(pool, file, tmp_path, "https://127.0.0.1:6444", 6443)
    learner.look()
    assert list(pool.servers) == [ONE, TWO]
    disk.write(file, (THREE,))
    learner.look()
    assert list(pool.servers) == [THREE]
    file.write_text("damaged")
    learner.look()
    assert list(pool.servers) == [THREE], "what was known counts on"


@pytest.mark.parametrize("host", ["127.0.0.9", "a" * 64 + ".local"])
def test_an_api_server_that_cannot_be_reached_is_no_error(host: str) -> None:
    """Also a name that DNS cannot have: each of its parts has at most 63 characters."""
    server = api_server(host, 1)
    assert server is not None

    async def run() -> None:
        assert not await proxy.accepts(server)
        pool = Pool(server)
        with pytest.raises(OSError, match="no API server accepts connections"):
            await Balancer(pool)._reach()
        assert pool.failing == {server}

    asyncio.run(run())
