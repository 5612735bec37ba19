"""The whole router before an API server: what it reads, how it wakes models, how it ends, and its certificate."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.routing import DemandAnswer, DemandReport, Refusal
from thunderfleet_lib.net import tls
from thunderfleet_router import certificate, demand, spans, watch
from thunderfleet_router.app import Options, Router
from thunderfleet_router.http import server as http_server
from thunderfleet_router.http.exchange import Settings

from tests.support.routers.routing import CHAT, Gateway, Model, gateways
from tests.support.waiting import until_async
from tests.unit.router.api_server import DEPLOYMENTS, NAMESPACE, SECRETS, ApiServer, api_server

ASLEEP: dict[str, Any] = {"replicas": 0, "autoscaling": {"minReplicas": 0}}


def _pair(name: str) -> tuple[str, str]:
    key = tls.new_key()
    issuer = tls.Issuer(tls.subject(name), key)
    now = datetime.now(UTC)
    built = tls.build_certificate(
        tls.subject(name), key.public_key(), issuer, tls.Validity(now - timedelta(days=1), now + timedelta(days=1)),
        ca=True, key_usages=("digital_signature", "key_cert_sign"), extended_usages=(tls.SERVER_AUTH, tls.CLIENT_AUTH),
        alternative_names=(name, "127.0.0.1"),
    )  # fmt: skip
    return tls.certificate_pem(built).decode(), tls.key_pem(key).decode()


class Operator:
    """The operator's endpoint for demand."""

    def __init__(self) -> None:
        self.pair = _pair(routing.OPERATOR_TLS_NAME)
        self.reports: list[DemandReport] = []
        self.refusals: tuple[Refusal, ...] = ()
        self.status = 200
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Operator"]:
        app = web.Application()
        app.router.add_post(routing.DEMAND_PATH, self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.pinned(*self.pair, server=True)).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.reports.append(DemandReport.model_validate_json(await request.read()))
        return web.Response(status=self.status, text=DemandAnswer(refusals=self.refusals).model_dump_json(by_alias=True))

    @property
    def wakes(self) -> int:
        return sum(entry.wake for report in self.reports for entry in report.demands)


@asynccontextmanager
async def _running(server: ApiServer, **options: Any) -> AsyncIterator[tuple[Router, aiohttp.ClientSession]]:
    """A router and a client of it."""
    kube = server.kube()
    chosen: dict[str, Any] = {
        "namespace": NAMESPACE,
        "name": "router-1",
        "addresses": ["127.0.0.1"],
        "port": 0,
        "operator": None,
        "notice_seconds": 0.0,
    } | options
    router = Router(kube, Options(**chosen))
    running = asyncio.create_task(router.run())
    try:
        async with asyncio.timeout(60):
            await router.listening.wait()
            await until_async(lambda: router.watch.synced)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{router.port}") as session:
            yield router, session
    finally:
        router.ending.set()
        async with asyncio.timeout(60):
            await running
        await kube.close()


async def _ask(session: aiohttp.ClientSession, key: str = "", **more: Any) -> aiohttp.ClientResponse:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return await session.post("/v1/chat/completions", json={"model": "tiny", **CHAT, **more}, headers=headers)


async def test_it_reads_what_it_needs_and_writes_nothing() -> None:
    async with api_server() as server, gateways("a") as (a,):
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url], keys={"alice": "sk-1"}))
        async with _running(server) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            assert (await _ask(session, "sk-1")).status == 200
            server.model(Model(urls=[a.url], keys={"alice": "sk-2"}))
            await until_async(lambda: router.watch.catalog.by_digest.keys() == {
                routing.key_digest(b"r" * 32, "sk-2")
            })  # fmt: skip
            assert [(await _ask(session, key)).status for key in ("sk-1", "sk-2")] == [401, 200]
        assert server.methods == {"GET"}
        of_secrets = {query for path, query in server.queries if path == SECRETS}
        assert of_secrets and all("fieldSelector=metadata.name%3Dthunderfleet-router" in query for query in of_secrets)


async def test_a_router_is_not_ready_before_it_has_made_a_catalog_of_what_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 3600.0)
    monkeypatch.setattr(http_server, "START_SECONDS", 0.1)
    async with api_server() as server, gateways("a") as (a,):
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        async with _running(server) as (router, session):
            assert router.watch.synced and not router.watch.catalog.deployments
            assert (await session.get("/readyz")).status == 503
            for answer in (await _ask(session), await session.get("/v1/models")):
                assert answer.status == 503 and "has not read" in (await answer.json())["error"]["message"]


async def test_without_the_api_server_routing_goes_on_and_nothing_is_woken() -> None:
    async with api_server() as server, gateways("a") as (a,):
        operator = Operator()
        server.secret(*operator.pair)
        server.model(Model(urls=[a.url], keys={"alice": "sk-1"}))
        server.model(Model("sleepy", keys={"alice": "sk-1"}, spec=ASLEEP))
        async with operator.running(), _running(server, operator=operator.url) as (router, session):
            await until_async(lambda: len(router.watch.catalog.deployments) == 2)
            await server.stop()
            await until_async(lambda: not router.watch.connected)
            for _ in range(3):
                assert (await _ask(session, "sk-1")).status == 200
            answer = await _ask(session, "sk-1", model="sleepy")
            assert answer.status == 503 and answer.headers["Retry-After"]
            assert "API server" in (await answer.json())["error"]["message"]
            assert not operator.wakes
            await server.start()
            await until_async(lambda: router.watch.connected)


async def test_the_first_request_for_a_model_that_sleeps_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # A report that waits for this time is not sent before the test's limit.
    monkeypatch.setattr(demand, "LEAST_SECONDS", 3600.0)
    async with api_server() as server:
        operator = Operator()
        server.secret(*operator.pair)
        server.model(Model(keys={"alice": "sk-1"}, spec=ASLEEP))
        async with operator.running(), _running(server, operator=operator.url) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            waiting = asyncio.create_task(_ask(session, "sk-1"))
            await until_async(lambda: operator.wakes)
            waiting.cancel()


async def test_a_wake_in_vain_ends_when_the_api_server_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "DEMAND_SECONDS", 0.05)
    async with api_server() as server:
        operator = Operator()
        server.secret(*operator.pair)
        server.model(Model(keys={"alice": "sk-1"}, spec=ASLEEP))
        async with operator.running(), _running(server, operator=operator.url) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            waiting = asyncio.create_task(_ask(session, "sk-1"))
            # The operator has taken the wake, and will not be able to write it.
            await until_async(lambda: operator.wakes)
            await server.stop()
            answer = await waiting
            assert answer.status == 503 and answer.headers["Retry-After"]
            assert "API server" in (await answer.json())["error"]["message"]
            await server.start()


async def test_a_request_with_a_key_wakes_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # No regular report comes meanwhile.
    monkeypatch.setattr(routing, "DEMAND_SECONDS", 3600.0)
    async with api_server() as server, gateways("a") as (a,):
        operator = Operator()
        server.secret(*operator.pair)
        asleep = Model(keys={"alice": "sk-1"}, spec=ASLEEP)
        server.model(asleep)
        async with operator.running(), _running(server, operator=operator.url) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            for key in ("", "sk-stranger"):
                assert (await _ask(session, key)).status == 401
            waiting = [asyncio.create_task(_ask(session, "sk-1", seed=seed)) for seed in range(5)]
            await until_async(lambda: operator.wakes)
            await until_async(lambda: router.dispatcher.waiting == 5)
            (report, *_) = [report for report in operator.reports if report.demands]
            assert report.router == "router-1" and report.demands[0].uid == asleep.uid
            # Once for all of them, and again only with the regular reports.
            assert operator.wakes == 1
            server.model(Model(keys={"alice": "sk-1"}, spec=ASLEEP | {"replicas": 1}, urls=[a.url]))
            assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 5


@pytest.mark.parametrize("spec", [{}, ASLEEP], ids=["loading", "sleeping"])
async def test_requests_that_wait_end_with_their_key_and_with_their_model(spec: dict[str, Any]) -> None:
    async with api_server() as server:
        operator = Operator()
        server.secret(*operator.pair)
        # Without a group, it sleeps or is not placed yet.
        server.model(Model(keys={"alice": "sk-1", "bob": "sk-2"}, spec=spec))
        async with operator.running(), _running(server, operator=operator.url) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            removed, kept = (asyncio.create_task(_ask(session, key)) for key in ("sk-1", "sk-2"))
            await until_async(lambda: router.dispatcher.waiting == 2)
            server.model(Model(keys={"bob": "sk-2"}, spec=spec))
            async with asyncio.timeout(30):
                answer = await removed
            assert answer.status == 401 and (await answer.json())["error"]["code"] == "invalid_api_key"
            assert router.dispatcher.waiting == 1 and not kept.done()
            server.remove(DEPLOYMENTS, "default/tiny")
            async with asyncio.timeout(30):
                answer = await kept
            assert answer.status == 404 and "was deleted" in (await answer.json())["error"]["message"]
            assert router.dispatcher.waiting == 0


async def test_anonymous_requests_wake_only_if_the_chart_allows_it() -> None:
    async with api_server() as server:
        operator = Operator()
        server.secret(*operator.pair)
        server.model(Model(spec=ASLEEP))
        async with operator.running():
            async with _running(server, operator=operator.url) as (router, session):
                await until_async(lambda: router.watch.catalog.deployments)
                answer = await _ask(session)
                assert answer.status == 503 and "sleeps" in (await answer.json())["error"]["message"]
            assert not operator.wakes
            settings = Settings(anonymous_wake=True, hold_seconds=20.0)
            async with _running(server, operator=operator.url, settings=settings) as (router, session):
                await until_async(lambda: router.watch.catalog.deployments)
                waiting = asyncio.create_task(_ask(session))
                await until_async(lambda: operator.wakes)
                waiting.cancel()


@pytest.mark.parametrize("cause", ["refused", "error", "another certificate", "away"])
async def test_a_wake_that_is_not_possible_is_said(cause: str) -> None:
    async with api_server() as server:
        operator = Operator()
        server.secret(*(operator.pair if cause != "another certificate" else _pair(routing.OPERATOR_TLS_NAME)))
        server.model(Model(keys={"alice": "sk-1"}, spec=ASLEEP))
        operator.status = 500 if cause == "error" else 200
        text = "default/tiny is not woken: minimum residency of others"
        operator.refusals = (
            Refusal(namespace="default", deployment="tiny", message=text, retry_after_seconds=17),
        ) if cause == "refused" else ()  # fmt: skip
        async with contextlib.AsyncExitStack() as stack:
            if cause != "away":
                await stack.enter_async_context(operator.running())
            url = operator.url or "https://127.0.0.1:1"
            router, session = await stack.enter_async_context(_running(server, operator=url))
            await until_async(lambda: router.watch.catalog.deployments)
            answer = await _ask(session, "sk-1")
            message = (await answer.json())["error"]["message"]
            assert answer.status == 503
            if cause == "refused":
                assert message == text and answer.headers["Retry-After"] == "17"
            else:
                assert "cannot be woken now" in message and answer.headers["Retry-After"]
            if cause == "another certificate":
                assert not operator.reports


async def test_wakes_of_one_key_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    from thunderfleet_router.decide import limits

    monkeypatch.setattr(limits, "WAKES_PER_MINUTE", 2)
    async with api_server() as server:
        operator = Operator()
        server.secret(*operator.pair)
        operator.refusals = tuple(
            Refusal(namespace="default", deployment=f"m{n}", message="no", retry_after_seconds=1) for n in range(3)
        )
        for number in range(3):
            server.model(Model(f"m{number}", keys={"alice": "sk-1"}, spec=ASLEEP))
        async with operator.running(), _running(server, operator=operator.url) as (router, session):
            await until_async(lambda: len(router.watch.catalog.deployments) == 3)
            statuses = [(await _ask(session, "sk-1", model=f"m{number}")).status for number in range(3)]
            assert statuses == [503, 503, 429]


async def test_requests_end_before_the_router_does() -> None:
    free = asyncio.Event()

    async def hold(request: web.Request, body: bytes) -> web.StreamResponse:
        await free.wait()
        return await a.answer(request, body)

    async with api_server() as server, gateways("a") as (a,):
        a.behaves = hold
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        async with _running(server) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            asked = asyncio.create_task(_ask(session, stream=True))
            await until_async(lambda: a.requests)
            router.ending.set()
            await until_async(lambda: not router.server.listener.open or (router.port and _closed(router.port)))
            free.set()
            assert "[DONE]" in await (await asked).text()


async def test_a_router_that_ends_answers_on_the_connections_that_it_has() -> None:
    free = asyncio.Event()

    async def hold(request: web.Request, body: bytes) -> web.StreamResponse:
        if b"held" in body:
            await free.wait()
        return await a.answer(request, body)

    async with api_server() as server, gateways("a") as (a,):
        a.behaves = hold
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        async with _running(server) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            held = asyncio.create_task(_ask(session, user="held"))
            await until_async(lambda: a.requests)
            # Leaves an open connection.
            await (await _ask(session)).read()
            router.ending.set()
            await until_async(lambda: router.port and _closed(router.port))
            for stream in (True, False):
                reused = await _ask(session, stream=stream) if stream else await held
                assert reused.status == 200 and reused.headers["Connection"] == "close"
                await reused.read()
                free.set()


async def test_a_router_that_ends_says_so_before_it_closes_its_port() -> None:
    async with api_server() as server, gateways("a") as (a,):
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        kube = server.kube()
        router = Router(kube, Options(NAMESPACE, "router-1", ["127.0.0.1"], 0, None, notice_seconds=3600.0))
        running = asyncio.create_task(router.run())
        await router.listening.wait()
        await until_async(lambda: router.watch.catalog.deployments)
        router.ending.set()
        await until_async(lambda: router.server.ending)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{router.port}") as new:
            assert (await new.get("/readyz")).status == 503
            assert (await _ask(new)).status == 200
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await kube.close()


class Collector:
    """Receives OTLP over HTTP."""

    def __init__(self, *, silent: bool = False) -> None:
        self.bodies: list[bytes] = []
        self._silent = silent

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/traces", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        if self._silent:
            await asyncio.Event().wait()
        return web.Response(content_type="application/x-protobuf")

    def spans(self) -> list[trace_pb2.Span]:
        found = [trace_service_pb2.ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [span for one in found for of in one.resource_spans for scope in of.scope_spans for span in scope.spans]


async def test_a_collector_gets_a_span_for_each_request_and_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    trace, parent = "ab" * 16, "cd" * 8
    async with api_server() as server, gateways("a", "b") as groups, collector.running() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        groups[0].behaves = _abort
        server.secret(*_pair("x"))
        server.model(Model(urls=[group.url for group in groups], keys={"alice": "sk-secret"}))
        async with _running(server) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            session.headers["traceparent"] = f"00-{trace}-{parent}-01"
            answer = await _ask(session, "sk-secret", user="hush")
            assert answer.status == 200
        # The router has ended, and exported what was left.
    found = {span.span_id.hex(): span for span in collector.spans()}
    (top,) = [span for span in found.values() if span.parent_span_id.hex() == parent]
    attempts = [span for span in found.values() if span.parent_span_id == top.span_id]
    assert len(found) == 3 and {span.trace_id.hex() for span in found.values()} == {trace}
    assert top.name == "POST /v1/chat/completions" and top.kind == trace_pb2.Span.SPAN_KIND_SERVER
    values = {entry.key: entry.value for entry in top.attributes}
    assert values["http.response.status_code"].int_value == 200 and values["thunderfleet.attempts"].int_value == 2
    assert values["gen_ai.request.model"].string_value == "default/tiny"
    assert values["thunderfleet.request_id"].string_value == answer.headers["X-Request-Id"]
    assert sorted(span.status.code for span in attempts) == [
        trace_pb2.Status.STATUS_CODE_UNSET,
        trace_pb2.Status.STATUS_CODE_ERROR,
    ]
    sent = {headers["traceparent"] for group in groups for _, headers, _ in group.requests}
    assert sent == {f"00-{trace}-{span.span_id.hex()}-01" for span in attempts}
    everything = b"".join(collector.bodies)
    assert b"sk-secret" not in everything and b"hush" not in everything


async def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "FLUSH_SECONDS", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    collector = Collector(silent=True)
    async with api_server() as server, gateways("a") as (a,), collector.running() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        async with _running(server) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            assert (await _ask(session)).status == 200


async def test_a_collector_that_is_away_disturbs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with api_server() as server, gateways("a") as (a,):
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        async with _running(server) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            for _ in range(3):
                assert (await _ask(session)).status == 200
            assert [headers["traceparent"] for _, headers, _ in a.requests]
    assert not [record for record in caplog.records if record.exc_info]


def _closed(port: int) -> bool:
    import socket

    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


async def test_requests_that_do_not_end_are_cut_off() -> None:
    async with api_server() as server, gateways("a") as (a,):
        a.behaves = _never(a)
        server.secret(*_pair("x"))
        server.model(Model(urls=[a.url]))
        async with _running(server, drain_seconds=0.05) as (router, session):
            await until_async(lambda: router.watch.catalog.deployments)
            asked = asyncio.create_task(_ask(session))
            await until_async(lambda: a.requests)
            router.ending.set()
            with pytest.raises(aiohttp.ClientError):
                await asked


async def _abort(request: web.Request, body: bytes) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _never(gateway: Gateway) -> Any:
    async def hold(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    return hold


async def test_its_certificate_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "CHECK_SECONDS", 0.01)

    def write(pair: tuple[str, str]) -> None:
        for name, text in zip(("tls.crt", "tls.key"), pair, strict=True):
            (tmp_path / name).write_text(text)

    async def works(port: int, pair: tuple[str, str]) -> bool:
        context = ssl.create_default_context(cadata=pair[0])
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"https://127.0.0.1:{port}/healthz", ssl=context) as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    first, second = _pair("router"), _pair("router")
    write(first)
    async with api_server() as server:
        server.secret(*_pair("x"))
        async with _running(server, tls=tmp_path) as (router, _):
            assert await works(router.port, first)
            (tmp_path / "tls.key").write_text(second[1])
            await asyncio.sleep(0)
            assert await works(router.port, first), "a key that does not fit changes nothing"
            write(second)
            async with asyncio.timeout(60):
                while not await works(router.port, second):
                    pass


def test_files_that_change_while_they_are_read_leave_the_certificate_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate of one version with the key of another would end every new connection until the next look."""
    first, second, third = (_pair("router") for _ in range(3))
    files = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(pair: tuple[str, str]) -> None:
        for file, text in zip(files, pair, strict=True):
            file.write_text(text)

    write(first)
    used = certificate.Certificate(tmp_path)
    write(second)
    load = ssl.SSLContext.load_cert_chain

    def meanwhile(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
        load(context, certfile, keyfile)
        if context is not used.context:
            files[0].write_text(third[0])

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", meanwhile)
    used.load()
    assert _handshake(used.context, second[0])
    with pytest.raises(OSError):
        used.load()
    files[1].write_text(third[1])
    used.load()
    assert _handshake(used.context, third[0])


def _handshake(server: ssl.SSLContext, trusted: str) -> bool:
    """Whether a client that trusts this certificate reaches a server with ``server``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        ssl.create_default_context(cadata=trusted).wrap_bio(to_client, to_server, server_hostname="router"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in tuple(sides):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                sides.remove(side)
    return not sides
