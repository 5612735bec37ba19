"""The agent's rounds: some read this Mac, one dials peers, and one publishes when something has changed.

Level-triggered: each publishing round starts from the current facts. If a round fails because the API server cannot be reached,
it is repeated with back-off. Nothing is lost, because a round depends only on the facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse, Reachability
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.clock import Moment
from thunderfleet_lib.kube import ApiError, Json, Reflector

from thunderfleet_agent.copies.controller import Limits, PeerCopies
from thunderfleet_agent.derive.clock import clock_synchronized
from thunderfleet_agent.derive.flap_damper import FlapDamper
from thunderfleet_agent.derive.links import LinkReport, PeerPort, find_peer, link_reports, seen_by, wanted_uuids
from thunderfleet_agent.derive.previous_profile import PreviousProfile
from thunderfleet_agent.derive.profile import NEVER_MEASURED, Profile, profile
from thunderfleet_agent.measure.prober import Prober
from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.measure.schedule.view import view
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.observe.collector import Collector
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.sensors import SensorReader
from thunderfleet_agent.peers.dial_plan import listen_addresses
from thunderfleet_agent.peers.dial_rounds import DialRounds
from thunderfleet_agent.publish.publisher import PROFILES, Publisher
from thunderfleet_agent.weights.keeper import Keeper

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# Publishing starts at the latest this long after the start, even if the first round of commands is not over.
FIRST_ROUND_SECONDS = 15.0
# How often carriers are read between the fast rounds: groups must leave a cable within seconds after it was pulled.
CARRIER_SECONDS = 2.0
# Changes within this time are written together.
SETTLE_SECONDS = 0.5
# The API server is read again after this time, sooner after a change: objects may have been deleted, peers may have appeared.
LOOK_SECONDS = 60.0
FIRST_LOOK_SECONDS = 2.0
# A clock that was set by more than this is compared with the API server's at once.
JUMP_SECONDS = 1.0
RETRY = Backoff(1.0, 15.0)


@dataclass(frozen=True)
class AgentSettings:
    """Where the agent runs, and its intervals in seconds (each is jittered)."""

    node: str
    host_ip: str
    listen_port: int
    metrics_port: int
    model_folders: tuple[Path, ...] = ()
    model_store: Path | None = None
    copy_limits: Limits = field(default_factory=Limits)
    fast_seconds: float = 10.0
    slow_seconds: float = 30.0
    models_seconds: float = 60.0
    reach_seconds: float = 20.0
    state: Path | None = None
    kubeconfig: Path | None = None
    measure: MeasureSettings = field(default_factory=MeasureSettings)


def jittered(seconds: float) -> float:
    """``seconds`` plus or minus a tenth, so that Macs that boot together do not stay synchronous."""
    return seconds * random.uniform(0.9, 1.1)


class Rounds:
    """The rounds of one agent."""

    def __init__(
        self,
        settings: AgentSettings,
        collector: Collector,
        publisher: Publisher,
        metrics: Metrics,
        dial_rounds: DialRounds | None = None,
        prober: Prober | None = None,
    ) -> None:
        self._dial_rounds = dial_rounds
        self._prober = prober
        self._loaded = False
        self._damper = FlapDamper()
        self._previous = PreviousProfile()
        self._found: Profile | None = None
        self._ends: tuple[LinkReport, ...] = ()
        self._dial_now = asyncio.Event()
        if dial_rounds is not None:
            dial_rounds.wake = self._dial_now.set
        self.links: dict[str, str] = {}
        """The cable that was last seen at each interface."""
        self.sensors: SensorReader | None = None
        """Set before ``run``."""
        self.listen: Callable[[frozenset[str]], Awaitable[None]] | None = None
        """Receives this Mac's addresses for other agents whenever something was published."""
        self.move: Callable[[str], Awaitable[None]] | None = None
        """Receives this Mac's new address."""
        self._host_ip = settings.host_ip
        self._settings = settings
        self._collector = collector
        self._publisher = publisher
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._look_around = asyncio.Event()
        self._fast_now = asyncio.Event()
        self._read_once = asyncio.Event()
        self._turned = time.monotonic()
        self._peers: dict[str, PeerPort] = {}
        self._departed: frozenset[str] = frozenset()
        self._disputed: frozenset[str] = frozenset()
        """UUIDs that several Macs claim, as last logged."""
        self._looked: float | None = None
        self._lost = False
        self._clock = Moment.now()
        self._address_due = math.inf
        """When to look for this Mac's new address (monotonic)."""
        self._look_after = FIRST_LOOK_SECONDS
        self._wanted: frozenset[str] = frozenset()
        self.agent: Agent | None = None
        self.copies: PeerCopies | None = None
        """Copies from other Macs, if this Mac has a model store; set before ``run``."""
        self.keeper: Keeper | None = None
        """The keeper of this Mac's model store, if it has one; set before ``run``."""
        self._scan_now = asyncio.Event()

    def scan_soon(self) -> None:
        """Starts a scan of the model folders. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._scan_now.set)

    def trouble(self) -> str | None:
        """Why the agent should be restarted; None if it works."""
        silent = time.monotonic() - self._turned
        limit = 60 + 10 * self._settings.fast_seconds
        return (
            f"the agent has not read the state of this Mac for {silent:.0f} s and must be restarted" if silent > limit else None
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as rounds:
            rounds.create_task(self._every("fast", self._settings.fast_seconds, self._fast, self._fast_now))
            if self._settings.fast_seconds > CARRIER_SECONDS:
                rounds.create_task(self._every("carriers", CARRIER_SECONDS, self._watch_carriers))
            rounds.create_task(self._every("slow", self._settings.slow_seconds, self._slow, self._look_around))
            rounds.create_task(self._every("models", self._settings.models_seconds, self._models, self._scan_now))
            if self.keeper is not None:
                rounds.create_task(self.keeper.run())
            if self.copies is not None:
                rounds.create_task(self.copies.run())
            rounds.create_task(self._publish_for_ever())
            if self.sensors is not None:
                rounds.create_task(self.sensors.run())
            if self._dial_rounds is not None:
                rounds.create_task(self._every("reach", self._settings.reach_seconds, self._reach, self._dial_now))
            if self._prober is not None:
                rounds.create_task(self._measure(self._prober))

    async def _every(
        self, name: str, seconds: float, turn: Callable[[], Awaitable[None]], sooner: asyncio.Event | None = None
    ) -> None:
        self._metrics.begun(name)
        while True:
            if sooner is not None:
                sooner.clear()
            try:
                await turn()
            except Exception:
                # An internal error affects only this round.
                self._metrics.erred(name)
                log.exception("the %s round failed", name)
            if sooner is None:
                await asyncio.sleep(jittered(seconds))
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(jittered(seconds)):
                        await sooner.wait()

    async def _fast(self) -> None:
        self._watch_clock()
        before = _carriers(self._collector.facts)
        # If carriers have a round of their own, it has just read the interfaces.
        fresh = 2 * CARRIER_SECONDS if self._settings.fast_seconds > CARRIER_SECONDS else 0.0
        await self._observe(partial(self._collector.fast, fresh))
        self._turned = time.monotonic()
        lost = self._lost_address()
        if lost and not self._lost:
            # Requests over connections from the lost address would only time out.
            await self._publisher.kube.reconnect()
        self._lost = lost
        if before is not None and _carriers(self._collector.facts) != before:
            # A cable was plugged or unplugged: read the Thunderbolt report now instead of at its interval.
            self._look_around.set()

    def _watch_clock(self) -> None:
        now, before = Moment.now(), self._clock
        self._clock = now
        jump = now.jump(before)
        if abs(jump) > JUMP_SECONDS:
            log.warning("the clock of this Mac was set %s by %.0f s", "forward" if jump > 0 else "back", abs(jump))
            self._looked = None
            self._changed.set()

    async def _watch_carriers(self) -> None:
        self._watch_clock()
        before = _carriers(self._collector.facts)
        await self._observe(self._collector.carriers)
        if before is not None and _carriers(self._collector.facts) != before:
            self._fast_now.set()
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
        if self._dial_rounds is None or self._found is None:
            return
        if await self._dial_rounds.round(self._found.status, [end.spec for end in self._ends]):
            self._changed.set()
        self._update_prober()

    def _update_prober(self) -> None:
        """Gives the current cables and peers to the prober and to copies."""
        if self._prober is None or self._dial_rounds is None or self._found is None or not self._loaded:
            return
        seen = view(
            self._settings.node,
            self._host_ip,
            self._found.status,
            [end.spec for end in self._ends],
            self._publisher.links,
            self._dial_rounds.facts,
            self._dial_rounds.agents,
            self._prober.settings,
        )
        self._prober.set_view(seen)
        if self.copies is not None:
            self.copies.set_view(seen)

    async def _measure(self, prober: Prober) -> None:
        """Runs the prober, and watches this Mac's own profile for the groups that use it."""
        node = self._settings.node

        def changed(_: str) -> None:
            item = own.items.get(node) or own.items.get(f"/{node}") or {}
            groups = _groups(item)
            prober.set_groups(groups)
            if self.copies is not None:
                self.copies.set_groups(groups)

        own = Reflector(self._publisher.kube, PROFILES, {"fieldSelector": f"metadata.name={node}"}, changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(own.run())
            tasks.create_task(prober.run())

    def publish_soon(self) -> None:
        """Starts a publishing round."""
        self._changed.set()

    async def _observe(self, turn: Callable[[], Awaitable[Answer]]) -> Answer:
        before = self._collector.facts
        answer = await turn()
        if self._collector.facts != before:
            for interface in _changed(before, self._collector.facts) & self.links.keys():
                self._metrics.changed(self._settings.node, self.links[interface])
            calm = self._damper.flapping
            self._damper.see(self._collector.facts, time.monotonic())
            for port in sorted(self._damper.flapping - calm):
                log.warning(
                    "the cable at port %d connects and disconnects often; it is published as connected until that stops", port
                )
            self._changed.set()
        return answer

    async def _publish_for_ever(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND_SECONDS):
                await self._read_once.wait()
        failures = 0
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            try:
                await self.publish()
                if failures:
                    log.info("the API server responds again")
                failures = 0
                self._metrics.published.set_to_current_time()
            except ApiError as error:
                failures += 1
                delay = RETRY.seconds(failures)
                self._looked = None
                log.warning("%s; retrying in %.0f s", error, delay)
                await asyncio.sleep(jittered(delay))
                continue
            except Exception:
                self._metrics.erred("publish")
                log.exception("publishing failed")
                await asyncio.sleep(jittered(RETRY.limit))
                continue
            with contextlib.suppress(TimeoutError):
                due = min(self._due(), self._damper.calm_at(), self._address_due, self._publisher.message_at)
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._changed.wait()

    def _due(self) -> float:
        return 0.0 if self._looked is None else self._looked + self._look_after

    def _lost_address(self) -> bool:
        """Whether no interface of this Mac has its address any more."""
        interfaces = self._collector.facts.interfaces
        return interfaces is not None and all(self._host_ip != entry.address for one in interfaces for entry in one.addresses)

    async def _follow_address(self) -> None:
        """Takes the address of this Mac's Node, which the kubelet keeps current, for listening, dialling and publishing."""
        address = self._publisher.address
        if address is None or address == self._host_ip:
            return
        log.warning("the address of this Mac changed from %s to %s", self._host_ip, address)
        self._host_ip = address
        if self._dial_rounds is not None:
            self._dial_rounds.host_ip = address
        if self.agent is not None:
            self.agent = self.agent.model_copy(update={"address": address})
        if self.move is not None:
            await self.move(address)
        await self._publisher.kube.reconnect()

    async def publish(self) -> None:
        """One publishing round: the profile, then the links. Raises ApiError."""
        self._damper.see(self._collector.facts, time.monotonic())
        looking = self._looked is None or time.monotonic() >= self._due()
        lost = self._lost_address()
        before = self._host_ip
        if looking or lost:
            await self._publisher.look()
            await self._follow_address()
        # The kubelet may need some seconds to publish the new address.
        self._address_due = time.monotonic() + FIRST_LOOK_SECONDS if lost and self._lost_address() else math.inf
        self._previous.load(self._publisher.earlier)
        facts = self._offered(self._previous.fill(self._damper.held(self._collector.facts)))
        reachability: tuple[Reachability, ...] = ()
        if self._dial_rounds is not None:
            self._dial_rounds.begin(self._publisher.reachability)
            reachability = self._dial_rounds.facts
        prober = self._prober
        if prober is not None and not self._loaded:
            prober.ledger.load(self._publisher.earlier, self._publisher.links, datetime.now(UTC), time.monotonic())
            self._loaded = True
        found = profile(
            facts,
            datetime.now(UTC),
            agent=self.agent,
            before=self._publisher.conditions,
            reachability=prober.ledger.with_figures(reachability) if prober else reachability,
            benchmarks=prober.ledger.benchmarks() if prober else None,
            benchmarks_fresh=prober.benchmarks_fresh if prober else NEVER_MEASURED,
            clock=clock_synchronized(self._publisher.kube.clock.known, self._publisher.kube.clock.wrong),
            # Only with the models: without them the operator would not read that this Mac has one already.
            store=self.keeper.about if self.keeper and facts.models is not None else None,
            copies=self.keeper.copies if self.keeper else (),
        )
        wrote = await self._publisher.apply_profile(found)
        if self._host_ip != before:
            # Now that the profile shows the new address: a Mac that is dialled from it reads the profile.
            self._dial_now.set()
        wanted = wanted_uuids(found.status)
        if wanted != self._wanted:
            self._wanted, looking, self._look_after = wanted, True, FIRST_LOOK_SECONDS
        if looking:
            await self._find_peers(found)
            self._looked = time.monotonic()
            # Peers that boot together find each other within seconds; later one read a minute is enough.
            self._look_after = jittered(min(LOOK_SECONDS, self._look_after * 2))
        links = [link for link in self._publisher.links if link.metadata.name not in self._departed]
        ends = link_reports(self._settings.node, found.status, self._peers, links, self._damper.flapping)
        written = await self._publisher.apply_links(ends, prober.ledger.measurements if prober else lambda link: ())
        if self.listen is not None:
            await self.listen(listen_addresses(found.status))
        if self._found is None or [end.spec for end in ends] != [end.spec for end in self._ends]:
            self._dial_now.set()
        self._found, self._ends = found, ends
        self.links.update({end.endpoint.interface: end.name for end in ends if end.endpoint.interface is not None})
        self._metrics.cabled(self._settings.node, self.links.values())
        self._update_prober()
        self._metrics.links.set(len(ends))
        self._metrics.models.set(len(found.status.models))
        if wrote or written:
            log.info("published: %d links, %d models%s", len(ends), len(found.status.models), " (profile)" if wrote else "")

    def _offered(self, facts: Facts) -> Facts:
        """The facts without models that not every namespace may use."""
        if self.keeper is None or facts.models is None:
            return facts
        return replace(facts, models=tuple(one for one in facts.models if one.path not in self.keeper.restricted))

    async def _find_peers(self, found: Profile) -> None:
        peers: dict[str, PeerPort] = {}
        disputed: dict[str, str] = {}
        for uuid in sorted(self._wanted):
            profiles = await self._publisher.profiles_with(uuid)
            if len(profiles) > 1:
                # A Mac that was renamed or reinstalled left an old profile behind.
                profiles = [one for one in profiles if await self._publisher.is_ready(one.metadata.name)] or profiles
            peer = find_peer(uuid, profiles, self._settings.node, found.status, self._publisher.links)
            if peer is None and len(profiles) > 1:
                disputed[uuid] = ", ".join(sorted(one.metadata.name for one in profiles))
            if peer is not None:
                peers[uuid] = peer
                if self._dial_rounds is not None:
                    self._dial_rounds.neighbors(one for one in profiles if one.metadata.name == peer.node)
        for uuid in disputed.keys() - self._disputed:
            text = "%s claim to be the Mac that this Mac detects, so the cable to it is not published"
            log.warning(text, disputed[uuid])
        self._disputed = frozenset(disputed)
        self._peers = peers
        # A link that only the other end reports counts while that Mac runs: a Mac that was renamed left its old links behind.
        seen = {cable.name for cable in link_reports(self._settings.node, found.status, peers)}
        seen_from = {link.metadata.name: seen_by(self._settings.node, link) for link in self._publisher.links}
        gone = {
            name: await self._publisher.is_ready(node) is False for name, node in seen_from.items() if node and name not in seen
        }
        self._departed = frozenset(name for name, is_gone in gone.items() if is_gone)


def _carriers(facts: Facts) -> frozenset[tuple[str, object]] | None:
    """The facts that change with a cable: carriers, and the states of RDMA ports (which also show another speed)."""
    if facts.interfaces is None:
        return None
    states = [(device.name, device.state) for device in facts.rdma_info or ()]
    return frozenset([*((interface.name, interface.up) for interface in facts.interfaces), *states])


def _changed(before: Facts, after: Facts) -> set[str]:
    """Interfaces that lost or got their carrier."""
    if before.interfaces is None or after.interfaces is None:
        return set()
    were = {one.name: one.up for one in before.interfaces}
    return {one.name for one in after.interfaces if were.get(one.name, one.up) != one.up}


def _groups(item: Json) -> tuple[GroupUse, ...]:
    """The groups in a NodeProfile from the API server. If they are invalid, everything counts as used."""
    values = (item.get("status") or {}).get("groups") or []
    try:
        return tuple(GroupUse.load(group) for group in values)
    except ValidationError as error:
        log.warning("status.groups of this Mac's NodeProfile is invalid, so nothing is measured: %s", error.errors()[0]["msg"])
        return (GroupUse(name="unknown", epoch=0),)
