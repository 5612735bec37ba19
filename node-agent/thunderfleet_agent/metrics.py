"""What the agent counts of itself, in a registry of its own (``/metrics``)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from thunderfleet_agent.facts import Source
from thunderfleet_agent.host import Failure
from thunderfleet_agent.reach import Outcome

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
