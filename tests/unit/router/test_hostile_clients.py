"""Clients that want to keep others out, or to get past the router: over raw connections, through the router's own listener."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_lib.host.descriptors import allow_descriptors
from thunderfleet_lib.httpapi import bodies, routed
from thunderfleet_lib.net import listener
from thunderfleet_router.decide import asked, limits
from thunderfleet_router.decide.asked import Asked
from thunderfleet_router.http import exchange, reply, server
from thunderfleet_router.http.exchange import Settings

from tests.support.routers.router import Kit, bearer, serving
from tests.support.routers.routing import CHAT, Gateway, Model, gateways
from tests.support.waiting import until_async

PATH = "/v1/chat/completions"
ASLEEP: dict[str, Any] = {"replicas": 0, "autoscaling": {"minReplicas": 0}}
KEYS = {"alice": "sk-a", "bob": "sk-b"}


def _request(
    body: bytes | None = None, *, path: str = PATH, key: str = "sk-a", length: int | None = None, more: bytes = b""
) -> bytes:
    """A POST as bytes; ``more``: further header lines."""
    sent = json.dumps({"model": "tiny", **CHAT}).encode() if body is None else body
    head = f"POST {path} HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer {key}\r\n".encode() + more
    return head + f"Content-Length: {len(sent) if length is None else length}\r\n\r\n".encode() + sent


class Raw:
    """A connection on which anything can be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def response(self) -> tuple[int, bytes]:
        """Status and body of the next response."""
        async with asyncio.timeout(60):
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
            return int(head.split()[1]), await self.reader.readexactly(int(fields[b"content-length"]))

    async def end(self) -> bytes:
        """What comes until the connection is closed."""
        found = b""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    found += data
        return found


@asynccontextmanager
async def _raw(port: int, sent: bytes = b"") -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def _session(port: int) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def _chat(session: aiohttp.ClientSession, key: str = "", model: str = "tiny", **more: Any) -> tuple[int, Any]:
    headers = bearer(key) if key else {}
    async with session.post(PATH, json={"model": model, **CHAT, **more}, headers=headers) as answer:
        return answer.status, await answer.json()


@asynccontextmanager
async def _held(*gateways: Gateway) -> AsyncIterator[None]:
    """Gateways answer nothing while the block runs."""
    free = asyncio.Event()
    for gateway in gateways:

        async def hold(request: Any, body: bytes, gateway: Gateway = gateway) -> Any:
            await free.wait()
            return await gateway.answer(request, body)

        gateway.behaves = hold
    try:
        yield
    finally:
        free.set()
        for gateway in gateways:
            gateway.behaves = None


# --- slow bodies ---


async def test_bodies_that_do_not_arrive_keep_out_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIVING_PER_CALLER", 3)
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], keys=KEYS))) as port, _session(port) as session:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(_raw(port, _request(b"{", length=1000)))
            found: tuple[int, Any] = (0, None)
            while found[0] != 429:
                found = await _chat(session, "sk-a")
            assert found[1]["error"]["code"] == "bodies_full"
            assert (await _chat(session, "sk-b"))[0] == 200
        while (await _chat(session, "sk-a"))[0] != 200:
            pass


async def test_bodies_of_strangers_leave_room_for_holders_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    # A stranger with many addresses: no address is at its own limit.
    monkeypatch.setattr(exchange, "MAX_REQUESTS", 6)
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], keys=KEYS), Model("open", urls=[a.url], repository="org/open"))
        async with serving(kit) as port, _session(port) as session, contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(_raw(port, _request(b"{", length=1000, key="sk-stranger")))
            while (await _chat(session, model="open"))[0] != 429:
                pass
            assert (await _chat(session, "sk-a"))[0] == 200


async def test_a_body_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], keys=KEYS))
        async with serving(kit) as port, _raw(port, _request(b"{", length=1000)) as slow:
            assert (await slow.response())[0] == 408
            await until_async(lambda: kit.server.inside == 0)
        assert not a.requests


async def test_large_bodies_that_wait_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_BYTES_PER_CALLER", 1 << 20)
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"], keys=KEYS), Model("other", urls=[a.url], keys=KEYS))
        async with serving(kit) as port, _session(port) as session:
            large = "x" * 700_000
            waiting = asyncio.create_task(_chat(session, "sk-a", user=large))
            await until_async(lambda: kit.dispatcher.waiting == 1)
            status, body = await _chat(session, "sk-a", "other", user=large)
            assert status == 429 and body["error"]["code"] == "bodies_full"
            assert (await _chat(session, "sk-a", "other"))[0] == 200, "small bodies pass"
            assert (await _chat(session, "sk-b", "other", user=large))[0] == 200
            kit.set(Model(urls=[a.url], keys=KEYS), Model("other", urls=[a.url], keys=KEYS))
            assert (await waiting)[0] == 200
            assert (await _chat(session, "sk-a", "other", user=large))[0] == 200, "what has ended counts no longer"


def test_bodies_that_may_wait_fit_into_what_is_held() -> None:
    # Otherwise one caller could hold everything.
    assert 2 * limits.BODY_BYTES_PER_CALLER <= limits.BODY_BYTES
    assert bodies.MAX_BODY <= limits.BODY_BYTES_PER_CALLER


# --- headers ---


async def test_headers_are_bounded() -> None:
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], keys=KEYS))) as port:
        few_large = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 4000) for number in range(9))
        async with _raw(port, _request(more=few_large)) as client:
            status, body = await client.response()
            assert status == 431 and json.loads(body)["error"]["message"].endswith(f"at most {server.HEAD_BYTES} are allowed")
        many = b"".join(b"X-%d: a\r\n" % number for number in range(server.MAX_HEADERS + 1))
        for odd in (many, b"X-Long: " + b"a" * 10_000 + b"\r\n"):
            async with _raw(port, _request(more=odd)) as client:
                assert b" 400 " in (await client.end()).split(b"\r\n")[0]
        assert not a.requests


async def test_headers_without_an_end_close_the_connection() -> None:
    async with serving(Kit()) as port, _raw(port, b"GET /v1/models HTTP/1.1\r\nHost: router\r\n") as client:

        async def send() -> None:
            number = 0
            while True:
                number += 1
                client.writer.write(b"X-%d: a\r\n" % number)
                await client.writer.drain()

        sending = asyncio.create_task(send())
        assert b" 400 " in (await client.end()).split(b"\r\n")[0]
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_what_comes_before_the_response_is_bounded() -> None:
    async with gateways("a") as (a,), _held(a):
        kit = Kit(Model(urls=[a.url], keys=KEYS))
        async with serving(kit) as port, _raw(port, _request()) as client:
            await until_async(lambda: a.requests)
            one = _request(more=b"X-Large: " + b"a" * 8000 + b"\r\n")
            client.writer.write(one * (2 * listener.EARLY_BYTES // len(one)))
            assert await client.end() == b""
            await until_async(lambda: kit.server.inside == 0 and kit.dispatcher.in_flight == 0)
        assert len(a.requests) == 1


async def test_requests_behind_a_body_in_one_packet_are_bounded() -> None:
    async with gateways("a") as (a,), _held(a), serving(kit := Kit(Model(urls=[a.url], keys=KEYS))) as port:
        one = _request(more=b"X-Large: " + b"a" * 8000 + b"\r\n")
        async with _raw(port, _request() + one * (2 * listener.EARLY_BYTES // len(one))) as client:
            assert await client.end() == b""
            await until_async(lambda: kit.server.inside == 0 and kit.dispatcher.in_flight == 0)


async def test_trailers_without_an_end_close_the_connection() -> None:
    async with gateways("a") as (a,), serving(kit := Kit(Model(urls=[a.url], keys=KEYS))) as port:
        chunked = _request(b"", more=CHUNKED).replace(b"Content-Length: 0\r\n", b"")
        async with _raw(port, chunked + b"2\r\n{}\r\n0\r\n") as client:
            await until_async(lambda: kit.server.inside == 1)
            client.writer.write(b"".join(b"X-%d: %s\r\n" % (number, b"a" * 7000) for number in range(20)))
            assert await client.end() == b""
            await until_async(lambda: kit.server.inside == 0)
        assert not a.requests


async def test_a_few_requests_may_be_sent_before_the_first_response() -> None:
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], keys=KEYS))) as port:
        async with _held(a), _raw(port, _request()) as client:
            await until_async(lambda: a.requests)
            client.writer.write(_request() * 3)
            await client.writer.drain()
            a.behaves = None
            async with _raw(port, _request()) as other:
                assert (await other.response())[0] == 200
        async with _raw(port, _request() * 4) as client:
            assert [(await client.response())[0] for _ in range(4)] == [200] * 4
            # A body of any size is no such thing.
            client.writer.write(
                _request(json.dumps({"model": "tiny", **CHAT, "user": "x" * 4 * listener.EARLY_BYTES}).encode())
            )
            assert (await client.response())[0] == 200


HIDDEN = (
    b"POST /v1/completions HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer sk-a\r\nContent-Length: 16\r\n\r\n"
    + b'{"model":"tiny"}'
)
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        pytest.param(b"Content-Length: 5\r\n" + CHUNKED, b"0\r\n\r\n" + HIDDEN, id="both lengths"),
        pytest.param(b"Content-Length: 2\r\nContent-Length: 0\r\n", b"{}" + HIDDEN, id="two lengths"),
        pytest.param(b"Content-Length: +2\r\n", b"{}" + HIDDEN, id="a sign"),
        pytest.param(b"Content-Length: 2, 2\r\n", b"{}" + HIDDEN, id="a list"),
        pytest.param(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + HIDDEN, id="another encoding"),
        pytest.param(CHUNKED + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n" + HIDDEN, id="two encodings"),
        pytest.param(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + HIDDEN, id="a space before the colon"),
        pytest.param(b"X: a\r\n " + CHUNKED, b"0\r\n\r\n" + HIDDEN, id="a folded line"),
        pytest.param(b"X: a\n" + CHUNKED, b"0\r\n\r\n" + HIDDEN, id="a bare line feed"),
        pytest.param(b"X: a\r" + CHUNKED, b"0\r\n\r\n" + HIDDEN, id="a bare carriage return"),
        pytest.param(b"X: a\0\r\nContent-Length: 0\r\n", HIDDEN, id="a null byte"),
        pytest.param(CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n" + HIDDEN, id="a negative chunk"),
        pytest.param(CHUNKED, b"ffffffffffffffffff\r\n" + HIDDEN, id="a chunk that overflows"),
        pytest.param(CHUNKED, b"0x2\r\n{}\r\n0\r\n\r\n" + HIDDEN, id="a chunk in another notation"),
    ],
)
async def test_a_request_whose_end_is_ambiguous_hides_no_other(lines: bytes, body: bytes) -> None:
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], keys=KEYS))) as port:
        head = f"POST {PATH} HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer sk-a\r\n".encode()
        async with _raw(port, head + lines + b"\r\n" + body) as client:
            # Refused, and the connection is closed: nothing after it is read as a request.
            assert (await client.end()).count(b"HTTP/1.") == 1
        assert not a.requests
        async with _raw(port, _request()) as client:
            assert (await client.response())[0] == 200


async def test_what_only_routers_may_say_comes_from_the_router() -> None:
    async with gateways("a") as (a,):
        model = Model(urls=[a.url], keys=KEYS)
        forged = {
            routed.TURN: "High,0123456789abcdef", routed.ROUTED: "forged", routed.TOKENS: "0,0", routed.GROUP: routed.FAILED,
            "Connection": "keep-alive, Authorization, X-Request-Id", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1",
            "Cookie": "a=b", "Host": "elsewhere",
        }  # fmt: skip
        more = "".join(f"{name}: {value}\r\n" for name, value in forged.items() if name != "Host").encode()
        async with serving(Kit(model)) as port:
            for path in (PATH, f"http://elsewhere{PATH}"):
                async with _raw(port, _request(path=path, more=more)) as client:
                    assert (await client.response())[0] == 200
            trailer = _request(b"", more=CHUNKED).replace(b"Content-Length: 0\r\n", b"")
            body = json.dumps({"model": "tiny", **CHAT}).encode()
            tail = b"%x\r\n%s\r\n0\r\nAuthorization: Bearer sk-b\r\n%s\r\n\r\n" % (len(body), body, more.split(b"\r\n")[0])
            async with _raw(port, trailer + tail) as client:
                assert (await client.response())[0] == 200
        assert len(a.requests) == 3
        for path, headers, _ in a.requests:
            assert path == PATH and headers["Host"] == a.url.removeprefix("http://")
            assert headers["Authorization"] == f"Bearer {model.credential()}"
            assert headers[routed.TURN].startswith("Normal,") and headers[routed.TURN] != forged[routed.TURN]
            assert headers[routed.ROUTED] == "1"
            assert not headers.keys() & {routed.TOKENS, routed.GROUP, "X-Forwarded-For", "Forwarded", "Cookie"}


# --- names ---

NAMES = (
    "\ud800", "\0", "../tiny", "%2e%2e/tiny", "default//tiny", "default/tiny/", "/tiny", "tiny ", "tiny\n", "TINY",
    "tiny\u200b", "\u202eynit", "ti\u0307ny", "\uff54iny", "\U0001f600", "<script>", "${jndi:x}", "{{7*7}}", "-", "*",
    "x" * 512,
)  # fmt: skip


@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/v1/responses", "/tokenize"])
async def test_odd_names_of_models_are_unknown_and_answered_in_json(path: str) -> None:
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], keys=KEYS))) as port:
        for name in NAMES:
            async with _raw(port, _request(json.dumps({"model": name, **CHAT}).encode(), path=path)) as client:
                status, body = await client.response()
                assert status == 404 and "is not served here; use tiny" in json.loads(body)["error"]["message"], name
        for value in ("", "x" * 513, 7, True, [], ["tiny"], {"tiny": 1}):
            async with _raw(port, _request(json.dumps({"model": value, **CHAT}).encode(), path=path)) as client:
                status, body = await client.response()
                assert status == 400 and "model" in json.loads(body)["error"]["message"], value
        assert not a.requests


@pytest.mark.parametrize("name", ["%ff", "%ed%a0%80", "%00", "%0d%0aX-A:%20b", "..%2ftiny", "%252e", "a" * 7000])
async def test_odd_names_in_paths_are_unknown(name: str) -> None:
    async with serving(Kit(Model(urls=["http://127.0.0.1:1"], keys=KEYS))) as port:
        head = f"GET /v1/models/{name} HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer sk-a\r\n\r\n"
        async with _raw(port, head.encode()) as client:
            status, body = await client.response()
            assert status == 404 and len(json.loads(body)["error"]["message"]) < 1000


@pytest.mark.parametrize("path", ["/v1/%63hat/completions", "/v1/chat%2Fcompletions", "//v1/chat/completions", "/v1/./models",
                                  "/v1/x/../models", "/metrics/../v1/models", "/v1/models?x=/v1/chat/completions"])  # fmt: skip
async def test_no_spelling_of_a_path_gets_past_the_key(path: str) -> None:
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], keys=KEYS))) as port:
        for method in (b"POST", b"GET"):
            async with _raw(port, _request(path=path, key="sk-stranger").replace(b"POST", method, 1)) as client:
                status, body = await client.response()
                assert status in (401, 404, 405) and b"tiny" not in body
        assert not a.requests


# --- wakes and waiting ---


async def test_clients_that_leave_in_the_middle_of_a_wake_leave_nothing_behind() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(keys=KEYS, spec=ASLEEP))
        async with serving(kit) as port, _session(port) as session:
            for stream in (False, True):
                body = json.dumps({"model": "tiny", **CHAT, "stream": stream}).encode()
                async with contextlib.AsyncExitStack() as stack:
                    for _ in range(20):
                        await stack.enter_async_context(_raw(port, _request(body)))
                    await until_async(lambda: kit.dispatcher.waiting == 20)
                    (demand,) = kit.dispatcher.demands()
                    assert demand.wake and demand.waiting == 20
                await until_async(lambda: kit.server.inside == 0)
                (demand,) = kit.dispatcher.demands()
                assert not demand.wake and demand.waiting == 0 and kit.dispatcher.waiting == 0
            # One that stays gets its answer, and the model nothing of those that left.
            waiting = asyncio.create_task(_chat(session, "sk-a"))
            await until_async(lambda: kit.dispatcher.waiting == 1)
            kit.set(Model(urls=[a.url], keys=KEYS, spec=ASLEEP | {"replicas": 1}))
            assert (await waiting)[0] == 200
        assert len(a.requests) == 1


async def test_who_leaves_and_comes_again_wakes_no_more_often() -> None:
    kit = Kit(Model(keys=KEYS, spec=ASLEEP))
    async with serving(kit) as port, _session(port) as session:
        for _ in range(limits.WAKES_PER_MINUTE):
            async with _raw(port, _request()):
                await until_async(lambda: kit.dispatcher.waiting == 1)
            await until_async(lambda: kit.dispatcher.waiting == 0)
        status, body = await _chat(session, "sk-a")
        assert status == 429 and body["error"]["code"] == "wakes_per_minute"
        async with _raw(port, _request(key="sk-b")):
            await until_async(lambda: kit.dispatcher.waiting == 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_five_hundred_requests_for_a_model_that_never_comes_up(stream: bool) -> None:
    allow_descriptors()
    async with gateways("a") as (a,):
        other = Model("other", urls=[a.url], keys={"bob": "sk-b"}, repository="org/other")
        kit = Kit(Model(urls=[a.url], states=["Loading"], keys=KEYS), other, settings=Settings(hold_seconds=3600.0))
        async with serving(kit) as port, _session(port) as session:

            async def ask(number: int) -> tuple[int, str]:
                body = {"model": "tiny", **CHAT, "stream": stream, "seed": number}
                async with session.post(PATH, json=body, headers=bearer("sk-a")) as answer:
                    return answer.status, await answer.text()

            asked = [asyncio.create_task(ask(number)) for number in range(500)]
            await until_async(lambda: sum(task.done() for task in asked) == 500 - limits.WAITING_PER_CALLER)
            assert {task.result()[0] for task in asked if task.done()} == {429}
            assert kit.dispatcher.waiting == limits.WAITING_PER_CALLER
            assert [(await _chat(session, "sk-b", "other"))[0] for _ in range(5)] == [200] * 5
            waiting = asyncio.create_task(_chat(session, "sk-b"))
            await until_async(lambda: kit.dispatcher.waiting == limits.WAITING_PER_CALLER + 1)
            kit.set(Model(urls=[a.url], states=["GaveUp"], keys=KEYS), other)
            assert (await waiting)[0] == 503
            texts = [text for _, text in await asyncio.gather(*asked)]
            assert sum("has failed" in text for text in texts) == limits.WAITING_PER_CALLER
            await until_async(lambda: kit.server.inside == 0)
            assert kit.dispatcher.waiting == 0


async def test_strangers_who_wait_leave_room_for_holders_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from thunderfleet_router import dispatcher

    monkeypatch.setattr(dispatcher, "MAX_WAITING", 6)
    kit = Kit(Model("open", repository="org/open"), Model(keys=KEYS))
    async with serving(kit) as port, _session(port) as session:
        waiting = [asyncio.create_task(_chat(session, model="open", seed=number)) for number in range(3)]
        await until_async(lambda: kit.dispatcher.waiting == 3)
        status, body = await _chat(session, model="open")
        assert status == 429 and "without an API key" in body["error"]["message"]
        waiting.append(asyncio.create_task(_chat(session, "sk-a")))
        await until_async(lambda: kit.dispatcher.waiting == 4)
        kit.set()
        assert {status for status, _ in await asyncio.gather(*waiting)} == {404}


# --- bodies that take long to read ---


async def test_large_bodies_are_parsed_one_after_the_other_and_never_by_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PARSED_HERE_BYTES", 1000)
    both, here, met, parse, renamed = threading.Barrier(2), threading.get_ident(), list[str](), asked.parse, Asked.renamed

    def watched(what: str) -> None:
        if threading.get_ident() == here:
            met.append(f"{what} by the event loop")
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
            met.append(f"{what} beside another one")

    def watched_parse(body: bytes) -> Asked:
        watched("parsed")
        return parse(body)

    def watched_renamed(self: Asked, model: str) -> bytes:
        watched("renamed")
        return renamed(self, model)

    monkeypatch.setattr(asked, "parse", watched_parse)
    monkeypatch.setattr(Asked, "renamed", watched_renamed)
    async with gateways("a") as (a,), serving(Kit(Model(urls=[a.url], aliases=["gpt"]))) as port, _session(port) as session:
        found = await asyncio.gather(*(_chat(session, model="gpt", user="x" * 2000) for _ in range(2)))
        assert [status for status, _ in found] == [200, 200] and not met


# --- clients that read slowly ---


@asynccontextmanager
async def _unread(port: int, key: str) -> AsyncIterator[Raw]:
    """A client that reads nothing of its stream, with small buffers."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=end, limit=4096)
    writer.write(_request(json.dumps({"model": "tiny", **CHAT, "stream": True}).encode(), key=key))
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def _floods(gateway: Gateway) -> None:
    """Streams of the gateway have more than buffers hold; other answers are as usual."""

    async def behaves(request: web.Request, body: bytes) -> web.StreamResponse:
        if not json.loads(body).get("stream"):
            return await gateway.answer(request, body)
        response = await gateway.begin(request)
        while True:
            await response.write(gateway.token(0) * 1000)

    gateway.behaves = behaves


async def test_clients_that_do_not_read_keep_no_place_at_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "STALLED_SECONDS", 0.05)
    async with gateways("a") as (a,):
        _floods(a)
        kit = Kit(Model(urls=[a.url], slots=1, keys=KEYS))
        async with serving(kit) as port, _session(port) as session, contextlib.AsyncExitStack() as stack:
            # A group of one place gets two requests.
            slow = [await stack.enter_async_context(_unread(port, "sk-a")) for _ in range(2)]
            await until_async(lambda: kit.dispatcher.in_flight == 2)
            async with asyncio.timeout(20):
                assert (await _chat(session, "sk-b"))[0] == 200
            assert kit.dispatcher.in_flight == 2, "their clients may go on"
            # Whoever reads again has a place again, and gives it up at the end.
            reading = [asyncio.create_task(one.end()) for one in slow]
            pool = next(iter(kit.dispatcher.pools.values()))
            await until_async(lambda: not pool.stalled)
        await asyncio.gather(*reading)
        await until_async(lambda: kit.dispatcher.in_flight == 0 and not pool.stalled)


async def test_a_key_has_few_clients_that_do_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "STALLED_SECONDS", 0.05)
    monkeypatch.setattr(limits, "STALLED_PER_CALLER", 2)
    async with gateways("a") as (a,):
        _floods(a)
        kit = Kit(Model(urls=[a.url], slots=1, keys=KEYS))
        async with serving(kit) as port, _session(port) as session, contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(_unread(port, "sk-a"))
            # The others are disconnected.
            await until_async(lambda: kit.server.inside == 2 and len(a.requests) == 4)
            await stack.enter_async_context(_unread(port, "sk-b"))
            async with asyncio.timeout(20):
                assert (await _chat(session, "sk-b"))[0] == 200
            assert kit.server.inside == 3


# --- keys that are removed ---


async def test_a_key_that_is_removed_ends_the_wait_of_its_requests() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"], keys=KEYS))
        async with serving(kit) as port, _session(port) as session:
            removed = asyncio.create_task(_chat(session, "sk-a"))
            kept = asyncio.create_task(_chat(session, "sk-b"))
            await until_async(lambda: kit.dispatcher.waiting == 2)
            kit.set(Model(urls=[a.url], states=["Loading"], keys={"bob": "sk-b"}))
            status, body = await removed
            assert status == 401 and body["error"]["code"] == "invalid_api_key"
            kit.set(Model(urls=[a.url], keys={"bob": "sk-b"}))
            assert (await kept)[0] == 200
        assert len(a.requests) == 1


async def test_a_model_that_gets_keys_ends_the_wait_of_strangers() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"]))
        async with serving(kit) as port, _session(port) as session:
            stranger = asyncio.create_task(_chat(session))
            holder = asyncio.create_task(_chat(session, "sk-a"))
            await until_async(lambda: kit.dispatcher.waiting == 2)
            kit.set(Model(urls=[a.url], states=["Loading"], keys=KEYS))
            assert (await stranger)[0] == 401
            kit.set(Model(urls=[a.url], keys=KEYS))
            assert (await holder)[0] == 200


async def test_a_request_whose_key_was_removed_is_not_sent_to_another_group() -> None:
    async with gateways("a", "b") as (a, b):
        kit = Kit(Model(urls=[a.url, b.url], keys=KEYS))
        for gateway in (a, b):

            async def fails(request: web.Request, body: bytes) -> web.StreamResponse:
                kit.set(Model(urls=[a.url, b.url], keys={"bob": "sk-b"}))
                assert request.transport is not None
                request.transport.abort()
                return web.Response()

            gateway.behaves = fails
        async with serving(kit) as port, _session(port) as session:
            assert (await _chat(session, "sk-a"))[0] == 401
        assert len(a.requests) + len(b.requests) == 1


# --- bytes in headers ---


@pytest.mark.parametrize(
    "line",
    [b"traceparent: \xff\xfe", b"Accept: \xe9", b"anthropic-beta: a\tb", b"anthropic-beta: " + b"x" * 8000,
     b"tracestate: \xf0\x9f\x98\x80", b"X-Request-Id: \xff", b"X-Request-Id: a\tb"],
)  # fmt: skip
async def test_odd_bytes_in_headers_are_passed_on_or_refused_and_fail_nothing(line: bytes) -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], keys=KEYS))
        async with serving(kit) as port, _raw(port, _request(more=line + b"\r\n")) as odd:
            status, body = await odd.response()
            assert status in (200, 400), body
        assert kit.value("group_failures_total") == 0
