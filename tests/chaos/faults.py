"""Injects faults into a running cluster and undoes them, without any help from the product."""

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from thunderfleet_localcluster.errors import LocalClusterError

from tests.chaos.plan import Action, Step, Target
from tests.support.line import SYSTEM, Line

ORDER_SECONDS = 20.0
SUPERVISOR, RANK, OPERATOR = "thunderfleet-runner serve", "thunderfleet_runner.rank", "thunderfleet-operator run"

# Run on a machine: signals the processes of a deployment's pods whose command contains a word; prints their number.
HUNT = """
import os, sys
name, needle, number, hit = sys.argv[1], sys.argv[2], int(sys.argv[3]), []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline").read().replace("\\0", " ")
        environment = open(f"/proc/{pid}/environ", errors="replace").read().split("\\0")
        if needle in command and any(entry.startswith(f"POD_NAME={name}") for entry in environment) and int(pid) != os.getpid():
            os.kill(int(pid), number)
            hit.append(pid)
    except OSError:
        continue
print(len(hit))
"""
KILL, STOP, CONT = 9, 19, 18


@dataclass(frozen=True)
class Hit:
    """An injected fault. ``undo`` is None when there is nothing to undo."""

    what: str
    machine: str
    undo: Callable[[], None] | None = None


def hunt(line: Line, machine: str, name: str, needle: str, signal: int) -> int:
    """Signals processes on a machine and returns their number. ``name``: prefix of their pods' names."""
    done = line.run(machine, sys.executable, "-S", "-c", HUNT, name, needle, str(signal), seconds=ORDER_SECONDS)
    if done.returncode:
        raise LocalClusterError(f"{machine}: {done.stderr}")
    return int(json.loads(done.stdout))


@dataclass(frozen=True)
class Leader:
    """The leader among the operator's replicas."""

    pod: str
    machine: str

    @classmethod
    def find(cls, line: Line) -> "Leader":
        holder = str(line.json("get", "lease", "thunderfleet-operator", "-n", SYSTEM)["spec"]["holderIdentity"])
        for pod in line.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator"):
            if holder.startswith(pod["metadata"]["name"]):
                return cls(pod["metadata"]["name"], pod["spec"]["nodeName"])
        raise LocalClusterError(f"no operator pod is named like the holder of the lease, {holder}")


def inject(line: Line, step: Step, name: str, node: str, neighbour: str, leader: Leader) -> Hit | None:
    """Carries out the step on the rank on ``node`` of the deployment ``name``; None if there was no target.

    ``neighbour``: Mac at the other end of a cable that is cut. ``leader`` was looked up before, to save time.
    """
    cluster, machine = line.cluster, line.cluster.machines[node]
    action, target = step.fault.action, step.fault.target
    match target:
        case Target.RANK | Target.SUPERVISOR:
            needle = RANK if target is Target.RANK else SUPERVISOR
            return signalled(line, node, f"{name}-", needle, action)
        case Target.OPERATOR if action is not Action.CUT:
            return signalled(line, leader.machine, leader.pod, OPERATOR, action)
        case Target.KUBELET if action is Action.KILL:
            machine.kill_kubelet()
            return Hit("its kubelet", node, machine.start_kubelet)
        case Target.KUBELET:
            machine.freeze_kubelet()
            return Hit("its kubelet", node, machine.thaw_kubelet)
        case Target.API_SERVER:
            first, then = ("off", "on") if action is Action.KILL else ("freeze", "thaw")
            cluster.component("kube-apiserver", first)  # type: ignore[arg-type]
            return Hit("the API server", "", lambda: cluster.component("kube-apiserver", then))  # type: ignore[arg-type]
        case Target.MAC | Target.OPERATOR:
            cut = node if target is Target.MAC else leader.machine
            cluster.lan("pull", cut)
            return Hit("its LAN port", cut, lambda: cluster.lan("plug", cut))
        case Target.CABLE:
            end = next(f"{node}:{cable['port']}" for cable in machine.cables if cable["peer"] == neighbour)
            cluster.cable("pull", end)
            return Hit(f"the cable at {end}", node, lambda: cluster.cable("plug", end))
    raise ValueError(f"no such fault: {step.fault}")


def signalled(line: Line, machine: str, name: str, needle: str, action: Action) -> Hit | None:
    """Sends SIGKILL, or SIGSTOP, which SIGCONT undoes."""
    if not hunt(line, machine, name, needle, KILL if action is Action.KILL else STOP):
        return None
    if action is Action.KILL:
        return Hit(needle, machine)

    def undo() -> None:
        hunt(line, machine, name, needle, CONT)

    return Hit(needle, machine, undo)


def mend(line: Line) -> None:
    """Repairs everything that an interrupted run may have left broken."""
    cluster = line.cluster
    with contextlib.suppress(LocalClusterError):
        cluster.component("kube-apiserver", "thaw")
    with contextlib.suppress(LocalClusterError):
        cluster.component("kube-apiserver", "on")
    running = {item["name"]: item["kubelet"] for item in cluster.status()["machines"]}
    for name, machine in cluster.machines.items():
        cluster.lan("plug", name)
        hunt(line, name, "", "thunderfleet", CONT)
        if running[name]:
            machine.thaw_kubelet()
        else:
            machine.start_kubelet()
        if machine.kind == "mac":
            cluster.jaccl(name, [])
        for cable in machine.cables:
            cluster.cable("plug", f"{name}:{cable['port']}")
