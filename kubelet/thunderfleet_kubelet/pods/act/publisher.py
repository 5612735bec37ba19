"""Writes the status of one pod to the API server, and retries until the API server accepts it."""

import asyncio
import logging

from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import STRATEGIC_PATCH, ApiError, Json

from thunderfleet_kubelet.pods.context import PodContext
from thunderfleet_kubelet.pods.decide.publishing import as_patch, covers, only_started, version_of

log = logging.getLogger(__name__)

MANAGER = "thunderfleet-kubelet"
"""The field manager of the status in ``managedFields``."""

RETRY = Backoff(1.0, 15.0, jitter=0.3)
STARTED_SECONDS = 5.0
"""How long it may take to write that a container has started and is not ready. It often is soon, and one write shows both."""


class StatusPublisher:
    """Publishes the newest status only. ``enabled``: False until the API server's version of the pod is known."""

    def __init__(self, context: PodContext, *, enabled: bool) -> None:
        self._context = context
        self.enabled = enabled
        self._pending: Json | None = None
        self._published: Json | None = None
        self._published_version = 0
        self._changed = asyncio.Event()

    @property
    def pending(self) -> Json | None:
        """The status that is not yet written to the API server."""
        return self._pending

    def discard(self) -> None:
        """Drops the pending status."""
        self._pending = None

    def publish(self, status: Json) -> None:
        """Makes ``status`` the pod's, and writes it unless the API server already has it."""
        if not self.enabled:
            return
        context = self._context
        context.status = {**context.status, **status}
        if self._pending is None:
            if covers(context.pod.get("status") or {}, status):
                return
            if self._published == status and version_of(context.pod) <= self._published_version:
                # The API server accepted it, but writes it in another form.
                return
        elif self._pending == status:
            # Already being written. Setting it again would make publisher and worker wake each other forever.
            return
        self._pending = status
        if only_started(context.pod.get("status") or {}, status):
            asyncio.get_running_loop().call_later(STARTED_SECONDS, self._changed.set)
        else:
            self._changed.set()

    async def run(self) -> None:
        """Writes until cancelled. Runs beside the worker, so containers are managed while the API server is away."""
        failures = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._pending is None:
                continue
            try:
                await self._write(self._pending)
                failures = 0
            except ApiError as error:
                if error.status in (404, 409):
                    # The pod was deleted, or another pod has its name; the watch will report it.
                    self._pending = None
                    self._context.wake()
                    continue
                failures += 1
                delay = RETRY.jittered(failures)
                log.warning("%s: cannot write status: %s; retrying in %.0f s", self._context.key, error, delay)
                self._changed.set()
                await asyncio.sleep(delay)
            except Exception:
                log.exception("%s: cannot write status", self._context.key)
                self._changed.set()
                await asyncio.sleep(RETRY.limit)

    async def _write(self, status: Json) -> None:
        context = self._context
        body = {"metadata": {"uid": context.uid}, "status": as_patch(status)}
        answer = await context.services.kube().patch(context.path + "/status", body, STRATEGIC_PATCH, MANAGER)
        self._published = status
        self._published_version = version_of(answer)
        if self._pending == status:
            self._pending = None
        if answer.get("metadata", {}).get("uid") == context.uid and version_of(answer) >= version_of(context.pod):
            context.pod = answer
        context.wake()
