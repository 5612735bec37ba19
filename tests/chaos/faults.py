"""Injects faults into a running cluster and undoes them, without any help from the product."""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from thunderfleet_localcluster.errors import LocalClusterError

from tests.chaos import fleet
from tests.chaos.plan import Action, Fault, Target
from tests.support.line import SYSTEM, Line
from tests.support.waiting import until

ORDER_SECONDS = 20.0
UPDATE_SECONDS = 240
CLOCK_SECONDS = 3600
STOPPED_SECONDS, RUNNING_SECONDS = 0.4, 0.1
"""The rhythm of a slow program."""
SPARE_DESCRIPTORS = 2
LEASE_OFFSET = 60
"""A Mac that moves takes the address this far from its first one."""
SUPERVISOR, RANK, INTAKE = "thunderfleet-runner serve", "thunderfleet_runner.rank", "thunderfleet_runner.intake"
OPERATOR, AGENT = "thunderfleet-operator run", "thunderfleet-agent run"
COMPONENTS = {
    Target.API_SERVER: "kube-apiserver",
    Target.ETCD: "etcd",
    Target.SCHEDULER: "kube-scheduler",
    Target.CONTROLLER_MANAGER: "kube-controller-manager",
}
UPDATED = {Target.AGENT: "daemonset/thunderfleet-agent", Target.OPERATOR: "deployment/thunderfleet-operator"}

# Run on a machine: finds processes whose command contains a word, of pods with this prefix (empty: all pods); prints
# their IDs. A signal other than 0 is sent to them.
HUNT = """
import json, os, sys
name, needle, number, hit = sys.argv[1], sys.argv[2], int(sys.argv[3]), []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline").read().replace("\\0", " ")
        environment = open(f"/proc/{pid}/environ", errors="replace").read().split("\\0")
        mine = not name or any(entry.startswith(f"POD_NAME={name}") for entry in environment)
        if needle in command and mine and "thunderfleet_kubelet/shim" not in command and int(pid) != os.getpid():
            os.kill(int(pid), number)
            hit.append(int(pid))
    except OSError:
        continue
print(json.dumps(hit))
"""
KILL, STOP, CONT = 9, 19, 18

# Sets the limit of a process as its own user: root may not without CAP_SYS_RESOURCE, which containers rarely have.
_LIMIT = """
import json, os, resource, sys
def limit(pid, soft):
    with open(f"/proc/{pid}/status") as file:
        ids = {line.split()[0]: list(map(int, line.split()[1:4])) for line in file if line.startswith(("Uid:", "Gid:"))}
    child = os.fork()
    if not child:
        code = 1
        try:
            if os.getuid() != ids["Uid:"][0]:
                os.setgroups([])
                os.setresgid(*ids["Gid:"])
                os.setresuid(*ids["Uid:"])
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
            code = 0
        except ProcessLookupError:
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"cannot set the limit of process {pid}")
"""
# Run on a machine: leaves processes as many descriptors as they have and a few more; prints the limits before.
STARVE = f"""{_LIMIT}
before = {{}}
for pid in map(int, sys.argv[2:]):
    try:
        with open(f"/proc/{{pid}}/limits") as file:
            soft = next(int(line.split()[3]) for line in file if line.startswith("Max open files"))
        limit(pid, len(os.listdir(f"/proc/{{pid}}/fd")) + int(sys.argv[1]))
        before[pid] = soft
    except FileNotFoundError:
        # It has ended. Anything else would be a fault without effect.
        continue
print(json.dumps(before))
"""
FEED = f"""{_LIMIT}
for pid, soft in json.loads(sys.argv[1]).items():
    try:
        limit(int(pid), soft)
    except FileNotFoundError:
        continue
"""


@dataclass(frozen=True)
class Hit:
    """An injected fault. ``undo`` is None when there is nothing to undo. ``names``: what status may name as the cause."""

    what: str
    machine: str
    undo: Callable[[], None] | None = None
    names: tuple[str, ...] = ()


def hunt(line: Line, machine: str, name: str, needle: str, signal: int) -> list[int]:
    """Signals processes on a machine and returns their IDs there. ``name``: prefix of their pods' names."""
    done = line.run(machine, sys.executable, "-S", "-c", HUNT, name, needle, str(signal), seconds=ORDER_SECONDS)
    if done.returncode:
        raise LocalClusterError(f"{machine}: {done.stderr}")
    found: list[int] = json.loads(done.stdout)
    return found


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


@dataclass(frozen=True)
class Place:
    """Where a fault hits: a rank's Mac in a deployment, the Mac at the other end of a cable, the operator's leader."""

    line: Line
    deployment: str
    node: str
    neighbor: str
    leader: Leader

    @property
    def host(self) -> Mapping[Target, str]:
        """The machine of each program that is not of the control plane."""
        own = (Target.RANK, Target.SUPERVISOR, Target.INTAKE, Target.KUBELET, Target.AGENT, Target.MAC)
        return {**dict.fromkeys(own, self.node), Target.OPERATOR: self.leader.machine}

    def processes(self, target: Target) -> tuple[str, str]:
        """How ``hunt`` finds a program: the prefix of its pod's name, and a part of its command."""
        own = f"{self.deployment}-"
        return {
            Target.RANK: (own, RANK),
            Target.SUPERVISOR: (own, SUPERVISOR),
            Target.INTAKE: (own, INTAKE),
            Target.AGENT: ("", AGENT),
            Target.OPERATOR: (self.leader.pod, OPERATOR),
            Target.KUBELET: ("", "thunderfleet-kubelet run"),
        }[target]


def inject(fault: Fault, at: Place) -> Hit | None:
    """Injects one fault; None if there was no target."""
    match fault.action:
        case Action.KILL | Action.FREEZE:
            return _signal(fault, at)
        case Action.CUT:
            return _cut(fault.target, at)
        case Action.SLOW:
            return _slow(COMPONENTS[fault.target], at)
        case Action.STARVE:
            return _starve(fault.target, at)
        case Action.FILL:
            return _fill(fault.target, at)
        case Action.AHEAD | Action.BACK:
            return _set_clock(at.host[fault.target], CLOCK_SECONDS if fault.action is Action.AHEAD else -CLOCK_SECONDS, at)
        case Action.MOVE:
            return _move(at)
        case Action.LOSE:
            return _lose(fault.target, at)
        case Action.UPDATE:
            return _update(fault.target, at)


def _signal(fault: Fault, at: Place) -> Hit | None:
    kill, cluster = fault.action is Action.KILL, at.line.cluster
    if component := COMPONENTS.get(fault.target):
        first: Literal["off", "freeze"] = "off" if kill else "freeze"
        then: Literal["on", "thaw"] = "on" if kill else "thaw"
        cluster.component(component, first)
        return Hit(component, "", lambda: cluster.component(component, then))
    machine = at.host[fault.target]
    if fault.target is Target.KUBELET:
        kubelet = cluster.machines[machine]
        (kubelet.kill_kubelet if kill else kubelet.freeze_kubelet)()
        return Hit("its kubelet", machine, kubelet.start_kubelet if kill else kubelet.thaw_kubelet)
    name, needle = at.processes(fault.target)
    if not hunt(at.line, machine, name, needle, KILL if kill else STOP):
        return None
    if kill:
        return Hit(needle, machine)

    def thaw() -> None:
        hunt(at.line, machine, name, needle, CONT)

    return Hit(needle, machine, thaw)


def _cut(target: Target, at: Place) -> Hit:
    cluster = at.line.cluster
    if target is Target.CABLE:
        end = next(f"{at.node}:{cable['port']}" for cable in cluster.machines[at.node].cables if cable["peer"] == at.neighbor)
        cluster.cable("pull", end)
        return Hit(f"the cable at {end}", at.node, lambda: cluster.cable("plug", end), (at.node, at.neighbor))
    if target in (Target.KUBELET, Target.API_SERVER):
        machines = list(cluster.machines) if target is Target.API_SERVER else [at.node]
        for machine in machines:
            at.line.api_server(machine, "cut")

        def restore() -> None:
            for machine in machines:
                at.line.api_server(machine, "restore")

        return Hit("the way to the API server", machines[0], restore)
    machine = at.host[target]
    cluster.lan("pull", machine)
    return Hit("its LAN port", machine, lambda: cluster.lan("plug", machine), (machine,))


def _slow(component: str, at: Place) -> Hit:
    cluster, over = at.line.cluster, threading.Event()

    def limp() -> None:
        while not over.is_set():
            with contextlib.suppress(LocalClusterError):
                cluster.component(component, "freeze")
                over.wait(STOPPED_SECONDS)
                cluster.component(component, "thaw")
            over.wait(RUNNING_SECONDS)

    thread = threading.Thread(target=limp, daemon=True)
    thread.start()

    def undo() -> None:
        over.set()
        thread.join(ORDER_SECONDS)
        # Another fault may have ended it.
        with contextlib.suppress(LocalClusterError):
            cluster.component(component, "thaw")

    return Hit(component, "", undo)


def _starve(target: Target, at: Place) -> Hit | None:
    machine = at.host[target]
    found = hunt(at.line, machine, *at.processes(target), 0)
    if not found:
        return None
    python = (sys.executable, "-S", "-c")
    done = at.line.run(machine, *python, STARVE, str(SPARE_DESCRIPTORS), *map(str, found))
    if done.returncode:
        raise LocalClusterError(f"{machine}: {done.stderr}")
    return Hit(f"descriptors of its {target.value}", machine, lambda: _done(at.line.run(machine, *python, FEED, done.stdout)))


def _done(_: object) -> None:
    """For callbacks that return nothing."""


def _fill(target: Target, at: Place) -> Hit:
    cluster = at.line.cluster
    if target is Target.ETCD:
        fleet.fill_etcd(cluster)
        return Hit("etcd's disk", "", lambda: fleet.empty_etcd(cluster))
    machine = cluster.machines[at.node]
    fleet.fill_mac(machine)
    return Hit("its disk", at.node, lambda: fleet.empty_mac(machine), (at.node,))


def _set_clock(name: str, ahead: int, at: Place) -> Hit | None:
    machine = at.line.cluster.machines[name]
    if not fleet.set_clock(machine, ahead):
        return None
    return Hit("its clock", name, lambda: _done(fleet.set_clock(machine, 0)))


def _move(at: Place) -> Hit:
    network, _, host = at.line.cluster.machines[at.node].address.rpartition(".")
    number = int(host)
    number += -LEASE_OFFSET if number > LEASE_OFFSET else LEASE_OFFSET
    at.line.cluster.lan_address(at.node, f"{network}.{number}")
    return Hit("its LAN address", at.node)


def _lose(target: Target, at: Place) -> Hit:
    if target is Target.KUBELET:
        kubelet = at.line.cluster.machines[at.node]
        kubelet.kill_kubelet()
        return Hit("its kubelet", at.node, kubelet.start_kubelet, (at.node,))
    return _cut(target, at)


def _update(target: Target, at: Place) -> Hit:
    line = at.line
    if target is not Target.KUBELET:
        what = UPDATED[target]
        line.kubectl("-n", SYSTEM, "rollout", "restart", what)
        wait = ("-n", SYSTEM, "rollout", "status", what, f"--timeout={UPDATE_SECONDS}s")
        return Hit(what, "", lambda: _done(line.cluster.kubectl(*wait, seconds=UPDATE_SECONDS + 10)))

    def every_kubelet() -> None:
        for name in line.macs:
            line.cluster.machines[name].stop_kubelet()
            line.cluster.machines[name].start_kubelet()
            until(line.ready_machines, f"{name} is Ready after its update", UPDATE_SECONDS, retry_on=(LocalClusterError,))

    return Hit("every kubelet", "", every_kubelet)
