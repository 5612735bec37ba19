"""The Node object: what the machine's facts and settings make of it, and how it is kept true.

The upper half is pure: facts in, the whole Node out, and whether it differs from the one that stands. The lower half
registers, renews the Lease, and writes the status when it changed or when it has been silent for too long.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from thunderfleet_crds.names import LABEL_CHIP, TAINT_MACOS
from thunderfleet_lib.kube import MERGE_PATCH, ApiError, Json, Kube, Reflector

from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.node.machine import Machine, Readings

log = logging.getLogger(__name__)

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# Kubernetes reads the leading part as the kubelet's version: what this one's API behaviour is modelled on.
KUBERNETES_VERSION = "v1.36.3"
# The API server hands `kubectl exec` over as a WebSocket only to nodes that declare this.
DECLARED_FEATURES = ("ExtendWebSocketsToKubelet",)
# Written at least so often, so that a reader sees a heartbeat that is not years old. That the node lives is what its Lease
# says, to the node controller too: a large fleet that has nothing new to say writes nothing else.
REPORT_SECONDS = 86400.0
GIB = 1024**3
# A tenth of a large Mac's disk is more than some Macs have: short is a tenth or 10 GiB, whichever is less.
DISK_FLOOR_BYTES = 10 * GIB
PROCESS_PART = 0.9

Clock = Callable[[], datetime]


def version() -> str:
    """``v1.36.3-thunderfleet.0.1.0``: semantic, sorts beside Kubernetes' own, and says what it really is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("thunderfleet")
    except PackageNotFoundError:
        own = "0.0.0"
    return f"{KUBERNETES_VERSION}-thunderfleet.{own}"


def timestamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def labels(config: Config, machine: Machine) -> dict[str, str]:
    """The Node's labels; the settings' own come first, so that they cannot hide what the machine is."""
    own = {
        **config.labels,
        "kubernetes.io/os": machine.operating_system,
        "kubernetes.io/arch": machine.architecture,
        "kubernetes.io/hostname": config.node_name[:63],
    }
    if machine.chip:
        own[LABEL_CHIP] = label_value(machine.chip)
    return own


def label_value(text: str) -> str:
    """``Apple M3 Ultra`` as a label can hold it: ``Apple-M3-Ultra``."""
    return re.sub(r"[^-_.A-Za-z0-9]", "-", text)[:63].strip("-_.")


def taints(machine: Machine) -> list[Json]:
    """A pod that does not ask for a Mac cannot run on one."""
    return [{"key": TAINT_MACOS, "effect": "NoSchedule"}] if machine.is_mac else []


def _condition(kind: str, bad: bool | None, reasons: tuple[str, str], messages: tuple[str, str]) -> Json:
    if bad is None:
        return {"type": kind, "status": "Unknown", "reason": "NotMeasured", "message": messages[0]}
    return {"type": kind, "status": str(bad), "reason": reasons[bad], "message": messages[bad]}


def findings(readings: Readings, problems: Mapping[str, str]) -> list[Json]:
    """The four conditions without times. ``problems`` (reason to sentence) are why the kubelet itself is not ready."""
    free, total = readings.disk_free_bytes, readings.disk_total_bytes
    disk: bool | None = None
    disk_text = "free space cannot be read"
    if free is not None and total:
        floor = min(total // 10, DISK_FLOOR_BYTES)
        disk = free < floor
        disk_text = f"{'less than' if disk else 'at least'} {floor / GIB:.1f} GiB are free where pods' files lie"
    processes: bool | None = None
    process_text = "the number of processes cannot be read"
    if readings.processes is not None and readings.processes_limit:
        processes = readings.processes > PROCESS_PART * readings.processes_limit
        process_text = (
            f"{'more' if processes else 'fewer'} than {PROCESS_PART:.0%} of {readings.processes_limit} possible processes run"
        )
    if problems:
        ready = {
            "type": "Ready",
            "status": "False",
            "reason": next(iter(problems)),
            "message": "; ".join(problems.values()),
        }
    else:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the kubelet takes pods"}
    return [
        _condition(
            "MemoryPressure",
            readings.memory_short,
            ("KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"),
            (readings.memory_text, readings.memory_text),
        ),
        _condition("DiskPressure", disk, ("KubeletHasNoDiskPressure", "KubeletHasDiskPressure"), (disk_text, disk_text)),
        _condition(
            "PIDPressure",
            processes,
            ("KubeletHasSufficientPID", "KubeletHasInsufficientPID"),
            (process_text, process_text),
        ),
        ready,
    ]


def conditions(found: list[Json], previous: list[Json], now: datetime) -> list[Json]:
    """``found`` with times: a transition is a change of status. Conditions that others keep on the Node stay as they are."""
    before = {str(one.get("type")): one for one in previous}
    ours = []
    for one in found:
        old = before.pop(one["type"], None)
        same = old is not None and old.get("status") == one["status"]
        since = old.get("lastTransitionTime") if same and old else None
        ours.append({**one, "lastHeartbeatTime": timestamp(now), "lastTransitionTime": since or timestamp(now)})
    return [*before.values(), *ours]


def binary(size: int) -> str:
    """Bytes as the API server writes them (the largest unit that needs no fraction, whole KiB at least): what is written in
    any other way comes back changed, and would look like a change for ever.
    """
    units = ["Ki", "Mi", "Gi", "Ti", "Pi"]
    size //= 1024
    while size and size % 1024 == 0 and len(units) > 1:
        size //= 1024
        del units[0]
    return f"{size}{units[0]}" if size else "0"


def capacity(config: Config, machine: Machine) -> tuple[dict[str, str], dict[str, str]]:
    """(capacity, allocatable) as quantities."""

    def quantities(millis: int, memory: int, disk: int) -> dict[str, str]:
        cpu = str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
        return {
            "cpu": cpu,
            "memory": binary(memory),
            "ephemeral-storage": binary(disk),
            "pods": str(config.max_pods),
        }

    whole = machine.cpus * 1000
    return (
        quantities(whole, machine.memory_bytes, machine.disk_bytes),
        quantities(
            max(0, whole - config.reserved_cpu_millis),
            max(0, machine.memory_bytes - config.reserved_memory_bytes),
            machine.disk_bytes,
        ),
    )


def status(
    config: Config,
    machine: Machine,
    readings: Readings,
    *,
    previous: Json,
    problems: Mapping[str, str],
    now: datetime,
) -> Json:
    """The whole ``status`` that we answer for; ``previous`` is the one that stands (``{}`` for none)."""
    total, free = capacity(config, machine)
    return {
        "capacity": total,
        "allocatable": free,
        "addresses": [{"type": "InternalIP", "address": address} for address in config.addresses],
        "conditions": conditions(findings(readings, problems), previous.get("conditions") or [], now),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": config.port}},
        "declaredFeatures": list(DECLARED_FEATURES),
        "nodeInfo": {
            "architecture": machine.architecture,
            "operatingSystem": machine.operating_system,
            "bootID": machine.boot_id,
            "machineID": machine.machine_id,
            "systemUUID": machine.machine_id,
            "kernelVersion": machine.kernel_version,
            "osImage": machine.os_image,
            # A container is a process group that its shim owns; no container engine is there to be named.
            "containerRuntimeVersion": f"process://{version().partition('thunderfleet.')[2]}",
            "kubeletVersion": version(),
            "kubeProxyVersion": "",
        },
    }


def _without_heartbeat(value: Json) -> Json:
    listed = [{k: v for k, v in one.items() if k != "lastHeartbeatTime"} for one in value.get("conditions") or []]
    return {**value, "conditions": sorted(listed, key=lambda one: str(one.get("type")))}


def differs(standing: Json, wanted: Json) -> bool:
    """True when ``wanted`` says something that the ``standing`` status does not; heartbeats say nothing."""
    old, new = _without_heartbeat(standing), _without_heartbeat(wanted)
    # nodeInfo of a newer API server may hold fields that we do not know.
    return any(not _covers(old.get(key), value) for key, value in new.items())


def _covers(old: object, new: object) -> bool:
    if isinstance(new, dict):
        # The API server leaves empty strings out.
        return isinstance(old, dict) and all(_covers(old.get(key), value) for key, value in new.items())
    return old == new or (old is None and new in ("", [], {}))


def node(config: Config, machine: Machine, state: Json) -> Json:
    """The Node as it is first registered."""
    spec: Json = {"taints": taints(machine)} if machine.is_mac else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.node_name, "labels": labels(config, machine)},
        "spec": spec,
        "status": state,
    }


def stale_labels(standing: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Labels to set on a Node that stands already; labels that others put there are left alone."""
    return {key: value for key, value in wanted.items() if standing.get(key) != value}


def lease(config: Config, uid: str, now: datetime) -> Json:
    """The Node's Lease; it goes when the Node goes."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": config.node_name,
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": config.node_name, "uid": uid}],
        },
        "spec": {
            "holderIdentity": config.node_name,
            "leaseDurationSeconds": config.lease_seconds,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


class NodeKeeper:
    """Keeps our Node and its Lease. ``kube`` is called for every request, since the credentials change under way."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        read: Callable[[], Awaitable[Readings]],
        kube: Callable[[], Kube],
        on_vanished: Callable[[], Awaitable[None]],
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.config = config
        self.machine = machine
        self.read = read
        self.kube = kube
        self.on_vanished = on_vanished
        self.clock = clock
        self.problems: dict[str, str] = {}
        """Reason to sentence: why the Node is not Ready. Others add and remove; call ``nudge`` after."""
        self.registered = asyncio.Event()
        self.reflector = Reflector(
            kube(), NODES, {"fieldSelector": f"metadata.name={config.node_name}"}, on_change=lambda _: self.nudge()
        )
        self._look = asyncio.Event()
        self._renew_now = asyncio.Event()
        self._uid = ""
        self._written: datetime | None = None

    def nudge(self) -> None:
        """Look at the machine and the Node now, not at the next turn."""
        self._look.set()

    def use(self, kube: Kube) -> None:
        """Watch with new credentials from the next connection on."""
        self.reflector.kube = kube

    @property
    def uid(self) -> str:
        """The Node's uid once registered, for owner references and Events."""
        return self._uid

    def standing(self) -> Json | None:
        """The Node as last seen."""
        return self.reflector.items.get(self.config.node_name)

    async def run(self) -> None:
        """Registers, then keeps the Node true until cancelled."""
        await self._until_registered()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reflector.run())
            tasks.create_task(self._keep_lease())
            tasks.create_task(self._keep_status())

    async def _until_registered(self) -> None:
        delay = 0.5
        while True:
            try:
                await self.register()
                return
            except ApiError as error:
                log.warning("node %s cannot register: %s; again in %.1f s", self.config.node_name, error, delay)
                await asyncio.sleep(delay * random.uniform(0.7, 1.0))
                delay = min(delay * 2, 10.0)

    async def register(self) -> None:
        """Makes the Node, or takes over the one that stands. Raises ApiError."""
        name = self.config.node_name
        standing = await self.kube().get_or_none(f"{NODES}/{name}")
        wanted = await self._wanted(standing or {})
        if standing is None:
            standing = await self.kube().create(NODES, node(self.config, self.machine, wanted))
        else:
            stale = stale_labels(standing["metadata"].get("labels") or {}, labels(self.config, self.machine))
            if stale:
                standing = await self.kube().patch(f"{NODES}/{name}", {"metadata": {"labels": stale}})
            if differs(standing.get("status") or {}, wanted):
                standing = await self._write(standing, wanted)
            self._warn_of_taints(standing)
        self._uid = str(standing["metadata"]["uid"])
        self._written = self.clock()
        self.registered.set()
        self._renew_now.set()
        log.info("node %s registered", name)

    def _warn_of_taints(self, standing: Json) -> None:
        have = {str(one.get("key")) for one in (standing.get("spec") or {}).get("taints") or []}
        if self.machine.is_mac and TAINT_MACOS not in have:
            log.warning(
                "node %s stands without the taint %s, and a node may not add taints of its own: delete the Node, it comes back "
                "with the taint",
                self.config.node_name,
                TAINT_MACOS,
            )

    async def _wanted(self, standing: Json) -> Json:
        readings = await self.read()
        return status(
            self.config,
            self.machine,
            readings,
            previous=standing.get("status") or {},
            problems=self.problems,
            now=self.clock(),
        )

    async def _write(self, standing: Json, wanted: Json) -> Json:
        # The resource version makes a condition that somebody else adds at this moment survive: we are told to look again.
        version = standing["metadata"].get("resourceVersion")
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
                    log.warning("status of node %s: %s", self.config.node_name, error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self.config.node_status_seconds)

    async def _status_turn(self) -> None:
        standing = self.standing()
        if standing is None:
            await self._vanished()
            return
        self._uid = str(standing["metadata"]["uid"])
        wanted = await self._wanted(standing)
        silent = self._written is None or (self.clock() - self._written).total_seconds() >= REPORT_SECONDS
        if silent or differs(standing.get("status") or {}, wanted):
            await self._write(standing, wanted)

    async def _vanished(self) -> None:
        # The cache is behind only if the watch is; ask before ending anybody's work.
        if await self.kube().get_or_none(f"{NODES}/{self.config.node_name}") is not None:
            return
        log.warning("node %s was deleted: its pods end, then it registers anew", self.config.node_name)
        self.registered.clear()
        await self.on_vanished()
        await self.register()

    async def _keep_lease(self) -> None:
        period = self.config.lease_seconds / 4
        while True:
            delay = period
            self._renew_now.clear()
            try:
                await self.renew()
            except ApiError as error:
                delay = min(period, 2.0)
                log.warning("lease of node %s: %s; again in %.1f s", self.config.node_name, error, delay)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._renew_now.wait(), delay * random.uniform(0.95, 1.0))

    async def renew(self) -> None:
        """Renews the Lease, making it when there is none. Raises ApiError."""
        wanted = lease(self.config, self._uid, self.clock())
        try:
            body = {"spec": wanted["spec"], "metadata": {"ownerReferences": wanted["metadata"]["ownerReferences"]}}
            # A request that hangs must be given up early enough for another try within the Lease's time.
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
