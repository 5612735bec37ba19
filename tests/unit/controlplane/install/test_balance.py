"""The balancer's daemon while a Mac boots."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.balancer.proxy import Pool
from thunderfleet_controlplane.balancer.servers import ApiServer
from thunderfleet_controlplane.install import balance

LARGE = {"aiohttp", "kubernetes", "cryptography", "pydantic"}
STARTED = """
import asyncio, json, sys
from thunderfleet_controlplane.balancer.servers import ApiServer
from thunderfleet_controlplane.install import balance

at, folder, large = sys.argv[1], sys.argv[2], set(json.loads(sys.argv[3]))

async def answer(reader, writer):
    writer.write(b"answer to " + await reader.readline())
    writer.close()

async def waits(pool, servers):
    listed = list(map(str, pool.every))
    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    pool.use([ApiServer(*upstream.sockets[0].getsockname())])
    host, _, port = at.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"request\\n")
    answered = (await reader.readline()).decode()
    writer.close()
    upstream.close()
    print(json.dumps([listed, answered, sorted(large & set(sys.modules))]), flush=True)
    asyncio.current_task().cancel()
    await asyncio.sleep(0)

balance.until_useful = waits
balance.main(["--listen", at, "--servers", folder + "/servers.json", "--identity", folder, "--log", folder + "/log"])
"""


def _at(bound: socket.socket) -> ApiServer:
    return ApiServer(*bound.getsockname())


def test_it_forwards_connections_before_it_imports_large_libraries(bound: socket.socket, tmp_path: Path) -> None:
    known = (ApiServer("192.168.64.11", 6443),)
    disk.write(tmp_path / "servers.json", known)
    at = str(_at(bound))
    bound.close()
    command = [sys.executable, "-c", STARTED, at, str(tmp_path), json.dumps(sorted(LARGE))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [list(map(str, known)), "answer to request\n", []]


async def test_it_waits_until_there_is_something_to_choose(
    bound: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "LOOK_SECONDS", 0.01)
    looked = asyncio.Event()
    read = disk.read

    def counted(path: Path) -> tuple[ApiServer, ...]:
        looked.set()
        return read(path)

    monkeypatch.setattr(disk, "read", counted)
    pool = Pool()
    pool.use((_at(bound), ApiServer("studio-1.local", 1)))
    waiting = asyncio.ensure_future(balance.until_useful(pool, tmp_path / "servers.json"))
    try:
        await asyncio.wait_for(looked.wait(), 60)
        assert not waiting.done()
        bound.listen()
        looked.clear()
        await asyncio.wait_for(looked.wait(), 60)
        assert not waiting.done(), "there is one address"
        # A command has written the list meanwhile.
        listed = (_at(bound), ApiServer("127.0.0.9", 1), ApiServer("studio-1.local", 1))
        disk.write(tmp_path / "servers.json", listed)
        await asyncio.wait_for(waiting, 60)
        assert pool.servers == listed
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting


async def test_it_does_not_wait_for_ever(bound: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "CALM_SECONDS", 0.1)
    monkeypatch.setattr(balance, "LOOK_SECONDS", 0.01)
    await asyncio.wait_for(balance.until_useful(Pool(_at(bound)), tmp_path / "servers.json"), 60)
