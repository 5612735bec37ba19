"""Macs from nothing to a cluster and on: `thunderfleet init`, `join`, a boot of all Macs, `upgrade` while a group serves."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from thunderfleet_localcluster.client.cluster import Cluster, ClusterMachine
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.recorded import jaccl

from tests.bench.figures import Bound, Figure
from tests.bench.line import POLL_SECONDS, BenchFailed, manifest
from tests.bench.models import TINY
from tests.support.install.upgrading import ASKER, next_version

if TYPE_CHECKING:
    from tests.bench.line import Line

FLEET = """
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
"""
MODEL = "nobody/tiny"
NEWER = "0.9.0"
LOAD_SECONDS = 3.4
COMMAND_SECONDS = 300.0
READY_SECONDS = 180.0
ASK = """
import socket, sys, time, urllib.parse, urllib.request
url, body, seconds = sys.argv[1:]
address = urllib.parse.urlsplit(url)
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
end = time.monotonic() + float(seconds)
while True:
    try:
        # A Mac that is not on yet does not answer, and the next attempt to connect to it comes after seconds.
        socket.create_connection((address.hostname, address.port), timeout=0.3).close()
        urllib.request.urlopen(request, timeout=5).read()
        break
    except OSError:
        if time.monotonic() > end:
            raise
        time.sleep(0.1)
"""
"""A client that asks until it gets an answer, in one process: these processors have enough to start."""


def installing(line: "Line", repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """A cluster of its own, whose control plane is that of a recorded Mac. On ``line``, Macs boot without an API server."""
    samples: tuple[list[float], ...] = tuple([] for _ in range(8))
    init, join, fresh, booted, loaded, booted_loaded, upgraded, failed = samples
    placed, alone = _without_api_server(line, repeats, say)
    for number in range(repeats):
        cluster = Cluster.start(FLEET, name=f"bench-install-{os.getpid()}", control_plane_mac="studio-1")
        try:
            for taken, kept in zip(_once(cluster), samples, strict=True):
                kept.append(taken)
        finally:
            cluster.stop()
            remove(cluster.folder, everything=True)
        took = f"init {init[-1]:.1f} s, join {join[-1]:.1f} s, run {fresh[-1]:.1f} s, boot to serving {booted[-1]:.1f} s"
        took += f" ({loaded[-1]:.1f} s and {booted_loaded[-1]:.1f} s if it loads for {LOAD_SECONDS:g} s)"
        took += f", upgrade {upgraded[-1]:.1f} s with {failed[-1]:.0f} failed requests"
        say(f"install {number + 1}/{repeats}: {took}")
    return [
        Figure("init", "s", tuple(init), bound=Bound("<=", 30), note="to the end of the command: Node Ready, chart installed"),
        Figure("join", "s", tuple(join), bound=Bound("<=", 10), note="to the end of the command: Node Ready"),
        Figure(
            *("boot to serving", "s", tuple(booted), tuple(fresh), "fresh run", Bound("<=", 1.3)),
            note="two Macs switched on together until a group of both answers, against apply to the first answer; "
            "the model is tiny, so a run is little more than the start of a few processes",
        ),
        Figure(
            *("boot to serving without an API server", "s", tuple(alone), tuple(placed), "fresh run", Bound("<=", 1.3)),
            note="the same while the API server is off: nothing else starts on these two cores",
        ),
        Figure(
            *("boot to serving, with a load time", "s", tuple(booted_loaded), tuple(loaded), "fresh run", Bound("<=", 1.3)),
            note=f"the same, where each rank takes {LOAD_SECONDS:g} s longer to read its weights (simulated by a wait): "
            "Qwen3-30B-A3B-4bit, 17.2 GB, from an SSD with 5 GB/s",
        ),
        Figure(
            "upgrade",
            "s",
            tuple(upgraded),
            note="kubelets, agents and operator of two Macs, until all pods of the chart are new",
        ),
        Figure(
            *("failed requests during the upgrade", "", tuple(failed)),
            bound=Bound("<=", 0),
            note="of a client that sends requests to the group all the time",
        ),
    ]


def _once(cluster: Cluster) -> tuple[float, ...]:
    """Seconds of init, of join, of two fresh runs each with a boot to serving, and of an upgrade; failed requests meanwhile.

    The second time, the model takes longer to load.
    """
    first, second = cluster.machines.values()
    for machine in (first, second):
        tinymodel.make(machine.models / MODEL)
    said, init = _timed(cluster, first, "init")
    cluster.take_kubeconfig(first.name)
    (joining,) = re.findall(r"tf1-[\w-]+", said)
    _, join = _timed(cluster, second, "join", "-", text=joining)
    _until(lambda: len(_sized(cluster)) == 2, "both Macs report the model")
    tiny = _served(cluster)
    cluster.kubectl("delete", "md", "installed", "--wait", seconds=COMMAND_SECONDS)
    _until(lambda: not cluster.kubectl("get", "pods", "-o", "name").stdout, "all pods have ended")
    for machine in (first, second):
        jaccl.write_disk(LOAD_SECONDS, jaccl.python_folder(machine.folder / "bin"))
    return init, join, *tiny, *_served(cluster), *_upgraded(cluster, first, second)


def _without_api_server(line: "Line", repeats: int, say: Callable[[str], None]) -> tuple[list[float], list[float]]:
    """Seconds from apply to the first answer, and from power to the first answer while the API server is off.

    All runs come first: a cable that was interrupted twice, here by losses of power, is not used for the next 30 seconds.
    """
    cluster, name = line.cluster, "boots"
    placed, alone = list[float](), list[float]()
    try:
        for number in range(repeats):
            if number:
                line.delete(name)
            placed.append(_run(cluster, name, TINY))
        line.benchmarked(name)
        nodes = [rank["node"] for rank in line.deployment(name)["status"]["groups"][0]["ranks"]]
        machines = [cluster.machines[node] for node in nodes]
        endpoint = _endpoint(cluster, name)
        for _ in range(repeats):
            cluster.component("kube-apiserver", "off")
            try:
                alone.append(_boot(cluster, machines, endpoint, TINY))
            finally:
                cluster.component("kube-apiserver", "on")
                _until(lambda: cluster.kubectl("get", "--raw=/readyz").returncode == 0, "ready again: the API server")
    finally:
        line.delete(name)
    for fresh, booted in zip(placed, alone, strict=True):
        say(f"run {fresh:.1f} s, boot to serving without an API server {booted:.1f} s")
    return placed, alone


def _served(cluster: Cluster) -> tuple[float, float]:
    """Seconds from apply to the first answer, and from power to the first answer after both Macs were off."""
    fresh = _run(cluster, "installed", MODEL)
    before = _placed(cluster)
    booted = _boot(cluster, cluster.machines.values(), _endpoint(cluster, "installed"), MODEL)
    # What status said before the loss of power stays until the operator runs again, and it may find ranks that still start.
    _until(lambda: _answers(cluster), "served after the boot")
    if _placed(cluster) != before:
        raise BenchFailed(f"the group was placed again after the boot: {before}, then {_placed(cluster)}")
    return fresh, booted


def _run(cluster: Cluster, name: str, model: str) -> float:
    """Seconds from apply to the first answer."""
    began = time.monotonic()
    cluster.kubectl("apply", "-f", "-", text=manifest(name, model, "Pipeline"))
    # A watch, because each further kubectl would take the time of a processor from what starts.
    waited = f"--timeout={READY_SECONDS:.0f}s"
    cluster.kubectl("wait", f"md/{name}", "--for=condition=Ready", waited, seconds=READY_SECONDS + COMMAND_SECONDS)
    _ask(cluster.machines["studio-1"], cluster, _endpoint(cluster, name), model)
    return time.monotonic() - began


def _boot(cluster: Cluster, machines: Iterable[ClusterMachine], endpoint: str, model: str) -> float:
    """Seconds from power, after all these Macs were off, to the first answer at ``endpoint``."""
    first, *others = machines
    for machine in (first, *others):
        machine.off()
    began = time.monotonic()
    # The command returns when the machine's launchd runs, and the power comes back for all machines at once.
    with ThreadPoolExecutor() as power:
        list(power.map(ClusterMachine.on, (first, *others)))
    _ask(first, cluster, endpoint, model)
    return time.monotonic() - began


def _placed(cluster: Cluster) -> str:
    """Epoch of the group and the Macs of its ranks. A group that is not ready keeps both, but has no endpoint."""
    path = "{.status.groups[0].epoch} {.status.groups[0].ranks[*].node}"
    return cluster.kubectl("get", "md", "installed", "-o", f"jsonpath={path}").stdout


def _upgraded(cluster: Cluster, first: ClusterMachine, second: ClusterMachine) -> tuple[float, float]:
    """Seconds of an upgrade, and the number of requests that failed. The Mac with the control plane is the last."""
    newer = next_version(cluster, NEWER)
    _until(lambda: bool(_endpoint(cluster, "installed")), "served before the upgrade")
    endpoint = _endpoint(cluster, "installed")
    python, result = cluster.image_folder / "bin" / "python3", first.folder / "asked"
    first.run(["sh", "-c", f"{python} -c '{ASKER}' {endpoint} {result} > /dev/null 2>&1 &"])
    began = time.monotonic()
    for machine in (second, first):
        done = machine.run([str(newer / "bin/thunderfleet"), "upgrade"], "", COMMAND_SECONDS)
        if done.returncode:
            raise BenchFailed(f"thunderfleet upgrade on {machine.name}: {done.stdout}{done.stderr}")
    _until(lambda: _images(cluster) == {f"thunderfleet/thunderfleet:{NEWER}"}, "operator and agents have the new version")
    seconds = time.monotonic() - began
    (first.folder / "asked.stop").touch()
    _until(result.exists, "the client has ended")
    asked, failed = json.loads(result.read_text())
    if not asked:
        raise BenchFailed("the client has sent no request")
    return seconds, float(len(failed))


def _images(cluster: Cluster) -> set[str]:
    path = "{.items[*].spec.containers[*].image}"
    return set(cluster.kubectl("get", "pods", "-n", "thunderfleet-system", "-o", f"jsonpath={path}").stdout.split())


def _timed(cluster: Cluster, machine: ClusterMachine, *words: str, text: str = "") -> tuple[str, float]:
    program = str(cluster.image_folder / "bin" / "thunderfleet")
    began = time.monotonic()
    done = machine.run([program, *words, "--config", str(machine.folder / "kubelet.yaml")], text, COMMAND_SECONDS)
    if done.returncode:
        raise BenchFailed(f"thunderfleet {words[0]}: {done.stdout}{done.stderr}")
    return done.stdout, time.monotonic() - began


def _sized(cluster: Cluster) -> list[str]:
    profiles = json.loads(cluster.kubectl("get", "np", "-o", "json").stdout)["items"]
    return [
        item["metadata"]["name"] for item in profiles if any(m.get("sizedBy") for m in item.get("status", {}).get("models", []))
    ]


def _ready(cluster: Cluster, name: str) -> bool:
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    return cluster.kubectl("get", "md", name, "-o", f"jsonpath={path}").stdout == "True"


def _endpoint(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "md", name, "-o", "jsonpath={.status.endpoint}").stdout


def _answers(cluster: Cluster) -> bool:
    """Whether rank 0 of the group that status names answers a request."""
    name = "installed"
    if not _ready(cluster, name):
        return False
    _ask(cluster.machines["studio-1"], cluster, _endpoint(cluster, name), MODEL, seconds=0.0)
    return True


def _ask(machine: ClusterMachine, cluster: Cluster, endpoint: str, model: str, seconds: float = READY_SECONDS) -> None:
    """Asks the gateway at ``endpoint`` from ``machine`` until it answers. Raises BenchFailed."""
    body = json.dumps({"model": model, "prompt": "one", "max_tokens": 1})
    python = str(cluster.image_folder / "bin" / "python3")
    asked = machine.run([python, "-c", ASK, f"{endpoint}/completions", body, str(seconds)], "", seconds + COMMAND_SECONDS)
    if asked.returncode:
        raise BenchFailed(f"{endpoint} does not answer: {asked.stderr}")


def _until(reached: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + READY_SECONDS
    while True:
        try:
            if reached():
                return
        except (LocalClusterError, BenchFailed) as error:
            last = str(error)
        else:
            last = ""
        if time.monotonic() > limit:
            raise BenchFailed(f"not {what} within {READY_SECONDS:.0f} s; {last}")
        time.sleep(POLL_SECONDS)
