"""Figures of probes: their results compared with those of other tools in the same minute, and their cost.

``python -m tests.bench measure`` runs them all on the line; ``python -m tests.bench.macs.measure`` those that need no cluster.
"""

import asyncio
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.measure.session import streams
from thunderfleet_agent.measure.worker import parent

from tests.bench import models, processes
from tests.bench.figures import Bound, Figure
from tests.bench.line import NAMESPACE, ROOT, BenchFailed, Line

Say = Callable[[str], None]

DAY_SECONDS = 86_400
# Of the Mac whose day is computed: two cables, two other Macs on the LAN.
CABLES, OTHERS = 2, 2
MIB = 2**20
LOOPBACK = "127.0.0.1"
METRICS_PORT = 9441
TOKENS = 64
PAIRS = 4
SOCKET_ROUNDS = 25
# An agent, or its measuring process; the brackets keep the pattern from matching itself.
PROBER = "thunderfleet-agent ru[n]|measure-chil[d]"
_TOTAL = re.compile(r"^thunderfleet_agent_(probe_seconds|probe_bytes|probes)_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
# Started probes; a failed dial to a Mac that is off is not counted.
_PROBES = re.compile(
    r'^thunderfleet_agent_probes_total\{(?!.*"refused")(?!probe="socket",result="failed").*\} ([0-9.e+]+)$', re.MULTILINE
)

BY_HAND = """
import sys, time
import mlx.core as mx
size, seconds = int(sys.argv[1]), float(sys.argv[2])
a, b = (mx.random.normal((size, size)).astype(mx.float16) for _ in range(2))
mx.eval(a, b)
best, started = float("inf"), time.perf_counter()
while time.perf_counter() - started < seconds:
    since = time.perf_counter()
    mx.eval(a @ b)
    best = min(best, time.perf_counter() - since)
print(2 * size**3 / best)
"""
ANSWERER = """
import asyncio, sys
from thunderfleet_agent.measure.session.stream_listener import StreamListener
from thunderfleet_agent.measure.session.streams import DOWN, UP
async def main():
    gate = StreamListener("127.0.0.1", "127.0.0.1")
    print(gate.port, gate.token.hex(), flush=True)
    opened = await gate.admit(int(sys.argv[1]), 10)
    await opened.answer_echoes(5)
    mbps, _ = await opened.receive(UP, int(sys.argv[2]), float(sys.argv[3]))
    print(mbps, flush=True)
    opened.close()
asyncio.run(main())
"""


def gpu(repeats: int, say: Say) -> list[Figure]:
    """The GPU probe against a plain loop over matrices of the same order, and the spread of its runs."""
    settings, ours, hand, orders = MeasureSettings(), list[float](), list[float](), set[int]()
    for number in range(repeats + 1):
        # In alternating order, so that changes of the machine's load affect both sides alike.
        if number % 2:
            hand.append(_plain_loop(min(orders), settings.gpu.seconds / 2))
        found = asyncio.run(parent.run({"what": "gpu", "seconds": settings.gpu.seconds}))
        orders.add(found["order"])
        ours.append(found["flops"] / 1e9)
        if not number % 2:
            hand.append(_plain_loop(found["order"], settings.gpu.seconds / 2))
        say(f"gpu {number + 1}/{repeats + 1}: {ours[-1]:.3f} GFLOPS, by hand {hand[-1]:.3f}")
    apart = max(ours) / min(ours) - 1
    note = f"order {', '.join(map(str, sorted(orders)))}; runs differ by {apart:.1%}"
    return [
        Figure("measure-gpu", "GFLOPS", tuple(ours), tuple(hand), "loop by hand", Bound(">=", 0.95), note),
        Figure("measure-gpu-apart", "", (apart,), bound=Bound("<=", 0.05), note="largest of some runs to the smallest, less 1"),
    ]


def _plain_loop(order: int, seconds: float) -> float:
    """GFLOPS of a plain loop."""
    command = [sys.executable, "-c", BY_HAND, str(order), str(seconds)]
    return float(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout) / 1e9


async def _probe(most: int, seconds: float, count: int) -> int:
    """Throughput of the socket probe's streams between two processes in Mb/s, timed by the receiver."""
    answerer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ANSWERER, str(count), str(most), str(seconds), stdout=asyncio.subprocess.PIPE
    )
    assert answerer.stdout is not None
    try:
        async with asyncio.timeout(60):
            port, token = (await answerer.stdout.readline()).split()
            opened = await streams.dial(LOOPBACK, int(port), bytes.fromhex(token.decode()), count, LOOPBACK, None)
            try:
                await opened.echo(1.0)
                await opened.send(streams.UP, most, seconds)
                return int(await answerer.stdout.readline())
            finally:
                opened.close()
    finally:
        if answerer.returncode is None:
            answerer.kill()
        await answerer.wait()


def _iperf(count: int, most: int) -> float:
    """The same bytes by iperf3, in Mb/s as its receiver timed them."""
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-B", LOOPBACK, "-p", "5947", "--forceflush"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        next(line for line in server.stdout if "listening" in line)
        command = ["iperf3", "-c", LOOPBACK, "-p", "5947", "-P", str(count), "-n", str(most // count), "-J"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
        return float(said["end"]["sum_received"]["bits_per_second"]) / 1e6
    finally:
        server.kill()
        server.communicate()


def sockets(repeats: int, say: Say) -> list[Figure]:
    """The socket probe's throughput against iperf3's: unshaped loopback, the same number of streams and bytes.

    A run takes a tenth of a second, and on two processors single runs differ by a factor of four, so it takes many.
    """
    if shutil.which("iperf3") is None:
        raise BenchFailed("there is no iperf3 on this machine")
    chosen = MeasureSettings().sockets
    ours, theirs = list[float](), list[float]()
    rounds = SOCKET_ROUNDS * repeats
    for number in range(rounds):
        ours.append(asyncio.run(_probe(chosen.cable_bytes, chosen.seconds, chosen.streams)))
        theirs.append(_iperf(chosen.streams, chosen.cable_bytes))
        say(f"sockets {number + 1}/{rounds}: {ours[-1]:.0f} Mb/s, iperf3 {theirs[-1]:.0f}")
    note = f"{chosen.streams} streams, {chosen.cable_bytes // MIB} MiB"
    return [Figure("measure-sockets", "Mb/s", tuple(ours), tuple(theirs), "iperf3", Bound(">=", 0.9), note)]


def _exported(line: Line, mac: str) -> str:
    """The metrics of a Mac's agent."""
    address = line.cluster.machines[mac].address
    command = [
        sys.executable,
        "-c",
        f"import urllib.request as u; print(u.urlopen('http://{address}:{METRICS_PORT}/metrics', timeout=10).read().decode())",
    ]
    return line.cluster.machines[mac].run(command, seconds=30).stdout


def _totals(line: Line, mac: str) -> dict[tuple[str, str], float]:
    """An agent's counters by name and probe; only successful probes are counted."""
    found: dict[tuple[str, str], float] = {}
    for name, labels, value in _TOTAL.findall(_exported(line, mac)):
        probe = re.search(r'probe="(\w+)"', labels)
        if probe and (name != "probes" or 'result="ok"' in labels):
            found[(name, probe.group(1))] = float(value)
    return found


def _macs(line: Line) -> list[str]:
    return [name for name, machine in line.cluster.machines.items() if machine.kind == "mac"]


def day(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Cost of probes per Mac and day at the default intervals, from the seconds and bytes of real runs."""
    macs = _macs(line)

    def done() -> bool:
        return all({("probes", kind) for kind in ("gpu", "memory", "socket")} <= set(_totals(line, mac)) for mac in macs)

    line.wait(done, "every agent has measured")
    settings = MeasureSettings()
    a_day = {
        "gpu": DAY_SECONDS / settings.gpu.every_seconds,
        "memory": DAY_SECONDS / settings.memory.every_seconds,
        "socket": (CABLES + OTHERS) * DAY_SECONDS / settings.sockets.every_seconds,
        "rdma": CABLES * DAY_SECONDS / settings.rdma.every_seconds,
    }
    seconds, moved = list[float](), list[float]()
    for mac in macs:
        totals = _totals(line, mac)
        for name, into in (("probe_seconds", seconds), ("probe_bytes", moved)):
            each = {kind: totals.get((name, kind), 0) / totals.get(("probes", kind), 1) for kind in a_day}
            into.append(sum(a_day[kind] * each[kind] for kind in a_day))
    note = f"{CABLES} cables, {OTHERS} more peers; " + ", ".join(f"{kind} {count:.0f}" for kind, count in a_day.items())
    say(f"a day of measuring: {statistics.median(seconds):.0f} s, {statistics.median(moved) / 2**30:.0f} GiB")
    return [
        Figure("measure-day-seconds", "s", tuple(seconds), bound=Bound("<=", 0.05 * DAY_SECONDS), note=note),
        Figure("measure-day-bytes", "GiB", tuple(count / 2**30 for count in moved), note="over cables and LAN, both ways"),
    ]


def memory(line: Line, repeats: int, say: Say) -> list[Figure]:
    """An agent's memory while it measures, alone and with its measuring process."""
    if not processes.PROC.is_dir():
        raise BenchFailed("memory is read from /proc, which this machine has not")
    alone, whole, stop = list[float](), list[float](), threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            found = line.programs().get("agent", [])
            rss = {each.pid: _rss(each.pid) for each in found}
            mains = {each.pid for each in found if "measure-child" not in each.command}
            children: dict[int, float] = {}
            for each in found:
                if each.pid not in mains:
                    children[each.parent] = children.get(each.parent, 0) + rss[each.pid]
            alone.extend(rss[pid] for pid in mains if rss[pid])
            whole.extend(rss[pid] + children.get(pid, 0) for pid in mains if rss[pid])

    watching = threading.Thread(target=look)
    watching.start()
    try:
        _often(line)
        line.wait(
            lambda: all(_totals(line, mac).get(("probes", "socket"), 0) >= 3 for mac in _macs(line)),
            "every Mac has measured thrice",
        )
    finally:
        stop.set()
        watching.join()
    say(f"agent while measuring: {max(alone) / MIB:.0f} MiB, {max(whole) / MIB:.0f} MiB with its measuring process")
    return [
        Figure("measure-agent-memory", "MiB", (max(alone) / MIB,), bound=Bound("<=", 96), note="largest resident of any agent"),
        Figure("measure-whole-memory", "MiB", (max(whole) / MIB,), note="with its measuring process, which then ends"),
    ]


def _rss(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return float(fields[1]) * 4096


def _often(line: Line, *values: str) -> None:
    """Restarts the agents, which then measure each other every ten seconds."""
    more = [word for value in values for word in ("--set", value)]
    line.cluster.helm(
        *("upgrade", "thunderfleet", str(ROOT / "charts/thunderfleet"), "--namespace", NAMESPACE, "--reuse-values"),
        *("--set", "agent.measure.sockets.everySeconds=10", *more, "--timeout", "180s"),
        seconds=200,
    )
    line.cluster.kubectl("-n", NAMESPACE, "rollout", "status", "ds/thunderfleet-agent", "--timeout=180s", seconds=200)


@contextlib.contextmanager
def _pair_alone(line: Line) -> Iterator[tuple[str, ...]]:
    """Two Macs with a cable; all others are off, because they share this machine's processors."""
    links = json.loads(line.cluster.kubectl("get", "tbl", "-o", "json").stdout)["items"]
    spec = min(links, key=lambda link: str(link["metadata"]["name"]))["spec"]
    pair = (str(spec["a"]["node"]), str(spec["b"]["node"]))
    others = [name for name in _macs(line) if name not in pair]
    try:
        for name in others:
            line.cluster.kubectl("cordon", name)
            line.cluster.machines[name].off()
        yield pair
    finally:
        for name in others:
            line.cluster.machines[name].on()
            line.cluster.kubectl("uncordon", name)


@contextlib.contextmanager
def _stopped(line: Line, macs: Sequence[str]) -> Iterator[None]:
    """Freezes the agents of these Macs and their measuring processes."""

    def all_get(signal: str) -> None:
        for mac in macs:
            line.cluster.machines[mac].run(("pkill", f"-{signal}", "-f", PROBER), seconds=30)

    all_get("STOP")
    try:
        yield
    finally:
        all_get("CONT")


def _started(line: Line, macs: Sequence[str]) -> int:
    """Number of probes that these Macs have started, finished or not."""
    return int(sum(float(count) for mac in macs for count in _PROBES.findall(_exported(line, mac))))


def serving(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Tokens per second of a served group with the prober on (and every probe always due) and off.

    The two answers of a pair follow each other within seconds, and each side comes first in every other pair.
    """
    name, rates = "measured", {True: list[float](), False: list[float]()}
    _often(line, "agent.measure.gpu.everySeconds=10", "agent.measure.memory.everySeconds=10")
    quick = {"benchmark": {"promptTokens": 16, "generationTokens": 8}}
    with _pair_alone(line) as pair, line.deployed(name, models.SMALL, "Pipeline", quick) as (_, ready, _):
        node = line.deployment(name)["status"]["groups"][0]["ranks"][0]["node"]
        line.benchmarked(name)
        line.ask_on(node, ready.endpoint, models.SMALL, TOKENS)
        before = _started(line, pair)
        for number in range(PAIRS * repeats):
            for enabled in (True, False) if number % 2 else (False, True):
                with _stopped(line, () if enabled else pair):
                    answer = line.ask_on(node, ready.endpoint, models.SMALL, TOKENS)
                rates[enabled].append((answer["chunks"] - 1) / (answer["last"] - answer["first"]))
            say(f"serving {number + 1}/{PAIRS * repeats}: {rates[True][-1]:.1f} tokens/s, prober off {rates[False][-1]:.1f}")
        started = _started(line, pair) - before
        if started < 0:
            raise BenchFailed("an agent was restarted while its Mac served")
    ratios = tuple(on / off for on, off in zip(rates[True], rates[False], strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    note = f"on to off, in turns; the middle half of {len(ratios)} pairs {low:.3f} to {high:.3f}"
    on, off = (statistics.median(rates[enabled]) for enabled in (True, False))
    return [
        Figure("measure-serving", "", ratios, bound=Bound(">=", 0.99), note=f"{note}; {on:.1f} and {off:.1f} tokens/s"),
        Figure(
            "measure-serving-probes", "", (started,), bound=Bound("<=", 0), note="started on the group's Macs while it served"
        ),
    ]


def measure(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Everything of this module but serving."""
    return [
        *gpu(repeats, say),
        *sockets(repeats, say),
        *day(line, repeats, say),
        *memory(line, repeats, say),
    ]


if __name__ == "__main__":
    from tests.bench.figures import table

    print(table([*gpu(2, print), *sockets(2, print)]))
