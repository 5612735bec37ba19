"""Models that the Macs of a line fetch: a hub in their network, ModelCaches, and what crosses cables and networks."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.support.line import CHART, INSTALL_SECONDS, SYSTEM, Json, Line
from tests.support.waiting import WAIT_SECONDS, until

ROOT = Path(__file__).parents[3]
HUB_MACHINE = "linux-1"
HUB_PORT = 18080
AGENT_METRICS_PORT = 9441


def configure(line: Line, file: Path, values: Json) -> None:
    """Upgrades the chart with these values, which are written to ``file``."""
    file.write_text(yaml.safe_dump(values))
    line.cluster.helm(
        *("upgrade", "thunderfleet", str(CHART), "--namespace", SYSTEM, "--reuse-values", "--wait"),
        *("--values", str(file), "--timeout", f"{INSTALL_SECONDS}s"),
        seconds=INSTALL_SECONDS + 30,
    )


def start_server(line: Line, name: str, command: list[str], seconds: float = WAIT_SECONDS) -> None:
    """Starts a server of this repository on the hub's machine, and waits until it has written ``ready`` to its log."""
    machine = line.cluster.machines[HUB_MACHINE]
    folder = machine.folder / "hub"
    script = f"cd {shlex.quote(str(ROOT))} && {shlex.join(command)} >{folder}/{name}-log 2>&1 & echo $! >{folder}/{name}-pid"
    log = folder / f"{name}-log"
    # The shell may return before its child has made the file.
    log.touch()
    machine.run(["sh", "-c", script])
    until(lambda: "ready" in log.read_text(), f"{name} serves", seconds, describe=log.read_text)


def start_hub(line: Line, models: Mapping[str, str], name: str = "hub", seconds: float = WAIT_SECONDS) -> str:
    """Starts a hub. Returns its URL.

    ``models``: by repository, the folder below that of the hub, followed by ``=TOKEN`` if it is gated.
    """
    machine = line.cluster.machines[HUB_MACHINE]
    served = [f"{repository}={machine.folder / 'hub' / where}" for repository, where in models.items()]
    command = [sys.executable, "-m", "thunderfleet_localcluster.models.hub", machine.address, str(HUB_PORT), *served]
    start_server(line, name, command, seconds)
    return f"http://{machine.address}:{HUB_PORT}"


def stop_server(line: Line, name: str = "hub") -> None:
    """Ends a server. Does nothing if it has ended, or was not started."""
    machine = line.cluster.machines[HUB_MACHINE]
    pid = machine.folder / "hub" / f"{name}-pid"
    if pid.exists():
        machine.run(["kill", pid.read_text().strip()])


def requests(line: Line, name: str = "hub") -> list[str]:
    """The requests to a server, as METHOD PATH."""
    return (line.cluster.machines[HUB_MACHINE].folder / "hub" / f"{name}-log").read_text().splitlines()


def downloads(line: Line, name: str = "hub") -> int:
    """Number of requests to the hub for a large file, or a part of one."""
    return sum(text.startswith("GET /cdn/") for text in requests(line, name))


def from_macs(line: Line, name: str) -> float:
    """Bytes of models that a Mac's agent has received from other Macs, over cables and networks, by its metrics."""
    answer = line.request(f"http://{line.cluster.machines[name].address}:{AGENT_METRICS_PORT}/metrics")
    series = "thunderfleet_agent_copy_received_bytes_total{"
    return sum(float(text.split()[-1]) for text in answer.body.splitlines() if text.startswith(series))


def received(line: Line, mac: str, interface: str) -> int:
    """Bytes that an interface of a Mac has received, as its kernel counts them."""
    name, _, counters = next(
        text.strip().partition(":")
        for text in line.run(mac, "cat", "/proc/net/dev").stdout.splitlines()
        if text.strip().startswith(f"{interface}:")
    )
    assert name == interface
    return int(counters.split()[0])


def store(line: Line, mac: str) -> Path:
    """The folder of a Mac's model store, as this process sees it."""
    return line.cluster.machines[mac].folder / "disk/Library/Thunderfleet/models"


class Copies:
    """A ModelCache in the namespace default."""

    def __init__(self, line: Line, name: str, repository: str, **spec: object) -> None:
        self.line, self.name, self.spec = line, name, {"repository": repository, **spec}

    def keep(self, copies: int | None = None) -> None:
        """Requests this number of copies; None for all Macs that the spec selects."""
        meta = {"name": self.name, "namespace": "default"}
        spec = self.spec if copies is None else {**self.spec, "copies": copies}
        body = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelCache", "metadata": meta, "spec": spec}
        self.line.kubectl("apply", "-f", "-", text=json.dumps(body))

    def delete(self) -> None:
        """Deletes it. Macs keep the files."""
        self.line.kubectl("delete", "mc", self.name, "-n", "default")

    def status(self) -> Json:
        """Its status."""
        found: Json = self.line.json("get", "mc", self.name, "-n", "default").get("status", {})
        return found

    def of(self, mac: str) -> Json:
        """The status of one Mac."""
        return next((copy for copy in self.status().get("macs", []) if copy["node"] == mac), {})

    def until_on(self, macs: int) -> None:
        """Waits until the model is assigned to this number of Macs, and they have it."""
        until(lambda: self.status().get("copies") == f"{macs}/{macs}", f"{macs} copies", describe=lambda: str(self.status()))
