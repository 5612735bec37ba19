"""Which replica acts: the one that holds a Lease. The others keep their caches warm and wait.

A holder that cannot renew stops acting before another may take over; a standby measures the Lease's age by its own clock,
from when it last saw it change, so clocks need not agree. A holder that ends in good order gives the Lease back.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from thunderfleet_lib.kube import ApiError, Json, Kube

log = logging.getLogger(__name__)

LEASE_NAME = "thunderfleet-operator"
DURATION_SECONDS = 12
RENEW_SECONDS = 3.0
STANDBY_SECONDS = 2.0
STOP_AFTER_SECONDS = 9.0
"""Without a renewal for so long the holder stops acting: before DURATION_SECONDS, when another may begin."""
REQUEST_SECONDS = 3.0


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Leader:
    """``gained`` is called each time this replica begins to lead."""

    def __init__(self, kube: Kube, namespace: str, identity: str, gained: Callable[[], None]) -> None:
        self._kube = kube
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self.identity = identity
        self._gained = gained
        self._renewed = float("-inf")
        self._seen: tuple[str, str] | None = None
        self._seen_at = 0.0
        self._led = False
        self.writes = 0

    def leading(self) -> bool:
        """Whether this replica may act right now."""
        return time.monotonic() - self._renewed < STOP_AFTER_SECONDS

    def _body(self, lease: Json | None) -> Json:
        spec: Json = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": _now()}
        metadata: Json = {"name": LEASE_NAME, "namespace": self._namespace}
        if lease:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _try(self) -> bool:
        """One attempt to take or renew; whether we hold it."""
        path = f"{self._folder}/{LEASE_NAME}"
        try:
            lease: Json | None = await self._kube.request("GET", path, seconds=REQUEST_SECONDS)
        except ApiError as error:
            if error.status != 404:
                raise
            lease = None
        spec = (lease or {}).get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if lease is not None and holder not in ("", self.identity):
            seen = (holder, str(spec.get("renewTime")))
            if seen != self._seen:
                self._seen, self._seen_at = seen, time.monotonic()
            if time.monotonic() - self._seen_at < float(spec.get("leaseDurationSeconds") or DURATION_SECONDS):
                return False
        begun = time.monotonic()
        self.writes += 1
        if lease is None:
            await self._kube.request("POST", self._folder, body=self._body(None), seconds=REQUEST_SECONDS)
        else:
            await self._kube.request("PUT", path, body=self._body(lease), seconds=REQUEST_SECONDS)
        # From before the request: whoever reads the Lease cannot have seen it earlier.
        self._renewed = begun
        return True

    async def run(self) -> None:
        """Until cancelled."""
        silenced = ""
        while True:
            wait = RENEW_SECONDS if self._led else STANDBY_SECONDS
            try:
                if await self._try():
                    if not self._led:
                        log.info("%s leads", self.identity)
                        self._led = True
                        self._gained()
                elif self._led:
                    log.warning("%s does not lead any more", self.identity)
                    self._led = False
                    self._renewed = float("-inf")
            except ApiError as error:
                if error.status != 409 and error.reason != silenced:
                    # Once, not each second for as long as the API server is away.
                    log.warning("lease %s/%s: %s", self._namespace, LEASE_NAME, error)
                    silenced = error.reason
                wait = 1.0
            else:
                silenced = ""
            if self._led and not self.leading():
                log.warning("%s stops acting: its lease was not renewed in %.0f s", self.identity, STOP_AFTER_SECONDS)
                self._led = False
            await asyncio.sleep(wait)

    async def release(self) -> None:
        """Gives the Lease back, so that a standby need not wait for it to run out."""
        if not self.leading():
            return
        self._renewed = float("-inf")
        path = f"{self._folder}/{LEASE_NAME}"
        try:
            lease = await self._kube.request("GET", path, seconds=REQUEST_SECONDS)
            if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
                return
            body = self._body(lease)
            body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._kube.request("PUT", path, body=body, seconds=REQUEST_SECONDS)
        except ApiError as error:
            log.warning("lease %s/%s was not given back: %s", self._namespace, LEASE_NAME, error)
