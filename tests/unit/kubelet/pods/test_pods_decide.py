"""The boundaries and defaults of the pure decisions: each case fails if a comparison, constant or branch changes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_kubelet.containers.attempt import BACKOFF_RESET_SECONDS, START_ERROR, Attempt, Start
from thunderfleet_kubelet.pods.decide import admission, podspec
from thunderfleet_kubelet.pods.decide.lifecycle import Stop, decide, next_backoff
from thunderfleet_kubelet.pods.decide.observed import Observed, Problem
from thunderfleet_kubelet.pods.decide.probing import ProbeCount, ProbeSettings
from thunderfleet_kubelet.pods.decide.publishing import as_patch, covers, only_started, version_of
from thunderfleet_kubelet.pods.decide.status import rejected_status, terminated_state
from thunderfleet_kubelet.timestamps import format_time, parse_time

Json = dict[str, Any]
NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00Z"
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def pod(
    *containers: Json, inits: tuple[Json, ...] = (), metadata: Json | None = None, status: Json | None = None, **spec: Any
) -> Json:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", **(metadata or {})},
        "spec": {"hostNetwork": True, "initContainers": list(inits), "containers": list(containers) or [{"name": "a"}], **spec},
        "status": status or {},
    }


def seen(
    now: float = NOW, volumes_ready: bool = True, attempts: Mapping[str, tuple[Attempt, ...]] | None = None, **more: Any
) -> Observed:
    return Observed(
        now=now,
        volumes_ready=volumes_ready,
        attempts=attempts or {},
        host_ip="10.0.0.1",
        addresses=("10.0.0.1", "fd00::1"),
        **more,
    )


def running(number: int = 0, **more: Any) -> Attempt:
    return Attempt(number, "running", started_at=NOW - 5, **more)


def exited(code: int = 0, number: int = 0, ran: float = 4.0, finished: float = NOW - 1, **more: Any) -> Attempt:
    return Attempt(number, "exited", started_at=finished - ran, finished_at=finished, exit_code=code, **more)


def status_of(one: Json, observed: Observed) -> Json:
    status = decide(one, observed).status
    assert status is not None
    return status


def container_of(one: Json, observed: Observed, index: int = 0) -> Json:
    return dict(status_of(one, observed)["containerStatuses"][index])


def condition(one: Json, observed: Observed, kind: str) -> Json:
    return dict(next(item for item in status_of(one, observed)["conditions"] if item["type"] == kind))


# What a spec says


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"memory": "500Mi"}}], "Burstable"),
        ([{"limits": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"memory": "1Gi"}}], "Burstable"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"requests": {"memory": "1"}}], "Burstable"),
        ([{"requests": {"example.com/gpu": "1"}}], "BestEffort"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
        ([{}, {"limits": {"cpu": "1", "memory": "1Gi"}}], "Burstable"),
    ],
)
def test_qos_class(resources: list[Json], expected: str) -> None:
    containers = [{"name": str(number), "resources": one} for number, one in enumerate(resources)]
    assert podspec.qos_class(pod(*containers)) == expected
    if len(containers) > 1:
        assert podspec.qos_class(pod(containers[1], inits=(containers[0],))) == expected
    assert status_of(pod(*containers), seen())["qosClass"] == expected
    assert status_of(pod(*containers, status={"qosClass": "Fixed"}), seen())["qosClass"] == "Fixed"


def test_grace_periods() -> None:
    assert podspec.grace_of(pod()) == 30.0
    assert podspec.grace_of(pod(terminationGracePeriodSeconds=0)) == 0.0
    assert podspec.removed_grace_of(pod(terminationGracePeriodSeconds=7)) == 7.0
    assert podspec.removed_grace_of(pod(terminationGracePeriodSeconds=2**63 - 1)) == 120.0
    assert podspec.grace_of(pod(terminationGracePeriodSeconds=7, metadata={"deletionGracePeriodSeconds": 0})) == 0.0
    both = {"livenessProbe": {"terminationGracePeriodSeconds": 0}, "startupProbe": {"terminationGracePeriodSeconds": 3}}
    assert podspec.probe_grace_of(pod(), both) == 0.0
    assert podspec.probe_grace_of(pod(), {"livenessProbe": {}, "startupProbe": {"terminationGracePeriodSeconds": 3}}) == 3.0
    assert podspec.probe_grace_of(pod(terminationGracePeriodSeconds=9), {"livenessProbe": {}}) == 9.0


def test_deadline() -> None:
    assert podspec.deadline_of(pod(activeDeadlineSeconds=60, status={"startTime": STAMP}), NOW) == NOW + 60
    assert podspec.deadline_of(pod(activeDeadlineSeconds=0, status={"startTime": STAMP}), NOW) == NOW
    assert podspec.deadline_of(pod(activeDeadlineSeconds=60), NOW) is None
    ahead = pod(activeDeadlineSeconds=60, status={"startTime": "2036-01-01T00:00:00Z"})
    ahead["metadata"]["creationTimestamp"] = STAMP
    assert podspec.deadline_of(ahead, NOW) == NOW + 60, "a start that a wrong clock recorded does not extend it for years"
    assert podspec.deadline_of(pod(status={"startTime": STAMP}), NOW) is None


def test_defaults_of_a_spec() -> None:
    assert podspec.restart_policy(pod()) == "Always"
    assert podspec.restart_policy(pod(restartPolicy="Never")) == "Never"
    assert not podspec.is_sidecar({"restartPolicy": "OnFailure"})
    assert (podspec.phase_of({}), podspec.has_ended({})) == ("", False)
    assert [podspec.has_ended(pod(status={"phase": phase})) for phase in ("Succeeded", "Failed", "Running")] == [
        True,
        True,
        False,
    ]


def test_times_as_the_api_writes_them() -> None:
    assert format_time(NOW + 0.9) == STAMP
    assert parse_time(STAMP) == NOW


# Back-off


@pytest.mark.parametrize(
    ("ran", "backoff", "expected"),
    [
        (1.0, 0.0, 10.0),
        (1.0, 1.0, 2.0),
        (1.0, 10.0, 20.0),
        (1.0, 160.0, 300.0),
        (1.0, 300.0, 300.0),
        (600.0, 40.0, 80.0),
        (601.0, 40.0, 10.0),
    ],
)
def test_back_off_after_an_attempt(ran: float, backoff: float, expected: float) -> None:
    last = exited(1, ran=ran, backoff=backoff)
    assert last.seconds == ran
    assert next_backoff(last) == expected
    assert last.retry_at == (NOW - 1 if ran > BACKOFF_RESET_SECONDS else NOW - 1 + backoff)


def test_an_attempt_without_times() -> None:
    assert Attempt(0, "exited", backoff=5.0, finished_at=NOW).retry_at == NOW + 5
    assert Attempt(0, "exited", backoff=5.0).retry_at == 5.0
    assert [Attempt(0, "starting").live, Attempt(0, "running").live, Attempt(0, "exited").live] == [True, True, False]


def test_another_image_begins_without_a_back_off() -> None:
    last = exited(1, number=2, finished=NOW, backoff=40.0, image="i:1")
    same = decide(pod({"name": "a", "image": "i:1"}), seen(NOW + 1, attempts={"a": (last,)}))
    assert (same.starts, same.backing_off) == ((), ("a",))
    other = pod({"name": "a", "image": "i:2"})
    assert decide(other, seen(NOW + 1, attempts={"a": (last,)})).starts == (Start("a", 3, 0.0),)
    # An older kubelet did not record the image.
    assert decide(other, seen(NOW + 1, attempts={"a": (replace(last, image=""),)})).backing_off == ("a",)


@pytest.mark.parametrize(
    ("before", "now", "waits"), [("b1", "b1", True), ("b1", "b2", False), ("", "b2", True), ("b1", "", True)]
)
def test_a_container_of_an_earlier_boot_begins_without_a_back_off(before: str, now: str, waits: bool) -> None:
    """The machine was switched off; neither an older kubelet nor a machine without such an identity says so."""
    last = exited(137, number=2, finished=NOW, backoff=40.0, boot=before)
    found = decide(pod(), seen(NOW + 1, attempts={"a": (last,)}, boot=now))
    assert (found.starts, found.backing_off) == (((), ("a",)) if waits else ((Start("a", 3, 0.0),), ()))


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_another_image_replaces_a_live_container_only(policy: str) -> None:
    item = pod({"name": "a", "image": "i:2"}, restartPolicy=policy, terminationGracePeriodSeconds=7)
    (stop,) = decide(item, seen(attempts={"a": (running(image="i:1"),)})).stops
    assert (stop.container, stop.number, stop.grace) == ("a", 0, 7.0)
    assert decide(item, seen(attempts={"a": (running(image="i:2"),)})).stops == ()
    # It was stopped for its image; one that ended by itself is what its policy says.
    for code in (0, 143):
        stopped = exited(code, image="i:1", stopping=True)
        assert decide(item, seen(attempts={"a": (stopped,)})).starts == (Start("a", 1, 0.0),)
        by_itself = decide(item, seen(attempts={"a": (replace(stopped, stopping=False),)}))
        assert bool(by_itself.starts) == podspec.restarts(policy, code)
    deleted = {**item, "metadata": {**item["metadata"], **DELETED}}
    assert decide(deleted, seen(attempts={"a": (exited(image="i:1", stopping=True),)})).starts == ()


def test_another_image_replaces_a_sidecar_and_no_init_container() -> None:
    sidecar, init = {"name": "s", "image": "i:2", "restartPolicy": "Always"}, {"name": "i", "image": "i:2"}
    item = pod(inits=(init, sidecar))
    attempts = {"i": (exited(image="i:1"),), "s": (running(image="i:1"),), "a": (running(),)}
    assert [stop.container for stop in decide(item, seen(attempts=attempts)).stops] == ["s"]


def test_back_off_is_over_at_its_end_and_not_before() -> None:
    last = exited(1, number=2, finished=NOW, backoff=40.0)
    held = decide(pod(), seen(NOW + 39.9, attempts={"a": (last,)}))
    assert (held.starts, held.wake_at, held.backing_off) == ((), NOW + 40, ("a",))
    assert decide(pod(), seen(NOW + 40, attempts={"a": (last,)})).starts == (Start("a", 3, 80.0),)


def test_an_end_in_the_future_is_believed_within_a_second_only() -> None:
    for ahead, starts in ((1.0, 0), (1.1, 1)):
        last = exited(1, finished=NOW + ahead, backoff=40.0)
        assert len(decide(pod(), seen(attempts={"a": (last,)})).starts) == starts


def test_a_problem_delays_the_next_try_for_a_minute_at_most() -> None:
    for ahead, starts in ((0.0, 1), (0.1, 0), (60.0, 0), (60.1, 1)):
        decision = decide(pod(), seen(problems={"a": Problem("X", "y", NOW + ahead)}))
        assert len(decision.starts) == starts
        assert decision.wake_at == (None if starts else NOW + ahead)


def test_a_blocked_pod_wakes_when_it_may_try_again() -> None:
    assert decide(pod(), seen(blocked=Problem("X", "y", NOW + 5))).wake_at == NOW + 5
    assert decide(pod(), seen(blocked=Problem("X", "y"))).wake_at is None
    assert decide(pod(), seen(blocked=Problem("X", "y"))).starts == ()


# Stops


def test_the_deadline_ends_a_pod_when_it_is_reached() -> None:
    one = pod(restartPolicy="Never", activeDeadlineSeconds=60, status={"phase": "Running", "startTime": STAMP})
    before = decide(one, seen(NOW + 59, attempts={"a": (running(),)}))
    assert (before.stops, before.wake_at) == ((), NOW + 60)
    after = decide(one, seen(NOW + 60, attempts={"a": (running(),)}))
    assert after.stops == (Stop("a", 0, 30.0, "the pod exceeded its activeDeadlineSeconds", with_pod=True),)
    assert (after.wake_at, after.ended) == (None, False)
    ended = status_of(one, seen(NOW + 61, attempts={"a": (exited(0),)}))
    assert (ended["phase"], ended["reason"]) == ("Failed", "DeadlineExceeded")
    assert ended["message"] == "Pod was active on the node longer than the specified deadline"


def test_why_a_pod_ends() -> None:
    live = {"a": (running(2),)}
    for one, more, message in (
        (pod(metadata=DELETED), {}, "the pod is being deleted"),
        (pod(), {"removed": True}, "the pod no longer exists in the API server"),
        (pod(status={"phase": "Failed"}), {}, "the pod has terminated"),
    ):
        assert decide(one, seen(attempts=live, **more)).stops == (Stop("a", 2, 30.0, message, with_pod=True),)
    gone = decide(pod(), seen(attempts={"a": (exited(),)}, removed=True))
    assert (gone.status, gone.ended, gone.starts) == (None, True, ())
    over = decide(pod(status={"phase": "Failed"}), seen(attempts={"a": (exited(),)}))
    assert not over.ended


def test_a_failed_probe_stops_with_its_own_grace() -> None:
    container = {"name": "a", "livenessProbe": {"terminationGracePeriodSeconds": 3}}
    decision = decide(pod(container), seen(attempts={"a": (running(),)}, unhealthy={"a": "liveness probe failed"}))
    assert decision.stops == (Stop("a", 0, 3.0, "liveness probe failed"),)
    assert decide(pod(container), seen(attempts={"a": (exited(),)}, unhealthy={"a": "x"})).stops == ()
    for probe, grace in (("livenessProbe", 3.0), ("startupProbe", 4.0)):
        sidecar = {"name": "s", "restartPolicy": "Always", probe: {"terminationGracePeriodSeconds": grace}}
        attempts = {"s": (running(),), "a": (running(),)}
        decision = decide(pod(inits=(sidecar,)), seen(attempts=attempts, unhealthy={"s": "probe failed"}))
        assert decision.stops == (Stop("s", 0, grace, "probe failed"),)


def test_a_pod_that_finished_still_ends_its_sidecars() -> None:
    one = pod({"name": "a"}, inits=({"name": "s", "restartPolicy": "Always"},), restartPolicy="Never")
    decision = decide(one, seen(attempts={"a": (exited(),), "s": (running(),)}))
    assert decision.stops == (Stop("s", 0, 30.0, "the pod's main containers have terminated", with_pod=True),)
    failed = pod({"name": "a"}, inits=({"name": "s", "restartPolicy": "Always"}, {"name": "i"}), restartPolicy="Never")
    decision = decide(failed, seen(attempts={"i": (exited(1),), "s": (running(),)}))
    assert [stop.container for stop in decision.stops] == ["s"]
    assert decision.starts == ()
    assert decision.status is not None
    assert decision.status["phase"] == "Running"


def test_a_deleted_pod_ends_when_nothing_runs() -> None:
    one = pod({"name": "a"}, {"name": "b"}, metadata=DELETED)
    assert not decide(one, seen(attempts={"a": (exited(),), "b": (running(),)})).ended
    assert decide(one, seen(attempts={"a": (exited(),), "b": (exited(),)})).ended
    assert decide(one, seen()).ended


# Status


def test_phases() -> None:
    one = pod({"name": "a"}, {"name": "b"}, restartPolicy="Never")

    def phase(item: Json, **attempts: Attempt) -> str:
        return str(status_of(item, seen(attempts={name: (attempt,) for name, attempt in attempts.items()}))["phase"])

    assert phase(one) == "Pending"
    assert phase(one, a=running()) == "Pending"
    assert phase(one, a=running(), b=Attempt(0, "starting")) == "Pending"
    assert phase(one, a=running(), b=Attempt(1, "starting")) == "Running"
    assert phase(one, a=running(), b=exited(1)) == "Running"
    assert phase(one, a=exited(), b=exited(1)) == "Failed"
    assert phase(one, a=exited(), b=exited()) == "Succeeded"
    deleted = {**one, "metadata": {**one["metadata"], **DELETED}}
    assert phase(deleted, a=exited(), b=exited()) == "Succeeded"
    assert phase(deleted, a=exited(), b=exited(1)) == "Failed"
    assert phase(deleted, a=exited(), b=running()) == "Running"
    assert phase(deleted) == "Failed"


def test_the_whole_status() -> None:
    one = pod(metadata={"generation": 4})
    status = status_of(one, seen(attempts={"a": (running(container_id="c", image_id="file://i"),)}))
    assert {key: value for key, value in status.items() if key not in ("conditions", "containerStatuses")} == {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        "startTime": STAMP,
        "qosClass": "BestEffort",
        "observedGeneration": 4,
    }
    assert status["containerStatuses"] == [
        {
            "name": "a",
            "image": "",
            "imageID": "file://i",
            "restartCount": 0,
            "lastState": {},
            "started": True,
            "ready": True,
            "containerID": "c",
            "state": {"running": {"startedAt": format_time(NOW - 5)}},
        }
    ]
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    assert "observedGeneration" not in status_of(pod(), seen())
    assert "initContainerStatuses" not in status


def test_the_whole_status_of_a_container_that_has_not_started() -> None:
    assert container_of(pod({"name": "a", "image": "i"}), seen()) == {
        "name": "a",
        "image": "i",
        "imageID": "",
        "restartCount": 0,
        "lastState": {},
        "started": False,
        "ready": False,
        "state": {"waiting": {"reason": "ContainerCreating"}},
    }


def test_an_eviction_goes_on_with_its_message_after_a_restart_of_the_kubelet() -> None:
    """The kubelet that comes next knows of the eviction by the pod's status alone."""
    message = "Container a used 3Gi of ephemeral storage, limit 2Gi"
    begun = pod(status={"phase": "Running", "reason": "Evicted", "message": message})
    for observed in (seen(attempts={"a": (running(),)}), seen(attempts={"a": (running(),)}, evicted=message)):
        assert condition(begun, observed, "DisruptionTarget") == {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": STAMP,
        }
        assert len(decide(begun, observed).stops) == 1


def test_a_status_that_stays() -> None:
    ended = pod(status={"phase": "Failed", "reason": "Evicted", "message": "m", "startTime": "2020-01-01T00:00:00Z"})
    assert decide(ended, seen()).status is None
    status = status_of(ended, seen(attempts={"a": (exited(),)}))
    assert [status[key] for key in ("phase", "reason", "message", "startTime")] == [
        "Failed",
        "Evicted",
        "m",
        "2020-01-01T00:00:00Z",
    ]
    assert "reason" not in status_of(pod(status={"phase": "Running", "reason": "Old"}), seen(attempts={"a": (running(),)}))
    assert rejected_status(ended, "OutOfcpu", "no", NOW)["startTime"] == "2020-01-01T00:00:00Z"
    assert rejected_status(pod(), "OutOfcpu", "no", NOW) == {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "no",
        "startTime": STAMP,
    }


def test_initialized() -> None:
    one = pod(inits=({"name": "i"}, {"name": "s", "restartPolicy": "Always"}))
    waiting = condition(one, seen(attempts={"i": (exited(),)}), "Initialized")
    assert (waiting["status"], waiting["reason"]) == ("False", "ContainersNotInitialized")
    assert waiting["message"] == "containers with incomplete status: [s]"
    through = seen(attempts={"i": (exited(),), "s": (running(),)})
    assert condition(one, through, "Initialized")["status"] == "True"
    assert "reason" not in condition(one, through, "Initialized")
    done = pod(inits=({"name": "i"},), restartPolicy="Never")
    over = seen(attempts={"i": (exited(),), "a": (exited(),)})
    assert condition(done, over, "Initialized")["reason"] == "PodCompleted"
    # An init container that exited before its pod's main containers ran does not run again.
    assert decide(one, seen(attempts={"a": (running(),), "s": (running(),)})).starts == ()


def test_ready_and_its_reasons() -> None:
    probed = {"name": "a", "readinessProbe": {}}
    one = pod(probed, {"name": "b"}, inits=({"name": "s", "restartPolicy": "Always", "readinessProbe": {}},))
    attempts = {name: (running(),) for name in ("a", "b", "s")}
    unready = condition(one, seen(attempts=attempts, ready={"a": False}), "ContainersReady")
    assert unready["message"] == "containers with unready status: [s a]"
    assert condition(one, seen(attempts=attempts, ready={"a": True, "s": True}), "Ready")["status"] == "True"
    for code, reason in ((0, "PodCompleted"), (1, "PodFailed")):
        over = seen(attempts={"a": (exited(code),)})
        found = condition(pod(restartPolicy="Never"), over, "Ready")
        assert (found["status"], found["reason"]) == ("False", reason)
        assert condition(pod(restartPolicy="Never"), over, "PodReadyToStartContainers")["status"] == "False"


def test_readiness_gates() -> None:
    gates = [{"conditionType": "x/y"}, {"conditionType": "x/z"}]
    open_one = {"type": "x/y", "status": "True"}
    one = pod(readinessGates=gates, status={"conditions": [open_one]})
    found = condition(one, seen(attempts={"a": (running(),)}), "Ready")
    assert (found["status"], found["reason"]) == ("False", "ReadinessGatesNotReady")
    assert found["message"] == "corresponding condition of pod readiness gate 'x/z' is not True"
    one["status"]["conditions"].append({"type": "x/z", "status": "True"})
    assert condition(one, seen(attempts={"a": (running(),)}), "Ready")["status"] == "True"


def test_startup_probes_hold_back_the_others() -> None:
    container = {"name": "a", "startupProbe": {}, "readinessProbe": {}}
    live = {"a": (running(),)}
    assert container_of(pod(container), seen(attempts=live, ready={"a": True}))["ready"] is False
    found = container_of(pod(container), seen(attempts=live, ready={"a": True}, started={"a": True}))
    assert (found["started"], found["ready"]) == (True, True)
    assert container_of(pod(container), seen(attempts=live, started={"a": True}))["ready"] is False
    assert container_of(pod(), seen(attempts={"a": (Attempt(0, "starting"),)}))["started"] is False


def test_waiting_states() -> None:
    problem = {"a": Problem("CreateContainerConfigError", "no", NOW + 9)}
    waiting = container_of(pod(), seen(problems=problem))["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerConfigError", "message": "no"}
    blocked = container_of(pod(), seen(problems=problem, blocked=Problem("HostNetworkRequired", "say so")))
    assert blocked["state"]["waiting"]["reason"] == "HostNetworkRequired"
    again = container_of(pod(), seen(attempts={"a": (exited(1),)}, problems=problem))
    assert again["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    assert again["lastState"]["terminated"]["exitCode"] == 1
    ending = container_of(pod(metadata=DELETED), seen(attempts={"a": (exited(1),)}, problems=problem))
    assert ending["state"]["terminated"]["exitCode"] == 1
    assert ending["lastState"] == {}
    over = container_of(pod(restartPolicy="Never"), seen(attempts={"a": (exited(1),)}, problems=problem))
    assert over["state"]["terminated"]["exitCode"] == 1
    inited = pod(inits=({"name": "i"},))
    assert container_of(inited, seen())["state"]["waiting"] == {"reason": "PodInitializing"}
    assert status_of(inited, seen())["initContainerStatuses"][0]["state"]["waiting"] == {"reason": "ContainerCreating"}
    starting = {"a": (exited(1), Attempt(1, "starting"))}
    found = container_of(inited, seen(attempts=starting))
    assert found["state"]["waiting"] == {"reason": "ContainerCreating"}
    assert (found["lastState"]["terminated"]["exitCode"], found["restartCount"]) == (1, 1)


def test_messages_of_a_crash_loop() -> None:
    held = exited(1, number=3, finished=NOW, backoff=40.0)
    found = container_of(pod(), seen(NOW + 1, attempts={"a": (held,)}))
    assert found["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 40s restarting failed container=a pod=p_n(u)",
    }
    held = exited(128, number=3, finished=NOW, backoff=40.0, reason=START_ERROR, message="no such command")
    found = container_of(pod(), seen(NOW + 1, attempts={"a": (held,)}))
    assert found["state"]["waiting"] == {"reason": "RunContainerError", "message": "no such command"}


def test_terminated_states() -> None:
    assert terminated_state(exited(finished=NOW, ran=5)) == {
        "exitCode": 0,
        "reason": "Completed",
        "startedAt": format_time(NOW - 5),
        "finishedAt": STAMP,
        "containerID": "",
    }
    killed = terminated_state(exited(137, signal=9, message="bye", container_id="c"))
    assert [killed[key] for key in ("reason", "signal", "message", "containerID")] == ["Error", 9, "bye", "c"]
    assert terminated_state(exited(1, reason="OOMKilled"))["reason"] == "OOMKilled"
    assert terminated_state(Attempt(0, "exited", finished_at=NOW))["startedAt"] == STAMP


def test_transition_times() -> None:
    old = "2020-01-01T00:00:00Z"
    before = [{"type": kind, "status": "True", "lastTransitionTime": old, "extra": 1} for kind in ("Ready", "PodScheduled")]
    one = pod(status={"conditions": before})
    live = seen(attempts={"a": (running(),)})
    assert condition(one, live, "Ready") == {
        "type": "Ready",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": old,
    }
    assert condition(one, live, "PodScheduled") == before[1]
    assert condition(one, seen(), "Ready")["lastTransitionTime"] == STAMP
    before[1]["status"] = "False"
    assert condition(one, live, "PodScheduled")["lastTransitionTime"] == STAMP


# Admission


@pytest.mark.parametrize(
    ("operator", "values", "label", "expected"),
    [
        ("In", ["a", "b"], "b", True),
        ("In", ["a"], "b", False),
        ("In", ["a"], None, False),
        ("NotIn", ["a"], "b", True),
        ("NotIn", ["a"], "a", False),
        ("NotIn", ["a"], None, True),
        ("Exists", [], "x", True),
        ("Exists", [], None, False),
        ("DoesNotExist", [], None, True),
        ("DoesNotExist", [], "x", False),
        ("Gt", ["5"], "6", True),
        ("Gt", ["5"], "5", False),
        ("Gt", ["-5"], "-4", True),
        ("Gt", ["5"], "x", False),
        ("Gt", ["5"], None, False),
        ("Gt", [], "6", False),
        ("Gt", ["five"], "6", False),
        ("Lt", ["5"], "4", True),
        ("Lt", ["5"], "5", False),
        ("Lt", ["5"], None, False),
        ("Lt", [], "4", False),
        ("Lt", ["five"], "4", False),
        ("Lt", ["9" * 5000], "4", False),
        ("Lt", ["5", "9"], "7", False),
        ("Lt", ["9", "5"], "7", False),
        ("Like", ["a"], "a", False),
    ],
)
def test_node_affinity(operator: str, values: list[str], label: str | None, expected: bool) -> None:
    def one(*terms: Json) -> Json:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return pod(affinity={"nodeAffinity": required})

    labels = {} if label is None else {"l": label}
    term = {"matchExpressions": [{"key": "l", "operator": operator, "values": values}]}
    assert admission.selects(one(term), "node", labels) is expected
    never = {"matchExpressions": [{"key": "none", "operator": "Exists"}]}
    assert admission.selects(one(never, term), "node", labels) is expected
    both = {"matchExpressions": [*term["matchExpressions"], *never["matchExpressions"]]}
    assert not admission.selects(one(both), "node", labels)
    for name in ("node", "other"):
        fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        assert admission.selects(one(fields), "node", labels) is (name == "node")
        assert admission.selects(one({**fields, **term}), "node", labels) is (name == "node" and expected)
    assert not admission.selects(one({}), "node", labels)
    assert admission.selects(pod(), "node", labels)


def test_resources_fit_to_the_last_unit() -> None:
    def asks(**requests: str) -> Json:
        return pod({"name": "a", "resources": {"requests": requests}})

    allocatable = {"cpu": "2", "pods": "3", "example.com/gpu": "1"}

    def verdict(one: Json, *others: Json) -> admission.Rejection | None:
        return admission.reject(one, others, "node", {}, allocatable)

    assert verdict(asks(cpu="1500m"), asks(cpu="500m")) is None
    assert verdict(asks(cpu="1500m"), asks(cpu="501m")) == (
        "OutOfcpu",
        "Pod was rejected: node node does not have enough cpu: requested 1.5, used 0.501, allocatable 2",
    )
    assert verdict(asks(memory="1Ti")) is None, "a node that reports no memory does not limit it"
    assert verdict(asks(**{"example.com/tpu": "1"})) is not None, "a resource that the node does not have"
    assert verdict(asks(**{"example.com/tpu": "0"})) is None
    assert verdict(asks(**{"example.com/gpu": "1"})) is None
    assert verdict(asks(), asks(), asks()) is None
    assert verdict(asks(), asks(), asks(), asks()) == (
        "OutOfpods",
        "Pod was rejected: node node already runs 3 pods (maximum 3)",
    )
    ended = {**asks(cpu="2"), "status": {"phase": "Failed"}}
    assert verdict(asks(cpu="2"), ended, ended, ended) is None


def test_a_pod_for_another_operating_system_is_rejected() -> None:
    def verdict(name: str, labels: dict[str, str]) -> str | None:
        answer = admission.reject({**pod(), "spec": {**pod()["spec"], "os": {"name": name}}}, [], "node", labels, {})
        return answer[0] if answer else None

    linux = {"kubernetes.io/os": "linux"}
    assert (verdict("linux", linux), verdict("windows", linux)) == (None, "PodOSNotSupported")
    assert verdict("linux", {"kubernetes.io/os": "darwin"}) == "PodOSNotSupported"


@pytest.mark.parametrize(
    ("toleration", "taint", "accepted"),
    [
        (None, {"key": "k", "effect": "NoSchedule"}, True),
        (None, {"key": "k", "effect": "PreferNoSchedule"}, True),
        (None, {"key": "k", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, {"key": "k", "effect": "NoExecute"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, {"key": "k", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, {"key": "k", "value": "v", "effect": "NoExecute"}, True),
        ({"key": "x", "operator": "Exists"}, {"key": "k", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "v"}, {"key": "k", "value": "v", "effect": "NoExecute"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, {"key": "k", "value": "w", "effect": "NoExecute"}, False),
        ({"key": "k"}, {"key": "k", "effect": "NoExecute"}, True),
        ({"key": "k", "operator": "Gt", "value": "1"}, {"key": "k", "value": "1", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Exists", "tolerationSeconds": 300}, {"key": "k", "effect": "NoExecute"}, True),
    ],
)
def test_taints_that_keep_pods_off(toleration: Json | None, taint: Json, accepted: bool) -> None:
    one = pod(tolerations=[toleration] if toleration is not None else [])
    answer = admission.reject(one, [], "node", {}, {}, taints=[{"key": "other", "effect": "NoSchedule"}, taint])
    assert (answer is None) is accepted
    if answer is not None:
        value = f"={taint['value']}" if "value" in taint else ""
        text = f"Pod was rejected: node node has the taint k{value}:NoExecute, which the pod does not tolerate"
        assert answer == ("TaintToleration", text)


def test_requests_of_init_containers_sidecars_and_overhead() -> None:
    def container(cpu: str, **more: Any) -> Json:
        return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    sidecar = container("1", restartPolicy="Always")
    assert admission.requests(pod(container("1"), container("2"))) == {"cpu": 3}
    assert admission.requests(pod(container("1"), inits=(sidecar, container("5")))) == {"cpu": 6}
    assert admission.requests(pod(container("1"), inits=(container("5"), sidecar))) == {"cpu": 5}
    assert admission.requests(pod(container("9"), inits=(sidecar, container("5")))) == {"cpu": 10}
    assert admission.requests(pod(container("1"), overhead={"cpu": "2", "memory": "3"})) == {"cpu": 3, "memory": 3}
    limits = {"name": "x", "resources": {"limits": {"cpu": "4", "memory": "8"}, "requests": {"cpu": "1"}}}
    assert admission.requests(pod(limits)) == {"cpu": 1, "memory": 8}


def test_ports_of_the_node() -> None:
    def one(*ports: Json, **spec: Any) -> Json:
        return pod({"name": "a", "ports": list(ports)}, **spec)

    assert admission.host_ports(one({"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"})) == {
        ("TCP", 80),
        ("UDP", 53),
    }
    assert admission.host_ports(one({"containerPort": 80, "hostPort": 8080})) == {("TCP", 8080)}
    assert admission.host_ports(one({"containerPort": 80}, hostNetwork=False)) == set()
    assert admission.host_ports(pod(inits=({"name": "i", "ports": [{"containerPort": 1}]},))) == {("TCP", 1)}
    clash = admission.reject(one({"containerPort": 80}), [one({"containerPort": 80})], "node", {}, {})
    assert clash == ("NodePorts", "Pod was rejected: TCP port 80 of node node is in use by pod n/p")
    elsewhere = one({"containerPort": 80})
    elsewhere["metadata"] = {**elsewhere["metadata"], "namespace": "other"}
    hidden = admission.reject(one({"containerPort": 80}), [elsewhere], "node", {}, {})
    assert hidden == ("NodePorts", "Pod was rejected: TCP port 80 of node node is in use by a pod of another namespace")
    assert admission.reject(one({"containerPort": 80}), [one({"containerPort": 81})], "node", {}, {}) is None


def test_what_asks_for_a_mac() -> None:
    def affinity(**term: Any) -> Json:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
        return pod(affinity={"nodeAffinity": required})

    system = "kubernetes.io/os"
    assert admission.asks_for_mac(pod(runtimeClassName="macos"))
    assert not admission.asks_for_mac(pod(runtimeClassName="other"))
    assert admission.asks_for_mac(pod(nodeSelector={system: "darwin"}))
    assert not admission.asks_for_mac(pod(nodeSelector={system: "linux"}))
    assert admission.asks_for_mac(affinity(key=system, operator="In", values=["linux", "darwin"]))
    assert not admission.asks_for_mac(affinity(key=system, operator="NotIn", values=["darwin"]))
    assert not admission.asks_for_mac(affinity(key="other", operator="In", values=["darwin"]))
    assert not admission.asks_for_mac(affinity(key=system, operator="In", values=["linux"]))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"add": ["SYS_NICE"]}, -15),
        ({"add": ["NET_RAW", "SYS_NICE", "SYS_NICE"]}, -15),
        # The admission policy looks for this one name only.
        ({"add": ["sys_nice", "CAP_SYS_NICE", "SYS_NICE ", "ALL"]}, 0),
        ({"drop": ["SYS_NICE"]}, 0),
        ({"add": None}, 0),
        (None, 0),
    ],
)
def test_whose_processes_come_before_other_programs(capabilities: Json | None, expected: int) -> None:
    container: Json = {"name": "a", "securityContext": {"capabilities": capabilities}}
    assert admission.nice_of(pod(container, runtimeClassName="macos"), container) == expected
    # The admission policy has not checked it.
    assert admission.nice_of(pod(container), container) == 0
    # Only the container itself counts.
    assert admission.nice_of(pod(container, runtimeClassName="macos"), {"name": "b"}) == 0


def test_what_cannot_run_and_why() -> None:
    known, claim = {"i": object()}, {"name": "v", "persistentVolumeClaim": {}}
    asks: Json = {"runtimeClassName": "macos"}
    good = pod({"name": "a", "image": "i"}, **asks)

    def reason(one: Json, mac: bool) -> str | None:
        problem = admission.cannot_run(one, known, mac)
        return problem.reason if problem else None

    assert [reason(good, True), reason(good, False)] == [None, None]
    # The admission policy has not checked it.
    unasked = pod({"name": "a", "image": "i"})
    assert [reason(unasked, True), reason(unasked, False)] == ["NotRunnableOnMac", None]
    foreign = pod({"name": "a", "image": "other"})
    assert [reason(foreign, True), reason(foreign, False)] == ["NotRunnableOnMac", None]
    mounted = pod({"name": "a", "image": "i"}, volumes=[claim], **asks)
    assert [reason(mounted, True), reason(mounted, False)] == ["NotRunnableOnMac", "CreateContainerConfigError"]
    assert reason(pod({"name": "a", "image": "i"}, hostNetwork=False, **asks), True) == "HostNetworkRequired"


def test_two_namespaces_do_not_share_a_user() -> None:
    def one(user: int, namespace: str = "n", **of_pod: Any) -> Json:
        item = pod({"name": "a", "image": "i", "securityContext": {"runAsUser": user}}, securityContext=of_pod)
        return {**item, "metadata": {**item["metadata"], "namespace": namespace}}

    def verdict(item: Json, *others: Json, switches: bool = True) -> str | None:
        answer = admission.reject(item, others, "node", {}, {}, switches_users=switches)
        return answer[0] if answer else None

    assert verdict(one(2001), one(2001, "other")) == "UserInUse"
    assert verdict(one(2002, runAsUser=2001), one(2001, "other")) == "UserInUse"
    assert verdict(one(2001), one(2001)) is None
    assert verdict(one(2001), one(2002, "other")) is None
    assert verdict(one(0), one(0, "other")) is None, "root is a matter of the admission policy"
    assert verdict(one(2001), one(2001, "other"), switches=False) is None
    ended = one(2001, "other")
    ended["status"] = {"phase": "Failed"}
    assert verdict(one(2001), ended) is None


# Probes and publishing


def test_defaults_of_a_probe() -> None:
    assert ProbeSettings.of({}) == ProbeSettings(0.0, 10.0, 1.0, 1, 3)
    given = {"initialDelaySeconds": 4, "periodSeconds": 5, "timeoutSeconds": 6, "successThreshold": 7, "failureThreshold": 8}
    assert ProbeSettings.of(given) == ProbeSettings(4.0, 5.0, 6.0, 7, 8)


def test_thresholds_count_results_in_a_row() -> None:
    count = ProbeCount(success_threshold=2, failure_threshold=3)
    changes = [count.add(good) for good in (True, False, True, True, True, False, False, True, False, False, False, False)]
    assert changes == [False, False, False, True, False, False, False, False, False, False, True, False]
    assert count.verdict is False
    at_once = ProbeCount(success_threshold=1, failure_threshold=1)
    assert [at_once.add(good) for good in (False, False, True)] == [True, False, True]


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": ""}, True),
        ({}, {"a": []}, True),
        ({}, {"a": {"b": None}}, True),
        (None, {"a": 1}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": [1, 2]}, {"a": [1, 2]}, True),
        ({"a": [1, 3]}, {"a": [1, 2]}, False),
        ({"c": [{"type": "X", "status": "T", "more": 1}, {"type": "Y"}]}, {"c": [{"type": "X", "status": "T"}]}, True),
        ({"c": [{"type": "X", "status": "T", "reason": "old"}]}, {"c": [{"type": "X", "status": "T"}]}, False),
        ({"c": [{"type": "X", "status": "T", "message": "old"}]}, {"c": [{"type": "X", "status": "T"}]}, False),
        ({"c": [{"type": "Y", "status": "T"}]}, {"c": [{"type": "X", "status": "T"}]}, False),
        ({"c": "text"}, {"c": [{"type": "X"}]}, False),
    ],
)
def test_what_a_status_already_says(present: Json, wanted: Json, expected: bool) -> None:
    assert covers(present, wanted) is expected


def test_started_and_not_ready_yet_is_all_that_is_new() -> None:
    def status(started: bool, ready: bool = False, **other: object) -> Json:
        one = {"name": "a", "ready": ready, "started": started, "image": "", "lastState": {}}
        return {"phase": "Running", "containerStatuses": [one, {"name": "b", "started": False}], **other}

    assert only_started(status(False), status(True))
    assert not only_started(status(True), status(True)), "nothing is new"
    assert not only_started(status(False), status(True, ready=True))
    assert not only_started(status(False), status(True, phase="Failed"))
    assert not only_started({}, status(True)) and not only_started({"phase": "Pending"}, {"phase": "Running"})


def test_a_patch_clears_what_a_condition_no_longer_has() -> None:
    assert as_patch({"phase": "Failed"}) == {"phase": "Failed"}
    assert as_patch({"hostIPs": [{"ip": "a"}]}) == {"hostIPs": [{"ip": "a"}, {"$patch": "replace"}]}
    patch = as_patch({"conditions": [{"type": "Ready", "reason": "X"}]})
    assert patch == {"conditions": [{"reason": "X", "message": None, "type": "Ready"}]}


def test_versions() -> None:
    assert [version_of({"metadata": {"resourceVersion": text}}) for text in ("12", "", "opaque")] == [12, 0, 0]
    assert version_of({"metadata": {}}) == 0


def test_the_host_ip_follows_the_node_and_the_pod_ip_stays() -> None:
    """As in Kubernetes, for pods in the host's network."""
    known = {"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}], "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
    status = decide(pod(status=known), replace(seen(), host_ip="10.0.0.9", addresses=("10.0.0.9",))).status
    assert status is not None
    assert (status["hostIP"], status["hostIPs"]) == ("10.0.0.9", [{"ip": "10.0.0.9"}])
    assert (status["podIP"], status["podIPs"]) == ("10.0.0.1", [{"ip": "10.0.0.1"}])
