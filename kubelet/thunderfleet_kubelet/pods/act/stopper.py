"""Stops containers: preStop hook, then SIGTERM by the shim, then SIGKILL when the grace period is over."""

import asyncio
import logging

from thunderfleet_kubelet.pods.act import probes
from thunderfleet_kubelet.pods.context import PodContext
from thunderfleet_kubelet.pods.decide.lifecycle import Stop

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0

LEAST_GRACE_SECONDS = 2.0
"""The time between SIGTERM and SIGKILL even if the preStop hook or other containers of the pod used up the grace period."""


class Stopper:
    """Keeps track of which attempts are stopping, and with which grace."""

    def __init__(self, context: PodContext) -> None:
        self._context = context
        self._grace: dict[tuple[str, int], float] = {}
        self._began: float | None = None
        """When the pod began to end (time of the event loop); a kubelet that starts meanwhile counts from its own start."""

    def is_stopping(self, name: str, number: int) -> bool:
        """Whether this attempt of the container is being stopped."""
        return (name, number) in self._grace

    def begin(self, stop: Stop) -> bool:
        """True if ``stop`` must be carried out by ``run``. A repeated stop only shortens the grace period."""
        key = (stop.container, stop.number)
        if stop.with_pod and self._began is None:
            self._began = asyncio.get_running_loop().time()
        before = self._grace.get(key)
        if before is not None and stop.grace >= before:
            return False
        if before is not None:
            self._context.containers.stop(stop.container, stop.number, stop.grace)
        self._grace[key] = stop.grace
        return before is None

    async def run(self, stop: Stop) -> None:
        """Runs the preStop hook within the grace period, then lets the shim stop the container."""
        try:
            await self._run(stop)
        except OSError as error:
            # The shim's state cannot be read now, so the worker decides again.
            log.warning(
                "%s: cannot stop container %s: %s; retrying in %g s", self._context.key, stop.container, error, RETRY_SECONDS
            )
            await asyncio.sleep(RETRY_SECONDS)
            self._grace.pop((stop.container, stop.number), None)
            self._context.wake()

    async def _run(self, stop: Stop) -> None:
        context, name, now = self._context, stop.container, asyncio.get_running_loop().time
        began = self._began if stop.with_pod and self._began is not None else now()
        if context.containers.stop_grace(name, stop.number) is None:
            context.event("Normal", "Killing", f"Stopping container {name}: {stop.message}", name)
            await self._pre_stop(stop, _rest(stop.grace, now() - began))
        # Read after the hook: a repeated stop may have shortened it.
        grace = self._grace[(name, stop.number)]
        if grace > 0:
            grace = _rest(grace, now() - began)
        context.containers.stop(name, stop.number, grace)

    async def _pre_stop(self, stop: Stop, seconds: float) -> None:
        context, name = self._context, stop.container
        container = context.container(name)
        hook = (container.get("lifecycle") or {}).get("preStop")
        if hook and stop.grace > 0:
            run = context.runner(name, stop.number)
            success, output = await probes.run(hook, container, context.host, run, seconds)
            if not success:
                context.event("Warning", "FailedPreStopHook", f"PreStopHook failed: {output}", name)


def _rest(grace: float, passed: float) -> float:
    """What is left of a grace period."""
    return max(grace - passed, min(grace, LEAST_GRACE_SECONDS))
