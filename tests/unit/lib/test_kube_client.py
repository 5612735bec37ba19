"""The client of the API server: lists of several pages, and connections that are of no use any more."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from thunderfleet_lib.kube import ApiError, Credentials, CredentialsError, Kube, transport
from thunderfleet_lib.sandbox import MOUNT_POINT_VARIABLE, SERVICE_ACCOUNT_FOLDER


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """Answers every watch with one event and then with silence, lists of things in pages of two, everything else at once."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/authorization":
            return web.json_response({"authorization": request.headers.get("Authorization")})
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
    async with Kube(Credentials(server)) as kube:
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def watch() -> None:
            async for kind, _ in kube.watch("/api/v1/pods", "1"):
                heard.put_nowait(kind)

        watching = asyncio.create_task(watch())
        assert await asyncio.wait_for(heard.get(), 10) == "ADDED"
        await kube.reconnect()
        with pytest.raises(ApiError, match="the client closed the connection") as caught:
            await asyncio.wait_for(watching, 10)
        assert caught.value.unanswered, "the next watch resumes where this one was"
        assert (await kube.get("/api/v1/pods/x"))["metadata"]["name"] == "x"


async def test_lists_have_all_pages(server: str) -> None:
    async with Kube(Credentials(server)) as kube:
        pages = [page async for page in kube.pages("/api/v1/things", {})]
        assert [(len(page.items), page.version) for page in pages] == [(2, "7"), (2, "7"), (1, "7")]
        items, version = await kube.list("/api/v1/things")
        assert [item["metadata"]["name"] for item in items] == list("abcde") and version == "7"
        assert await kube.list_keys("/api/v1/things") == (set("abcde"), "7")
        assert await kube.list("/api/v1/nothing") == ([], "")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> Path:
    """The mounted service account of a pod. Its API server takes no TLS."""
    folder = tmp_path / SERVICE_ACCOUNT_FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "token").write_text("one\n")
    (folder / "ca.crt").touch()
    monkeypatch.setenv(MOUNT_POINT_VARIABLE, str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


async def test_the_token_of_a_pod_is_read_again(account: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, file = transport.of_pod()
    assert found == Credentials("https://[fd00::1]:443", ca=str(account / "ca.crt"))

    async def sent() -> str:
        return str((await kube.get("/authorization"))["authorization"])

    async with Kube(Credentials(server), file) as kube:
        assert await sent() == "Bearer one"
        file.write_text("two")
        assert await sent() == "Bearer one", "it is still new"
        monkeypatch.setattr(transport, "TOKEN_SECONDS", 0.0)
        assert await sent() == "Bearer two" == kube.credentials().authorization
        file.unlink()
        with pytest.raises(ApiError, match="No such file"):
            await sent()


@pytest.mark.parametrize("lost", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "token", "ca.crt"])
def test_what_is_no_pod_has_no_credentials(lost: str, account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if lost.isupper():
        monkeypatch.delenv(lost)
    else:
        (account / lost).unlink()
    with pytest.raises(CredentialsError, match=lost):
        Kube.in_pod()


def test_programs_do_not_load_the_official_client() -> None:
    """It takes a third of a second of processor time, on every Mac, whenever one of its programs starts."""
    programs = "thunderfleet_kubelet.app, thunderfleet_kubelet.bootstrap.join, thunderfleet_agent.agent"
    code = f"import sys, {programs}; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
