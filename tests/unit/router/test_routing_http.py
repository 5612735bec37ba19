"""The router over HTTP, before small gateways: where requests go, what clients get, and what happens when a group fails."""

import asyncio
import contextlib
import json
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.plan import RouterPlan
from thunderfleet_crds.exchange.routing import KeyLimits
from thunderfleet_crds.vocabulary import KeyPriority
from thunderfleet_lib import logs
from thunderfleet_lib.httpapi import routed
from thunderfleet_lib.httpapi.paths import FOR_CLIENTS, POSTS, of_api
from thunderfleet_lib.net.listener import Listener
from thunderfleet_router import pool
from thunderfleet_router.decide import balance, suspects
from thunderfleet_router.decide.catalog import build
from thunderfleet_router.http import exchange, metrics, reply, server, upstream
from thunderfleet_router.http.exchange import Settings
from thunderfleet_runner.api.http.admission import Admission
from thunderfleet_runner.api.http.gateway import Gateway as GroupGateway
from thunderfleet_runner.api.http.turns import place_of

from tests.support.generated import examples
from tests.support.routers.router import Client, Kit, bearer, client_of
from tests.support.routers.routing import CHAT, KEYS, Gateway, Model, gateways
from tests.support.waiting import until_async

STREAM = CHAT | {"stream": True}


async def _chat(client: Client, model: str = "tiny", **more: Any) -> tuple[int, dict[str, Any]]:
    headers = more.pop("headers", {})
    answer = await client.post("/v1/chat/completions", json={"model": model, **CHAT, **more}, headers=headers)
    return answer.status, await answer.json()


def _held(gateway: Gateway) -> asyncio.Event:
    """Lets the gateway hold its answers until the event is set."""
    free = asyncio.Event()

    async def hold(request: web.Request, body: bytes) -> web.StreamResponse:
        await free.wait()
        return await gateway.answer(request, body)

    gateway.behaves = hold
    return free


def test_the_router_passes_on_every_path_of_a_gateway_that_takes_a_body() -> None:
    # Without a group: only its paths are needed.
    bare = GroupGateway.__new__(GroupGateway)
    bare.listener = Listener(1)
    found = {route.resource.canonical for route in bare.app().router.routes() if route.method == "POST" and route.resource}
    assert found == set(POSTS)


def test_the_router_answers_every_path_of_a_gateway_that_clients_read() -> None:
    gateway, router = GroupGateway.__new__(GroupGateway), server.Server.__new__(server.Server)
    gateway.listener = router.listener = Listener(1)
    router._page = None

    def read(app: web.Application) -> set[str]:
        found = {route.resource.canonical for route in app.router.routes() if route.method == "GET" and route.resource}
        return {path for path in found if of_api(path)}

    assert read(router.app()) == read(gateway.app()) != set()
    assert {path for path in read(gateway.app()) if "{" not in path} <= set(FOR_CLIENTS.replace(" or ", ", ").split(", "))


async def _abort(request: web.Request, body: bytes) -> web.StreamResponse:
    """What a group does whose processes are killed."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_one_url_answers_for_all_models_and_all_groups_get_requests() -> None:
    async with gateways("a", "b", "c") as (a, b, c):
        kit = Kit(Model(urls=[a.url, b.url]), Model("other", urls=[c.url], repository="org/other"))
        async with client_of(kit) as client:
            groups = [(await _chat(client))[1]["group"] for _ in range(8)]
            assert sorted(groups) == ["a"] * 4 + ["b"] * 4
            assert (await _chat(client, "org/other"))[1]["group"] == "c"
            assert (await _chat(client, "default/other"))[1]["group"] == "c"
            listed = await (await client.get("/v1/models")).json()
            assert [entry["id"] for entry in listed["data"]] == ["other", "tiny"]
            one = await client.get("/v1/models/default/tiny")
            assert (await one.json())["root"] == "org/tiny"


async def test_the_log_names_request_deployment_and_group_but_no_key(caplog: pytest.LogCaptureFixture) -> None:
    formatter = logs.JsonFormatter("router")
    said: list[str] = []
    with mock.patch.object(caplog.handler, "emit", lambda record: said.append(formatter.format(record))):
        async with gateways("a") as (a,), client_of(Kit(Model(urls=[a.url], keys={"alice": "sk-alice-secret"}))) as client:
            header = {**bearer("sk-alice-secret"), "X-Request-Id": "mine-1"}
            with caplog.at_level("INFO"):
                assert (await client.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=header)).status == 200
                assert (await client.get("/v1/models", headers=bearer("sk-wrong-secret"))).status == 401
    entries = [json.loads(line) for line in said if "thunderfleet_router" in line]
    first = next(one for one in entries if one.get("request") == "mine-1")
    wanted = {"namespace": "default", "deployment": "tiny", "group": 0, "code": 200, "attempts": 1, "key": "alice"}
    assert wanted.items() <= first.items() and first["message"] == "POST /v1/chat/completions: 200"
    assert [one["code"] for one in entries if one["message"].startswith("GET")] == [401]
    assert "secret" not in "".join(said)


async def test_bodies_are_not_hashed_while_no_group_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    digest = suspects.digest

    def noted(uid: str, path: str, body: bytes) -> str:
        hashed.append(body)
        return digest(uid, path, body)

    monkeypatch.setattr(suspects, "digest", noted)
    async with gateways("a", "b") as (a, b), client_of(Kit(Model(urls=[a.url, b.url]))) as client:
        assert [(await _chat(client, seed=seed))[0] for seed in range(2)] == [200] * 2 and not hashed
        a.behaves = _abort
        assert [(await _chat(client, seed=seed))[0] for seed in range(2, 4)] == [200] * 2
        assert len(hashed) >= 1


async def test_a_stream_arrives_as_the_gateway_sends_it() -> None:
    async with gateways("a") as (a,), client_of(Kit(Model(urls=[a.url]))) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM})
        assert answer.headers["Content-Type"] == "text/event-stream" and answer.headers[routed.ANSWERED] == "0"
        events = (await answer.text()).split("\n\n")
        assert [json.loads(event[6:])["choices"][0]["delta"]["content"] for event in events[:3]] == ["a0 ", "a1 ", "a2 "]
        assert events[3] == "data: [DONE]"


async def test_gateways_get_the_credential_of_their_group_and_no_key() -> None:
    async with gateways("a", "b") as (a, b):
        model = Model(urls=[a.url, b.url], keys={"alice": "sk-alice"})
        async with client_of(Kit(model)) as client:
            for header in (bearer("sk-alice"), {"x-api-key": "sk-alice"}):
                sent = {**header, "Cookie": "c=1", "X-Request-Id": "mine-1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
                answer = await client.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=sent)
                assert answer.status == 200 and answer.headers["X-Request-Id"] == "mine-1"
        for index, gateway in enumerate((a, b)):
            ((_, headers, _),) = gateway.requests
            assert headers["Authorization"] == f"Bearer {model.credential(index)}"
            assert headers["X-Request-Id"] == "mine-1" and headers["traceparent"].startswith("00-aaaa")
            assert "Cookie" not in headers and "x-api-key" not in headers and "sk-alice" not in str(headers)


async def test_an_alias_reaches_the_gateway_as_a_name_that_it_knows() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], aliases=["gpt-4o"]), settings=Settings({"best": "default/tiny"}))
        async with client_of(kit) as client:
            for alias in ("gpt-4o", "best"):
                assert (await _chat(client, alias))[0] == 200
        assert [json.loads(body)["model"] for _, _, body in a.requests] == ["default/tiny"] * 2


@pytest.mark.parametrize("key", ["", "sk-wrong", "x" * 5000])
async def test_strangers_learn_nothing(key: str) -> None:
    async with gateways("a") as (a,), client_of(Kit(Model(urls=[a.url], keys={"alice": "sk-alice"}))) as client:
        for path in ("/v1/models", "/v1/models/tiny", "/v1/models/nothing"):
            assert (await client.get(path, headers=bearer(key))).status == 401
        for name in ("tiny", "nothing"):
            status, body = await _chat(client, name, headers=bearer(key))
            assert status == 401 and body["error"]["code"] == "invalid_api_key"
        assert not a.requests


async def test_holders_of_a_key_see_their_models_only() -> None:
    async with gateways("a", "b") as (a, b):
        first = Model(urls=[a.url], namespace="one", keys={"alice": "sk-1"})
        second = Model(urls=[b.url], namespace="two", keys={"bob": "sk-2"}, aliases=["gpt-4o"])
        async with client_of(Kit(first, second)) as client:
            listed = await (await client.get("/v1/models", headers=bearer("sk-1"))).json()
            assert [entry["id"] for entry in listed["data"]] == ["tiny"]
            assert (await _chat(client, headers=bearer("sk-2")))[1]["group"] == "b"
            for name in ("two/tiny", "gpt-4o", "nothing"):
                status, body = await _chat(client, name, headers=bearer("sk-1"))
                assert status == 404 and body["error"]["message"].endswith("is not served here; use tiny")


async def test_a_deployment_with_keys_is_closed_until_they_are_published() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], keys={"alice": "sk-1"}, published=False))
        async with client_of(kit) as client:
            assert (await _chat(client, headers=bearer("sk-1")))[0] == 401
            kit.set(Model(urls=[a.url], keys={"alice": "sk-1"}))
            assert (await _chat(client, headers=bearer("sk-1")))[0] == 200
            kit.set(Model(urls=[a.url], keys={"alice": "sk-rotated"}))
            assert (await _chat(client, headers=bearer("sk-1")))[0] == 401


async def test_errors_have_the_form_of_their_dialect() -> None:
    async with client_of(Kit(Model())) as client:
        answer = await client.post("/v1/messages", json={"model": "nothing", **CHAT})
        body = await answer.json()
        assert answer.status == 404 and body["type"] == "error" and body["error"]["type"] == "not_found_error"
        assert (await client.get("/v1/chat/completions")).status == 405
        assert (await client.post("/v1/nothing")).status == 404


async def test_a_request_without_an_answer_is_sent_to_another_group() -> None:
    async with gateways("a", "b") as (a, b):
        a.behaves = _abort
        kit = Kit(Model(urls=[a.url, b.url]))
        async with client_of(kit) as client:
            for body in (CHAT, STREAM):
                answers = [
                    client.post("/v1/chat/completions", json={"model": "tiny", **body, "seed": number}) for number in range(4)
                ]
                for answer in await asyncio.gather(*answers):
                    assert answer.status == 200 and "b0" in await answer.text()
        assert a.requests and kit.value("retries_total") == len(a.requests)


async def test_comments_do_not_count_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def comment(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await a.begin(request)
        await response.write(b": still working\n\n: still wor")
        return await _abort(request, body)

    async with gateways("a", "b") as (a, b):
        a.behaves = comment
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            alone = await client.post("/v1/messages", json={"model": "tiny", **STREAM})
            # The status is sent, so the error is an event.
            assert alone.status == 200
            *_, last = (await alone.text()).strip().split("\n\n")
            assert last.startswith("event: error\ndata: ") and "overloaded_error" in last
            kit.set(Model(urls=[a.url, b.url], epoch=2))
            answers = [
                await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM, "seed": seed}) for seed in (1, 2)
            ]
            for answer in answers:
                text = await answer.text()
                assert "b2" in text and text.count("[DONE]") == 1


async def test_an_error_event_of_a_group_that_failed_is_not_shown_if_another_can_answer() -> None:
    async def fail(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await a.begin(request)
        await response.write(
            b': still working\n\ndata: {"error": {"message": "rank 1 was killed", "code": "group_failed"}}\n\n'
        )
        await response.write(f": {routed.GROUP}: {routed.FAILED}\n\n".encode())
        await response.write_eof()
        return response

    async with gateways("a", "b") as (a, b):
        a.behaves = fail
        async with client_of(Kit(Model(urls=[a.url, b.url]))) as client:
            for seed in range(2):
                answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM, "seed": seed})
                text = await answer.text()
                assert "killed" not in text and "b2" in text
        assert a.requests


async def test_a_stream_that_is_cut_ends_with_an_error_event() -> None:
    async def cut(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await a.begin(request)
        await response.write(a.token(0))
        return await _abort(request, body)

    async with gateways("a", "b") as (a, b):
        a.behaves = b.behaves = cut
        async with client_of(Kit(Model(urls=[a.url, b.url]))) as client:
            answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM})
            first, last = (await answer.text()).strip().split("\n\n")
            assert "0 " in first and json.loads(last[6:])["error"]["code"] == "group_failed"
        assert len(a.requests) + len(b.requests) == 1


async def test_a_stream_that_is_cut_within_an_event_ends_with_whole_events() -> None:
    async def half(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await a.begin(request)
        await response.write(a.token(0) + a.token(1)[:-7])
        await asyncio.sleep(0)
        return await _abort(request, body)

    async with gateways("a") as (a,), client_of(Kit(Model(urls=[a.url]))) as client:
        a.behaves = half
        answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM})
        events = (await answer.text()).strip().split("\n\n")
        parsed = [json.loads(event.removeprefix("data: ")) for event in events]
        assert parsed[-1]["error"]["code"] == "group_failed"
        assert [one["choices"][0]["delta"]["content"] for one in parsed[:-1]] == ["a0 "]


async def test_a_whole_answer_that_is_cut_does_not_look_complete() -> None:
    async def half(request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b"[" + b"0," * upstream.BUFFER_BYTES)
        return await _abort(request, body)

    async with gateways("a") as (a,), client_of(Kit(Model(urls=[a.url]))) as client:
        a.behaves = half
        with pytest.raises(aiohttp.ClientError):
            answer = await client.post("/v1/chat/completions", json={"model": "tiny", **CHAT})
            await answer.read()


async def test_equal_requests_at_one_failure_are_all_sent_to_another_group() -> None:
    async with gateways("a", "b") as (a, b):
        waiting: list[web.Request] = []
        dies = asyncio.Event()

        async def die(request: web.Request, body: bytes) -> web.StreamResponse:
            waiting.append(request)
            await dies.wait()
            return await _abort(request, body)

        a.behaves = die
        kit = Kit(Model(urls=[a.url, b.url], states=["Ready", "Loading"]))
        async with client_of(kit) as client:
            asked = [asyncio.create_task(_chat(client)) for _ in range(3)]
            await until_async(lambda: len(waiting) == 3)
            kit.set(Model(urls=[a.url, b.url]))
            dies.set()
            assert [(status, body.get("group")) for status, body in await asyncio.gather(*asked)] == [(200, "b")] * 3


async def test_a_request_that_was_there_at_two_failures_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with gateways("a", "b", "c") as (a, b, c):
        a.behaves = b.behaves = c.behaves = _abort
        kit = Kit(Model(urls=[a.url, b.url, c.url]))
        async with client_of(kit) as client:
            status, body = await _chat(client)
            assert status == 422 and body["error"]["code"] == "request_suspected"
            assert (await _chat(client))[0] == 422
            assert len(a.requests) + len(b.requests) + len(c.requests) == 2
            sent = next(one for gateway in (a, b, c) for _, _, one in gateway.requests)
            digest = suspects.digest("uid-default-tiny", "/v1/chat/completions", sent)
            assert f"the request is refused: digest {digest} was in flight at two group failures" in caplog.messages
            a.behaves = b.behaves = c.behaves = None
            assert (await _chat(client, seed=1))[0] == 200


async def test_who_makes_groups_fail_has_only_own_requests_refused() -> None:
    """Mallory has what kills a group, and sends at the same time what Alice sends too."""
    async with gateways("a", "b") as (a, b):
        at_work: list[web.Request] = []

        async def die_with_the_killer(request: web.Request, body: bytes) -> web.StreamResponse:
            if b"killer" not in body:
                at_work.append(request)
                await asyncio.Event().wait()
            await until_async(lambda: at_work)
            for other in at_work:
                assert other.transport is not None
                other.transport.abort()
            at_work.clear()
            return await _abort(request, body)

        a.behaves = b.behaves = die_with_the_killer
        kit = Kit(Model(urls=[a.url], keys={"alice": "1", "mallory": "2"}))
        async with client_of(kit) as client:
            for number, gateway in enumerate((a, b)):
                kit.set(Model(urls=[gateway.url], keys={"alice": "1", "mallory": "2"}, epoch=number + 1))
                copied = asyncio.create_task(_chat(client, headers=bearer("2")))
                killer = asyncio.create_task(_chat(client, headers=bearer("2"), user=f"killer {number}"))
                assert {(await copied)[0], (await killer)[0]} <= {422, 503}
            a.behaves = b.behaves = None
            kit.set(Model(urls=[a.url, b.url], keys={"alice": "1", "mallory": "2"}, epoch=3))
            assert (await _chat(client, headers=bearer("2")))[0] == 422
            assert (await _chat(client, headers=bearer("1")))[0] == 200
            # Her answer clears nobody else's request.
            assert (await _chat(client, headers=bearer("2")))[0] == 422


async def test_a_group_that_is_not_there_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BUSY_SECONDS", 0.01)
    async with gateways("a", "b") as (a, b):
        await a.stop()
        kit = Kit(Model(urls=[a.url, b.url]))
        async with client_of(kit) as client:
            assert [await _chat(client) for _ in range(4)] == [(200, (await _chat(client))[1])] * 4
        assert kit.value("retries_total") == 0 and kit.value("group_failures_total") == 0


async def test_what_a_gateway_does_not_take_goes_elsewhere() -> None:
    async def busy(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response({"error": {}}, status=429, headers={"Retry-After": "5"})

    async with gateways("a", "b") as (a, b):
        a.behaves = busy
        async with client_of(Kit(Model(urls=[a.url, b.url]))) as client:
            for _ in range(4):
                assert (await _chat(client))[1]["group"] == "b"
        assert a.requests


async def test_draining_groups_get_nothing_new_and_finish_what_they_have() -> None:
    async with gateways("a", "b") as (a, b):
        free = _held(a)
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            before = asyncio.create_task(_chat(client))
            await until_async(lambda: a.requests)
            kit.set(Model(urls=[a.url, b.url], states=["Draining", "Ready"]))
            assert [(await _chat(client))[1]["group"] for _ in range(4)] == ["b"] * 4
            free.set()
            assert (await before)[1]["group"] == "a"


async def test_requests_of_a_group_that_died_silently_go_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOST_SECONDS", 0.01)
    async with gateways("a", "b") as (a, b):
        _held(a)
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            before = asyncio.create_task(_chat(client))
            await until_async(lambda: a.requests)
            kit.set(Model(urls=[a.url, b.url], states=["BackingOff", "Ready"]))
            assert (await before)[1]["group"] == "b"


async def test_a_gateway_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upstream, "SILENT_STREAM_SECONDS", 0.05)
    async with gateways("a") as (one,):
        asked, left = asyncio.Event(), asyncio.Event()

        async def silent(request: web.Request, body: bytes) -> web.StreamResponse:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            raise AssertionError

        one.behaves = silent
        # Again if the time was over before its gateway had the request.
        while not asked.is_set():
            async with client_of(Kit(Model(urls=[one.url]))) as client:
                answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
                assert answer.status == 503 and (await answer.json())["error"]["code"] == "group_failed"
        # Its gateway is told to stop.
        await left.wait()
    assert "failed during a request: its gateway sent nothing for 0.05 s" in caplog.text


async def test_requests_wait_for_a_loading_group() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"]))
        async with client_of(kit) as client:
            waiting = [asyncio.create_task(_chat(client, seed=seed)) for seed in range(3)]
            await until_async(lambda: kit.dispatcher.waiting == 3)
            kit.set(Model(urls=[a.url]))
            assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 3


async def test_a_waiting_stream_is_kept_alive_and_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "FIRST_COMMENT_SECONDS", 0.0)
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"]), settings=Settings(hold_seconds=0.3))
        async with client_of(kit) as client:
            answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM})
            assert answer.status == 200
            first, *_, last = (await answer.text()).strip().split("\n\n")
            assert first == ": waiting" and json.loads(last[6:])["error"]["code"] == "not_ready"
            status, body = await _chat(client)
            assert status == 503 and "waited" in body["error"]["message"]
        assert kit.dispatcher.waiting == 0


async def test_waiting_is_bounded_for_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from thunderfleet_router.decide import limits

    monkeypatch.setattr(limits, "WAITING_PER_CALLER", 2)
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"], keys={"alice": "1", "bob": "2"}))
        async with client_of(kit) as client:
            waiting = [asyncio.create_task(_chat(client, headers=bearer("1"), seed=seed)) for seed in range(2)]
            await until_async(lambda: kit.dispatcher.waiting == 2)
            assert (await _chat(client, headers=bearer("1")))[0] == 429
            waiting.append(asyncio.create_task(_chat(client, headers=bearer("2"))))
            await until_async(lambda: kit.dispatcher.waiting == 3)
            kit.set(Model(urls=[a.url], keys={"alice": "1", "bob": "2"}))
            assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 3


async def test_keys_take_turns() -> None:
    async with gateways("a") as (a,):
        free = _held(a)
        model = Model(urls=[a.url], slots=1, keys={"alice": "1", "bob": "2"})
        kit = Kit(model)
        async with client_of(kit) as client:
            tasks = [asyncio.create_task(_chat(client, headers=bearer("1"), user=f"alice {n}")) for n in range(8)]
            await until_async(lambda: kit.dispatcher.waiting == 6)
            tasks.append(asyncio.create_task(_chat(client, headers=bearer("2"), user="bob")))
            await until_async(lambda: kit.dispatcher.waiting == 7)
            free.set()
            await asyncio.gather(*tasks)
        order = [json.loads(body)["user"] for _, _, body in a.requests]
        # Two were sent at once; then each key has a turn.
        assert order.index("bob") <= 3


async def test_limits_of_a_key_hold_in_each_router() -> None:
    limited = KeyLimits(requests_in_flight=1, tokens_per_minute=15)
    async with gateways("a") as (a,):
        model = Model(urls=[a.url], keys={"alice": "1", "bob": "2"}, limits={"alice": limited})
        kits = [Kit(model) for _ in range(3)]
        for kit in kits:
            dispatcher, free = kit.dispatcher, _held(a)
            async with client_of(kit) as client:
                first = asyncio.create_task(_chat(client, headers=bearer("1")))
                await until_async(lambda dispatcher=dispatcher: dispatcher.in_flight)  # type: ignore[misc]
                answer = await client.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=bearer("1"))
                assert answer.status == 429 and (await answer.json())["error"]["code"] == "requests_in_flight"
                other = asyncio.create_task(_chat(client, headers=bearer("2")))
                free.set()
                assert (await first)[0] == (await other)[0] == 200
                # Ten tokens each: the second takes the bucket below zero.
                assert (await _chat(client, headers=bearer("1")))[0] == 200
                answer = await client.post("/v1/chat/completions", json={"model": "tiny", **CHAT}, headers=bearer("1"))
                assert answer.status == 429 and (await answer.json())["error"]["code"] == "tokens_per_minute"
                assert int(answer.headers["Retry-After"]) >= 1
                assert (await _chat(client, headers=bearer("2")))[0] == 200
                text = await (await client.get("/metrics")).text()
                for limit in ("requests_in_flight", "tokens_per_minute"):
                    assert f'thunderfleet_router_limited_total{{key="alice",limit="{limit}",model="default/tiny"}} 1.0' in text
                assert 'thunderfleet_router_tokens_total{key="bob",model="default/tiny"} 20.0' in text


async def test_metrics_name_a_key_as_the_model_does_and_never_its_value() -> None:
    """One key, which is the field ``ci`` of the Secret of one ModelDeployment and ``people`` of that of another."""
    async with gateways("a") as (a,):
        one = KeyLimits(tokens_per_minute=1)
        first = Model("first", urls=[a.url], keys={"ci": "sk-secret"}, limits={"ci": one})
        second = Model("second", urls=[a.url], keys={"people": "sk-secret"}, limits={"people": one})
        async with client_of(Kit(first, second)) as client:
            for model in ("first", "first", "second", "second"):
                await client.post("/v1/chat/completions", json={"model": model, **CHAT}, headers=bearer("sk-secret"))
            text = await (await client.get("/metrics")).text()
        for name, key in (("first", "ci"), ("second", "people")):
            assert (
                f'thunderfleet_router_limited_total{{key="{key}",limit="tokens_per_minute",model="default/{name}"}} 1.0' in text
            )
        assert "sk-secret" not in text


def test_series_of_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_CALLERS", 2)
    shown = metrics.RouterMetrics(lambda: 0, lambda: 0, lambda: True)
    found = [shown.caller(f"default/{name}", "ci") for name in ("a", "b", "c", "a")]
    assert found == [("default/a", "ci"), ("default/b", "ci"), (metrics.OTHER, metrics.OTHER), ("default/a", "ci")]


async def test_a_key_has_its_limit_once_for_each_router() -> None:
    async with gateways("a") as (a,), contextlib.AsyncExitStack() as stack:
        free = _held(a)
        model = Model(urls=[a.url], keys={"alice": "1"}, limits={"alice": KeyLimits(requests_in_flight=1)})
        kits = [Kit(model) for _ in range(3)]
        clients = [await stack.enter_async_context(client_of(kit)) for kit in kits]
        tasks = [asyncio.create_task(_chat(client, headers=bearer("1"))) for client in clients]
        await until_async(lambda: len(a.requests) == 3)
        for client in clients:
            assert (await _chat(client, headers=bearer("1")))[0] == 429
        free.set()
        assert [(await task)[0] for task in tasks] == [200] * 3


@pytest.mark.parametrize("priority", ["High", "Normal"])
async def test_keys_take_turns_at_a_group_that_several_routers_use(priority: str) -> None:
    """Three routers before the queue of one gateway, where a key that sends much at two of them meets one at the third."""
    low = KeyPriority.LOW if priority == "High" else KeyPriority.NORMAL
    limits = {"alice": KeyLimits(priority=low), "bob": KeyLimits(priority=KeyPriority(priority))}
    async with gateways("a") as (a,), contextlib.AsyncExitStack() as stack:
        model = Model(
            urls=[a.url],
            slots=1,
            keys={"alice": "1", "bob": "2"},
            limits=limits | {"bob": KeyLimits(priority=KeyPriority(priority))},
        )
        plan = RouterPlan(key_id="0" * 16, digest=routing.credential_digest(model.credential()))
        admission, order, free = Admission(budget=100, slots=1, queue=16), list[str](), asyncio.Event()

        async def queue(request: web.Request, body: bytes) -> web.StreamResponse:
            slot = await admission.enter(1, place=place_of(request.headers, plan))
            try:
                await free.wait()
                order.append(json.loads(body)["user"])
                return await a.answer(request, body)
            finally:
                slot.free()

        a.behaves = queue
        kits = [Kit(model) for _ in range(3)]
        clients = [await stack.enter_async_context(client_of(kit)) for kit in kits]
        tasks = [
            asyncio.create_task(_chat(client, headers=bearer("1"), user=f"alice {number}"))
            for client in clients[:2]
            for number in range(3)
        ]
        # Each router sends two to a group with one place, and keeps the third.
        await until_async(lambda: (admission.running, admission.waiting) == (1, 3))
        tasks.append(asyncio.create_task(_chat(clients[2], headers=bearer("2"), user="bob")))
        await until_async(lambda: admission.waiting == 4)
        free.set()
        assert [(await task)[0] for task in tasks] == [200] * 7
        # One of alice ran already. With equal priorities another one may come first.
        assert order.index("bob") == 1 if priority == "High" else order.index("bob") <= 2


async def test_requests_that_wait_cost_nothing_while_all_groups_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def count(candidates: Any) -> Any:
        looked.append(None)
        return balance.choose(candidates)

    monkeypatch.setattr(pool, "choose", count)
    model = Model(urls=["http://10.0.0.1:1", "http://10.0.0.2:1"], slots=1)
    full = pool.Pool(next(iter(build([model.object()], [model.document()], KEYS).deployments.values())))
    tickets = [pool.Ticket(f"key {number}", KeyPriority.NORMAL, (), may_wake=False) for number in range(100)]
    for ticket in tickets:
        full.ask(ticket)
    seats = [ticket.seat.result() for ticket in tickets if ticket.seat.done()]
    assert len(seats) == 4 and len(full.waiting) == 96
    assert len(looked) == len(seats)
    seats[0].leave()
    assert len(looked) == len(seats) + 1 and len(full.waiting) == 95


async def test_a_client_that_leaves_frees_its_seat() -> None:
    async with gateways("a") as (a,):
        _held(a)
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            task = asyncio.create_task(_chat(client))
            await until_async(lambda: a.requests)
            task.cancel()
            await until_async(lambda: kit.dispatcher.in_flight == 0)
            await until_async(lambda: kit.server.inside == 0)


async def test_a_deleted_model_refuses_what_waits_for_it() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url], states=["Loading"]))
        async with client_of(kit) as client:
            waiting = asyncio.create_task(_chat(client))
            await until_async(lambda: kit.dispatcher.waiting)
            kit.set()
            assert (await waiting)[0] == 404
        assert not kit.dispatcher.pools


async def test_a_model_that_is_being_deleted_refuses_what_waits_for_it() -> None:
    model = Model(states=["Loading"], urls=["http://127.0.0.1:1"])
    kit = Kit(model)
    async with client_of(kit) as client:
        waiting = asyncio.create_task(_chat(client))
        await until_async(lambda: kit.dispatcher.waiting)
        kit.catalog = build([deleted(model)], [model.document()], KEYS)
        kit.dispatcher.update(kit.catalog)
        for status, body in (await waiting, await _chat(client)):
            assert status == 404 and body["error"]["message"] == "the model default/tiny is being deleted"


def deleted(model: Model) -> dict[str, Any]:
    """The object of a model while its finalizer waits for the groups to end."""
    found = model.object()
    return {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}}


async def test_pages_of_allowed_origins_may_use_the_api() -> None:
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url]), origins=["https://chat.example"])
        async with client_of(kit) as client:
            asked = await client.options(
                "/v1/chat/completions", headers={"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
            )
            assert asked.status == 204 and asked.headers["Access-Control-Allow-Origin"] == "https://chat.example"
            answer = await client.post(
                "/v1/chat/completions", json={"model": "tiny", **CHAT}, headers={"Origin": "https://chat.example"}
            )
            assert answer.headers["Access-Control-Allow-Origin"] == "https://chat.example"
            other = await client.get("/v1/models", headers={"Origin": "https://evil.example"})
            assert "Access-Control-Allow-Origin" not in other.headers


async def test_large_answers_pass() -> None:
    async def large(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(body=b"x" * (3 * upstream.BUFFER_BYTES), content_type="application/json")

    async with gateways("a") as (a,), client_of(Kit(Model(urls=[a.url]))) as client:
        a.behaves = large
        answer = await client.post("/v1/chat/completions", json={"model": "tiny", **CHAT})
        assert len(await answer.read()) == 3 * upstream.BUFFER_BYTES


async def test_a_router_that_has_just_started_lets_requests_wait_until_it_knows_the_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 60.0)
    looked = 0

    def problem() -> str | None:
        nonlocal looked
        looked += 1
        return kit.obstacle

    async with gateways("a") as (a,):
        kit = Kit()
        kit.server._problem = problem
        kit.obstacle = "the router has not read the ModelDeployments yet"
        async with client_of(kit) as client:
            asked = asyncio.create_task(_chat(client))
            await until_async(lambda: looked)
            kit.set(Model(urls=[a.url]))
            kit.obstacle = None
            assert (await asked)[0] == 200


async def test_metrics_and_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 0.1)
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            assert (await _chat(client))[0] == 200
            text = await (await client.get("/metrics")).text()
            assert (
                'thunderfleet_router_requests_total{code="200",endpoint="/v1/chat/completions",model="default/tiny"} 1.0'
                in text
            )
            assert 'thunderfleet_router_tokens_total{key="-",model="default/tiny"} 10.0' in text
            assert (await client.get("/health")).status == 200
            kit.obstacle = "why"
            assert (await client.get("/health")).status == 503
            for path in ("/v1/models", "/v1/models/tiny"):
                answer = await client.get(path)
                assert answer.status == 503 and (await answer.json())["error"]["message"] == "why"
            assert (await _chat(client))[0] == 503
            assert (await client.get("/healthz")).status == 200


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_BODY = st.dictionaries(st.sampled_from(["model", "messages", "stream", "prompt", "tools", "input", "system", "n"]), _JSON)
_HEADERS = st.dictionaries(
    st.sampled_from(["X-Request-Id", "Authorization", "x-api-key", "traceparent", "Origin", "Accept", "Content-Encoding"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30),
    max_size=3,
)


@pytest.mark.hypothesis
async def test_odd_requests_kill_nothing_and_always_get_a_response() -> None:
    """Any body, header and answer of a gateway: the router answers, and answers the next request as well."""
    oddities: list[tuple[str, bytes, dict[str, str], int, bytes, str]] = []

    @settings(max_examples=examples(60), database=None)
    @given(
        path=st.sampled_from(POSTS),
        body=st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode())
        | _BODY.map(lambda value: json.dumps(value | {"model": "tiny"}).encode()),
        headers=_HEADERS,
        status=st.sampled_from([200, 201, 204, 302, 400, 404, 418, 429, 500, 502, 503]),
        answer=st.binary(max_size=300) | st.sampled_from([b": c\n\n", b"data: x", b"event: error\n", b"\n\n:\r\n", b":"]),
        kind=st.sampled_from(["application/json", "text/event-stream", "text/html"]),
    )  # fmt: skip
    def collect(path: str, body: bytes, headers: dict[str, str], status: int, answer: bytes, kind: str) -> None:
        oddities.append((path, body, headers, status, answer, kind))

    collect()
    async with gateways("a") as (a,):
        kit = Kit(Model(urls=[a.url]), settings=Settings(hold_seconds=0.05), origins=["*"])
        async with client_of(kit) as client:
            for path, body, headers, status, text, kind in oddities:

                async def odd(
                    request: web.Request, _: bytes, status: int = status, text: bytes = text, kind: str = kind
                ) -> web.StreamResponse:
                    return web.Response(status=status, body=text, content_type=kind)

                a.behaves = odd
                answer = await client.post(path, data=body, headers=headers, allow_redirects=False)
                await answer.read()
                assert answer.status in {200, 201, 204, 302, 400, 404, 413, 415, 418, 422, 429, 502, 503} or status == 500
            a.behaves = None
            await until_async(lambda: kit.server.inside == 0 and kit.dispatcher.in_flight == 0)
            assert kit.dispatcher.waiting == 0
            kit.set(Model(urls=[a.url], epoch=2))
            assert (await _chat(client))[0] == 200


async def test_an_answer_that_is_not_read_to_its_end_counts_too() -> None:
    async def endless(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await a.begin(request)
        for number in range(20):
            await response.write(a.token(number))
        await asyncio.Event().wait()
        return response

    async with gateways("a") as (a,):
        a.behaves = endless
        kit = Kit(Model(urls=[a.url], keys={"alice": "1"}, limits={"alice": KeyLimits(tokens_per_minute=15)}))
        async with client_of(kit) as client:
            answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM}, headers=bearer("1"))
            while b"a19" not in await answer.content.readline():
                pass
            answer.close()
            await until_async(lambda: kit.server.inside == 0)
            a.behaves = None
            status, body = await _chat(client, headers=bearer("1"))
            assert status == 429 and body["error"]["code"] == "tokens_per_minute"


async def test_a_deleted_model_lets_its_requests_end_and_is_forgotten() -> None:
    async with gateways("a") as (a,):
        free = _held(a)
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            asked = asyncio.create_task(_chat(client))
            await until_async(lambda: a.requests)
            kit.set()
            assert kit.dispatcher.pools
            free.set()
            assert (await asked)[0] == 200
            assert not kit.dispatcher.pools


async def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "READ_SECONDS", 0.05)

    async def flood(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await a.begin(request)
        while True:
            await response.write(a.token(0) * 1000)

    async with gateways("a") as (a,):
        a.behaves = flood
        kit = Kit(Model(urls=[a.url]))
        async with client_of(kit) as client:
            answer = await client.post("/v1/chat/completions", json={"model": "tiny", **STREAM})
            await until_async(lambda: kit.server.inside == 0)
            assert kit.dispatcher.in_flight == 0
            assert kit.value("group_failures_total") == 0
            answer.close()


async def test_a_request_does_not_tour_groups_of_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "WORKED_SECONDS", 0.0)

    async def failed(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response({"error": {"code": "not_ready"}}, status=503)

    async with gateways("a", "b", "c") as started:
        for gateway in started:
            gateway.behaves = failed
        # Without a document, as for groups that were placed before routers had credentials.
        kit = Kit(Model(urls=[gateway.url for gateway in started], published=False))
        async with client_of(kit) as client:
            assert (await _chat(client))[0] == 422
        assert sum(len(gateway.requests) for gateway in started) == 2
