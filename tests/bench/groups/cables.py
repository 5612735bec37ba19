"""Figures of groups that lose their cable or their supervisor: until status names it, until it serves, until it is back."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench import models
from tests.bench.figures import Bound, Figure
from tests.bench.line import BenchFailed, Line

CABLE = "studio-1:1"
LINK = "studio-1.tb1--studio-2.tb1"
NAME = "cable"
SUPERVISOR = "thunderfleet-runner serve"
POLL_SECONDS = 0.1

Json = dict[str, Any]


def _ready(line: Line) -> Json:
    found = line.deployment(NAME).get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == "Ready"), {})


def _epoch(line: Line) -> int:
    return int(line.deployment(NAME)["status"]["groups"][0]["epoch"])


def _on_cable(line: Line, epoch: int) -> bool:
    text = line.cluster.kubectl("get", "configmap", f"{NAME}-0-e{epoch}", "-o", "jsonpath={.data.plan\\.json}").stdout
    return LINK in text


def _elsewhere(line: Line, epoch: int, *, on_cable: bool) -> bool:
    """Whether the group serves in a later epoch, which uses the cable or not."""
    new = _epoch(line)
    return new != epoch and _on_cable(line, new) == on_cable and _ready(line).get("status") == "True"


def _pull(line: Line) -> tuple[float, float, float]:
    """Seconds from a pulled cable until it is named and until the group serves, and from the plug until it is back."""
    epoch = _epoch(line)
    if not _on_cable(line, epoch):
        raise BenchFailed(f"the group does not use {LINK}")
    began = time.monotonic()
    line.cluster.cable("pull", CABLE)
    line.wait(lambda: LINK in _ready(line).get("message", ""), f"{LINK} is named", POLL_SECONDS)
    named = time.monotonic() - began
    line.wait(partial(_elsewhere, line, epoch, on_cable=False), "serves elsewhere", POLL_SECONDS)
    elsewhere = time.monotonic() - began
    epoch, began = _epoch(line), time.monotonic()
    line.cluster.cable("plug", CABLE)
    line.wait(partial(_elsewhere, line, epoch, on_cable=True), "back on the cable", POLL_SECONDS)
    return named, elsewhere, time.monotonic() - began


def _freeze(line: Line) -> float:
    """Seconds from a frozen supervisor of rank 0 until the group is Ready again."""
    with line.deployed(NAME, models.TINY, "Tensor") as (_, _, watch):
        line.benchmarked(NAME)
        rank = line.deployment(NAME)["status"]["groups"][0]["ranks"][0]
        at = time.time()
        done = line.cluster.machines[rank["node"]].run(["pkill", "-STOP", "-f", SUPERVISOR], seconds=30)
        if done.returncode:
            raise BenchFailed(f"no supervisor runs on {rank['node']}")
        watch.until(lambda seen: not seen.ready, "not Ready after the supervisor was frozen")
        return watch.until(lambda seen: seen.ready, "Ready again").at - at


def cables(line: Line, repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """A pulled cable under an idle group, plugged in again; then a rank 0 whose supervisor is frozen.

    The cable is pulled once: after more interruptions it must work for longer until it is steady.
    """
    with line.deployed(NAME, models.TINY, "Tensor", {"transport": "Auto"}) as (began, ready, _):
        loading = ready.at - began
        line.benchmarked(NAME)
        named, elsewhere, back = _pull(line)
    say(f"cable: named {named:.1f} s, elsewhere {elsewhere:.1f} s, back {back:.1f} s")
    frozen = []
    for number in range(repeats):
        frozen.append(_freeze(line))
        say(f"frozen supervisor {number + 1}/{repeats}: {frozen[-1]:.1f} s")
    moved = f"a fresh start takes {loading:.1f} s"
    steady = f"idle; the cable must work for 30 s first; {moved}"
    again = f"median of {repeats}; SIGSTOP to rank 0's supervisor until status shows Ready"
    return [
        Figure("cable-pulled-named", "s", (named,), bound=Bound("<=", 5), note="until Ready is False and names the cable"),
        Figure("cable-pulled-elsewhere", "s", (elsewhere,), bound=Bound("<=", 15 + loading), note=moved),
        Figure("cable-back", "s", (back,), bound=Bound("<=", 60), note=steady),
        Figure("frozen-supervisor", "s", tuple(frozen), bound=Bound("<=", 20), note=again),
    ]
