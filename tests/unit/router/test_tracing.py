"""Whether a router makes spans."""

import logging
import sys

import pytest
import thunderfleet_router
from thunderfleet_router import tracing

VARIABLES = (*tracing.ENDPOINTS, tracing.DISABLED)


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_spans_are_off_until_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = {name for name in sys.modules if name.startswith("thunderfleet_router.spans")}
    assert tracing.tracing("ns", "router-1") is tracing.OFF
    assert {name for name in sys.modules if name.startswith("thunderfleet_router.spans")} == loaded
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    assert not tracing.wanted()
    for name in tracing.ENDPOINTS:
        assert tracing.wanted({name: "http://collector:4318"})
        assert not tracing.wanted({name: "http://collector:4318", tracing.DISABLED: "true"})


def test_without_the_packages_a_router_serves_without_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.delitem(sys.modules, "thunderfleet_router.spans", raising=False)
    monkeypatch.delattr(thunderfleet_router, "spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert tracing.tracing("ns", "router-1") is tracing.OFF
    assert "thunderfleet[tracing]" in caplog.text
