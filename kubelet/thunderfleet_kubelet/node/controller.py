"""Registers the Node, renews its Lease, and writes its status when it changes."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from thunderfleet_crds.names import TAINT_MACOS
from thunderfleet_lib.clock import since_boot
from thunderfleet_lib.host.descriptors import Descriptors, descriptors
from thunderfleet_lib.kube import MERGE_PATCH, ApiError, Json, Kube, Reflector, Retries

from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.node.facts import Machine, Readings
from thunderfleet_kubelet.node.status import differs, labels, lease, node, renew_time, stale_labels, status
from thunderfleet_kubelet.pressure import DiskState
from thunderfleet_kubelet.version import kubelet_version

log = logging.getLogger(__name__)

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_STEP = timedelta(milliseconds=1)
REPORT_SECONDS = 86400.0
"""How often an unchanged status is written, for its heartbeat. The Lease is what shows that the Node is alive."""


class NodeController:
    """Keeps the Node in the API server current.

    ``read``: reads the load of the machine. ``kube``: returns the current client; renewed certificates change it.
    ``on_vanished``: called when the Node was deleted, before it is registered again. ``shared_user``: the user of all pods, if
    this kubelet cannot give each pod its own. ``disk``: checks the disk. ``machine_changed``: called with the machine when it
    has another amount of memory for pods. ``images``: the images that the status lists.
    ``components``: whether those of a control plane on this machine work. ``own_descriptors``: counts those of the kubelet.
    ``now``: seconds on a clock that counts sleep.
    """

    def __init__(
        self,
        config: Config,
        machine: Machine,
        read: Callable[[], Awaitable[Readings]],
        kube: Callable[[], Kube],
        on_vanished: Callable[[], Awaitable[None]],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        shared_user: int | None = None,
        disk: Callable[[], DiskState] = DiskState,
        machine_changed: Callable[[Machine], None] = lambda machine: None,
        images: Callable[[], list[Json]] = list,
        components: Callable[[], Mapping[str, bool]] = dict,
        own_descriptors: Callable[[], Descriptors | None] = descriptors,
        now: Callable[[], float] = since_boot,
        *,
        addresses: Sequence[str],
    ) -> None:
        self.config = config
        self.machine = machine
        self.read = read
        self.kube = kube
        self.on_vanished = on_vanished
        self.clock = clock
        self.shared_user = shared_user
        self.disk = disk
        self.machine_changed = machine_changed
        self.images = images
        self.components = components
        self.own_descriptors = own_descriptors
        self._now = now
        self.addresses = tuple(addresses)
        """The Node's addresses. Call ``nudge`` after a change."""
        self.no_address: str | None = None
        """Why ``addresses`` are those that the machine had before; None if it has them."""
        self.problems: dict[str, str] = {}
        """Why the Node is not Ready, as reason to message. Call ``nudge`` after a change."""
        self.registered = asyncio.Event()
        self.reflector = Reflector(
            kube(), NODES, {"fieldSelector": f"metadata.name={config.node_name}"}, on_change=lambda _: self.nudge()
        )
        self._look = asyncio.Event()
        self._renew_now = asyncio.Event()
        self._uid = ""
        self._written: datetime | None = None
        self._renewed: datetime | None = None
        """The newest time of renewal in the Lease; None until it has been read."""
        self._renewed_at: float | None = None
        """When this kubelet has renewed it last, by ``now``."""
        self._lease_period = config.lease_seconds / 4

    def nudge(self) -> None:
        """Checks the machine and the Node now."""
        self._look.set()

    def use(self, kube: Kube) -> None:
        """Watches with new credentials from the next connection on."""
        self.reflector.kube = kube

    @property
    def uid(self) -> str:
        """The Node's uid; empty until it is registered."""
        return self._uid

    @property
    def late_seconds(self) -> float | None:
        """By how many seconds the renewal of the Lease is overdue; None before the first one."""
        if self._renewed_at is None:
            return None
        return max(0.0, self._now() - self._renewed_at - self._lease_period)

    def current(self) -> Json | None:
        """The Node in the API server, as last watched."""
        return self.reflector.items.get(self.config.node_name)

    async def run(self) -> None:
        """Registers the Node, then keeps it current until cancelled."""
        await self._until_registered()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reflector.run())
            tasks.create_task(self._keep_lease())
            tasks.create_task(self._keep_status())

    async def _until_registered(self) -> None:
        retries = Retries()
        while True:
            try:
                await self.register()
                return
            except ApiError as error:
                delay = retries.seconds(error)
                log.warning("cannot register node %s: %s; retrying in %.1f s", self.config.node_name, error, delay)
                await asyncio.sleep(delay)

    async def register(self) -> None:
        """Creates the Node, or updates the existing one. Raises ApiError."""
        name = self.config.node_name
        current = await self.kube().get_or_none(f"{NODES}/{name}")
        wanted = await self._wanted(current or {})
        if current is None:
            current = await self.kube().create(NODES, node(self.config, self.machine, wanted))
        else:
            stale = stale_labels(current["metadata"].get("labels") or {}, labels(self.config, self.machine))
            if stale:
                current = await self.kube().patch(f"{NODES}/{name}", {"metadata": {"labels": stale}})
            if differs(current.get("status") or {}, wanted):
                current = await self._write(current, wanted)
            self._warn_of_taints(current)
        self._uid = str(current["metadata"]["uid"])
        self._written = self.clock()
        self.registered.set()
        self._renew_now.set()
        log.info("node %s registered", name)

    def _warn_of_taints(self, current: Json) -> None:
        have = {str(one.get("key")) for one in (current.get("spec") or {}).get("taints") or []}
        if self.machine.is_mac and TAINT_MACOS not in have:
            log.warning(
                "node %s has no taint %s, and a kubelet cannot add a taint to an existing Node: run "
                "`kubectl taint node %s %s:NoSchedule`",
                self.config.node_name,
                TAINT_MACOS,
                self.config.node_name,
                TAINT_MACOS,
            )

    async def _wanted(self, current: Json) -> Json:
        readings = await self.read()
        if readings.memory_bytes not in (None, self.machine.memory_bytes):
            self.machine = replace(self.machine, memory_bytes=readings.memory_bytes)
            self.machine_changed(self.machine)
        return status(
            self.config,
            self.machine,
            readings,
            previous=current.get("status") or {},
            problems=self.problems,
            now=self.clock(),
            version=kubelet_version(),
            disk=self.disk(),
            images=self.images(),
            components=self.components(),
            descriptors=self.own_descriptors(),
            addresses=self.addresses,
            no_address=self.no_address,
            shared_user=self.shared_user,
        )

    async def _write(self, current: Json, wanted: Json) -> Json:
        # With the resource version, a concurrent write of another condition causes a conflict instead of being lost.
        version = current["metadata"].get("resourceVersion")
        body = {"metadata": {"resourceVersion": version}, "status": wanted}
        answer = await self.kube().patch(f"{NODES}/{self.config.node_name}/status", body, MERGE_PATCH)
        self._written = self.clock()
        return answer

    async def _keep_status(self) -> None:
        await self.reflector.synced.wait()
        while True:
            self._look.clear()
            try:
                await self._status_turn()
            except ApiError as error:
                if error.status != 409:
                    log.warning("cannot write status of node %s: %s", self.config.node_name, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.node_status_seconds):
                    await self._look.wait()

    async def _status_turn(self) -> None:
        current = self.current()
        if current is None:
            await self._vanished()
            return
        self._uid = str(current["metadata"]["uid"])
        wanted = await self._wanted(current)
        # If the clock was set back, the status is written again too.
        silent = self._written is None or not 0 <= (self.clock() - self._written).total_seconds() < REPORT_SECONDS
        if silent or differs(current.get("status") or {}, wanted):
            await self._write(current, wanted)

    async def _vanished(self) -> None:
        # The watch may be behind; check before pods end.
        if await self.kube().get_or_none(f"{NODES}/{self.config.node_name}") is not None:
            return
        log.warning("node %s was deleted; terminating its pods before registering it again", self.config.node_name)
        self.registered.clear()
        await self.on_vanished()
        await self.register()

    async def _keep_lease(self) -> None:
        period = self._lease_period
        while True:
            delay = period
            self._renew_now.clear()
            try:
                await self.renew()
            except ApiError as error:
                delay = min(period, 2.0)
                log.warning("cannot renew the lease of node %s: %s; retrying in %.1f s", self.config.node_name, error, delay)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.95, 1.0)):
                    await self._renew_now.wait()

    async def renew(self) -> None:
        """Renews or creates the Lease. Raises ApiError.

        The controller manager ignores a renewal time before the last one, and would consider a Node dead whose clock
        was set back. So the time never decreases, not even below one that an earlier kubelet wrote.
        """
        if self._renewed is None:
            self._renewed = renew_time(await self.kube().get_or_none(f"{LEASES}/{self.config.node_name}") or {})
        self._renewed = max(self.clock(), self._renewed + LEASE_STEP)
        wanted = lease(self.config, self._uid, self._renewed)
        try:
            body = {"spec": wanted["spec"], "metadata": {"ownerReferences": wanted["metadata"]["ownerReferences"]}}
            # The time limit leaves room for another try before the Lease expires.
            await self.kube().request(
                "PATCH",
                f"{LEASES}/{self.config.node_name}",
                body=body,
                content=MERGE_PATCH,
                seconds=self.config.lease_seconds / 4,
            )
        except ApiError as error:
            if error.status != 404:
                raise
            await self.kube().create(LEASES, wanted)
        self._renewed_at = self._now()
