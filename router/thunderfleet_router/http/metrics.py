"""The router's metrics for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from thunderfleet_lib.metrics import ProcessMetrics

MAX_CALLERS = 2000
"""Keys at ModelDeployments with series of their own. Names of both change, and a router keeps series until it ends."""
OTHER = "(other)"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class RouterMetrics:
    """Counters and histograms of one router.

    ``tokens`` and ``limited`` have the label values of ``caller``, so that their series are bounded.
    """

    def __init__(self, in_flight: Callable[[], float], waiting: Callable[[], float], connected: Callable[[], bool]) -> None:
        self.registry = registry = CollectorRegistry()
        self._callers: set[tuple[str, str]] = set()
        registry.register(ProcessMetrics("router"))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"thunderfleet_router_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"thunderfleet_router_{name}", text, buckets=_SECONDS, registry=registry)

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"thunderfleet_router_{name}", text, registry=registry).set_function(value)

        self.requests = counter(
            "requests",
            "API requests by path, HTTP status, and namespace/name of the ModelDeployment.",
            "endpoint",
            "code",
            "model",
        )
        self.tokens = counter(
            "tokens",
            "Tokens of prompts and answers, by ModelDeployment and name of the API key (- without a key).",
            "model",
            "key",
        )
        self.retries = counter("retries", "Requests that were sent to another group because the first one failed.")
        self.group_failures = counter("group_failures", "Requests that were in flight when a group failed.")
        self.suspects = counter(
            "suspects_refused", "Requests that were refused because they were in flight at two failures of groups."
        )
        self.limited = counter(
            "limited",
            "Requests that were refused with status 429: by a limit of a key (requests_in_flight, tokens_per_minute or "
            "wakes_per_minute), or because too much waits in the router (queue_full, bodies_full). By limit, ModelDeployment "
            "and name of the key.",
            "limit",
            "model",
            "key",
        )
        self.reports = counter("demand_reports", "Reports of demand to the operator, by result: ok, refused, failed.", "result")
        self.first = histogram(
            "time_to_first_byte_seconds", "Seconds from the arrival of a request to the first byte of its answer."
        )
        self.waited = histogram("wait_seconds", "Seconds that requests waited in the router until a group had room for them.")
        gauge("requests_in_flight", "Requests that were sent to groups.", in_flight)
        gauge("requests_waiting", "Requests that wait in the router.", waiting)
        gauge("api_connected", "1 while the router can reach the API server.", lambda: float(connected()))

    def caller(self, model: str, key: str) -> tuple[str, str]:
        """The label values for a ModelDeployment and the name of a key there: the same, or OTHER for both of too many."""
        if (model, key) not in self._callers and len(self._callers) >= MAX_CALLERS:
            return OTHER, OTHER
        self._callers.add((model, key))
        return model, key
