"""One kubelet of a cluster: what it costs with no pods but the agent and with 50, and ``kubectl port-forward`` to a pod.

The way of a port-forward is that of users: kubectl, API server, kubelet, process. Here all of them share the processors of one
machine.
"""

import contextlib
import json
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench import processes
from tests.bench.figures import Figure
from tests.bench.line import WAIT_SECONDS, BenchFailed, Line
from tests.support.waiting import until

Say = Callable[[str], None]

POD, PORT = "forwarded", 18099
MANY = 50
QUIET_SECONDS = 30.0
SIZE = 128 * 1024**2
CHUNK = 256 * 1024
# Answers a byte: "d" with as many bytes as are asked for, "u" with one when as many have come.
SERVER = f"""exec python3 -u -c '
import socket, threading
block = bytes({CHUNK})
def serve(connection):
    with connection:
        what, left = connection.recv(1), {SIZE}
        if what == b"f":
            connection.sendall(b"x")
            return
        while left > 0:
            if what == b"d":
                connection.sendall(block)
                left -= len(block)
            else:
                left -= len(connection.recv({CHUNK}))
        if what == b"u":
            connection.sendall(b"x")
listener = socket.create_server(("127.0.0.1", {PORT}))
print("listens")
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
'"""


def _pod(line: Line, mac: str, name: str, script: str) -> dict[str, Any]:
    spec = {
        "hostNetwork": True,
        "nodeSelector": {"kubernetes.io/hostname": mac, "kubernetes.io/os": "darwin"},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": line.cluster.image, "command": ["/bin/sh", "-c", script]}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bench"}}, "spec": spec}


def _used(line: Line, mac: str) -> tuple[float, float]:
    """Resident megabytes of the Mac's kubelet, and the percentage of a core that it takes while nothing changes."""
    found = [process.pid for process in line.programs().get("kubelet", []) if f"/{mac}/" in process.command]
    if len(found) != 1:
        raise BenchFailed(f"{mac} has {len(found)} processes of a kubelet")
    before, began = processes.usage(found[0]), time.monotonic()
    time.sleep(QUIET_SECONDS)
    after, seconds = processes.usage(found[0]), time.monotonic() - began
    if before is None or after is None:
        raise BenchFailed(f"the kubelet of {mac} has ended")
    return after.rss / 1e6, 100 * (after.cpu_seconds - before.cpu_seconds) / seconds


def _cost(line: Line, mac: str, say: Say) -> list[Figure]:
    alone, alone_cpu = _used(line, mac)
    items = [_pod(line, mac, f"bench-{number}", "exec sleep 3600") for number in range(MANY)]
    line.cluster.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    try:

        def running() -> bool:
            query = ("get", "pods", "-l", "app=bench", "--field-selector", "status.phase=Running", "-o", "name")
            return len(line.cluster.kubectl(*query).stdout.splitlines()) == MANY

        until(running, f"{MANY} pods run", WAIT_SECONDS)
        many, many_cpu = _used(line, mac)
    finally:
        line.cluster.kubectl("delete", "pods", "-l", "app=bench", "--wait=false")
    say(f"kubelet: {alone:.0f} MB, with {MANY} pods {many:.0f} MB and {many_cpu:.2f} % of a core")
    over = f"over {QUIET_SECONDS:g} s in which nothing changes"
    return [
        Figure("kubelet alone, memory", "MB", (alone,), note=f"RSS with the agent's pod; {alone_cpu:.2f} % of a core {over}"),
        Figure(f"kubelet, {MANY} pods, memory", "MB", (many,), note="RSS, without the shims"),
        Figure(f"kubelet, {MANY} pods, CPU", "% of a core", (many_cpu,), note=over),
    ]


@contextlib.contextmanager
def _forwarded(line: Line, mac: str) -> Iterator[int]:
    """A pod on the Mac that listens; yields the local port of a ``kubectl port-forward`` to it."""
    cluster = line.cluster
    cluster.kubectl("apply", "-f", "-", text=json.dumps(_pod(line, mac, POD, SERVER)))
    try:
        until(lambda: "listens" in cluster.kubectl("logs", POD, check=False).stdout, "the pod listens", WAIT_SECONDS)
        words = [str(cluster.tool("kubectl")), "port-forward", f"pod/{POD}", f":{PORT}", "--address", "127.0.0.1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=cluster.environment()) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                if not said.startswith("Forwarding from 127.0.0.1:"):
                    raise BenchFailed(f"kubectl port-forward does not start: {said}")
                yield int(said.split(" -> ")[0].rpartition(":")[2])
            finally:
                process.terminate()
    finally:
        cluster.kubectl("delete", "pod", POD, "--wait=false")


def _first(port: int) -> float:
    """Seconds from connecting to the first byte of the answer."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as connection:
        connection.sendall(b"f")
        _expect(connection, 1)
    return time.monotonic() - began


def _down(port: int) -> float:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as connection:
        connection.sendall(b"d")
        _expect(connection, SIZE)
    return SIZE / (time.monotonic() - began) / 1e6


def _up(port: int) -> float:
    block, began = bytes(CHUNK), time.monotonic()
    with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as connection:
        connection.sendall(b"u")
        for _ in range(SIZE // CHUNK):
            connection.sendall(block)
        _expect(connection, 1)
    return SIZE / (time.monotonic() - began) / 1e6


def _expect(connection: socket.socket, left: int) -> None:
    while left > 0:
        got = len(connection.recv(CHUNK))
        if not got:
            raise BenchFailed(f"a forwarded connection ended {left} bytes too early")
        left -= got


def figures(line: Line, repeats: int, say: Say) -> list[Figure]:
    """All figures. Raises BenchFailed."""
    mac = next(name for name, machine in line.cluster.machines.items() if machine.kind == "mac")
    cost = _cost(line, mac, say)
    with _forwarded(line, mac) as port:
        # Connects kubectl to the pod's port once before it counts.
        _first(port)
        first = tuple(_first(port) for _ in range(10 * repeats))
        down = tuple(_down(port) for _ in range(repeats))
        up = tuple(_up(port) for _ in range(repeats))
    say(f"port-forward: first byte {statistics.median(first) * 1000:.0f} ms, {down[-1]:.0f} MB/s down, {up[-1]:.0f} MB/s up")
    note = f"{SIZE // 1024**2} MiB through kubectl, API server and kubelet on one machine"
    return [
        *cost,
        Figure("port-forward first byte", "s", first, note="from connecting to kubectl to the pod's first byte"),
        Figure("port-forward download", "MB/s", down, note=note),
        Figure("port-forward upload", "MB/s", up, note=note),
    ]
