"""Assembles the kubelet and runs it until it is stopped.

Pods of an earlier kubelet are adopted before the API server is contacted. Stopping the kubelet stops no containers: their shims
keep running, and the next kubelet finds them.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from thunderfleet_lib import logs
from thunderfleet_lib.eventlimit import EventLimit
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_lib.kube import ApiError, Json, Kube, Reflector
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_kubelet.bootstrap.arguments import parse_server
from thunderfleet_kubelet.bootstrap.identity import NodeIdentity
from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.containers.inputs import own_image
from thunderfleet_kubelet.containers.inputs.own_image import OwnImage
from thunderfleet_kubelet.containers.inputs.user import KubeletUser
from thunderfleet_kubelet.credentials import Credentials
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.images.puller import Images
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.node import status as node_status
from thunderfleet_kubelet.node.addresses import MISSING, AddressReader, NodeAddresses, balanced_servers
from thunderfleet_kubelet.node.awake import Awake
from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_kubelet.node.components import ComponentWatch
from thunderfleet_kubelet.node.controller import NodeController
from thunderfleet_kubelet.node.facts import Machine
from thunderfleet_kubelet.node.machine import Reader, here, look
from thunderfleet_kubelet.node.memory import GpuMemory
from thunderfleet_kubelet.node.ports import ThunderboltPorts, Wanted
from thunderfleet_kubelet.node.shutdown import is_shutting_down
from thunderfleet_kubelet.pods.decide.podspec import has_ended
from thunderfleet_kubelet.pods.manager import PodManager
from thunderfleet_kubelet.pods.settings import PodSettings
from thunderfleet_kubelet.serving.auth import Guard
from thunderfleet_kubelet.serving.expiry import ControlPlaneCertificates
from thunderfleet_kubelet.serving.metrics import Metrics
from thunderfleet_kubelet.serving.server import Server, server_context
from thunderfleet_kubelet.timestamps import format_time
from thunderfleet_kubelet.version import kubelet_version, package_version

log = logging.getLogger(__name__)

BIND_RETRY_SECONDS = 5.0
STOP_SECONDS = 10.0
PREFERRED_SECONDS = 30.0
"""How long a kubelet that starts comes before other programs at most: it may have to wait for an address."""
EVENTS = "/api/v1/namespaces/default/events"


def pod_settings(config: Config, machine: Machine, server: str, addresses: Sequence[str], own: OwnImage) -> PodSettings:
    """The settings of pods, from configuration and machine.

    ``addresses``: the Node's. ``own``: the image of this installation.
    """
    api = parse_server(server)
    return PodSettings(
        path=tuple(config.path),
        python_path=tuple(config.python_path),
        images={**own.images, **config.images},
        own=own,
        api_server=(api.host, api.port),
        addresses=tuple(addresses),
        allocatable=node_status.capacity(config, machine)[1],
        labels=node_status.labels(config, machine),
        mac=machine.is_mac,
        log_bytes=to_bytes(config.container_log_max_size),
        log_files=config.container_log_max_files,
        boot=machine.boot_id,
    )


def pull_settings(config: Config) -> PullSettings:
    """The settings of images, from the configuration and this machine."""
    pulls = config.image_pulls
    return PullSettings(
        registries=tuple(pulls.registries),
        plain_http=tuple(pulls.plain_http),
        ca_file=pulls.ca_file,
        max_bytes=pulls.max_bytes,
        high_percent=pulls.high_threshold_percent,
        low_percent=pulls.low_threshold_percent,
        minimum_age=pulls.minimum_age_seconds,
        platforms=(here(),),
    )


def pod_users(config: Config, kubelet: KubeletUser) -> range | None:
    """The users of pods. None if the kubelet cannot switch users; all pods then run as its own user."""
    return config.pod_users.ids if kubelet.may_switch(config.pod_users.ids) else None


class Kubelet:
    """The kubelet of one node. ``root``: the folder of its identity and pods. ``addresses``: has at least one.

    ``ports``: the Thunderbolt ports of a Mac; None on other machines. ``shutting_down``: whether the machine shuts down.
    """

    def __init__(
        self,
        root: Path,
        identity: NodeIdentity,
        config: Config,
        machine: Machine,
        reader: Reader,
        addresses: NodeAddresses,
        awake: Awake,
        ports: ThunderboltPorts | None = None,
        shutting_down: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.shutting_down = shutting_down or _never
        self.awake = awake
        self.root = root
        self.addresses = addresses
        self.identity = identity
        self.config = config
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._event_limit = EventLimit()
        self.credentials = Credentials(
            identity,
            config.certificate_seconds,
            addresses=lambda: self.addresses.current,
            registered=lambda: self.node.registered.wait(),
            client_changed=self._use_client,
            serving_changed=lambda: self.server.use(identity.serving),
            expires=lambda name, when: self.metrics.expires(name, when),
            report=self._report_certificate,
        )
        self.kube = self.credentials.kube
        user = KubeletUser.here()
        users = pod_users(config, user)
        own = own_image.here(package_version(), other_users=users is not None)
        if own.problem and own.name not in config.images:
            log.warning("pods cannot use the programs of this installation: %s", own.problem)
        settings = pod_settings(config, machine, identity.server, self.addresses.current, own)
        self.images = Images(
            root / "images",
            pull_settings(config),
            f"thunderfleet-kubelet/{package_version()}",
            node_event=self._node_event,
            changed=lambda: self.node.nudge(),
        )
        self.pods = PodManager(
            root=root,
            node_name=identity.node_name,
            kube=self.kube,
            settings=settings,
            users=users,
            disk=DiskWatch(root, settings.images.values(), config.thresholds, config.eviction_pressure_transition_seconds),
            disk_changed=lambda: self.node.nudge(),
            node_event=self._node_event,
            node=lambda: self.node.current(),
            images=self.images,
        )
        self.components = ComponentWatch(lambda: self.node.nudge()) if config.control_plane_components else None
        self.node = NodeController(
            config,
            machine,
            reader.read,
            self.kube,
            self._node_vanished,
            addresses=self.addresses.current,
            shared_user=user.uid if users is None else None,
            disk=self.pods.evictor.look,
            machine_changed=self._machine_changed,
            images=self.images.listing,
            components=self.components.works if self.components else dict,
        )
        folder = config.control_plane_certificates
        plane = ControlPlaneCertificates(folder).read if folder is not None else None
        self.metrics = Metrics(
            identity.node_name,
            kubelet_version(),
            self.credentials.api_counts,
            plane,
            self.node.components,
            lambda: self.node.late_seconds,
        )
        self.server = Server(
            self.pods.queries,
            Guard(identity.node_name, self.kube),
            self.metrics,
            server_context(identity.ca),
            self.addresses.current[0],
            config.port,
        )
        self._move_server = asyncio.Event()
        self._pods_changed = asyncio.Event()
        self._ended: set[str] = set()
        """The uids of pods that ended because their Node was deleted, as long as the API server lists them."""
        self.reflector = Reflector(
            self.kube(),
            "/api/v1/pods",
            {"fieldSelector": f"spec.nodeName={identity.node_name}"},
            on_change=lambda _: self._pods_changed.set(),
        )
        self._last_certificate_error: str | None = None
        self.ports = ports
        if ports is not None:
            ports.attach(self.kube, self._report_ports)

    def _report_ports(self, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        self._background(self._event(reason, message, kind))

    async def run(self, stop: asyncio.Event, adopted: Callable[[], None] = lambda: None) -> None:
        """Runs until ``stop`` is set. Containers keep running. Calls ``adopted`` before any container starts."""
        await self.pods.start()
        adopted()
        # Until the API server has listed the pods, pods of an earlier kubelet may be running.
        self.awake.want(True)
        stopped = asyncio.ensure_future(stop.wait())
        work = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait([stopped, work], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif self.config.shutdown_grace_period_seconds:
                await self._shut_down()
        finally:
            log.info("stopping; running containers continue to run")
            for task in (stopped, work):
                task.cancel()
            await asyncio.gather(stopped, work, return_exceptions=True)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._close()
            except TimeoutError:
                log.warning("shutdown did not finish within %g s", STOP_SECONDS)

    async def _shut_down(self) -> None:
        """Ends the pods if the machine shuts down. The kubelet keeps working until they have ended."""
        if not await self.shutting_down():
            return
        seconds = self.config.shutdown_grace_period_seconds
        log.warning("the machine is shutting down; stopping all pods within %d s", seconds)
        # The first problem is the reason.
        self.node.problems = {"NodeShutdown": "node is shutting down", **self.node.problems}
        self.node.nudge()
        await self.pods.shut_down(seconds, self.config.shutdown_grace_period_critical_pods_seconds)

    async def _close(self) -> None:
        await self.server.stop()
        await self.pods.stop(end_pods=False)
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        await self.credentials.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.node.run())
            tasks.create_task(self.reflector.run())
            tasks.create_task(self._sync())
            tasks.create_task(self._serve())
            tasks.create_task(self.credentials.run())
            tasks.create_task(self.awake.run())
            tasks.create_task(self.addresses.follow(self._addresses_changed))
            if self.components is not None:
                tasks.create_task(self.components.run())
            if self.ports is not None:
                tasks.create_task(self.ports.run())

    def _addresses_changed(self) -> None:
        """Uses the new addresses in the Node, the pods, the server and its certificate."""
        before, now = self.node.addresses, self.addresses.current
        self.node.addresses, self.node.no_address = now, MISSING if self.addresses.missing else None
        self.node.nudge()
        if now == before:
            return
        self._background(self.kube().reconnect())
        self.pods.settings = replace(self.pods.settings, addresses=now)
        self.credentials.serving.renew_now()
        self._move_server.set()
        text = f"the address changed from {', '.join(before)} to {', '.join(now)}"
        self._background(self._event("NodeAddressChanged", text, "Normal"))

    def _machine_changed(self, machine: Machine) -> None:
        self.pods.settings = replace(self.pods.settings, allocatable=node_status.capacity(self.config, machine)[1])

    async def _sync(self) -> None:
        await self.reflector.synced.wait()
        while True:
            self._pods_changed.clear()
            wanted = self._wanted_pods()
            self.pods.sync(wanted)
            self.awake.want(any(not has_ended(pod) for pod in wanted.values()))
            await self._pods_changed.wait()

    def _wanted_pods(self) -> dict[str, Json]:
        listed = {key: pod for key, pod in self.reflector.items.items() if pod["metadata"]["uid"] not in self._ended}
        self._ended &= {str(pod["metadata"]["uid"]) for pod in self.reflector.items.values()}
        return listed

    async def _node_vanished(self) -> None:
        self.metrics.registered.set(0)
        orphans = dict(self.reflector.items)
        # The new Node has the same name, so these pods would start again on it.
        self._ended |= {str(pod["metadata"]["uid"]) for pod in orphans.values()}
        await self.pods.end_all_pods()
        for key, pod in orphans.items():
            namespace, name = key.split("/")
            uid = str(pod["metadata"]["uid"])
            try:
                await self.kube().delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0, uid=uid)
            except ApiError as error:
                log.warning("cannot delete pod %s of the deleted Node, so it will start again: %s", key, error)
                self._ended.discard(uid)
        self._pods_changed.set()

    async def _serve(self) -> None:
        await self.credentials.can_serve.wait()
        while True:
            self._move_server.clear()
            await self._listen()
            await self.node.registered.wait()
            self.metrics.registered.set(1)
            await self._move_server.wait()
            # Open connections use an address that this machine no longer has.
            await self.server.stop()

    async def _listen(self) -> None:
        while True:
            self.server.address = self.addresses.current[0]
            try:
                await self.server.start()
                break
            except OSError as error:
                message = f"cannot listen on {self.server.address}:{self.config.port}: {error.strerror or error}"
                log.warning("%s; retrying in %g s", message, BIND_RETRY_SECONDS)
                self.node.problems["ServerNotListening"] = message
                self.node.nudge()
                await asyncio.sleep(BIND_RETRY_SECONDS)
        if self.node.problems.pop("ServerNotListening", None):
            self.node.nudge()

    def _use_client(self, kube: Kube) -> None:
        self.reflector.kube = kube
        self.node.use(kube)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _report_certificate(self, error: str | None) -> None:
        if error is not None and error != self._last_certificate_error and self.node.registered.is_set():
            self._node_event("CertificateNotRenewed", error)
        self._last_certificate_error = error

    def _node_event(self, reason: str, message: str) -> None:
        self._background(self._event(reason, message))

    async def _event(self, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Warning") -> None:
        name, now = self.identity.node_name, datetime.now(UTC)
        if not self._event_limit.take(name, time.monotonic()):
            return
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": "default"},
            # Kubelets use the Node's name as uid in its events, and kubectl looks for that.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name},
            "reason": reason,
            "message": message[:1024],
            "type": kind,
            "source": {"component": "thunderfleet-kubelet", "host": name},
            "firstTimestamp": format_time(now.timestamp()),
            "lastTimestamp": format_time(now.timestamp()),
            "count": 1,
        }
        with suppress(ApiError):
            await self.kube().create(EVENTS, event)


async def _never() -> bool:
    return False


async def run(root: Path, identity: NodeIdentity, config: Config, adopted: Callable[[], None]) -> None:
    """Runs the kubelet until SIGTERM or SIGINT. Raises JoinError and CertificateError.

    ``adopted``: called before any container starts, once the pods of an earlier kubelet are known, and maybe again.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.call_later(PREFERRED_SECONDS, adopted)
    commands = Commands(config.path, python_path=config.python_path)
    gpu = GpuMemory(commands, root=root)
    machine = await look(commands, root, config.operating_system, gpu)
    logs.always(node=config.node_name)
    log.info(
        "%s: %s, %s, %d CPUs, %d MiB for pods",
        config.node_name,
        machine.os_image,
        machine.chip or machine.architecture,
        machine.cpus,
        machine.memory_bytes // 1024**2,
    )
    read = AddressReader(commands, _servers(identity, config), mac=machine.is_mac).read
    addresses = NodeAddresses(config.addresses, read)
    ports = _thunderbolt_ports(root, identity, config, addresses, commands.blocking()) if machine.is_mac else None
    if await _before(stop, _until_address(addresses, ports)):
        awake = Awake(commands.find("caffeinate") if machine.is_mac else None)
        reader = Reader(commands, machine.is_mac, gpu)

        async def shutting_down() -> bool:
            return await is_shutting_down(commands, machine.is_mac)

        await Kubelet(root, identity, config, machine, reader, addresses, awake, ports, shutting_down).run(stop, adopted)


async def _until_address(addresses: NodeAddresses, ports: ThunderboltPorts | None) -> None:
    """Waits until the machine has an address. On a Mac, it may belong to a Thunderbolt port outside of its bridge."""
    if await addresses.look() or ports is None:
        return await addresses.wait()
    found = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ports.run(found))
        await addresses.wait()
        found.set()


def _thunderbolt_ports(
    root: Path, identity: NodeIdentity, config: Config, addresses: NodeAddresses, host: BlockingHost
) -> ThunderboltPorts:
    known, url = _servers(identity, config), parse_server(identity.server).host

    def server() -> str:
        servers = known()
        # An API server on this machine has no interface that leads to other machines.
        others = [one for one in servers if one not in addresses.current]
        return next(iter((*others, *servers)), url)

    wanted = Wanted(config.node_name, server, config.thunderbolt_ports == "Managed", config.cable_network)
    return ThunderboltPorts(wanted, host, root, time.monotonic)


def _servers(identity: NodeIdentity, config: Config) -> Callable[[], Sequence[str]]:
    """The hosts of the API servers that are known at the time of the call."""
    host, file = parse_server(identity.server).host, config.api_servers_file
    return lambda: (host,) if file is None else balanced_servers(file)


async def _before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether ``work`` ended before ``stop`` was set."""
    stopped, working = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(work)
    await asyncio.wait((stopped, working), return_when=asyncio.FIRST_COMPLETED)
    done = working.done()
    for task in (stopped, working):
        task.cancel()
    await asyncio.gather(stopped, working, return_exceptions=True)
    if done:
        working.result()
    return done
