"""The gateway's metrics for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from thunderfleet_runner.api.http.admission import Admission
from thunderfleet_runner.protocol import Done

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_GAPS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_RATES = (1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 5000)


class GatewayMetrics:
    """Counters and histograms of one gateway, in its supervisor's registry."""

    def __init__(self, registry: CollectorRegistry, admission: Callable[[], Admission]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"thunderfleet_runner_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"thunderfleet_runner_{name}", text, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"thunderfleet_runner_{name}", text, registry=registry).set_function(value)

        self.requests = counter("requests", "API requests by endpoint and HTTP status.", "endpoint", "code")
        self.errors = counter("stream_errors", "Streams that ended with an error event.")
        self.intake_ends = counter(
            "intake_ends",
            "Exits of the process that reads and tokenizes requests, by cause: cpu, memory or time (a request reached that "
            "limit), other.",
            "cause",
        )
        self.first = histogram(
            "time_to_first_token_seconds", "Seconds from the arrival of a request to its first token.", _SECONDS
        )
        self.gap = histogram("time_between_tokens_seconds", "Seconds from one token of a request to its next.", _GAPS)
        self.whole = histogram("request_seconds", "Seconds from the arrival of a request to its last token.", _SECONDS)
        self.prompt_size = histogram("prompt_size_tokens", "Prompt tokens of one request.", _TOKENS)
        self.answer_size = histogram("answer_size_tokens", "Generated tokens of one request.", _TOKENS)
        self.hits = counter("prompt_cache_hits", "Requests for which a part of the prompt was in the prompt cache.")
        self.rate = histogram("decode_tokens_per_second", "Tokens per second of one request after its first token.", _RATES)
        self.queued = histogram("queue_seconds", "Seconds that requests waited in the queue.", _SECONDS)
        self.prompt = counter("prompt_tokens", "Prompt tokens of served requests.")
        self.cached = counter("cached_tokens", "Prompt tokens taken from the prompt cache.")
        self.generated = counter("generated_tokens", "Tokens generated for clients.")
        gauge("queue_depth", "Requests waiting in the queue.", lambda: admission().waiting)
        gauge(
            "kv_reserved_tokens",
            "Tokens of the KV cache that running requests have reserved: prompts and answers.",
            lambda: admission().reserved,
        )
        gauge("kv_limit_tokens", "Tokens of the KV cache that running requests may reserve.", lambda: admission().budget)
        gauge("requests_running", "Requests that are running.", lambda: admission().running)

    def finished(self, done: Done) -> None:
        """Counts a request with which rank 0 is done."""
        self.prompt.inc(done.prompt_tokens)
        self.cached.inc(done.cached_tokens)
        self.generated.inc(done.generated_tokens)
        self.prompt_size.observe(done.prompt_tokens)
        self.answer_size.observe(done.generated_tokens)
        if done.cached_tokens:
            self.hits.inc()
