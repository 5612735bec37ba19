"""Runs the probes of one pod's live containers and keeps their results."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from thunderfleet_lib.kube import Json

from thunderfleet_kubelet.containers.attempt import Attempt
from thunderfleet_kubelet.containers.watch import ShimWatch
from thunderfleet_kubelet.pods.act import probes
from thunderfleet_kubelet.pods.context import PodContext
from thunderfleet_kubelet.pods.decide.probing import ProbeCount, ProbeSettings

STOPPED_SECONDS = 1.0
"""A probe that took so much longer than its time limit was not watched: the kubelet was stopped, or got no processor."""
STARTING_SECONDS = 10.0
"""How long the probes of a container that starts may fail before an Event says so."""
_PROBES = (("startup", "startupProbe"), ("readiness", "readinessProbe"), ("liveness", "livenessProbe"))


@dataclass
class _Live:
    """One live attempt: the watch on its shim, and one task per probe."""

    number: int
    watch: ShimWatch
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def close(self) -> None:
        self.watch.close()
        for task in self.tasks:
            task.cancel()


class Prober:
    """``ready``, ``started`` and ``unhealthy`` are the results, by container; absent before the first one."""

    def __init__(self, context: PodContext, is_stopping: Callable[[str, int], bool]) -> None:
        self._context = context
        self._is_stopping = is_stopping
        self._live: dict[str, _Live] = {}
        self.results: Counter[tuple[str, str, str]] = Counter()
        """How often each probe succeeded and failed: by container, kind, and ``successful`` or ``failed``."""
        self.ready: dict[str, bool] = {}
        self.started: dict[str, bool] = {}
        self.unhealthy: dict[str, str] = {}

    def follow(self, name: str, last: Attempt | None) -> bool:
        """Probes the last attempt of a container if it runs. True if an attempt that was followed has ended."""
        live = self._live.get(name)
        ended = live is not None and (last is None or not last.live or last.number != live.number)
        if live is not None and ended:
            live.close()
            del self._live[name]
            self.ready.pop(name, None)
            self.started.pop(name, None)
            self.unhealthy.pop(name, None)
        # One that is starting has no probes yet; the worker reads it every second.
        if last is not None and last.state == "running" and name not in self._live:
            watch = ShimWatch(self._context.folder.attempt(name, last.number), self._context.wake)
            self._live[name] = _Live(last.number, watch)
            self._start(name, last)
        return ended

    def close(self) -> None:
        """Stops all probes; the containers keep running."""
        for live in self._live.values():
            live.close()

    def fail(self, name: str, message: str) -> None:
        """Marks a container unhealthy, so that it is restarted."""
        self.unhealthy[name] = message
        self._context.wake()

    def adopt(self, status: Json) -> None:
        """Restores the results of live containers from ``status``."""
        for name, live in self._live.items():
            self._adopt(status, name, self._context.folder.container_id(name, live.number))

    def _adopt(self, status: Json, name: str, container_id: str) -> None:
        for known in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
            if known.get("name") == name and known.get("containerID") == container_id:
                if known.get("started"):
                    self.started.setdefault(name, True)
                if known.get("ready"):
                    self.ready.setdefault(name, True)

    def _start(self, name: str, attempt: Attempt) -> None:
        # A container that is Ready in the API server stays so until a probe fails: a restart of the kubelet must not take
        # its pods out of service.
        self._adopt(self._context.status, name, attempt.container_id)
        container = self._context.container(name)
        for kind, key in _PROBES:
            if container.get(key):
                task = asyncio.create_task(self._probe(kind, container, attempt, container[key]))
                self._live[name].tasks.add(task)

    async def _probe(self, kind: str, container: Json, attempt: Attempt, probe: Json) -> None:
        context, name, settings = self._context, container["name"], ProbeSettings.of(probe)
        count = ProbeCount(settings.success_threshold, settings.failure_threshold)
        if kind == "startup" and self.started.get(name):
            return
        wait = (attempt.started_at or 0.0) + settings.delay - context.services.now()
        await asyncio.sleep(min(max(0.0, wait), settings.delay))
        been_healthy = kind == "liveness" or self.ready.get(name, False)
        clock, failing = asyncio.get_running_loop().time, math.inf
        while True:
            if kind != "startup" and "startupProbe" in container and not self.started.get(name):
                await asyncio.sleep(min(1.0, settings.period))
                continue
            success, output = await self._ask(probe, container, attempt, settings.timeout)
            self.results[name, kind, "successful" if success else "failed"] += 1
            decided = count.add(success)
            if success and "httpGet" in probe and output.startswith(probes.REDIRECTED):
                context.event("Warning", "ProbeWarning", f"{kind.capitalize()} probe warning: {output}", name)
            been_healthy |= success
            if not success and not self._is_stopping(name, attempt.number):
                # Until a container has started, and until it is ready for the first time, its probes fail without a fault.
                # If that is soon over, nobody needs to know.
                fault = been_healthy or (kind == "startup" and decided)
                text = f"{kind.capitalize()} probe failed: {output}"
                failing = min(failing, clock())
                if fault:
                    context.event("Warning", "Unhealthy", text, name)
                elif clock() - failing >= STARTING_SECONDS:
                    # A program that starts says something else each time.
                    context.event("Normal", "Unhealthy", text, name, series=f"{kind} probe")
            if decided:
                self._apply(kind, name, success)
                if kind == "startup" and success:
                    return
            await asyncio.sleep(settings.period)

    async def _ask(self, probe: Json, container: Json, attempt: Attempt, seconds: float) -> tuple[bool, str]:
        """One result and its output. After a failure during which this process was stopped, the probe runs again."""
        context, clock = self._context, asyncio.get_running_loop().time
        run = context.runner(container["name"], attempt.number)
        began = clock()
        success, output = await probes.run(probe, container, context.host, run, seconds)
        if success or clock() - began < seconds + STOPPED_SECONDS:
            return success, output
        return await probes.run(probe, container, context.host, run, seconds)

    def _apply(self, kind: str, name: str, success: bool) -> None:
        if kind == "readiness":
            self.ready[name] = success
        elif kind == "startup" and success:
            self.started[name] = True
        elif not success:
            self.unhealthy[name] = f"{kind} probe failed, container will be restarted"
        self._context.wake()
