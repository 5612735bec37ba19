"""Spans of requests for OpenTelemetry. Off unless a collector is named; needs the packages of the extra ``tracing``.

Each request to the API has one span, which continues the client's ``traceparent``, and one below it for each attempt at a
group, whose gateway gets the attempt's ``traceparent``. Spans hold no prompt, no answer and no key.

The SDK exports them in a thread of its own, as OTLP over HTTP. It drops spans when its queue is full, and when the collector is
away. The usual variables of OpenTelemetry, such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER, have an effect.
"""

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Protocol

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Environment variables. Each of them turns spans on."""
DISABLED = "OTEL_SDK_DISABLED"

Value = str | int | float


class Span(Protocol):
    """A span that has started."""

    def set(self, values: Mapping[str, Value]) -> None:
        """Adds attributes."""

    def failed(self, why: str) -> None:
        """Marks the span as an error."""

    def headers(self) -> Mapping[str, str]:
        """``traceparent`` and ``tracestate`` for what is called within the span; empty if those of the client are passed on."""


class Tracing(Protocol):
    """Makes spans."""

    def request(self, name: str, headers: Mapping[str, str]) -> contextlib.AbstractContextManager[Span]:
        """The span of a request with these headers."""

    def attempt(self, name: str, parent: Span) -> contextlib.AbstractContextManager[Span]:
        """The span of an attempt at a group."""

    def close(self) -> None:
        """Exports the remaining spans, up to a time limit. Blocks."""


class NoSpan:
    """The span of a router without a collector: records nothing."""

    def set(self, values: Mapping[str, Value]) -> None:
        pass

    def failed(self, why: str) -> None:
        pass

    def headers(self) -> Mapping[str, str]:
        return {}


class Off:
    """Makes no spans."""

    _span = NoSpan()

    def request(self, name: str, headers: Mapping[str, str]) -> contextlib.AbstractContextManager[Span]:
        return contextlib.nullcontext(self._span)

    def attempt(self, name: str, parent: Span) -> contextlib.AbstractContextManager[Span]:
        return contextlib.nullcontext(self._span)

    def close(self) -> None:
        pass


OFF = Off()


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names a collector."""
    return environment.get(DISABLED, "").lower() != "true" and any(environment.get(name) for name in ENDPOINTS)


def tracing(namespace: str, router: str) -> Tracing:
    """Spans as configured by the environment. Without the packages, the router logs this and serves without spans."""
    if not wanted():
        return OFF
    try:
        from thunderfleet_router import spans
    except ImportError as error:
        log.warning("no spans, because OpenTelemetry is not installed (pip install 'thunderfleet[tracing]'): %s", error)
        return OFF
    return spans.spans(namespace, router)
