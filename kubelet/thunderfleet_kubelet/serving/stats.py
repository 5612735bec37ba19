"""Metrics that Prometheus stacks and other tools read from every kubelet, under the names of Kubernetes.

``/metrics/cadvisor`` and ``/metrics/probes`` as text, ``/stats/summary`` as JSON. They have only what this system measures: a
container is a group of processes, so it has no network and no block device of its own. Its working set is the memory that the
system attributes to its processes: resident memory on Linux; on macOS their footprint, which includes GPU memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from thunderfleet_kubelet.pods.decide.eviction import Usage as DiskFigures
from thunderfleet_kubelet.pods.queries import ContainerUsage, ProbeResult
from thunderfleet_kubelet.pressure import FileSystem

Json = dict[str, Any]

_LABELS = ("container", "id", "image", "name", "namespace", "pod")
_PROBE_LABELS = ("container", "namespace", "pod", "pod_uid", "probe_type", "result")
_GPU_LABELS = ("acc_id", "make", "model", *_LABELS)
NANO = 1_000_000_000
GPU_MAKE, GPU_ID = "apple", "0"
"""The one GPU of a Mac."""


class _Families:
    """The families of one scrape."""

    def __init__(self, families: Sequence[Any]) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        """Called by prometheus-client."""
        return self._families


def text(families: Sequence[Any]) -> bytes:
    """A page of metrics."""
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


def cadvisor_text(usage: Iterable[ContainerUsage]) -> bytes:
    """``/metrics/cadvisor``: CPU and memory of each running container, and its GPU memory where the system reports it."""
    cpu = CounterMetricFamily("container_cpu_usage_seconds", "CPU time in seconds", labels=_LABELS)
    working = GaugeMetricFamily("container_memory_working_set_bytes", "Memory in bytes, the GPU's included", labels=_LABELS)
    resident = GaugeMetricFamily("container_memory_rss", "Resident memory in bytes", labels=_LABELS)
    start = GaugeMetricFamily("container_start_time_seconds", "Start time in seconds since the Unix epoch", labels=_LABELS)
    gpu = GaugeMetricFamily("container_accelerator_memory_used_bytes", "Memory of the GPU in bytes", labels=_GPU_LABELS)
    for one in usage:
        labels, when = [one.container, one.id, one.image, one.id, one.namespace, one.pod], one.sampled_at.timestamp()
        cpu.add_metric(labels, one.cpu_seconds, timestamp=when)
        working.add_metric(labels, one.memory_bytes, timestamp=when)
        resident.add_metric(labels, one.resident_bytes, timestamp=when)
        start.add_metric(labels, one.started_at.timestamp(), timestamp=when)
        if one.gpu_bytes is not None:
            gpu.add_metric([GPU_ID, GPU_MAKE, "", *labels], one.gpu_bytes, timestamp=when)
    return text([cpu, working, resident, start, gpu])


def probes_text(results: Iterable[ProbeResult]) -> bytes:
    """``/metrics/probes``: how often each probe of the pods on this node succeeded and failed."""
    total = CounterMetricFamily(
        "prober_probe", "Number of liveness, readiness and startup probes by result", labels=_PROBE_LABELS
    )
    for one in results:
        total.add_metric([one.container, one.namespace, one.pod, one.uid, one.kind.capitalize(), one.result], one.count)
    return text([total])


def summary(
    node: str,
    usage: Sequence[ContainerUsage],
    machine: tuple[float, int] | None,
    disk: FileSystem | None,
    used: Mapping[str, DiskFigures],
    now: datetime,
) -> Json:
    """``/stats/summary``.

    ``machine``: CPU seconds since boot, and bytes of memory in use. ``used``: disk usage of pods by uid; left out for
    pods that are not in it.
    """
    own: Json = {"nodeName": node}
    if machine is not None:
        own |= _figures(now, *machine, machine[1])
    if disk is not None:
        own["fs"] = {
            "time": _time(now),
            "availableBytes": disk.available,
            "capacityBytes": disk.capacity,
            "usedBytes": disk.capacity - disk.available,
            "inodesFree": disk.inodes_free,
            "inodes": disk.inodes,
            "inodesUsed": disk.inodes - disk.inodes_free,
        }
    pods = [_pod(uid, [one for one in usage if one.uid == uid], used.get(uid), disk) for uid in _uids(usage)]
    return {"node": own, "pods": pods}


def _uids(usage: Sequence[ContainerUsage]) -> list[str]:
    return list(dict.fromkeys(one.uid for one in usage))


def _pod(uid: str, containers: Sequence[ContainerUsage], used: DiskFigures | None, disk: FileSystem | None) -> Json:
    first = containers[0]
    found = {
        "podRef": {"name": first.pod, "namespace": first.namespace, "uid": uid},
        "startTime": _time(min(one.started_at for one in containers)),
        "containers": [_container(one, used, disk) for one in containers],
        **_figures(
            first.sampled_at,
            sum(one.cpu_seconds for one in containers),
            sum(one.memory_bytes for one in containers),
            sum(one.resident_bytes for one in containers),
        ),
    }
    if used is not None:
        when = first.sampled_at
        found["ephemeral-storage"] = _space(when, used.total, disk)
        found["volume"] = [{"name": name, **_space(when, size, disk)} for name, size in used.volumes.items()]
    return found


def _container(one: ContainerUsage, used: DiskFigures | None, disk: FileSystem | None) -> Json:
    found: Json = {
        "name": one.container,
        "startTime": _time(one.started_at),
        **_figures(one.sampled_at, one.cpu_seconds, one.memory_bytes, one.resident_bytes),
    }
    if one.gpu_bytes is not None:
        found["accelerators"] = [{"make": GPU_MAKE, "id": GPU_ID, "memoryUsed": one.gpu_bytes}]
    if used is not None and one.container in used.containers:
        logs = used.logs.get(one.container, 0)
        found["rootfs"] = _space(one.sampled_at, used.containers[one.container] - logs, disk)
        found["logs"] = _space(one.sampled_at, logs, disk)
    return found


def _space(when: datetime, size: int, disk: FileSystem | None) -> Json:
    """Usage of the file system of the pods."""
    whole = {} if disk is None else {"availableBytes": disk.available, "capacityBytes": disk.capacity}
    return {"time": _time(when), "usedBytes": size, **whole}


def _figures(when: datetime, cpu_seconds: float, memory_bytes: int, resident_bytes: int) -> Json:
    return {
        "cpu": {"time": _time(when), "usageCoreNanoSeconds": int(cpu_seconds * NANO)},
        "memory": {"time": _time(when), "workingSetBytes": memory_bytes, "rssBytes": resident_bytes},
    }


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
