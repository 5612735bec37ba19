"""The live page with 1,000 Macs: its size, how soon there is a picture, and what 50 changes a second cost."""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from thunderfleet_view.live.fleet import Kind
from thunderfleet_view.web import assets

from tests.bench.figures import Bound, Figure
from tests.bench.line import BenchFailed
from tests.bench.processes import Usage, all_processes, descendants, idle_share, usage
from tests.support.page import browser as browsers
from tests.support.page.browser import Browser
from tests.support.page.fleetpage import FleetApi, cable, fleet
from tests.support.waiting import until

MACS, PART = 1000, 7
"""Parts of seven Macs with a cable between each pair have three cables a Mac."""
CHANGES = 50
SECONDS = 20.0
PULLS = 10


class Api:
    """The API server, in a thread."""

    def __init__(self) -> None:
        self.fleet = FleetApi()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.fleet.start(), self._loop).result(30)
        self.call(lambda: self.fleet.fill(fleet(MACS, PART, idle=0.05)))

    def call(self, what: Callable[[], object]) -> None:
        async def work() -> None:
            what()

        asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fleet.stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


def _kubeconfig(folder: Path, url: str) -> Path:
    file = folder / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context],
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {"token": "t"}}],
    }  # fmt: skip
    file.write_text(json.dumps(content))
    return file


def _used(pids: list[int]) -> dict[int, Usage]:
    return {pid: found for pid in pids if (found := usage(pid)) is not None}


def _spent(before: dict[int, Usage], seconds: float) -> tuple[float, float]:
    """Percent of a processor, and megabytes, of processes that have run all the time."""
    after = _used(list(before))
    return sum(idle_share(before, after, seconds).values()), sum(one.pss for one in after.values()) / 1e6


def _change(api: Api, links: list[tuple[str, int, str, int]], number: int) -> None:
    ends = links[(number * 37) % len(links)]
    rates = cable(*ends)
    rates["status"]["gbps"] = f"{30 + number % 9}.{number % 10}/38.1"
    api.call(lambda: api.fleet.put(Kind.LINKS, rates))


def figures(say: Callable[[str], None]) -> list[Figure]:
    """All figures. Raises BenchFailed without Chromium."""
    if not browsers.installed():
        raise BenchFailed("no chromium and chromedriver: `make chromium` installs them")
    files = assets.load()
    found = [Figure("page-size", "kB", (sum(len(one.packed) for one in files.values()) / 1e3,), bound=Bound("<=", 300))]
    api = Api()
    with tempfile.TemporaryDirectory() as folder, browsers.browser() as window:
        api.start()
        command = ["ui", "--kubeconfig", str(_kubeconfig(Path(folder), api.fleet.url))]
        server = subprocess.Popen(
            [sys.executable, "-m", "thunderfleet_cli", *command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        try:
            assert server.stdout is not None
            found += _watched(api, window, server, server.stdout.readline().strip(), say)
        finally:
            server.terminate()
            server.communicate(timeout=30)
            api.stop()
    return found


def _watched(
    api: Api, window: Browser, server: "subprocess.Popen[str]", address: str, say: Callable[[str], None]
) -> list[Figure]:
    began = time.monotonic()
    window.open(address)
    until(lambda: str(MACS) in window.text("#counts"), "the fleet is drawn", pause=0.02)
    first = time.monotonic() - began
    say(f"page: {MACS} Macs drawn after {first:.2f} s")
    links = [
        (str(a["node"]), int(a["port"]), str(b["node"]), int(b["port"]))
        for link in api.fleet.objects[Kind.LINKS].values()
        for a, b in [(link["spec"]["a"], link["spec"]["b"])]
    ]
    pids = [one.pid for one in descendants(window.process, all_processes())]
    ours, theirs, started, number = _used([server.pid]), _used(pids), time.monotonic(), 0
    while (passed := time.monotonic() - started) < SECONDS:
        if number < passed * CHANGES:
            _change(api, links, number)
            number += 1
        else:
            time.sleep(0.002)
    cpu, memory = _spent(ours, SECONDS)
    browser_cpu, browser_memory = _spent(theirs, SECONDS)
    say(f"page: {number} changes; server {cpu:.0f} %, {memory:.0f} MB; browser {browser_cpu:.0f} %, {browser_memory:.0f} MB")
    note = f"{MACS} Macs, {len(links)} cables, {number / SECONDS:.0f} changes a second"
    return [
        Figure("page-first-picture", "s", (first,), bound=Bound("<=", 2), note=note),
        Figure("page-server-cpu", "% of a processor", (cpu,), note=note),
        Figure("page-server-memory", "MB", (memory,), note=note),
        Figure("page-browser-cpu", "% of a processor", (browser_cpu,), note=f"{note}; drawn without a GPU"),
        Figure("page-browser-memory", "MB", (browser_memory,), note=note),
        Figure("page-red", "s", tuple(_pulls(api, window, links)), bound=Bound("<=", 3), note="link status to red"),
    ]


def _pulls(api: Api, window: Browser, links: list[tuple[str, int, str, int]]) -> list[float]:
    """Seconds from a changed link to the red row of the list."""
    window.click("#tab-cables")
    red = "return document.querySelector(`.row[data-id='cable/${args[0]}']`)?.dataset.health === 'bad'"
    found = []
    for number in range(PULLS):
        pulled = cable(*links[number * 11], "False", message="pulled")
        began = time.monotonic()
        api.call(lambda item=pulled: api.fleet.put(Kind.LINKS, item))  # type: ignore[misc]
        until(lambda name=pulled["metadata"]["name"]: window.run(red, name), "it is red", pause=0.01)  # type: ignore[misc]
        found.append(time.monotonic() - began)
    return [statistics.median(found), max(found)]
