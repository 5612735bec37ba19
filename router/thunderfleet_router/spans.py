"""Spans with the SDK of OpenTelemetry. ``tracing`` imports this module only if they are on."""

import contextlib
import threading
from collections.abc import Iterator, Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

NAME = "thunderfleet-router"
FLUSH_SECONDS = 3.0
"""Time limit for exporting the last spans of a router that ends."""
_PROPAGATOR = TraceContextTextMapPropagator()


class _Span:
    def __init__(self, span: trace.Span) -> None:
        self.span = span

    def set(self, values: Mapping[str, str | int | float]) -> None:
        self.span.set_attributes(values)

    def failed(self, why: str) -> None:
        self.span.set_status(Status(StatusCode.ERROR, why))

    def headers(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        _PROPAGATOR.inject(found, trace.set_span_in_context(self.span))
        return found


class Spans:
    """Spans of a provider. Contexts are passed explicitly, so a span cannot belong to another request."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer(NAME)

    @contextlib.contextmanager
    def request(self, name: str, headers: Mapping[str, str]) -> Iterator["_Span"]:
        carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        with self._ended(self._tracer.start_span(name, _PROPAGATOR.extract(carrier), SpanKind.SERVER)) as span:
            yield span

    @contextlib.contextmanager
    def attempt(self, name: str, parent: object) -> Iterator["_Span"]:
        assert isinstance(parent, _Span)
        context = trace.set_span_in_context(parent.span)
        with self._ended(self._tracer.start_span(name, context, SpanKind.CLIENT)) as span:
            yield span

    @staticmethod
    @contextlib.contextmanager
    def _ended(span: trace.Span) -> Iterator[_Span]:
        try:
            yield _Span(span)
        finally:
            span.end()

    def close(self) -> None:
        """Exports the remaining spans within FLUSH_SECONDS. Blocks."""
        # The SDK exceeds its own limits while a collector is slow to answer.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)
        if ending.is_alive():
            # Stops retries.
            self._exporter.shutdown()


def spans(namespace: str, router: str) -> Spans:
    """Spans for the collector that the environment names."""
    resource = Resource.create({"service.name": NAME, "service.namespace": namespace, "service.instance.id": router})
    return Spans(TracerProvider(resource=resource, shutdown_on_exit=False), OTLPSpanExporter())
