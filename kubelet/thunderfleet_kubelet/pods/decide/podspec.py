"""Reads a pod's spec and metadata, with the API's defaults applied. Pure."""

from typing import Any

from thunderfleet_crds.names import ANNOTATION_START_AT_BOOT

from thunderfleet_kubelet.timestamps import parse_time

Json = dict[str, Any]

TERMINAL_PHASES = ("Succeeded", "Failed")

DEFAULT_GRACE_SECONDS = 30.0
EVICTION_GRACE_SECONDS = 15.0
REMOVED_GRACE_SECONDS = 120.0
CRITICAL_PRIORITY = 2_000_000_000

SHUTDOWN_REASON, SHUTDOWN_MESSAGE = "Terminated", "Pod was terminated in response to imminent node shutdown."
"""Reason and message of a pod that ended because its machine shut down, as in Kubernetes."""

NO_EPHEMERAL = "this node does not run ephemeral containers, because its containers are processes of the host; use kubectl exec"
"""The answer to ``kubectl debug``."""

CLOCK_SECONDS = 1.0
"""A recorded time further in the future than this means that the clock was set back."""


def init_containers(pod: Json) -> list[Json]:
    """The init containers, sidecars included, in order."""
    return list(pod["spec"].get("initContainers") or [])


def main_containers(pod: Json) -> list[Json]:
    """The containers that run once all init containers are done."""
    return list(pod["spec"].get("containers") or [])


def all_containers(pod: Json) -> list[Json]:
    """Init containers, then main containers."""
    return init_containers(pod) + main_containers(pod)


def ephemeral_containers(pod: Json) -> list[Json]:
    """The containers that ``kubectl debug`` has added; this kubelet does not run them."""
    return list(pod["spec"].get("ephemeralContainers") or [])


def sidecars(pod: Json) -> list[Json]:
    """The init containers that keep running beside the main containers."""
    return [container for container in init_containers(pod) if is_sidecar(container)]


def is_sidecar(container: Json) -> bool:
    """Whether an init container has ``restartPolicy: Always``."""
    return bool(container.get("restartPolicy") == "Always")


def named_users(pod: Json) -> set[int]:
    """The users other than root that the spec names."""
    contexts = [pod["spec"].get("securityContext"), *(item.get("securityContext") for item in all_containers(pod))]
    return {int(one["runAsUser"]) for one in contexts if one and one.get("runAsUser")}


def runs_one_at_a_time(pod: Json) -> bool:
    """Whether no two containers of the pod ever run at the same time."""
    return len(main_containers(pod)) == 1 and not sidecars(pod)


def restart_policy(pod: Json) -> str:
    """``Always``, ``OnFailure`` or ``Never``."""
    return str(pod["spec"].get("restartPolicy") or "Always")


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a main container with this exit code starts again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def grace_of(pod: Json) -> float:
    """Seconds between SIGTERM and SIGKILL: of the deletion, or else of the spec, or else 30."""
    for value in (pod["metadata"].get("deletionGracePeriodSeconds"), pod["spec"].get("terminationGracePeriodSeconds")):
        if value is not None:
            return float(value)
    return DEFAULT_GRACE_SECONDS


def eviction_grace_of(pod: Json) -> float:
    """Seconds between SIGTERM and SIGKILL for an evicted pod.

    Kubernetes gives none. On a Mac, a killed process can leave GPU memory wired until the next reboot.
    """
    return min(grace_of(pod), EVICTION_GRACE_SECONDS)


def removed_grace_of(pod: Json) -> float:
    """Seconds between SIGTERM and SIGKILL for a pod that the API server no longer has.

    Its grace period can no longer be shortened, and the scheduler counts its memory as free.
    """
    return min(grace_of(pod), REMOVED_GRACE_SECONDS)


def starts_at_boot(pod: Json) -> bool:
    """Whether an adopted pod runs before the API server has listed it, although it has volumes with content from there.

    Kubernetes starts no pod before that: it may have been deleted, and have a successor on another node that must be the only
    one. The pods of the operator may: all ranks of a group have to agree before one of them serves.
    """
    return (pod["metadata"].get("annotations") or {}).get(ANNOTATION_START_AT_BOOT) == "true"


def is_critical(pod: Json) -> bool:
    """Whether the pod is critical (priority class system-cluster-critical, for example): never evicted, and ended last."""
    return int(pod["spec"].get("priority") or 0) >= CRITICAL_PRIORITY


def probe_grace_of(pod: Json, container: Json) -> float:
    """Seconds between SIGTERM and SIGKILL for a container that fails its liveness or startup probe."""
    for probe in ("livenessProbe", "startupProbe"):
        value = (container.get(probe) or {}).get("terminationGracePeriodSeconds")
        if value is not None:
            return float(value)
    return grace_of(pod)


def phase_of(pod: Json) -> str:
    """The phase in the pod's status; empty when it has none."""
    return str((pod.get("status") or {}).get("phase") or "")


def has_ended(pod: Json) -> bool:
    """Whether the pod's phase is final."""
    return phase_of(pod) in TERMINAL_PHASES


def deadline_of(pod: Json, now: float) -> float | None:
    """When ``activeDeadlineSeconds`` runs out (seconds since the epoch); None without a deadline or before the pod starts.

    A start in the future was recorded before the clock was set back; then the time counts from the pod's creation.
    """
    seconds, start = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    if seconds is None or not start:
        return None
    began, created = parse_time(start), pod["metadata"].get("creationTimestamp")
    return (parse_time(created) if began > now + CLOCK_SECONDS and created else began) + float(seconds)


def qos_class(pod: Json) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort``, from the requests and limits of all containers."""
    guaranteed, anything = True, False
    for container in all_containers(pod):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            anything = anything or name in limits or name in requests
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    return "BestEffort" if not anything else "Guaranteed" if guaranteed else "Burstable"
