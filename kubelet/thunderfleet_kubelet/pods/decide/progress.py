"""Progress of a pod: which init container is due, whether it has finished, why it must end. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from thunderfleet_kubelet.containers.attempt import Attempt
from thunderfleet_kubelet.pods.decide import podspec
from thunderfleet_kubelet.pods.decide.observed import Observed

Json = dict[str, Any]


class Ending(Enum):
    """Why all containers of a pod stop; the value is the message of the Killing event."""

    REMOVED = "the pod no longer exists in the API server"
    DELETED = "the pod is being deleted"
    TERMINAL = "the pod has terminated"
    EVICTED = "the pod is evicted"
    SHUTDOWN = "the node shuts down"
    DEADLINE = "the pod exceeded its activeDeadlineSeconds"


@dataclass(frozen=True)
class Progress:
    """Progress of a pod.

    ``ending``: why everything stops. ``pending_init``: the first init container that is not done. ``initialized``: main
    containers may start, or have started before. ``init_failed``: an init container failed permanently. ``finished``: no main
    container runs or will run again. ``nothing_live``: no container runs.
    """

    ending: Ending | None
    pending_init: Json | None
    initialized: bool
    init_failed: bool
    finished: bool
    nothing_live: bool


def progress(pod: Json, observed: Observed) -> Progress:
    """The pod's progress at the time of the observation."""
    policy = podspec.restart_policy(pod)
    mains = [(container, observed.last(container["name"])) for container in podspec.main_containers(pod)]
    pending = next((container for container in podspec.init_containers(pod) if not init_done(container, observed)), None)
    # Init containers never run again once a main container has started.
    initialized = pending is None or any(last is not None for _, last in mains)
    init_failed = not initialized and pending is not None and _failed_for_good(pending, observed, policy)
    mains_over = all(last is not None and not last.live and not runs_again(one, last, policy) for one, last in mains)
    return Progress(
        ending=_ending(pod, observed),
        pending_init=pending,
        initialized=initialized,
        init_failed=init_failed,
        finished=init_failed or (initialized and mains_over),
        nothing_live=not any(observed.is_live(container["name"]) for container in podspec.all_containers(pod)),
    )


def has_other_image(container: Json, last: Attempt) -> bool:
    """Whether the container's image has been changed in the pod's spec since this attempt was started."""
    return bool(last.image) and last.image != str(container.get("image") or "")


def runs_again(container: Json, last: Attempt, policy: str) -> bool:
    """Whether a main container starts again after this attempt, which must have ended.

    A container that was stopped for its new image starts again, whatever its restart policy.
    """
    return podspec.restarts(policy, last.exit_code) or (last.stopping and has_other_image(container, last))


def _ending(pod: Json, observed: Observed) -> Ending | None:
    if observed.removed:
        return Ending.REMOVED
    if pod["metadata"].get("deletionTimestamp"):
        return Ending.DELETED
    if podspec.has_ended(pod):
        return Ending.TERMINAL
    # If an earlier kubelet began the eviction, only the status shows it.
    if observed.evicted or (pod.get("status") or {}).get("reason") == "Evicted":
        return Ending.EVICTED
    if observed.shutdown_seconds is not None or (pod.get("status") or {}).get("reason") == podspec.SHUTDOWN_REASON:
        return Ending.SHUTDOWN
    deadline = podspec.deadline_of(pod, observed.now)
    return Ending.DEADLINE if deadline is not None and observed.now >= deadline else None


def _failed_for_good(container: Json, observed: Observed, policy: str) -> bool:
    last = observed.last(container["name"])
    return not podspec.is_sidecar(container) and last is not None and last.state == "exited" and policy == "Never"


def init_done(container: Json, observed: Observed) -> bool:
    """Whether the next init container may start: a sidecar has started, any other has exited with code 0."""
    if podspec.is_sidecar(container):
        return is_started(container, observed)
    last = observed.last(container["name"])
    return last is not None and last.state == "exited" and last.exit_code == 0


def is_started(container: Json, observed: Observed) -> bool:
    """Running, and past its startup probe if it has one."""
    last = observed.last(container["name"])
    if last is None or last.state != "running":
        return False
    return "startupProbe" not in container or bool(observed.started.get(container["name"], False))


def is_ready(container: Json, observed: Observed) -> bool:
    """Started, and its readiness probe succeeds if it has one."""
    if not is_started(container, observed):
        return False
    return "readinessProbe" not in container or bool(observed.ready.get(container["name"], False))
