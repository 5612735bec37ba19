"""What the agent counts of itself, in a registry of its own (``/metrics``)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from thunderfleet_lib.hostcmd import Failure

from thunderfleet_agent.observe.facts import Source
from thunderfleet_agent.peers.reach import Outcome

if TYPE_CHECKING:
    from thunderfleet_agent.measure.prober import Prober

SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 20, 60)


class Metrics:
    """One value an agent."""

    def __init__(self) -> None:
        # Twice the series for something that nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        prefix = "thunderfleet_agent"
        self._seconds = Histogram(
            f"{prefix}_command_seconds",
            "How long this Mac's commands took to answer or fail.",
            ["source"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            f"{prefix}_command_failures", "Commands of this Mac that failed.", ["source", "kind"], registry=self.registry
        )
        self._scrapes = Counter(f"{prefix}_scrapes", "Requests for these metrics.", registry=self.registry)
        self._writes = Counter(f"{prefix}_api_writes", "Writes to the API server.", ["kind", "result"], registry=self.registry)
        self._errors = Counter(f"{prefix}_loop_errors", "Faults of the agent itself.", ["loop"], registry=self.registry)
        self._dials = Counter(f"{prefix}_dials", "Dials of other agents.", ["result"], registry=self.registry)
        self._trips = Gauge(
            f"{prefix}_peer_rtt_seconds",
            "Round trip to another agent, the latest that was measured.",
            ["node", "address"],
            registry=self.registry,
        )
        self._probes = Counter(
            f"{prefix}_probes", "Probes of GPU, memory and links.", ["probe", "result"], registry=self.registry
        )
        self._probe_seconds = Counter(f"{prefix}_probe_seconds", "Time that probes took.", ["probe"], registry=self.registry)
        self._probe_bytes = Counter(
            f"{prefix}_probe_bytes", "Bytes that probes moved between Macs, both ways.", ["probe"], registry=self.registry
        )
        self.refused = Counter(
            f"{prefix}_refused_dials", "Dials by somebody whose certificate no NodeProfile shows.", registry=self.registry
        )
        self.links = Gauge(f"{prefix}_links", "Cables of which this Mac publishes an end.", registry=self.registry)
        self.models = Gauge(f"{prefix}_models", "Models on this Mac's disk.", registry=self.registry)
        self.published = Gauge(
            f"{prefix}_published_timestamp_seconds", "When publishing last went through.", registry=self.registry
        )

    def observed(self, source: Source, seconds: float, failure: Failure | None) -> None:
        """One command has answered or failed."""
        self._seconds.labels(source.value).observe(seconds)
        if failure is not None:
            self._failures.labels(source.value, failure.kind.value).inc()

    def dialled(self, outcomes: Iterable[Outcome]) -> None:
        """One round of dials: figures of whoever did not answer go."""
        self._trips.clear()
        for outcome in outcomes:
            self._dials.labels("failed" if outcome.rtt_microseconds is None else "ok").inc()
            if outcome.rtt_microseconds is not None:
                self._trips.labels(*outcome.target.key).set(outcome.rtt_microseconds / 1e6)

    def probed(self, kind: str, outcome: str, seconds: float, count: int) -> None:
        """A probe has ended: ok, failed, refused (by a busy peer) or ended (by a group)."""
        self._probes.labels(kind, outcome).inc()
        self._probe_seconds.labels(kind).inc(seconds)
        self._probe_bytes.labels(kind).inc(count)

    def measures(self, prober: Prober) -> None:
        """Shows what that prober has found, with each request as it is then."""
        self.registry.register(_Measured(prober))

    def wrote(self, kind: str, result: str) -> None:
        """One write to the API server: ``result`` is ``ok`` or the refusal's reason."""
        self._writes.labels(kind, result).inc()

    def erred(self, loop: str) -> None:
        """A round of a loop ended with an exception that nobody expected."""
        self._errors.labels(loop).inc()

    def text(self) -> bytes:
        """The exposition format."""
        self._scrapes.inc()
        return generate_latest(self.registry)


_LABELS = ["probe", "node", "address", "link"]
_FIGURES = (
    ("gpu_fp16_flops", "fp16 throughput of the GPU, in floating-point operations a second.", "flops", 1.0),
    ("gpu_memory_bytes_per_second", "Memory bandwidth of the GPU.", "megabytes_per_second", 1e6),
    ("link_sent_bytes_per_second", "Throughput to a peer, as timed there.", "sent_mbps", 125_000.0),
    ("link_received_bytes_per_second", "Throughput from a peer, as timed here.", "received_mbps", 125_000.0),
    ("link_rtt_seconds", "Round trip to a peer, the median.", "rtt_microseconds", 1e-6),
    ("link_jitter_seconds", "Mean absolute difference of neighbouring round trips.", "jitter_microseconds", 1e-6),
    ("link_all_sum_seconds", "Time of a small all-sum of two ranks.", "all_sum_microseconds", 1e-6),
)


class _Measured:
    """A collector: what a prober has found, and how old it is."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        prefix, now, ledger = "thunderfleet_agent", time.monotonic(), self._prober.ledger
        age = GaugeMetricFamily(f"{prefix}_measured_age_seconds", "How long ago a figure was measured.", labels=_LABELS)
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
        running = GaugeMetricFamily(f"{prefix}_probes_running", "Probes that run now.")
        running.add_metric([], len(self._prober.running))
        yield running
