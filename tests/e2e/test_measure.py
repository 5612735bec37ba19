"""Measuring end to end: three recorded Macs whose cables let through different rates each way, with a recorded JACCL.

What the kernel lets through is what the links say; placements take the faster cable; nothing is measured beside a group. With
``THUNDERFLEET_E2E_MEASURE=name`` a cluster of this fleet that runs already is taken, and left running.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from thunderfleet_localcluster.network import rate_rule

Json = dict[str, Any]

FLEET = """
machines:
  - {name: linux-1, kind: linux}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-3, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
  - {a: "studio-1:2", b: "studio-3:1", speed: 80}
  - {a: "studio-2:2", b: "studio-3:2", speed: 80}
"""
VALUES = (
    "operator.replicas=1",
    "agent.measure.spreadSeconds=0",
    "agent.measure.sockets.everySeconds=10",
    "agent.measure.rdma.everySeconds=600",
    "agent.measure.rdma.seconds=20",
)
# From whom to whom, by which interface of the sender, at most so many Mbit/s.
SHAPES = {
    ("studio-1", "studio-2"): ("en2", 100),
    ("studio-2", "studio-1"): ("en2", 400),
    ("studio-1", "studio-3"): ("en3", 400),
    ("studio-3", "studio-1"): ("en2", 1000),
    ("studio-2", "studio-3"): ("en3", 1000),
    ("studio-3", "studio-2"): ("en3", 1000),
}
WAIT_SECONDS = 150.0
AGENT_METRICS_PORT = 9441
_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? ([0-9.e+-]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def line(on_fleet: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    with on_fleet(FLEET, "measure", "THUNDERFLEET_E2E_MEASURE", *VALUES) as found:
        for (sender, _), (interface, rate) in SHAPES.items():
            assert found.run(sender, "tc", *rate_rule(interface, rate)).returncode == 0
        yield found


def measured(line: Any, transport: str) -> dict[tuple[str, str], Json]:
    """What the links say, by direction."""
    return {
        (entry["from"], entry["to"]): entry
        for link in line.items("tbl")
        for entry in link.get("status", {}).get("measurements", [])
        if entry["transport"] == transport
    }


def metrics(line: Any, mac: str) -> dict[tuple[str, str], float]:
    """An agent's figures, by name and labels."""
    address = line.cluster.machines[mac].address
    answer = line.request(f"http://{address}:{AGENT_METRICS_PORT}/metrics")
    assert answer.status == 200
    return {(name, labels): float(value) for name, labels, value in _SERIES.findall(answer.body)}


def within(entry: Json, rate: int) -> bool:
    return bool(abs(entry.get("throughputMbps", 0) - rate) <= rate / 10)


def test_links_say_what_the_kernel_lets_through_in_each_direction(line: Any) -> None:
    def off() -> list[str]:
        said = measured(line, "Socket")
        return [f"{way}: {said.get(way)}" for way, (_, rate) in SHAPES.items() if not within(said.get(way, {}), rate)]

    line.until("every direction is within a tenth of its shape", lambda: not off(), WAIT_SECONDS, lambda: "\n".join(off()))
    entry = measured(line, "Socket")[("studio-1", "studio-2")]
    assert entry["rttMicroseconds"] > 0 and entry["payloadBytes"] > 0 and "jitterMicroseconds" in entry


def test_a_group_of_two_measures_each_cable_over_jaccl(line: Any) -> None:
    def missing() -> list[tuple[str, str]]:
        return sorted(set(SHAPES) - set(measured(line, "RDMA")))

    line.until("every cable is measured by a group", lambda: not missing(), WAIT_SECONDS, lambda: f"{missing()}")
    said = measured(line, "RDMA")
    assert all(entry["throughputMbps"] > 0 and entry["rttMicroseconds"] > 0 for entry in said.values())
    for mac in line.macs:
        left = line.run(mac, "sh", "-c", "pgrep -af measure-chil[d] || true").stdout
        assert "pair" not in left, left


def test_profiles_show_what_the_gpu_does(line: Any) -> None:
    def whole() -> bool:
        found = [item["status"].get("benchmarks", {}) for item in line.items("np")]
        return all(one.get("compute") and one.get("memory") for one in found)

    line.until("every Mac is measured", whole, WAIT_SECONDS, lambda: line.kubectl("get", "np", "-o", "yaml"))
    heads, *rows = line.kubectl("get", "np").splitlines()
    assert {"TFLOPS", "GB/S"} <= set(heads.split()) and len(rows) == 3
    for item in line.items("np"):
        benchmarks = item["status"]["benchmarks"]
        assert benchmarks["compute"]["mlxVersion"] and benchmarks["compute"]["measuredAt"]
        assert float(benchmarks["gigabytesPerSecond"]) > 0
    shown = metrics(line, "studio-1")
    assert any(name == "thunderfleet_agent_gpu_fp16_flops" and value > 0 for (name, _), value in shown.items())
    ages = {labels: value for (name, labels), value in shown.items() if name == "thunderfleet_agent_measured_age_seconds"}
    assert any('probe="gpu"' in labels for labels in ages) and any('probe="socket"' in labels for labels in ages)


def test_a_placement_takes_the_faster_cable_and_nothing_measures_beside_it(line: Any, deploy: Callable[..., Any]) -> None:
    served = deploy("fast", transport="Ring", nodes={"min": 2, "max": 2}).until_ready()
    assert {rank["node"] for rank in served.ranks()} == {"studio-2", "studio-3"}, served.told()
    link = "studio-2.tb2--studio-3.tb2"

    def probes(mac: str) -> dict[str, float]:
        shown = metrics(line, mac)
        gpu = {
            labels: v
            for (name, labels), v in shown.items()
            if name == "thunderfleet_agent_probes_total" and "socket" not in labels
        }
        return gpu

    def age(mac: str) -> float:
        shown = metrics(line, mac).items()
        wanted = (f'link="{link}"', 'probe="socket"')
        return max(
            value
            for (name, labels), value in shown
            if name == "thunderfleet_agent_measured_age_seconds" and all(word in labels for word in wanted)
        )

    before = {mac: probes(mac) for mac in ("studio-2", "studio-3")}

    def long_ago() -> bool:
        served.tokens("Say something", 16)
        return all(age(mac) > 30 for mac in before)

    # Three times its time to live has passed: without the gate, the cable would have been measured by now.
    served.until("the group's cable has not been measured for long", long_ago)
    assert {mac: probes(mac) for mac in before} == before
    line.forget(served)
    line.until("the cable is measured again", lambda: all(age(mac) < 20 for mac in before), WAIT_SECONDS)
