"""What a pod does next: a pure function of its spec, what was seen of its containers, and the time.

``decide`` is called whenever anything may have changed and answers with everything at once: which containers to start or
stop now, the whole status to publish, and when to ask again if nothing happens. It keeps no memory. What it must know of
the past (how often a container was started, with which back-off) stands in the attempts, which live on disk, so a kubelet
that restarts decides what its predecessor would have decided.

Times are seconds since the epoch (UTC). Names, reasons and phases are those a kubelet writes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from thunderfleet_kubelet.containers.attempt import BACKOFF_RESET_SECONDS, START_ERROR, Attempt, Start

Json = dict[str, Any]

BACKOFF_FIRST_SECONDS = 10.0
BACKOFF_LIMIT_SECONDS = 300.0
CLOCK_SECONDS = 1.0
"""How far in the future a time on disk may lie before the clock must have been set back since."""

PROBLEM_LIMIT_SECONDS = 60.0
"""The longest wait between two tries of what could not be started."""

TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Problem:
    """Why something could not be started: ``reason`` and ``message`` of a Waiting container; ``retry_at`` when to try again."""

    reason: str
    message: str
    retry_at: float = 0.0


@dataclass(frozen=True)
class Observed:
    """Everything seen of one pod. ``attempts``: by container name, oldest first. ``ready``, ``started``: what probes say of the
    live attempt (absent: no result yet). ``unhealthy``: containers whose liveness or startup probe gave up, and its sentence.
    ``problems``: of one container; ``blocked``: of the whole pod. ``removed``: the API server knows the pod no more.
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
    host_ip: str = ""
    addresses: tuple[str, ...] = ()

    def last(self, name: str) -> Attempt | None:
        attempts = self.attempts.get(name) or ()
        return attempts[-1] if attempts else None


@dataclass(frozen=True)
class Stop:
    """End the live attempt of ``container``: preStop, SIGTERM, and SIGKILL after ``grace`` seconds in all."""

    container: str
    number: int
    grace: float
    message: str


@dataclass(frozen=True)
class Decision:
    """``status`` None: nothing to publish. ``ended``: nothing runs any more and nothing ever will (delete, forget).
    ``backing_off``: containers held back by their crash-loop back-off, for an Event.
    """

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    status: Json | None = None
    wake_at: float | None = None
    ended: bool = False
    backing_off: tuple[str, ...] = ()


def next_backoff(previous: Attempt | None) -> float:
    """The back-off to record in the attempt after ``previous``: none for the first, then 10 s doubling to 5 min."""
    if previous is None:
        return 0.0
    ran = (previous.finished_at or 0.0) - (previous.started_at or previous.finished_at or 0.0)
    if ran > BACKOFF_RESET_SECONDS or previous.backoff <= 0:
        return BACKOFF_FIRST_SECONDS
    return min(BACKOFF_LIMIT_SECONDS, previous.backoff * 2)


def init_containers(pod: Json) -> list[Json]:
    return list(pod["spec"].get("initContainers") or [])


def main_containers(pod: Json) -> list[Json]:
    return list(pod["spec"].get("containers") or [])


def is_sidecar(container: Json) -> bool:
    """An init container that stays: ``restartPolicy: Always``."""
    return bool(container.get("restartPolicy") == "Always")


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container that ended so is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def grace_of(pod: Json) -> float:
    """Seconds between SIGTERM and SIGKILL: those of the deletion, else those of the spec, else 30."""
    for value in (pod["metadata"].get("deletionGracePeriodSeconds"), pod["spec"].get("terminationGracePeriodSeconds")):
        if value is not None:
            return float(value)
    return 30.0


def liveness_grace_of(pod: Json, container: Json) -> float:
    """The grace of a container ended by its probe, which may have one of its own."""
    for probe in ("livenessProbe", "startupProbe"):
        value = (container.get(probe) or {}).get("terminationGracePeriodSeconds")
        if value is not None:
            return float(value)
    return grace_of(pod)


def _ending(pod: Json, observed: Observed) -> str:
    """Why every container of the pod must end, or nothing."""
    if observed.removed:
        return "the pod is gone from the API server"
    if pod["metadata"].get("deletionTimestamp"):
        return "the pod is being deleted"
    if (pod.get("status") or {}).get("phase") in TERMINAL_PHASES:
        return "the pod has ended"
    if _deadline(pod) is not None and observed.now >= (_deadline(pod) or 0.0):
        return "the pod's activeDeadlineSeconds are over"
    return ""


def _deadline(pod: Json) -> float | None:
    seconds, start = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return parse_time(start) + float(seconds) if seconds is not None and start else None


def is_started(container: Json, observed: Observed) -> bool:
    """Running, and past its startup probe if it has one."""
    last = observed.last(container["name"])
    if last is None or last.state != "running":
        return False
    return "startupProbe" not in container or bool(observed.started.get(container["name"], False))


def is_ready(container: Json, observed: Observed) -> bool:
    """Started, and its readiness probe content if it has one."""
    if not is_started(container, observed):
        return False
    return "readinessProbe" not in container or bool(observed.ready.get(container["name"], False))


class _Plan:
    """One decision in the making."""

    def __init__(self, pod: Json, observed: Observed) -> None:
        self.pod, self.seen = pod, observed
        self.policy = str(pod["spec"].get("restartPolicy") or "Always")
        self.inits, self.mains = init_containers(pod), main_containers(pod)
        self.sidecars = [container for container in self.inits if is_sidecar(container)]
        self.starts: list[Start] = []
        self.stops: list[Stop] = []
        self.times: list[float] = []
        self.backing_off: list[str] = []
        self.initialized = False
        self.init_failed = ""
        self.ending = _ending(pod, observed)

    def live(self, container: Json) -> bool:
        last = self.seen.last(container["name"])
        return last is not None and last.live

    def consider_start(self, container: Json) -> None:
        """Starts the container if it does not run and may now; else notes when it may."""
        name, last = container["name"], self.seen.last(container["name"])
        if last is not None and last.live:
            return
        if self.seen.blocked is not None or not self.seen.volumes_ready:
            if self.seen.blocked is not None and self.seen.blocked.retry_at:
                self.times.append(self.seen.blocked.retry_at)
            return
        # A clock that was set back must not make a container wait for days: its end cannot lie in the future.
        if last is not None and (last.finished_at or 0.0) <= self.seen.now + CLOCK_SECONDS and self.seen.now < last.retry_at:
            self.times.append(last.retry_at)
            self.backing_off.append(name)
            return
        problem = self.seen.problems.get(name)
        if problem is not None and self.seen.now < problem.retry_at <= self.seen.now + PROBLEM_LIMIT_SECONDS:
            self.times.append(problem.retry_at)
            return
        number = 0 if last is None else last.number + 1
        self.starts.append(Start(name, number, next_backoff(last)))

    def stop(self, container: Json, grace: float, message: str) -> None:
        last = self.seen.last(container["name"])
        if last is not None and last.live:
            self.stops.append(Stop(container["name"], last.number, grace, message))

    def check_health(self, container: Json) -> None:
        message = self.seen.unhealthy.get(container["name"])
        if message and self.live(container):
            self.stop(container, liveness_grace_of(self.pod, container), message)

    def end_everything(self) -> None:
        """Main and plain init containers first, all at once; then the sidecars, last one first."""
        grace = grace_of(self.pod)
        first = [container for container in self.inits + self.mains if container not in self.sidecars]
        for container in first:
            self.stop(container, grace, self.ending)
        if not any(self.live(container) for container in first):
            self.end_sidecars(self.ending)

    def end_sidecars(self, message: str) -> None:
        for container in reversed(self.sidecars):
            if self.live(container):
                self.stop(container, grace_of(self.pod), message)
                return

    def run(self) -> None:
        for container in self.inits:
            self.check_health(container)
            last = self.seen.last(container["name"])
            if is_sidecar(container):
                self.consider_start(container)
                if not is_started(container, self.seen):
                    return
                continue
            if last is not None and last.state == "exited" and last.exit_code == 0:
                continue
            if last is not None and last.state == "exited" and self.policy == "Never":
                self.init_failed = container["name"]
                return
            self.consider_start(container)
            return
        self.initialized = True
        for container in self.mains:
            self.check_health(container)
            last = self.seen.last(container["name"])
            if last is None or (last.state == "exited" and restarts(self.policy, last.exit_code)):
                self.consider_start(container)

    def finished(self) -> bool:
        """Nothing but sidecars is running or will run again."""
        if self.init_failed:
            return True
        if not self.initialized:
            return False
        lasts = [self.seen.last(container["name"]) for container in self.mains]
        return all(last is not None and last.state == "exited" and not restarts(self.policy, last.exit_code) for last in lasts)

    def decide(self) -> Decision:
        self.initialized = self._was_initialized()
        if self.ending:
            self.end_everything()
        else:
            # A main container once started means that the init containers are through: they never run twice for it.
            self.run() if not self.initialized else self._run_mains()
            if self.finished():
                self.starts, self.backing_off = [], []
                self.end_sidecars("the pod's containers have ended")
            deadline = _deadline(self.pod)
            if deadline is not None:
                self.times.append(deadline)
        nothing_live = not any(self.live(container) for container in self.inits + self.mains)
        deleted = bool(self.seen.removed or self.pod["metadata"].get("deletionTimestamp"))
        return Decision(
            starts=tuple(self.starts),
            stops=tuple(self.stops),
            status=self.status(nothing_live),
            wake_at=min(self.times, default=None),
            ended=nothing_live and deleted,
            backing_off=tuple(self.backing_off),
        )

    def _was_initialized(self) -> bool:
        return any(self.seen.last(container["name"]) is not None for container in self.mains)

    def _run_mains(self) -> None:
        for container in self.sidecars:
            self.check_health(container)
            if not self.finished():
                self.consider_start(container)
        for container in self.mains:
            self.check_health(container)
            last = self.seen.last(container["name"])
            if last is None or (last.state == "exited" and restarts(self.policy, last.exit_code)):
                self.consider_start(container)

    # Status

    def phase(self, nothing_live: bool) -> str:
        before = (self.pod.get("status") or {}).get("phase")
        if before in TERMINAL_PHASES:
            return str(before)
        lasts = [self.seen.last(container["name"]) for container in self.mains]
        if self.ending and nothing_live:
            done = lasts and all(last is not None and last.exit_code == 0 for last in lasts)
            return "Succeeded" if done and "Deadline" not in self.ending else "Failed"
        if self.finished():
            if not nothing_live:
                return "Running"
            return "Failed" if self.init_failed or any(last and last.exit_code for last in lasts) else "Succeeded"
        if not self.initialized or any(last is None or (last.state == "starting" and not last.number) for last in lasts):
            return "Pending"
        return "Running"

    def status(self, nothing_live: bool) -> Json | None:
        before = self.pod.get("status") or {}
        never_ran = not any(self.seen.attempts.values())
        if self.seen.removed or (before.get("phase") in TERMINAL_PHASES and never_ran):
            return None
        phase = self.phase(nothing_live)
        over = phase in TERMINAL_PHASES
        inits = [self.container_status(container, over) for container in self.inits]
        mains = [self.container_status(container, over) for container in self.mains]
        status: Json = {
            "phase": phase,
            "conditions": self.conditions(phase, mains),
            "hostIP": self.seen.host_ip,
            "hostIPs": [{"ip": address} for address in self.seen.addresses],
            "podIP": self.seen.host_ip,
            "podIPs": [{"ip": address} for address in self.seen.addresses],
            "startTime": before.get("startTime") or format_time(self.seen.now),
            "containerStatuses": mains,
            "qosClass": before.get("qosClass") or qos_class(self.pod),
        }
        if inits:
            status["initContainerStatuses"] = inits
        if self.pod["metadata"].get("generation") is not None:
            status["observedGeneration"] = self.pod["metadata"]["generation"]
        if "activeDeadlineSeconds" in self.ending:
            status |= {"reason": "DeadlineExceeded", "message": "The pod ran longer than its activeDeadlineSeconds."}
        for key in ("reason", "message"):
            if over and before.get(key):
                status.setdefault(key, before[key])
        return status

    def conditions(self, phase: str, mains: list[Json]) -> list[Json]:
        before = {item["type"]: item for item in (self.pod.get("status") or {}).get("conditions") or []}
        unready = [item["name"] for item in mains if not item["ready"]]
        unready = [c["name"] for c in self.sidecars if not is_ready(c, self.seen)] + unready
        ending = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
        ready: Json = {"status": "True"}
        if ending:
            ready = {"status": "False", "reason": ending}
        elif unready:
            message = f"containers with unready status: [{' '.join(unready)}]"
            ready = {"status": "False", "reason": "ContainersNotReady", "message": message}
        initialized: Json = {"status": "True"}
        if not self.initialized and phase not in ("Succeeded",):
            waiting = [c["name"] for c in self.inits if not self._init_done(c)]
            message = f"containers with incomplete status: [{' '.join(waiting)}]"
            if waiting:
                initialized = {"status": "False", "reason": "ContainersNotInitialized", "message": message}
        elif phase == "Succeeded":
            initialized = {"status": "True", "reason": "PodCompleted"}
        gates = [str(gate["conditionType"]) for gate in self.pod["spec"].get("readinessGates") or []]
        closed = [gate for gate in gates if (before.get(gate) or {}).get("status") != "True"]
        whole = ready
        if ready["status"] == "True" and closed:
            message = f"the readiness gate {', '.join(closed)} is not True"
            whole = {"status": "False", "reason": "ReadinessGatesNotReady", "message": message}
        sandbox = "True" if self.seen.volumes_ready and not ending else "False"
        fresh: dict[str, Json] = {
            "PodReadyToStartContainers": {"status": sandbox},
            "Initialized": initialized,
            "Ready": whole,
            "ContainersReady": ready,
            "PodScheduled": {"status": "True"},
        }
        result = []
        for kind, condition in fresh.items():
            old = before.get(kind)
            same = old is not None and old.get("status") == condition["status"]
            if kind == "PodScheduled" and old is not None and same:
                result.append(old)
                continue
            since = old.get("lastTransitionTime") if old is not None and same else None
            result.append(
                {"type": kind, "lastProbeTime": None, "lastTransitionTime": since or format_time(self.seen.now)} | condition
            )
        return result

    def _init_done(self, container: Json) -> bool:
        last = self.seen.last(container["name"])
        if is_sidecar(container):
            return is_started(container, self.seen)
        return last is not None and last.state == "exited" and last.exit_code == 0

    def container_status(self, container: Json, over: bool) -> Json:
        name, last = container["name"], self.seen.last(container["name"])
        plain_init = container in self.inits and not is_sidecar(container)
        status: Json = {
            "name": name,
            "image": container.get("image", ""),
            "imageID": last.image_id if last else "",
            "restartCount": last.number if last else 0,
            "lastState": {},
            "started": is_started(container, self.seen),
            "ready": self._init_done(container) if plain_init else is_ready(container, self.seen),
        }
        if last is not None and last.container_id:
            status["containerID"] = last.container_id
        attempts = self.seen.attempts.get(name) or ()
        status["state"], ended = self.state(container, last, over)
        shown = last if ended else (attempts[-2] if len(attempts) > 1 else None)
        if shown is not None and shown.state == "exited":
            status["lastState"] = {"terminated": terminated(shown)}
        return status

    def state(self, container: Json, last: Attempt | None, over: bool) -> tuple[Json, bool]:
        """The container's state, and whether its last attempt belongs into ``lastState``."""
        name = container["name"]
        if last is not None and last.state == "running":
            return {"running": {"startedAt": format_time(last.started_at or self.seen.now)}}, False
        if last is not None and last.state == "exited":
            held = not over and not self.ending
            problem = self.seen.problems.get(name)
            if held and problem is not None:
                return _waiting(problem.reason, problem.message), True
            if held and name in self.backing_off:
                if last.reason == START_ERROR:
                    return _waiting("RunContainerError", last.message), True
                pod = self.pod["metadata"]
                message = (
                    f"back-off {max(last.backoff, 0):.0f}s restarting failed container={name} "
                    f"pod={pod['name']}_{pod.get('namespace', '')}({pod.get('uid', '')})"
                )
                return _waiting("CrashLoopBackOff", message), True
            return {"terminated": terminated(last)}, False
        if self.seen.blocked is not None:
            return _waiting(self.seen.blocked.reason, self.seen.blocked.message), False
        problem = self.seen.problems.get(name)
        if problem is not None:
            return _waiting(problem.reason, problem.message), False
        if self.init_failed or (not self.initialized and container in self.mains and self.inits):
            return _waiting("PodInitializing", ""), False
        return _waiting("ContainerCreating", ""), False


def _waiting(reason: str, message: str) -> Json:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def terminated(attempt: Attempt) -> Json:
    """The ``terminated`` state of an attempt that has ended."""
    state: Json = {
        "exitCode": attempt.exit_code,
        "reason": attempt.reason or ("Completed" if attempt.exit_code == 0 else "Error"),
        "startedAt": format_time(attempt.started_at or attempt.finished_at or 0.0),
        "finishedAt": format_time(attempt.finished_at or 0.0),
        "containerID": attempt.container_id,
    }
    if attempt.signal:
        state["signal"] = attempt.signal
    if attempt.message:
        state["message"] = attempt.message
    return state


def decide(pod: Json, observed: Observed) -> Decision:
    """What to do now with ``pod`` (as the API server gives it, with its current status) and what to say of it."""
    return _Plan(pod, observed).decide()


def rejected(pod: Json, reason: str, message: str, now: float) -> Json:
    """The status of a pod that this node does not take (``OutOfmemory``, ``NodePorts``, …): it has failed for good."""
    before = (pod.get("status") or {}).get("startTime")
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": before or format_time(now)}


def qos_class(pod: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from the requests and limits of all containers."""
    guaranteed, anything = True, False
    for container in _every(pod):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            anything = anything or name in limits or name in requests
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    return "BestEffort" if not anything else "Guaranteed" if guaranteed else "Burstable"


def _every(pod: Json) -> Iterator[Json]:
    yield from init_containers(pod)
    yield from main_containers(pod)


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds, as metav1.Time is written."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()
