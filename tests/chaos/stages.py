"""Brings a deployment to a stage of its life and waits until it is reached.

It waits for conditions only. A stage that is too short to hit is stretched by slowing a part of the recorded Mac.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_localcluster.errors import LocalClusterError

from tests.chaos.clients import Clients
from tests.chaos.faults import ORDER_SECONDS, RANK, SUPERVISOR
from tests.chaos.looks import EPOCH_LABEL, MANAGED, Eye, GroupDoor, Told
from tests.chaos.plan import HELD, Shape, Stage
from tests.support.api import Api, Unreachable
from tests.support.line import MODEL, Deployment, Line
from tests.support.waiting import NotInTimeError, until

Json = dict[str, Any]
T = TypeVar("T")

STAGE_SECONDS = 240.0
BENCHMARK_TOKENS = 4000
"""Enough tokens to hit the benchmark; other deployments generate as few as possible."""
SLOW_INIT = {"at": "rtr", "delaySeconds": 1.5, "fail": False}
SLOW_LOAD = {"at": "send", "delaySeconds": 0.2, "fail": False}
IN_STREAM_TOKENS = 5

# Run on a Mac: waits until the rank of a deployment works (an idle rank sleeps); exit code 1 when there is none.
BUSY = """
import os, sys, time
def rank():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open(f"/proc/{pid}/cmdline").read()
            environment = open(f"/proc/{pid}/environ", errors="replace").read()
            if sys.argv[2] in command and f"POD_NAME={sys.argv[1]}-" in environment:
                return pid
        except OSError:
            pass
    sys.exit(1)
def ticks(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
pid = rank()
before, limit = ticks(pid), time.monotonic() + 5
while ticks(pid) - before < 20:
    if time.monotonic() > limit:
        sys.exit(1)
    time.sleep(0.02)
"""


class Passed(Exception):
    """The stage ended before the fault was injected."""


def wait_for(holds: Callable[[], T | None], goal: str, seconds: float = STAGE_SECONDS) -> T:
    """Like ``until``, but tolerates unreachable parts of the cluster."""
    return until(holds, goal, seconds, retry_on=(LocalClusterError,))


@dataclass
class Subject:
    """The deployment that is being broken."""

    line: Line
    api: Api
    shape: Shape
    deployment: Deployment
    eye: Eye
    held: list[str] = field(default_factory=list)
    """Macs whose kubelets are frozen."""
    slowed: bool = False

    @property
    def group(self) -> Json:
        groups = self.eye.status.get("groups") or [{}]
        found: Json = groups[0]
        return found

    @property
    def nodes(self) -> list[str]:
        """Nodes by rank."""
        return [rank["node"] for rank in self.group.get("ranks", [])]

    def _of_epoch(self, kind: str, epoch: int) -> Json | None:
        items = self.api.items(f"/api/v1/namespaces/{self.deployment.namespace}/{kind}?labelSelector={MANAGED}")
        return next((item for item in items if item["metadata"]["labels"].get(EPOCH_LABEL) == str(epoch)), None)

    def plan(self) -> Json | None:
        """The plan of the epoch in status."""
        found = self._of_epoch("configmaps", int(self.group.get("epoch") or 0))
        return json.loads(found["data"]["plan.json"]) if found else None

    def pods(self) -> dict[str, str]:
        """The name of the pod on each Node."""
        items = self.api.items(f"/api/v1/namespaces/{self.deployment.namespace}/pods?labelSelector={MANAGED}")
        return {str(pod["spec"].get("nodeName")): str(pod["metadata"]["name"]) for pod in items}

    def door(self) -> GroupDoor:
        """Rank 0's control port in this epoch."""

        def found() -> GroupDoor | None:
            plan, keys = self.plan(), self._of_epoch("secrets", int(self.group.get("epoch") or 0))
            return GroupDoor(self.line.cluster, plan, keys["data"]) if plan and keys else None

        door: GroupDoor = wait_for(found, "plan and keys are there")
        return door

    def observed(self) -> str:
        """The state that the group reports now."""
        return str(self.group.get("state") or "not placed")


def spec(shape: Shape, benchmark: bool) -> Json:
    """Part of the spec: many restarts, short back-offs."""
    return {
        "model": {"repository": MODEL},
        "nodes": {"min": shape.ranks, "max": shape.ranks},
        "parallelism": shape.parallelism,
        "transport": shape.transport,
        "memory": {"contextTokens": 2 * BENCHMARK_TOKENS + 512},
        "recovery": {"backoffSeconds": 1, "backoffLimitSeconds": 5, "maxRestarts": 30},
        "benchmark": {"promptTokens": 32, "generationTokens": BENCHMARK_TOKENS if benchmark else 2},
    }


def prepare(line: Line, shape: Shape, stage: Stage) -> tuple[list[str], bool]:
    """Before ``apply``: freezes kubelets or slows JACCL down. Returns what ``release`` undoes."""
    if stage in HELD:
        for name in line.macs:
            line.cluster.machines[name].freeze_kubelet()
        return line.macs, False
    if shape.transport == "JACCL" and stage in (Stage.INIT, Stage.LOADING):
        for name in line.macs:
            line.cluster.jaccl(name, [SLOW_INIT if stage is Stage.INIT else SLOW_LOAD])
        return [], True
    return [], False


def release(subject: Subject) -> None:
    """Undoes what ``prepare`` did."""
    for name in subject.held:
        subject.line.cluster.machines[name].thaw_kubelet()
    subject.held = []
    if subject.slowed:
        subject.slowed = False
        for name in subject.line.macs:
            subject.line.cluster.jaccl(name, [])


def reach(subject: Subject, stage: Stage, clients: Clients) -> str:
    """Returns the state that the deployment reports when it reaches ``stage``. Raises NotInTimeError and Passed."""
    match stage:
        case Stage.RENDEZVOUS | Stage.BARRIER:
            return _held(subject, stage)
        case Stage.INIT:
            return _phase(subject, GroupPhase.FORMING)
        case Stage.LOADING:
            return _phase(subject, GroupPhase.LOADING)
        case Stage.IDLE:
            return _phase(subject, GroupPhase.READY)
        case Stage.STREAMS:
            streaming(clients)
            return f"{subject.observed()}, {len(clients.in_stream)} streams"
        case Stage.BENCHMARK:
            return _benchmarking(subject)
        case Stage.DRAINING:
            streaming(clients)
            door = subject.door()
            subject.deployment.kubectl("delete", "md", subject.deployment.name, "--wait=false")
            return _phase(subject, GroupPhase.DRAINING, door)


def streaming(clients: Clients) -> None:
    """Waits until clients send requests and one of them reads a stream."""
    if not clients.started:
        clients.start(streaming=2, whole=1)
    wait_for(lambda: any(count >= IN_STREAM_TOKENS for count in list(clients.in_stream.values())), "a stream runs")


def _held(subject: Subject, stage: Stage) -> str:
    """Freezes all kubelets; all but one continue once the pods are bound."""

    def bound() -> bool:
        path = f"/api/v1/namespaces/{subject.deployment.namespace}/pods?labelSelector={MANAGED}"
        pods = [pod for pod in subject.api.items(path) if pod["spec"].get("nodeName")]
        return len(pods) == len(subject.nodes) == subject.shape.ranks

    wait_for(bound, "its pods are bound")
    last = subject.nodes[0 if stage is Stage.RENDEZVOUS else -1]
    for name in subject.held:
        if name != last:
            subject.line.cluster.machines[name].thaw_kubelet()
    subject.held = [last]
    if stage is Stage.BARRIER:
        door = subject.door()
        wait_for(lambda: door.state().waits_for_one, "the others have joined")
        return "Waiting, the others have joined"

    def dialling() -> bool:
        seen, _ = subject.deployment.seen()
        return sum(SUPERVISOR in entry for entry in seen) == subject.shape.ranks - 1

    wait_for(dialling, "the others' supervisors run")
    return f"{subject.observed()}, rank 0 has not started"


def _phase(subject: Subject, wanted: GroupPhase, door: GroupDoor | None = None) -> str:
    """The phase that rank 0 reports now."""
    door = door or subject.door()
    over = (GroupPhase.READY, GroupPhase.GAVE_UP, wanted) if wanted is not GroupPhase.DRAINING else (wanted,)
    state: Told = wait_for(door.state, "rank 0 answers")
    deadline = time.monotonic() + STAGE_SECONDS
    while state.phase not in over:
        if time.monotonic() > deadline:
            raise NotInTimeError(
                f"not within {STAGE_SECONDS:.0f} s: {wanted.value}; it is {state.phase.value}: {state.message}"
            )
        try:
            state = door.state(state)
        except Unreachable:
            if wanted is GroupPhase.DRAINING:
                raise Passed("the drain was over") from None
            # A new epoch may have another rank 0.
            with contextlib.suppress(NotInTimeError):
                door = subject.door()
    if state.phase is not wanted:
        raise Passed(f"{wanted.value} was over: {state.phase.value}")
    return state.phase.value


def _benchmarking(subject: Subject) -> str:
    door = subject.door()

    def working() -> bool:
        state = door.state()
        if state.phase is not GroupPhase.READY or not subject.nodes:
            return False
        if state.measured:
            raise Passed("the benchmark was over")
        command = (sys.executable, "-S", "-c", BUSY, subject.deployment.name, RANK)
        return subject.line.run(subject.nodes[0], *command, seconds=ORDER_SECONDS).returncode == 0

    wait_for(working, "a benchmark runs")
    return "Ready, a rank works and no client asks"
