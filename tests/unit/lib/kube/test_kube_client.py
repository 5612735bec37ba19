"""The client of the API server: lists of several pages, and connections that are of no use any more."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from thunderfleet_lib.kube import ApiError, Kube, Reflector, client

from tests.support.waiting import until_async


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """Answers every watch with one event and then with silence, lists of things in pages of two, everything else at once."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/things"):
            start = int(request.query.get("continue", 0))
            found = [{"metadata": {"name": name}} for name in "abcde"[start : start + 2]]
            metadata = {"resourceVersion": "7", **({"continue": str(start + 2)} if start < 4 else {})}
            return web.json_response({"metadata": metadata, "items": found})
        if "watch" not in request.query:
            return web.json_response({"metadata": {"name": "x"}})
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}\n')
        await over.wait()
        return stream

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    over.set()
    await runner.cleanup()


async def test_a_watch_notices_that_connections_were_given_up(server: str) -> None:
    """Or it would wait for minutes for a server that cannot reach this machine at its old address."""
    configuration = Configuration()
    configuration.host = server
    async with Kube(configuration) as kube:
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def watch() -> None:
            async for kind, _ in kube.watch("/api/v1/pods", "1"):
                heard.put_nowait(kind)

        watching = asyncio.create_task(watch())
        assert await asyncio.wait_for(heard.get(), 60) == "ADDED"
        await kube.reconnect()
        with pytest.raises(ApiError, match="the client closed the connection") as caught:
            await asyncio.wait_for(watching, 60)
        assert caught.value.unanswered, "the next watch resumes where this one was"
        assert (await kube.get("/api/v1/pods/x"))["metadata"]["name"] == "x"


ELSEWHERE = ("../../b/secrets/key", "x/../../b/secrets/key", "%2e%2e/key", "..", ".", "", "x?y", "x#y", "a\n")


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_a_name_leads_to_no_other_path(server: str, name: str) -> None:
    """The API server accepts any text as the name of a Secret that a pod refers to, and the HTTP client resolves it."""
    configuration = Configuration()
    configuration.host = server
    async with Kube(configuration) as kube:
        for send in (kube.get(f"/api/secrets/{name}"), kube.get_or_none(f"/api/secrets/{name}"), kube.delete(f"/api/{name}/x")):
            with pytest.raises(ApiError, match="is not a path of the API"):
                await send
        with pytest.raises(ApiError, match="is not a path of the API"):
            async with kube.websocket(f"/api/pods/{name}/exec", (), ()):
                pass
        assert await kube.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node")


async def test_lists_have_all_pages(server: str) -> None:
    configuration = Configuration()
    configuration.host = server
    async with Kube(configuration) as kube:
        pages = [page async for page in kube.pages("/api/v1/things", {})]
        assert [(len(page.items), page.version) for page in pages] == [(2, "7"), (2, "7"), (1, "7")]
        items, version = await kube.list("/api/v1/things")
        assert [item["metadata"]["name"] for item in items] == list("abcde") and version == "7"
        assert await kube.list_keys("/api/v1/things") == (set("abcde"), "7")
        assert await kube.list("/api/v1/nothing") == ([], "")


class Crowd:
    """An API server with objects of these sizes in bytes: lists and watches them, and counts what it has sent."""

    def __init__(self, sizes: list[int]) -> None:
        self.items = [
            {"metadata": {"name": str(number), "resourceVersion": "7", "annotations": {"note": "x" * size}}}
            for number, size in enumerate(sizes)
        ]
        self.limits: list[int] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            for item in self.items:
                await stream.write(json.dumps({"type": "ADDED", "object": item}).encode() + b"\n")
            return stream
        self.limits.append(int(request.query["limit"]))
        start = int(request.query.get("continue", 0))
        end = min(start + self.limits[-1], len(self.items))
        metadata = {"resourceVersion": "7", **({"continue": str(end)} if end < len(self.items) else {})}
        return web.json_response({"metadata": metadata, "items": self.items[start:end]})


@asynccontextmanager
async def serving(crowd: Crowd) -> AsyncIterator[Kube]:
    application = web.Application()
    application.router.add_get("/{path:.*}", crowd.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with Kube(configuration) as kube:
            yield kube
    finally:
        await runner.cleanup()


async def test_a_page_of_large_objects_is_read_in_parts_and_later_pages_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may create pods of more than a megabyte: a page of 100 would take hundreds of megabytes."""
    monkeypatch.setattr(client, "PAGE_BYTES", 100_000)
    crowd = Crowd([100] * 100 + [30_000] * 40 + [100] * 900)
    async with serving(crowd) as kube:
        pages = [page.items async for page in kube.pages("/api/v1/pods", {})]
    assert [item for items in pages for item in items] == crowd.items
    assert max(len(json.dumps(items)) for items in pages) < 100_000
    assert crowd.limits[0] == crowd.limits[-1] == 100 and len(crowd.limits) < 60


async def test_a_reflector_keeps_no_metadata_that_its_program_does_not_read() -> None:
    crowd = Crowd([1000])
    metadata: dict[str, Any] = crowd.items[0]["metadata"]
    metadata |= {"managedFields": [{"manager": "kubectl"}], "labels": {"a": "b"}}
    seen: list[list[str]] = []
    async with serving(crowd) as kube:
        wholly: Reflector = Reflector(kube, "/api/v1/pods", on_change=lambda key: seen.append([*wholly.items[key]["metadata"]]))
        fields = ("managedFields", "annotations")
        partly: Reflector = Reflector(
            kube, "/api/v1/pods", on_change=lambda key: seen.append([*partly.items[key]["metadata"]]), unread=fields
        )
        for reflector, kept in (
            (wholly, ["name", "resourceVersion", "annotations", "labels"]),
            (partly, ["name", "resourceVersion", "labels"]),
        ):
            running = asyncio.create_task(reflector.run())
            await until_async(lambda: len(seen) >= 2, "the object of the list, and that of the watch")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert seen[:2] == [kept, kept]
            seen.clear()


async def test_an_object_and_a_list_that_are_too_large_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE_BYTES", 10_000)
    monkeypatch.setattr(client, "BODY_BYTES", 1 << 20)
    async with serving(Crowd([100, 50_000, 100])) as kube:
        assert len((await kube.list("/api/v1/pods"))[0]) == 3, "one object may be larger than a page of several"
    crowd = Crowd([100, 2 << 20])
    async with serving(crowd) as kube:
        with pytest.raises(ApiError, match=r"GET /api/v1/pods: the response has more than 1 MiB") as caught:
            await kube.list("/api/v1/pods")
        assert crowd.limits[-1] == 1 and not caught.value.unanswered
        with pytest.raises(ApiError, match=r"more than 1 MiB; shorten or delete the largest objects"):
            await kube.get("/api/v1/pods", limit=2)
        with pytest.raises(ApiError, match=r"watch of /api/v1/pods: the response has more than 1 MiB"):
            async for _, item in kube.watch("/api/v1/pods", "7"):
                assert item["metadata"]["name"] == "0"


async def test_a_watch_reads_events_of_the_largest_objects() -> None:
    """A megabyte of control characters, which etcd accepts, is six megabytes of JSON."""
    crowd = Crowd([9 << 20, 10])
    async with serving(crowd) as kube:
        assert [item async for _, item in kube.watch("/api/v1/pods", "7")] == crowd.items


@pytest.fixture
async def proxy() -> AsyncIterator[tuple[str, asyncio.Queue[str]]]:
    """A proxy that answers itself: its address, and what it was asked for, with the login."""
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        login = request.headers.get("Proxy-Authorization", "").removeprefix("Basic ")
        asked.put_nowait(f"{base64.b64decode(login).decode()} {request.raw_path if '//' in request.raw_path else request.url}")
        return web.json_response({"metadata": {"name": "by the proxy"}})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


async def test_the_proxy_of_the_environment_is_used_but_not_for_its_exceptions(
    server: str, proxy: tuple[str, asyncio.Queue[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, asked = proxy
    monkeypatch.setenv("http_proxy", f"http://me:secret@{at}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for host, name in ((server, "x"), ("http://api.invalid:6443", "by the proxy")):
        configuration = Configuration()
        configuration.host = host
        async with Kube(configuration) as kube:
            assert (await kube.get("/api/v1/pods/x"))["metadata"]["name"] == name
            await kube.reconnect()
            assert (await kube.get("/api/v1/pods/x"))["metadata"]["name"] == name
    assert asked.qsize() == 2 and "api.invalid" in (said := asked.get_nowait()) and said.startswith("me:secret ")


async def test_a_kubeconfigs_proxy_comes_before_that_of_the_environment(
    proxy: tuple[str, asyncio.Queue[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, asked = proxy
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    configuration = Configuration()
    configuration.host, configuration.proxy = "http://api.invalid:6443", f"http://{at}"
    async with Kube(configuration) as kube:
        assert (await kube.get("/api/v1/pods/x"))["metadata"]["name"] == "by the proxy"
    assert asked.qsize() == 1


async def test_a_login_in_netrc_is_not_for_the_api_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all hosts would go along with the token, and there is room for one of them only."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    configuration = Configuration()
    configuration.host = server
    configuration.api_key["BearerToken"] = "Bearer a-token"
    async with Kube(configuration) as kube:
        assert (await kube.get("/api/v1/pods/x"))["metadata"]["name"] == "x"
