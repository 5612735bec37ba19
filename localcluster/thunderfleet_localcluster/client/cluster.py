"""Local clusters from Python.

``Cluster.start`` starts a cluster. It ends with the ``with`` block, and with this process for whatever reason that ends, unless
``detach`` is called. ``Cluster.attach`` finds a running cluster.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml
from thunderfleet_lib.net import tls

from thunderfleet_localcluster.client.addresses import check_addresses
from thunderfleet_localcluster.client.control import end_cluster, running, running_beside, send_command
from thunderfleet_localcluster.client.launch import (
    Event,
    Network,
    Supervisor,
    choose_network,
    end_supervisor,
    fleet_text,
    image_spec,
    kubelet_command,
    start_supervisor,
    wait_until_up,
)
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.fleet.spec import Fleet
from thunderfleet_localcluster.paths import DEFAULT_NAME, cluster_folder
from thunderfleet_localcluster.programs import find_programs
from thunderfleet_localcluster.supervisor.spec import Spec

UP_SECONDS = 300
COMMAND_SECONDS = 60
SHORT_LIVED = {"GOGC": "off", "GOMEMLIMIT": "256MiB"}
"""Environment of kubectl and helm, a quarter of whose processor time is the collection of garbage: only beyond this limit."""
OWN_MODELS = "disk/Users/Shared/models"
"""In the folder of a recorded Mac."""
ADMIN_KUBECONFIG = "/var/lib/thunderfleet/admin.kubeconfig"


@dataclass(frozen=True)
class MachineInfo:
    """A machine of a running cluster; ``bin`` in its folder holds the commands of a recorded Mac."""

    name: str
    kind: str
    address: str
    folder: Path
    log: Path
    cables: tuple[Mapping[str, Any], ...]

    @property
    def models(self) -> Path:
        """The chart's default folder of models on a recorded Mac that has folders of its own."""
        return self.folder / OWN_MODELS


class ClusterMachine(MachineInfo):
    """A machine, with operations on it."""

    cluster: "Cluster"

    def _do(self, action: str) -> None:
        self.cluster.command(do="machine", name=self.name, action=action)

    def kill_kubelet(self) -> None:
        """Send SIGKILL to the kubelet only; its containers keep running."""
        self._do("kill-kubelet")

    def stop_kubelet(self) -> None:
        """Send SIGTERM to the kubelet only."""
        self._do("stop-kubelet")

    def freeze_kubelet(self) -> None:
        """Send SIGSTOP to the kubelet only."""
        self._do("freeze-kubelet")

    def thaw_kubelet(self) -> None:
        """Send SIGCONT to the kubelet."""
        self._do("thaw-kubelet")

    def start_kubelet(self) -> None:
        """Start the kubelet again."""
        self._do("start-kubelet")

    def off(self) -> None:
        """Cut the power: every process of the machine is killed, its cables carry nothing."""
        self._do("off")

    def on(self) -> None:
        """Switch the machine on again; its kubelet starts with it."""
        self._do("on")

    def run(self, argv: Sequence[str], text: str = "", seconds: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, in its network, with its own commands first on PATH."""
        answer = self.cluster.command(
            do="run", name=self.name, argv=list(argv), input=text, seconds=seconds, wait=seconds + COMMAND_SECONDS
        )
        return subprocess.CompletedProcess(list(argv), answer["code"], answer["stdout"], answer["stderr"])


def _option(name: str, directory: Path | None) -> str:
    """The option of the command line that chooses this cluster; empty for the default."""
    if directory is not None:
        return f" --dir {directory}"
    return "" if name == DEFAULT_NAME else f" --name {name}"


class Cluster:
    """A running cluster."""

    def __init__(self, folder: ClusterFolder, state: Mapping[str, Any], supervisor: Supervisor | None = None) -> None:
        self.folder = folder
        self.state = state
        self._supervisor = supervisor
        self.start_seconds: float | None = None
        """Duration of ``start``."""

    # -- start and end -----------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        fleet: Fleet | Path | str | None = None,
        *,
        name: str = DEFAULT_NAME,
        directory: Path | None = None,
        network: Network = "auto",
        on_event: Callable[[Event], None] | None = None,
        seconds: float = UP_SECONDS,
        audit: bool = False,
        kubelet: Sequence[str] | None = None,
        join: bool = True,
        control_plane_mac: str | None = None,
    ) -> "Cluster":
        """Start a cluster and wait at most ``seconds`` until every Node is Ready. Raises LocalClusterError.

        ``fleet`` is a Fleet, the path of a fleet file, or its text; None is the default fleet. ``audit`` writes
        ``logs/audit.log``. ``kubelet`` is the command line of the kubelet; ``join=False`` starts machines without kubelets.
        ``control_plane_mac`` starts machines only: `thunderfleet init` can then install the control plane on this Mac, which
        ``server`` reaches. It needs namespaces.
        """
        began = time.monotonic()
        tell = on_event or (lambda event: None)
        folder = cluster_folder(name, directory)
        text, file = fleet_text(fleet)
        parsed = parse_fleet(text, file)
        mode, reason = choose_network(network)
        if running(folder):
            option = _option(name, directory)
            raise LocalClusterError(
                f"cluster {name} is already running in {folder.root}; stop it with `thunderfleet local down{option}`"
            )
        plan_layout(parsed, mode)
        if mode == "loopback":
            check_addresses(parsed)
        # The last step, because it may take minutes.
        assets = find_programs(tell)
        tell({"state": "network", "network": mode, "reason": reason})
        spec = Spec(
            name=name,
            mode=mode,
            reason=reason,
            assets=str(assets),
            fleet=text,
            fleet_file=file,
            image=image_spec(tell),
            kubelet=tuple(kubelet or kubelet_command()) if join and control_plane_mac is None else None,
            audit=audit,
            control_plane_mac=control_plane_mac,
        )
        supervisor = start_supervisor(folder, spec)
        try:
            state = wait_until_up(supervisor, folder, tell, began + seconds)
        except BaseException:
            end_supervisor(supervisor)
            raise
        cluster = cls(folder, state, supervisor)
        cluster.start_seconds = time.monotonic() - began
        return cluster

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME, directory: Path | None = None) -> "Cluster":
        """The running cluster ``name``. Raises LocalClusterError if it is not running."""
        folder = cluster_folder(name, directory)
        if not running(folder):
            start = f"no cluster is running in {folder.root}; start one with `thunderfleet local up{_option(name, directory)}`"
            others = [] if directory else running_beside(folder)
            raise LocalClusterError(f"{start}, or name a running one: --name {', --name '.join(others)}" if others else start)
        try:
            state = json.loads(folder.state.read_text())
        except FileNotFoundError as error:
            log = folder.log("supervisor")
            raise LocalClusterError(f"cluster {name} is starting or has just stopped; see {log}") from error
        return cls(folder, state)

    def detach(self) -> None:
        """Let the cluster run until ``down``, also after the end of this process."""
        if self._supervisor is not None and self._supervisor.stdin is not None:
            self._supervisor.stdin.write(b"detach\n")
            self._supervisor.stdin.flush()
            # The supervisor reads the word before the end of the pipe.
            self._supervisor.stdin.close()
            self._supervisor.returncode = 0
            self._supervisor = None

    def stop(self) -> None:
        """End the cluster; no process, port, interface or mount of it remains."""
        if self._supervisor is not None:
            end_supervisor(self._supervisor)
            self._supervisor = None
        else:
            end_cluster(self.folder)

    def wait(self) -> int:
        """Wait for the end of a cluster that this process started; returns the exit code of its supervisor."""
        return self._supervisor.wait() if self._supervisor else 0

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # -- places --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self.state["name"])

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig for this machine."""
        return Path(self.state["kubeconfig"])

    @property
    def server(self) -> str:
        """URL of the API server for this machine."""
        return str(self.state["server"])

    @property
    def proxy(self) -> str:
        """URL of an HTTP proxy from this machine to every address of the cluster. It holds the proxy's token."""
        return str(self.state["proxy"])

    @property
    def models(self) -> Path:
        """The folder of models that all machines can read."""
        return Path(self.state["models"])

    @property
    def logs(self) -> Path:
        return Path(self.state["logs"])

    @property
    def image(self) -> str:
        """Name of the image with Thunderfleet's programs."""
        return str(self.state["image"]["name"])

    @property
    def image_folder(self) -> Path:
        return Path(self.state["image"]["folder"])

    @property
    def network(self) -> str:
        """``namespaces`` or ``loopback``."""
        return str(self.state["network"])

    @property
    def pid(self) -> int:
        """Process ID of the supervisor."""
        return int(self.folder.lock.read_text())

    @property
    def machines(self) -> dict[str, ClusterMachine]:
        found = {}
        for item in self.state["machines"]:
            machine = ClusterMachine(
                item["name"], item["kind"], item["address"], Path(item["folder"]), Path(item["log"]), tuple(item["cables"])
            )
            object.__setattr__(machine, "cluster", self)
            found[machine.name] = machine
        return found

    # -- actions ---------------------------------------------------------------------------------------------

    def take_kubeconfig(self, mac: str) -> None:
        """Use the kubeconfig that `thunderfleet init` wrote on a Mac. Raises LocalClusterError if there is none."""
        read = self.machines[mac].run(["cat", ADMIN_KUBECONFIG])
        if read.returncode:
            raise LocalClusterError(f"{mac} has no control plane: {read.stderr.strip()}")
        config = yaml.safe_load(read.stdout)
        for path, server in ((self.folder.kubeconfig, self.server), (self.folder.inner_kubeconfig, self.state["innerServer"])):
            config["clusters"][0]["cluster"]["server"] = server
            tls.write_private(path, yaml.safe_dump(config, sort_keys=False).encode())

    def command(self, *, wait: float = COMMAND_SECONDS, **command: object) -> dict[str, Any]:
        """Send a command to the supervisor and return its answer. Raises LocalClusterError."""
        return send_command(self.folder, command, wait)

    def status(self) -> dict[str, Any]:
        """State of components, machines and Nodes."""
        return self.command(do="status")

    def token(self, node: str | None = None) -> str:
        """Create a bootstrap token, valid for an hour: for ``node`` only, also if that Node exists, or for any new Node."""
        return str(self.command(do="token", node=node)["token"])

    def component(self, name: str, action: Literal["on", "off", "freeze", "thaw"]) -> None:
        """Kill (off), start (on), stop (freeze) or continue (thaw) a program of the control plane, such as etcd."""
        self.command(do="component", name=name, action=action)

    def cable(
        self, action: str, end: str, rate_mbps: int | None = None, speed: str | None = None, to: str | None = None
    ) -> None:
        """Change the cable at ``end`` (machine:port).

        Actions: pull, plug, slow (both ends), move (the plug at ``end`` to the port ``to``), and cut (connections that the
        machine at ``end`` opens do not arrive; needs namespaces).
        """
        self.command(do="change", what="cable", action=action, end=end, rate=rate_mbps, speed=speed, to=to)
        if to is not None:
            self.state = json.loads(self.folder.state.read_text())

    def lan(self, action: Literal["pull", "plug"], machine: str) -> None:
        """Unplug a machine from the LAN, or plug it in; its Thunderbolt cables stay. Needs namespaces."""
        self.command(do="change", what="lan", action=action, name=machine)

    def lan_address(self, machine: str, address: str) -> None:
        """Give a Mac another address in the LAN, as a new DHCP lease does, or ``none``."""
        self.command(do="change", what="lan", action="address", name=machine, address=address)
        self.state = json.loads(self.folder.state.read_text())

    def jaccl(self, machine: str, points: Sequence[Mapping[str, object]]) -> None:
        """Make a Mac's recorded JACCL fail or wait at ``points`` (``recorded/python/recorded_jaccl.py``); []: nowhere."""
        self.command(do="change", what="jaccl", name=machine, points=list(points))

    def rdma(self, action: str, machine: str) -> None:
        """Turn a Mac's RDMA on or off, or make its stack hang."""
        self.command(do="change", what="rdma", action=action, name=machine)

    def damage(self, action: str, machine: str, command: str) -> None:
        """Make one command of a Mac fail (``actions.DAMAGES``), or repair it."""
        self.command(do="change", what="command", action=action, name=machine, command=command)

    def tool(self, name: Literal["kubectl", "helm"]) -> Path:
        """Path of kubectl or helm."""
        return Path(self.state["assets"]) / name

    def environment(self) -> dict[str, str]:
        """This process's environment with KUBECONFIG set, and kubectl and helm first on PATH."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.state['assets']}:{os.environ.get('PATH', os.defpath)}",
        }

    def kubectl(
        self, *arguments: str, text: str | None = None, seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with ``text`` as input. Raises LocalClusterError with its output if it fails and ``check`` is set."""
        return self._tool("kubectl", arguments, text, seconds, check)

    def helm(
        self, *arguments: str, text: str | None = None, seconds: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run helm, like ``kubectl``."""
        return self._tool("helm", arguments, text, seconds, check)

    def _tool(
        self, name: Literal["kubectl", "helm"], arguments: Sequence[str], text: str | None, seconds: float, check: bool
    ) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                [str(self.tool(name)), *arguments],
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                timeout=seconds,
                env={**self.environment(), **SHORT_LIVED},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LocalClusterError(f"{name} {' '.join(arguments)} did not finish within {seconds} s") from error
        if check and done.returncode != 0:
            raise LocalClusterError(f"{name} {' '.join(arguments)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done
