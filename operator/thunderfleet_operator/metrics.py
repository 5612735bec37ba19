"""The operator's own Prometheus metrics."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from thunderfleet_crds.vocabulary import Transport
from thunderfleet_lib.metrics import ProcessMetrics


class Metrics:
    """All metrics, in a registry that belongs to one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(ProcessMetrics("operator"))
        self.reconciles = Counter(
            "thunderfleet_operator_reconciles", "Reconciles, by kind and result.", ["kind", "result"], registry=self.registry
        )
        self.duration = Histogram(
            "thunderfleet_operator_reconcile_duration_seconds",
            "Duration of one reconcile.",
            ["kind"],
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
            registry=self.registry,
        )
        self.errors = Counter(
            "thunderfleet_operator_reconcile_errors",
            "Reconciles that failed and are retried.",
            ["kind"],
            registry=self.registry,
        )
        self.queue = Gauge("thunderfleet_operator_queue_depth", "Keys in the work queue.", registry=self.registry)
        self.groups = Gauge(
            "thunderfleet_operator_groups", "Groups of all ModelDeployments, by state.", ["state"], registry=self.registry
        )
        self.writes = Counter(
            "thunderfleet_operator_api_writes",
            "Write requests to the API server, by resource and verb.",
            ["resource", "verb"],
            registry=self.registry,
        )
        self.leading = Gauge(
            "thunderfleet_operator_leading", "1 if this replica is the leader, else 0.", registry=self.registry
        )
        self.silent = Gauge(
            "thunderfleet_operator_control_plane_silent",
            "1 if this replica cannot determine which one leads, because this part of the control plane does not answer; "
            "else 0.",
            ["part"],
            registry=self.registry,
        )
        self.clock = Gauge(
            "thunderfleet_operator_clock_wrong_seconds",
            "Seconds by which the clock of the replica's machine is ahead of the API server's (negative: behind); 0 if it is "
            "right.",
            registry=self.registry,
        )
        self._unrenewed = Gauge(
            "thunderfleet_operator_component_unrenewed_seconds",
            "Seconds since kube-scheduler or kube-controller-manager last renewed its Lease, as the leader observes it; "
            "absent for one without a Lease.",
            ["component"],
            registry=self.registry,
        )
        self.placements = Counter(
            "thunderfleet_operator_placements", "Placements made, by transport.", ["transport"], registry=self.registry
        )
        for transport in set(Transport) - {Transport.AUTO}:
            # From 0 on: Prometheus counts no increase where a series begins.
            self.placements.labels(transport.value)

    def unrenewed(self, seconds: Mapping[str, float]) -> None:
        """Shows for how long each component of the control plane has not renewed its Lease, and no others."""
        self._unrenewed.clear()
        for component, value in seconds.items():
            self._unrenewed.labels(component).set(value)
