"""Measuring end to end: three recorded Macs whose cables let through different rates each way, with a recorded JACCL.

Links report the rates that the kernel allows, placements use the faster cable, and no probe runs beside a group. With
``THUNDERFLEET_E2E_MEASURE=name`` the tests use a running cluster of this fleet and leave it running.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from thunderfleet_localcluster.network.plan import rate_rule

from tests.support.line import MEASURED, SYSTEM, Deploy, Deployment, Line, condition, on_fleet
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
    *MEASURED,
    "operator.replicas=1",
    "agent.measure.spreadSeconds=0",
    # Their default: a busy machine needs longer than in other tests.
    "agent.measure.gpu.seconds=20",
    "agent.measure.memory.seconds=20",
    "agent.measure.sockets.everySeconds=10",
    f"agent.measure.rdma.everySeconds={EVERY_SECONDS}",
    "agent.measure.rdma.seconds=20",
)
# Sender and receiver: the sender's interface and its limit in Mb/s, well below what a busy processor can send.
SHAPES = {
    ("studio-1", "studio-2"): ("en2", 50),
    ("studio-2", "studio-1"): ("en2", 200),
    ("studio-1", "studio-3"): ("en3", 200),
    ("studio-3", "studio-1"): ("en2", 300),
    ("studio-2", "studio-3"): ("en3", 300),
    ("studio-3", "studio-2"): ("en3", 300),
}
WAIT_SECONDS = 150.0
MEMORY_MBPS = 800_000
ANSWER_PAUSE_SECONDS = 2.0
"""Ranks that answer all the time use every processor."""
AGENT_METRICS_PORT = 9441
_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? ([0-9.e+-]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    with on_fleet(FLEET, "measure", "THUNDERFLEET_E2E_MEASURE", *VALUES) as found:
        for (sender, _), (interface, rate) in SHAPES.items():
            assert found.run(sender, "tc", *rate_rule(interface, rate)).returncode == 0
        yield found


def measured(line: Line, transport: str) -> dict[tuple[str, str], Json]:
    """Throughput in the links' status, by direction."""
    return {
        (entry["from"], entry["to"]): entry
        for link in line.items("tbl")
        for entry in link.get("status", {}).get("measurements", [])
        if entry["transport"] == transport
    }


def metrics(line: Line, mac: str) -> dict[tuple[str, str], float]:
    """An agent's figures, by name and labels. Raises OSError when it is away."""
    address = line.cluster.machines[mac].address
    answer = line.request(f"http://{address}:{AGENT_METRICS_PORT}/metrics")
    if answer.status != 200:
        raise OSError(answer.body)
    return {(name, labels): float(value) for name, labels, value in _SERIES.findall(answer.body)}


def within(entry: Json, rate: int) -> bool:
    return bool(abs(entry.get("throughputMbps", 0) - rate) <= rate / 10)


def off(line: Line) -> list[str]:
    """The directions of cables that are not measured right."""
    said = measured(line, "Socket")
    return [f"{way}: {said.get(way)}" for way, (_, rate) in SHAPES.items() if not within(said.get(way, {}), rate)]


def until_right(line: Line) -> None:
    """Waits until each direction of each cable is measured right: a busy processor sends less, until the next time."""
    goal = "every direction is within a tenth of its shape"
    until(lambda: not off(line), goal, WAIT_SECONDS, describe=lambda: "\n".join(off(line)))


def memory(line: Line, mac: str) -> float | None:
    """Bytes per second of that Mac's memory, as its agent knows it; None while it is away or has not read what it measured."""
    try:
        shown = metrics(line, mac)
    except OSError:
        return None
    return next((value for (name, _), value in shown.items() if name == "thunderfleet_agent_gpu_memory_bytes_per_second"), None)


def equal_memory(line: Line) -> None:
    """Gives the Macs the same measured memory: it counts before cables, and on a busy machine it differs from Mac to Mac.

    An agent publishes what it remembers, and after a restart it remembers the newest of its file and its status.
    """

    def equal() -> bool:
        wrong = [mac for mac in line.macs if memory(line, mac) != MEMORY_MBPS * 1e6]
        for mac in wrong:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            alike = {"megabytesPerSecond": MEMORY_MBPS, "measuredAt": now}
            status = json.dumps({"status": {"benchmarks": {"memory": alike}}})
            line.kubectl("patch", "np", mac, "--subresource=status", "--type=merge", "-p", status)
            signalled(line, mac, "KILL")
        # Each restart of an agent waits longer, so none is restarted because it has not started yet.
        until(lambda: all(memory(line, mac) is not None for mac in wrong), "the agents know their memory", WAIT_SECONDS)
        return not wrong

    until(equal, "every agent has the same memory", WAIT_SECONDS, describe=lambda: line.kubectl("get", "np", "-o", "yaml"))


def test_links_say_what_the_kernel_lets_through_in_each_direction(line: Line) -> None:
    until_right(line)
    entry = measured(line, "Socket")[("studio-1", "studio-2")]
    assert entry["rttMicroseconds"] > 0 and entry["payloadBytes"] > 0 and "jitterMicroseconds" in entry

    def shown() -> bool:
        heads, *rows = (row.split() for row in line.kubectl("get", "tbl").splitlines())
        gbps, rtt = heads.index("GBPS"), heads.index("RTT")
        return all(re.fullmatch(r"[\d.]+/[\d.]+", row[gbps]) and re.fullmatch(r"\d+us", row[rtt]) for row in rows)

    until(shown, "the columns show each way and the round trip", describe=lambda: line.kubectl("get", "tbl"))

    def slow() -> str:
        found = condition(line.json("get", "tbl", "studio-1.tb1--studio-2.tb1"), "Connected")
        return str(found["message"]) if found.get("reason") == "Degraded" else ""

    # The operator concludes it from what the agents measured.
    message = until(slow, "the link says that it is slow")
    assert "negotiated 80 Gb/s" in message and "likely causes" in message


def test_a_group_of_two_measures_each_cable_over_jaccl(line: Line) -> None:
    def missing() -> list[tuple[str, str]]:
        return sorted(set(SHAPES) - set(measured(line, "RDMA")))

    until(lambda: not missing(), "every cable is measured by a group", WAIT_SECONDS, describe=lambda: f"{missing()}")
    said = measured(line, "RDMA")
    assert all(entry["throughputMbps"] > 0 and entry["rttMicroseconds"] > 0 for entry in said.values())
    until(lambda: not any(ranks(line, mac) for mac in line.macs), "nothing of them is left", pause=CENSUS_PAUSE_SECONDS)


def test_doctor_tests_each_cable(line: Line) -> None:
    """It connects over each, forms a group of two and has it add numbers; what agents measure meanwhile goes first."""
    kubeconfig = str(line.cluster.folder.inner_kubeconfig)
    command = (sys.executable, "-m", "thunderfleet_cli", "doctor", "-o", "json", "--kubeconfig", kubeconfig)

    def tested() -> dict[tuple[str, str], Json]:
        done = line.run("studio-1", *command, seconds=WAIT_SECONDS)
        assert "testing 3 cables" in done.stderr, done.stderr
        return {(one["subject"], one["name"]): one for one in json.loads(done.stdout)["checks"]}

    def worked(found: dict[tuple[str, str], Json]) -> bool:
        steps = ("dial", "pair", "all-reduce")
        return all(found[str(link["metadata"]["name"]), step]["state"] == "ok" for link in line.items("tbl") for step in steps)

    found = until(lambda: found if worked(found := tested()) else None, "every cable works", WAIT_SECONDS)
    one = "studio-1.tb1--studio-2.tb1"
    assert "two processes of MLX formed a group over RDMA now" in found[one, "pair"]["finding"]
    assert "got the right sum" in found[one, "all-reduce"]["finding"] and "round trip" in found[one, "dial"]["finding"]


def test_profiles_show_what_the_gpu_does(line: Line) -> None:
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


def test_a_placement_takes_the_faster_cable_and_nothing_measures_beside_it(line: Line, deploy: Deploy) -> None:
    equal_memory(line)

    def placed() -> Deployment | None:
        """A group that was placed by figures that are right. Frozen agents put no others in their place meanwhile."""
        until_right(line)
        for mac in line.macs:
            signalled(line, mac, "STOP")
        try:
            if off(line):
                return None
            made = deploy("fast", transport="Ring", nodes={"min": 2, "max": 2})
            made.until_condition("Placed", "True")
            return made
        finally:
            for mac in line.macs:
                signalled(line, mac, "CONT")

    served = until(placed, "a group is placed by figures that are right", WAIT_SECONDS).until_ready()
    assert {rank["node"] for rank in served.ranks()} == {"studio-2", "studio-3"}, served.conditions()
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
    served.until(long_ago, "the group's cable has not been measured for long", pause=ANSWER_PAUSE_SECONDS)
    assert {mac: probes(mac) for mac in before} == before
    line.forget(served)
    until(lambda: all(age(mac) < 20 for mac in before), "the cable is measured again", WAIT_SECONDS)


# --- agents killed, frozen, cut off and restarted in the middle of a group's probe ---

# Run on a machine: the rank of every two-rank group that is measured there, by process id.
CENSUS = """
import os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if "measure-child" in words and state != "Z":
        import json
        order = json.loads(words[words.index("measure-child") + 1])
        if order["what"] == "pair":
            found[pid] = order["rank"]
print(found)
"""
# It starts a process on each Mac, again and again.
CENSUS_PAUSE_SECONDS = 0.5
AGENT = "thunderfleet-agent ru[n]"


def ranks(line: Line, mac: str) -> dict[str, int]:
    """Process id and rank of the processes that measure cables on that Mac."""
    ran = line.run(mac, sys.executable, "-I", "-S", "-c", CENSUS)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, int] = ast.literal_eval(ran.stdout)
    return found


def in_the_middle(line: Line) -> dict[int, tuple[str, str]]:
    """Mac and process id of each rank of a group that is measured now; empty unless both ranks are there."""
    found = {rank: (mac, pid) for mac in line.macs for pid, rank in ranks(line, mac).items()}
    return found if set(found) == {0, 1} else {}


def signalled(line: Line, mac: str, signal: str) -> None:
    """A signal to that Mac's agent alone."""
    done = line.run(mac, "pkill", f"-{signal}", "-f", AGENT)
    assert done.returncode == 0, f"no agent on {mac}: {done.stderr}"


def ages(line: Line, mac: str, probe: str) -> dict[str, float]:
    """How old that Mac's results of one kind are, in seconds, by their labels; empty while its agent is away."""
    try:
        shown = metrics(line, mac)
    except OSError:
        return {}
    name, wanted = "thunderfleet_agent_measured_age_seconds", f'probe="{probe}"'
    return {labels: value for (each, labels), value in shown.items() if each == name and wanted in labels}


def fresh(line: Line, mac: str) -> Json:
    """The condition BenchmarksFresh of that Mac."""
    conditions: list[Json] = line.json("get", "np", mac)["status"]["conditions"]
    return next(each for each in conditions if each["type"] == "BenchmarksFresh")


@dataclass(frozen=True)
class Struck:
    """A probe between two Macs: the Mac and process that a fault hits, and those at the other end."""

    line: Line
    mac: str
    pid: str
    other: str
    other_pid: str

    @classmethod
    def wait(cls, line: Line, rank: int, among: set[str]) -> Struck:
        """Waits until a Mac of ``among`` is in the middle of a probe as ``rank``."""

        def found() -> dict[int, tuple[str, str]]:
            now = in_the_middle(line)
            return now if now and now[rank][0] in among else {}

        goal = f"one of {sorted(among)} is in a probe as rank {rank}"
        now = until(found, goal, WAIT_SECONDS, pause=CENSUS_PAUSE_SECONDS)
        return cls(line, *now[rank], *now[1 - rank])

    def gone(self) -> None:
        """Waits until the Mac that was hit runs nothing of the probe."""
        self._gone(self.mac, self.pid)

    def other_gone(self) -> None:
        """Waits until the other end runs nothing of the probe."""
        self._gone(self.other, self.other_pid)

    def _gone(self, mac: str, pid: str) -> None:
        goal = f"nothing of the probe is left on {mac}"
        until(lambda: pid not in ranks(self.line, mac), goal, pause=CENSUS_PAUSE_SECONDS)


def all_fresh(line: Line) -> bool:
    """Whether every Mac reports fresh measurements."""
    return all(fresh(line, mac)["status"] == "True" for mac in line.macs)


def cable_ages(line: Line) -> list[float]:
    """Ages of the results of both ends of every cable; empty until all are there."""
    found = [age for mac in line.macs for age in ages(line, mac, "rdma").values()]
    return found if len(found) == 2 * len(line.macs) else []


def silent_peer_reported(line: Line, mac: str) -> bool:
    """Whether that Mac reports a probe that failed because the other end fell silent, and when it tries again."""
    said = fresh(line, mac)
    return (
        said["reason"] == "BenchmarkFailed"
        and "sent no message within" in said["message"]
        and "next attempt at" in said["message"]
    )


def lose_the_lan(line: Line, rank: int, reported: bool) -> None:
    """Unplugs the LAN of the Mac with ``rank`` in a probe: both ends give up; if ``reported``, the other says why."""
    struck = Struck.wait(line, rank, set(line.macs))
    line.cluster.lan("pull", struck.mac)
    try:
        struck.other_gone()
        struck.gone()
        if reported:
            why = partial(silent_peer_reported, line, struck.other)
            until(why, f"{struck.other} says why", describe=lambda: str(fresh(line, struck.other)))
    finally:
        line.cluster.lan("plug", struck.mac)


def freeze_the_agent(line: Line, rank: int) -> None:
    """Stops the agent with ``rank`` in the middle of a probe: the other end is free long before the group's limit."""
    struck = Struck.wait(line, rank, set(line.macs))
    signalled(line, struck.mac, "STOP")
    try:
        # The frozen end still has its process.
        struck.other_gone()
    finally:
        signalled(line, struck.mac, "CONT")
    struck.gone()


def delete_the_agent(line: Line) -> str:
    """Deletes the agent's pod of a Mac in the middle of a probe. Returns the Mac."""
    struck = Struck.wait(line, 1, set(line.macs))
    (pod,) = (
        item["metadata"]["name"]
        for item in line.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=agent")
        if item["spec"]["nodeName"] == struck.mac
    )
    line.kubectl("delete", "pod", "-n", SYSTEM, pod)
    struck.other_gone()
    struck.gone()
    return struck.mac


def kill_the_agent(line: Line, rank: int, among: set[str]) -> str:
    """Kills the agent with ``rank`` in the middle of a probe. Returns its Mac."""
    struck = Struck.wait(line, rank, among)
    signalled(line, struck.mac, "KILL")
    struck.other_gone()
    struck.gone()
    return struck.mac


def test_agents_broken_in_the_middle_of_a_probe_free_the_other_end_and_measure_afterwards(line: Line) -> None:
    macs = set(line.macs)
    until(lambda: all_fresh(line), "everything is measured", WAIT_SECONDS)
    before = {item["metadata"]["name"]: item["status"]["benchmarks"] for item in line.items("np")}

    def stale() -> bool:
        found = cable_ages(line)
        return bool(found) and min(found) > 2 * EVERY_SECONDS

    for mac in macs:
        # From now on every group stays in its probe until the agents' time limit.
        line.cluster.jaccl(mac, [{"at": "rtr", "hang": True}])
    try:
        restarted = {kill_the_agent(line, 0, macs)}
        restarted.add(kill_the_agent(line, 1, macs - restarted))
        for rank in (0, 1):
            freeze_the_agent(line, rank)
        until(stale, "no group has been measured for long")
        lose_the_lan(line, 1, reported=True)
        lose_the_lan(line, 0, reported=False)
        restarted.add(delete_the_agent(line))
    finally:
        for mac in macs:
            line.cluster.jaccl(mac, [])
    mended = time.monotonic()

    def measured_since() -> bool:
        found = cable_ages(line)
        return bool(found) and max(found) < time.monotonic() - mended

    until(measured_since, "every cable is measured by a group again", WAIT_SECONDS)
    until(lambda: all_fresh(line), "every Mac says so", WAIT_SECONDS)
    # A restarted agent repeats no measurement that is still fresh.
    assert {item["metadata"]["name"]: item["status"]["benchmarks"] for item in line.items("np")} == before
    counted = {mac: [labels for name, labels in metrics(line, mac) if name.endswith("probes_total")] for mac in restarted}
    assert len(restarted) >= 2 and all(counted.values())
    assert not [each for found in counted.values() for each in found if 'probe="gpu"' in each or 'probe="memory"' in each]
    until(lambda: not any(ranks(line, mac) for mac in macs), "no process of a probe is left", pause=CENSUS_PAUSE_SECONDS)
