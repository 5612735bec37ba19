"""What a pod does next: single decisions, and whole lives made up by hypothesis."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_kubelet.containers.attempt import Attempt, Start
from thunderfleet_kubelet.pods.decide import podspec
from thunderfleet_kubelet.pods.decide.lifecycle import BACKOFF_LIMIT_SECONDS, Decision, decide, next_backoff
from thunderfleet_kubelet.pods.decide.observed import Observed, Problem
from thunderfleet_kubelet.timestamps import format_time

Json = dict[str, Any]
NOW = 1_800_000_000.0


def pod(*mains: str, inits: tuple[str, ...] = (), sidecars: tuple[str, ...] = (), policy: str = "Always", **more: Any) -> Json:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 3, **more.pop("metadata", {})},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": name, "image": "i", "restartPolicy": "Always"} for name in sidecars]
            + [{"name": name, "image": "i"} for name in inits],
            "containers": [{"name": name, "image": "i"} for name in mains],
            **more.pop("spec", {}),
        },
        "status": {"phase": "Pending", **more.pop("status", {})},
    }


def running(number: int = 0, **more: Any) -> Attempt:
    return Attempt(number, "running", started_at=NOW - 5, container_id=f"c{number}", **more)


def exited(code: int = 0, number: int = 0, finished: float = NOW - 1, ran: float = 4, **more: Any) -> Attempt:
    return Attempt(
        number, "exited", started_at=finished - ran, finished_at=finished, exit_code=code, container_id=f"c{number}", **more
    )


def seen(now: float = NOW, ready_volumes: bool = True, more: Any = None, **attempts: Any) -> Observed:
    by_name = {name: value if isinstance(value, tuple) else (value,) for name, value in attempts.items()}
    return Observed(
        now=now, attempts=by_name, volumes_ready=ready_volumes, host_ip="10.0.0.1", addresses=("10.0.0.1",), **(more or {})
    )


def starts(decision: Decision) -> list[str]:
    return [start.container for start in decision.starts]


def stops(decision: Decision) -> list[str]:
    return [stop.container for stop in decision.stops]


def status_of(decision: Decision) -> Json:
    assert decision.status is not None
    return decision.status


def condition(decision: Decision, kind: str) -> Json:
    return next(item for item in status_of(decision)["conditions"] if item["type"] == kind)


def test_all_main_containers_start_together() -> None:
    decision = decide(pod("a", "b"), seen())
    assert decision.starts == (Start("a", 0, 0.0), Start("b", 0, 0.0))
    assert status_of(decision)["phase"] == "Pending"


def test_nothing_starts_before_the_volumes_are_there() -> None:
    decision = decide(pod("a"), seen(ready_volumes=False))
    assert not decision.starts
    assert condition(decision, "PodReadyToStartContainers")["status"] == "False"
    assert status_of(decision)["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}


def test_init_containers_come_first_and_in_order() -> None:
    one = pod("a", inits=("i", "j"))
    assert starts(decide(one, seen())) == ["i"]
    assert starts(decide(one, seen(i=running()))) == []
    assert starts(decide(one, seen(i=exited()))) == ["j"]
    last = decide(one, seen(i=exited(), j=exited()))
    assert starts(last) == ["a"]
    assert condition(last, "Initialized")["status"] == "True"
    waiting = decide(one, seen(i=exited(), j=running()))
    assert condition(waiting, "Initialized")["reason"] == "ContainersNotInitialized"
    assert "[j]" in condition(waiting, "Initialized")["message"]
    assert status_of(waiting)["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


def test_failed_init_container_by_restart_policy() -> None:
    never = decide(pod("a", inits=("i",), policy="Never"), seen(i=exited(1)))
    assert not never.starts
    assert status_of(never)["phase"] == "Failed"
    again = decide(pod("a", inits=("i",), policy="OnFailure"), seen(i=exited(1)))
    assert again.starts == (Start("i", 1, 10.0),)


def test_sidecars_start_first_and_end_last() -> None:
    one = pod("a", sidecars=("s", "t"), policy="Never")
    assert starts(decide(one, seen())) == ["s"]
    assert starts(decide(one, seen(s=running()))) == ["t"]
    assert starts(decide(one, seen(s=running(), t=running()))) == ["a"]
    assert starts(decide(one, seen(s=running(), t=exited(1), a=running()))) == ["t"]
    over = decide(one, seen(s=running(), t=running(), a=exited()))
    assert stops(over) == ["t"]
    assert status_of(over)["phase"] == "Running"
    assert stops(decide(one, seen(s=running(), t=exited(), a=exited()))) == ["s"]
    done = decide(one, seen(s=exited(), t=exited(), a=exited()))
    assert not done.starts
    assert status_of(done)["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("policy", "code", "again", "phase"),
    [
        ("Always", 0, True, "Running"),
        ("Always", 1, True, "Running"),
        ("OnFailure", 0, False, "Succeeded"),
        ("OnFailure", 1, True, "Running"),
        ("Never", 0, False, "Succeeded"),
        ("Never", 1, False, "Failed"),
    ],
)
def test_restart_policy(policy: str, code: int, again: bool, phase: str) -> None:
    decision = decide(pod("a", policy=policy), seen(a=exited(code)))
    assert starts(decision) == (["a"] if again else [])
    assert status_of(decision)["phase"] == phase


def test_first_restart_is_at_once_and_later_ones_back_off() -> None:
    assert decide(pod("a"), seen(a=exited(1))).starts == (Start("a", 1, 10.0),)
    second = (exited(1), exited(1, number=1, backoff=10.0))
    waiting = decide(pod("a"), seen(a=second))
    assert not waiting.starts
    assert waiting.wake_at == NOW + 9
    assert waiting.backing_off == ("a",)
    container = status_of(waiting)["containerStatuses"][0]
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container["lastState"]["terminated"]["exitCode"] == 1
    assert container["restartCount"] == 1
    assert decide(pod("a"), seen(now=NOW + 9, a=second)).starts == (Start("a", 2, 20.0),)


def test_a_clock_that_was_set_back_holds_nothing_up() -> None:
    day = 86_400.0
    ended = exited(1, number=3, finished=NOW, backoff=40)
    assert starts(decide(pod("a"), seen(NOW + 5, a=ended))) == []
    assert starts(decide(pod("a"), seen(NOW - day, a=ended))) == ["a"]
    problem = {"problems": {"a": Problem("CreateContainerConfigError", "no", retry_at=NOW + 10)}}
    assert starts(decide(pod("a"), seen(NOW, more=problem))) == []
    assert starts(decide(pod("a"), seen(NOW - day, more=problem))) == ["a"]


def test_back_off_starts_anew_after_ten_minutes() -> None:
    long = exited(1, number=6, backoff=300.0, ran=601)
    assert decide(pod("a"), seen(a=long)).starts == (Start("a", 7, 10.0),)


def test_deletion_ends_containers_with_the_grace_of_the_deletion() -> None:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7}
    one = pod("a", "b", metadata=gone, spec={"terminationGracePeriodSeconds": 40})
    decision = decide(one, seen(a=running(), b=exited(1)))
    assert [(stop.container, stop.grace) for stop in decision.stops] == [("a", 7.0)]
    assert not decision.starts
    assert not decision.ended
    assert decide(one, seen(a=exited(), b=exited(1))).ended


def test_unhealthy_container_is_stopped_and_then_started_again() -> None:
    decision = decide(pod("a"), seen(a=running(), more={"unhealthy": {"a": "its liveness probe failed"}}))
    assert stops(decision) == ["a"]
    assert decision.stops[0].grace == 30.0


def test_readiness_counts_into_conditions() -> None:
    one = pod("a", spec={"containers": [{"name": "a", "image": "i", "readinessProbe": {"tcpSocket": {"port": 1}}}]})
    no = decide(one, seen(a=running()))
    assert condition(no, "Ready")["reason"] == "ContainersNotReady"
    assert condition(no, "Ready")["message"] == "containers with unready status: [a]"
    assert status_of(no)["containerStatuses"][0]["started"] is True
    yes = decide(one, seen(a=running(), more={"ready": {"a": True}}))
    assert condition(yes, "Ready")["status"] == "True"
    gated = {**one, "spec": {**one["spec"], "readinessGates": [{"conditionType": "x/y"}]}}
    closed = decide(gated, seen(a=running(), more={"ready": {"a": True}}))
    assert (condition(closed, "ContainersReady")["status"], condition(closed, "Ready")["status"]) == ("True", "False")


def test_transition_times_change_only_with_the_status() -> None:
    first = decide(pod("a"), seen(a=running()))
    later = {**pod("a"), "status": status_of(first)}
    again = decide(later, seen(now=NOW + 1000, a=running()))
    assert again.status == first.status


def test_start_error_is_told_as_run_container_error() -> None:
    attempts = (exited(128), exited(128, number=1, backoff=10.0, reason="StartError", message="command 'x' was not found"))
    container = status_of(decide(pod("a"), seen(a=attempts)))["containerStatuses"][0]
    assert container["state"]["waiting"] == {"reason": "RunContainerError", "message": "command 'x' was not found"}


def test_blocked_pod_waits_with_the_reason() -> None:
    decision = decide(pod("a"), seen(more={"blocked": Problem("HostNetworkRequired", "say so")}))
    assert not decision.starts
    assert status_of(decision)["phase"] == "Pending"
    assert status_of(decision)["containerStatuses"][0]["state"]["waiting"]["reason"] == "HostNetworkRequired"


def test_active_deadline() -> None:
    old = format_time(NOW - 100)
    one = pod("a", spec={"activeDeadlineSeconds": 60}, status={"phase": "Running", "startTime": old})
    assert stops(decide(one, seen(a=running()))) == ["a"]
    over = decide(one, seen(a=exited(143)))
    assert not over.starts
    assert (status_of(over)["phase"], status_of(over)["reason"]) == ("Failed", "DeadlineExceeded")


def test_pod_failed_by_somebody_else_is_ended_and_stays_failed() -> None:
    one = pod("a", status={"phase": "Failed", "reason": "Evicted", "message": "m"})
    decision = decide(one, seen(a=running()))
    assert stops(decision) == ["a"]
    assert (status_of(decision)["phase"], status_of(decision)["reason"]) == ("Failed", "Evicted")
    assert decide(one, seen()).status is None


@given(st.lists(st.floats(0, 599), min_size=1, max_size=30))
def test_back_off_grows_to_its_limit_and_never_shrinks(runs: list[float]) -> None:
    last: Attempt | None = None
    delays = []
    for number, ran in enumerate(runs):
        backoff = next_backoff(last)
        last = exited(1, number=number, ran=ran, backoff=backoff)
        delays.append(backoff)
    assert delays == sorted(delays)
    assert delays[0] == 0
    assert all(10 <= delay <= BACKOFF_LIMIT_SECONDS for delay in delays[1:])


class Life:
    """One pod whose containers end when and how hypothesis says; decisions are carried out as they are made."""

    def __init__(self, policy: str, inits: tuple[str, ...], sidecars: tuple[str, ...], mains: tuple[str, ...]) -> None:
        self.policy, self.inits, self.mains = policy, inits, mains
        self.pod = pod(*mains, inits=inits, sidecars=sidecars, policy=policy)
        self.attempts: dict[str, tuple[Attempt, ...]] = {}
        self.now = NOW

    @property
    def deleted(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]

    def delete(self) -> None:
        self.pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def end(self, name: str, code: int) -> None:
        ended = replace(self.attempts[name][-1], state="exited", finished_at=self.now, exit_code=code)
        self.attempts[name] = (*self.attempts[name][:-1], ended)

    def live(self) -> list[str]:
        return sorted(name for name, attempts in self.attempts.items() if attempts[-1].live)

    def step(self) -> Decision:
        decision = decide(self.pod, Observed(now=self.now, attempts=self.attempts, volumes_ready=True, host_ip="10.0.0.1"))
        if self.deleted:
            assert not decision.starts
        for start in decision.starts:
            assert start.container not in [stop.container for stop in decision.stops]
            self.start(start)
        if decision.status is not None:
            self.publish(decision.status)
        return decision

    def start(self, start: Start) -> None:
        before = self.attempts.get(start.container, ())
        assert start.number == (before[-1].number + 1 if before else 0)
        if before:
            # Never two at once, and never before the back-off is over.
            assert before[-1].state == "exited"
            assert self.now >= before[-1].retry_at
        if start.container in self.mains:
            assert not before or podspec.restarts(self.policy, before[-1].exit_code)
            assert all(self.attempts[name][-1].state == "exited" for name in self.inits)
            assert all(self.attempts[name][-1].exit_code == 0 for name in self.inits)
        fresh = Attempt(start.number, "running", backoff=start.backoff, started_at=self.now)
        self.attempts[start.container] = (*before, fresh)[-2:]

    def publish(self, status: Json) -> None:
        old = self.pod["status"]["phase"]
        assert old not in podspec.TERMINAL_PHASES or status["phase"] == old
        self.pod["status"].update(status)
        if status["phase"] in podspec.TERMINAL_PHASES:
            assert not self.live()


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    inits=st.integers(0, 2),
    sidecars=st.integers(0, 2),
    mains=st.integers(1, 3),
    moves=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.floats(0, 700)), max_size=40),
    deleted_at=st.integers(0, 60),
)
@settings(deadline=None)
def test_whole_lives(
    policy: str, inits: int, sidecars: int, mains: int, moves: list[tuple[int, int, float]], deleted_at: int
) -> None:
    names = [tuple(f"{kind}{n}" for n in range(count)) for kind, count in (("i", inits), ("s", sidecars), ("m", mains))]
    life = Life(policy, names[0], names[1], names[2])
    for turn, (which, code, seconds) in enumerate(moves):
        if turn == deleted_at:
            life.delete()
        life.step()
        life.now += seconds
        live = life.live()
        if live:
            life.end(live[which % len(live)], code)
    life.delete()
    for _ in range(10):
        decision = life.step()
        for stop in decision.stops:
            life.end(stop.container, 143)
        if decision.ended:
            break
    assert decision.ended


def test_deletion_ends_sidecars_after_the_main_containers() -> None:
    one = pod("a", sidecars=("s", "t"), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert stops(decide(one, seen(s=running(), t=running(), a=running()))) == ["a"]
    assert stops(decide(one, seen(s=running(), t=running(), a=exited()))) == ["t"]
    assert stops(decide(one, seen(s=running(), t=exited(), a=exited()))) == ["s"]
