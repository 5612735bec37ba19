"""Puts the kubelet's parts together and keeps them running until it is told to stop.

Nothing here waits for the API server before looking after what already runs: pods of an earlier kubelet are taken over first.
And stopping the kubelet stops nothing else: their shims go on, and the next kubelet finds them.
"""

import asyncio
import fcntl
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from thunderfleet_lib.kube import ApiError, Json, Kube, Reflector

from thunderfleet_kubelet.bootstrap.certificates import (
    CLIENT_SIGNER,
    SERVING_SIGNER,
    CertificateError,
    Pair,
    Renewer,
    obtain,
    read_pair,
    usable,
)
from thunderfleet_kubelet.bootstrap.join import Identity, JoinError, parse_server
from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.node import status as node_status
from thunderfleet_kubelet.node.controller import NodeController
from thunderfleet_kubelet.node.facts import Machine
from thunderfleet_kubelet.node.machine import Asker, Reader, look
from thunderfleet_kubelet.pods.manager import PodManager
from thunderfleet_kubelet.pods.settings import PodSettings
from thunderfleet_kubelet.serving.auth import Guard
from thunderfleet_kubelet.serving.metrics import Metrics
from thunderfleet_kubelet.serving.server import Server, server_context
from thunderfleet_kubelet.timestamps import format_time
from thunderfleet_kubelet.version import kubelet_version

log = logging.getLogger(__name__)

CLIENT_WAIT_SECONDS = 300.0
# An operator or a person approves these; a request that nobody looked at for so long is made anew (addresses may have changed).
SERVING_WAIT_SECONDS = 900.0
# A watch with the old credentials may still run for this long.
RETIRE_SECONDS = 330.0
BIND_RETRY_SECONDS = 5.0
STOP_SECONDS = 10.0
EVENTS = "/api/v1/namespaces/default/events"


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Holds ``root`` for this process; raises JoinError when another kubelet has it."""
    root.mkdir(parents=True, exist_ok=True)
    stream: IO[str]
    with (root / "kubelet.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JoinError(f"{root}: another kubelet runs with this --root; stop it first, or give another folder") from None
        yield


def pod_settings(config: Config, machine: Machine, server: str, *, uid: int) -> PodSettings:
    """What the pods' half needs to know of settings and machine. ``uid`` is the kubelet's own."""
    api = parse_server(server)
    user = config.default_user
    if uid != 0 and "default_user" not in config.model_fields_set:
        # Only root can start processes as somebody else; whoever is not root has no privilege to give away.
        user = None
    return PodSettings(
        path=tuple(config.path),
        python_path=tuple(config.python_path),
        images=dict(config.images),
        default_user=(user.uid, user.gid) if user else None,
        api_server=(api.host, api.port),
        addresses=tuple(config.addresses),
        allocatable=node_status.capacity(config, machine)[1],
        labels=node_status.labels(config, machine),
        mac=machine.is_mac,
    )


class Kubelet:
    """One node's kubelet. ``run`` it; everything it holds is in ``root``."""

    def __init__(self, root: Path, identity: Identity, config: Config, machine: Machine, reader: Reader) -> None:
        self.root = root
        self.identity = identity
        self.config = config
        client = read_pair(identity.client)
        if client is None:
            raise JoinError(f"{identity.client} is missing: join again")
        self._kube = identity.kube()
        self._retired: list[Kube] = []
        self._closing: set[asyncio.Task[None]] = set()
        self.node = NodeController(config, machine, reader.read, self.kube, self._node_vanished)
        self.pods = PodManager(
            root=root,
            node_name=identity.node_name,
            kube=self.kube,
            settings=pod_settings(config, machine, identity.server, uid=os.geteuid()),
        )
        self.metrics = Metrics(identity.node_name, kubelet_version(), self._api_counts)
        self.server = Server(
            self.pods.queries,
            Guard(identity.node_name, self.kube),
            self.metrics,
            server_context(identity.ca),
            config.addresses[0],
            config.port,
        )
        self._pods_changed = asyncio.Event()
        self._ended: set[str] = set()
        """uids of pods that ended with a Node that vanished, while the API server still lists them."""
        self.reflector = Reflector(
            self._kube,
            "/api/v1/pods",
            {"fieldSelector": f"spec.nodeName={identity.node_name}"},
            on_change=lambda _: self._pods_changed.set(),
        )
        self.metrics.expires("client", client.leaf.not_valid_after_utc.timestamp())
        self._client = Renewer("client", identity.client, self._ask_client, self._put_client, self._trouble, client)
        serving = read_pair(identity.serving)
        if serving is not None and not usable(serving, identity.node_name, datetime.now(UTC), config.addresses):
            serving = None
        self._has_certificate = asyncio.Event()
        if serving is not None:
            self._use_serving(serving)
        self._serving = Renewer("serving", identity.serving, self._ask_serving, self._put_serving, self._trouble, serving)
        self._last_trouble: str | None = None

    def kube(self) -> Kube:
        """The connection with the credentials of now."""
        return self._kube

    def _api_counts(self) -> tuple[int, int]:
        all_of_them = [*self._retired, self._kube]
        return sum(one.requests for one in all_of_them), sum(one.writes for one in all_of_them)

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until ``stop`` is set. Containers go on after that."""
        await self.pods.start()
        stopped = asyncio.ensure_future(stop.wait())
        work = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait([stopped, work], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            log.info("stopping; containers go on")
            for task in (stopped, work):
                task.cancel()
            await asyncio.gather(stopped, work, return_exceptions=True)
            try:
                await asyncio.wait_for(self._close(), STOP_SECONDS)
            except TimeoutError:
                log.warning("the end took longer than %g s", STOP_SECONDS)

    async def _close(self) -> None:
        await self.server.stop()
        await self.pods.stop(end_pods=False)
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._kube.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.node.run())
            tasks.create_task(self.reflector.run())
            tasks.create_task(self._sync())
            tasks.create_task(self._serve())
            tasks.create_task(self._client.run())
            tasks.create_task(self._serving.run())

    async def _sync(self) -> None:
        await self.reflector.synced.wait()
        while True:
            self._pods_changed.clear()
            self.pods.sync(self._wanted_pods())
            await self._pods_changed.wait()

    def _wanted_pods(self) -> dict[str, Json]:
        listed = {key: pod for key, pod in self.reflector.items.items() if pod["metadata"]["uid"] not in self._ended}
        self._ended &= {str(pod["metadata"]["uid"]) for pod in self.reflector.items.values()}
        return listed

    async def _node_vanished(self) -> None:
        self.metrics.registered.set(0)
        orphans = dict(self.reflector.items)
        # Their objects would be bound to the Node that comes, and start there once more as if nothing had been.
        self._ended |= {str(pod["metadata"]["uid"]) for pod in orphans.values()}
        await self.pods.end_all_pods()
        for key, pod in orphans.items():
            namespace, name = key.split("/")
            uid = str(pod["metadata"]["uid"])
            try:
                await self.kube().delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0, uid=uid)
            except ApiError as error:
                log.warning("pod %s of the Node that vanished is not deleted, it will run anew: %s", key, error)
                self._ended.discard(uid)
        self._pods_changed.set()

    async def _serve(self) -> None:
        await self._has_certificate.wait()
        while True:
            try:
                await self.server.start()
                break
            except OSError as error:
                said = f"cannot listen on {self.config.addresses[0]}:{self.config.port}: {error.strerror or error}"
                log.warning("%s; again in %g s", said, BIND_RETRY_SECONDS)
                self.node.problems["ServerNotListening"] = said
                self.node.nudge()
                await asyncio.sleep(BIND_RETRY_SECONDS)
        if self.node.problems.pop("ServerNotListening", None):
            self.node.nudge()
        await self.node.registered.wait()
        self.metrics.registered.set(1)

    async def _ask_client(self) -> Pair:
        try:
            return await obtain(
                self.kube(),
                self.identity.node_name,
                CLIENT_SIGNER,
                self.config.certificate_seconds,
                limit=CLIENT_WAIT_SECONDS,
            )
        except ApiError as error:
            if error.status == 401:
                # A Mac that slept past the end of its certificate cannot renew it: only a token brings it back.
                raise CertificateError(
                    "the API server knows this node no more (its certificate ran out, or the cluster is another one): stop the "
                    "kubelet and join again with the line that `thunderfleet token` prints; containers go on meanwhile"
                ) from None
            raise

    async def _put_client(self, pair: Pair) -> None:
        old, self._kube = self._kube, self.identity.kube()
        self._retired.append(old)
        self.reflector.kube = self._kube
        self.node.use(self._kube)
        self.metrics.expires("client", pair.leaf.not_valid_after_utc.timestamp())
        task = asyncio.create_task(_close_later(old))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _ask_serving(self) -> Pair:
        # An approver compares with the addresses that the Node publishes: they must stand there first.
        await self.node.registered.wait()
        return await obtain(
            self.kube(),
            self.identity.node_name,
            SERVING_SIGNER,
            self.config.certificate_seconds,
            addresses=self.config.addresses,
            limit=SERVING_WAIT_SECONDS,
        )

    async def _put_serving(self, pair: Pair) -> None:
        self._use_serving(pair)

    def _use_serving(self, pair: Pair) -> None:
        self.server.use(self.identity.serving)
        self.metrics.expires("serving", pair.leaf.not_valid_after_utc.timestamp())
        self._has_certificate.set()

    def _trouble(self, sentence: str | None) -> None:
        if sentence is not None and sentence != self._last_trouble and self.node.registered.is_set():
            task = asyncio.create_task(self._event("CertificateNotRenewed", sentence))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._last_trouble = sentence

    async def _event(self, reason: str, message: str) -> None:
        name, now = self.identity.node_name, datetime.now(UTC)
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": "default"},
            # For a Node's events kubectl looks for the name as uid, as kubelets write it.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name},
            "reason": reason,
            "message": message[:1024],
            "type": "Warning",
            "source": {"component": "thunderfleet-kubelet", "host": name},
            "firstTimestamp": format_time(now.timestamp()),
            "lastTimestamp": format_time(now.timestamp()),
            "count": 1,
        }
        with suppress(ApiError):
            await self.kube().create(EVENTS, event)


async def _close_later(kube: Kube) -> None:
    try:
        await asyncio.sleep(RETIRE_SECONDS)
    finally:
        await kube.close()


async def run(root: Path, identity: Identity, config: Config) -> None:
    """Looks at the machine and runs the kubelet until SIGTERM or SIGINT. Raises JoinError and CertificateError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    asker = Asker(config.path)
    machine = await look(asker, root)
    log.info(
        "%s: %s, %s, %d CPUs, %d MiB for pods",
        config.node_name,
        machine.os_image,
        machine.chip or machine.architecture,
        machine.cpus,
        machine.memory_bytes // 1024**2,
    )
    await Kubelet(root, identity, config, machine, Reader(asker, root, machine.is_mac)).run(stop)
