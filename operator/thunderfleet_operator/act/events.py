"""Events, as objects of the API server.

Each is about something that has been written already, mostly a status, and no later round would find it again. So Events are
written after their term as the leader too, are tried again while the API server is away, and those that wait when the operator
ends are written then.

Statuses come first, because nobody waits for an Event as for a status: while rounds wait, an Event is written now and then.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.names import API_VERSION
from thunderfleet_lib.eventlimit import EventLimit
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.metrics import Metrics

log = logging.getLogger(__name__)

About = ModelDeployment | NodeProfile | ThunderboltLink
REPORTER = "thunderfleet-operator"
MOST_WAITING = 20_000
"""Events that wait to be written: several for each cable and ModelDeployment of the largest fleet."""
MOST_NORMAL = MOST_WAITING * 3 // 4
"""How many may wait when one comes that is no warning. The rest is left for warnings."""
PAUSE_SECONDS = 0.02
"""Between two Events: 50 a second, as a kubelet writes at most."""
BUSY_SECONDS = 1.0
"""The same in addition while rounds wait."""
LOOK_SECONDS = 0.1
"""How often it is checked meanwhile whether they still wait."""
RETRY_SECONDS = 10.0
TRIES = 12
"""How often an Event is tried while the API server is away."""
_LATER = (429, 503, 504)
"""Statuses of an API server that starts or has too much to do. With another, it refuses this Event; the next may be fine."""
END_SECONDS = 5.0
"""How long Events are still written when the operator ends."""


def manifest(about: About, occurrence: Occurrence, instance: str) -> dict[str, Any]:
    """An Event about an object. Its name differs with text and time.

    Events about cluster-scoped objects are in the namespace `default`, where `kubectl describe` finds them.
    """
    meta = about.metadata
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{occurrence}{now.isoformat()}{meta.uid}".encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta.name[:230]}.{digest}", "namespace": meta.namespace or "default"},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": about.kind,
            "name": meta.name,
            **({"namespace": meta.namespace} if meta.namespace else {}),
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "type": "Warning" if occurrence.warning else "Normal",
        "reason": occurrence.reason,
        "message": occurrence.message[:1000],
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


class Events:
    """Writes Events, one after the other. ``instance``: the name of this replica. ``busy``: whether rounds wait."""

    def __init__(self, kube: Kube, metrics: Metrics, instance: str, busy: Callable[[], bool]) -> None:
        self._kube = kube
        self._metrics = metrics
        self._instance = instance
        self._busy = busy
        self._limit = EventLimit()
        self._waiting: deque[dict[str, Any]] = deque()
        self._wake = asyncio.Event()

    def later(self, about: About, occurrence: Occurrence) -> None:
        """Has an Event created soon, with the time of now, unless there were too many about the object."""
        name, most = about.metadata.name, MOST_WAITING if occurrence.warning else MOST_NORMAL
        if not self._limit.take(str(about.metadata.uid), time.monotonic()):
            log.debug("Event %s about %s is not created: there were too many", occurrence.reason, name)
        elif len(self._waiting) >= most:
            log.warning("Event %s about %s is not created: %d others wait", occurrence.reason, name, len(self._waiting))
        else:
            self._waiting.append(manifest(about, occurrence, self._instance))
            self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        due, failures = float("-inf"), 0
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            left = due - time.monotonic() + (BUSY_SECONDS if self._busy() else 0.0)
            if left > 0:
                await asyncio.sleep(min(left, LOOK_SECONDS))
                continue
            done = await self._write(last=failures + 1 >= TRIES)
            failures = 0 if done else failures + 1
            due = time.monotonic() + (PAUSE_SECONDS if done else RETRY_SECONDS)

    async def end(self) -> None:
        """Writes what still waits, until the API server does not take one, or for ``END_SECONDS``. ``run`` has ended before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while self._waiting and await self._write():
                    pass
        if self._waiting:
            log.warning("%d Events are not created: the operator ends", len(self._waiting))

    async def _write(self, *, last: bool = False) -> bool:
        """Writes the first Event that waits. False if it has to be tried again, which never is the case with ``last``.

        It waits until there is an answer: if this is cut short, it is written again under its name, of which there is one.
        """
        body = self._waiting[0]
        self._metrics.writes.labels("events", "create").inc()
        try:
            await self._kube.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body)
        except ApiError as error:
            if (error.unanswered or error.status in _LATER) and not last:
                return False
            if error.status != 409:
                log.warning("cannot create Event %s about %s: %s", body["reason"], body["involvedObject"]["name"], error)
        self._waiting.popleft()
        return True
