"""Figures of discovery: how soon a pulled cable is known, and what reading the largest report costs."""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial

from thunderfleet_agent.parsers import thunderbolt as parser
from thunderfleet_localcluster.fleet import parse_fleet
from thunderfleet_localcluster.layout import plan_layout
from thunderfleet_localcluster.recorded import as_json
from thunderfleet_localcluster.recorded.thunderbolt import thunderbolt

from tests.bench.figures import Bound, Figure
from tests.bench.line import Line

CABLE = "studio-1:1"
LINK = "studio-1.tb1--studio-2.tb1"
PARSES = 200
# More would be flapping, which is held still on purpose.
MOST = 2
POLL_SECONDS = 0.1
# A Studio with all six ports in use, each through a hub: the largest report that a Mac prints.
LARGEST = "machines:\n" + "".join(f"  - {{name: s{n}, model: Mac Studio (M3 Ultra)}}\n" for n in range(7)) + "cables:\n"
LARGEST += "".join(f'  - {{a: "s0:{n}", b: "s{n}:1", through: Thunderbolt Hub {n}}}\n' for n in range(1, 7))


def _connected(line: Line) -> str:
    link = json.loads(line.cluster.kubectl("get", "tbl", LINK, "-o", "json", "--ignore-not-found").stdout or "{}")
    found = link.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in found if c["type"] == "Connected"), "")


def _is(line: Line, status: str) -> bool:
    return _connected(line) == status


def pulled(line: Line, repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """From a pulled cable to the link's condition, and from the plug back in; the agents look at their usual interval."""
    figures: dict[str, list[float]] = {"pull": [], "plug": []}
    for number in range(min(repeats, MOST)):
        for action, status in (("pull", "False"), ("plug", "True")):
            began = time.monotonic()
            line.cluster.cable(action, CABLE)
            line.wait(partial(_is, line, status), f"{LINK} Connected {status}", POLL_SECONDS)
            figures[action].append(time.monotonic() - began)
        say(f"cable {number + 1}/{repeats}: pulled {figures['pull'][-1]:.1f} s, plugged {figures['plug'][-1]:.1f} s")
    note = "to the link's condition; an interval is 10 s"
    return [
        Figure("cable-pulled", "s", tuple(figures["pull"]), bound=Bound("<=", 15.0), note=note),
        Figure("cable-plugged", "s", tuple(figures["plug"]), note=note),
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
    return Figure("parse-report", "ms", (statistics.median(samples),), note=f"{len(text) / 1000:.0f} kB, six hubs, six peers")


def discovery(line: Line, repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """Both."""
    return [*pulled(line, repeats, say), parsing()]
