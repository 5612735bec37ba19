"""The kubelet's own figures, in a registry of its own, and the resource figures that `kubectl top` is made of."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from thunderfleet_kubelet.node.machine import meminfo
from thunderfleet_kubelet.pods.manager import ContainerUsage


class Metrics:
    """What a scrape of ``/metrics`` shows. ``api`` tells (requests, writes) to the API server so far."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, node_name: str, version: str, api: Callable[[], tuple[int, int]]) -> None:
        self.registry = CollectorRegistry()
        self._api = api
        self._counts: Mapping[str, Any] = {}
        self._requests = Counter(
            "thunderfleet_kubelet_http_requests",
            "Requests to the kubelet's server, by what was asked and how it ended",
            ["kind", "code"],
            registry=self.registry,
        )
        self._expiry = Gauge(
            "thunderfleet_kubelet_certificate_expiry_seconds",
            "When a certificate ends, in seconds since 1970",
            ["name"],
            registry=self.registry,
        )
        self.registered = Gauge(
            "thunderfleet_kubelet_node_registered", "1 while the Node stands in the cluster", registry=self.registry
        )
        Gauge("thunderfleet_kubelet_info", "What runs here", ["node", "version"], registry=self.registry).labels(
            node_name, version
        ).set(1)
        self.registry.register(self)

    def served(self, kind: str, code: int) -> None:
        """Counts one answered request."""
        self._requests.labels(kind, str(code)).inc()

    def expires(self, name: str, seconds: float) -> None:
        """Certificate ``name`` ends at ``seconds`` since 1970."""
        self._expiry.labels(name).set(seconds)

    def text(self, counts: Mapping[str, Any]) -> bytes:
        """The whole page; ``counts`` are the pod manager's."""
        self._counts = counts
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Any]:
        """Figures that others count; prometheus-client calls this."""
        requests, writes = self._api()
        yield CounterMetricFamily("thunderfleet_kubelet_api_requests", "Requests to the API server", value=requests)
        yield CounterMetricFamily("thunderfleet_kubelet_api_writes", "Requests to the API server other than GET", value=writes)
        for name, help_text in (("pods", "Pods that this node accepted"), ("containers", "Containers that run")):
            if name in self._counts:
                yield GaugeMetricFamily(f"thunderfleet_kubelet_{name}", help_text, value=self._counts[name])
        if "restarts" in self._counts:
            yield CounterMetricFamily(
                "thunderfleet_kubelet_container_restarts", "Containers started again", value=self._counts["restarts"]
            )


def _machine_usage() -> tuple[float | None, int | None]:
    """(CPU seconds since boot, memory in use in bytes) of the whole machine, where /proc tells."""
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        memory = meminfo(Path("/proc/meminfo").read_text())
    except (OSError, ValueError):
        return None, None
    # user nice system idle iowait irq softirq steal; guest time is counted in user already
    busy = sum(fields[:3]) + sum(fields[5:8])
    import os

    return busy / os.sysconf("SC_CLK_TCK"), memory["MemTotal"] - memory["MemAvailable"]


class _Families:
    """One scrape's families, registered for just that scrape."""

    def __init__(self, families: Iterable[Any]) -> None:
        self.families = list(families)

    def collect(self) -> Iterable[Any]:
        return self.families


def resource_text(usage: Iterable[ContainerUsage]) -> bytes:
    """``/metrics/resource`` as metrics-server reads it. Memory is the resident memory: a Mac knows no working set."""
    labels = ["container", "namespace", "pod"]
    cpu = CounterMetricFamily("container_cpu_usage_seconds", "CPU time of the container in seconds", labels=labels)
    memory = GaugeMetricFamily("container_memory_working_set_bytes", "Memory of the container in bytes", labels=labels)
    start = GaugeMetricFamily("container_start_time_seconds", "Start of the container, seconds since 1970", labels=labels)
    pod_cpu = CounterMetricFamily("pod_cpu_usage_seconds", "CPU time of the pod in seconds", labels=labels[1:])
    pod_memory = GaugeMetricFamily("pod_memory_working_set_bytes", "Memory of the pod in bytes", labels=labels[1:])
    pods: dict[tuple[str, str], tuple[float, int, float]] = {}
    for one in usage:
        names, when = [one.container, one.namespace, one.pod], one.sampled_at.timestamp()
        cpu.add_metric(names, one.cpu_seconds, timestamp=when)
        memory.add_metric(names, one.memory_bytes, timestamp=when)
        start.add_metric(names, one.started_at.timestamp(), timestamp=when)
        seconds, size, _ = pods.get((one.namespace, one.pod), (0.0, 0, 0.0))
        pods[one.namespace, one.pod] = (seconds + one.cpu_seconds, size + one.memory_bytes, when)
    for (namespace, pod), (seconds, size, when) in sorted(pods.items()):
        pod_cpu.add_metric([namespace, pod], seconds, timestamp=when)
        pod_memory.add_metric([namespace, pod], size, timestamp=when)
    families: list[Any] = [cpu, memory, start, pod_cpu, pod_memory]
    busy, used = _machine_usage()
    if busy is not None and used is not None:
        families.append(CounterMetricFamily("node_cpu_usage_seconds", "CPU time of the machine in seconds", value=busy))
        families.append(GaugeMetricFamily("node_memory_working_set_bytes", "Memory of the machine in bytes", value=used))
    families.append(GaugeMetricFamily("resource_scrape_error", "1 if something could not be read", value=0 if busy else 1))
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return re.sub(rb"# EOF\n$", b"", generate_latest(registry))
