"""The running operator: caches, queue, worker, lease, listeners and the page for Prometheus, started and stopped in order."""

import asyncio
import base64
import contextlib
import json
import logging
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web
from prometheus_client import generate_latest
from thunderfleet_lib.kube import ApiError, Json, Kube, key_of

from thunderfleet_operator.act.executor import Actor, NotLeading
from thunderfleet_operator.act.group_client import Groups
from thunderfleet_operator.act.keys import MASTER_BYTES
from thunderfleet_operator.act.link_controller import Links
from thunderfleet_operator.act.mac_controller import Macs
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe.snapshot import Parsed, ended, internal_ip, owner_key, owner_uid, pod_node, read_epoch
from thunderfleet_operator.reconcile import Reconciler, Settings
from thunderfleet_operator.watch import kopf_watch
from thunderfleet_operator.watch.cache import (
    CACHED,
    CONFIGMAPS,
    DEPLOYMENTS,
    LINKS,
    NODEPROFILES,
    NODES,
    PODS,
    Cache,
    Collection,
)
from thunderfleet_operator.watch.leader import Leader
from thunderfleet_operator.watch.workqueue import WorkQueue

log = logging.getLogger(__name__)

KEY_SECRET = "thunderfleet-operator-key"
KEY_FIELD = "key"
SWEEP_SECONDS = 300.0
RELIST_SECONDS = 2.0
"""After kopf has listed a kind anew, our own list follows once it is quiet for so long."""
RETRY_SECONDS = 1.0
RETRY_LIMIT_SECONDS = 60.0
RECONCILE_SECONDS = 120.0
STUCK_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the command line says."""

    settings: Settings
    namespace: str
    identity: str
    host: str
    metrics_port: int
    kubeconfig: Path | None = None


async def master_key(kube: Kube, namespace: str) -> bytes:
    """The operator's key, from its Secret; made at the first start."""
    folder = f"/api/v1/namespaces/{namespace}/secrets"
    found = await kube.get_or_none(f"{folder}/{KEY_SECRET}")
    if found is None:
        body: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "immutable": True,
            "data": {KEY_FIELD: base64.b64encode(secrets.token_bytes(MASTER_BYTES)).decode()},
        }
        try:
            found = await kube.create(folder, body)
            log.info("made the operator's key: Secret %s/%s", namespace, KEY_SECRET)
        except ApiError as error:
            if error.status != 409:
                raise
            found = await kube.get(f"{folder}/{KEY_SECRET}")
    key = base64.b64decode((found.get("data") or {}).get(KEY_FIELD, ""))
    if len(key) < MASTER_BYTES:
        raise ValueError(f"Secret {namespace}/{KEY_SECRET} has no '{KEY_FIELD}' of at least {MASTER_BYTES} bytes: delete it")
    return key


def _node_facts(node: Json | None) -> object:
    """What of a Node matters here; its heartbeats do not."""
    if node is None:
        return None
    spec, state = node.get("spec") or {}, node.get("status") or {}
    ready = [c.get("status") for c in state.get("conditions") or [] if c.get("type") == "Ready"]
    facts = [
        node["metadata"].get("labels"),
        spec.get("taints"),
        spec.get("unschedulable"),
        state.get("allocatable"),
        internal_ip(node),
        (state.get("nodeInfo") or {}).get("bootID"),
        ready,
        bool(node["metadata"].get("deletionTimestamp")),
    ]
    return json.dumps(facts, sort_keys=True)


def _macs_of(collection: Collection, key: str, item: Json | None) -> frozenset[str]:
    """The Macs whose NodeProfile says something that follows from an object."""
    if collection in (NODES, NODEPROFILES):
        return frozenset({key})
    if item is None or (collection is PODS and owner_uid(item) is None):
        return frozenset()
    if collection is LINKS:
        return frozenset(str(item["spec"][end]["node"]) for end in ("a", "b"))
    if collection is PODS:
        node = pod_node(item)
        return frozenset({node} if node else ())
    plan = read_epoch(item).plan if collection is CONFIGMAPS else None
    return frozenset(rank.node for rank in plan.ranks) if plan else frozenset()


def _now() -> datetime:
    return datetime.now(UTC)


class Operator:
    """One replica."""

    def __init__(self, kube: Kube, configuration: Configuration) -> None:
        self._kube = kube
        self._configuration = configuration
        self.metrics = Metrics()
        self.cache = Cache()
        self.queue = WorkQueue()
        self.leader = Leader(kube, configuration.namespace, configuration.identity, self._enqueue_all)
        self.groups = Groups(lambda key: self.queue.add(f"{DEPLOYMENTS.name}/{key}"))
        parsed = Parsed()
        actor = Actor(kube, self.cache, self.metrics, self.leader.leading, configuration.identity)
        self.links = Links(self.cache, parsed, actor, _now)
        self.macs = Macs(self.cache, parsed, actor, _now)
        self.reconciler = Reconciler(
            self.cache, parsed, actor, self.groups, self.macs, self.metrics, configuration.settings, self._master_key, _now
        )
        self._master = b""
        self._synced = asyncio.Event()
        self._watching = asyncio.Event()
        self._relisted: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._busy_since: float | None = None
        self._stop = asyncio.Event()
        self.metrics.queue.set_function(lambda: len(self.queue))
        self.metrics.leading.set_function(lambda: 1.0 if self.leader.leading() else 0.0)

    def _master_key(self) -> bytes:
        return self._master

    # --- what happened -----------------------------------------------------------------------------------------------

    def _told(self, collection: Collection, kind: str | None, item: Json) -> None:
        """An event of kopf's: into the cache, and what it concerns onto the queue."""
        store = self.cache[collection]
        before = store.items.get(key_of(item))
        if kind is None:
            self._relisted[collection.name] = time.monotonic()
        changed = store.drop(item) if kind == "DELETED" else store.put(item)
        if changed:
            self._concerns(collection, key_of(item), before, None if kind == "DELETED" else item)

    def _concerns(self, collection: Collection, key: str, before: Json | None, after: Json | None) -> None:
        if collection in (DEPLOYMENTS, LINKS):
            self.queue.add(f"{collection.name}/{key}")
            if collection is DEPLOYMENTS and after is None:
                self._enqueue_unplaced()
        if collection is NODES and _node_facts(before) == _node_facts(after):
            return
        for node in _macs_of(collection, key, after or before):
            self.queue.add(f"{NODEPROFILES.name}/{node}")
        if collection in (NODES, NODEPROFILES, LINKS):
            self._enqueue(DEPLOYMENTS)
            if collection is not LINKS:
                self._enqueue_links(key)
            return
        item = after or before
        owner = owner_key(item) if item else None
        if owner is not None:
            self.queue.add(f"{DEPLOYMENTS.name}/{owner}")
        if collection is PODS and (after is None or ended(after)):
            self._enqueue_unplaced()

    def _enqueue(self, collection: Collection) -> None:
        for key in self.cache[collection].items:
            self.queue.add(f"{collection.name}/{key}")

    def _enqueue_links(self, node: str) -> None:
        for key, link in self.cache[LINKS].items.items():
            if node in _macs_of(LINKS, key, link):
                self.queue.add(f"{LINKS.name}/{key}")

    def _enqueue_unplaced(self) -> None:
        for key in self.reconciler.unplaced:
            self.queue.add(f"{DEPLOYMENTS.name}/{key}")

    def _enqueue_all(self) -> None:
        for collection in (DEPLOYMENTS, LINKS, NODEPROFILES):
            self._enqueue(collection)

    # --- lists -------------------------------------------------------------------------------------------------------

    async def _list(self, collection: Collection) -> None:
        items, version = await self._kube.list(collection.path, **collection.query)
        store = self.cache[collection]
        known = dict(store.items)
        for key in store.replace(items, version):
            self._concerns(collection, key, known.get(key), store.items.get(key))

    async def _first_lists(self) -> None:
        """Fills the cache; waits for CRDs and rights that are not there yet, saying so."""
        for collection in CACHED:
            while True:
                try:
                    await self._list(collection)
                    break
                except ApiError as error:
                    advice = ": are the CRDs installed (helm install thunderfleet)?" if error.status == 404 else ""
                    log.warning("cannot list %s yet: %s%s", collection.name, error, advice)
                    await asyncio.sleep(2.0)

    async def _sweep(self) -> None:
        """Lists everything now and then, and soon after kopf has: it tells of no deletion that it has missed."""
        last = dict.fromkeys((collection.name for collection in CACHED), time.monotonic())
        while True:
            await asyncio.sleep(1.0)
            for collection in CACHED:
                now = time.monotonic()
                relisted = self._relisted.get(collection.name)
                soon = relisted is not None and now - relisted >= RELIST_SECONDS
                if not soon and now - last[collection.name] < SWEEP_SECONDS:
                    continue
                try:
                    await self._list(collection)
                except ApiError as error:
                    log.warning("cannot list %s: %s", collection.name, error)
                    last[collection.name] = now - SWEEP_SECONDS + 5.0
                    continue
                last[collection.name] = now
                if soon:
                    self._relisted.pop(collection.name, None)

    # --- work --------------------------------------------------------------------------------------------------------

    def _round(self, key: str) -> tuple[str, Callable[[], Awaitable[float | None]]]:
        kind, _, name = key.partition("/")
        if kind == LINKS.name:
            return kind, lambda: self.links.round(name)
        if kind == NODEPROFILES.name:
            return kind, lambda: self.macs.round(name)
        return kind, lambda: self.reconciler.deployment(name)

    async def _work(self) -> None:
        """The one worker: one round at a time, so no two placements take the same room."""
        while True:
            key = await self.queue.get()
            try:
                if self.leader.leading():
                    await self._do(key)
                # Else the replica that leads does it; when this one begins to lead, everything is looked at.
            finally:
                self.queue.done(key)

    async def _do(self, key: str) -> None:
        kind, work = self._round(key)
        begun = self._busy_since = time.monotonic()
        try:
            again = await asyncio.wait_for(work(), RECONCILE_SECONDS)
        except NotLeading as error:
            log.warning("%s: %s", key, error)
            self.metrics.reconciles.labels(kind, "not-leading").inc()
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = min(RETRY_SECONDS * 2 ** min(failures - 1, 10), RETRY_LIMIT_SECONDS)
            known = isinstance(error, ApiError)
            text = f"no end within {RECONCILE_SECONDS:.0f} s" if isinstance(error, TimeoutError) else str(error)
            log.error("%s: %s; again in %.0f s", key, text, wait, exc_info=None if known else error)
            self.metrics.errors.labels(kind).inc()
            self.metrics.reconciles.labels(kind, "error").inc()
            if isinstance(error, ApiError) and error.unanswered:
                # The write may have been carried out: look before trying again.
                with contextlib.suppress(ApiError):
                    for collection in CACHED:
                        await self._list(collection)
            self.queue.add_after(key, wait)
        else:
            self._failures.pop(key, None)
            self.metrics.reconciles.labels(kind, "ok").inc()
            if again is not None:
                self.queue.add_after(key, again)
        finally:
            self._busy_since = None
            self.metrics.duration.labels(kind).observe(time.monotonic() - begun)

    async def _load_key(self) -> None:
        while True:
            try:
                self._master = await master_key(self._kube, self._configuration.namespace)
                return
            except ApiError as error:
                log.warning("cannot get the operator's key, Secret %s/%s: %s", self._configuration.namespace, KEY_SECRET, error)
                await asyncio.sleep(2.0)

    # --- the page ----------------------------------------------------------------------------------------------------

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.metrics.registry), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _healthz(self, _: web.Request) -> web.Response:
        begun = self._busy_since
        if begun is not None and time.monotonic() - begun > STUCK_SECONDS:
            return web.Response(status=500, text=f"the worker has been at one object for more than {STUCK_SECONDS:.0f} s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if not (self._synced.is_set() and self._watching.is_set()):
            return web.Response(status=503, text="the caches are being filled\n")
        return web.Response(text="leading\n" if self.leader.leading() else "standing by\n")

    async def _serve(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes(
            [web.get("/metrics", self._metrics_page), web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._configuration.host, self._configuration.metrics_port).start()
        return runner

    # --- life --------------------------------------------------------------------------------------------------------

    async def _start(self, tasks: list["asyncio.Task[None]"]) -> None:
        await self._first_lists()
        await self._load_key()
        self._synced.set()
        tasks.append(asyncio.create_task(self.leader.run(), name="leader"))
        tasks.append(asyncio.create_task(self._work(), name="worker"))
        tasks.append(asyncio.create_task(self._sweep(), name="sweep"))

    async def run(self) -> None:
        """Until SIGTERM, SIGINT or a fault that a restart must mend."""
        loop = asyncio.get_running_loop()
        ended_ = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended_.set)
        page = await self._serve()
        tasks: list[asyncio.Task[None]] = []
        waiter = asyncio.create_task(_wait(ended_), name="signals")
        try:
            start = asyncio.create_task(self._start(tasks), name="start")
            await asyncio.wait({start, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                return
            await start
            watch = asyncio.create_task(kopf_watch.run(self._kube, self._told, self._stop, self._watching), name="kopf")
            tasks.append(watch)
            ready = asyncio.create_task(_wait(self._watching), name="kopf-ready")
            await asyncio.wait({ready, watch, waiter}, return_when=asyncio.FIRST_COMPLETED)
            # kopf takes the signals for itself when it starts; the order of the end is ours.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, ended_.set)
            done, _ = await asyncio.wait({*tasks, waiter}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiter}:
                error = task.exception() if not task.cancelled() else None
                raise RuntimeError(f"{task.get_name()} ended by itself: {error or 'without an error'}") from error
        finally:
            await self._end(tasks, waiter)
            await page.cleanup()

    async def _end(self, tasks: list["asyncio.Task[None]"], waiter: "asyncio.Task[None]") -> None:
        log.info("stopping")
        watch = [task for task in tasks if task.get_name() == "kopf"]
        others = [task for task in tasks if task not in watch]
        for task in (*others, waiter):
            task.cancel()
        await asyncio.gather(*others, waiter, return_exceptions=True)
        await self.groups.close()
        await self.leader.release()
        self._stop.set()
        if watch:
            await asyncio.wait(watch, timeout=10)
            for task in watch:
                task.cancel()
            await asyncio.gather(*watch, return_exceptions=True)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def run(configuration: Configuration) -> None:
    async with await Kube.connect(configuration.kubeconfig) as kube:
        await Operator(kube, configuration).run()
