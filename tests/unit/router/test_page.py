"""The live page by a router: who sees what, and what attackers get. A real router before an API server made for tests."""

import asyncio
import base64
import functools
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_lib.kube import Kube
from thunderfleet_router import viewers
from thunderfleet_router.decide.shown import AUDIENCE, host_names, host_refused, token_problem
from thunderfleet_router.http import page
from thunderfleet_router.viewers import Viewers
from thunderfleet_view.live.fleet import Kind
from thunderfleet_view.live.watch import RESOURCES, Watch
from thunderfleet_view.web import responses

from tests.support.page.fleetpage import fleet
from tests.support.routers.routing import Model
from tests.support.waiting import until_async
from tests.unit.router.api_server import DEPLOYMENTS, NAMESPACE, ApiServer
from tests.unit.router.test_router_app import _running

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
DAY = 86_400.0
HOSTS = ("studio-1", "https://models.example.com/v1")


@functools.cache
def token(name: str, audience: Any = AUDIENCE, seconds: float = DAY) -> str:
    """A token as the API server makes them; the signature is the API server's business."""
    claims = {"aud": [audience] if isinstance(audience, str) else audience, "exp": int(time.time() + seconds), "sub": name}
    parts = ("{}", json.dumps(claims), "signature")
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


class Cluster(ApiServer):
    """An API server that has Macs and reviews tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, str] = {}
        """Names of users by their token."""
        self.denied: set[str] = set()
        """Resources that nobody may list."""
        self.audiences: list[str] = [AUDIENCE]
        self.reviews: list[str] = []
        self.status = 201
        self.held: asyncio.Event | None = None
        for kind, items in fleet(2, 2, idle=0).items():
            path = RESOURCES[kind][0]
            if kind is not Kind.DEPLOYMENTS:
                for item in items:
                    item["metadata"]["resourceVersion"] = "1"
                self.objects[path] = {item["metadata"]["name"]: item for item in items}
                self._watches[path] = set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return await super()._handle(request)
        spec = (await request.json())["spec"]
        if self.status != 201:
            return web.json_response({"reason": "Forbidden", "message": "no"}, status=self.status)
        if request.path == RIGHTS:
            allowed = spec["resourceAttributes"]["resource"] not in self.denied
            return web.json_response({"status": {"allowed": allowed and spec["user"] in self.users.values()}}, status=201)
        assert request.path == REVIEWS and spec["audiences"] == [AUDIENCE]
        self.reviews.append(spec["token"])
        if self.held is not None:
            await self.held.wait()
        user = self.users.get(spec["token"])
        found: dict[str, Any] = {"authenticated": user is not None}
        if user is not None:
            found |= {"user": {"username": user, "groups": ["viewers"], "extra": {"a": ["b"]}}, "audiences": self.audiences}
        return web.json_response({"status": found}, status=201)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    server = Cluster()
    await server.start()
    server.secret("", "")
    yield server
    await server.stop()


class Browser:
    """Requests to a router's page."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self.client, self.url = client, url

    async def get(self, path: str, credential: str | None = None, **headers: str) -> tuple[int, Mapping[str, str], Any]:
        async with self.stream(path, credential, **headers) as answer:
            text = await answer.text()
            return answer.status, answer.headers, json.loads(text) if answer.content_type == "application/json" else text

    @asynccontextmanager
    async def stream(self, path: str, credential: str | None = None, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if credential is not None:
            sent["Authorization"] = f"Bearer {credential}"
        async with self.client.get(self.url + path, headers=sent) as answer:
            yield answer

    async def whole(self, credential: str) -> dict[str, Any]:
        """Entities by id, once something is known."""
        async with self.stream("/api/feed", credential) as answer:
            assert answer.status == 200, await answer.text()
            found: dict[str, Any] = {}
            async for line in answer.content:
                if line.strip():
                    message = json.loads(line)
                    found |= {one["id"]: one for one in message["put"]}
                if len(found) >= (2 + 1 if any(name.startswith("mac/") for name in found) else 1):
                    return found
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def served(cluster: Cluster) -> AsyncIterator[Browser]:
    async with _running(cluster, page_hosts=HOSTS) as (router, client):
        await until_async(lambda: router.watch.built, "the catalog is known")
        yield Browser(client, f"http://127.0.0.1:{router.port}")


def models(cluster: Cluster) -> None:
    """Two models of two tenants with a key each, and one that needs none."""
    cluster.model(Model("qwen", namespace="one", keys={"ci": "sk-one"}))
    cluster.model(Model("llama", namespace="two", keys={"ci": "sk-two"}))
    cluster.model(Model("open", namespace="two"))


async def test_without_the_option_there_is_no_page(cluster: Cluster) -> None:
    async with _running(cluster) as (router, client):
        for path in ("/", "/assets/page.js", "/session", "/api/feed", "/api/details"):
            async with client.get(f"http://127.0.0.1:{router.port}{path}") as answer:
                assert answer.status == 404
    assert cluster.methods == {"GET"}


async def test_the_page_without_a_credential_says_nothing_of_the_fleet(cluster: Cluster) -> None:
    models(cluster)
    async with served(cluster) as browser:
        status, headers, text = await browser.get("/")
        assert status == 200 and "Thunderfleet" in text and "Content-Security-Policy" in headers
        assert (await browser.get("/session"))[2] == {"credential": True}
        for path in ("/api/feed", "/api/details?id=mac/studio-1"):
            for credential in (None, "", "sk-guessed", "a.b.c", "x" * 5000):
                status, headers, text = await browser.get(path, credential)
                assert status == 401 and "studio" not in str(text) and "Content-Security-Policy" in headers
        # No credential counts that an address has, or a cookie.
        cluster.users[token("ann")] = "ann"
        assert (await browser.get(f"/api/feed?token={token('ann')}&access_token={token('ann')}"))[0] == 401
        assert (await browser.get("/api/feed", None, Cookie=f"session={token('ann')}"))[0] == 401
    assert not cluster.reviews


async def test_a_viewer_sees_the_fleet_and_its_conditions(cluster: Cluster) -> None:
    models(cluster)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser:
        found = await browser.whole(token("ann"))
        assert {name for name in found if name.startswith("mac/")} == {"mac/studio-1", "mac/studio-2"}
        status, _, details = await browser.get("/api/details?id=mac/studio-1", token("ann"))
        assert status == 200 and {"Ready", "InventoryComplete"} <= {one["type"] for one in details["conditions"]}
        assert details["why"] is None
    assert cluster.reviews == [token("ann")], "the answer is kept"


def renewed(name: str, ago: float) -> dict[str, Any]:
    """The Lease of a kubelet."""
    when = datetime.now(UTC) - timedelta(seconds=ago)
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"renewTime": f"{when:%Y-%m-%dT%H:%M:%S.%fZ}"}}


async def test_a_viewer_sees_that_a_kubelet_is_silent(cluster: Cluster) -> None:
    """By Leases, and by pods of the release's namespace alone: those of others may be read by nobody but their users."""
    cluster.users[token("ann")] = "ann"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    cluster.objects[leases] = {"studio-1": renewed("studio-1", 0), "studio-2": renewed("studio-2", 60)}
    async with served(cluster) as browser, browser.stream("/api/feed", token("ann")) as answer, asyncio.timeout(60):
        macs: dict[str, str] = {}
        while "Lease" not in macs.get("mac/studio-2", ""):
            line = await answer.content.readline()
            assert line, "the page was ended"
            macs |= {one["id"]: one.get("problem", "") for one in json.loads(line)["put"]} if line.strip() else {}
        assert macs["mac/studio-1"] == ""
    read = {path for path, _ in cluster.queries}
    assert f"/api/v1/namespaces/{NAMESPACE}/pods" in read
    assert not {"/api/v1/pods", "/apis/apps/v1/daemonsets"} & read


async def test_a_key_shows_its_own_models_and_nothing_else(cluster: Cluster) -> None:
    models(cluster)
    async with served(cluster) as browser:
        found = await browser.whole("sk-one")
        assert set(found) == {"model/one/qwen"}
        assert found["model/one/qwen"]["groups"] == []
        assert (await browser.get("/api/details?id=model/one/qwen", "sk-one"))[0] == 200
        for foreign in ("model/two/llama", "model/two/open", "mac/studio-1", "cable/x", ""):
            assert (await browser.get(f"/api/details?id={foreign}", "sk-one"))[0] == 404
    assert not cluster.reviews, "keys are not sent to the API server"


async def test_a_key_that_is_removed_ends_its_page(cluster: Cluster) -> None:
    models(cluster)
    async with served(cluster) as browser, browser.stream("/api/feed", "sk-one") as answer:
        assert json.loads(await answer.content.readline())["own"] is True
        cluster.model(Model("qwen", namespace="one", keys={"ci": "sk-other"}))
        rest = await asyncio.wait_for(answer.content.read(), 60)
        assert b"model" not in rest


async def test_a_right_that_is_taken_away_ends_the_page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(viewers, "ACCEPTED_SECONDS", 0.0)
    models(cluster)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser, browser.stream("/api/feed", token("ann")) as answer:
        await answer.content.readline()
        cluster.denied.add("nodes")
        # The next message comes with a change.
        cluster.remove(DEPLOYMENTS, "two/open")
        await asyncio.wait_for(answer.content.read(), 60)
        status, _, refusal = await browser.get("/api/feed", token("ann"))
        assert status == 403 and "is not allowed to list nodes" in refusal["message"]


async def _until(answer: aiohttp.ClientResponse, field: str, ids: set[str]) -> None:
    """Reads messages until they have named all ``ids`` in ``field``."""
    missing = set(ids)
    async with asyncio.timeout(60):
        while missing:
            line = await answer.content.readline()
            assert line, "the page was ended"
            found = json.loads(line)[field] if line.strip() else []
            missing -= {one["id"] if field == "put" else one for one in found}


async def test_a_page_stays_open_while_too_many_tokens_are_reviewed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(viewers, "ACCEPTED_SECONDS", 0.0)
    models(cluster)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser, browser.stream("/api/feed", token("ann")) as answer:
        # The first message comes before the models are read.
        await _until(answer, "put", {"model/two/open", "model/two/llama"})
        monkeypatch.setattr(viewers, "AT_ONCE", 0)
        # The page waits for the first change already; its credential is checked before it waits for the second one.
        for gone in ("two/open", "two/llama"):
            cluster.remove(DEPLOYMENTS, gone)
            await _until(answer, "drop", {f"model/{gone}"})


@pytest.mark.parametrize(
    ("credential", "says"),
    [
        (token("ann", "https://kubernetes.default.svc"), "not for this page"),
        (token("ann", "x y"), "not for this page"),
        (token("ann", seconds=-1), "expired"),
        ("e30.!!!.x", "neither"),
        ("e30.W10.x", "neither"),
        (f"e30.{'W10' * 1700}.x", "send an API key"),
    ],
    ids=["API server", "nobody", "expired", "no text", "no object", "long"],
)
async def test_tokens_that_cannot_be_right_are_not_reviewed(cluster: Cluster, credential: str, says: str) -> None:
    async with served(cluster) as browser:
        status, _, refusal = await browser.get("/api/feed", credential)
        assert status == 401 and says in refusal["message"]
    assert not cluster.reviews


async def test_a_token_for_another_audience_is_refused_even_if_the_review_accepts_it(cluster: Cluster) -> None:
    """An API server that does not know audiences accepts all of its tokens."""
    cluster.users[token("ann")] = "ann"
    cluster.audiences = []
    async with served(cluster) as browser:
        assert (await browser.get("/api/feed", token("ann")))[0] == 401


async def test_a_router_that_may_not_review_tokens_says_so(cluster: Cluster) -> None:
    cluster.status = 403
    async with served(cluster) as browser:
        status, headers, _ = await browser.get("/api/feed", token("ann"))
        assert status == 503 and headers["Retry-After"]


async def test_the_fleet_is_watched_for_a_viewer_who_comes_when_the_watch_is_about_to_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "LINGER_SECONDS", -1.0)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser:
        assert "mac/studio-1" in await asyncio.wait_for(browser.whole(token("ann")), 60)


async def test_a_watch_that_fails_starts_again_while_somebody_looks(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Watch] = []

    class Failing(Watch):
        async def run(self) -> None:
            made.append(self)
            if len(made) == 1:
                raise RuntimeError("made for a test")
            await super().run()

    monkeypatch.setattr(page, "Watch", Failing)
    monkeypatch.setattr(page, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(responses, "ALIVE_SECONDS", 0.05)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser:
        assert "mac/studio-1" in await asyncio.wait_for(browser.whole(token("ann")), 60)


# --- other names, other pages ---


@pytest.mark.parametrize("host", ["attacker.example", "studio-1.attacker.example", "127.0.0.1.attacker.example", "", "[::1"])
async def test_another_name_for_a_router_is_refused(cluster: Cluster, host: str) -> None:
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser:
        for path in ("/", "/session", "/assets/page.js", "/api/feed"):
            status, _, _ = await browser.get(path, token("ann"), Host=host)
            assert status in (400, 403)
        # The API for clients does not depend on the name.
        assert (await browser.get("/v1/models", None, Host="attacker.example"))[0] == 200


@pytest.mark.parametrize("origin", ["https://attacker.example", "null", "http://127.0.0.1:1", "http://studio-1"])
async def test_pages_of_other_origins_get_nothing(cluster: Cluster, origin: str) -> None:
    cluster.users[token("ann")] = "ann"
    async with _running(cluster, page_hosts=HOSTS, origins=["*"]) as (router, client):
        browser = Browser(client, f"http://127.0.0.1:{router.port}")
        status, headers, _ = await browser.get("/api/feed", token("ann"), Origin=origin)
        assert status == 403 and "Access-Control-Allow-Origin" not in headers
        assert (await browser.get("/", None, Sec_Fetch_Site="cross-site"))[0] == 403
    assert not cluster.reviews


def test_names_of_hosts() -> None:
    names = host_names(["studio-1", "https://models.example.com/v1", "router.system:4141", ""])
    for good in (
        "studio-1:4141",
        "STUDIO-1",
        "studio-1.local",
        "models.example.com",
        "router.system",
        "localhost:1",
        "10.0.0.5:4141",
        "[fd00::1]:4141",
    ):
        assert not host_refused(good.lower(), names), good
    for bad in ("example.com", "studio-1.example.com", "10.0.0.5.example.com", "", "a b", "[::1", "studio-1@attacker.example"):
        assert host_refused(bad, names), bad


def test_a_token_says_for_whom_and_until_when() -> None:
    now = time.time()
    assert token_problem(token("ann"), now) == ""
    assert token_problem(token("ann"), now + 2 * DAY)
    assert token_problem(token("ann", AUDIENCE + "2"), now)


# --- floods ---


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[Kube]:
    async with cluster.kube() as found:
        yield found


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_flood_of_tokens_reaches_the_api_server_slowly_and_keeps_nobody_out(cluster: Cluster, kube: Kube) -> None:
    clock = Clock()
    known, cluster.users[token("ann")] = token("ann"), "ann"
    found = Viewers(kube, clock)
    assert (await found.check(known, "10.0.0.1")).allowed
    for number in range(100):
        verdict = await found.check(token(f"guess-{number}"), "10.0.0.1")
        assert verdict.status == (401 if number < viewers.PER_MINUTE - 1 else 429)
    # One whose answer is too old to count is asked for again, from the same address.
    clock.now = viewers.ACCEPTED_SECONDS + 1
    assert (await found.check(known, "10.0.0.1")).allowed
    assert len(cluster.reviews) == viewers.PER_MINUTE + 1


async def test_few_reviews_run_at_once_and_one_for_the_same_token(cluster: Cluster, kube: Kube) -> None:
    cluster.held = asyncio.Event()
    cluster.users[token("ann")] = "ann"
    found = Viewers(kube, Clock())
    same = [asyncio.create_task(found.check(token("ann"), "10.0.0.1")) for _ in range(20)]
    others = [
        asyncio.create_task(found.check(token(f"guess-{number}"), f"10.0.1.{number}")) for number in range(viewers.AT_ONCE - 1)
    ]
    await until_async(lambda: len(cluster.reviews) == viewers.AT_ONCE, "reviews run")
    assert (await found.check(token("one-more"), "10.0.2.1")).status == 429
    # A client that goes away does not take the answer from the others.
    same[0].cancel()
    cluster.held.set()
    assert all(verdict.allowed for verdict in await asyncio.gather(*same[1:]))
    assert {verdict.status for verdict in await asyncio.gather(*others)} == {401}
    assert cluster.reviews.count(token("ann")) == 1


async def test_tokens_that_come_at_the_same_time_are_reviewed_slowly_too(cluster: Cluster, kube: Kube) -> None:
    """No review has started yet when the next token comes."""
    cluster.held = asyncio.Event()
    found = Viewers(kube, Clock())
    checks = [found.check(token(f"guess-{number}"), f"10.0.1.{number}") for number in range(viewers.AT_ONCE + 8)]
    answers = asyncio.gather(*checks)
    await until_async(lambda: len(cluster.reviews) >= viewers.AT_ONCE, "reviews run")
    cluster.held.set()
    assert sorted(verdict.status for verdict in await answers) == [401] * viewers.AT_ONCE + [429] * 8


async def test_what_is_kept_of_tokens_is_bounded(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MAX_ACCEPTED", 3)
    monkeypatch.setattr(viewers, "MAX_REFUSED", 3)
    monkeypatch.setattr(viewers, "MAX_ADDRESSES", 3)
    found = Viewers(kube, Clock())
    for number in range(8):
        cluster.users[token(f"user-{number}")] = f"user-{number}"
        await found.check(token(f"user-{number}"), f"10.0.0.{number}")
        await found.check(token(f"guess-{number}"), f"10.0.0.{number}")
    assert (len(found._accepted), len(found._refused), len(found._asked), len(found._running)) == (3, 3, 3, 0)


async def test_a_token_that_was_refused_is_accepted_soon_after_it_gets_the_right(cluster: Cluster, kube: Kube) -> None:
    clock = Clock()
    cluster.users[token("ann")] = "ann"
    cluster.denied.add("nodes")
    found = Viewers(kube, clock)
    assert (await found.check(token("ann"), "10.0.0.1")).status == 403
    cluster.denied.clear()
    assert (await found.check(token("ann"), "10.0.0.1")).status == 403
    clock.now = viewers.REFUSED_SECONDS + 1
    assert (await found.check(token("ann"), "10.0.0.1")).allowed


async def test_pages_are_few_and_places_come_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_STREAMS_EACH", 1)
    models(cluster)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser:
        async with browser.stream("/api/feed", "sk-one") as first:
            await first.content.readline()
            assert (await browser.get("/api/feed", "sk-one"))[0] == 503
            # Holders of keys do not take the places of viewers.
            assert await browser.whole(token("ann"))

        async def free() -> bool:
            async with browser.stream("/api/feed", "sk-one") as again:
                return again.status == 200

        await until_async(free, "the place is free again")


@pytest.mark.parametrize("again", ["Bearer  {}", "bearer {}"])
async def test_the_pages_of_a_viewer_are_counted_however_the_token_is_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    monkeypatch.setattr(page, "MAX_STREAMS_EACH", 1)
    cluster.users[token("ann")] = "ann"
    async with served(cluster) as browser, browser.stream("/api/feed", token("ann")) as first:
        assert first.status == 200
        async with browser.stream("/api/feed", None, Authorization=again.format(token("ann"))) as other:
            assert other.status == 503
