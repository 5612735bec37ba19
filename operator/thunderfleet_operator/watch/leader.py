"""Leader election with a Lease. The other replicas keep their caches up to date and wait.

A holder that cannot renew the Lease stops acting before another replica may take over. A standby measures the age of the Lease
by its own clock, from when it last observed a change of the Lease, so the clocks of the replicas need not match. A holder that
shuts down releases the Lease. If the process of a holder was killed, the next process of the same pod takes the Lease over
without waiting for it to expire, because a container starts again only after its process has ended.

A holder measures the age of its last renewal by a clock that counts sleep and by the wall clock, and the longer of both counts:
a machine that was asleep, or a virtual one that was stopped, must not act on a Lease that has expired meanwhile.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from thunderfleet_lib.clock import Moment
from thunderfleet_lib.kube import ApiError, Json, Kube, Part, silent_part

log = logging.getLogger(__name__)

LEASE_NAME = "thunderfleet-operator"
DURATION_SECONDS = 12
RENEW_SECONDS = 3.0
STANDBY_SECONDS = 2.0
STOP_AFTER_SECONDS = 9.0
"""The holder stops acting this long after its last renewal, before another replica may take over (DURATION_SECONDS)."""
REQUEST_SECONDS = 3.0
JUMP_SECONDS = 5.0
"""After a change of the wall clock by more than this, all keys are queued again."""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who holds the Lease: a process, and the pod that it runs in.

    ``pod_uid``: empty outside a pod. The name is not enough: another pod of the same name may start while the first still runs.
    """

    name: str
    pod_uid: str = ""
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def __str__(self) -> str:
        return f"{self._pod}{self.process}"

    @property
    def _pod(self) -> str:
        return f"{self.name}_{self.pod_uid}_" if self.pod_uid else f"{self.name}_"

    def succeeds(self, holder: str) -> bool:
        """Whether ``holder`` was an earlier process of this pod."""
        return bool(self.pod_uid) and holder.startswith(self._pod)


class Leader:
    """One replica. ``gained`` is called each time it becomes the leader, and when the clock of a leader has jumped."""

    def __init__(
        self, kube: Kube, namespace: str, who: Identity, gained: Callable[[], None], now: Callable[[], Moment] = Moment.now
    ) -> None:
        self._kube = kube
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._who = who
        self.identity = str(who)
        self._gained = gained
        self._now = now
        self._renewed: Moment | None = None
        self._seen: tuple[str, str] | None = None
        self._seen_at = now()
        self._looked = now()
        self._led = False
        self.tried = asyncio.Event()
        """It is known for the first time whether this replica leads, or that the API server does not say."""
        self.writes = 0
        self.term = 1
        """Increases whenever this replica becomes the leader, so that no two of its terms have the same."""
        self.silent: Part | None = None
        """The part of the control plane because of which this replica does not lead, or does not see who leads."""
        self.first_led: datetime | None = None
        """When a replica took the Lease for the first time in this cluster; None if this one has not read it."""

    def leading(self) -> bool:
        """Whether this replica may act right now."""
        return self._renewed is not None and self._now().elapsed(self._renewed) < STOP_AFTER_SECONDS

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
        """Takes or renews the Lease; whether this replica holds it."""
        path = f"{self._folder}/{LEASE_NAME}"
        try:
            lease: Json | None = await self._kube.request("GET", path, seconds=REQUEST_SECONDS)
        except ApiError as error:
            if error.status != 404:
                raise
            lease = None
        spec = (lease or {}).get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if lease is not None and holder not in ("", self.identity) and not self._who.succeeds(holder):
            seen = (holder, str(spec.get("renewTime")))
            if seen != self._seen:
                self._seen, self._seen_at = seen, self._now()
            # Not by the wall clock: one that is set forward must not take the Lease from its holder.
            if self._now().boot - self._seen_at.boot < float(spec.get("leaseDurationSeconds") or DURATION_SECONDS):
                return False
        started = self._now()
        self.writes += 1
        if lease is None:
            lease = await self._kube.request("POST", self._folder, body=self._body(None), seconds=REQUEST_SECONDS)
        else:
            lease = await self._kube.request("PUT", path, body=self._body(lease), seconds=REQUEST_SECONDS)
        created = lease["metadata"].get("creationTimestamp")
        self.first_led = datetime.fromisoformat(created) if created else None
        if not self.leading():
            # Also when this replica has not noticed that its Lease expired, such as while the machine was asleep.
            self._led = False
        # The time before the request: no other replica can have seen this renewal earlier.
        self._renewed = started
        return True

    async def run(self) -> None:
        """Takes and renews the Lease until cancelled."""
        silenced = ""
        while True:
            self._look_at_clock()
            wait = RENEW_SECONDS if self._led else STANDBY_SECONDS
            try:
                if await self._try():
                    if not self._led:
                        log.info("%s is the leader", self.identity)
                        self._led = True
                        self.term += 1
                        self._gained()
                elif self._led:
                    log.warning("%s is no longer the leader", self.identity)
                    self._led = False
                    self._renewed = None
            except ApiError as error:
                if error.status != 409 and error.reason != silenced:
                    # Logged once, not every second while the API server is away.
                    log.warning("cannot take or renew Lease %s/%s: %s", self._namespace, LEASE_NAME, error)
                    silenced = error.reason
                wait = 1.0
                if error.transient and not self.leading():
                    # A holder tries to renew its Lease instead.
                    self.silent = await silent_part(self._kube)
            else:
                silenced, self.silent = "", None
            if self._led and not self.leading():
                log.warning("%s stops acting: its Lease has not been renewed for %.0f s", self.identity, STOP_AFTER_SECONDS)
                self._led = False
            self.tried.set()
            await asyncio.sleep(wait)

    def _look_at_clock(self) -> None:
        """Queues all keys again when the wall clock has jumped, because work that waits for a time may be due."""
        now, before = self._now(), self._looked
        self._looked = now
        jump = now.jump(before)
        if abs(jump) > JUMP_SECONDS:
            log.warning("the wall clock was set %s by %.0f s", "forward" if jump > 0 else "back", abs(jump))
            if self._led:
                self._gained()

    async def release(self) -> None:
        """Releases the Lease, so that a standby need not wait for it to expire."""
        if not self.leading():
            return
        self._renewed = None
        path = f"{self._folder}/{LEASE_NAME}"
        try:
            lease = await self._kube.request("GET", path, seconds=REQUEST_SECONDS)
            if (lease.get("spec") or {}).get("holderIdentity") != self.identity:
                return
            body = self._body(lease)
            body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._kube.request("PUT", path, body=body, seconds=REQUEST_SECONDS)
        except ApiError as error:
            log.warning("cannot release Lease %s/%s: %s", self._namespace, LEASE_NAME, error)
