"""A stranger on every port of a group, at every stage of its life, gets no information and disturbs nothing."""

import asyncio
import contextlib
import io
import os
import signal
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_crds.exchange.group import DRAIN_PATH, STATE_PATH
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import protocol
from thunderfleet_runner.api.http import gateway
from thunderfleet_runner.net import control

from tests.support.network.connections import HeldConnections

KEY = "the-deployments-key"
NOISE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 8


async def _noise(address: str, port: int) -> bytes:
    """A port's answer to meaningless bytes; b"" if it does not answer or listen."""
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
    """A stranger with keys of another group and an invalid API key."""

    def __init__(self, group: Any, keys: Path) -> None:
        self.group = group
        self.wrong = control.client_tls(keys)
        self.none = ssl.create_default_context()
        self.none.check_hostname, self.none.verify_mode = False, ssl.CERT_NONE
        # It presents its own certificate and accepts any.
        self.liar = control.client_tls(keys)
        self.liar.check_hostname, self.liar.verify_mode = False, ssl.CERT_NONE

    async def tries_everything(self) -> None:
        entries = self.group.plan.ranks
        waits = [self._control(entry) for entry in entries] + [self._gateway(entry) for entry in entries]
        waits += [self._ring(entry.ring_address, port) for entry in entries for port in entry.ring_ports]
        await asyncio.gather(*waits)

    async def _ring(self, address: str, port: int) -> None:
        answer = await _noise(address, port)
        # MLX's ring may accept connections during its init, but it sends nothing.
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
    request = protocol.Request(id=name, prompt=protocol.Prompt.of((1, 2, 3)), max_tokens=4)
    return [event.token async for event in supervisor.service.submit(request) if isinstance(event, protocol.Token)]


async def test_a_stranger_at_every_stage(make_group: Callable[..., Any], make_keys: Callable[[Path], Path]) -> None:
    group = make_group(2)
    stranger = Stranger(group, make_keys(group.folder / "strangers-keys"))
    # No attempt and no drain ends while the stranger is still trying, however busy the machine is.
    limits = replace(group.settings(0).limits, form_seconds=600.0, drain_seconds=600.0)
    settings = {"gateway": True, "api_keys": frozenset({KEY}), "limits": limits}
    (group.faults / "init-hang-1").touch()
    (group.faults / "slow-load-0").touch()

    leader = group.start(0, **settings)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    await stranger.tries_everything()
    assert (leader.state.phase, leader.state.attempt) == (GroupPhase.WAITING, 0)

    other = group.start(1, **settings)
    await group.until(lambda: leader.state.phase is GroupPhase.FORMING, "the ranks are in init")
    await stranger.tries_everything()
    # A stray connection may cost an attempt, never the group.
    (group.faults / "init-hang-1").unlink()
    # Otherwise this rank hangs until the attempt's time limit.
    os.kill(other.member.pid, signal.SIGKILL)
    await group.until(lambda: leader.state.phase is GroupPhase.LOADING, "the group has formed all the same")
    await stranger.tries_everything()
    assert leader.state.phase == GroupPhase.LOADING
    (group.faults / "slow-load-0").unlink()
    await group.until_ready()

    attempt = leader.state.attempt
    right = [0, 2, 4, 6]
    assert await _answer(leader, "before") == right
    _, *answers = await asyncio.gather(stranger.tries_everything(), *(_answer(leader, f"r{n}") for n in range(5)))
    assert answers == [right] * 5
    assert (leader.state.attempt, leader.state.recoveries) == (attempt, 0)
    # A ring closes its listener when its peer has connected, so a stranger gets no connection now.
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


async def test_silent_connections_block_no_other_client(
    make_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "SPARE_CONNECTIONS", 8)
    monkeypatch.setattr(control, "CONNECTIONS", 8)
    group = make_group(2)
    entry = group.plan.ranks[0]
    leader = group.start(0, gateway=True)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    at_control, at_gateway = (
        HeldConnections(entry.address, entry.control_port),
        HeldConnections(entry.address, entry.gateway_port),
    )
    try:
        await at_control.open(3 * 8)
        # A rank still joins, and the group forms.
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


async def test_what_is_no_request_is_not_decompressed_and_leaves_no_lines_in_the_log(
    make_group: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    group = make_group(1)
    entry = group.plan.ranks[0]
    group.start(0, gateway=True)
    await group.until_ready()
    before = len(caplog.records)
    odd = (
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    )
    for data in odd:
        reader, writer = await asyncio.open_connection(entry.address, entry.gateway_port)
        writer.write(data)
        async with asyncio.timeout(60):
            assert (await reader.read(12)).startswith(b"HTTP/1.")
        writer.transport.abort()
    bomb = zlib.compress(bytes(256 << 20), 9)
    used = time.process_time()
    async with aiohttp.ClientSession(f"http://{entry.address}:{entry.gateway_port}") as client:
        body = io.BytesIO(bomb)
        async with client.post("/v1/completions", data=body, headers={"Content-Encoding": "deflate"}) as answer:
            assert answer.status == 415
    assert time.process_time() - used < 1.0
    assert not caplog.records[before:]
