"""The operator's HTTP server answers probes while strangers hold as many connections as they like."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from thunderfleet_lib.host.descriptors import allow_descriptors
from thunderfleet_lib.net import listener
from thunderfleet_operator.health import CONNECTIONS, Health
from thunderfleet_operator.metrics import Metrics

from tests.support.network.connections import HeldConnections
from tests.support.network.ports import claim

STRANGERS = 1_500


@pytest.fixture
def port() -> int:
    return claim(1)[0]


@pytest.fixture
async def health(port: int) -> AsyncIterator[Health]:
    allow_descriptors()
    page = Health(Metrics(), stuck=lambda: False, synced=lambda: True, leading=lambda: True, objects=lambda: b"# of objects\n")
    runner = await page.serve("127.0.0.1", port)
    yield page
    await runner.cleanup()
    assert page.connections == 0


async def _get(port: int, path: str) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as client, client.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_idle_connections_and_slow_headers_keep_no_probe_out(health: Health, port: int) -> None:
    held = HeldConnections("127.0.0.1", port)
    await held.open(STRANGERS)
    assert 0 < health.connections <= CONNECTIONS
    assert await _get(port, "/healthz") == (200, "ok\n")
    assert await _get(port, "/readyz") == (200, "leader\n")
    status, text = await _get(port, "/metrics")
    assert status == 200 and "thunderfleet_operator_leading" in text and text.endswith("\n# of objects\n")
    held.drop()


async def test_held_connections_are_closed_after_their_limit(
    health: Health, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "FIRST_REQUEST_SECONDS", 0.2)
    held = HeldConnections("127.0.0.1", port)
    await held.open(CONNECTIONS)
    await held.until_all_closed()
    held.drop()


async def test_a_flood_from_one_address_closes_no_silent_connection_of_another(
    health: Health, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The probe's connection is silent while the flood comes, which takes its time.
    monkeypatch.setattr(listener, "FIRST_REQUEST_SECONDS", 600.0)
    # A probe that has connected, but whose request is still on its way.
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    held = HeldConnections("127.0.0.1", port)
    await held.open(4 * CONNECTIONS)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    held.drop()


async def test_a_port_that_is_taken_is_an_error(health: Health, port: int) -> None:
    again = Health(Metrics(), stuck=lambda: False, synced=lambda: True, leading=lambda: True)
    with pytest.raises(OSError):
        await again.serve("127.0.0.1", port)
