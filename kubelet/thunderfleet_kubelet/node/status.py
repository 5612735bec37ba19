"""The Node object: labels, taints, capacity, conditions and Lease, from the configuration and the machine. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from thunderfleet_crds.names import CONDITION_CONTROL_PLANE as CONTROL_PLANE
from thunderfleet_crds.names import CONDITION_DESCRIPTORS, LABEL_CHIP, RESOURCE_GPU_MEMORY, RUNTIME_GPU_MEMORY, TAINT_MACOS
from thunderfleet_lib.host.descriptors import Descriptors

from thunderfleet_kubelet import pressure
from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.node.facts import Machine, Readings
from thunderfleet_kubelet.pressure import DiskState
from thunderfleet_kubelet.timestamps import format_time

Json = dict[str, Any]

DECLARED_FEATURES = ("ExtendWebSocketsToKubelet",)
"""The API server sends ``kubectl exec`` as a WebSocket only to nodes that declare this feature."""

NO_ADDRESS, HAS_ADDRESS = "NoAddress", "HasAddress"
"""Reasons of NetworkUnavailable."""

PODS_SHARE_USER = "PodsShareUser"
"""The condition of a Node whose pods are not isolated by users. Only this kubelet has it; Kubernetes has no such condition."""

FEW_DESCRIPTORS, ENOUGH_DESCRIPTORS = 16, 32
"""With fewer free descriptors than the first, a kubelet can hardly start a pod or serve a log. The second ends the
condition."""

PROCESS_PART = 0.9
"""PIDPressure: more than this fraction of the possible processes run."""


def labels(config: Config, machine: Machine) -> dict[str, str]:
    """The Node's labels. Those of the configuration cannot override those of the machine."""
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
    """The text as a valid label value: ``Apple M3 Ultra`` becomes ``Apple-M3-Ultra``."""
    return re.sub(r"[^-_.A-Za-z0-9]", "-", text)[:63].strip("-_.")


def taints(machine: Machine) -> list[Json]:
    """The taint that keeps pods off Macs unless they tolerate it."""
    return [{"key": TAINT_MACOS, "effect": "NoSchedule"}] if machine.is_mac else []


def _condition(kind: str, pressed: bool | None, reasons: tuple[str, str], message: str) -> Json:
    """A pressure condition. ``reasons``: those without and with pressure."""
    if pressed is None:
        return {"type": kind, "status": "Unknown", "reason": "NotMeasured", "message": message}
    return {"type": kind, "status": str(pressed), "reason": reasons[pressed], "message": message}


def findings(readings: Readings, disk: DiskState, problems: Mapping[str, str], shared_user: int | None) -> list[Json]:
    """The conditions without times. ``problems``: why the kubelet is not ready, as reason to message."""
    pids, pids_text = _pid_pressure(readings)
    memory = ("KubeletHasSufficientMemory", "KubeletHasInsufficientMemory")
    return [
        _condition("MemoryPressure", readings.memory_short, memory, readings.memory_text),
        _disk_pressure(disk),
        _condition("PIDPressure", pids, ("KubeletHasSufficientPID", "KubeletHasInsufficientPID"), pids_text),
        _pods_share_user(shared_user),
        _ready(problems),
    ]


def _disk_pressure(state: DiskState) -> Json:
    reasons = ("KubeletHasNoDiskPressure", "KubeletHasDiskPressure")
    if state.pressure is None:
        return _condition("DiskPressure", None, reasons, "free disk space is unknown")
    # No exact numbers: the status would be written whenever they change.
    signals = ", ".join(f"{one.signal} is below {one.text}" for one in state.why)
    text = f"kubelet has disk pressure: {signals}" if state.pressure else "kubelet has no disk pressure"
    return _condition("DiskPressure", state.pressure, reasons, text)


def _pid_pressure(readings: Readings) -> tuple[bool | None, str]:
    if readings.processes is None or not readings.processes_limit:
        return None, "the number of processes is unknown"
    limit = readings.processes_limit
    pressure = readings.processes > PROCESS_PART * limit
    return pressure, f"{'more than' if pressure else 'at most'} {PROCESS_PART:.0%} of {limit} possible processes run"


def _pods_share_user(user: int | None) -> Json:
    if user is None:
        text = "each pod has its own user"
        return {"type": PODS_SHARE_USER, "status": "False", "reason": "OneUserPerPod", "message": text}
    text = (
        f"the kubelet cannot switch users, so all pods run as its user {user} and can read each other's tokens, keys and "
        "environment; run the kubelet as root"
    )
    return {"type": PODS_SHARE_USER, "status": "True", "reason": "KubeletNotRoot", "message": text}


def _ready(problems: Mapping[str, str]) -> Json:
    if problems:
        return {"type": "Ready", "status": "False", "reason": next(iter(problems)), "message": "; ".join(problems.values())}
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}


def _network(no_address: str | None, before: Sequence[Json]) -> list[Json]:
    """NetworkUnavailable. It belongs to the network's controller: set only while an address is missing, and then removed."""
    if no_address is not None:
        return [{"type": "NetworkUnavailable", "status": "True", "reason": NO_ADDRESS, "message": no_address}]
    if any(one.get("type") == "NetworkUnavailable" and one.get("reason") in (NO_ADDRESS, HAS_ADDRESS) for one in before):
        text = "the machine has an address"
        return [{"type": "NetworkUnavailable", "status": "False", "reason": HAS_ADDRESS, "message": text}]
    return []


def _components(works: Mapping[str, bool]) -> list[Json]:
    if not works:
        return []
    if failed := [name for name, answers in works.items() if not answers]:
        text = (
            f"{' and '.join(failed)} on this Mac {'does' if len(failed) == 1 else 'do'} not answer: see the log in "
            "/Library/Logs/Thunderfleet, or run `sudo thunderfleet init`, which starts what does not run"
        )
        return [{"type": CONTROL_PLANE, "status": "False", "reason": "ComponentDown", "message": text}]
    text = f"{' and '.join(works)} answer"
    return [{"type": CONTROL_PLANE, "status": "True", "reason": "ComponentsWork", "message": text}]


def _descriptors(found: Descriptors | None, before: Sequence[Json]) -> list[Json]:
    """The condition about file descriptors, only for a kubelet that has or had too few."""
    old = next((one for one in before if one.get("type") == CONDITION_DESCRIPTORS), None)
    if found is None:
        return [] if old is None else [old]
    short = old is not None and old.get("status") == "True"
    if found.free < (ENOUGH_DESCRIPTORS if short else FEW_DESCRIPTORS):
        text = (
            f"almost all {found.limit} file descriptors of the kubelet are in use, so it cannot start pods or serve logs: "
            "restart it (`sudo launchctl kickstart -k system/io.thunderfleet.kubelet`); containers keep running"
        )
        return [{"type": CONDITION_DESCRIPTORS, "status": "True", "reason": "KubeletHasFewDescriptors", "message": text}]
    if old is None:
        return []
    text = "the kubelet can open files and connections"
    return [{"type": CONDITION_DESCRIPTORS, "status": "False", "reason": "KubeletHasEnoughDescriptors", "message": text}]


def conditions(found: list[Json], previous: list[Json], now: datetime) -> list[Json]:
    """``found`` with times; the transition time changes only with the status. Conditions of other writers stay as they are."""
    before = {str(one.get("type")): one for one in previous}
    ours, stamp = [], format_time(now.timestamp())
    for one in found:
        old = before.pop(one["type"], None)
        same = old is not None and old.get("status") == one["status"]
        since = old.get("lastTransitionTime") if same and old else None
        ours.append({**one, "lastHeartbeatTime": stamp, "lastTransitionTime": since or stamp})
    return [*before.values(), *ours]


def binary(size: int) -> str:
    """Bytes as the API server writes them: in the largest binary unit without a fraction, at least KiB.

    The API server returns any other form changed, which would look like a difference forever.
    """
    units = ["Ki", "Mi", "Gi", "Ti", "Pi"]
    size //= 1024
    while size and size % 1024 == 0 and len(units) > 1:
        size //= 1024
        del units[0]
    return f"{size}{units[0]}" if size else "0"


def capacity(config: Config, machine: Machine) -> tuple[dict[str, str], dict[str, str]]:
    """(capacity, allocatable) of the Node, as quantities by resource.

    The memory of a Mac is what its GPU may use, so it is published under both names: a quota for ``memory`` counts all pods,
    one for the extended resource only those that request it.
    """

    def quantities(millis: int, memory: int, disk: int) -> dict[str, str]:
        cpu = str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"
        gpu = {RESOURCE_GPU_MEMORY: binary(memory)} if machine.is_mac else {}
        return {
            **gpu,
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
            machine.disk_bytes - pressure.reserved(config.thresholds, machine.disk_bytes),
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
    version: str,
    disk: DiskState,
    addresses: Sequence[str],
    shared_user: int | None = None,
    no_address: str | None = None,
    images: Sequence[Json] = (),
    components: Mapping[str, bool] = MappingProxyType({}),
    descriptors: Descriptors | None = None,
) -> Json:
    """The Node's ``status``.

    ``previous``: the one in the API server, or ``{}``. ``version``: the kubelet's. ``shared_user``: the user of all pods, if
    they have no users of their own. ``images``: those that were pulled. ``no_address``: why ``addresses`` are those that the
    machine had before; None if it has them. ``components``: whether those of a control plane on this machine work.
    ``descriptors``: file descriptors of the kubelet; None if unknown.
    """
    total, free = capacity(config, machine)
    # Without a control plane, conditions of an earlier configuration are removed.
    here = config.control_plane_components
    before = [one for one in previous.get("conditions") or [] if here or one.get("type") != CONTROL_PLANE]
    found = [
        *findings(readings, disk, problems, shared_user),
        *_network(no_address, before),
        *_components(components),
        *_descriptors(descriptors, before),
    ]
    return {
        "capacity": total,
        "allocatable": free,
        "addresses": [{"type": "InternalIP", "address": address} for address in addresses],
        "conditions": conditions(found, before, now),
        "images": list(images),
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
            "containerRuntimeVersion": _runtime(machine, version),
            "kubeletVersion": version,
            "kubeProxyVersion": "",
        },
    }


def _runtime(machine: Machine, version: str) -> str:
    # There is no container engine: a container is a process group.
    return f"process://{version.partition('thunderfleet.')[2]}{RUNTIME_GPU_MEMORY if machine.is_mac else ''}"


def _without_heartbeat(value: Json) -> Json:
    listed = [{k: v for k, v in one.items() if k != "lastHeartbeatTime"} for one in value.get("conditions") or []]
    return {**value, "conditions": sorted(listed, key=lambda one: str(one.get("type")))}


def differs(current: Json, wanted: Json) -> bool:
    """Whether ``wanted`` has something that the status in the API server does not have, other than heartbeats."""
    old, new = _without_heartbeat(current), _without_heartbeat(wanted)
    # A newer API server may add fields to nodeInfo.
    return any(not _covers(old.get(key), value) for key, value in new.items())


def _covers(old: object, new: object) -> bool:
    if isinstance(new, dict):
        # The API server omits empty strings.
        return isinstance(old, dict) and all(_covers(old.get(key), value) for key, value in new.items())
    return old == new or (old is None and new in ("", [], {}))


def node(config: Config, machine: Machine, state: Json) -> Json:
    """The Node for its first registration."""
    spec: Json = {"taints": taints(machine)} if machine.is_mac else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.node_name, "labels": labels(config, machine)},
        "spec": spec,
        "status": state,
    }


def stale_labels(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """The labels to set on an existing Node; labels of other writers stay."""
    return {key: value for key, value in wanted.items() if current.get(key) != value}


def renew_time(found: Json) -> datetime:
    """When a Lease was last renewed; the distant past if it has no time."""
    try:
        return datetime.fromisoformat(str((found.get("spec") or {})["renewTime"])).astimezone(UTC)
    except (KeyError, ValueError):
        return datetime(1970, 1, 1, tzinfo=UTC)


def lease(config: Config, uid: str, now: datetime) -> Json:
    """The Node's Lease, owned by the Node."""
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
