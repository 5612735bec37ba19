"""The status that the kubelet publishes for a pod: phase, conditions, container statuses. Pure."""

from collections.abc import Set
from typing import Any

from thunderfleet_kubelet.containers.attempt import START_ERROR, START_EXIT_CODE, Attempt
from thunderfleet_kubelet.pods.decide import podspec
from thunderfleet_kubelet.pods.decide.observed import Observed
from thunderfleet_kubelet.pods.decide.progress import Ending, Progress, init_done, is_ready, is_started
from thunderfleet_kubelet.timestamps import format_time

Json = dict[str, Any]


MESSAGE_CHARACTERS = 4096
"""Of a container's state. With a longer one, such as one that has a whole PATH, the API server might refuse the status, and a
pod without its last status is never deleted."""
_FAILED = (Ending.DEADLINE, Ending.EVICTED, Ending.SHUTDOWN)
"""After these a pod has failed, whatever its exit codes are."""


def pod_status(pod: Json, observed: Observed, progress: Progress, backing_off: Set[str]) -> Json | None:
    """The whole status; None when the one that the API server has must stay. ``backing_off``: names of containers."""
    before = pod.get("status") or {}
    never_ran = not any(observed.attempts.values())
    if observed.removed or (podspec.has_ended(pod) and never_ran):
        return None
    phase = _phase(pod, observed, progress)
    over = phase in podspec.TERMINAL_PHASES
    containers = _ContainerStatuses(pod, observed, progress, backing_off, over)
    inits = [containers.status(container) for container in podspec.init_containers(pod)]
    mains = [containers.status(container) for container in podspec.main_containers(pod)]
    addresses = [{"ip": address} for address in observed.addresses]
    # As in Kubernetes: the hostIP follows the Node, and the podIP of a pod in the host's network stays as it was first.
    pod_ip, pod_ips = before.get("podIP") or observed.host_ip, before.get("podIPs") or addresses
    status: Json = {
        "phase": phase,
        "conditions": _conditions(pod, observed, progress, phase, mains),
        "hostIP": observed.host_ip,
        "hostIPs": addresses,
        "podIP": pod_ip,
        "podIPs": pod_ips,
        "startTime": before.get("startTime") or format_time(observed.now),
        "containerStatuses": mains,
        "qosClass": before.get("qosClass") or podspec.qos_class(pod),
    }
    if inits:
        status["initContainerStatuses"] = inits
    ephemeral = [_ephemeral(container, before, observed.now) for container in podspec.ephemeral_containers(pod)]
    if ephemeral:
        status["ephemeralContainerStatuses"] = ephemeral
    if pod["metadata"].get("generation") is not None:
        status["observedGeneration"] = pod["metadata"]["generation"]
    if progress.ending is Ending.DEADLINE:
        status |= {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
    if progress.ending is Ending.EVICTED:
        status |= {"reason": "Evicted", "message": observed.evicted or before.get("message", "")}
    if progress.ending is Ending.SHUTDOWN:
        status |= {"reason": podspec.SHUTDOWN_REASON, "message": podspec.SHUTDOWN_MESSAGE}
    for key in ("reason", "message"):
        if over and before.get(key):
            status.setdefault(key, before[key])
    return status


def _ephemeral(container: Json, before: Json, now: float) -> Json:
    """A terminated state, with which ``kubectl debug`` ends instead of waiting."""
    known = [one for one in before.get("ephemeralContainerStatuses") or [] if one.get("name") == container["name"]]
    at = ((known[0].get("state") or {}).get("terminated") or {}).get("finishedAt") if known else None
    stamp = at or format_time(now)
    ended = {"exitCode": START_EXIT_CODE, "reason": "NotSupported", "message": podspec.NO_EPHEMERAL}
    return {
        "name": container["name"],
        "image": str(container.get("image") or ""),
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {**ended, "startedAt": stamp, "finishedAt": stamp}},
    }


def rejected_status(pod: Json, reason: str, message: str, now: float) -> Json:
    """The status of a pod that the node rejects (``OutOfmemory``, ``NodePorts``, …): failed permanently."""
    before = (pod.get("status") or {}).get("startTime")
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": before or format_time(now)}


def _phase(pod: Json, observed: Observed, progress: Progress) -> str:
    if podspec.has_ended(pod):
        return podspec.phase_of(pod)
    lasts = [observed.last(container["name"]) for container in podspec.main_containers(pod)]
    succeeded = all(last is not None and last.exit_code == 0 for last in lasts)
    if progress.ending is not None and progress.nothing_live:
        return "Succeeded" if succeeded and progress.ending not in _FAILED else "Failed"
    if progress.finished:
        # Sidecars still run.
        return "Running" if not progress.nothing_live else "Succeeded" if succeeded else "Failed"
    first_starts = any(last is None or (last.state == "starting" and last.number == 0) for last in lasts)
    return "Pending" if first_starts else "Running"


# Conditions


def _conditions(pod: Json, observed: Observed, progress: Progress, phase: str, mains: list[Json]) -> list[Json]:
    before = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or []}
    ready = _containers_ready(pod, observed, phase, mains)
    mountable = observed.volumes_ready and phase not in podspec.TERMINAL_PHASES
    fresh: dict[str, Json] = {
        "PodReadyToStartContainers": {"status": str(mountable)},
        "Initialized": _initialized(pod, observed, progress, phase),
        "Ready": _behind_gates(pod, ready, before),
        "ContainersReady": ready,
        "PodScheduled": {"status": "True"},
    }
    if progress.ending is Ending.SHUTDOWN:
        reason = {"reason": "TerminationByKubelet", "message": podspec.SHUTDOWN_MESSAGE}
        fresh["DisruptionTarget"] = {"status": "True", **reason}
    if progress.ending is Ending.EVICTED:
        message = observed.evicted or (pod.get("status") or {}).get("message", "")
        fresh["DisruptionTarget"] = {"status": "True", "reason": "TerminationByKubelet", "message": message}
    return [_with_times(kind, condition, before.get(kind), observed.now) for kind, condition in fresh.items()]


def _containers_ready(pod: Json, observed: Observed, phase: str, mains: list[Json]) -> Json:
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    if ended:
        return {"status": "False", "reason": ended}
    unready = [container["name"] for container in podspec.sidecars(pod) if not is_ready(container, observed)]
    unready += [item["name"] for item in mains if not item["ready"]]
    if unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        return {"status": "False", "reason": "ContainersNotReady", "message": message}
    return {"status": "True"}


def _initialized(pod: Json, observed: Observed, progress: Progress, phase: str) -> Json:
    if phase == "Succeeded":
        return {"status": "True", "reason": "PodCompleted"}
    if progress.initialized:
        return {"status": "True"}
    waiting = [container["name"] for container in podspec.init_containers(pod) if not init_done(container, observed)]
    message = f"containers with incomplete status: [{' '.join(waiting)}]"
    return {"status": "False", "reason": "ContainersNotInitialized", "message": message}


def _behind_gates(pod: Json, ready: Json, before: dict[str, Json]) -> Json:
    """``Ready``: the containers are ready and every readiness gate's condition is True."""
    gates = [str(gate["conditionType"]) for gate in pod["spec"].get("readinessGates") or []]
    closed = [gate for gate in gates if (before.get(gate) or {}).get("status") != "True"]
    if ready["status"] == "True" and closed:
        message = f"corresponding condition of pod readiness gate {', '.join(map(repr, closed))} is not True"
        return {"status": "False", "reason": "ReadinessGatesNotReady", "message": message}
    return ready


def _with_times(kind: str, condition: Json, old: Json | None, now: float) -> Json:
    """The condition with its transition time, which changes only with its status."""
    same = old is not None and old.get("status") == condition["status"]
    if kind == "PodScheduled" and old is not None and same:
        # The scheduler's; its observations stay.
        return old
    since = old.get("lastTransitionTime") if old is not None and same else None
    return {"type": kind, "lastProbeTime": None, "lastTransitionTime": since or format_time(now)} | condition


# Containers


class _ContainerStatuses:
    """The statuses of one pod's containers."""

    def __init__(self, pod: Json, observed: Observed, progress: Progress, backing_off: Set[str], over: bool) -> None:
        self.pod, self.observed, self.progress, self.backing_off, self.over = pod, observed, progress, backing_off, over
        self.inits = {container["name"] for container in podspec.init_containers(pod)}

    def status(self, container: Json) -> Json:
        name, last = container["name"], self.observed.last(container["name"])
        plain_init = name in self.inits and not podspec.is_sidecar(container)
        ready = init_done(container, self.observed) if plain_init else is_ready(container, self.observed)
        status: Json = {
            "name": name,
            "image": last.image if last is not None and last.live and last.image else container.get("image", ""),
            "imageID": last.image_id if last else "",
            "restartCount": last.number if last else 0,
            "lastState": {},
            "started": is_started(container, self.observed),
            "ready": ready,
        }
        if last is not None and last.container_id:
            status["containerID"] = last.container_id
        status["state"] = self._state(name, last)
        attempts = self.observed.attempts.get(name) or ()
        previous = attempts[-2] if len(attempts) > 1 else None
        if last is not None and last.state == "exited" and "waiting" in status["state"]:
            previous = last
        if previous is not None and previous.state == "exited":
            status["lastState"] = {"terminated": terminated_state(previous)}
        return status

    def _state(self, name: str, last: Attempt | None) -> Json:
        if last is None or last.state == "starting":
            return self._first_start(name)
        if last.state == "running":
            return {"running": {"startedAt": format_time(last.started_at or self.observed.now)}}
        restarts = not self.over and self.progress.ending is None
        problem = self.observed.problems.get(name)
        if restarts and problem is not None:
            return _waiting_state(problem.reason, problem.message)
        if restarts and name in self.backing_off:
            return self._backing_off(name, last)
        return {"terminated": terminated_state(last)}

    def _first_start(self, name: str) -> Json:
        """Why a container that never ran, or is starting, does not run yet."""
        problem = self.observed.blocked or self.observed.problems.get(name)
        if problem is not None:
            return _waiting_state(problem.reason, problem.message)
        behind_inits = not self.progress.initialized and name not in self.inits
        return _waiting_state("PodInitializing" if self.progress.init_failed or behind_inits else "ContainerCreating")

    def _backing_off(self, name: str, last: Attempt) -> Json:
        if last.reason == START_ERROR:
            return _waiting_state("RunContainerError", last.message)
        metadata = self.pod["metadata"]
        message = (
            f"back-off {max(last.backoff, 0):.0f}s restarting failed container={name} "
            f"pod={metadata['name']}_{metadata.get('namespace', '')}({metadata.get('uid', '')})"
        )
        return _waiting_state("CrashLoopBackOff", message)


def _waiting_state(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason} | ({"message": message[:MESSAGE_CHARACTERS]} if message else {})}


def terminated_state(attempt: Attempt) -> Json:
    """The ``terminated`` state of an attempt that has ended."""
    finished = attempt.finished_at or 0.0
    state: Json = {
        "exitCode": attempt.exit_code,
        "reason": attempt.reason or ("Completed" if attempt.exit_code == 0 else "Error"),
        # A clock that was set back in between: the end is the better time.
        "startedAt": format_time(min(attempt.started_at or finished, finished)),
        "finishedAt": format_time(finished),
        "containerID": attempt.container_id,
    }
    if attempt.signal:
        state["signal"] = attempt.signal
    if attempt.message:
        state["message"] = attempt.message[:MESSAGE_CHARACTERS]
    return state
