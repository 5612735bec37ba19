"""Clusters from Python: for the command line, the demo and the tests.

``Cluster.start`` brings one up and returns when every Node is Ready; leaving the ``with`` block, or the end of this process
in any way, takes it down. ``detach`` lets it live on. ``Cluster.attach`` finds one that runs.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from thunderfleet_localcluster.controlplane.assets import find_assets
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import DEFAULT_FLEET, Fleet, parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.image import IMAGE, Image, make_image
from thunderfleet_localcluster.network.namespaces import can_isolate
from thunderfleet_localcluster.paths import DEFAULT_NAME, ClusterFolder, cache_folder

UP_SECONDS = 300
DOWN_SECONDS = 30
ORDER_SECONDS = 60

Event = dict[str, Any]
Network = Literal["auto", "namespaces", "loopback"]


@dataclass(frozen=True)
class MachineInfo:
    """A machine of a running cluster: where it is, and its folder (``bin`` holds a recorded Mac's commands)."""

    name: str
    kind: str
    address: str
    folder: Path
    log: Path
    cables: tuple[Mapping[str, Any], ...]


class Machine(MachineInfo):
    """A machine, and the orders that one can give for it."""

    cluster: "Cluster"

    def _do(self, action: str) -> None:
        self.cluster.order(do="machine", name=self.name, action=action)

    def kill_kubelet(self) -> None:
        """SIGKILL to the kubelet alone; what it started goes on."""
        self._do("kill-kubelet")

    def stop_kubelet(self) -> None:
        """SIGTERM to the kubelet alone."""
        self._do("stop-kubelet")

    def freeze_kubelet(self) -> None:
        """SIGSTOP to the kubelet alone."""
        self._do("freeze-kubelet")

    def thaw_kubelet(self) -> None:
        """SIGCONT to the kubelet."""
        self._do("thaw-kubelet")

    def start_kubelet(self) -> None:
        """Starts the kubelet again."""
        self._do("start-kubelet")

    def off(self) -> None:
        """Pulls the power plug: every process of the machine is killed, its cables are dead."""
        self._do("off")

    def on(self) -> None:
        """Switches the machine on again; its kubelet starts with it."""
        self._do("on")

    def run(self, argv: Sequence[str], text: str = "", seconds: float = 30) -> subprocess.CompletedProcess[str]:
        """Runs a command on the machine, in its network, with its commands first on PATH."""
        answer = self.cluster.order(
            do="run", name=self.name, argv=list(argv), input=text, seconds=seconds, wait=seconds + ORDER_SECONDS
        )
        return subprocess.CompletedProcess(list(argv), answer["code"], answer["stdout"], answer["stderr"])


class Cluster:
    """A cluster that runs."""

    def __init__(self, folder: ClusterFolder, state: Mapping[str, Any], keeper: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        self.state = state
        self._keeper = keeper
        self.began_seconds: float | None = None
        """How long ``start`` took, in seconds."""

    # -- begin and end -----------------------------------------------------------------------------------------------------

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
    ) -> "Cluster":
        """Brings a cluster up: ``fleet`` is a Fleet, the path of a fleet file, or its text; None is the default fleet. Waits
        at most ``seconds`` for every Node to be Ready. ``audit`` writes ``<folder>/logs/audit.log``. ``kubelet`` is the
        command line of the kubelet; with ``join=False`` machines start without one. Raises LocalClusterError.
        """
        began = time.monotonic()
        tell = on_event or (lambda event: None)
        folder = ClusterFolder.of(name, directory)
        text, file = _fleet_text(fleet)
        parsed = parse_fleet(text, file)
        assets = find_assets(tell)
        mode, reason = choose_network(network)
        if running(folder):
            raise LocalClusterError(f"cluster {name} runs already in {folder.root}: `thunderfleet down` ends it")
        plan_layout(parsed, "loopback" if mode == "loopback" else "namespaces")
        tell({"state": "network", "network": mode, "reason": reason})
        image = _image(tell)
        _make_folder(folder)
        spec = {
            "name": name,
            "mode": mode,
            "reason": reason,
            "assets": str(assets),
            "fleet": text,
            "fleetFile": file,
            "imageName": IMAGE,
            "imageFolder": str(image.folder),
            "imageLock": str(image.lock),
            "kubelet": list(kubelet or kubelet_command()) if join else None,
            "audit": audit,
            "defaultUser": {"uid": 65534, "gid": 65534} if os.geteuid() == 0 else None,
        }
        file_spec = folder.root / "up.json"
        file_spec.write_text(json.dumps(spec, indent=2))
        keeper = _spawn_keeper(folder, file_spec)
        try:
            state = _await_ready(keeper, folder, tell, began + seconds)
        except BaseException:
            _end(keeper)
            raise
        cluster = cls(folder, state, keeper)
        cluster.began_seconds = time.monotonic() - began
        return cluster

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME, directory: Path | None = None) -> "Cluster":
        """The cluster ``name`` that runs already. Raises LocalClusterError when there is none."""
        folder = ClusterFolder.of(name, directory)
        if not running(folder):
            raise LocalClusterError(f"no cluster runs in {folder.root}: `thunderfleet up` starts one")
        try:
            state = json.loads(folder.state.read_text())
        except FileNotFoundError as error:
            raise LocalClusterError(
                f"cluster {name} is still starting, or has just ended; see {folder.log('keeper')}"
            ) from error
        return cls(folder, state)

    def detach(self) -> None:
        """From now on the cluster lives until ``down``, whatever happens to this process."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.write(b"detach\n")
            self._keeper.stdin.flush()
            # The lifeline stays open until the keeper has read the word: its end comes after it in the same pipe.
            self._keeper.stdin.close()
            self._keeper.returncode = 0
            self._keeper = None

    def stop(self) -> None:
        """Takes the cluster down; afterwards no process, port, interface or mount of it is left."""
        if self._keeper is not None:
            _end(self._keeper)
            self._keeper = None
        else:
            end_cluster(self.folder)

    def wait(self) -> int:
        """Waits for the end of a cluster that this process started; the keeper's exit code."""
        return self._keeper.wait() if self._keeper else 0

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # -- where things are --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self.state["name"])

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; works from this machine."""
        return Path(self.state["kubeconfig"])

    @property
    def server(self) -> str:
        """Address of the API server for this machine."""
        return str(self.state["server"])

    @property
    def proxy(self) -> str:
        """An HTTP proxy (``http://127.0.0.1:port``) by which this machine reaches every address of the cluster."""
        return str(self.state["proxy"])

    @property
    def models(self) -> Path:
        """The folder of weights that all machines see."""
        return Path(self.state["models"])

    @property
    def logs(self) -> Path:
        return Path(self.state["logs"])

    @property
    def image(self) -> str:
        """Name of the image with all of our programs."""
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
        """Process id of the keeper: the parent of everything."""
        return int(self.folder.lock.read_text())

    @property
    def machines(self) -> dict[str, Machine]:
        found = {}
        for item in self.state["machines"]:
            machine = Machine(
                item["name"], item["kind"], item["address"], Path(item["folder"]), Path(item["log"]), tuple(item["cables"])
            )
            object.__setattr__(machine, "cluster", self)
            found[machine.name] = machine
        return found

    # -- what one does with it ---------------------------------------------------------------------------------------------

    def order(self, *, wait: float = ORDER_SECONDS, **order: object) -> dict[str, Any]:
        """Gives the keeper an order and returns its answer. Raises LocalClusterError."""
        return send_order(self.folder, dict(order), wait)

    def status(self) -> dict[str, Any]:
        """Components, machines and their Nodes."""
        return self.order(do="status")

    def token(self) -> str:
        """A new bootstrap token, valid for an hour."""
        return str(self.order(do="token")["token"])

    def component(self, name: str, action: Literal["on", "off", "freeze", "thaw"]) -> None:
        """Kills (SIGKILL), starts, stops (SIGSTOP) or continues a program of the control plane: etcd, kube-apiserver, …"""
        self.order(do="component", name=name, action=action)

    def cable(
        self, action: str, end: str, rate_mbps: int | None = None, speed: str | None = None, to: str | None = None
    ) -> None:
        """Pulls, plugs or slows the cable at ``end`` (machine:port), at both of its ends; moves the plug at ``end`` to the port
        ``to``; or cuts it one way: connections that begin at ``end`` no longer arrive (namespaces only).
        """
        self.order(do="change", what="cable", action=action, end=end, rate=rate_mbps, speed=speed, to=to)
        if to is not None:
            self.state = json.loads(self.folder.state.read_text())

    def lan(self, action: Literal["pull", "plug"], machine: str) -> None:
        """Unplugs a machine from the LAN, or plugs it in again; its Thunderbolt cables stay. Namespaces only."""
        self.order(do="change", what="lan", action=action, name=machine)

    def jaccl(self, machine: str, points: Sequence[Mapping[str, object]]) -> None:
        """Tells a Mac's recorded JACCL where to fail or to be slow (``recorded/python/recorded_jaccl.py``); [] : nowhere."""
        self.order(do="change", what="jaccl", name=machine, points=list(points))

    def rdma(self, action: str, machine: str) -> None:
        """Switches a Mac's RDMA on or off, or lets its stack hang."""
        self.order(do="change", what="rdma", action=action, name=machine)

    def damage(self, action: str, machine: str, command: str) -> None:
        """Damages one command of a Mac (``live.DAMAGES``), or mends it."""
        self.order(do="change", what="command", action=action, name=machine, command=command)

    def tool(self, name: Literal["kubectl", "helm"]) -> Path:
        """Path of kubectl or helm of the cluster's version."""
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
        """Runs kubectl with ``text`` as its input. Raises LocalClusterError with what it said when it fails (and ``check``)."""
        return self._tool("kubectl", arguments, text, seconds, check)

    def helm(
        self, *arguments: str, text: str | None = None, seconds: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs helm, like ``kubectl``."""
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
                env=self.environment(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LocalClusterError(f"{name} {' '.join(arguments)} did not end within {seconds} s") from error
        if check and done.returncode != 0:
            raise LocalClusterError(f"{name} {' '.join(arguments)} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done


def kubelet_command() -> list[str]:
    """The kubelet's command line: the installed command, else the same entry point through this Python."""
    installed = Path(sys.executable).parent / "thunderfleet-kubelet"
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "import sys; from thunderfleet_kubelet.cli import main; sys.exit(main())"]


def choose_network(network: Network) -> tuple[str, str]:
    """The mode to use and why. Raises LocalClusterError when namespaces are wanted and cannot be had."""
    if network == "loopback":
        return "loopback", "asked for"
    problem = can_isolate()
    if problem is None:
        return "namespaces", ""
    if network == "namespaces":
        raise LocalClusterError(f"no namespaces: {problem}")
    return "loopback", problem


def running(folder: ClusterFolder) -> bool:
    """Whether a keeper lives in ``folder``."""
    try:
        with folder.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def end_cluster(folder: ClusterFolder, seconds: float = DOWN_SECONDS) -> bool:
    """Ends the cluster in ``folder``, by force if it does not go by itself; False when none ran. Raises LocalClusterError."""
    if not running(folder):
        return False
    with contextlib.suppress(LocalClusterError):
        send_order(folder, {"do": "down"}, 5)
    pid = int(folder.lock.read_text())
    deadline = time.monotonic() + seconds
    for number, until in ((None, deadline - seconds / 2), (signal.SIGTERM, deadline - seconds / 4), (signal.SIGKILL, deadline)):
        if number is not None and running(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while running(folder) and time.monotonic() < until:
            time.sleep(0.02)
    if running(folder):
        raise LocalClusterError(f"the cluster in {folder.root} did not end within {seconds} s (keeper: process {pid})")
    return True


def remove(folder: ClusterFolder, everything: bool = False) -> None:
    """Removes a cluster's data from disk: all but logs and models, or those too with ``everything``."""
    if everything:
        shutil.rmtree(folder.root, ignore_errors=True)
        return
    for path in (folder.control_plane, folder.machines):
        shutil.rmtree(path, ignore_errors=True)
    for file in (folder.state, folder.kubeconfig, folder.socket, folder.lock, folder.root / "up.json"):
        file.unlink(missing_ok=True)
    for path in (folder.models, folder.logs, folder.root):
        with contextlib.suppress(OSError):
            path.rmdir()


def send_order(folder: ClusterFolder, order: Mapping[str, object], seconds: float) -> dict[str, Any]:
    """One order to the keeper in ``folder``, and its answer. Raises LocalClusterError."""
    try:
        with _connected(folder) as channel:
            channel.settimeout(seconds)
            channel.sendall(json.dumps(order).encode() + b"\n")
            answer = b""
            while chunk := channel.recv(65536):
                answer += chunk
    except TimeoutError as error:
        raise LocalClusterError(f"the keeper in {folder.root} did not answer {order.get('do')!r} within {seconds} s") from error
    except OSError as error:
        raise LocalClusterError(f"cannot reach the keeper in {folder.root}: {error}") from error
    if not answer:
        raise LocalClusterError(f"the keeper in {folder.root} went away; see {folder.log('keeper')}")
    data: dict[str, Any] = json.loads(answer)
    if "error" in data:
        raise LocalClusterError(str(data["error"]), usage=bool(data.get("usage")))
    return data


@contextlib.contextmanager
def _connected(folder: ClusterFolder) -> Iterator[socket.socket]:
    """A connection to the keeper's socket. Paths of sockets hold 100 bytes: Linux reaches it by its folder's descriptor."""
    with socket.socket(socket.AF_UNIX) as channel:
        if sys.platform.startswith("linux"):
            descriptor = os.open(folder.root, os.O_RDONLY)
            try:
                channel.connect(f"/proc/self/fd/{descriptor}/{folder.socket.name}")
            finally:
                os.close(descriptor)
        else:
            channel.connect(str(folder.socket))
        yield channel


def _fleet_text(fleet: Fleet | Path | str | None) -> tuple[str, str]:
    if fleet is None:
        return DEFAULT_FLEET, "the default fleet"
    if isinstance(fleet, Fleet):
        return json.dumps(fleet.model_dump(mode="json", by_alias=True, exclude_defaults=True)), "the fleet"
    if isinstance(fleet, str):
        return fleet, "the fleet"
    try:
        return fleet.read_text(encoding="utf-8"), str(fleet)
    except (OSError, UnicodeDecodeError) as error:
        raise LocalClusterError(f"{fleet}: cannot be read: {error}", usage=True) from error


def _image(tell: Callable[[Event], None]) -> Image:
    title = f"image {IMAGE}"
    began = time.monotonic()
    tell({"step": title, "state": "start"})
    image = make_image(cache_folder() / "images")
    tell({"step": title, "state": "done", "seconds": time.monotonic() - began})
    return image


def _make_folder(folder: ClusterFolder) -> None:
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.root.chmod(0o755)
        folder.logs.mkdir(exist_ok=True)
    except OSError as error:
        raise LocalClusterError(f"cannot make the cluster's folder {folder.root}: {error.strerror}", usage=True) from error


def _spawn_keeper(folder: ClusterFolder, spec: Path) -> subprocess.Popen[bytes]:
    with folder.log("keeper").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "thunderfleet_localcluster.supervisor", str(spec), "--folder", str(folder.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _await_ready(
    keeper: subprocess.Popen[bytes], folder: ClusterFolder, tell: Callable[[Event], None], deadline: float
) -> dict[str, Any]:
    assert keeper.stdout is not None
    buffer = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([keeper.stdout], [], [], left)[0]:
            raise LocalClusterError(f"the cluster was not up in time; see {folder.logs}")
        chunk = os.read(keeper.stdout.fileno(), 65536)
        if not chunk:
            raise LocalClusterError(f"the keeper ended before the cluster was up; see {folder.log('keeper')}")
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            event: Event = json.loads(line)
            if event.get("state") == "ready":
                state: dict[str, Any] = event["cluster"]
                return state
            if event.get("state") == "failed":
                raise LocalClusterError(str(event["error"]))
            tell(event)


def _end(keeper: subprocess.Popen[bytes]) -> None:
    """Lets go of the lifeline and waits for the keeper's end."""
    if keeper.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
    try:
        keeper.wait(DOWN_SECONDS)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait(10)
    finally:
        if keeper.stdout is not None:
            keeper.stdout.close()
