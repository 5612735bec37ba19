"""Writes Events about pods (core/v1), which ``kubectl describe`` shows.

A repeated Event raises the count of the existing one, at most every ``QUIET_SECONDS``, and the Events about one pod are
bounded (``eventlimit``), so that a crash-looping container does not fill etcd. While the API server is away, the last ``KEPT``
Events are kept. The name of an Event is chosen before the first request, so that a request whose answer was lost can be sent
again and creates nothing twice.
"""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from thunderfleet_lib.eventlimit import EventLimit
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_kubelet.timestamps import format_time

log = logging.getLogger(__name__)

QUIET_SECONDS = 15.0
KEPT = 500
RETRY_SECONDS = 5.0
MAX_NAME = 253
COMPONENT = "thunderfleet-kubelet"


def event_name(about: str) -> str:
    """A new name for an Event about the object of this name."""
    suffix = f".{uuid.uuid4().hex[:16]}"
    return about[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


@dataclass
class _Known:
    name: str = ""
    count: int = 0
    first: float = 0.0
    written: float = 0.0
    """Monotonic, so that a clock that is set back silences nothing."""


@dataclass
class Recorder:
    """Queues Events; ``run`` sends them one after the other."""

    kube: Callable[[], Kube]
    node_name: str
    _queue: "deque[tuple[tuple[str, ...], Json]]" = field(default_factory=lambda: deque(maxlen=KEPT))
    _known: dict[tuple[str, ...], _Known] = field(default_factory=dict)
    _limit: EventLimit = field(default_factory=EventLimit)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def pod(
        self,
        pod: Json,
        kind: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        container: str | None = None,
        series: str = "",
    ) -> None:
        """Records an Event about ``pod`` or one of its containers.

        ``series``: what makes it the same as an earlier one, although messages differ. It has the message of its last write.
        """
        metadata = pod["metadata"]
        reference: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }
        if container:
            inits = {item["name"] for item in pod["spec"].get("initContainers") or []}
            reference["fieldPath"] = f"spec.{'initContainers' if container in inits else 'containers'}{{{container}}}"
        message = message[:1024]
        key = (metadata["uid"], container or "", kind, reason, series or message)
        known = self._known.setdefault(key, _Known(first=time.time()))
        known.count += 1
        level = logging.INFO if known.count == 1 else logging.DEBUG
        log.log(level, "%s/%s: %s: %s", metadata["namespace"], metadata["name"], reason, message)
        if known.count > 1 and time.monotonic() - known.written < QUIET_SECONDS:
            return
        known.written = time.monotonic()
        if not known.name and not self._limit.take(metadata["uid"], known.written):
            return
        body: Json = {
            "metadata": {"name": event_name(metadata["name"]), "namespace": metadata["namespace"]},
            "involvedObject": reference,
            "type": kind,
            "reason": reason,
            "message": message,
        }
        self._queue.append((key, body))
        self._wake.set()
        if len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))

    async def _send(self, key: tuple[str, ...], body: Json) -> None:
        known = self._known.get(key) or _Known(first=time.time(), count=1)
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        now = format_time(time.time())
        if known.name:
            try:
                changes = {"count": known.count, "lastTimestamp": now, "message": body["message"]}
                await self.kube().patch(f"{path}/{known.name}", changes)
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        try:
            await self.kube().create(
                path,
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    **body,
                    "count": known.count,
                    "firstTimestamp": format_time(known.first),
                    "lastTimestamp": now,
                    "source": {"component": COMPONENT, "host": self.node_name},
                    "reportingComponent": COMPONENT,
                    "reportingInstance": self.node_name,
                },
            )
        except ApiError as error:
            # The name is unique, so an earlier request created the Event and its answer was lost.
            if error.status != 409:
                raise
        known.name = body["metadata"]["name"]

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            while self._queue:
                key, body = self._queue[0]
                try:
                    await self._send(key, body)
                except ApiError as error:
                    if error.transient:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    log.debug("event %s rejected: %s", body["reason"], error)
                except Exception:
                    # One bad event must not stop the others.
                    log.exception("event %s not written", body["reason"])
                # A full queue may have dropped it meanwhile.
                if self._queue and self._queue[0][1] is body:
                    self._queue.popleft()
            self._wake.clear()
            await self._wake.wait()
