"""What the operator counts of itself, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """One registry of its own, so that two operators in one process (tests) do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "thunderfleet_operator_reconciles", "Reconciles, by kind and result.", ["kind", "result"], registry=self.registry
        )
        self.duration = Histogram(
            "thunderfleet_operator_reconcile_duration_seconds",
            "Time of one reconcile.",
            ["kind"],
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
            registry=self.registry,
        )
        self.errors = Counter(
            "thunderfleet_operator_reconcile_errors",
            "Reconciles that failed and are tried again.",
            ["kind"],
            registry=self.registry,
        )
        self.queue = Gauge("thunderfleet_operator_queue_depth", "Keys that wait for the worker.", registry=self.registry)
        self.groups = Gauge(
            "thunderfleet_operator_groups", "Groups of all ModelDeployments, by state.", ["state"], registry=self.registry
        )
        self.writes = Counter(
            "thunderfleet_operator_api_writes",
            "Requests to the API server that write, by resource and verb.",
            ["resource", "verb"],
            registry=self.registry,
        )
        self.leading = Gauge("thunderfleet_operator_leading", "1 on the active replica.", registry=self.registry)
        self.placements = Counter(
            "thunderfleet_operator_placements", "Placements made, by transport.", ["transport"], registry=self.registry
        )
