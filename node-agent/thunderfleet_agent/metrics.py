"""The agent's metrics, in a separate registry (``/metrics``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from thunderfleet_lib.host.hostcmd import Failure
from thunderfleet_lib.metrics import ProcessMetrics

from thunderfleet_agent.copies.ways.paths import Path
from thunderfleet_agent.measure.prober import Prober
from thunderfleet_agent.measure.schedule.probes import ProbeKind
from thunderfleet_agent.observe.facts import Source
from thunderfleet_agent.observe.sensors import Reading
from thunderfleet_agent.peers.reachability import DialOutcome

SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 20, 60)


class Metrics:
    """The metrics of one agent."""

    def __init__(self) -> None:
        # The ``_created`` samples would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(ProcessMetrics("agent"))
        prefix = "thunderfleet_agent"
        self._seconds = Histogram(
            f"{prefix}_command_seconds",
            "Duration of the commands that the agent runs, including failed ones.",
            ["source"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            f"{prefix}_command_failures", "Failed commands of the agent.", ["source", "kind"], registry=self.registry
        )
        self._scrapes = Counter(f"{prefix}_scrapes", "Requests for /metrics.", registry=self.registry)
        self._writes = Counter(f"{prefix}_api_writes", "Writes to the API server.", ["kind", "result"], registry=self.registry)
        self._errors = Counter(f"{prefix}_loop_errors", "Internal errors of the agent.", ["loop"], registry=self.registry)
        self._dials = Counter(f"{prefix}_dials", "Connection attempts to other agents.", ["result"], registry=self.registry)
        self._trips = Gauge(
            f"{prefix}_peer_rtt_seconds",
            "Round-trip time of the most recent connection to another agent.",
            ["node", "address"],
            registry=self.registry,
        )
        self._probes = Counter(
            f"{prefix}_probes",
            f"Finished benchmarks, by kind (label probe: {', '.join(ProbeKind)}) and result.",
            ["probe", "result"],
            registry=self.registry,
        )
        self._probe_seconds = Counter(f"{prefix}_probe_seconds", "Duration of benchmarks.", ["probe"], registry=self.registry)
        self._probe_bytes = Counter(
            f"{prefix}_probe_bytes", "Bytes that benchmarks between Macs sent and received.", ["probe"], registry=self.registry
        )
        self._changes = Counter(
            "thunderfleet_thunderboltlink_changes",
            "Number of times that this Mac's end of a cable lost or gained its carrier.",
            ["name", "node"],
            registry=self.registry,
        )
        self.refused = Counter(
            f"{prefix}_refused_dials",
            "Connections refused because the NodeProfile does not contain the certificate.",
            registry=self.registry,
        )
        self._received = Counter(
            f"{prefix}_copy_received_bytes",
            "Bytes of models that arrived from other Macs, by way: cable, network, or used_cable (a group uses the cable).",
            ["way"],
            registry=self.registry,
        )
        self.sent = Counter(
            f"{prefix}_copy_sent_bytes", "Bytes of models that were sent to other Macs.", registry=self.registry
        )
        self._wrong = Counter(
            f"{prefix}_copy_wrong_bytes",
            "Transfers that ended because another Mac sent wrong bytes, by the node of that Mac.",
            ["node"],
            registry=self.registry,
        )
        self.copies = Gauge(f"{prefix}_copies_running", "Models that are being copied from other Macs.", registry=self.registry)
        self.links = Gauge(f"{prefix}_links", "ThunderboltLinks that end at this Mac.", registry=self.registry)
        self.models = Gauge(f"{prefix}_models", "Models on the disk of this Mac.", registry=self.registry)
        self.published = Gauge(
            f"{prefix}_published_timestamp_seconds",
            "Time of the last round that compared the objects of this Mac with the API, and wrote what differed.",
            registry=self.registry,
        )

    def observed(self, source: Source, seconds: float, failure: Failure | None) -> None:
        """Counts a command that answered or failed."""
        self._seconds.labels(source.value).observe(seconds)
        if failure is not None:
            self._failures.labels(source.value, failure.kind.value).inc()

    def dialled(self, outcomes: Iterable[DialOutcome]) -> None:
        """Counts a round of dials, and drops the round trips of addresses that did not answer."""
        self._trips.clear()
        for outcome in outcomes:
            self._dials.labels("failed" if outcome.rtt_microseconds is None else "ok").inc()
            if outcome.rtt_microseconds is not None:
                self._trips.labels(*outcome.target.key).set(outcome.rtt_microseconds / 1e6)

    def received(self, way: Path, count: int) -> None:
        """Counts bytes of a model that arrived from another Mac."""
        self._received.labels(way.way.name.lower()).inc(count)

    def wrong_bytes(self, node: str) -> None:
        """Counts a Mac that sent wrong bytes."""
        self._wrong.labels(node).inc()

    def probed(self, kind: str, outcome: str, seconds: float, count: int) -> None:
        """Counts a probe: ok, failed, refused (by a busy peer) or ended (preempted by a group)."""
        self._probes.labels(kind, outcome).inc()
        self._probe_seconds.labels(kind).inc(seconds)
        self._probe_bytes.labels(kind).inc(count)

    def show_measurements(self, prober: Prober) -> None:
        """Adds the prober's current figures to every scrape."""
        self.registry.register(_Measured(prober))

    def show_sensors(self, node: str, read: Callable[[], Reading], links: Mapping[str, str]) -> None:
        """Adds the sensors of this Mac to every scrape. ``links``: the cable at each interface, which may change."""
        self.registry.register(_Sensed(node, read, links))

    def cabled(self, node: str, links: Iterable[str]) -> None:
        """Shows the changes of cables from 0 on: Prometheus counts no increase where a series begins."""
        for link in links:
            self._changes.labels(link, node)

    def changed(self, node: str, link: str) -> None:
        """Counts a change of the carrier at this Mac's end of a cable."""
        self._changes.labels(link, node).inc()

    def wrote(self, kind: str, result: str) -> None:
        """Counts a write to the API server. ``result`` is ``ok`` or the reason of the error."""
        self._writes.labels(kind, result).inc()

    def begun(self, loop: str) -> None:
        """Shows the errors of a loop from 0 on."""
        self._errors.labels(loop)

    def erred(self, loop: str) -> None:
        """Counts a round that ended with an unexpected exception."""
        self._errors.labels(loop).inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        self._scrapes.inc()
        return generate_latest(self.registry)


_LABELS = ["probe", "node", "address", "link"]
_FIGURES = (
    ("gpu_fp16_flops", "fp16 throughput of the GPU, in floating-point operations per second.", "flops", 1.0),
    ("gpu_memory_bytes_per_second", "Memory bandwidth of the GPU.", "megabytes_per_second", 1e6),
    ("link_sent_bytes_per_second", "Throughput to a peer, measured by the peer.", "sent_mbps", 125_000.0),
    ("link_received_bytes_per_second", "Throughput from a peer, measured by this Mac.", "received_mbps", 125_000.0),
    ("link_rtt_seconds", "Median round-trip time to a peer.", "rtt_microseconds", 1e-6),
    ("link_jitter_seconds", "Mean absolute difference of consecutive round-trip times.", "jitter_microseconds", 1e-6),
    ("link_all_sum_seconds", "Duration of a small all-reduce between two ranks.", "all_sum_microseconds", 1e-6),
)


class _Measured:
    """A Prometheus collector: the figures of the prober, and their age."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        prefix, now, ledger = "thunderfleet_agent", time.monotonic(), self._prober.ledger
        age = GaugeMetricFamily(f"{prefix}_measured_age_seconds", "Age of a measurement.", labels=_LABELS)
        families = [
            (GaugeMetricFamily(f"{prefix}_{name}", text, labels=_LABELS), field, unit) for name, text, field, unit in _FIGURES
        ]
        for key, each in ledger.results.items():
            labels = [key.kind.value, each.node, each.address, each.link]
            measured = ledger.history[key].measured
            if measured is not None and measured > -1e12:
                age.add_metric(labels, now - measured)
            for family, field, unit in families:
                value = getattr(each.figures, field)
                if value is not None:
                    family.add_metric(labels, value * unit)
        yield age
        yield from (family for family, _, _ in families)
        running = GaugeMetricFamily(f"{prefix}_probes_running", "Running benchmarks.")
        running.add_metric([], len(self._prober.running))
        yield running


class _Sensed:
    """A Prometheus collector: the sensors of this Mac, and the traffic of its cables."""

    def __init__(self, node: str, read: Callable[[], Reading], links: Mapping[str, str]) -> None:
        self._node = node
        self._read = read
        self._links = links

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        sensors = reading.sensors
        free, size = reading.disk or (None, None)
        info = GaugeMetricFamily("thunderfleet_agent_info", "1; the node of the agent.", labels=["node"])
        info.add_metric([self._node], 1.0)
        yield info
        text = "Time at which the sensors and the counters of cables were read, in seconds since the Unix epoch."
        read = GaugeMetricFamily("thunderfleet_agent_sensors_read_timestamp_seconds", text, labels=["node"])
        if reading.at is not None:
            read.add_metric([self._node], reading.at)
        yield read
        yield self._gauge("gpu_utilization_ratio", "Fraction of the time in which the GPU is busy.", sensors.gpu)
        yield self._parts("power_watts", "Power of a part of the Mac.", "part", sensors.watts)
        yield self._parts("temperature_celsius", "Mean temperature of a part of the Mac.", "part", sensors.celsius)
        levels = {sensors.pressure: 1.0} if sensors.pressure else {}
        yield self._parts("thermal_pressure", "1 for the level of thermal pressure that macOS reports.", "level", levels)
        yield self._gauge("wired_memory_bytes", "Memory that macOS cannot page out.", reading.wired)
        yield self._gauge("disk_free_bytes", "Free space of the volume with the models.", free)
        yield self._gauge("disk_size_bytes", "Size of the volume with the models.", size)
        for number, way in enumerate(("received", "sent")):
            family = CounterMetricFamily(
                f"thunderfleet_thunderboltlink_{way}_bytes",
                f"Bytes that this Mac has {way} over the network interface of a cable. macOS does not count RDMA.",
                labels=["name", "node"],
            )
            for interface, counts in reading.traffic.items():
                if interface in self._links:
                    family.add_metric([self._links[interface], self._node], counts[number])
            yield family

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(f"thunderfleet_mac_{name}", text, labels=["node"])
        if value is not None:
            family.add_metric([self._node], value)
        return family

    def _parts(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"thunderfleet_mac_{name}", text, labels=["node", label])
        for part, value in values.items():
            family.add_metric([self._node, part], value)
        return family
