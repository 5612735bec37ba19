"""Decides the next actions for a pod, as a pure function of its spec, of what was observed, and of the time.

``decide`` runs whenever something may have changed. It returns everything at once: which containers to start or stop, the
whole status to publish, and when to decide again if nothing happens. It keeps no state. The past (how often a container was
started, with which back-off) is in the attempts, which are on disk, so a restarted kubelet decides as its predecessor would.

Times are seconds since the epoch (UTC). Names, reasons and phases are those of the Kubernetes kubelet.
"""

from dataclasses import dataclass, field
from typing import Any

from thunderfleet_kubelet.containers.attempt import BACKOFF_RESET_SECONDS, Attempt, Start
from thunderfleet_kubelet.pods.decide import podspec
from thunderfleet_kubelet.pods.decide.observed import Observed
from thunderfleet_kubelet.pods.decide.progress import Ending, Progress, has_other_image, progress, runs_again
from thunderfleet_kubelet.pods.decide.status import pod_status

Json = dict[str, Any]

BACKOFF_FIRST_SECONDS = 10.0
BACKOFF_LIMIT_SECONDS = 300.0

GRACES = {Ending.EVICTED: podspec.eviction_grace_of, Ending.REMOVED: podspec.removed_grace_of}
"""The grace periods of endings that do not give the pod its own."""

PROBLEM_LIMIT_SECONDS = 60.0
"""The longest wait before a container that failed to start is started again."""


@dataclass(frozen=True)
class Stop:
    """Stop the live attempt of ``container``: preStop hook, SIGTERM, and SIGKILL ``grace`` seconds after the stop began.

    ``with_pod``: the whole pod ends, so the grace began with the first of its containers that was stopped for this.
    """

    container: str
    number: int
    grace: float
    message: str
    with_pod: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do with a pod now.

    ``status`` None: nothing to publish. ``wake_at``: when to decide again. ``ended``: nothing runs and nothing will run
    again, so the pod can be deleted. ``backing_off``: containers that wait for their crash-loop back-off.
    """

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    status: Json | None = None
    wake_at: float | None = None
    ended: bool = False
    backing_off: tuple[str, ...] = ()


@dataclass
class _Actions:
    """The actions collected so far. ``times``: when each delayed start is due."""

    starts: list[Start] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    backing_off: list[str] = field(default_factory=list)


def decide(pod: Json, observed: Observed) -> Decision:
    """Decides what to do with ``pod`` (as the API server has it, with its current status) and which status to publish."""
    state = progress(pod, observed)
    actions = _Actions()
    if state.ending is not None:
        _stop_all(pod, observed, state.ending, actions)
    elif state.finished:
        # Containers that fail a probe stop now; sidecars stop one after the other.
        _stop_unhealthy(pod, observed, actions)
        _stop_last_sidecar(pod, observed, podspec.grace_of(pod), "the pod's main containers have terminated", actions)
    else:
        _stop_unhealthy(pod, observed, actions)
        _stop_changed(pod, observed, actions)
        for container in _due(pod, observed, state):
            _start_or_wait(container, observed, actions)
    deadline = podspec.deadline_of(pod, observed.now)
    if state.ending is None and deadline is not None:
        actions.times.append(deadline)
    deleted = bool(observed.removed or pod["metadata"].get("deletionTimestamp"))
    return Decision(
        starts=tuple(actions.starts),
        stops=tuple(actions.stops),
        status=pod_status(pod, observed, state, frozenset(actions.backing_off)),
        wake_at=min(actions.times, default=None),
        ended=state.nothing_live and deleted,
        backing_off=tuple(actions.backing_off),
    )


def _due(pod: Json, observed: Observed, state: Progress) -> list[Json]:
    """The containers that should run."""
    if not state.initialized:
        return [state.pending_init] if state.pending_init is not None else []
    policy = podspec.restart_policy(pod)
    mains = []
    for container in podspec.main_containers(pod):
        last = observed.last(container["name"])
        if last is None or (not last.live and runs_again(container, last, policy)):
            mains.append(container)
    return podspec.sidecars(pod) + mains


def next_backoff(previous: Attempt | None) -> float:
    """The back-off of the attempt after ``previous``: none for the first, then 10 s, doubling up to 5 min."""
    if previous is None:
        return 0.0
    if previous.seconds > BACKOFF_RESET_SECONDS or previous.backoff <= 0:
        return BACKOFF_FIRST_SECONDS
    return min(BACKOFF_LIMIT_SECONDS, previous.backoff * 2)


def _of_another_boot(observed: Observed, attempt: Attempt) -> bool:
    """Whether the machine has booted since an attempt was started."""
    return bool(observed.boot and attempt.boot) and attempt.boot != observed.boot


def _start_or_wait(container: Json, observed: Observed, actions: _Actions) -> None:
    """Starts the container unless it is live; records when it may start if it must wait."""
    name, last = container["name"], observed.last(container["name"])
    if last is not None and last.live:
        return
    if observed.blocked is not None or not observed.volumes_ready:
        if observed.blocked is not None and observed.blocked.retry_at:
            actions.times.append(observed.blocked.retry_at)
        return
    # An attempt that ended in the future was recorded before the clock was set back; its back-off would last for days.
    # A new image starts without a back-off, and so does a container that ended because the machine was switched off.
    before = None if last is not None and (has_other_image(container, last) or _of_another_boot(observed, last)) else last
    if (
        before is not None
        and (before.finished_at or 0.0) <= observed.now + podspec.CLOCK_SECONDS
        and observed.now < before.retry_at
    ):
        actions.times.append(before.retry_at)
        actions.backing_off.append(name)
        return
    problem = observed.problems.get(name)
    if problem is not None and observed.now < problem.retry_at <= observed.now + PROBLEM_LIMIT_SECONDS:
        actions.times.append(problem.retry_at)
        return
    actions.starts.append(Start(name, 0 if last is None else last.number + 1, next_backoff(before)))


def _stop_changed(pod: Json, observed: Observed, actions: _Actions) -> None:
    """Stops the containers whose image was changed; they start again with the new one."""
    for container in [*podspec.sidecars(pod), *podspec.main_containers(pod)]:
        last = observed.last(container["name"])
        if last is not None and has_other_image(container, last):
            _stop(container, observed, podspec.grace_of(pod), "its image was changed, it will be restarted", actions)


def _stop_unhealthy(pod: Json, observed: Observed, actions: _Actions) -> None:
    """Stops the containers that failed a liveness or startup probe."""
    for container in podspec.all_containers(pod):
        message = observed.unhealthy.get(container["name"])
        if message:
            _stop(container, observed, podspec.probe_grace_of(pod, container), message, actions)


def _stop(container: Json, observed: Observed, grace: float, message: str, actions: _Actions, with_pod: bool = False) -> None:
    last = observed.last(container["name"])
    if last is not None and last.live:
        actions.stops.append(Stop(container["name"], last.number, grace, message, with_pod))


def _stop_all(pod: Json, observed: Observed, ending: Ending, actions: _Actions) -> None:
    """Main and plain init containers stop together; when they have ended, the sidecars stop in reverse order."""
    grace = GRACES.get(ending, podspec.grace_of)(pod)
    if observed.shutdown_seconds is not None:
        grace = min(grace, observed.shutdown_seconds)
    sidecars = podspec.sidecars(pod)
    first = [container for container in podspec.all_containers(pod) if container not in sidecars]
    for container in first:
        _stop(container, observed, grace, ending.value, actions, with_pod=True)
    if not actions.stops:
        _stop_last_sidecar(pod, observed, grace, ending.value, actions)


def _stop_last_sidecar(pod: Json, observed: Observed, grace: float, message: str, actions: _Actions) -> None:
    for container in reversed(podspec.sidecars(pod)):
        if observed.is_live(container["name"]):
            _stop(container, observed, grace, message, actions, with_pod=True)
            return
