"""Metrics that every program has, and labels for all metrics of one."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from thunderfleet_lib.metrics import Labelled, ProcessMetrics, package_version, resident_bytes


def test_a_program_shows_its_version_and_what_it_uses() -> None:
    registry = CollectorRegistry()
    registry.register(ProcessMetrics("agent"))
    labels = {"program": "agent"}
    assert registry.get_sample_value("thunderfleet_build_info", {**labels, "version": package_version()}) == 1
    cpu = registry.get_sample_value("thunderfleet_process_cpu_seconds_total", labels)
    memory = registry.get_sample_value("thunderfleet_process_resident_memory_bytes", labels)
    free = registry.get_sample_value("thunderfleet_process_free_descriptors", labels)
    with open(os.devnull, "rb"):
        less = registry.get_sample_value("thunderfleet_process_free_descriptors", labels)
    assert free is not None and less == free - 1
    assert cpu is not None and cpu > 0
    assert memory is not None and memory > 1_000_000
    assert resident_bytes() is not None


def test_labels_are_added_and_replace_none() -> None:
    inner, outer = CollectorRegistry(), CollectorRegistry()
    Counter("served", "Served.", ["code"], registry=inner).labels("200").inc()
    Gauge("loaded", "Loaded.", ["rank"], registry=inner).labels("1").set(5)
    outer.register(Labelled(inner, {"deployment": "qwen", "rank": "0"}))
    text = generate_latest(outer).decode()
    assert 'served_total{code="200",deployment="qwen",rank="0"} 1.0' in text
    assert 'loaded{deployment="qwen",rank="1"} 5.0' in text
