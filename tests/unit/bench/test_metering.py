"""What the benchmark of metrics counts."""

import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from tests.bench.routing.metering import Meter, figures


def test_calls_to_metrics_are_counted_with_their_time_and_only_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    asked = Counter("asked", "Asked.", ["code"], registry=registry)
    took = Histogram("took", "Took.", registry=registry)
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    meter, original = Meter(), Counter.inc
    with meter.running():
        asked.labels("200").inc()
        took.observe(1)
    took.observe(1)
    assert (meter.calls, meter.seconds) == (3, 3.0)
    assert Counter.inc is original
    assert registry.get_sample_value("asked_total", {"code": "200"}) == 1 and registry.get_sample_value("took_count") == 2


def test_requests_of_gateway_and_router_touch_metrics() -> None:
    found = figures(lambda text: None, requests=1)
    assert [one.name for one in found] == ["gateway, metrics", "router, metrics"]
    assert all(0 < one.value < 100 and one.bound is not None and one.bound.limit == 1 for one in found)
