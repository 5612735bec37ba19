"""Somebody who is not of the group, on every port of it, at every stage of its life: learns nothing, and stops nothing."""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_crds.group import DRAIN_PATH, STATE_PATH
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import doors, protocol
from thunderfleet_runner.api import gateway
from thunderfleet_runner.net import control

KEY = "the-deployments-key"
NOISE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 8


async def _noise(address: str, port: int) -> bytes:
    """What a port answers to bytes that mean nothing; b"" when it does not, or is not there."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        return b""
    try:
        writer.write(NOISE)
        async with asyncio.timeout(1):
            return await reader.read(4096)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.transport.abort()


class Stranger:
    """Has keys of another group, an API key that is none, and time."""

    def __init__(self, group: Any, keys: Path) -> None:
        self.group = group
        self.wrong = control.client_tls(keys)
        self.none = ssl.create_default_context()
        self.none.check_hostname, self.none.verify_mode = False, ssl.CERT_NONE
        # A certificate of its own, and no interest in whose it talks to.
        self.liar = control.client_tls(keys)
        self.liar.check_hostname, self.liar.verify_mode = False, ssl.CERT_NONE

    async def tries_everything(self) -> None:
        entries = self.group.plan.ranks
        waits = [self._control(entry) for entry in entries] + [self._gateway(entry) for entry in entries]
        waits += [self._ring(entry.ring_address, port) for entry in entries for port in entry.ring_ports]
        await asyncio.gather(*waits)

    async def _ring(self, address: str, port: int) -> None:
        answer = await _noise(address, port)
        # MLX's ring may accept, for the time of its init; it has nothing to say to anybody.
        assert len(answer) < 64

    async def _control(self, entry: Any) -> None:
        answer = await _noise(entry.address, entry.control_port)
        assert b"HTTP" not in answer and b"uid" not in answer
        for tls in (self.wrong, self.none, self.liar):
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
                url = f"https://{entry.address}:{entry.control_port}"
                for method, path in (("GET", STATE_PATH), ("POST", DRAIN_PATH), ("GET", control.JOIN_PATH)):
                    try:
                        async with session.request(method, url + path, ssl=tls) as answered:
                            raise AssertionError(f"{method} {path} was answered with {answered.status}")
                    except (aiohttp.ClientError, TimeoutError, OSError):
                        pass

    async def _gateway(self, entry: Any) -> None:
        await _noise(entry.address, entry.gateway_port)
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(f"http://{entry.address}:{entry.gateway_port}", timeout=timeout) as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                for path in ("/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/state", "/v1/join"):
                    with contextlib.suppress(aiohttp.ClientConnectionError, TimeoutError):
                        async with session.post(path, json={"model": "thunderfleet/tiny"}, headers=headers) as answered:
                            assert answered.status == 401, (path, answered.status)


async def _answer(supervisor: Any, name: str) -> list[int]:
    request = protocol.Request(id=name, kind="completion", prompt="a b c", max_tokens=4)
    return [event.token async for event in supervisor.service.submit(request) if isinstance(event, protocol.Token)]


async def test_a_stranger_at_every_stage(make_group: Callable[..., Any], make_keys: Callable[[Path], Path]) -> None:
    group = make_group(2)
    stranger = Stranger(group, make_keys(group.folder / "strangers-keys"))
    settings = {"gateway": True, "api_keys": frozenset({KEY})}
    (group.faults / "init-hang-1").touch()
    (group.faults / "slow-load-0").touch()

    leader = group.start(0, **settings)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    await stranger.tries_everything()
    assert leader.state.phase is GroupPhase.WAITING and leader.state.attempt == 0

    group.start(1, **settings)
    await group.until(lambda: leader.state.phase is GroupPhase.FORMING, "the ranks are in init")
    await stranger.tries_everything()
    # A stray connection may cost an attempt, never the group.
    (group.faults / "init-hang-1").unlink()
    await group.until(lambda: leader.state.phase is GroupPhase.LOADING, "the group has formed all the same")
    await stranger.tries_everything()
    assert leader.state.phase is GroupPhase.LOADING
    (group.faults / "slow-load-0").unlink()
    await group.until_ready()

    attempt = leader.state.attempt
    right = [0, 2, 4, 6]
    assert await _answer(leader, "before") == right
    _, *answers = await asyncio.gather(stranger.tries_everything(), *(_answer(leader, f"r{n}") for n in range(5)))
    assert answers == [right] * 5
    assert (leader.state.attempt, leader.state.recoveries) == (attempt, 0)
    # What a ring listens on it closes once it has its peer: nobody hears a stranger now.
    for entry in group.plan.ranks:
        for port in entry.ring_ports:
            assert await _noise(entry.ring_address, port) == b""

    (group.faults / "stuck-0").touch()
    running = asyncio.create_task(_answer(leader, "last"))
    await group.until(lambda: leader.service.running == 1, "a request runs")
    leader.end()
    await group.until(lambda: leader.service.draining, "the group drains")
    await stranger.tries_everything()
    (group.faults / "stuck-0").unlink()
    assert await running == right


class Held:
    """Connections that a stranger opens and keeps: some silent, some in the midst of a header that never ends."""

    def __init__(self, address: str, port: int) -> None:
        self._at = (address, port)
        self.ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, count: int) -> None:
        for number in range(count):
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*self._at), 60)
            if number % 2:
                writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            self.ends.append((reader, writer))

    async def until_all_closed(self) -> None:
        async with asyncio.timeout(60):
            for reader, _ in self.ends:
                with contextlib.suppress(ConnectionError):
                    while await reader.read(4096):
                        pass

    def drop(self) -> None:
        for _, writer in self.ends:
            writer.transport.abort()


async def test_who_holds_connections_in_silence_keeps_nobody_out(
    make_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "SPARE_CONNECTIONS", 8)
    monkeypatch.setattr(control, "CONNECTIONS", 8)
    group = make_group(2)
    entry = group.plan.ranks[0]
    leader = group.start(0, gateway=True)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    at_control, at_gateway = Held(entry.address, entry.control_port), Held(entry.address, entry.gateway_port)
    try:
        await at_control.open(3 * 8)
        # A rank joins all the same, and the group forms.
        group.start(1)
        await group.until_ready()
        await at_gateway.open(100)
        await at_control.open(8)
        async with aiohttp.ClientSession(f"http://{entry.address}:{entry.gateway_port}") as client:
            for _ in range(3):
                body = {"model": "thunderfleet/tiny", "prompt": "a b", "max_tokens": 3}
                async with client.post("/v1/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                await at_gateway.open(2)
            async with client.get("/metrics") as answer:
                assert answer.status == 200
        assert leader.state.attempt == 1
    finally:
        at_control.drop()
        at_gateway.drop()


class Server:
    """Behind a door: /now answers, /later waits for the event."""

    def __init__(self, limit: int) -> None:
        self.door = doors.Doors(limit)
        self.later = asyncio.Event()
        self.at_work: asyncio.Queue[None] = asyncio.Queue()
        """An entry for each request that waits."""

    async def __aenter__(self) -> "Server":
        app = web.Application(middlewares=[self.door.mark])
        app.add_routes([web.get("/now", self._now), web.get("/later", self._wait)])
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        self.port = _free_port()
        await self.door.listen(self._runner, "127.0.0.1", self.port)
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", timeout=aiohttp.ClientTimeout(total=60))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._runner.cleanup()
        assert self.door.open == 0

    async def _now(self, _: web.Request) -> web.Response:
        return web.Response(text="now")

    async def _wait(self, _: web.Request) -> web.Response:
        self.at_work.put_nowait(None)
        await self.later.wait()
        return web.Response(text="later")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_connection_without_a_request_is_ended_and_one_at_work_never_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "FIRST_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(doors, "NEXT_REQUEST_SECONDS", 0.3)
    async with Server(4) as server:
        working = asyncio.create_task(server.client.get("/later"))
        await asyncio.wait_for(server.at_work.get(), 60)
        held = Held("127.0.0.1", server.port)
        await held.open(12)
        assert server.door.open <= 4
        # The slow ones are not spared for what they dribble; nor is one that was answered once and asks no more.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        held.ends.append((reader, writer))
        writer.write(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
        await held.until_all_closed()
        held.drop()
        assert not working.done()
        server.later.set()
        async with await working as answer:
            assert await answer.text() == "later"


async def test_when_all_are_at_work_a_newcomer_is_turned_away_at_once() -> None:
    async with Server(2) as server:
        working = [asyncio.create_task(server.client.get("/later")) for _ in range(2)]
        for _ in working:
            await asyncio.wait_for(server.at_work.get(), 60)
        with pytest.raises(aiohttp.ClientConnectionError):
            await server.client.get("/now")
        server.later.set()
        for task in working:
            (await task).release()
        async with server.client.get("/now") as answer:
            assert answer.status == 200


def test_a_process_that_listens_has_descriptors_for_all() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        doors.allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(doors.DESCRIPTORS, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
