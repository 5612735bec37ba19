"""Figures of discovery: how soon a pulled cable is reported, and the load that agents cause."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from thunderfleet_agent.observe.parsers import thunderbolt as parser
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import as_json, write_machine
from thunderfleet_localcluster.recorded.thunderbolt import thunderbolt

from tests.bench.figures import Bound, Figure
from tests.bench.line import NAMESPACE, ROOT, BenchFailed, Line
from tests.support import audit

CABLE = "studio-1:1"
LINK = "studio-1.tb1--studio-2.tb1"
PARSES = 200
# More changes would count as flapping, which agents damp.
MOST = 2
POLL_SECONDS = 0.1
SHORT_SECONDS = 2
# How long the audit log is watched, quiet and flapping, and how often a flapping cable changes.
QUIET_SECONDS = 120.0
WATCH_SECONDS = 30.0
FLAP_SECONDS = 2.5
HOUR_LIMIT_SECONDS = 300
MACS = 3
AGENT = f"system:serviceaccount:{NAMESPACE}:thunderfleet-agent"
# A Studio with all six ports in use, each through five hubs, the most that there can be: the largest report that a Mac prints.
HUBS = ", ".join(f"Thunderbolt Hub {n}" for n in range(5))
LARGEST = "machines:\n" + "".join(f"  - {{name: s{n}, model: Mac Studio (M3 Ultra)}}\n" for n in range(7)) + "cables:\n"
LARGEST += "".join(f'  - {{a: "s0:{n}", b: "s{n}:1", through: [{HUBS}]}}\n' for n in range(1, 7))


def _connected(line: Line) -> str:
    link = json.loads(line.cluster.kubectl("get", "tbl", LINK, "-o", "json", "--ignore-not-found").stdout or "{}")
    found = link.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in found if c["type"] == "Connected"), "")


def _is(line: Line, status: str) -> bool:
    return _connected(line) == status


def pulled(line: Line, repeats: int, say: Callable[[str], None], seconds: int) -> list[Figure]:
    """From a pulled cable to the link's condition, and from the plug back in; the agents poll every ``seconds``."""
    figures: dict[str, list[float]] = {"pull": [], "plug": []}
    for number in range(min(repeats, MOST)):
        for action, status in (("pull", "False"), ("plug", "True")):
            began = time.monotonic()
            line.cluster.cable(action, CABLE)
            line.wait(partial(_is, line, status), f"{LINK} Connected {status}", POLL_SECONDS)
            figures[action].append(time.monotonic() - began)
        say(f"cable {number + 1}/{repeats}: pulled {figures['pull'][-1]:.1f} s, plugged {figures['plug'][-1]:.1f} s")
    note = f"to the link's condition; an interval is {seconds} s"
    return [
        Figure(f"cable-pulled-{seconds}s", "s", tuple(figures["pull"]), bound=Bound("<=", seconds + 5.0), note=note),
        Figure(f"cable-plugged-{seconds}s", "s", tuple(figures["plug"]), note=note),
    ]


def _everybody_is_reached(line: Line) -> bool:
    """Whether every Mac reports that it reaches every other Mac, and its neighbors over each cable.

    Until then a cable that was just plugged in still causes writes.
    """
    profiles = json.loads(line.cluster.kubectl("get", "np", "-o", "json").stdout)["items"]
    links = json.loads(line.cluster.kubectl("get", "tbl", "-o", "json").stdout)["items"]
    agents = {p["metadata"]["name"]: p["status"]["agent"]["address"] for p in profiles}
    wanted = {(name, other, agents[other]) for name in agents for other in agents if name != other}
    for link in links:
        ends = link["status"]["endpoints"]
        wanted |= {(one["node"], other["node"], other["address"]) for one in ends for other in ends if one is not other}
    found = {
        (p["metadata"]["name"], fact["node"], fact["address"])
        for p in profiles
        for fact in p["status"].get("reachability", [])
        if fact["state"] == "Reachable"
    }
    return wanted <= found


def _asked(line: Line, say: Callable[[str], None], during: Callable[[], None]) -> tuple[float, float]:
    """Requests and writes of the agents per minute and Mac during the measurement. Prints the writes of all programs."""
    log = line.cluster.logs / "audit.log"
    offset = audit.read_from(log, 0)[1]
    began = time.monotonic()
    during()
    took = time.monotonic() - began
    everybody = audit.read_from(log, offset)[0]
    for what, count in sorted(audit.writes(everybody).items()):
        say(f"  {count} x {what}")
    events = [event for event in everybody if event.get("user", {}).get("username") == AGENT]
    requests = Counter(event.get("stage") for event in events)["ResponseComplete"]
    per = 60 / took / MACS
    return requests * per, sum(audit.writes(events).values()) * per


def asked(line: Line, say: Callable[[str], None]) -> list[Figure]:
    """Requests of an agent to the API server in a quiet minute, and while a cable of its Mac flaps."""

    def flap() -> None:
        end = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < end:
            for action in ("pull", "plug"):
                line.cluster.cable(action, CABLE)
                time.sleep(FLAP_SECONDS)

    line.wait(partial(_everybody_is_reached, line), "every agent reaches every other over LAN and cables", 1.0)
    quiet = _asked(line, say, partial(time.sleep, QUIET_SECONDS))
    flapping = _asked(line, say, flap)
    say(f"a minute and Mac: quiet {quiet[0]:.1f} requests, flapping {flapping[0]:.1f}")
    over = f"a minute and Mac, from the audit log over {QUIET_SECONDS:.0f} s"
    often = f"over {WATCH_SECONDS:.0f} s a cable pulled and plugged every {2 * FLAP_SECONDS:g} s, seen every {SHORT_SECONDS} s"
    return [
        Figure("agent-requests-quiet", "/min", (quiet[0],), note=over),
        Figure("agent-writes-quiet", "/min", (quiet[1],), bound=Bound("<=", 0.0), note=over),
        Figure("agent-requests-flapping", "/min", (flapping[0],), note=often),
        Figure("agent-writes-flapping", "/min", (flapping[1],), bound=Bound("<=", 30.0), note=often),
    ]


def hour(say: Callable[[str], None]) -> list[Figure]:
    """An hour's rounds of one agent, without the pauses between them. Raises BenchFailed."""
    plan = plan_layout(parse_fleet(LARGEST), "loopback")
    with tempfile.TemporaryDirectory(prefix="thunderfleet-hour-") as folder:
        commands = Path(folder) / "bin"
        write_machine(plan, plan.machine("s0"), commands)
        command = [sys.executable, "-m", "tests.bench.macs.hour", str(commands)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HOUR_LIMIT_SECONDS, check=False, cwd=ROOT, stdin=subprocess.DEVNULL
        )
    if done.returncode:
        raise BenchFailed(f"the hour's rounds failed: {done.stderr.strip()[-500:]}")
    said = json.loads(done.stdout)
    share = 100 * (said["own"] + said["children"]) / 3600
    grown = (said["residentAfter"] - said["residentBefore"]) / 1e6
    rounds = f"{said['fast']:.0f} fast and {said['slow']:.0f} slow rounds in a row, recorded commands"
    say(f"an hour's rounds: {said['own']:.1f} s of the agent, {said['children']:.1f} s of its commands, {grown:+.1f} MB")
    return [
        Figure("agent-hour", "% of a core", (share,), note=f"{rounds}; {said['own']:.0f} s its own"),
        Figure(
            "agent-hour-memory", "MB", (said["residentAfter"] / 1e6,), note=f"RSS at the end, {grown:+.1f} MB since minute one"
        ),
    ]


def parsing() -> Figure:
    """The largest report, parsed."""
    plan = plan_layout(parse_fleet(LARGEST), "loopback")
    text = as_json(thunderbolt(plan, plan.machine("s0")))
    samples = []
    for _ in range(PARSES):
        began = time.perf_counter()
        parser.parse(text)
        samples.append((time.perf_counter() - began) * 1000)
    return Figure(
        "parse-report", "ms", (statistics.median(samples),), note=f"{len(text) / 1000:.0f} kB, six peers behind five hubs"
    )


def discovery(line: Line, repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """All of them."""
    figures = [parsing(), *hour(say), *pulled(line, repeats, say, 10)]
    chart = str(ROOT / "charts/thunderfleet")
    short = ("--reuse-values", "--set", f"agent.intervalSeconds={SHORT_SECONDS},agent.measure.enabled=false")
    line.cluster.helm(
        "upgrade", "thunderfleet", chart, "--namespace", NAMESPACE, *short, "--wait", "--timeout", "120s", seconds=150
    )
    # Flapping counts changes of three minutes; the pod of the old agent has taken its count with it.
    figures += pulled(line, 1, say, SHORT_SECONDS)
    figures += asked(line, say)
    return figures
