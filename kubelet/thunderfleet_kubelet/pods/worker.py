"""Drives one pod: observes its containers, decides, acts, and publishes its status.

``decide`` decides; ``Mounter``, ``Starter``, ``Stopper``, ``Prober`` and ``StatusPublisher`` act.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.containers.attempt import Attempt, Start
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.runtime import ContainerRuntime
from thunderfleet_kubelet.pods.act.mounter import Mounter
from thunderfleet_kubelet.pods.act.prober import Prober
from thunderfleet_kubelet.pods.act.publisher import StatusPublisher
from thunderfleet_kubelet.pods.act.starter import Starter
from thunderfleet_kubelet.pods.act.stopper import Stopper
from thunderfleet_kubelet.pods.context import NodeServices, PodContext
from thunderfleet_kubelet.pods.decide import admission, eviction
from thunderfleet_kubelet.pods.decide.lifecycle import Decision, decide
from thunderfleet_kubelet.pods.decide.observed import Observed, Problem
from thunderfleet_kubelet.pods.decide.podspec import SHUTDOWN_MESSAGE, TERMINAL_PHASES, eviction_grace_of, starts_at_boot
from thunderfleet_kubelet.pods.decide.publishing import version_of
from thunderfleet_kubelet.pods.decide.status import rejected_status

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""The longest wait after a step that failed."""

RESYNC_SECONDS = 60.0
"""How often a pod is observed when nothing wakes its worker."""

STARTING_SECONDS = 1.0
"""How often a pod is observed while one of its containers starts."""


class PodWorker:
    """The worker of ``pod``, whose files are in ``folder``. ``accepted``: an earlier kubelet on this node took the pod."""

    def __init__(self, pod: Json, folder: PodFolder, services: NodeServices, *, accepted: bool) -> None:
        self._wake = asyncio.Event()
        self._services = services
        self._context = context = PodContext(pod, folder, services, self.wake)
        self._mounter = Mounter(context, reuse=accepted and starts_at_boot(pod))
        self._starter = Starter(context, self._mounter)
        self._stopper = Stopper(context)
        self._prober = Prober(context, self._stopper.is_stopping)
        self._publisher = StatusPublisher(context, enabled=not accepted)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: set[tuple[str, str, int]] = set()
        """(reason, container, attempt) of the events that are recorded once."""
        self._gone = False
        self._closed = False
        self._evicted = ""
        self._shutdown_seconds: float | None = None
        self._over = asyncio.Event()
        self.accepted = accepted
        self.removed = False
        self.attempts: dict[str, tuple[Attempt, ...]] = {}
        self.observed = False
        """Whether ``attempts`` has been read; an adopted pod may run before."""

    @property
    def pod(self) -> Json:
        """The newest version of the pod."""
        return self._context.pod

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self._context.uid

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return self._context.key

    @property
    def folder(self) -> PodFolder:
        """The pod's files."""
        return self._context.folder

    @property
    def containers(self) -> ContainerRuntime:
        """The pod's containers."""
        return self._context.containers

    @property
    def active(self) -> bool:
        """Accepted, known to the API server, and not ended."""
        return self.accepted and not self.removed and not self._has_ended()

    def view(self) -> Json:
        """The pod with this node's latest status, published or not."""
        return {**self.pod, "status": self._context.status}

    def _has_ended(self) -> bool:
        return self._context.status.get("phase") in TERMINAL_PHASES

    def update(self, pod: Json) -> None:
        """Takes a new version of the pod (same uid) from the API server; an older one is ignored."""
        self.removed = False
        first, self._publisher.enabled = not self._publisher.enabled, True
        if first:
            # The API server answers. Until now, an adopted pod had old volumes, or waited ever longer for them.
            self._mounter.retry_now()
        if version_of(pod) < version_of(self.pod) or (pod == self.pod and not first):
            return
        self._context.pod = pod
        if self._publisher.pending is None or first:
            # An earlier kubelet may have published a status that this one has not read.
            self._publisher.discard()
            self._context.status = dict(pod.get("status") or {})
            self._prober.adopt(self._context.status)
        if self.accepted:
            try:
                self.folder.save(pod)
            except OSError as error:
                # The next kubelet starts with the older version and gets the newer one from the API server.
                log.warning("%s: cannot write pod.json: %s", self.key, error)
        self.wake()

    @property
    def evicted(self) -> str:
        """The message of the pod's eviction; empty if it is not evicted."""
        return self._evicted

    @property
    def closed(self) -> bool:
        """Whether only logs are left of the pod."""
        return self._closed or self._gone

    def evict(self, message: str) -> float:
        """Ends the pod: Failed with the reason Evicted. Returns the longest time that its containers get (seconds)."""
        if not self._evicted:
            self._evicted = message
            self._context.event("Warning", eviction.REASON, message)
            self.wake()
        return eviction_grace_of(self.pod)

    def shut_down(self, seconds: float) -> None:
        """Ends the pod within ``seconds``, because the machine shuts down."""
        self._shutdown_seconds = seconds
        self._context.event("Normal", "NodeShutdown", SHUTDOWN_MESSAGE)
        self.wake()

    async def until_over(self) -> None:
        """Waits until no container of the pod runs or will run, and the API server has this status."""
        await self._over.wait()

    @property
    def probe_results(self) -> Mapping[tuple[str, str, str], int]:
        """How often each probe had each result, by container, kind and result."""
        return self._prober.results

    @property
    def own_user(self) -> int | None:
        """The user that only this pod has; None without one."""
        return self._services.users.own(self.folder)

    async def free_space(self) -> None:
        """Kills the remaining processes of an evicted pod, and deletes its files. Raises OSError."""
        leavings = self._services.leavings
        with contextlib.suppress(OSError):
            await leavings.end_processes(self.folder)
        # Deletes whole folders, because the pod determines how many entries they have.
        for path in [*self.folder.path.glob("empty/*"), *self.folder.path.glob("containers/*/sandbox")]:
            await leftovers.delete(path)
        await leavings.clear_own(self.folder)
        await leavings.clear(self.folder, ended=False)

    def remove(self) -> None:
        """Ends the pod, because the API server no longer has it."""
        if not self.removed:
            self.removed = True
            self.wake()

    def wake(self) -> None:
        """Makes the worker observe and decide again."""
        self._wake.set()

    def settings_changed(self) -> None:
        """Immediately retries operations that failed with the old settings."""
        self._starter.retry_now()
        self.wake()

    async def run(self) -> None:
        """Runs until the pod is deleted. When cancelled, the containers keep running."""
        publisher = asyncio.create_task(self._publisher.run())
        try:
            while not self._gone:
                self._wake.clear()
                wait: float = RETRY_SECONDS
                try:
                    wait = await self.step()
                except (ApiError, OSError) as error:
                    log.warning("%s: %s; retrying in %.0f s", self.key, error, RETRY_SECONDS)
                except Exception:
                    # The next step observes everything again, and other pods must not be affected.
                    log.exception("%s: step failed", self.key)
                if self._gone:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
        finally:
            publisher.cancel()
            for task in self._tasks:
                task.cancel()
            self._prober.close()

    async def step(self) -> float:
        """Observes, decides and acts once. Returns the longest wait before the next step (seconds)."""
        if not self.accepted and not await self._accept():
            return RESYNC_SECONDS
        self._observe()
        settings = self._services.settings()
        blocked = admission.cannot_run(self.pod, settings.images, settings.mac)
        ending = self.removed or self.pod["metadata"].get("deletionTimestamp")
        mounting = blocked is None and not ending and not self._has_ended()
        if mounting:
            await self._mounter.mount()
        decision = self._decide(blocked)
        await self._act(decision)
        if decision.starts:
            # Publish the state after the starts, not the one before.
            self._observe()
            decision = self._decide(blocked)
            if decision.starts or decision.stops:
                self.wake()
        self._report(decision, blocked)
        if decision.status is not None:
            self._publisher.publish(decision.status)
        if decision.ended:
            self._over.set()
            await self._finish()
            return RETRY_SECONDS
        if self._is_over():
            self._over.set()
            await self._close()
        return self._wait(decision, self._mounter.due if mounting else 0.0)

    def _observe(self) -> None:
        self.attempts, self.observed = self.containers.attempts(), True
        for name, attempts in self.attempts.items():
            last = attempts[-1] if attempts else None
            if self._prober.follow(name, last) and last is not None and last.grace_exceeded:
                message = (
                    f"Container {name} did not stop within its grace period and was killed; "
                    "its GPU memory may stay wired until the machine reboots"
                )
                self._report_once("ExceededGracePeriod", message, name, last.number)

    def _decide(self, blocked: Problem | None) -> Decision:
        settings = self._services.settings()
        observed = Observed(
            now=self._services.now(),
            attempts=self.attempts,
            ready=self._prober.ready,
            started=self._prober.started,
            unhealthy=self._prober.unhealthy,
            problems=self._starter.problems,
            blocked=blocked,
            volumes_ready=self._mounter.ready,
            removed=self.removed,
            evicted=self._evicted,
            shutdown_seconds=self._shutdown_seconds,
            host_ip=settings.addresses[0],
            addresses=settings.addresses,
            boot=settings.boot,
        )
        return decide(self.view(), observed)

    async def _act(self, decision: Decision) -> None:
        for start in decision.starts:
            if await self._starter.start(start):
                self._spawn(self._post_start(start))
        for stop in decision.stops:
            if self._stopper.begin(stop):
                self._spawn(self._stopper.run(stop))

    async def _post_start(self, start: Start) -> None:
        error = await self._starter.post_start(start.container, start.number)
        if error:
            self._context.event("Warning", "FailedPostStartHook", error, start.container)
            self._prober.fail(start.container, "postStart hook failed, container will be restarted")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, decision: Decision, blocked: Problem | None) -> None:
        for name in decision.backing_off:
            last = self.attempts[name][-1]
            message = f"Back-off {last.backoff:.0f}s restarting failed container {name} in pod {self.key}"
            self._report_once("BackOff", message, name, last.number)
        if blocked is not None:
            self._report_once(blocked.reason, blocked.message)

    def _report_once(self, reason: str, message: str, container: str | None = None, number: int = 0) -> None:
        key = (reason, container or "", number)
        if key not in self._reported:
            self._reported.add(key)
            self._context.event("Warning", reason, message, container)

    def _wait(self, decision: Decision, mount_due: float) -> float:
        now = self._services.now()
        times = [at for at in (decision.wake_at, mount_due) if at]
        if any(attempt.state == "starting" for attempts in self.attempts.values() for attempt in attempts):
            times.append(now + STARTING_SECONDS)
        return min(RESYNC_SECONDS, max(0.01, min(times) - now)) if times else RESYNC_SECONDS

    async def _accept(self) -> bool:
        """Accepts the pod or fails it. False if no step is possible until something changes."""
        if self.removed:
            self._gone = True
            self._services.ended(self.uid)
            return False
        if self.pod["metadata"].get("deletionTimestamp"):
            await self._delete()
            return False
        if self._has_ended():
            return False
        rejection = await self._services.admit(self.pod)
        if rejection is None:
            try:
                user = self._services.users.take(self.folder)
                self.folder.create(user.id if user is not None else None)
                self.folder.save(self.pod)
            except OSError as error:
                # Accepted only when it is on disk, where the next kubelet finds it.
                self.accepted = False
                self._context.event("Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
                raise
            self.accepted = True
            return True
        reason, message = rejection
        self._context.event("Warning", reason, message)
        self._publisher.publish(rejected_status(self.pod, reason, message, self._services.now()))
        return False

    def _is_over(self) -> bool:
        """Whether no container of the pod runs or will run, and the API server has this status."""
        live = any(attempt.live for attempts in self.attempts.values() for attempt in attempts)
        return self._has_ended() and not live and self._publisher.pending is None

    async def _close(self) -> None:
        """Ends processes that the containers left behind, deletes their files, and frees the pod's user.

        Raises OSError if something is left; the pod then keeps its user.
        """
        if self._closed:
            return
        leavings = self._services.leavings
        await leavings.end_processes(self.folder)
        self.containers.keep_messages()
        await self.folder.clear()
        await leavings.clear_own(self.folder)
        for message in await leavings.clear(self.folder):
            self._context.event("Warning", "FilesLeft", message)
        self.folder.close()
        self._services.users.release(self.folder)
        self._closed = True
        if not self.removed:
            # A kubelet that starts now must not start the pod again, since the pod would have no user.
            self.folder.save(self.view())

    async def _finish(self) -> None:
        """Deletes a pod without processes: first its files, then the pod in the API server, then its folder."""
        if not self.removed and self._publisher.pending is not None:
            # The last status goes first; the publisher wakes this worker.
            return
        await self._close()
        if not self.removed:
            await self._delete()
        self._gone = True
        try:
            await self.folder.remove()
        except OSError as error:
            log.error("%s: cannot delete %s: %s; the next start of the kubelet tries again", self.key, self.folder.path, error)
        self._services.objects.forget(self.uid)
        self._services.ended(self.uid)

    async def _delete(self) -> None:
        """Deletes the pod from the API server. Raises ApiError."""
        await self._services.kube().delete(self._context.path, grace_seconds=0, uid=self.uid)
        self._gone = True
        if not self.accepted:
            self._services.ended(self.uid)
