"""Events, as objects of the API server.

They are written one after the other, beside all other writes: nobody waits for an Event as for a status, and an operator that
starts in front of a thousand new cables has as many Events to write as statuses. Those that wait when it ends are lost.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

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


class _Waiting(NamedTuple):
    term: int
    body: dict[str, Any]


class Events:
    """Writes Events. ``term``: as for ``Writer``. ``instance``: the name of this replica."""

    def __init__(self, kube: Kube, metrics: Metrics, term: Callable[[], int], instance: str) -> None:
        self._kube = kube
        self._metrics = metrics
        self._term = term
        self._instance = instance
        self._limit = EventLimit()
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()

    def later(self, about: About, occurrence: Occurrence) -> None:
        """Has an Event created soon, with the time of now, unless there were too many about the object."""
        if not self._limit.take(str(about.metadata.uid), time.monotonic()):
            log.debug("Event %s about %s is not created: there were too many", occurrence.reason, about.metadata.name)
        elif len(self._waiting) >= MOST_WAITING:
            name = about.metadata.name
            log.warning("Event %s about %s is not created: %d others wait", occurrence.reason, name, MOST_WAITING)
        else:
            self._waiting.append(_Waiting(self._term(), manifest(about, occurrence, self._instance)))
            self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self.write()
            self._wake.clear()
            if not self._waiting:
                await self._wake.wait()

    async def write(self) -> None:
        """Writes what waits. A failure to do so is only logged; what another term has seen is not written in this one."""
        while self._waiting:
            term, body = self._waiting.popleft()
            if not term or term != self._term():
                continue
            self._metrics.writes.labels("events", "create").inc()
            try:
                await self._kube.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body)
            except ApiError as error:
                log.warning("cannot create Event %s about %s: %s", body["reason"], body["involvedObject"]["name"], error)
