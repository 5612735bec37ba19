"""The running operator: its parts, started and stopped in order."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from aiohttp import web
from thunderfleet_crds.exchange.routing import DemandReport
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_lib.host.descriptors import allow_descriptors
from thunderfleet_lib.kube import ApiError, Json, Kube, Part, key_of
from thunderfleet_lib.net.tlsbuffers import small_buffers

from thunderfleet_operator.act.controllers.cache import CacheController
from thunderfleet_operator.act.controllers.certificate import CertificateController
from thunderfleet_operator.act.controllers.link import LinkController
from thunderfleet_operator.act.controllers.mac import MacController
from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.events import Events
from thunderfleet_operator.act.executor import CHECK_SECONDS, Executor
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.act.operator_key import KEY_SECRET, operator_keys
from thunderfleet_operator.act.pacing import Pacing
from thunderfleet_operator.act.routers.demand import DemandServer
from thunderfleet_operator.act.routers.publisher import Publisher
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide.deployment import Settings
from thunderfleet_operator.decide.status.group import host_port
from thunderfleet_operator.health import Health
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.object_metrics import ObjectMetrics, Objects
from thunderfleet_operator.observe.concerns import FLEET, concerned, work_key
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.planning.planner import Planner
from thunderfleet_operator.planning.process import PlanningProcess
from thunderfleet_operator.reconcile import Reconciler
from thunderfleet_operator.reservations import Reservations
from thunderfleet_operator.scaling import ScalingMemory
from thunderfleet_operator.watch import kopf_watch
from thunderfleet_operator.watch.cache import (
    CACHED,
    CACHES,
    DEPLOYMENTS,
    LINKS,
    NODEPROFILES,
    PODS,
    REQUESTS,
    SECRETS,
    Cache,
    Collection,
    unpacked,
)
from thunderfleet_operator.watch.components import Components
from thunderfleet_operator.watch.leader import Identity, Leader
from thunderfleet_operator.watch.lists import Lists
from thunderfleet_operator.watch.workqueue import WorkQueue
from thunderfleet_operator.worker import Round, Worker

log = logging.getLogger(__name__)

KEY_RETRY_SECONDS = 2.0
AT_ONCE = 8
"""Rounds of each worker at a time. Most of a round is the wait for the API server."""
TOGETHER_SECONDS = 0.25
"""Changes of the fleet, and those of one Mac, are collected for this time before a round handles them.

Otherwise a start would read the whole fleet once for each of its cables.
"""
PODS_SECONDS = 0.1
"""The same for changes of the pods of a ModelDeployment, which are bound and start one after the other."""
MOMENT_SECONDS = 0.1
"""The same for changes during a round of a ModelDeployment, counted from its end: most of them are its own writes."""
CABLES_SECONDS = 60.0
"""How long the planner waits for the first round of each cable, once this replica leads.

A group that is placed while half of the cables have no status gets a worse place, and its writes would delay the other half.
"""
WATCH_SECONDS = 10.0
"""How long kopf waits for the same. It lists everything once more, and receives each status that the operator writes, which
takes a third of the operator's time at a start."""
STOP_SECONDS = 10.0
"""How long kopf may take to stop."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The command line."""

    settings: Settings
    namespace: str
    identity: Identity
    host: str
    metrics_port: int
    demand_port: int
    kubeconfig: Path | None = None


def _now() -> datetime:
    return datetime.now(UTC)


class Operator:
    """One replica."""

    def __init__(self, kube: Kube, configuration: Configuration, cache: Cache | None = None) -> None:
        self._kube = kube
        self._configuration = configuration
        self.metrics = Metrics()
        self.cache = Cache() if cache is None else cache
        self.queue = WorkQueue(MOMENT_SECONDS)
        self.cables = WorkQueue()
        """The queue of the rounds of cables, and of those that check Secrets."""
        self._keys = Keyring()
        self.leader = Leader(kube, configuration.namespace, configuration.identity, self._gained)
        self.groups = GroupClient(lambda key: self.queue.changed(work_key(DEPLOYMENTS, key)), self.leading)
        self.lists = Lists(kube, self.cache, self.changed, self._remove_link)
        self._index = Index(self.cache, lambda: self._keys)
        self._events = Events(kube, self.metrics, str(configuration.identity), lambda: self._waiting() > 0)
        writer = Writer(
            kube, self.cache, self.metrics, self.term, partial(self.changed, own=True), self._events.later, self.lists.missing
        )
        self._writer = writer
        macs = MacController(self._index, writer, _now)
        links = LinkController(self._index, writer, _now, lambda: self.leader.first_led)
        certificates = CertificateController(kube, self._index, writer, _now)
        drains = Drains(self.groups, time.monotonic)
        settings = configuration.settings
        caches = CacheController(self._index, writer, settings.pods, settings.hub, lambda: self._keys, _now)
        executor = Executor(
            writer,
            self.groups,
            macs,
            drains,
            self.metrics,
            settings.pods,
            lambda: self._keys,
            later=lambda key: self.cables.add_after(f"{SECRETS.name}/{key}", CHECK_SECONDS),
            pacing=Pacing(),
        )
        self._scaling = ScalingMemory(time.monotonic)
        address = host_port(configuration.host, configuration.demand_port)
        self._publisher = Publisher(
            kube,
            self._index,
            writer,
            lambda: self._keys,
            self.leading,
            configuration.namespace,
            address,
            time.monotonic,
        )
        self._demand = DemandServer(self._reported, lambda: self._index.deployments, self.leading, time.monotonic)
        self.planner = Planner(
            PlanningProcess(),
            lambda key: self.queue.add(work_key(DEPLOYMENTS, key)),
            turn=lambda key: self.queue.add(work_key(DEPLOYMENTS, key), first=True),
            fleet=lambda: self._index.fleet,
        )
        reservations = Reservations(self.lists.refill)
        self.reconciler = Reconciler(
            self._index,
            self.groups,
            drains,
            executor,
            settings,
            self.planner,
            _now,
            time.monotonic,
            self._scaling,
            lambda key: self.queue.add(work_key(DEPLOYMENTS, key)),
            lambda key, seconds: self.queue.add_after(work_key(DEPLOYMENTS, key), seconds),
            reservations,
        )
        rounds: dict[str, Round] = {
            DEPLOYMENTS.name: self.reconciler.deployment,
            FLEET: self.reconciler.fleet,
            NODEPROFILES.name: macs.round,
            REQUESTS.name: certificates.round,
            # Their pods take memory and disks of Macs.
            CACHES.name: reservations.alone(caches.round),
        }
        cables: dict[str, Round] = {LINKS.name: links.round, SECRETS.name: executor.check_secrets}
        self._workers = {
            "worker": Worker(self.queue, rounds, self.metrics, self.term, self.lists.refill, AT_ONCE),
            "cables": Worker(self.cables, cables, self.metrics, self.term, self.lists.refill, AT_ONCE),
        }
        self._took_over = False
        self._taking_over: asyncio.Task[None] | None = None
        self._queued = asyncio.Event()
        """This replica leads, or has led, and every object has been put on the queue."""
        self._demands: web.AppRunner | None = None
        self._synced = asyncio.Event()
        self._watching = asyncio.Event()
        self._stop = asyncio.Event()
        self.metrics.queue.set_function(self._waiting)
        self.metrics.leading.set_function(lambda: 1.0 if self.leading() else 0.0)
        self.metrics.clock.set_function(lambda: float(kube.clock.wrong or 0))
        for part in Part:
            self.metrics.silent.labels(part).set_function(partial(self._silent, part))
        for stage in GroupPhase:
            self.metrics.groups.labels(stage.value).set_function(partial(self._groups_in, stage))
        self._shown = ObjectMetrics(self._objects, self.leading)

    def _objects(self) -> Objects:
        index = self._index
        return Objects(
            index.deployments.values(),
            index.links.values(),
            index.profiles.values(),
            index.live_nodes.values(),
            self._scaling.needed(),
        )

    def _waiting(self) -> int:
        """The number of keys whose round is due."""
        return len(self.queue) + len(self.cables)

    async def _remove_link(self, name: str, uid: str) -> None:
        """Deletes a link that is not kept, while this replica leads."""
        if self.leading():
            await self._writer.delete(LINKS, None, name, uid)

    # --- events in, keys out -----------------------------------------------------------------------------------------

    def _event(self, collection: Collection, kind: str | None, item: Json) -> None:
        """One of kopf's events. ``kind`` is None for an object that kopf has listed."""
        store = self.cache[collection]
        before = store.items.kept.get(key_of(item))
        if store.drop(item) if kind == "DELETED" else store.put(item):
            old = unpacked(before) if before is not None else None
            self.changed(collection, key_of(item), old, None if kind == "DELETED" else item)

    def _is_news(self, collection: Collection, kind: str | None, item: Json) -> bool:
        """Whether an event is about more than what the operator has listed or written itself, as at least half of them."""
        if kind is None:
            self.lists.relisted(collection)
        return kind == "DELETED" or self.cache[collection].is_news(item)

    def changed(self, collection: Collection, key: str, before: Json | None, after: Json | None, *, own: bool = False) -> None:
        """Puts what an object's change concerns on the queue. ``own``: whether the operator has made it."""
        unplaced, routing = self.reconciler.unplaced, self._configuration.settings.routers
        routers = routing.namespace if routing is not None else None
        for concern in concerned(self._index, collection, key, before, after, unplaced, own=own, routers=routers):
            self._enqueue(concern, PODS_SECONDS if collection is PODS else 0.0)

    def _enqueue(self, key: str, seconds: float = 0.0) -> None:
        kind = key.partition("/")[0]
        queue = self.cables if kind == LINKS.name else self.queue
        wait = TOGETHER_SECONDS if kind in (FLEET, NODEPROFILES.name) else seconds
        if wait > 0:
            queue.add_after(key, wait)
        else:
            queue.changed(key)

    def _reported(self, report: DemandReport) -> None:
        """A router has reported. Rounds of those that are not woken, or that run anyway, come by themselves."""
        self._scaling.reported(report)
        for demand in report.demands:
            key = f"{demand.namespace}/{demand.deployment}"
            found = self._index.deployments.get(key)
            if demand.wake and found is not None and found.wakes and not found.wanted_groups:
                self.queue.add(work_key(DEPLOYMENTS, key))

    def _silent(self, part: Part) -> float:
        return float(self.leader.silent is part)

    def _groups_in(self, stage: GroupPhase) -> float:
        """The number of groups in a state, for the leader's metrics."""
        deployments = self._index.deployments.values() if self.leading() else ()
        groups = (group for one in deployments if one is not None for group in one.status.groups)
        return float(sum(group.state is stage for group in groups))

    def leading(self) -> bool:
        """Whether this replica may act: it is the leader and has read the keys since it became that."""
        return self.leader.leading() and self._took_over

    def term(self) -> int:
        """The number of this replica's term as the leader, 0 while it may not act."""
        return self.leader.term if self.leading() else 0

    def _gained(self) -> None:
        self._took_over = False
        if self._taking_over is not None:
            self._taking_over.cancel()
        self._taking_over = asyncio.create_task(self._take_over(), name="take over")

    async def _take_over(self) -> None:
        """Reads the keys again: the leader before may have signed with one that is newer than those read at the start."""
        try:
            await self._load_keys()
        except ValueError as error:
            log.error("%s; using the keys that were read at the start", error)
        self._took_over = True
        self.reconciler.begin()
        self._add(DEPLOYMENTS, LINKS, NODEPROFILES, CACHES)
        for node in self._index.requests_of:
            self.queue.add(work_key(REQUESTS, node))
        self._queued.set()

    async def _plan(self) -> None:
        """Answers questions about places, once each cable that there is has had its first round.

        Only in the first term of this replica. A cable whose round has failed is not waited for.
        """
        await self._queued.wait()
        try:
            async with asyncio.timeout(CABLES_SECONDS):
                await self.cables.empty()
        except TimeoutError:
            log.warning("%d cables have no status after %.0f s; placing groups now", len(self.cables), CABLES_SECONDS)
        await self.planner.run()

    async def _before_watches(self) -> None:
        """Waits for the same before kopf lists everything, but not for long, and not in a standby, which writes nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_SECONDS):
                await self.leader.tried.wait()
                if self.leader.leading():
                    await self._queued.wait()
                    await self.cables.empty()
        # Kopf does not tell of a kind of which everything was deleted meanwhile.
        for collection in CACHED:
            self.lists.missing(collection)

    def _add(self, *collections: Collection) -> None:
        """Puts every object of these collections on the queue."""
        for collection in collections:
            for key in self.cache[collection].items:
                self._enqueue(work_key(collection, key))

    # --- life --------------------------------------------------------------------------------------------------------

    async def _load_keys(self) -> None:
        namespace = self._configuration.namespace
        while True:
            try:
                keys = await operator_keys(self._kube, namespace, self._keys)
                if keys.keys != self._keys.keys:
                    self._keys = keys
                return
            except ApiError as error:
                log.warning("cannot read the operator's key, Secret %s/%s: %s", namespace, KEY_SECRET, error)
                await asyncio.sleep(KEY_RETRY_SECONDS)

    async def _start(self, tasks: list["asyncio.Task[None]"]) -> None:
        await self.lists.fill()
        await self._load_keys()
        await self._index.warm()
        self._synced.set()
        parts = {
            "leader": self.leader.run,
            "planner": self._plan,
            "lists": self.lists.run,
            "events": self._events.run,
            "components": Components(self._kube, self.leader.leading, self.metrics.unrenewed).run,
            **{name: worker.run for name, worker in self._workers.items()},
        }
        if self._configuration.settings.routers is not None:
            parts["publisher"] = self._publisher.run
            configuration = self._configuration
            self._demands = await self._demand.serve(configuration.host, configuration.demand_port, self._publisher.pair)
        for name, part in parts.items():
            tasks.append(asyncio.create_task(part(), name=name))
        await self._before_watches()

    async def run(self) -> None:
        """Runs until SIGTERM, SIGINT, or a fault that needs a restart."""
        ended = asyncio.Event()
        _on_signals(ended.set)
        health = Health(
            self.metrics,
            stuck=lambda: any(worker.stuck for worker in self._workers.values()),
            synced=lambda: self._synced.is_set() and self._watching.is_set(),
            leading=self.leading,
            objects=self._shown.page,
        )
        page = await health.serve(self._configuration.host, self._configuration.metrics_port)
        tasks: list[asyncio.Task[None]] = []
        waiter = asyncio.create_task(_wait(ended), name="signals")
        try:
            start = asyncio.create_task(self._start(tasks), name="start")
            await asyncio.wait({start, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                return
            await start
            watch = asyncio.create_task(
                kopf_watch.run(self._kube, self._event, self._is_news, self._stop, self._watching), name="kopf"
            )
            tasks.append(watch)
            ready = asyncio.create_task(_wait(self._watching), name="kopf-ready")
            await asyncio.wait({ready, watch, waiter}, return_when=asyncio.FIRST_COMPLETED)
            # kopf installs its own signal handlers when it starts; this operator stops its parts itself.
            _on_signals(ended.set)
            done, _ = await asyncio.wait({*tasks, waiter}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiter}:
                error = task.exception() if not task.cancelled() else None
                raise RuntimeError(f"{task.get_name()} ended unexpectedly: {error or 'no error'}") from error
        finally:
            await self._end(tasks, waiter)
            await page.cleanup()

    async def _end(self, tasks: list["asyncio.Task[None]"], waiter: "asyncio.Task[None]") -> None:
        log.info("stopping")
        watch = [task for task in tasks if task.get_name() == "kopf"]
        others = [task for task in tasks if task not in watch]
        if self._taking_over is not None:
            others.append(self._taking_over)
        for task in (*others, waiter):
            task.cancel()
        await asyncio.gather(*others, waiter, return_exceptions=True)
        if self._demands is not None:
            await self._demands.cleanup()
        await self.groups.close()
        await self.leader.release()
        self._stop.set()
        await self._events.end()
        if watch:
            await asyncio.wait(watch, timeout=STOP_SECONDS)
            for task in watch:
                task.cancel()
            await asyncio.gather(*watch, return_exceptions=True)


def _on_signals(handler: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def run(configuration: Configuration) -> None:
    """Runs one replica."""
    allow_descriptors()
    small_buffers()
    async with await Kube.connect(configuration.kubeconfig) as kube:
        await Operator(kube, configuration).run()
