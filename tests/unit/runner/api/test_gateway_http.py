"""The gateway over HTTP, with a scripted group: statuses, headers, streams and authentication."""

import asyncio
import functools
import gzip
import io
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.group import GroupState, RankReport
from thunderfleet_crds.exchange.plan import RouterPlan
from thunderfleet_crds.vocabulary import GroupPhase, RankPhase
from thunderfleet_lib.httpapi import bodies, routed
from thunderfleet_runner import protocol
from thunderfleet_runner.api import service
from thunderfleet_runner.api.http import gateway, generation, stream
from thunderfleet_runner.api.http.admission import Admission, Full
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.service import Vocabulary
from thunderfleet_runner.api.upkeep import benchmark, idle

from tests.support.routers.scriptedgroup import PLAN, PLAN_OF_TWO, Script
from tests.support.waiting import until_async

CHAT = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def client(script: Script) -> AsyncIterator[TestClient[Any, Any]]:
    async with _client(script) as client:
        yield client


def _client(script: Script, keys: tuple[str, ...] = ()) -> TestClient[Any, Any]:
    return TestClient(
        TestServer(gateway.Gateway(script.service, Intake(script.process), keys).app(), handler_cancellation=True)
    )


async def _metric(client: TestClient[Any, Any], name: str, **labels: str) -> float | None:
    """The value of a sample with these labels, whatever else it has; None if there is none."""
    families = text_string_to_metric_families(await (await client.get("/metrics")).text())
    samples = [one for family in families for one in family.samples if one.name == f"thunderfleet_runner_{name}"]
    return next((float(one.value) for one in samples if labels.items() <= one.labels.items()), None)


async def _shown(client: TestClient[Any, Any], value: float, name: str, **labels: str) -> None:
    """Waits until a sample has this value."""
    async with asyncio.timeout(60):
        while await _metric(client, name, **labels) != value:
            pass


async def test_an_answer_whole_and_streamed(client: TestClient[Any, Any]) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT | {"verbosity": "low"})
    assert answer.status == 200 and answer.headers["X-Thunderfleet-Ignored"] == "verbosity"
    assert (await answer.json())["choices"][0]["message"]["content"] == "t0 t1 "
    answer = await client.post("/v1/completions", json={"model": "org/m", "prompt": "a", "stream": True})
    lines = (await answer.text()).strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]) == "t0 t1 "


async def test_the_paths_beside_v1_need_a_key_and_a_ready_group(script: Script) -> None:
    async with _client(script, ("good",)) as client:
        for path, body in (("/tokenize", {"prompt": "a b"}), ("/detokenize", {"tokens": [1, 1]}),
                           ("/v1/messages/count_tokens", {"messages": CHAT["messages"]})):  # fmt: skip
            assert (await client.post(path, json=body)).status == 401
            answer = await client.post(path, json=body, headers={"x-api-key": "good"})
            assert answer.status == 200, await answer.text()
        script.phase = GroupPhase.LOADING
        script.service.detach("loading")
        assert (await client.post("/tokenize", json={"prompt": "a"}, headers={"x-api-key": "good"})).status == 503
        answer = await client.get("/health")
        assert answer.status == 503 and "Loading: why" in (await answer.json())["message"]


async def test_errors_have_the_form_of_their_dialect(client: TestClient[Any, Any], script: Script) -> None:
    answer = await client.post("/v1/messages", json={"messages": CHAT["messages"], "temperature": 9})
    assert answer.status == 400 and (await answer.json())["type"] == "error"
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/messages", json={"messages": CHAT["messages"], "stream": True}))
    await until_async(lambda: script.requests)
    script.say(1, done=False)
    answer = await posted
    script.service.detach("rank 1 was killed")
    *_, last = (await answer.text()).strip().split("\n\n")
    name, _, data = last.partition("\n")
    assert name == "event: error"
    assert json.loads(data[6:]) == {"type": "error", "error": {"type": "overloaded_error", "message": "rank 1 was killed"}}


async def test_one_choice_that_fails_ends_the_others(client: TestClient[Any, Any], script: Script) -> None:
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"n": 3, "seed": 5}))
    await until_async(lambda: script.requests)
    # The others wait for their place.
    script.service.deliver(protocol.RequestError(id=script.requests[0].id, text="odd"))
    answer = await posted
    assert answer.status == 500 and (await answer.json())["error"]["message"] == "odd"
    await until_async(lambda: script.service.running == 0)
    script.auto = 2
    assert (await client.post("/v1/chat/completions", json=CHAT | {"n": 3, "seed": 5})).status == 200
    assert [request.sampling.seed for request in script.requests[-3:]] == [5, 6, 7]


async def test_max_tokens_are_the_rest_of_the_context(client: TestClient[Any, Any], script: Script) -> None:
    await client.post("/v1/chat/completions", json=CHAT)
    assert script.requests[-1].max_tokens == 61
    clamped = await client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 62})
    assert clamped.status == 200 and clamped.headers["X-Thunderfleet-Clamped"] == "max_tokens=61"
    assert script.requests[-1].max_tokens == 61
    script.prompt_tokens = 64
    refused = await client.post("/v1/chat/completions", json=CHAT)
    assert refused.status == 400 and (await refused.json())["error"]["code"] == "context_length_exceeded"


async def test_what_is_not_the_api(client: TestClient[Any, Any]) -> None:
    for method, path, status in (("GET", "/v1/x", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405)):
        answer = await client.request(method, path)
        assert answer.status == status
        assert (await answer.json())["error"]["type"] == "invalid_request_error"
    answer = await client.post("/v1/chat/completions", data=io.BytesIO(b" " * (bodies.MAX_BODY + 1)))
    assert answer.status == 413 and "larger" in (await answer.json())["error"]["message"]
    answer = await client.post("/v1/chat/completions", json=CHAT | {"model": "x"})
    assert answer.status == 404 and (await answer.json())["error"]["code"] == "model_not_found"
    answer = await client.get("/v1/models")
    assert [model["id"] for model in (await answer.json())["data"]] == ["org/m"]


async def test_until_ready_it_says_what_is_waited_for(client: TestClient[Any, Any], script: Script) -> None:
    assert (await client.get("/readyz")).status == 200
    script.phase = GroupPhase.LOADING
    script.service.detach("loading")
    for answer in (await client.get("/readyz"), await client.post("/v1/chat/completions", json=CHAT)):
        assert answer.status == 503 and "Retry-After" in answer.headers
        assert "Loading: why" in await answer.text()
    assert (await client.get("/healthz")).status == 200


async def test_until_ready_no_request_is_read_and_none_starts_a_process(script: Script) -> None:
    started: list[int] = []

    async def start() -> Any:
        started.append(1)
        return await script.process()

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    script.phase = GroupPhase.LOADING
    script.service.detach("loading")
    served = gateway.Gateway(script.service, Intake(start), ()).app()
    async with TestClient(TestServer(served, handler_cancellation=True)) as client:
        for path in ("chat/completions", "completions", "messages", "messages/count_tokens", "responses", "embeddings"):
            async with asyncio.timeout(60):
                assert (await client.post(f"/v1/{path}", data=endless())).status == 503
        for path in ("tokenize", "detokenize"):
            async with asyncio.timeout(60):
                assert (await client.post(f"/{path}", data=endless())).status == 503
    assert not started


async def test_a_key_is_asked_for_when_there_is_one(script: Script) -> None:
    async with _client(script, ("good", "better")) as client:
        for header in ({}, {"Authorization": "Bearer bad"}, {"Authorization": "Basic good"}, {"Authorization": "good"}):
            answer = await client.get("/v1/models", headers=header)
            assert answer.status == 401 and (await answer.json())["error"]["code"] == "invalid_api_key"
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer better"})).status == 200
        assert (await client.get("/healthz")).status == 200


async def test_a_router_has_the_credential_of_the_plan() -> None:
    credential = routing.group_credential(b"1" * 32, "default", "tiny", "u", 0, 1)
    router = RouterPlan(key_id="0" * 16, digest=routing.credential_digest(credential))
    plan = PLAN.model_copy(update={"router": router})
    async with _client(Script(plan), ("good",)) as client:
        for key, status in ((credential, 200), (router.digest, 401), (credential[:-1], 401)):
            assert (await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})).status == status
    async with _client(Script(plan)) as client:
        # Where nobody needs a key, nobody needs the credential either.
        assert (await client.get("/v1/models")).status == 200


async def test_tokens_are_counted_for_routers(client: TestClient[Any, Any]) -> None:
    asked = {routed.ROUTED: "1"}
    whole = await client.post("/v1/chat/completions", json=CHAT | {"n": 2}, headers=asked)
    assert whole.headers[routed.TOKENS] == "3,4"
    streamed = await client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=asked)
    assert (await streamed.text()).endswith(f"data: [DONE]\n\n: {routed.TOKENS}: 3,2\n\n")
    unasked = await client.post("/v1/chat/completions", json=CHAT)
    assert routed.TOKENS not in unasked.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_routers_learn_that_a_group_failed_with_their_request(
    client: TestClient[Any, Any], script: Script, path: str
) -> None:
    script.auto = 0
    body = {"messages": CHAT["messages"]} if path != "/v1/responses" else {"input": "hi"}
    whole = asyncio.create_task(client.post(path, json=body, headers={routed.ROUTED: "1"}))
    await until_async(lambda: script.requests)
    script.service.detach("rank 1 was killed")
    answer = await whole
    assert answer.status == 503 and answer.headers[routed.GROUP] == routed.FAILED
    script.service.attach(script, Vocabulary(256, True))
    streamed = asyncio.create_task(client.post(path, json=body | {"stream": True}, headers={routed.ROUTED: "1"}))
    await until_async(lambda: len(script.requests) == 2)
    script.say(1, done=False)
    answer = await streamed
    script.service.detach("rank 1 was killed")
    assert (await answer.text()).endswith(f"\n\n: {routed.GROUP}: {routed.FAILED}\n\n")


async def test_other_ranks_say_where_rank_0_is() -> None:
    async with _client(Script(PLAN_OF_TWO, rank=1)) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert answer.status == 421 and "http://127.0.0.1:2" in (await answer.json())["error"]["message"]
        assert (await client.get("/readyz")).status == 200


async def test_a_group_that_fails_cuts_the_stream_with_an_error(client: TestClient[Any, Any], script: Script) -> None:
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"stream": True}))
    await until_async(lambda: script.requests)
    script.say(1, done=False)
    answer = await posted
    script.service.detach("rank 1 was killed")
    lines = (await answer.text()).strip().split("\n\n")
    assert json.loads(lines[-1][6:])["error"]["message"] == "rank 1 was killed"
    assert "data: [DONE]" not in lines


async def test_a_group_that_fails_before_the_first_token_is_a_503(client: TestClient[Any, Any], script: Script) -> None:
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"stream": True}))
    await until_async(lambda: script.requests)
    script.service.detach("rank 1 was killed")
    assert (await posted).status == 503


async def test_one_failed_request_is_a_500(client: TestClient[Any, Any], script: Script) -> None:
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
    await until_async(lambda: script.requests)
    script.service.deliver(protocol.RequestError(id=script.requests[0].id, text="odd"))
    answer = await posted
    assert answer.status == 500 and (await answer.json())["error"]["message"] == "odd"


def _more_than(found: list[protocol.Request], count: int) -> bool:
    return len(found) > count


async def test_a_client_that_leaves_cancels_its_request(client: TestClient[Any, Any], script: Script) -> None:
    script.auto = 0
    for streamed in (False, True):
        posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"stream": streamed}))
        begun = len(script.requests)
        await until_async(functools.partial(_more_than, script.requests, begun))
        posted.cancel()
        await until_async(lambda: script.requests[-1].id in script.cancelled)
    await until_async(lambda: script.service.running == 0)


async def test_the_queue_is_limited_and_in_order(client: TestClient[Any, Any], script: Script) -> None:
    script.auto = 0
    sent = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(gateway.SMALLEST_QUEUE + 2)]
    async with asyncio.timeout(60):
        done, waiting = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
    (full,) = done
    answer = await full
    assert answer.status == 429 and "Retry-After" in answer.headers
    assert await _metric(client, "queue_depth") == 16
    script.auto = 2
    script.say(2, done=True)
    assert {(await task).status for task in waiting} == {200}


async def _raw(client: TestClient[Any, Any], body: dict[str, Any], length: int | None = None) -> asyncio.StreamWriter:
    """A raw client that sends its request and reads nothing."""
    assert client.port is not None
    _, writer = await asyncio.open_connection(client.host, client.port)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return writer


async def _flooded(client: TestClient[Any, Any], script: Script) -> asyncio.StreamWriter:
    """A client that reads nothing of its stream, which gets more tokens than the buffers of the sockets hold."""
    script.auto = 0
    slow = await _raw(client, CHAT | {"stream": True})
    await until_async(lambda: script.requests)
    for number in range(400):
        script.service.deliver(protocol.Token(id=script.requests[0].id, token=number, text="x" * 50_000))
    return slow


async def test_a_client_that_reads_slowly_holds_no_place(client: TestClient[Any, Any], script: Script) -> None:
    slow = await _flooded(client, script)
    turns = script.turns
    script.say(0, done=True)
    assert script.service.running == 0
    script.service.deliver(protocol.Idle(turn=turns))
    assert script.turns == turns, "a turn was announced for a request that is over"
    script.auto = 2
    assert (await client.post("/v1/chat/completions", json=CHAT)).status == 200
    slow.transport.abort()


async def test_a_client_that_reads_nothing_is_left(
    client: TestClient[Any, Any], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "READ_SECONDS", 0.05)
    slow = await _flooded(client, script)
    await until_async(lambda: script.cancelled == [script.requests[0].id])
    await until_async(lambda: script.service.running == 0)
    await _shown(client, 1, "requests_total", code="499", endpoint="/v1/chat/completions")
    slow.transport.abort()


async def test_a_stream_that_has_nothing_to_say_yet_shows_that_it_lives(
    client: TestClient[Any, Any], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FIRST_EVENT_SECONDS", 0.0)
    script.auto = 0
    answer = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert await answer.content.readline() == b": still working\n"
    script.say(2, done=True)
    # The first event of the answer comes with its first token: a router may repeat a request that has only comments.
    events = [event for event in (await answer.text()).strip().split("\n\n") if not event.startswith(":")]
    assert json.loads(events[0][6:])["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1] == "data: [DONE]"


async def test_a_body_that_does_not_come_is_not_waited_for(
    client: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)
    slow = await _raw(client, CHAT, length=10_000)
    await _shown(client, 1, "requests_total", code="408", endpoint="/v1/chat/completions")
    slow.transport.abort()


async def test_a_compressed_body_is_refused(client: TestClient[Any, Any]) -> None:
    body = gzip.compress(json.dumps(CHAT).encode())
    answer = await client.post("/v1/chat/completions", data=body, headers={"Content-Encoding": "gzip"})
    assert answer.status == 415 and "Content-Encoding" in (await answer.json())["error"]["message"]
    answer = await client.post("/v1/chat/completions", json=CHAT, headers={"Content-Encoding": "identity"})
    assert answer.status == 200


async def test_large_bodies_share_their_memory_and_small_ones_pass(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SHARED_BYTES", 1 << 20)
    async with _client(script) as client:
        await _share_large_bodies(client)


async def _share_large_bodies(client: TestClient[Any, Any]) -> None:
    large = CHAT | {"user": "x" * (1 << 20)}
    held = await _raw(client, large, length=2 << 20)

    async def status() -> int:
        return (await client.post("/v1/chat/completions", data=io.BytesIO(json.dumps(large).encode()))).status

    async with asyncio.timeout(60):
        while (found := await status()) != 429:
            assert found == 200
    assert (await client.post("/v1/chat/completions", json=CHAT)).status == 200
    held.transport.abort()
    async with asyncio.timeout(60):
        while await status() != 200:
            pass


async def test_a_client_that_is_far_behind_is_cancelled(
    client: TestClient[Any, Any], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "UNREAD_VALUES", 100)
    slow = await _flooded(client, script)
    assert script.cancelled == [script.requests[0].id]
    slow.transport.abort()


async def test_a_tool_call_that_is_none_is_text(client: TestClient[Any, Any], script: Script) -> None:
    for streamed in (False, True):
        script.auto = 0
        begun = len(script.requests)
        posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"stream": streamed}))
        await until_async(functools.partial(_more_than, script.requests, begun))
        name = script.requests[-1].id
        for number, written in enumerate(("find", "odd")):
            script.service.deliver(protocol.Token(id=name, token=number, text=written, kind="tool"))
            script.service.deliver(protocol.Token(id=name, token=7, text="", ends_tool=True))
        script.service.deliver(script.done(name, "stop", 1))
        text = await (await posted).text()
        assert '"name": "find"' in text and '"content": "odd"' in text and '"finish_reason": "tool_calls"' in text


async def test_a_long_answer_with_log_probabilities_does_not_stop_the_gateway(
    client: TestClient[Any, Any], script: Script
) -> None:
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 20}))
    await until_async(lambda: script.requests)
    top = tuple(protocol.TopLogprob(token=number, text="é" * 9, logprob=-0.5) for number in range(20))
    for number in range(3000):
        token = protocol.Token(id=script.requests[0].id, token=number, text="x", logprob=-0.5, top_logprobs=top)
        script.service.deliver(token)
        await asyncio.sleep(0)
    before = time.thread_time()
    script.say(0, done=True)
    answer = await posted
    # Encoding 60,000 alternatives at once takes several times as long.
    assert time.thread_time() - before < 0.3
    entries = (await answer.json())["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3000 and len(entries[0]["top_logprobs"]) == 20


async def test_an_answer_that_takes_too_long_is_ended(
    client: TestClient[Any, Any], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "ANSWER_SECONDS", -1.0)
    script.auto = 0
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
    await until_async(lambda: script.requests)
    script.say(1, done=False)
    answer = await posted
    assert answer.status == 500 and "took longer than" in (await answer.json())["error"]["message"]
    await until_async(lambda: script.cancelled == [script.requests[0].id])


async def test_a_place_is_kept_until_rank_0_has_ended_the_request(client: TestClient[Any, Any], script: Script) -> None:
    script.auto, script.obeys = 0, False
    posted = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
    await until_async(lambda: script.requests)
    posted.cancel()
    await until_async(lambda: script.cancelled)
    waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
    await _shown(client, 1, "queue_depth")
    assert len(script.requests) == 1
    script.auto = 2
    script.service.deliver(script.done(script.cancelled[0], "cancelled", 7))
    assert (await waiting).status == 200
    assert await _metric(client, "generated_tokens_total") == 9


async def test_requests_beyond_all_queues_are_turned_away_unread(client: TestClient[Any, Any], script: Script) -> None:
    limit = gateway.SMALLEST_QUEUE + 1 + gateway.SPARE_REQUESTS
    open_ones = [await _raw(client, CHAT, length=10_000) for _ in range(limit)]

    async def status() -> int:
        return (await client.post("/v1/chat/completions", json=CHAT)).status

    async with asyncio.timeout(60):
        while (found := await status()) != 429:
            assert found == 200
    for writer in open_ones:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while await status() != 200:
            pass


async def test_metrics_count_tokens_and_statuses(client: TestClient[Any, Any]) -> None:
    await client.post("/v1/chat/completions", json=CHAT)
    await client.post("/v1/chat/completions", data=b"{")
    for code in ("200", "400"):
        assert await _metric(client, "requests_total", code=code, endpoint="/v1/chat/completions") == 1
    assert await _metric(client, "generated_tokens_total") == 2
    assert await _metric(client, "time_to_first_token_seconds_count") == 1


async def test_a_place_that_is_given_up_goes_to_the_next() -> None:
    admission = Admission(budget=10, slots=2, queue=2)
    order: list[str] = []

    async def visit(name: str, tokens: int, leave: asyncio.Event, timeout: float = 10) -> None:
        place = await admission.enter(tokens, timeout)
        try:
            order.append(name)
            await leave.wait()
        finally:
            place.free()

    leave = asyncio.Event()
    first = asyncio.create_task(visit("first", 8, leave))
    await until_async(lambda: order == ["first"])
    large = asyncio.create_task(visit("large", 9, leave))
    small = asyncio.create_task(visit("small", 2, leave))
    await until_async(lambda: admission.waiting == 2)
    with pytest.raises(Full):
        await visit("too many", 1, leave)
    large.cancel()
    await until_async(lambda: order == ["first", "small"])
    leave.set()
    await asyncio.gather(first, small)
    assert (admission.running, admission.waiting) == (0, 0)
    place = await admission.enter(10)
    with pytest.raises(Full):
        await visit("late", 5, leave, timeout=0)
    place.free()
    place.free()
    assert admission.running == 0


# --- benchmark ------------------------------------------------------------------------------------------------------


async def test_a_benchmark_gives_way_to_a_client_and_comes_back(
    client: TestClient[Any, Any], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(benchmark, "HEARD_SECONDS", 0.0)
    script.auto = 0
    measuring = asyncio.create_task(benchmark.run(script.service, PLAN.benchmark))
    await until_async(lambda: len(script.requests) == 1)
    begun = script.requests[0]
    assert not begun.cache and begun.no_end
    assert begun.prompt.count <= 64 - 2
    script.auto = 3
    assert (await client.post("/v1/chat/completions", json=CHAT)).status == 200
    await until_async(lambda: begun.id in script.cancelled)
    async with asyncio.timeout(60):
        report = await measuring
    assert report.generation_tokens == 3
    prompts = [request.prompt.tokens for request in script.requests if not request.cache]
    assert len(set(prompts)) == len(prompts)


def test_a_run_with_cached_tokens_is_thrown_away() -> None:
    def run(cached: int, generated: int) -> benchmark.Run:
        done = protocol.Done(
            id="x", finish_reason="length", prompt_tokens=100, cached_tokens=cached, generated_tokens=generated
        )
        return benchmark.Run(first=0.5, last=1.5, done=done)

    now = datetime.now(UTC)
    report = benchmark.report(run(0, 11), 100, now)
    assert (report.prefill_tokens_per_second, report.decode_tokens_per_second) == (200.0, 10.0)
    assert report.time_to_first_token_microseconds == 500_000
    for bad in (run(1, 11), run(0, 0)):
        with pytest.raises(benchmark.Unusable):
            benchmark.report(bad, 100, now)


@pytest.mark.parametrize(
    ("generated", "seconds", "rate"),
    [(2, 7e-6, None), (2, 1.0, None), (8, 1.0, None), (9, 1.0, 8.0), (9, 0.0009, None), (9, 0.0, None), (1, 0.0, None)],
)
def test_a_rate_over_almost_no_time_is_none(generated: int, seconds: float, rate: float | None) -> None:
    done = protocol.Done(id="x", finish_reason="length", prompt_tokens=100, cached_tokens=0, generated_tokens=generated)
    report = benchmark.report(benchmark.Run(first=0.5, last=0.5 + seconds, done=done), 100, datetime.now(UTC))
    assert (report.prefill_tokens_per_second, report.decode_tokens_per_second) == (200.0, rate)


async def test_a_benchmark_in_a_group_that_fails_says_one_sentence(
    script: Script, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(benchmark, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(benchmark, "HEARD_SECONDS", 0.0)
    caplog.set_level("INFO")
    script.auto = 0
    keeping = asyncio.create_task(benchmark.keep(script.service, PLAN.benchmark))
    await until_async(lambda: len(script.requests) == 1)
    # If only the request fails, the benchmark is retried.
    script.service.deliver(protocol.RequestError(id=script.requests[0].id, text="odd"))
    await until_async(lambda: len(script.requests) == 2)
    # If the group fails, the benchmark waits for the next group.
    script.service.detach("rank 1 was killed")
    async with asyncio.timeout(60):
        await keeping
    assert [record.getMessage() for record in caplog.records if "benchmark" in record.getMessage()] == [
        "benchmark failed: odd; next try in 0 s", "benchmark postponed: rank 1 was killed",
    ]  # fmt: skip
    assert not any(record.exc_info for record in caplog.records)


async def test_a_benchmark_is_repeated_as_the_plan_says(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "HEARD_SECONDS", 0.0)
    plan = PLAN.benchmark.model_copy(update={"every_seconds": 1})
    script.auto = 3
    keeping = asyncio.create_task(benchmark.keep(script.service, plan))
    seen = set()

    def again() -> bool:
        if script.service.benchmark is not None:
            seen.add(script.service.benchmark.measured_at)
        return len(seen) == 2

    await until_async(again)
    keeping.cancel()


def test_every_ranks_peak_is_reported_when_all_have_said_theirs() -> None:
    done = protocol.Done(id="x", finish_reason="length", prompt_tokens=9, generated_tokens=9, peak_memory_bytes=5)
    found = benchmark.report(benchmark.Run(first=0.5, last=1.5, done=done), 9, datetime.now(UTC))
    assert found.peak_memory_bytes == (5,)

    def state(*peaks: int) -> GroupState:
        ranks = tuple(
            RankReport(rank=n, node="n", phase=RankPhase.SERVING, peak_memory_bytes=peak) for n, peak in enumerate(peaks)
        )
        return GroupState(uid="u", index=0, epoch=1, phase=GroupPhase.READY, ranks=ranks)

    assert benchmark.with_peaks(found, state(7, 8)).peak_memory_bytes == (7, 8)
    assert benchmark.with_peaks(found, state(7, 0)).peak_memory_bytes == (5,)
