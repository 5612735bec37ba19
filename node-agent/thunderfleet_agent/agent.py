"""The running agent: rounds that read this Mac, and one that publishes when something has changed.

Level-triggered. Every publishing round starts from the facts as they are; a round that fails (the API server is away) is tried
again, backing off, and loses nothing, because nothing but the facts is carried over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from thunderfleet_crds.nodeprofile import Agent, GroupUse, Reachability
from thunderfleet_lib.kube import ApiError, Json, Kube, Reflector

from thunderfleet_agent.derive.flap_damper import Damper
from thunderfleet_agent.derive.previous_profile import Recall
from thunderfleet_agent.derive.links import LinkReport, PeerPort, find_peer, link_reports, seen_by, wanted_uuids
from thunderfleet_agent.derive.profile import NEVER_MEASURED, Profile, profile
from thunderfleet_agent.measure.prober import Prober
from thunderfleet_agent.measure.schedule import settings as measuring
from thunderfleet_agent.measure.schedule.results import Ledger
from thunderfleet_agent.measure.schedule.view import view
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.observe.collector import Collector
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.host import Host
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.explorer import Explorer
from thunderfleet_agent.peers.reach import listen_addresses
from thunderfleet_agent.publish.publisher import PROFILES, Publisher
from thunderfleet_agent.server import Server

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# Publishing does not wait longer than this for the first round of commands.
FIRST_ROUND_SECONDS = 15.0
# Changes that come together are written together.
SETTLE_SECONDS = 0.5
# The API server is looked at again (was something taken away? has a peer come?) after this time, sooner after a change.
LOOK_SECONDS = 60.0
FIRST_LOOK_SECONDS = 2.0
RETRY_SECONDS = 1.0
RETRY_LIMIT_SECONDS = 15.0


@dataclass(frozen=True)
class Settings:
    """Where the agent runs and how often it looks; seconds are the middle of a jittered interval."""

    node: str
    host_ip: str
    listen_port: int
    metrics_port: int
    model_folders: tuple[Path, ...] = ()
    fast_seconds: float = 10.0
    slow_seconds: float = 30.0
    models_seconds: float = 60.0
    reach_seconds: float = 20.0
    state: Path | None = None
    kubeconfig: Path | None = None
    measure: measuring.Settings = field(default_factory=measuring.Settings)


def jittered(seconds: float) -> float:
    """Within a tenth of ``seconds``, so that Macs that boot together do not ask together."""
    return seconds * random.uniform(0.9, 1.1)


class Loop:
    """The agent's rounds over one collector and one publisher."""

    def __init__(
        self,
        settings: Settings,
        collector: Collector,
        publisher: Publisher,
        metrics: Metrics,
        explorer: Explorer | None = None,
        prober: Prober | None = None,
    ) -> None:
        self._explorer = explorer
        self._prober = prober
        self._loaded = False
        self._damper = Damper()
        self._recall = Recall()
        self._recalled = False
        self._found: Profile | None = None
        self._ends: tuple[LinkReport, ...] = ()
        self._explore = asyncio.Event()
        self.listen: Callable[[frozenset[str]], Awaitable[None]] | None = None
        """Told of this Mac's addresses that agents may dial, whenever something was published."""
        self._settings = settings
        self._collector = collector
        self._publisher = publisher
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._look_around = asyncio.Event()
        self._read_once = asyncio.Event()
        self._turned = time.monotonic()
        self._peers: dict[str, PeerPort] = {}
        self._last_words: frozenset[str] = frozenset()
        self._looked: float | None = None
        self._look_after = FIRST_LOOK_SECONDS
        self._wanted: frozenset[str] = frozenset()
        self.agent: Agent | None = None

    def trouble(self) -> str | None:
        """Why a restart would help: the fast round has not ended for very long."""
        silent = time.monotonic() - self._turned
        limit = 60 + 10 * self._settings.fast_seconds
        return f"no round has ended for {silent:.0f} s" if silent > limit else None

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as rounds:
            rounds.create_task(self._every("fast", self._settings.fast_seconds, self._fast))
            rounds.create_task(self._every("slow", self._settings.slow_seconds, self._slow, self._look_around))
            rounds.create_task(self._every("models", self._settings.models_seconds, self._models))
            rounds.create_task(self._publish_for_ever())
            if self._explorer is not None:
                rounds.create_task(self._every("reach", self._settings.reach_seconds, self._reach, self._explore))
            if self._prober is not None:
                rounds.create_task(self._measure(self._prober))

    async def _every(
        self, name: str, seconds: float, turn: Callable[[], Awaitable[None]], sooner: asyncio.Event | None = None
    ) -> None:
        while True:
            if sooner is not None:
                sooner.clear()
            try:
                await turn()
            except Exception:
                # A fault of ours costs this round; the next one starts afresh.
                self._metrics.erred(name)
                log.exception("the %s round failed", name)
            if sooner is None:
                await asyncio.sleep(jittered(seconds))
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(sooner.wait(), jittered(seconds))

    async def _fast(self) -> None:
        before = _carriers(self._collector.facts)
        await self._observe(self._collector.fast)
        self._turned = time.monotonic()
        if before is not None and _carriers(self._collector.facts) != before:
            # Somebody has touched a cable: the costly report is asked at once, not at its interval.
            self._look_around.set()

    async def _slow(self) -> None:
        await self._observe(self._collector.slow)
        self._read_once.set()

    async def _models(self) -> None:
        await self._observe(self._collector.scan_models)
        await self._observe(self._collector.runtime)
        while await self._observe(self._collector.size_model):
            pass

    async def _reach(self) -> None:
        if self._explorer is None or self._found is None:
            return
        if await self._explorer.round(self._found.status, [end.spec for end in self._ends]):
            self._changed.set()
        self._look()

    def _look(self) -> None:
        """Shows the prober what there is to measure now."""
        if self._prober is None or self._explorer is None or self._found is None or not self._loaded:
            return
        self._prober.look(
            view(
                self._settings.node,
                self._settings.host_ip,
                self._found.status,
                [end.spec for end in self._ends],
                self._publisher.links,
                self._explorer.facts,
                self._explorer.agents,
                self._prober.settings,
            )
        )

    async def _measure(self, prober: Prober) -> None:
        """Measures for ever, and watches this Mac's own profile for the groups that have it."""
        node = self._settings.node

        def groups(_: str) -> None:
            item = own.items.get(node) or own.items.get(f"/{node}") or {}
            prober.use(_groups(item))

        own = Reflector(self._publisher.kube, PROFILES, {"fieldSelector": f"metadata.name={node}"}, groups)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(own.run())
            tasks.create_task(prober.run())

    def touch(self) -> None:
        """Something is to be published."""
        self._changed.set()

    async def _observe(self, turn: Callable[[], Awaitable[Answer]]) -> Answer:
        before = self._collector.facts
        answer = await turn()
        if self._collector.facts != before:
            calm = self._damper.flapping
            self._damper.see(self._collector.facts, time.monotonic())
            for port in sorted(self._damper.flapping - calm):
                log.warning("the cable at port %d comes and goes: it is reported as flapping until it has been calm", port)
            self._changed.set()
        return answer

    async def _publish_for_ever(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._read_once.wait(), FIRST_ROUND_SECONDS)
        delay = 0.0
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            try:
                await self.publish()
                if delay:
                    log.info("the API server answers again")
                delay = 0.0
                self._metrics.published.set_to_current_time()
            except ApiError as error:
                delay = min(max(RETRY_SECONDS, delay * 2), RETRY_LIMIT_SECONDS)
                self._looked = None
                log.warning("%s; again in %.0f s", error, delay)
                await asyncio.sleep(jittered(delay))
                continue
            except Exception:
                self._metrics.erred("publish")
                log.exception("publishing failed")
                delay = RETRY_LIMIT_SECONDS
                await asyncio.sleep(jittered(delay))
                continue
            with contextlib.suppress(TimeoutError):
                due = min(self._due(), self._damper.calm_at())
                await asyncio.wait_for(self._changed.wait(), max(0.0, due - time.monotonic()))

    def _due(self) -> float:
        return 0.0 if self._looked is None else self._looked + self._look_after

    async def publish(self) -> None:
        """One round: profile, then cables. Raises ApiError."""
        self._damper.see(self._collector.facts, time.monotonic())
        looking = self._looked is None or time.monotonic() >= self._due()
        if looking:
            await self._publisher.look()
        if not self._recalled:
            self._recall.begin(self._publisher.earlier)
            self._recalled = True
        facts = self._recall.beside(self._damper.held(self._collector.facts))
        reachability: tuple[Reachability, ...] = ()
        if self._explorer is not None:
            self._explorer.begin(self._publisher.reachability)
            reachability = self._explorer.facts
        prober = self._prober
        if prober is not None and not self._loaded:
            prober.ledger.load(self._publisher.earlier, self._publisher.links, datetime.now(UTC), time.monotonic())
            self._loaded = True
        found = profile(
            facts,
            datetime.now(UTC),
            agent=self.agent,
            before=self._publisher.conditions,
            reachability=prober.ledger.beside(reachability) if prober else reachability,
            benchmarks=prober.ledger.benchmarks() if prober else None,
            benchmarks_fresh=prober.verdict if prober else NEVER_MEASURED,
        )
        wrote = await self._publisher.apply_profile(found)
        wanted = wanted_uuids(found.status)
        if wanted != self._wanted:
            self._wanted, looking, self._look_after = wanted, True, FIRST_LOOK_SECONDS
        if looking:
            await self._find_peers(found)
            self._looked = time.monotonic()
            # Peers that come up together find each other within seconds; a quiet fleet is asked once a minute.
            self._look_after = jittered(min(LOOK_SECONDS, self._look_after * 2))
        links = [link for link in self._publisher.links if link.metadata.name not in self._last_words]
        ends = link_reports(self._settings.node, found.status, self._peers, links, self._damper.flapping)
        written = await self._publisher.apply_links(ends, prober.ledger.measurements if prober else lambda link: ())
        if self.listen is not None:
            await self.listen(listen_addresses(found.status))
        if self._found is None or [end.spec for end in ends] != [end.spec for end in self._ends]:
            self._explore.set()
        self._found, self._ends = found, ends
        self._look()
        self._metrics.links.set(len(ends))
        self._metrics.models.set(len(found.status.models))
        if wrote or written:
            log.info("published: %d links, %d models%s", len(ends), len(found.status.models), " (profile)" if wrote else "")

    async def _find_peers(self, found: Profile) -> None:
        peers: dict[str, PeerPort] = {}
        for uuid in sorted(self._wanted):
            profiles = await self._publisher.profiles_with(uuid)
            if len(profiles) > 1:
                # A Mac that was renamed or set up anew has left a profile that nobody keeps true any more.
                profiles = [one for one in profiles if await self._publisher.is_ready(one.metadata.name)] or profiles
            peer = find_peer(uuid, profiles, self._settings.node, found.status)
            if peer is not None:
                peers[uuid] = peer
                if self._explorer is not None:
                    self._explorer.neighbours(one for one in profiles if one.metadata.name == peer.node)
        self._peers = peers
        # A cable that this Mac does not see is believed of a Mac that still speaks: one that was renamed has left the link of
        # its old name behind.
        seen = {cable.name for cable in link_reports(self._settings.node, found.status, peers)}
        told = {link.metadata.name: seen_by(self._settings.node, link) for link in self._publisher.links}
        silent = {
            name: await self._publisher.is_ready(node) is False for name, node in told.items() if node and name not in seen
        }
        self._last_words = frozenset(name for name, is_silent in silent.items() if is_silent)


def _carriers(facts: Facts) -> frozenset[tuple[str, object]] | None:
    """What changes when somebody touches a cable: carriers, and the states of RDMA's ports (another speed shows there)."""
    if facts.interfaces is None:
        return None
    states = [(device.name, device.state) for device in facts.rdma_info or ()]
    return frozenset([*((interface.name, interface.up) for interface in facts.interfaces), *states])


def _groups(item: Json) -> tuple[GroupUse, ...]:
    """The groups in a NodeProfile as the API server gives it. What cannot be read counts as a use of everything."""
    said = (item.get("status") or {}).get("groups") or []
    try:
        return tuple(GroupUse.load(group) for group in said)
    except ValidationError as error:
        log.warning("the groups of this Mac cannot be read, so nothing is measured: %s", error.errors()[0]["msg"])
        return (GroupUse(name="unknown", epoch=0),)


async def run(settings: Settings) -> int:
    """Until SIGTERM or SIGINT (0), or until it cannot work at all (1)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    host = Host()
    collector = Collector(host, settings.model_folders, metrics.observed)
    try:
        kube = await Kube.connect(settings.kubeconfig)
        certificate = await identity.make(host, settings.state)
    except Exception as error:
        log.error("cannot start: %s", error)
        return 1
    async with kube:
        publisher = Publisher(kube, settings.node, metrics.wrote)
        explorer = Explorer(publisher, settings.host_ip, certificate.client, metrics.dialled)
        ledger = Ledger(settings.node, settings.state)
        prober = Prober(settings.node, settings.measure, certificate.client, ledger, lambda: rounds.touch(), metrics)
        metrics.measures(prober)
        rounds = Loop(settings, collector, publisher, metrics, explorer, prober)
        server = Server(settings.host_ip, settings.node, metrics, rounds.trouble, explorer.known)
        try:
            port, metrics_port = await server.start(settings.listen_port, settings.metrics_port, certificate.server)
        except OSError as error:
            log.error("cannot listen on %s: %s (--host-ip, --listen-port, --metrics-port)", settings.host_ip, error)
            await server.close()
            return 1
        rounds.listen = server.listen_on
        server.measure = prober.answer
        rounds.agent = Agent(address=settings.host_ip, port=port, certificate_sha256=certificate.sha256)
        log.info("the agent of %s listens on %s, ports %d and %d", settings.node, settings.host_ip, port, metrics_port)
        working = asyncio.create_task(rounds.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        working.cancel()
        (outcome,) = await asyncio.gather(working, return_exceptions=True)
        await server.close()
    if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
        log.error("ended: %r", outcome)
        return 1
    log.info("ended")
    return 0
