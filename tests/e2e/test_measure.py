"""Measuring end to end: three recorded Macs whose cables let through different rates each way, with a recorded JACCL.

What the kernel lets through is what the links say; placements take the faster cable; nothing is measured beside a group. With
``THUNDERFLEET_E2E_MEASURE=name`` a cluster of this fleet that runs already is taken, and left running.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from thunderfleet_localcluster.network.plan import rate_rule

from tests.support.waiting import until

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
# Of groups over cables; an older result than two of it is stale.
EVERY_SECONDS = 20
VALUES = (
    "operator.replicas=1",
    "agent.measure.spreadSeconds=0",
    # A busy machine may take its time.
    "agent.measure.gpu.seconds=20",
    "agent.measure.memory.seconds=20",
    "agent.measure.sockets.everySeconds=10",
    f"agent.measure.rdma.everySeconds={EVERY_SECONDS}",
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
    """An agent's figures, by name and labels. Raises OSError when it is away."""
    address = line.cluster.machines[mac].address
    answer = line.request(f"http://{address}:{AGENT_METRICS_PORT}/metrics")
    if answer.status != 200:
        raise OSError(answer.body)
    return {(name, labels): float(value) for name, labels, value in _SERIES.findall(answer.body)}


def within(entry: Json, rate: int) -> bool:
    return bool(abs(entry.get("throughputMbps", 0) - rate) <= rate / 10)


def test_links_say_what_the_kernel_lets_through_in_each_direction(line: Any) -> None:
    def off() -> list[str]:
        said = measured(line, "Socket")
        return [f"{way}: {said.get(way)}" for way, (_, rate) in SHAPES.items() if not within(said.get(way, {}), rate)]

    until(lambda: not off(), "every direction is within a tenth of its shape", WAIT_SECONDS, describe=lambda: "\n".join(off()))
    entry = measured(line, "Socket")[("studio-1", "studio-2")]
    assert entry["rttMicroseconds"] > 0 and entry["payloadBytes"] > 0 and "jitterMicroseconds" in entry

    def shown() -> bool:
        heads, *rows = (row.split() for row in line.kubectl("get", "tbl").splitlines())
        gbps, rtt = heads.index("GBPS"), heads.index("RTT")
        return all(re.fullmatch(r"[\d.]+/[\d.]+", row[gbps]) and re.fullmatch(r"\d+us", row[rtt]) for row in rows)

    until(shown, "the columns show each way and the round trip", describe=lambda: line.kubectl("get", "tbl"))
    conditions = line.json("get", "tbl", "studio-1.tb1--studio-2.tb1")["status"]["conditions"]
    said = next(each for each in conditions if each["type"] == "Connected")
    assert said["reason"] == "Degraded" and "negotiated 80 Gb/s" in said["message"] and "likely causes" in said["message"]


def test_a_group_of_two_measures_each_cable_over_jaccl(line: Any) -> None:
    def missing() -> list[tuple[str, str]]:
        return sorted(set(SHAPES) - set(measured(line, "RDMA")))

    until(lambda: not missing(), "every cable is measured by a group", WAIT_SECONDS, describe=lambda: f"{missing()}")
    said = measured(line, "RDMA")
    assert all(entry["throughputMbps"] > 0 and entry["rttMicroseconds"] > 0 for entry in said.values())
    until(lambda: not any(ranks(line, mac) for mac in line.macs), "nothing of them is left")


def test_profiles_show_what_the_gpu_does(line: Any) -> None:
    def whole() -> bool:
        found = [item["status"].get("benchmarks", {}) for item in line.items("np")]
        return all(one.get("compute") and one.get("memory") for one in found)

    until(whole, "every Mac is measured", WAIT_SECONDS, describe=lambda: line.kubectl("get", "np", "-o", "yaml"))
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
    served.until(long_ago, "the group's cable has not been measured for long")
    assert {mac: probes(mac) for mac in before} == before
    line.forget(served)
    until(lambda: all(age(mac) < 20 for mac in before), "the cable is measured again", WAIT_SECONDS)


# --- agents killed, frozen, cut off and restarted in the middle of a group's probe ---

# Run on a machine: the rank of every two-rank group that is measured there, by process id.
CENSUS = """
import json, os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if "measure-child" in words and state != "Z":
        order = json.loads(words[words.index("measure-child") + 1])
        if order["what"] == "pair":
            found[pid] = order["rank"]
print(json.dumps(found))
"""
AGENT = "thunderfleet-agent ru[n]"


def ranks(line: Any, mac: str) -> dict[str, int]:
    """Process id and rank of what measures cables on that Mac."""
    ran = line.run(mac, sys.executable, "-S", "-c", CENSUS)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, int] = json.loads(ran.stdout)
    return found


def in_the_middle(line: Any) -> dict[int, tuple[str, str]]:
    """Mac and process id of each rank of a group that is measured now; empty unless both ranks are there."""
    found = {rank: (mac, pid) for mac in line.macs for pid, rank in ranks(line, mac).items()}
    return found if set(found) == {0, 1} else {}


def signalled(line: Any, mac: str, signal: str) -> None:
    """A signal to that Mac's agent alone."""
    done = line.run(mac, "pkill", f"-{signal}", "-f", AGENT)
    assert done.returncode == 0, f"no agent on {mac}: {done.stderr}"


def ages(line: Any, mac: str, probe: str) -> dict[str, float]:
    """How old that Mac's results of one kind are, in seconds, by their labels; empty while its agent is away."""
    try:
        shown = metrics(line, mac)
    except OSError:
        return {}
    name, wanted = "thunderfleet_agent_measured_age_seconds", f'probe="{probe}"'
    return {labels: value for (each, labels), value in shown.items() if each == name and wanted in labels}


def fresh(line: Any, mac: str) -> Json:
    """What that Mac says of its benchmarks."""
    conditions: list[Json] = line.json("get", "np", mac)["status"]["conditions"]
    return next(each for each in conditions if each["type"] == "BenchmarksFresh")


def test_agents_broken_in_the_middle_of_a_probe_free_the_other_end_and_measure_afterwards(line: Any) -> None:
    macs = set(line.macs)
    until(lambda: all(fresh(line, mac)["status"] == "True" for mac in macs), "everything is measured", WAIT_SECONDS)
    devices = {item["metadata"]["name"]: item["status"]["benchmarks"] for item in line.items("np")}

    def struck(rank: int, among: set[str]) -> tuple[str, str, str, str]:
        """A Mac of ``among`` that is now in the middle of a probe as that rank, and the other one: each with its process."""

        def found() -> dict[int, tuple[str, str]]:
            now = in_the_middle(line)
            return now if now and now[rank][0] in among else {}

        now = until(found, f"one of {sorted(among)} is in a probe as rank {rank}", WAIT_SECONDS)
        return (*now[rank], *now[1 - rank])

    def gone(mac: str, pid: str) -> None:
        until(lambda: pid not in ranks(line, mac), f"nothing of the probe is left on {mac}")

    def stale() -> bool:
        found = [age for mac in macs for age in ages(line, mac, "rdma").values()]
        return len(found) == 2 * len(macs) and min(found) > 2 * EVERY_SECONDS

    def told(mac: str) -> bool:
        said = fresh(line, mac)
        return said["reason"] == "ProbeFailed" and "said nothing for" in said["message"] and "next try at" in said["message"]

    def says_why(mac: str) -> None:
        until(lambda: told(mac), f"{mac} says why", describe=lambda: str(fresh(line, mac)))

    for mac in macs:
        # Whatever group is measured from now on stays in the middle for as long as its agents let it.
        line.cluster.jaccl(mac, [{"at": "rtr", "hang": True}])
    restarted: set[str] = set()
    try:
        for rank in (0, 1):
            mac, pid, other, theirs = struck(rank, macs - restarted)
            restarted.add(mac)
            signalled(line, mac, "KILL")
            gone(other, theirs)
            gone(mac, pid)
        for rank in (0, 1):
            mac, pid, other, theirs = struck(rank, macs)
            signalled(line, mac, "STOP")
            try:
                # Long before the limit of the group, and though the frozen end still has its process.
                gone(other, theirs)
            finally:
                signalled(line, mac, "CONT")
            gone(mac, pid)

        for rank in (1, 0):
            if rank == 1:
                until(stale, "no group has been measured for long")
            mac, pid, other, theirs = struck(rank, macs)
            line.cluster.lan("pull", mac)
            try:
                gone(other, theirs)
                gone(mac, pid)
                if rank == 1:
                    says_why(other)
            finally:
                line.cluster.lan("plug", mac)

        mac, pid, other, theirs = struck(1, macs)
        restarted.add(mac)
        (pod,) = (
            item["metadata"]["name"]
            for item in line.items("pods", "-n", "thunderfleet-system", "-l", "app.kubernetes.io/component=agent")
            if item["spec"]["nodeName"] == mac
        )
        line.kubectl("delete", "pod", "-n", "thunderfleet-system", pod)
        gone(other, theirs)
        gone(mac, pid)
    finally:
        for mac in macs:
            line.cluster.jaccl(mac, [])
    mended = time.monotonic()

    def measured_since() -> bool:
        found = [age for mac in macs for age in ages(line, mac, "rdma").values()]
        return len(found) == 2 * len(macs) and max(found) < time.monotonic() - mended

    until(measured_since, "every cable is measured by a group again", WAIT_SECONDS)
    until(lambda: all(fresh(line, mac)["status"] == "True" for mac in macs), "every Mac says so", WAIT_SECONDS)
    # An agent that was restarted has measured nothing that was fresh.
    assert {item["metadata"]["name"]: item["status"]["benchmarks"] for item in line.items("np")} == devices
    counted = {mac: [labels for name, labels in metrics(line, mac) if name.endswith("probes_total")] for mac in restarted}
    assert len(restarted) >= 2 and all(counted.values())
    assert not [each for found in counted.values() for each in found if 'probe="gpu"' in each or 'probe="memory"' in each]
    until(lambda: not any(ranks(line, mac) for mac in macs), "nothing of them is left")
