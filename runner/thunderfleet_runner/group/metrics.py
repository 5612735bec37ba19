"""A supervisor's metrics for Prometheus, derived from the state that it serves, so that the two never disagree."""

from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from thunderfleet_crds.exchange.group import Failure, GroupState
from thunderfleet_crds.vocabulary import ReportedGroupPhase
from thunderfleet_lib.metrics import ProcessMetrics

_OF_A_RANK = {
    "loaded_bytes": "Bytes of weights that the rank has loaded.",
    "total_bytes": "Bytes of weights in the rank's shard; 0 until it starts to load.",
    "loaded_layers": "Layers that the rank has loaded.",
    "peak_memory_bytes": "Peak memory of the rank's process, as counted by MLX.",
}
"""Fields of ``RankReport``."""


class _HeartbeatAges(Collector):
    def __init__(self, ages: Callable[[], dict[int, float]]) -> None:
        self._ages = ages

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "thunderfleet_runner_heartbeat_age_seconds",
            "Seconds since the rank's process last sent a message.",
            labels=["rank"],
        )
        for rank, age in sorted(self._ages().items()):
            family.add_metric([str(rank)], age)
        yield family


class GroupMetrics:
    """Call ``observe`` with every new state."""

    def __init__(self, registry: CollectorRegistry, ages: Callable[[], dict[int, float]]) -> None:
        self._phase = Gauge(
            "thunderfleet_runner_phase", "1 for the current phase of the group, else 0.", ["phase"], registry=registry
        )
        self._attempts = Gauge("thunderfleet_runner_attempts", "Attempts started in this epoch (placement).", registry=registry)
        self._recoveries = Gauge(
            "thunderfleet_runner_recoveries",
            "Times the group recovered from a failure in this epoch (placement).",
            registry=registry,
        )
        self._failures = Counter(
            "thunderfleet_runner_failures",
            "Failures of the group, by class (label fault, such as Retry or Reboot) and reason of the first cause.",
            ["fault", "reason"],
            registry=registry,
        )
        self._ranks = {
            field: Gauge(f"thunderfleet_runner_rank_{field}", text, ["rank", "node"], registry=registry)
            for field, text in _OF_A_RANK.items()
        }
        self._last: Failure | None = None
        registry.register(_HeartbeatAges(ages))
        registry.register(ProcessMetrics("runner"))

    def observe(self, state: GroupState) -> None:
        """Sets all metrics from ``state``."""
        for phase in get_args(ReportedGroupPhase):
            self._phase.labels(phase.value).set(1 if phase is state.phase else 0)
        self._attempts.set(state.attempt)
        self._recoveries.set(state.recoveries)
        for rank in state.ranks:
            for field, gauge in self._ranks.items():
                gauge.labels(str(rank.rank), rank.node).set(getattr(rank, field))
        failure = state.failure
        if failure is not None and (self._last is None or (failure.attempt, failure.at) != (self._last.attempt, self._last.at)):
            self._failures.labels(failure.fault.value, failure.reason).inc()
        self._last = failure
