"""All machines of the cluster: their files, their power, their network, and the faults that apply to them."""

import asyncio
import contextlib
import zlib
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import yaml

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.fault_state import FaultState
from thunderfleet_localcluster.fleet.layout import KUBELET_PORT, Layout, MachineLayout
from thunderfleet_localcluster.fleet.network_settings import RefusedError, carry_out
from thunderfleet_localcluster.fleet.own_settings import hardware_ports, initial
from thunderfleet_localcluster.machines.children import Children
from thunderfleet_localcluster.machines.machine import MachineProcess, Ran
from thunderfleet_localcluster.network.namespaces import ip_batch, program
from thunderfleet_localcluster.network.plan import NetworkPlan, Tc, changed_settings, links_of, plug_in
from thunderfleet_localcluster.recorded import jaccl
from thunderfleet_localcluster.recorded.folder import write_machine
from thunderfleet_localcluster.supervisor.changes import Change, Situation
from thunderfleet_localcluster.supervisor.spec import Spec
from thunderfleet_localcluster.supervisor.state import MachineStatus

USERS = 1000
"""The users of one machine's pods."""
EVICTION = {
    "nodefs.available": "1Gi",
    "nodefs.inodesFree": "1%",
    "imagefs.available": "0%",
    "imagefs.inodesFree": "0%",
}
FIRST_USER, CLUSTERS, CLUSTER_USERS = 1_000_000_000, 800, 1_000_000


def first_user(cluster: str, index: int) -> int:
    """The first user of the pods of a machine. Two clusters (folders) have the same ones in one of ``CLUSTERS`` cases."""
    return FIRST_USER + zlib.crc32(cluster.encode()) % CLUSTERS * CLUSTER_USERS + index * USERS


class MachinePool:
    """The machines of one cluster."""

    def __init__(self, folder: ClusterFolder, spec: Spec, plan: Layout, children: Children) -> None:
        self.folder, self.spec, self.plan, self.children = folder, spec, plan, children
        self.faults = FaultState()
        self.machines: dict[str, MachineProcess] = {}
        self._settings_lock = asyncio.Lock()

    def write_files(self) -> None:
        """Write the kubelet's configuration of every machine, and the commands of every Mac."""
        for index, machine in enumerate(self.plan.machines):
            home = self.folder.machine(machine.name)
            home.mkdir(parents=True, exist_ok=True)
            (home / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_config(index, machine), sort_keys=False))
        self._write_commands()

    def _kubelet_config(self, index: int, machine: MachineLayout) -> dict[str, Any]:
        home = self.folder.machine(machine.name)
        config: dict[str, Any] = {
            "nodeName": machine.name,
            "port": KUBELET_PORT,
            # All machines of all clusters share this machine's users, and in loopback mode its processes too.
            "podUsers": {"first": first_user(str(self.folder.root), index), "count": USERS},
            # All machines share the disk of this one. A developer's disk is often nearly full, and the images are not pulled.
            "evictionHard": EVICTION,
            # Kubelets run from the user's own installation, which other users often cannot read; pods run from a copy.
            "images": {self.spec.image.name: self.spec.image.folder},
        }
        if machine.machine.kind != "mac":
            # The machine has no default route. The commands of a Mac report its address, which may change.
            config["addresses"] = [str(machine.lan.ip)]
            # If this machine is a Mac, the kubelet would find its commands.
            config["operatingSystem"] = "linux"
            if machine.name == self._watches_certificates():
                config["controlPlaneCertificates"] = str(self.folder.control_plane / "pki")
        if machine.machine.kind == "mac":
            # The fleet file determines which ports are in a bridge.
            config["thunderboltPorts"] = "Unmanaged"
            config["path"] = [str(home / "bin")]
            config["pythonPath"] = [str(jaccl.python_folder(home / "bin"))]
        return config

    def _watches_certificates(self) -> str | None:
        """The machine whose kubelet exports when the certificates of the control plane expire: the first that is no Mac.

        None if the control plane is on a Mac, whose own kubelet does so.
        """
        if self.spec.control_plane_mac is not None:
            return None
        return next((machine.name for machine in self.plan.machines if machine.machine.kind != "mac"), None)

    def _write_commands(self) -> None:
        now = self.faults.layout(self.plan)
        for machine in now.machines:
            if machine.machine.kind == "mac":
                write_machine(now, machine, self.folder.machine(machine.name) / "bin", self.faults.damaged(machine.name))

    async def switch_on_all(self) -> None:
        """Create and start every machine and connect it to the network."""
        for layout in self.plan.machines:
            binaries = self.folder.machine(layout.name) / "bin" if layout.machine.kind == "mac" else None
            log = self.folder.log(f"kubelet-{layout.name}")
            machine = self.machines[layout.name] = MachineProcess(layout, self.plan.mode, self.children, log, binaries)
            if binaries is not None:
                machine.change_network = partial(self.change_settings, layout.name)
        await asyncio.gather(*(machine.switch_on() for machine in self.machines.values()))
        await self._connect(list(self.machines))

    async def switch_off(self, machine: MachineProcess) -> None:
        """Cut the power of a machine: its processes are killed, its cables carry nothing."""
        await machine.switch_off()
        self.faults = self.faults.with_power(machine.name, False)
        self._write_commands()
        await self._disconnect(machine.name)

    async def switch_on(self, machine: MachineProcess) -> None:
        """Start a machine again. Raises LocalClusterError if it is on."""
        if machine.on:
            raise LocalClusterError(f"{machine.name} is already on")
        self.faults = self.faults.with_power(machine.name, True)
        self._write_commands()
        await machine.switch_on()
        await self._connect([machine.name])

    async def _connect(self, started: Sequence[str]) -> None:
        if self.plan.mode == "namespaces":
            await self._configure(plug_in(self.plan, self.faults, self._pids(), started))

    async def _disconnect(self, name: str) -> None:
        """Removes the links of a machine that is off.

        The kernel removes them with the machine's namespace, but not before the last connection in it has timed out.
        """
        if self.plan.mode != "namespaces":
            return
        port, others = links_of(self.plan, self.faults, name)
        with contextlib.suppress(LocalClusterError):
            ip_batch(f"link del {port}\n")
        for other, interface in others:
            if self.machines[other].on:
                await self._run(other, [program("ip") or "ip", "link", "del", interface], optional=True)

    def _pids(self) -> dict[str, int]:
        return {name: machine.pid for name, machine in self.machines.items() if machine.on}

    @property
    def situation(self) -> Situation:
        """The state before a change."""
        return Situation(self.plan, self.faults, self._pids())

    async def apply(self, change: Change) -> None:
        """Execute a change. Raises LocalClusterError if a command fails."""
        if change.jaccl is not None:
            mac, points = change.jaccl
            jaccl.write_control(points, jaccl.python_folder(self.folder.machine(mac) / "bin"))
            return
        self.faults = change.faults
        self._write_commands()
        for plan in change.network:
            await self._configure(plan)

    async def change_settings(self, name: str, argv: Sequence[str]) -> Ran:
        """Execute a command on a Mac that changes its network settings. Returns its output."""
        async with self._settings_lock:
            before = self.faults.layout(self.plan).machine(name)
            try:
                settings = carry_out(before.settings or initial(self.plan.machine(name)), hardware_ports(before), argv)
            except RefusedError as error:
                return Ran(error.code, str(error), "")
            self.faults = self.faults.with_settings(name, settings)
            self._write_commands()
            after = self.faults.layout(self.plan).machine(name)
            await self._configure(NetworkPlan("", {name: changed_settings(before, after)}, ()))
        return Ran(0, "", "")

    async def _configure(self, plan: NetworkPlan) -> None:
        if plan.host:
            ip_batch(plan.host)
        calls: dict[str, list[Tc]] = defaultdict(list)
        for call in plan.tc:
            calls[call.machine].append(call)
        names = {**plan.inside, **calls}
        await asyncio.gather(*(self._configure_inside(name, plan.inside.get(name, ""), calls[name]) for name in names))

    async def _configure_inside(self, name: str, batch: str, calls: Sequence[Tc]) -> None:
        if batch:
            await self._run(name, [program("ip") or "ip", "-batch", "-"], batch)
        for call in calls:
            await self._run(name, [program("tc") or "tc", *call.arguments], optional=call.optional)

    async def _run(self, name: str, argv: Sequence[str], text: str = "", optional: bool = False) -> None:
        ran = await self.machines[name].run(argv, text)
        if ran.code and not optional:
            raise LocalClusterError(f"{name}: {' '.join(argv)}: {ran.stderr.strip()}")

    def named(self, name: str) -> MachineProcess:
        """The machine with this name. Raises LocalClusterError that lists all machines."""
        if name not in self.machines:
            raise LocalClusterError(f"unknown machine {name!r}; machines: {', '.join(self.machines)}", usage=True)
        return self.machines[name]

    def status(self) -> list[MachineStatus]:
        """Every machine's power and kubelet."""
        return [
            MachineStatus(
                machine.name,
                machine.on,
                machine.pid if machine.on else None,
                machine.kubelet_pid,
                machine.kubelet_end,
            )
            for machine in self.machines.values()
        ]
