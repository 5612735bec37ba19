"""The worker's observations of one pod, as one value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunderfleet_kubelet.containers.attempt import Attempt


@dataclass(frozen=True)
class Problem:
    """Why a pod or container cannot start: ``reason`` and ``message`` of the Waiting state. ``retry_at``: the next try."""

    reason: str
    message: str
    retry_at: float = 0.0


@dataclass(frozen=True)
class Observed:
    """The state of one pod on this machine. Times are seconds since the epoch.

    ``attempts``: by container name, oldest first. ``ready``, ``started``: results of the readiness and startup probes of the
    live attempt; absent before the first result. ``unhealthy``: containers that failed their liveness or startup probe, with
    the message. ``problems``: by container. ``blocked``: why the whole pod cannot start. ``removed``: the API server no longer
    has the pod. ``evicted``: the message of its eviction. ``shutdown_seconds``: how long it may take to end because the
    machine shuts down; None while it does not. ``boot``: the present boot of the machine; empty if it is unknown.
    """

    now: float
    attempts: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    ready: Mapping[str, bool] = field(default_factory=dict)
    started: Mapping[str, bool] = field(default_factory=dict)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, Problem] = field(default_factory=dict)
    blocked: Problem | None = None
    volumes_ready: bool = False
    removed: bool = False
    evicted: str = ""
    shutdown_seconds: float | None = None
    host_ip: str = ""
    addresses: tuple[str, ...] = ()
    boot: str = ""

    def last(self, name: str) -> Attempt | None:
        """The most recent attempt of a container."""
        attempts = self.attempts.get(name) or ()
        return attempts[-1] if attempts else None

    def is_live(self, name: str) -> bool:
        """Whether a container is starting or running."""
        last = self.last(name)
        return last is not None and last.live
