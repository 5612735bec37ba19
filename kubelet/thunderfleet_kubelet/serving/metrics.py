"""The kubelet's Prometheus metrics, and ``/metrics/resource`` for ``kubectl top``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from thunderfleet_lib.metrics import ProcessMetrics

from thunderfleet_kubelet.node.usage import machine_usage
from thunderfleet_kubelet.pods.queries import ContainerUsage, PodCounts
from thunderfleet_kubelet.serving.stats import text


class Metrics:
    """The metrics of ``/metrics``.

    ``api``: returns the number of (requests, writes) to the API server. ``control_plane``: returns when each certificate of the
    control plane on this machine expires, in seconds since the Unix epoch, by its name; None without a control plane.
    ``late``: returns by how many seconds the renewal of the Node's Lease is overdue; None before the first one.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        node_name: str,
        version: str,
        api: Callable[[], tuple[int, int]],
        control_plane: Callable[[], Mapping[str, float]] | None = None,
        components: Callable[[], Mapping[str, bool]] = dict,
        late: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(ProcessMetrics("kubelet"))
        self._api = api
        self._node_name = node_name
        self._control_plane = control_plane
        self._components = components
        self._late = late
        self._counts = PodCounts(0, 0, 0)
        self._requests = Counter(
            "thunderfleet_kubelet_http_requests",
            "Requests to the kubelet's server, by kind and HTTP status.",
            ["kind", "code"],
            registry=self.registry,
        )
        self._expiry = Gauge(
            "thunderfleet_kubelet_certificate_expiry_seconds",
            "Time at which a certificate expires, in seconds since the Unix epoch.",
            ["name"],
            registry=self.registry,
        )
        self.registered = Gauge(
            "thunderfleet_kubelet_node_registered", "1 while the Node is registered.", registry=self.registry
        )
        Gauge(
            "thunderfleet_kubelet_info", "The node and the version of the kubelet.", ["node", "version"], registry=self.registry
        ).labels(node_name, version).set(1)
        self.registry.register(self)

    def served(self, kind: str, code: int) -> None:
        """Counts one request."""
        self._requests.labels(kind, str(code)).inc()

    def expires(self, name: str, seconds: float) -> None:
        """Sets when certificate ``name`` expires (seconds since the epoch)."""
        self._expiry.labels(name).set(seconds)

    def text(self, counts: PodCounts) -> bytes:
        """The page, with the current ``counts``."""
        self._counts = counts
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Any]:
        """The metrics that other modules count. Called by prometheus-client."""
        requests, writes = self._api()
        yield CounterMetricFamily("thunderfleet_kubelet_api_requests", "Requests to the API server.", value=requests)
        yield CounterMetricFamily("thunderfleet_kubelet_api_writes", "Requests to the API server other than GET.", value=writes)
        late = GaugeMetricFamily(
            "thunderfleet_kubelet_lease_late_seconds",
            "Seconds by which the renewal of the Lease of the kubelet's Node is overdue; 0 if it is on time.",
            labels=["node"],
        )
        if (seconds := self._late()) is not None:
            late.add_metric([self._node_name], seconds)
        yield late
        counts = self._counts
        yield GaugeMetricFamily("thunderfleet_kubelet_pods", "Accepted pods that have not ended.", value=counts.pods)
        yield GaugeMetricFamily("thunderfleet_kubelet_containers", "Running containers.", value=counts.containers)
        yield CounterMetricFamily("thunderfleet_kubelet_container_restarts", "Container restarts.", value=counts.restarts)
        expiry = GaugeMetricFamily(
            "thunderfleet_control_plane_certificate_expiry_seconds",
            "Time at which a certificate of the control plane on this Node expires, in seconds since the Unix epoch; absent on "
            "a Node without one.",
            labels=["node", "name"],
        )
        for name, when in (self._control_plane() if self._control_plane else {}).items():
            expiry.add_metric([self._node_name, name], when)
        yield expiry
        works = GaugeMetricFamily(
            "thunderfleet_control_plane_component_up",
            "1 if kube-scheduler or kube-controller-manager on this Node answers, 0 if it does not; absent on a Node without a "
            "control plane.",
            labels=["node", "component"],
        )
        for name, answers in self._components().items():
            works.add_metric([self._node_name, name], float(answers))
        yield works


def resource_text(usage: Iterable[ContainerUsage]) -> bytes:
    """``/metrics/resource`` for metrics-server. Memory is what the system attributes to the processes, including the GPU's."""
    labels = ["container", "namespace", "pod"]
    cpu = CounterMetricFamily("container_cpu_usage_seconds", "CPU time of the container in seconds", labels=labels)
    memory = GaugeMetricFamily("container_memory_working_set_bytes", "Memory of the container in bytes", labels=labels)
    start = GaugeMetricFamily("container_start_time_seconds", "Start time in seconds since the Unix epoch", labels=labels)
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
    machine = machine_usage()
    if machine is not None:
        busy, used = machine
        families.append(CounterMetricFamily("node_cpu_usage_seconds", "CPU time of the machine in seconds", value=busy))
        families.append(GaugeMetricFamily("node_memory_working_set_bytes", "Memory of the machine in bytes", value=used))
    families.append(GaugeMetricFamily("resource_scrape_error", "1 if a value could not be read", value=0 if machine else 1))
    return text(families)
