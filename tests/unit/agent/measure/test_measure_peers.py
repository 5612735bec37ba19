"""Agents that measure each other, in one process over real sockets on loopback: friendly, hostile, frozen, dead, and many."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_agent.measure import admission, measure_cli
from thunderfleet_agent.measure.ledger import FILE, Ledger
from thunderfleet_agent.measure.prober import Preempted, Prober
from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.probes import CableEnd, Key, Probe, ProbeKind, Target, rdma_probe, socket_probe
from thunderfleet_agent.measure.schedule.settings import MeasureSettings, parse
from thunderfleet_agent.measure.schedule.view import Cable, View
from thunderfleet_agent.measure.session import channel, rates, streams
from thunderfleet_agent.measure.session.messages import ProbeReply, ProbeRequest, SessionMessage
from thunderfleet_agent.measure.session.probe_lock import MacBusy
from thunderfleet_agent.measure.session.result import ProbeRefused, SessionFailed
from thunderfleet_agent.measure.session.stream_listener import StreamListener
from thunderfleet_agent.measure.session.streams import DOWN, ECHO, TOKEN_BYTES, UP, dial, in_thread
from thunderfleet_agent.measure.worker import parent
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial_plan import PeerAddress
from thunderfleet_agent.server import AGENT_CONNECTIONS, Server
from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse
from thunderfleet_crds.vocabulary import MeasurementTransport

from tests.support.network.ports import claim
from tests.support.processes import PROC
from tests.support.suite.tiers import quick

Until = Callable[..., Awaitable[None]]

LINK = "cable-1"
SMALL = 2**20
FEW = 2**17
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
"""The interface of all addresses here; macOS binds sockets to it."""
QUIET = {"gpu": {"enabled": False}, "memory": {"enabled": False}, "rdma": {"enabled": False}, "spreadSeconds": 0}
# Enough for a rate over a cable; fewer bytes may arrive in one read, which gives no rate.
SOCKETS = {"bytes": 4 * SMALL, "cableBytes": 64 * SMALL, "streams": 2}


def settings(**more: object) -> MeasureSettings:
    return parse(json.dumps({**QUIET, "sockets": SOCKETS, **more}))


@dataclass
class Mac:
    """One agent: its prober, and the server that answers for it."""

    name: str
    address: str
    certificate: identity.Identity
    prober: Prober
    server: Server
    metrics: Metrics
    port: int = 0

    @property
    def agent(self) -> Agent:
        return Agent(address=self.address, port=self.port, certificate_sha256=self.certificate.sha256)

    def sees(self, *others: Mac, link: str = LINK, problem: str | None = None) -> None:
        """Sets its neighbors; a single one is reached over a cable."""
        cables = (
            {link: Cable(link, others[0].name, LOOPBACK, CableEnd("rdma_en2", self.address), problem)}
            if len(others) == 1
            else {}
        )
        targets = tuple(Target(other.name, other.address, link if cables else "") for other in others)
        interfaces = {self.address: LOOPBACK} if cables else {}
        self.prober.set_view(
            View(self.name, self.address, targets, cables, {other.name: other.agent for other in others}, interfaces)
        )

    def probe(self, other: Mac) -> Probe:
        link = LINK if LINK in self.prober.view.cables else ""
        return socket_probe(self.prober.settings, Target(other.name, other.address, link))


@asynccontextmanager
async def macs(count: int, tmp_path: Path, chosen: MeasureSettings) -> AsyncIterator[list[Mac]]:
    """``count`` agents that know each other's certificates, each on its own address."""
    known: dict[str, str] = {}

    async def shown(node: str, sha256: str) -> bool:
        return known.get(node) == sha256

    found: list[Mac] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            name, folder = f"studio-{number:02d}", tmp_path / f"{number}"
            folder.mkdir()
            identity.write(folder)
            certificate, metrics = identity.load(folder), Metrics()
            prober = Prober(name, chosen, certificate.client, Ledger(name), counter=metrics)
            metrics.show_measurements(prober)
            address = f"127.0.7.{number + 1}"
            server = Server(address, name, metrics, lambda: None, shown)
            server.measure = prober.answer
            mac = Mac(name, address, certificate, prober, server, metrics)
            mac.port, _ = await server.start(0, 0, certificate.server)
            stack.push_async_callback(server.close)
            known[name] = certificate.sha256
            prober.set_groups(())
            found.append(mac)
        yield found


@asynccontextmanager
async def running(*all_macs: Mac) -> AsyncIterator[None]:
    """Runs the agents' loops inside the ``with`` block."""
    tasks = [asyncio.create_task(mac.prober.run()) for mac in all_macs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_run_serves_both_macs_and_each_has_timed_what_arrived(tmp_path: Path, until: Until) -> None:
    async with macs(2, tmp_path, settings()) as (a, b):
        a.sees(b)
        b.sees(a)
        async with running(a, b):
            await until(lambda: a.prober.ledger.results and b.prober.ledger.results)
        here, there = (mac.prober.ledger.measurements(LINK)[0] for mac in (a, b))
        assert (here.from_, here.to, there.from_, there.to) == (b.name, a.name, a.name, b.name)
        assert here.transport is MeasurementTransport.SOCKET and here.throughput_mbps and there.throughput_mbps
        (mine,), (theirs,) = (mac.prober.ledger.results.values() for mac in (a, b))
        assert (mine.figures.sent_mbps, mine.figures.received_mbps) == (
            theirs.figures.received_mbps,
            theirs.figures.sent_mbps,
        )
        assert mine.figures.rtt_microseconds == theirs.figures.rtt_microseconds
        assert a.prober.benchmarks_fresh.reason == b.prober.benchmarks_fresh.reason == "Fresh"
        text = a.metrics.text().decode()
        assert f'thunderfleet_agent_measured_age_seconds{{address="{b.address}",link="{LINK}",node="{b.name}"' in text
        assert "thunderfleet_agent_link_received_bytes_per_second{" in text
        assert a.prober.lock.peer is None and b.prober.lock.peer is None


FLOOD = 400
"""Idle TLS connections of a stranger, more than three times the limit."""


async def test_a_flood_of_idle_connections_neither_stops_a_measurement_nor_piles_up(tmp_path: Path) -> None:
    """The stranger finishes the handshake, which anybody can, and sends nothing. A known peer still gets in and measures."""
    async with macs(2, tmp_path, settings(sockets={**SOCKETS, "seconds": 60})) as (a, b):
        a.sees(b)
        b.sees(a)
        b.server._knows = lambda address: address == a.address
        (tmp_path / "stranger").mkdir()
        identity.write(tmp_path / "stranger")
        stranger, ends, over = identity.load(tmp_path / "stranger").client, list[socket.socket](), threading.Event()

        def flood() -> None:
            while len(ends) < FLOOD and not over.is_set():
                with contextlib.suppress(OSError):
                    bare = socket.create_connection((b.address, b.port), 10, source_address=("127.0.0.9", 0))
                    ends.append(bare)
                    ends[-1] = stranger.wrap_socket(bare)

        flooding = asyncio.create_task(asyncio.to_thread(flood))
        try:
            for _ in range(2):
                assert (await a.prober.run_once(a.probe(b))).rtt_microseconds
            await flooding
            assert b.server._agents is not None
            assert 0 < b.server._agents.connections <= AGENT_CONNECTIONS // 2 + 1, "half of the places are for known peers"
            assert (await a.prober.run_once(a.probe(b))).rtt_microseconds
        finally:
            over.set()
            await flooding
            for end in ends:
                end.close()


async def test_bytes_that_arrive_at_once_give_a_round_trip_and_no_rate(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a very fast link.
    monkeypatch.setattr(rates, "SHORTEST_SECONDS", 3600.0)
    async with macs(2, tmp_path, settings(sockets={**SOCKETS, "seconds": 60})) as (a, b):
        a.sees(b)
        b.sees(a)
        async with running(a, b):
            await until(lambda: a.prober.ledger.results and b.prober.ledger.results)
        for mac in (a, b):
            (found,) = mac.prober.ledger.results.values()
            assert found.figures.rtt_microseconds and found.figures.sent_mbps is found.figures.received_mbps is None
            (told,) = mac.prober.ledger.measurements(LINK)
            assert "throughputMbps" not in told.dump() and told.rtt_microseconds
            assert not mac.prober.ledger.failures and mac.prober.benchmarks_fresh.reason == "Fresh"
            text = mac.metrics.text().decode()
            assert "link_rtt_seconds{" in text and "bytes_per_second{" not in text


async def test_a_peer_that_a_group_has_says_so_and_is_asked_again(tmp_path: Path, until: Until) -> None:
    async with macs(2, tmp_path, settings()) as (a, b):
        a.sees(b)
        b.sees(a)
        b.prober.set_groups((GroupUse(name="default/qwen-0", epoch=1, nodes=(a.name, b.name), links=(LINK,)),))
        with pytest.raises(ProbeRefused, match="default/qwen-0 uses this cable") as refused:
            await a.prober.run_once(a.probe(b))
        assert refused.value.retry_seconds
        async with running(a):
            await until(lambda: a.prober.ledger.history)
        assert not a.prober.ledger.failures and not a.prober.ledger.results


async def test_a_group_that_arrives_ends_the_probe_at_both_ends(tmp_path: Path, until: Until) -> None:
    slow = settings(sockets={**SOCKETS, "cableBytes": 2**36, "seconds": 60})
    async with macs(2, tmp_path, slow) as (a, b):
        a.sees(b)
        b.sees(a)
        for arrives, other in ((a, b), (b, a)):
            probing = asyncio.create_task(a.prober.run_once(a.probe(b)))
            await until(lambda: a.prober.running and b.prober.running)
            group = GroupUse(name="default/qwen-0", epoch=1, nodes=(a.name, b.name), links=(LINK,))
            arrives.prober.set_groups((group,))
            ended = await asyncio.gather(probing, return_exceptions=True)
            assert isinstance(ended[0], Preempted if arrives is a else SessionFailed), ended
            await until(lambda: not a.prober.running and not b.prober.running)
            assert arrives.prober.lock.peer is None and not other.prober.ledger.results
            arrives.prober.set_groups(())


async def test_a_peer_that_dies_in_the_middle_is_a_failure_that_backs_off(tmp_path: Path, until: Until) -> None:
    slow = settings(sockets={**SOCKETS, "cableBytes": 2**36, "seconds": 60})
    async with macs(2, tmp_path, slow) as (a, b):
        a.sees(b)
        b.sees(a)
        async with running(a):
            await until(lambda: b.prober.running)
            # As the kernel does with the sockets of a killed agent.
            for each in list(b.prober.running):
                each.task.cancel()
            await until(lambda: a.prober.ledger.failures)
            assert not a.prober.running
        (key,) = a.prober.ledger.failures
        assert a.prober.ledger.history[key].failures == 1
        a.prober.ledger.history[key] = a.prober.ledger.history[key].__class__(failures=1, failed=time.monotonic())
        assert a.prober.benchmarks_fresh.reason == "BenchmarkFailed" and "next attempt at" in a.prober.benchmarks_fresh.message


# --- interactive measurements ---


def interactive(mac: Mac) -> tuple[measure_cli.AgentLease, Prober]:
    """The state that an interactive measurement on that Mac starts with."""
    prober = Prober(mac.name, mac.prober.settings, mac.certificate.client, Ledger(mac.name), interactive=True)
    prober.set_view(mac.prober.view)
    prober.set_groups(())
    to = PeerAddress(mac.name, mac.address, mac.port, mac.certificate.sha256)
    return measure_cli.AgentLease(mac.name, to, mac.certificate.client), prober


async def test_during_an_interactive_measurement_the_agent_takes_part_in_no_other_probe(tmp_path: Path, until: Until) -> None:
    slow = settings(sockets={**SOCKETS, "cableBytes": 2**36, "seconds": 60})
    async with macs(3, tmp_path, slow) as (a, b, c):
        a.sees(b)
        b.sees(a)
        c.sees(a)
        lease, prober = interactive(a)
        measuring = asyncio.create_task(lease.measure(prober, a.probe(b)))
        await until(lambda: a.prober.lock.peer and b.prober.running and prober.running)
        with pytest.raises(ProbeRefused, match="`thunderfleet-agent measure` runs on studio-00") as refused:
            await c.prober.run_once(c.probe(a))
        assert refused.value.retry_seconds
        with pytest.raises(MacBusy, match="`thunderfleet-agent measure` runs on "):
            await a.prober.run_once(a.probe(b))
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        await until(lambda: not a.prober.lock.peer and not b.prober.running)
        # An interactive measurement is not recorded as a probe of the agent.
        assert not a.prober.ledger.results and not a.prober.ledger.failures


async def test_what_is_measured_interactive_is_found_and_the_mac_given_back(tmp_path: Path, until: Until) -> None:
    async with macs(2, tmp_path, settings()) as (a, b):
        a.sees(b)
        b.sees(a)
        lease, prober = interactive(a)
        assert (await lease.measure(prober, a.probe(b))).received_mbps
        await until(lambda: not a.prober.lock.peer and not a.prober.running)


async def test_a_busy_agent_refuses_an_interactive_measurement(tmp_path: Path, until: Until) -> None:
    slow = settings(sockets={**SOCKETS, "cableBytes": 2**36, "seconds": 60})
    async with macs(2, tmp_path, slow) as (a, b):
        a.sees(b)
        b.sees(a)
        lease, prober = interactive(a)
        probing = asyncio.create_task(a.prober.run_once(a.probe(b)))
        await until(lambda: a.prober.running and b.prober.running)
        with pytest.raises(ProbeRefused, match="studio-00 is running a benchmark with studio-01"):
            await lease.measure(prober, a.probe(b))
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        a.prober.set_groups((GroupUse(name="default/qwen-0", epoch=1, nodes=(a.name, b.name), links=(LINK,)),))
        with pytest.raises(ProbeRefused, match="default/qwen-0"):
            await lease.measure(prober, a.probe(b))
        await a.server.close()
        with pytest.raises(
            SessionFailed, match=r"studio-00 at .*: Connection refused \(check that the Mac is on and that its agent is running"
        ):
            await lease.measure(prober, a.probe(b))


@pytest.mark.parametrize("busy", [0, 1])
async def test_an_interactive_measurement_preempts_background_probes(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    """If one of the two Macs is in a probe with a third one, it is reserved until that ends, for a limited time."""
    # Longer than this test takes on a busy machine.
    monkeypatch.setattr(admission, "RESERVED_SECONDS", 600.0)
    slow = settings(sockets={**SOCKETS, "bytes": 2**36, "seconds": 60})
    async with macs(3, tmp_path, slow) as fleet:
        a, b, c = fleet
        for mac in fleet:
            mac.sees(*(other for other in fleet if other is not mac))
        lease, prober = interactive(a)
        probing = asyncio.create_task(c.prober.run_once(c.probe(fleet[busy])))
        await until(lambda: fleet[busy].prober.running and c.prober.running)
        with pytest.raises(ProbeRefused, match=f"{fleet[busy].name} is running a benchmark with {c.name}"):
            await lease.measure(prober, a.probe(b))
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        await until(lambda: fleet[busy].prober.lock.peer is None)
        with pytest.raises(ProbeRefused, match=f"{fleet[busy].name} is reserved by `thunderfleet-agent measure`") as refused:
            await c.prober.run_once(c.probe(fleet[busy]))
        assert refused.value.retry_seconds
        measuring = asyncio.create_task(lease.measure(prober, a.probe(b)))
        await until(lambda: (prober.running and b.prober.running) or measuring.done())
        assert not measuring.done()
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        assert 0 < fleet[busy].prober._reservation.until - time.monotonic() <= 600


async def test_a_group_that_arrives_ends_an_interactive_measurement(tmp_path: Path, until: Until) -> None:
    slow = settings(sockets={**SOCKETS, "cableBytes": 2**36, "seconds": 60})
    async with macs(2, tmp_path, slow) as (a, b):
        a.sees(b)
        b.sees(a)
        lease, prober = interactive(a)
        measuring = asyncio.create_task(lease.measure(prober, a.probe(b)))
        await until(lambda: a.prober.running and prober.running and b.prober.running)
        a.prober.set_groups((GroupUse(name="default/qwen-0", epoch=1, nodes=(a.name, b.name), links=(LINK,)),))
        (ended,) = await asyncio.gather(measuring, return_exceptions=True)
        assert isinstance(ended, SessionFailed) and "default/qwen-0" in str(ended), ended
        await until(lambda: not a.prober.running and not prober.running and not b.prober.running)


# --- three Macs that want each other, and a fleet ---


async def test_three_macs_that_want_each_other_at_once_all_get_measured(tmp_path: Path, until: Until) -> None:
    async with macs(3, tmp_path, settings()) as fleet:
        for mac in fleet:
            mac.sees(*(other for other in fleet if other is not mac))
        async with running(*fleet):
            await until(lambda: all(len(mac.prober.ledger.results) == 2 for mac in fleet), seconds=60)
        assert not any(mac.prober.ledger.failures for mac in fleet)


@pytest.mark.parametrize("count", quick([12], [12, 30]))
async def test_a_fleet_measures_every_pair_within_its_bytes(
    tmp_path: Path,
    until: Until,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    """Bounded connections, bounded bytes a minute, every pair done."""
    # All agents share one interpreter here, so probes send few echoes and bytes.
    monkeypatch.setattr(streams, "ECHOES", 4)
    monkeypatch.setattr(streams, "WARM_ECHOES", 1)
    monkeypatch.setattr(streams, "CHUNK", FEW // 16)
    caplog.set_level(logging.ERROR, logger="thunderfleet_agent")
    budget = 8 * count * FEW
    chosen = settings(sockets={**SOCKETS, "streams": 1, "everySeconds": 3600})
    # Below the minimum of the chart value.
    tiny = chosen.model_copy(update={"bytes_per_minute": budget, "sockets": chosen.sockets.model_copy(update={"bytes": FEW})})
    begun = time.monotonic()
    most = 0
    async with macs(count, tmp_path, tiny) as fleet:
        for mac in fleet:
            mac.sees(*(other for other in fleet if other is not mac))

        def done() -> bool:
            nonlocal most
            most = max(most, *(len(mac.prober.running) for mac in fleet))
            return all(len(mac.prober.ledger.results) == count - 1 for mac in fleet)

        async with running(*fleet):
            await until(done, seconds=600)
        seconds = time.monotonic() - begun
        rows = []
        for mac in fleet:
            counted = {
                sample.labels["probe"] + "/" + sample.labels.get("result", ""): sample.value
                for metric in mac.metrics.registry.collect()
                for sample in metric.samples
                if sample.name in ("thunderfleet_agent_probes_total", "thunderfleet_agent_probe_bytes_total")
            }
            rows.append(
                (
                    mac.name,
                    len(mac.prober.ledger.results),
                    counted["socket/ok"],
                    counted.get("socket/refused", 0),
                    counted["socket/"],
                )
            )
            # Each pair was measured once, or twice if both agents started a probe.
            assert count - 1 <= counted["socket/ok"] <= 2 * (count - 1)
            assert counted["socket/"] <= 2 * (count - 1) * 2 * FEW
            assert not mac.prober.ledger.failures
        # One probe, and at most one request that was withdrawn for it.
        assert most <= 2
        assert all(sum(spent for _, spent in mac.prober._spent) <= budget for mac in fleet)
    with capsys.disabled():
        print(f"\n{count} Macs, {seconds:.0f} s\n{'MAC':<10} {'PEERS':>5} {'PROBES':>6} {'REFUSED':>7} {'MiB':>6}")
        for name, peers, ok, refused, moved in rows:
            print(f"{name:<10} {peers:>5} {ok:>6.0f} {refused:>7.0f} {moved / 2**20:>6.1f}")


async def test_a_mac_whose_bytes_of_this_minute_are_gone_says_when_to_come_again(tmp_path: Path) -> None:
    async with macs(3, tmp_path, settings(bytesPerMinute=8 * SMALL)) as (a, b, c):
        a.sees(b, c)
        b.sees(a, c)
        await a.prober.run_once(a.probe(b))
        with pytest.raises(ProbeRefused, match="network budget for this minute") as refused:
            await a.prober.run_once(a.probe(b))
        assert 0 < (refused.value.retry_seconds or 0) <= 60


# --- hostile peers ---


@asynccontextmanager
async def hostile(mac: Mac, behave: Callable[[web.WebSocketResponse], Awaitable[None]]) -> AsyncIterator[None]:
    """Another program answers with that Mac's certificate."""
    await mac.server.close()

    async def page(request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(timeout=0.1)
        await ws.prepare(request)
        with contextlib.suppress(ConnectionError, RuntimeError):
            await behave(ws)
        return ws

    application = web.Application()
    application.router.add_get(channel.PATH, page)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, mac.address, mac.port, ssl_context=mac.certificate.server).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def silent(ws: web.WebSocketResponse) -> None:
    await asyncio.Event().wait()


async def endless(ws: web.WebSocketResponse) -> None:
    while True:
        await ws.send_str("x" * 10_000_000)


async def nonsense(ws: web.WebSocketResponse) -> None:
    await ws.send_str('{"bytes": -5, "port": 99999999, "token": "zz"}')


async def no_gate(ws: web.WebSocketResponse) -> None:
    await ws.send_str('{"bytes": 1000000, "seconds": 1, "port": 1, "token": "00"}')


async def nested(ws: web.WebSocketResponse) -> None:
    await ws.send_str("[" * 50_000)


async def hangs_up(ws: web.WebSocketResponse) -> None:
    await ws.close(message=b"no")


@pytest.mark.parametrize("behave", [silent, endless, nonsense, no_gate, nested, hangs_up])
async def test_a_hostile_answer_is_a_failure_within_its_limit(
    tmp_path: Path, behave: Callable[[web.WebSocketResponse], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "ANSWER_SECONDS", 1.0)
    async with macs(2, tmp_path, settings()) as (a, b):
        a.sees(b)
        async with hostile(b, behave), asyncio.timeout(30):
            with pytest.raises(SessionFailed, match=r"studio-01 at 127\.0\.7\.2"):
                await a.prober.run_once(a.probe(b))
        assert a.prober.lock.peer is None and not a.prober.running


async def test_figures_that_cannot_be_are_not_believed(tmp_path: Path) -> None:
    """A peer that transfers bytes correctly and then reports an impossible throughput or too many bytes."""
    many = SOCKETS["cableBytes"]

    async def lies(ws: web.WebSocketResponse) -> None:
        ask = json.loads((await ws.receive()).data)
        gate = StreamListener("127.0.7.2", "127.0.7.1")
        await ws.send_json({"bytes": 2**40, "seconds": 3600, "port": gate.port, "token": gate.token.hex()})
        opened = await gate.admit(ask["streams"], 5)
        try:
            await opened.answer_echoes(5)
            await ws.receive()
            await ws.send_json({"next": "ready"})
            mbps, arrived = await opened.receive(UP, 2**40, 20)
            assert mbps and arrived <= many
            await ws.send_json({"mbps": 10**30})
        finally:
            opened.close()

    async with macs(2, tmp_path, settings()) as (a, b):
        a.sees(b)
        async with hostile(b, lies), asyncio.timeout(30):
            with pytest.raises(SessionFailed, match="sent an invalid message"):
                await a.prober.run_once(a.probe(b))


async def test_a_stream_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    async def ends(ws: web.WebSocketResponse) -> None:
        ask = json.loads((await ws.receive()).data)
        gate = StreamListener("127.0.7.2", "127.0.7.1")
        await ws.send_json({"bytes": ask["bytes"], "seconds": 60, "port": gate.port, "token": gate.token.hex()})
        opened = await gate.admit(ask["streams"], 5)
        try:
            await opened.answer_echoes(5)
            await ws.receive()
            await ws.send_json({"next": "ready"})
            await opened.receive(UP, ask["bytes"], 60)
            await ws.send_json({"mbps": 1000})
            await ws.receive()
            await opened.send(DOWN, 2, 60)
        finally:
            opened.close()

    async with macs(2, tmp_path, settings(sockets={**SOCKETS, "seconds": 60})) as (a, b):
        a.sees(b)
        async with hostile(b, ends), asyncio.timeout(30):
            with pytest.raises(SessionFailed, match="too little data arrived from"):
                await a.prober.run_once(a.probe(b))
        assert not a.prober.running


async def test_endless_bytes_are_cut_off(tmp_path: Path) -> None:
    async def floods(ws: web.WebSocketResponse) -> None:
        ask = json.loads((await ws.receive()).data)
        gate = StreamListener("127.0.7.2", "127.0.7.1")
        await ws.send_json({"bytes": ask["bytes"], "seconds": 1, "port": gate.port, "token": gate.token.hex()})
        opened = await gate.admit(ask["streams"], 5)
        try:
            await opened.answer_echoes(5)
            await ws.receive()
            await ws.send_json({"next": "ready"})
            mbps, _ = await opened.receive(UP, 2**30, 5)
            await ws.send_json({"mbps": mbps})
            await ws.receive()
            await opened.send(DOWN, 2**40, 60)
        finally:
            opened.close()

    async with macs(2, tmp_path, settings()) as (a, b):
        a.sees(b)
        async with hostile(b, floods), asyncio.timeout(30):
            found = await a.prober.run_once(a.probe(b))
        assert found.received_mbps
        assert not a.prober.running


async def test_streams_without_the_token_are_closed_and_take_no_slot() -> None:
    gate = StreamListener("127.0.7.2", "127.0.7.1")
    admitting = asyncio.create_task(gate.admit(1, 120))
    await asyncio.sleep(0)

    def stranger(said: bytes, source: str = "127.0.7.1") -> bytes:
        with socket.create_connection(("127.0.7.2", gate.port), timeout=10, source_address=(source, 0)) as sock:
            sock.settimeout(10)
            with contextlib.suppress(OSError):
                sock.sendall(said)
                return sock.recv(1)
            return b""

    wrong = [bytes(TOKEN_BYTES) + UP, b"GET / HTTP/1.1\r\n\r\n" + bytes(40), gate.token + b"x", b"short"]
    assert all([await in_thread(lambda said=said: stranger(said)) == b"" for said in wrong])  # type: ignore[misc]
    # A token is only valid from the address that it was given to.
    assert await in_thread(lambda: stranger(gate.token + ECHO, "127.0.7.9")) == b""
    opened = await dial("127.0.7.2", gate.port, gate.token, 1, "127.0.7.1", None)
    admitted = await admitting
    assert gate.strangers == len(wrong) + 1
    opened.close()
    admitted.close()


async def test_a_dialler_without_its_token_costs_the_answerer_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunderfleet_agent.measure.session.socket_session.SETUP_SECONDS", 0.5)
    async with macs(2, tmp_path, settings()) as (a, b):
        b.sees(a)
        b_target = a.prober.view  # not used
        assert not b_target.targets
        a.sees(b)
        to = a.prober.view.dial(Target(b.name, b.address, LINK))
        assert to is not None
        async with asyncio.timeout(30), channel.connect(to, a.name, a.certificate.client, a.address) as (line, _, _):
            await line.send(ProbeRequest(kind=ProbeKind.SOCKET, bytes=SMALL))
            assert (await line.receive(ProbeReply)).port
            with pytest.raises(SessionFailed):
                await line.receive(SessionMessage, 10)
        assert b.prober.lock.peer is None


async def test_only_agents_of_the_fleet_may_measure(tmp_path: Path) -> None:
    async with macs(2, tmp_path, settings()) as (a, b):
        b.sees(a)
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        identity.write(stranger)
        context = identity.load(stranger).client
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            url = f"https://{b.address}:{b.port}{channel.PATH}"
            answer = await session.get(url, headers={"Thunderfleet-Node": a.name})
            assert answer.status == 403
        assert not b.prober.running


# --- processes: a group over the ring, and what is left when something dies ---


def ring(**more: object) -> MeasureSettings:
    return settings(rdma={"transport": "Ring", "seconds": 20, "bytes": SMALL, **more})


def pair_processes() -> list[int]:
    """The measuring processes of two-rank groups that run on this machine and belong to this test process."""
    found = []
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            mine = (folder / "stat").read_text().rpartition(")")[2].split()
            if b"measure-child" in words and int(mine[1]) == os.getpid() and mine[0] != "Z":
                found.append(int(folder.name))
    return found


def process_order(pid: int) -> dict[str, object]:
    """The order of a measuring process."""
    words = (PROC / str(pid) / "cmdline").read_text().split("\0")
    order: dict[str, object] = json.loads(words[words.index("measure-child") + 1])
    return order


@pytest.mark.skipif(not PROC.exists(), reason="looks at processes in /proc")
async def test_a_group_over_one_cable_is_measured_both_ways_and_leaves_nothing(tmp_path: Path) -> None:
    async with macs(2, tmp_path, ring()) as (a, b):
        a.sees(b)
        b.sees(a)
        found = await a.prober.run_once(rdma_probe(a.prober.settings, Target(b.name, "", LINK)))
        assert found.received_mbps and found.sent_mbps and found.rtt_microseconds and found.all_sum_microseconds
        (theirs,) = b.prober.ledger.measurements(LINK)
        assert theirs.transport is MeasurementTransport.RING and theirs.throughput_mbps == found.sent_mbps
        assert not pair_processes()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.skipif(not PROC.exists(), reason="looks at processes in /proc")
async def test_a_rank_that_dies_or_freezes_takes_the_whole_group_with_it(
    tmp_path: Path, until: Until, how: signal.Signals, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, struck = parent.run, list[int]()

    async def runs(order: dict[str, object], heard: parent.Heard) -> dict[str, object]:
        async def hears(message: dict[str, object]) -> dict[str, object] | None:
            if message.get("formed") == rank:
                (pid,) = (each for each in pair_processes() if process_order(each)["rank"] == rank)
                os.kill(pid, how)
                struck.append(pid)
            return await heard(message)

        return await run(order, hears)

    monkeypatch.setattr(parent, "run", runs)
    async with macs(2, tmp_path, ring(bytes=2**36)) as (a, b):
        a.sees(b)
        b.sees(a)
        # A short time limit of the group, because a frozen rank uses all of it. On a busy machine the ranks may not find each
        # other within it: then a longer one.
        for forming in (-15.0, 0.0, 20.0, 40.0):
            monkeypatch.setattr("thunderfleet_agent.measure.session.pair_session.FORM_SECONDS", forming)
            probing = asyncio.create_task(a.prober.run_once(rdma_probe(a.prober.settings, Target(b.name, "", LINK))))
            (ended,) = await asyncio.gather(probing, return_exceptions=True)
            assert isinstance(ended, SessionFailed | parent.WorkerFailed), ended
            await until(lambda: not pair_processes())
            if struck:
                break
        assert struck, ended
        await until(lambda: a.prober.lock.peer is None and b.prober.lock.peer is None)


@pytest.mark.skipif(not PROC.exists(), reason="looks at processes in /proc")
async def test_an_agent_that_ends_takes_its_rank_along_and_the_peer_s_goes_too(tmp_path: Path, until: Until) -> None:
    async with macs(2, tmp_path, ring()) as (a, b):
        a.sees(b)
        b.sees(a)
        probing = asyncio.create_task(a.prober.run_once(rdma_probe(a.prober.settings, Target(b.name, "", LINK))))
        await until(lambda: len(pair_processes()) == 2 or probing.done())
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        await until(lambda: not pair_processes() and not b.prober.running)


def deafen(address: str, deaf: bool) -> None:
    """Cuts this process's sockets from or at that address off the network: the kernel drops what arrives, without a reset.

    Linux only.
    """
    import contextlib
    import ctypes
    import os
    import socket
    import struct

    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    attach, detach = 26, 27
    for name in os.listdir(PROC / "self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(PROC / "self/fd" / name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                ends = [sock.getsockname()]
                with contextlib.suppress(OSError):
                    ends.append(sock.getpeername())
                if any(isinstance(end, tuple) and end[0] == address for end in ends):
                    program = struct.pack("HP", 1, ctypes.addressof(drop))
                    sock.setsockopt(socket.SOL_SOCKET, attach if deaf else detach, program if deaf else bytes(4))


# Another agent in a separate process, configured by JSON. It prints a line when it listens. SIGUSR1 cuts its network off,
# SIGUSR2 restores it. It may break itself in the middle of its first measurement.
AGENT = (
    inspect.getsource(deafen)
    + """
import asyncio, json, os, signal, socket, sys
from pathlib import Path
from thunderfleet_agent import server as serving
from thunderfleet_agent.measure.session import pair_session
from thunderfleet_agent.peers import identity
from thunderfleet_agent.measure.prober import Prober
from thunderfleet_agent.measure.schedule import due
from thunderfleet_agent.measure.schedule.probes import Target
from thunderfleet_agent.measure.ledger import Ledger
from thunderfleet_agent.measure.schedule.probes import CableEnd
from thunderfleet_agent.measure.schedule.settings import parse
from thunderfleet_agent.measure.schedule.view import Cable, View
from thunderfleet_agent.measure.worker import parent
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.server import AGENT_CONNECTIONS, Server
from thunderfleet_crds.kinds.nodeprofile import Agent
from thunderfleet_lib.backoff import Backoff

# Sends this process a signal when its first measuring process has reported progress.
def breaks(how):
    run, left = parent.run, [how]
    async def heard(message):
        if left:
            os.kill(os.getpid(), left.pop())
    async def runs(order):
        return await run(order, heard)
    parent.run = runs

async def main(said):
    # A figure need not be good.
    parent.WARM_UP_SHARE = 0.02
    if said["how"]:
        breaks(said["how"])
    # Else what has begun may come to its end.
    serving.SHUTDOWN_SECONDS = 0.1
    pair_session.ALIVE_SECONDS = said["alive"]
    if said["soon"]:
        due.BACKOFF = Backoff(0.5, 2.0)
    name, address, peer, link = said["name"], said["address"], Agent.load(said["peer"]), said["link"]
    folder, stop = Path(said["folder"]), asyncio.Event()
    certificate = identity.load(folder)
    prober = Prober(name, parse(said["settings"]), certificate.client, Ledger(name, folder))
    async def known(node, sha256):
        return sha256 == peer.certificate_sha256
    server = Server(address, name, Metrics(), lambda: None, known)
    server.measure = prober.answer
    await server.start(said["port"], 0, certificate.server)
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    cables = {link: Cable(link, said["peerName"], interface, CableEnd("rdma_en2", address), None)}
    targets = (Target(said["peerName"], peer.address, link),)
    prober.set_view(View(name, address, targets, cables, {said["peerName"]: peer}, {address: interface}))
    prober.set_groups(())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, deafen, address, True)
    loop.add_signal_handler(signal.SIGUSR2, deafen, address, False)
    working = loop.create_task(prober.run() if said["dials"] else stop.wait())
    print("listens", flush=True)
    await stop.wait()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await server.close()

asyncio.run(main(json.loads(sys.argv[1])))
"""
)
MARK = "THUNDERFLEET_MEASURE_TEST"
ALIVE = 0.2


def marked(folder: Path) -> list[int]:
    """The measuring processes that the agents of this test have started, whatever their parent process is now."""
    found = []
    for each in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            mine = f"{MARK}={folder}".encode() in (each / "environ").read_bytes().split(b"\0")
            alive = (each / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if mine and alive and b"measure-child" in (each / "cmdline").read_bytes().split(b"\0"):
                found.append(int(each.name))
    return found


def broken(process: asyncio.subprocess.Process) -> bool:
    """Whether it has ended or is frozen."""
    with contextlib.suppress(OSError):
        return (PROC / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    return True


@asynccontextmanager
async def program(
    mac: Mac,
    peer: Mac,
    folder: Path,
    *,
    dials: bool,
    chosen: MeasureSettings | None = None,
    soon: bool = False,
    how: signal.Signals | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A listening agent in a separate process that replaces ``mac``, whose server in this process is closed.

    ``soon``: it tries a failed probe again within seconds, not after half a minute. ``how``: the signal that it sends itself in
    the middle of its first measurement.
    """
    said = {
        **{"name": mac.name, "address": mac.address, "port": mac.port, "folder": str(folder), "link": LINK, "alive": ALIVE},
        **{"peerName": peer.name, "peer": peer.agent.model_dump(mode="json", by_alias=True), "dials": dials},
        **{"soon": soon, "how": how},
        "settings": (chosen or mac.prober.settings).model_dump_json(by_alias=True),
    }
    command = (sys.executable, "-c", AGENT, json.dumps(said))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"listens\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# Cuts the network off without closing connections.
CUT, PLUG = signal.SIGUSR1, signal.SIGUSR2
HOWS = {signal.SIGKILL: "killed", signal.SIGSTOP: "frozen", signal.SIGTERM: "restarted", CUT: "cut-off"}
BROKEN = [(kind, end, how) for kind in (ProbeKind.SOCKET, ProbeKind.RDMA) for end in ("dials", "answers") for how in HOWS]
# Each kind, each end and each way to break is in one of these.
QUICK = [
    (ProbeKind.SOCKET, "dials", signal.SIGTERM),
    (ProbeKind.SOCKET, "answers", signal.SIGKILL),
    (ProbeKind.RDMA, "dials", signal.SIGSTOP),
    (ProbeKind.RDMA, "answers", CUT),
]


def how_broken(value: object) -> str | None:
    """The id of a way to break an agent."""
    return HOWS.get(value) if isinstance(value, signal.Signals) else None


@pytest.mark.parametrize(("kind", "end", "how"), quick(QUICK, BROKEN), ids=how_broken)
@pytest.mark.skipif(not PROC.exists(), reason="looks at processes in /proc")
async def test_an_agent_broken_in_the_middle_frees_the_other_end(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch, kind: ProbeKind, end: str, how: signal.Signals
) -> None:
    """The other end is free long before the group's own limit, no process is left, and the pair is measured afterwards."""
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setattr("thunderfleet_agent.measure.session.pair_session.ALIVE_SECONDS", ALIVE)
    monkeypatch.setattr("thunderfleet_agent.measure.session.pair_session.SILENT_SECONDS", 5.0)
    moving = asyncio.Event()

    def moves(real: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def move(*arguments: object) -> object:
            moving.set()
            return await real(*arguments)

        return move

    for name in ("send", "receive"):
        monkeypatch.setattr(streams.Streams, name, moves(getattr(streams.Streams, name)))
    group, dials = kind is ProbeKind.RDMA, end == "dials"
    plain = settings(sockets={**SOCKETS, "cableBytes": 2**36, "seconds": 1})
    # Each direction takes a second, so the probe is still running when it is broken.
    only, quick = (
        settings(sockets={"enabled": False}, rdma={"transport": "Ring", "seconds": 10, "bytes": size})
        for size in (2**36, SMALL)
    )
    async with macs(2, tmp_path, only if group else plain) as (a, b), AsyncExitStack() as stack:
        await b.server.close()
        a.sees(b)
        probe = rdma_probe(a.prober.settings, Target(b.name, "", LINK)) if group else a.probe(b)
        other = await stack.enter_async_context(program(b, a, tmp_path / "1", dials=dials))
        probing = None if dials else asyncio.create_task(a.prober._carry_out(probe))
        # Each rank with its guard.
        await until(lambda: len(marked(tmp_path)) == 4 if group else moving.is_set(), seconds=90)
        os.kill(other.pid, how)
        if how is CUT:
            deafen(b.address, True)
        if probing is not None:
            await probing
            assert a.prober.ledger.history[probe.key].failures == 1
            said = a.prober.benchmarks_fresh
            assert said.reason == "BenchmarkFailed" and b.name in said.message and "next attempt at" in said.message, said
        await until(lambda: not a.prober.running and a.prober.lock.peer is None, seconds=90)
        assert not pair_processes() and not a.prober.ledger.results
        if how in (signal.SIGSTOP, CUT):
            os.kill(other.pid, signal.SIGCONT if how is signal.SIGSTOP else PLUG)
        else:
            await until(lambda: not marked(tmp_path))
            await other.wait()
            await stack.enter_async_context(program(b, a, tmp_path / "1", dials=False))
        if group:
            a.prober.settings = quick
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(ProbeRefused):
                    found = await a.prober.run_once(probe)
                    break
        assert found.received_mbps
        await until(lambda: not marked(tmp_path))


@pytest.mark.parametrize(
    "how", quick([signal.SIGKILL, signal.SIGSTOP], [how for how in HOWS if how is not CUT]), ids=how_broken
)
@pytest.mark.skipif(not PROC.exists(), reason="looks at processes in /proc")
async def test_an_agent_broken_in_the_middle_of_a_probe_of_its_own_leaves_no_process(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """The figure is found afterwards: after a freeze from the same process, otherwise from a new one."""
    monkeypatch.setenv(MARK, str(tmp_path))
    async with macs(2, tmp_path, settings()) as (a, b):
        await b.server.close()

        def kept() -> list[str]:
            file = tmp_path / "1" / FILE
            return [each["kind"] for each in json.loads(file.read_text())] if file.exists() else []

        async with AsyncExitStack() as stack:
            for kind in (ProbeKind.GPU, ProbeKind.MEMORY):
                only = settings(sockets={"enabled": False}, **{kind.value: {"seconds": 8}})
                breaks = program(b, a, tmp_path / "1", dials=True, chosen=only, soon=True, how=how)
                other = await stack.enter_async_context(breaks)
                await until(lambda other=other: broken(other), seconds=60)
                if how is not signal.SIGSTOP:
                    assert await other.wait() in (0, -how), "it was broken, and did not fail"
                # That of a frozen agent ends by itself.
                await until(lambda: not marked(tmp_path), seconds=60)
                assert kind.value not in kept()
                if how is signal.SIGSTOP:
                    os.kill(other.pid, signal.SIGCONT)
                    await until(lambda kind=kind: kind.value in kept(), seconds=60)
                    other.terminate()
                await other.wait()
            if how is not signal.SIGSTOP:
                await stack.enter_async_context(program(b, a, tmp_path / "1", dials=True, chosen=only, soon=True))
                await until(lambda: ProbeKind.MEMORY.value in kept(), seconds=60)


async def test_a_measuring_process_whose_agent_reads_nothing_ends_at_its_limit(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    lifeline, ours = os.pipe()
    limits = {"seconds": 1, "warmUpSeconds": 0.25}
    order = json.dumps({"what": "gpu", **limits, "folder": str(tmp_path / "work"), "lifeline": lifeline})
    begun = time.monotonic()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "thunderfleet_agent", "measure-child", order),
        stdin=asyncio.subprocess.PIPE,
        stdout=writer,
        pass_fds=[lifeline],
    )
    try:
        async with asyncio.timeout(60):
            assert await child.wait() == 1
        assert time.monotonic() - begun >= 1, "not before its limit"
    finally:
        for end in (reader, writer, lifeline, ours):
            os.close(end)
        if child.returncode is None:
            child.kill()
        await child.wait()


@pytest.mark.skipif(not PROC.exists(), reason="looks at sockets in /proc")
async def test_a_rank_that_holds_the_interpreter_ends_with_its_agent(tmp_path: Path, until: Until) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    ports = claim(2)
    hosts = [f"127.0.0.1:{port}" for port in ports]
    lifeline, ours = os.pipe()
    order = {"what": "pair", "rank": 0, "backend": "ring", "hosts": hosts, "folder": str(folder), "lifeline": lifeline}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "thunderfleet_agent", "measure-child", json.dumps({**order, "seconds": 600, "bytes": SMALL})),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=[lifeline],
    )
    os.close(lifeline)
    try:
        # It waits for a rank 1 that does not exist.
        await until(lambda: f":{ports[0]:04X} 00000000:0000 0A" in (PROC / "net/tcp").read_text(), seconds=60)
        os.close(ours)
        # Long before its own limit.
        async with asyncio.timeout(60):
            await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
    await until(lambda: not folder.exists())


ALONE = """
import asyncio, json, sys
from thunderfleet_agent.measure.worker import parent
asyncio.run(parent.run(json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize("killed", ["the child", "the agent"])
@pytest.mark.skipif(not PROC.exists(), reason="looks at processes in /proc")
async def test_a_killed_measurement_leaves_no_folder_behind(
    killed: str, tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for a rank 1 that never comes, and is killed: directly, or by its guard after its agent."""
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ports = claim(2)
    order = {"what": "pair", "rank": 0, "backend": "ring", "hosts": [f"127.0.0.1:{port}" for port in ports]}
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ALONE, json.dumps({**order, "seconds": 60, "bytes": SMALL})), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: list(tmp_path.glob("thunderfleet-measure-*/group.json")), seconds=60)
        for pid in marked(tmp_path) if killed == "the child" else [agent.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await agent.wait()
        await until(lambda: not marked(tmp_path) and not list(tmp_path.glob("thunderfleet-measure-*")), seconds=60)
    finally:
        if agent.returncode is None:
            agent.kill()
        await agent.wait()


async def test_a_cable_without_rdma_says_why_not(tmp_path: Path) -> None:
    async with macs(2, tmp_path, settings(rdma={"enabled": True})) as (a, b):
        a.sees(b)
        b.sees(a, problem="MLX on this Mac has no JACCL")
        with pytest.raises(ProbeRefused, match="studio-01: MLX on this Mac has no JACCL"):
            await a.prober.run_once(rdma_probe(a.prober.settings, Target(b.name, "", LINK)))


async def test_mlx_without_jaccl_says_so_in_the_process() -> None:
    order = {"what": "pair", "rank": 0, "backend": "jaccl", "devices": ["rdma_en2", "rdma_en2"], "bytes": 1, "seconds": 60}
    with pytest.raises(parent.WorkerFailed, match="has no jaccl backend"):
        await parent.run(order)


# --- the GPU's process ---


@pytest.mark.parametrize("what", ["gpu", "memory"])
async def test_the_gpu_is_measured_in_a_process_with_progress(what: str) -> None:
    told: list[float] = []

    async def heard(message: dict[str, object]) -> None:
        told.append(float(str(message["progress"])))

    async def measured(seconds: int) -> dict[str, Any]:
        try:
            return await parent.run({"what": what, "seconds": seconds}, heard)
        except parent.WorkerFailed as error:
            # A busy machine takes longer to make what is to be measured.
            if "did not finish within" not in str(error) or seconds > 100:
                raise
            return await measured(4 * seconds)

    found = await measured(8)
    figure = found["flops" if what == "gpu" else "megabytesPerSecond"]
    assert figure > 0 and found["mlxVersion"] and found["device"] and found["osVersion"]
    # The figure is the rate of one of the reported runs.
    assert any(figure == pytest.approx(rate * (1e9 if what == "gpu" else 1), rel=0.01) for rate in told), (figure, told)


async def test_an_unknown_measurement_is_an_error() -> None:
    with pytest.raises(parent.WorkerFailed, match="unknown measurement 'disk'; known: pair, gpu, memory"):
        await parent.run({"what": "disk", "seconds": 8})


async def test_nothing_runs_before_it_is_known_what_is_fresh(tmp_path: Path, until: Until) -> None:
    async with macs(1, tmp_path, settings(gpu={"seconds": 600}, sockets={"enabled": False})) as (a,), running(a):
        # The groups are known and the loop has made its choice.
        await until(lambda: a.prober._published)
        assert "has not loaded earlier measurements yet" in a.prober.benchmarks_fresh.message and not a.prober.running
        a.prober.ledger.record(Key(ProbeKind.GPU), Figures(flops=10**12), datetime.now(UTC), time.monotonic())
        a.sees()
        await until(lambda: a.prober._published and a.prober._published.reason == "Fresh")
        assert not a.prober.running and b'probes_total{probe="gpu"' not in a.metrics.text()


async def test_a_gpu_probe_ends_when_a_group_arrives(tmp_path: Path, until: Until) -> None:
    one = settings(gpu={"seconds": 600})
    async with macs(1, tmp_path, one) as (a,):
        a.sees()
        async with running(a):
            await until(pair_processes)
            a.prober.set_groups((GroupUse(name="default/qwen-0", epoch=1),))
            await until(lambda: not pair_processes())
            await until(lambda: not a.prober.running)
        assert not a.prober.ledger.failures
        assert a.prober.benchmarks_fresh.reason == "InUse" and "default/qwen-0" in a.prober.benchmarks_fresh.message


async def test_a_new_group_kills_a_frozen_measuring_process(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process receives SIGTERM, and SIGKILL 0.4 s later by the test's clock."""
    stages: list[tuple[float, bool]] = []
    heard: list[int] = []
    real, talk_to = parent._wait_for_end, parent._talk

    async def talks(child: asyncio.subprocess.Process, said: parent.Heard) -> dict[str, object]:
        heard.append(child.pid)
        return await talk_to(child, said)

    async def gone(child: asyncio.subprocess.Process, seconds: float) -> None:
        term = not stages
        stages.append((seconds, child.returncode is None))
        # The first wait ends at once, as if its time had passed. The second one is for the killed process.
        if not term:
            await real(child, 30.0)
            assert child.returncode == -signal.SIGKILL

    monkeypatch.setattr(parent, "_wait_for_end", gone)
    monkeypatch.setattr(parent, "_talk", talks)
    async with macs(1, tmp_path, settings(gpu={"seconds": 600})) as (a,):
        a.sees()
        async with running(a):
            await until(lambda: heard)
            os.kill(heard[0], signal.SIGSTOP)
            a.prober.set_groups((GroupUse(name="default/qwen-0", epoch=1),))
            await until(lambda: not pair_processes() and not a.prober.running)
        assert [seconds for seconds, _ in stages] == [0.4, parent.KILL_SECONDS]
        assert stages[0][1] and not a.prober.ledger.failures


async def test_a_measuring_process_is_gone_when_its_caller_is_however_often_that_was_cancelled(until: Until) -> None:
    measuring = asyncio.create_task(parent.run({"what": "gpu", "seconds": 600}))
    await until(pair_processes)
    (pid,) = pair_processes()
    # A stopped process does not handle SIGTERM.
    os.kill(pid, signal.SIGSTOP)
    for _ in range(3):
        measuring.cancel()
        await asyncio.wait((measuring,), timeout=0.01)
    await asyncio.gather(measuring, return_exceptions=True)
    assert measuring.cancelled() and not pair_processes()


async def test_a_measuring_process_that_says_nothing_is_ended_at_its_limit() -> None:
    begun = time.monotonic()
    # Choosing the matrices alone takes four products of 20 ms.
    with pytest.raises(parent.WorkerFailed, match=r"did not finish within 0\.05 s"):
        await parent.run({"what": "gpu", "seconds": 0.05})
    assert time.monotonic() - begun < 30
    assert not pair_processes()
