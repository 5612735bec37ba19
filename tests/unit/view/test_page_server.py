"""The page's server: who may use it, what it sends, and its bounds. A real server, and an API server of lists and watches."""

import asyncio
import colorsys
import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_view.live import feed as feeding
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.fleet import Kind
from thunderfleet_view.web import assets, guard, responses
from thunderfleet_view.web import server as serving
from thunderfleet_view.web.sessions import MAX_SESSIONS, SESSION_SECONDS, TOKEN_SECONDS, Sessions

from tests.support.page.fleetpage import FleetApi, Page, cable, cable_name, fleet, model, served
from tests.support.waiting import until_async

ROOT = Path(__file__).parents[3]
LINK = cable_name("studio-1", 1, "studio-2", 1)


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def api() -> AsyncIterator[FleetApi]:
    found = FleetApi()
    await found.start()
    found.fill(fleet(2, 2, idle=0))
    yield found
    await found.stop()


@pytest.fixture
async def page(api: FleetApi) -> AsyncIterator[Page]:
    async with served(api) as found:
        await until_async(lambda: found.watch.synced, "the fleet is known")
        yield found


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as found:
        yield found


async def ask(
    client: aiohttp.ClientSession, page: Page, path: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, Mapping[str, str], str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.request(method, page.origin + path, json=body, headers=named) as answer:
        return answer.status, answer.headers, await answer.text()


async def opened(client: aiohttp.ClientSession, page: Page) -> dict[str, str]:
    """The header of a new session."""
    status, _, text = await ask(client, page, "/session", "POST", {"token": page.sessions.new_token()})
    assert status == 200
    return {"Authorization": f"Bearer {json.loads(text)['session']}"}


# --- sessions ---


def test_a_token_opens_one_session_and_is_then_worth_nothing() -> None:
    sessions = Sessions(Clock())
    token = sessions.new_token()
    session = sessions.exchange(token)
    assert session is not None and sessions.valid(session)
    assert sessions.exchange(token) is None
    assert not sessions.valid(token) and not sessions.valid("") and not sessions.valid("\udcff")


def test_a_new_token_replaces_the_last_one() -> None:
    sessions = Sessions(Clock())
    old, new = sessions.new_token(), sessions.new_token()
    assert sessions.exchange(old) is None and sessions.exchange(new) is not None


def test_tokens_and_sessions_end_and_are_few() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.new_token()
    clock.now = TOKEN_SECONDS + 1
    assert sessions.exchange(token) is None
    opened = [sessions.exchange(sessions.new_token()) or "" for _ in range(MAX_SESSIONS + 1)]
    assert [sessions.valid(one) for one in opened] == [False] + [True] * MAX_SESSIONS
    clock.now += SESSION_SECONDS + 1
    assert not any(sessions.valid(one) for one in opened)


# --- who may use it ---


@pytest.mark.parametrize("path", ["/api/feed", "/api/details?id=mac/studio-1"])
async def test_without_a_session_nothing_of_the_fleet_is_sent(page: Page, client: aiohttp.ClientSession, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": page.sessions.new_token()}, {"Cookie": "a=b"}):
        status, _, text = await ask(client, page, path, **headers)
        assert status == 401 and "studio" not in text
    status, _, text = await ask(client, page, "/api/chat", "POST", {"model": "default/model-0", "messages": []})
    assert status == 401


async def test_a_second_use_of_the_token_is_refused(page: Page, client: aiohttp.ClientSession) -> None:
    token = page.sessions.new_token()
    statuses = [(await ask(client, page, "/session", "POST", {"token": token}))[0] for _ in range(2)]
    assert statuses == [200, 401]


@pytest.mark.parametrize("body", ["x", "[]", "{}", '{"token": 1}', '{"token": ["a"]}', "[" * 5000])
async def test_what_is_no_token_opens_nothing(page: Page, client: aiohttp.ClientSession, body: str) -> None:
    async with client.post(page.origin + "/session", data=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status in (400, 401)


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.attacker.example:{port}", ""]
)
async def test_another_name_for_this_machine_is_refused(page: Page, client: aiohttp.ClientSession, host: str) -> None:
    session = await opened(client, page)
    for path, headers in (("/", {}), ("/api/feed", session), ("/assets/page.js", {})):
        status, _, text = await ask(client, page, path, Host=host.format(port=page.port), **headers)
        assert status == 403 and "the host must be one of" in text


async def test_pages_of_other_origins_are_refused(page: Page, client: aiohttp.ClientSession) -> None:
    session = await opened(client, page)
    foreign = (
        {"Origin": "https://attacker.example"}, {"Origin": "null"}, {"Origin": f"http://localhost:{page.port}"},
        {"Origin": page.origin.replace("http", "https")}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    )  # fmt: skip
    for headers in foreign:
        for path, method in (("/api/details?id=mac/studio-1", "GET"), ("/session", "POST"), ("/api/chat", "OPTIONS")):
            status, answered, _ = await ask(client, page, path, method, {"token": "x"}, **headers, **session)
            assert status == 403 and not [name for name in answered if name.lower().startswith("access-control")]
    status, _, _ = await ask(
        client, page, "/api/details?id=mac/studio-1", Origin=page.origin, Sec_Fetch_Site="same-origin", **session
    )
    assert status == 200


async def test_a_form_of_another_page_cannot_post(page: Page, client: aiohttp.ClientSession) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        body = json.dumps({"token": page.sessions.new_token()})
        async with client.post(page.origin + "/session", data=body, headers={"Content-Type": kind}) as answer:
            assert answer.status == 415


@pytest.mark.parametrize(
    "path", ["/", "/assets/page.js", "/assets/page.css", "/assets/nothing", "/api/feed", "/nothing", "/assets/..%2fserver.py"]
)
async def test_every_response_has_the_policy(page: Page, client: aiohttp.ClientSession, path: str) -> None:
    _, headers, _ = await ask(client, page, path)
    policy = headers["Content-Security-Policy"]
    assert (
        "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "require-trusted-types-for 'script'" in policy
    )
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"


async def test_the_stream_has_the_policy_too(page: Page, client: aiohttp.ClientSession) -> None:
    async with client.get(page.origin + "/api/feed", headers=await opened(client, page)) as answer:
        assert set(guard.HEADERS.items()) <= set(answer.headers.items())


# --- what it sends ---


async def test_the_whole_fleet_then_changes(api: FleetApi, page: Page, client: aiohttp.ClientSession) -> None:
    async with client.get(page.origin + "/api/feed", headers=await opened(client, page)) as answer:
        first = json.loads(await answer.content.readline())
        assert first["whole"] and {one["id"] for one in first["put"]} == set(page.watch.fleet.entities)
        api.put(Kind.LINKS, cable("studio-1", 1, "studio-2", 1, "False", message="pulled"))
        second = await message(answer)
        assert [(one["id"], one["health"]) for one in second["put"]] == [(f"cable/{LINK}", "bad")] and "whole" not in second
        api.drop(Kind.LINKS, LINK)
        assert (await message(answer))["drop"] == [f"cable/{LINK}"]


async def message(answer: aiohttp.ClientResponse) -> Any:
    """The next message; empty lines only say that the server lives."""
    while not (line := await answer.content.readline()).strip():
        assert line, "the stream has ended"
    return json.loads(line)


async def test_a_large_fleet_is_read_in_one_page_of_each_kind() -> None:
    """The API server reads further pages from etcd."""
    api = FleetApi()
    api.fill(fleet(202, 2, idle=0))
    await api.start()
    async with served(api) as page:
        await until_async(lambda: page.watch.synced, "the fleet is known")
        assert len(page.watch.fleet.objects[Kind.PROFILES]) == 202
    await api.stop()
    assert api.pages == dict.fromkeys(Kind, 1)


async def test_while_the_api_server_is_away_the_page_keeps_what_it_knows(
    api: FleetApi, page: Page, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_view.live.watch.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("thunderfleet_view.live.watch.AWAY_SECONDS", 0.1)
    headers, port = await opened(client, page), int(api.url.rpartition(":")[2])
    async with client.get(page.origin + "/api/feed", headers=headers) as answer:
        before = {one["id"] for one in (await message(answer))["put"]}
        await api.stop()
        assert "does not answer" in (await message(answer))["notes"][0]
        assert set(page.watch.fleet.entities) == before
        await api.start(port)
        while (await message(answer)).get("notes"):
            pass
        api.put(Kind.LINKS, cable("studio-1", 1, "studio-2", 1, "False"))
        while not (await message(answer))["put"]:
            pass


@pytest.mark.parametrize(
    ("livez", "said"),
    [((0, ""), "the API server http"), ((500, "[+]ping ok\n[-]etcd failed: reason withheld"), "etcd does not")],
)
async def test_a_control_plane_that_hangs_while_its_watches_stay_open_is_named(
    api: FleetApi, page: Page, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, livez: tuple[int, str], said: str
) -> None:
    monkeypatch.setattr("thunderfleet_view.live.watch.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("thunderfleet_view.live.watch.ASK_SECONDS", 0.05)
    # An answer to another request would show that the API server is only busy.
    monkeypatch.setattr("thunderfleet_view.live.watch.LEASES_SECONDS", 3600.0)
    monkeypatch.setattr("thunderfleet_lib.kube.control_plane.silent_part.__defaults__", (0.2,))
    await opened(client, page)
    api.livez = livez
    await until_async(lambda: any(note.startswith(said) for note in page.feed.notes), "it is named at the top of the page")
    assert "this is the state of" in page.feed.notes[0]
    api.livez = (200, "ok")
    await until_async(lambda: not page.feed.notes, "it answers again")


async def test_a_missing_right_is_named(client: aiohttp.ClientSession) -> None:
    api = FleetApi()
    api.refused = {Kind.NODES: 403, Kind.LINKS: 404}
    await api.start()
    async with served(api) as page:
        await until_async(lambda: len(page.feed.notes) == 2, "both kinds are refused")
        assert "kubectl auth can-i list nodes" in page.feed.notes[0] and "install the chart" in page.feed.notes[1]
    await api.stop()


async def test_a_component_that_no_longer_renews_its_lease_is_named(
    api: FleetApi, page: Page, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_view.live.watch.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("thunderfleet_view.live.watch.LEASES_SECONDS", 0.05)
    session = await opened(client, page)
    renewed = {"kube-system/kube-scheduler": 0, "kube-system/kube-controller-manager": 50, "system/thunderfleet-operator": 51}
    api.leases = {at: {"spec": {"renewTime": f"2026-03-01T12:00:{second:02}.000000Z"}} for at, second in renewed.items()}
    await until_async(lambda: bool(page.feed.notes), "it is named at the top of the page")
    assert [note.rpartition(": ")[0] for note in page.feed.notes] == [
        "kube-scheduler: has not renewed its Lease for 51 s, so it does not run or does not reach the API server"
    ]
    _, _, text = await ask(client, page, "/api/details?id=model/default/model-0", **session)
    problems = [step["subject"] for step in json.loads(text)["why"]["steps"] if step["state"] == "problem"]
    assert "kube-scheduler" in problems
    api.leases["kube-system/kube-scheduler"]["spec"]["renewTime"] = "2026-03-01T12:00:49Z"
    await until_async(lambda: not page.feed.notes, "it works again")


async def test_a_mac_whose_kubelet_is_silent_is_named_while_its_node_is_ready(
    api: FleetApi, page: Page, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_view.live.watch.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("thunderfleet_view.live.watch.LEASES_SECONDS", 0.05)
    session = await opened(client, page)
    _, _, text = await ask(client, page, "/api/details?id=model/default/model-0", **session)
    steps = json.loads(text)["why"]["steps"]
    silent = next(step["subject"].removeprefix("Node ") for step in steps if step["subject"].startswith("Node "))
    ages = {"system/thunderfleet-operator": 58, **{f"kube-node-lease/{name}": 50 for name in api.objects[Kind.NODES]}}
    ages[f"kube-node-lease/{silent}"] = 8
    api.leases = {at: {"spec": {"renewTime": f"2026-03-01T12:00:{second:02}.000000Z"}} for at, second in ages.items()}
    await until_async(lambda: bool(page.feed.notes), "it is named at the top of the page")
    assert [note.partition(": check")[0] for note in page.feed.notes] == [
        f"{silent}: the kubelet has not renewed its Lease for 50 s"
    ]
    _, _, text = await ask(client, page, "/api/details?id=model/default/model-0", **session)
    problems = [step["subject"] for step in json.loads(text)["why"]["steps"] if step["state"] == "problem"]
    assert f"Node {silent}" in problems
    card = json.loads(page.feed.texts[f"mac/{silent}"])
    assert card["health"] == "doubtful" and card["problem"].startswith("the kubelet has not renewed its Lease for 50 s")
    api.leases[f"kube-node-lease/{silent}"]["spec"]["renewTime"] = "2026-03-01T12:00:49Z"
    await until_async(lambda: not page.feed.notes, "it renews its Lease again")
    card = json.loads(page.feed.texts[f"mac/{silent}"])
    assert (card["health"], card["problem"]) == ("good", "")


async def test_details_of_what_is_selected(page: Page, client: aiohttp.ClientSession) -> None:
    session = await opened(client, page)
    status, _, text = await ask(client, page, "/api/details?id=model/default/model-0", **session)
    assert status == 200 and json.loads(text)["why"]["steps"]
    assert (await ask(client, page, "/api/details?id=mac/nobody", **session))[0] == 404


# --- bounds ---


def test_a_browser_that_does_not_read_costs_a_set_of_ids_and_then_gets_everything() -> None:
    feed = Feed()
    reader = feed.open()
    reader.whole = False
    for number in range(feeding.MAX_PENDING * 3):
        feed.publish({f"mac/{number % (feeding.MAX_PENDING // 2)}": {"id": "x", "n": number}})
    assert len(reader.pending) == feeding.MAX_PENDING // 2 and not reader.whole
    for number in range(feeding.MAX_PENDING * 3):
        feed.publish({f"cable/{number}": {"id": "y"}})
    assert reader.whole and not reader.pending


async def test_the_last_content_is_sent_once_however_often_it_changed() -> None:
    feed = Feed()
    reader = feed.open()
    await reader.take(1)
    for number in range(100):
        feed.publish({"mac/a": {"id": "mac/a", "n": number}})
    found = json.loads(await reader.take(1) or "")
    assert found == {"put": [{"id": "mac/a", "n": 99}], "drop": []}
    assert await reader.take(0.01) is None


async def test_more_streams_than_allowed_are_refused_and_places_come_back(
    page: Page, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_READERS", 2)
    headers = await opened(client, page)
    first = [await client.get(page.origin + "/api/feed", headers=headers) for _ in range(2)]
    status, answered, text = await ask(client, page, "/api/feed", **headers)
    assert status == 503 and "close one" in text and answered["Retry-After"] == "10"
    for one in first:
        one.close()
    await until_async(lambda: page.feed.readers == 0, "both places are free")
    async with client.get(page.origin + "/api/feed", headers=headers) as answer:
        assert answer.status == 200


async def test_a_browser_that_stops_reading_is_cut_off(
    api: FleetApi, page: Page, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "WRITE_SECONDS", 0.2)
    headers = await opened(client, page)
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port, limit=1024)
    lines = ["GET /api/feed HTTP/1.1", f"Host: 127.0.0.1:{page.port}", f"Authorization: {headers['Authorization']}", "", ""]
    writer.write("\r\n".join(lines).encode())
    await reader.readline()
    await until_async(lambda: page.feed.readers == 1, "the stream is open")

    def change() -> bool:
        page.feed.publish({f"mac/{number}": {"id": "x", "text": "x" * 100_000} for number in range(50)})
        return page.feed.readers == 0

    await until_async(change, "it is cut off")
    writer.close()


# --- chat ---


async def test_a_chat_passes_the_key_on_and_the_answer_is_text(api: FleetApi, client: aiohttp.ClientSession) -> None:
    asked: list[Any] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append((request.headers.get("X-Api-Key"), request.headers.get("Authorization"), await request.json()))
        return web.Response(text="data: <script>alert(1)</script>\n\n", content_type="text/html")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    api.put(Kind.DEPLOYMENTS, model("model-0", ["studio-1"], "nobody/tiny", endpoint=endpoint))
    async with served(api) as page:
        await until_async(lambda: page.watch.synced, "the fleet is known")
        session = await opened(client, page)
        body = {"model": "default/model-0", "messages": [{"role": "user", "content": "hello"}], "extra": "dropped"}
        status, headers, text = await ask(client, page, "/api/chat", "POST", body, X_Api_Key="secret", **session)
        assert status == 200 and text.startswith("data: <script>")
        assert headers["Content-Type"].startswith("text/plain") and headers["X-Content-Type-Options"] == "nosniff"
        wanted = {"model": "model-0", "messages": body["messages"], "stream": True}
        assert asked == [("secret", None, wanted)]
        await runner.cleanup()
        status, _, text = await ask(client, page, "/api/chat", "POST", body, **session)
        assert status == 502 and "cannot reach" in text
        hidden = {"model": "default/model-0", "messages": [{"role": "system", "content": "x"}]}
        wrongs: list[object] = [{}, [], hidden]
        for wrong in wrongs:
            assert (await ask(client, page, "/api/chat", "POST", wrong, **session))[0] == 400
        assert (await ask(client, page, "/api/chat", "POST", {**body, "model": "default/none"}, **session))[0] == 503


async def test_a_gateway_cannot_lead_a_chat_to_another_server(api: FleetApi, client: aiohttp.ClientSession) -> None:
    asked: list[str] = []

    async def lead(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", lead)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    api.put(Kind.DEPLOYMENTS, model("model-0", ["studio-1"], "nobody/tiny", endpoint=endpoint))
    async with served(api) as page:
        await until_async(lambda: page.watch.synced, "the fleet is known")
        body = {"model": "default/model-0", "messages": [{"role": "user", "content": "hello"}]}
        status, _, text = await ask(client, page, "/api/chat", "POST", body, **await opened(client, page))
        assert status == 502 and "answered with a redirect" in text
    await runner.cleanup()
    assert asked == ["/v1/chat/completions"]


async def test_an_answer_that_breaks_off_is_not_followed_by_another_response(
    api: FleetApi, client: aiohttp.ClientSession
) -> None:
    async def complete(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"data: begins")
        assert request.transport is not None
        request.transport.close()
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    api.put(Kind.DEPLOYMENTS, model("model-0", ["studio-1"], "nobody/tiny", endpoint=endpoint))
    async with served(api) as page:
        await until_async(lambda: page.watch.synced, "the fleet is known")
        session = await opened(client, page)
        body = json.dumps({"model": "default/model-0", "messages": [{"role": "user", "content": "hello"}]})
        host = page.origin.removeprefix("http://")
        reader, writer = await asyncio.open_connection(*host.rsplit(":", 1))
        head = [
            "POST /api/chat HTTP/1.1",
            f"Host: {host}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in session.items()),
        ]
        writer.write(("\r\n".join(head) + "\r\n\r\n" + body).encode())
        said = b""
        async with asyncio.timeout(30):
            while part := await reader.read(65536):
                said += part
        writer.close()
        assert said.startswith(b"HTTP/1.1 200") and said.count(b"HTTP/1.1") == 1, said
    await runner.cleanup()


# --- the files ---


def test_the_files_are_built_from_their_sources() -> None:
    """`make page` builds them; the first line of page.js has the hash of the sources."""
    sources = ROOT / "view" / "page"
    names = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"]
    names += [f"src/{path.name}" for path in sorted((sources / "src").iterdir())]
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\n".encode())
        digest.update(hashlib.sha256((sources / name).read_bytes()).digest())
    first = assets.load()["page.js"].plain.decode().partition("\n")[0]
    assert f"sources {digest.hexdigest()};" in first, "run `make page`"
    for name in ("index.html", "page.css", "icon.svg"):
        assert assets.load()[name].plain == (sources / "src" / name).read_bytes()


def test_the_page_is_small_asks_nobody_else_and_lists_licenses() -> None:
    files = assets.load()
    assert sum(len(one.packed) for one in files.values()) < 300_000
    assert gzip.decompress(files["page.js"].packed) == files["page.js"].plain
    for name, found in files.items():
        addresses = set(re.findall(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", found.plain)) if name != "licenses.txt" else set()
        assert addresses <= {b"http://www.w3.org"}, name
    assert b"<script>" not in files["index.html"].plain and b"style=" not in files["index.html"].plain
    lock = json.loads((ROOT / "view/page/package-lock.json").read_text())
    listed = files["licenses.txt"].plain.decode()
    bundled = [path.rpartition("/")[2] for path, one in lock["packages"].items() if path and not one.get("dev")]
    assert "d3-force" in bundled and all(f"\n{name} " in listed for name in bundled)
    assert not any("resolved" in one for one in lock["packages"].values())


def _contrast(one: str, other: str) -> float:
    """The contrast of two colors (WCAG 2)."""

    def light(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_and_marks_stand_out_in_both_themes() -> None:
    """4.5 for texts, 3 for what is no text, as WCAG 2 has it."""
    text = (ROOT / "view" / "page" / "src" / "page.css").read_text(encoding="utf-8")
    themes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in re.findall(r"\{([^{}]*--back:[^{}]*)\}", text)]
    assert len(themes) == 2, "light and dark"
    for colors in themes:
        for wanted, names in ((4.5, ("text", "quiet", "bad", "doubtful")), (3.0, ("good", "accent"))):
            weak = [
                (name, behind, round(_contrast(colors[name], colors[behind]), 2))
                for name in names
                for behind in ("back", "card", "soft")
                if _contrast(colors[name], colors[behind]) < wanted
            ]
            assert weak == []


def test_names_of_groups_stand_out_in_both_themes() -> None:
    """In the color of the group, on the picture and on a card. How light they are in the dark theme stands in the drawing."""
    source = ROOT / "view" / "page" / "src"
    inks = re.search(r"INKS.*?\[(.*?)\]\);", (source / "store.ts").read_text(encoding="utf-8"), re.DOTALL)
    assert inks is not None
    hues = [(int(hue), int(light)) for hue, light in re.findall(r"\[(\d+), (\d+)\]", inks[1])]
    assert len(hues) == 12
    assert "`hsl(${hue} 70% 70%)`" in (source / "draw.ts").read_text(encoding="utf-8")
    weak = []
    for hue, light in hues:
        for saturation, lightness, behind in (
            *((0.64, light / 100, color) for color in ("#f4f5f8", "#ffffff")),
            *((0.7, 0.7, color) for color in ("#10131a", "#1a1e28")),
        ):
            parts = colorsys.hls_to_rgb(hue / 360, lightness, saturation)
            ink = "#" + "".join(f"{round(part * 255):02x}" for part in parts)
            if _contrast(ink, behind) < 4.5:
                weak.append((hue, behind, round(_contrast(ink, behind), 2)))
    assert weak == []


def test_no_text_becomes_markup() -> None:
    """Names and messages are text nodes: the sources use nothing that reads markup."""
    for path in (ROOT / "view/page/src").glob("*.ts"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()), (
            path
        )
