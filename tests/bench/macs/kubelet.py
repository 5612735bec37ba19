"""Pods of one kubelet: start, many at once, what they cost while they run, and logs. Without API server and scheduler.

Shims and programs are real; the API server is in memory, so these figures are the kubelet's own part.
``python -m tests.bench.macs.kubelet`` runs it alone.
"""

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.streams.logs import LogOptions

from tests.bench.figures import Bound, Figure
from tests.support import pods
from tests.support.pods import World, sh
from tests.support.waiting import until_async

Say = Callable[[str], None]
LIMIT_SECONDS = 300.0
MANY, RUNNING = 100, 50
QUIET_SECONDS = 30.0
LOG_BYTES = 64 * 1024**2
LINE = "x" * 99
IDLE: dict[str, Any] = {"containers": [sh("exec sleep 3600")], "restartPolicy": "Always", "terminationGracePeriodSeconds": 1}


class PodsFailed(RuntimeError):
    """Pods did not get there."""


@contextlib.asynccontextmanager
async def _node() -> AsyncIterator[World]:
    first = pods.IDS.start
    ids = range(first, first + 200)
    before = pods.USERS
    pods.USERS = ids if pods.KUBELET.may_switch(ids) else None
    try:
        with tempfile.TemporaryDirectory(prefix="kubelet-", ignore_cleanup_errors=True) as name:
            os.chmod(name, 0o755)
            (Path(name) / "image/bin").mkdir(parents=True)
            world = World(Path(name) / "node", Path(name) / "image")
            world.root.mkdir()
            allocatable = {"cpu": "400", "memory": "800Gi", "pods": "200"}
            world.settings = replace(world.settings, allocatable=allocatable, log_bytes=2 * LOG_BYTES)
            await world.boot()
            try:
                yield world
            finally:
                await world.managers[-1].stop(end_pods=True)
    finally:
        pods.USERS = before


async def _until_phase(world: World, names: list[str], wanted: str) -> float:
    """Seconds since 1970 when the last of the pods had the phase in the API server. Raises PodsFailed."""
    changed, sync = asyncio.Event(), world.api.on_change

    def note() -> None:
        changed.set()
        sync()

    world.api.on_change = note
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                changed.clear()
                phases = [world.api.pod(name)["status"]["phase"] for name in names]
                if all(phase == wanted for phase in phases):
                    return time.monotonic()
                if "Failed" in phases and wanted != "Failed":
                    raise PodsFailed(f"{phases.count('Failed')} of {len(names)} pods failed: {world.api.reasons()[-5:]}")
                await changed.wait()
    except TimeoutError:
        raise PodsFailed(f"not all of {len(names)} pods were {wanted} within {LIMIT_SECONDS:g} s") from None
    finally:
        world.api.on_change = sync


def _through_a_pipe(script: str) -> float:
    """MB/s of its output into a program that drops it."""
    began = time.monotonic()
    subprocess.run(["sh", "-c", f"{script} | cat > /dev/null"], check=True, timeout=LIMIT_SECONDS)
    return LOG_BYTES / (time.monotonic() - began) / 1e6


async def _measured(repeats: int, say: Say) -> list[Figure]:
    starts, log_rates, read_rates, pipes = [], [], [], []
    async with _node() as world:
        for number in range(repeats * 3):
            began = time.monotonic()
            world.api.add_pod(f"one-{number}", IDLE)
            starts.append(await _until_phase(world, [f"one-{number}"], "Running") - began)
        say(f"pods: one starts in {min(starts):.2f} to {max(starts):.2f} s")
        for number in range(repeats):
            script = f"yes {LINE} | head -c {LOG_BYTES}"
            pipes.append(await asyncio.to_thread(_through_a_pipe, script))
            began = time.monotonic()
            world.api.add_pod(f"log-{number}", {"containers": [sh(script)]})
            log_rates.append(LOG_BYTES / (await _until_phase(world, [f"log-{number}"], "Succeeded") - began) / 1e6)
            began, size = time.monotonic(), 0
            async for chunk in world.managers[-1].queries.open_log("default", f"log-{number}", None, LogOptions()):
                size += len(chunk)
            if size < LOG_BYTES:
                raise PodsFailed(f"the log has {size} of {LOG_BYTES} bytes")
            read_rates.append(size / (time.monotonic() - began) / 1e6)
        say(f"pods: logs are written with {log_rates[-1]:.0f} MB/s, read with {read_rates[-1]:.0f} MB/s")
    async with _node() as world:
        names = [f"many-{number}" for number in range(MANY)]
        began = time.monotonic()
        for name in names:
            world.api.add_pod(name, IDLE)
        makespan = await _until_phase(world, names, "Running") - began
        say(f"pods: {MANY} at once run after {makespan:.1f} s")
        for name in names[RUNNING:]:
            world.api.delete_pod(name, grace=1)
        await until_async(lambda: len(world.api.pods()) <= RUNNING, seconds=LIMIT_SECONDS)
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(QUIET_SECONDS)
        share = (time.process_time() - used) / (time.monotonic() - began)
    return [
        Figure("pod start", "s", tuple(starts), bound=Bound("<=", 0.5), note="from the API server to Running, kubelet alone"),
        Figure("100 pods at once", "s", (makespan,), note="until the last is Running; none failed"),
        Figure("50 pods, CPU", "%", (share * 100,), note=f"of a core, while nothing changes for {QUIET_SECONDS:g} s"),
        Figure("log written", "MB/s", tuple(log_rates), tuple(pipes), "pipe", note="start and end of the container included"),
        Figure("log read", "MB/s", tuple(read_rates), note="kubectl logs, without the network"),
    ]


def figures(repeats: int, say: Say) -> list[Figure]:
    """All figures. Raises PodsFailed."""
    return asyncio.run(_measured(repeats, say))


def _main() -> None:
    from tests.bench.figures import table

    print(table(figures(int(os.environ.get("REPEATS", "3")), print)))


if __name__ == "__main__":
    _main()
