"""A cluster of kubelets with many pods, for the end-to-end tests of the kubelet as users see it.

All pods are made at once, when the cluster is up, and each test waits for what it is about: what takes long (crash-loop
back-off, a ConfigMap's way into a volume) passes while the others run.
"""

import base64
import contextlib
import json
import os
import select
import ssl
import subprocess
import termios
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.api import Api, path_of
from tests.support.waiting import until

Json = dict[str, Any]

MAC, LINUX = "kube-mac", "kube-linux"
SECONDS = 90.0
SCHEDULED_SECONDS = 240.0
"""After an outage of the API server the scheduler asks it again after up to a minute, and that more than once."""
TOLERATION = {"key": "thunderfleet.io/macos", "operator": "Exists", "effect": "NoSchedule"}
ROOT = os.geteuid() == 0
HTTP_PORT = 18080
FORWARD_PORT = 18081
GRPC_PORT = 18082


def container(image: str, script: str, name: str = "main", **more: Any) -> Json:
    return {"name": name, "image": image, "command": ["/bin/sh", "-c", script], **more}


def pod(name: str, containers: list[Json], *, node: str = MAC, **spec: Any) -> Json:
    """A pod that the scheduler puts on ``node``."""
    system = "darwin" if node == MAC else "linux"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "hostNetwork": True,
            "nodeSelector": {"kubernetes.io/hostname": node, "kubernetes.io/os": system},
            "tolerations": [TOLERATION],
            "terminationGracePeriodSeconds": 2,
            "containers": containers,
            **spec,
        },
    }


def alive_with(uid: str) -> list[int]:
    """Processes of this machine that belong to the pod ``uid``."""
    found, needle = [], f"/pods/{uid}/containers/".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and needle in (entry / "environ").read_bytes()
                and b") Z " not in (entry / "stat").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def own_number(pid: int) -> int | None:
    """The process id inside the machine's namespace, or None once the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


@dataclass
class Fleet:
    """A running cluster with helpers for the tests."""

    cluster: Cluster
    scratch: Path

    def __post_init__(self) -> None:
        self.api = Api(self.cluster, SECONDS)

    def kubectl(self, *words: str, text: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.kubectl(*words, text=text, check=check)

    def get(self, *words: str) -> Json:
        if (path := path_of(*words)) and (read := self.api.get(path)):
            return read
        found: Json = json.loads(self.kubectl("get", *words, "-o", "json").stdout)
        return found

    def apply(self, *items: Json) -> None:
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))

    def pod(self, name: str) -> Json:
        found = self.api.get(f"/api/v1/namespaces/default/pods/{name}")
        assert found is not None, f"there is no pod {name}"
        return found

    def await_pod(self, name: str, condition: Callable[[Json], object], what: str, seconds: float = SECONDS) -> Json:
        """The pod, once ``condition`` holds for it."""
        seen: list[Json] = []

        def holds() -> object:
            seen[:] = [self.pod(name)]
            return condition(seen[0])

        try:
            until(holds, f"{name}: {what}", seconds)
        except AssertionError:
            print(json.dumps(seen[0].get("status"), indent=1), self.kubectl("get", "events").stdout, sep="\n")
            raise
        return seen[0]

    def running(self, name: str, seconds: float = SECONDS) -> Json:
        return self.await_pod(name, lambda item: item["status"].get("phase") == "Running", "runs", seconds)

    def exec(self, name: str, *words: str, text: str | None = None, check: bool = True) -> str:
        """Output of a command in the pod's only container."""
        flags = ["-i"] if text is not None else []
        return self.kubectl("exec", *flags, name, "--", *words, text=text, check=check).stdout

    def log(self, name: str, *words: str) -> str:
        return self.kubectl("logs", name, *words).stdout

    def until_logged(self, name: str, text: str) -> str:
        """The log of a pod, once it contains ``text``. A kubelet may run a pod before it serves with a signed certificate."""
        return until(
            lambda: log if text in (log := self.log(name)) else None, f"{name} logs {text!r}", retry_on=(LocalClusterError,)
        )

    def events(self, name: str) -> dict[str, str]:
        """Reason to message of a pod's Events."""
        found = self.get("events", "--field-selector", f"involvedObject.name={name}")["items"]
        return {item["reason"]: item["message"] for item in found}

    def ask_kubelet(self, path: str, token: str | None = None, node: str = MAC) -> tuple[int, str]:
        """HTTP status and text that a kubelet's own server answers with."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"https": self.cluster.proxy}), urllib.request.HTTPSHandler(context=context)
        )
        request = urllib.request.Request(f"https://{self.cluster.machines[node].address}:10250{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with opener.open(request, timeout=20) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def node_ready(self, name: str) -> bool:
        node = self.api.get(f"/api/v1/nodes/{name}") or {}
        conditions = node.get("status", {}).get("conditions") or []
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def first(item: Json) -> Json:
    """The status of a pod's first container."""
    statuses: list[Json] = item["status"].get("containerStatuses") or [{}]
    return statuses[0]


def waits_for(reason: str) -> Callable[[Json], bool]:
    """Whether a pod's first container waits for this reason. Its first one may be that it is being created."""
    return lambda item: first(item).get("state", {}).get("waiting", {}).get("reason") == reason


# Shows its environment in one line, then waits.
SHOW = "python3 -c 'import json, os; print(json.dumps(dict(os.environ)), flush=True)'; sleep 3600"
# Answers HTTP with the files of its folder until a file ``deaf`` exists; then it keeps running with its port closed.
SERVE = f"""exec python3 -c '
import http.server, os, threading, time
os.chdir(os.environ["HOME"])
server = http.server.ThreadingHTTPServer(("", {HTTP_PORT}), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
while not os.path.exists("deaf"):
    time.sleep(0.05)
server.shutdown()
server.server_close()
time.sleep(3600)
'"""
LISTEN = 'while read line; do printf "heard %s. " "$line"; done; echo; echo over'
ANSWER = f"""exec python3 -u -c '
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the pod")
server = http.server.ThreadingHTTPServer(("127.0.0.1", {FORWARD_PORT}), Answer)
print("listens")
server.serve_forever()
'"""
# Answers every request of gRPC as its health service does: serving (1) until a file ``sick`` exists, then not serving (2).
HEALTH = f"""exec python3 -u -c '
import os, socket
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
os.chdir(os.environ["HOME"])
listener = socket.create_server(("", {GRPC_PORT}))
while True:
    with listener.accept()[0] as peer:
        http = H2Connection(H2Configuration(client_side=False))
        http.initiate_connection()
        peer.sendall(http.data_to_send())
        while data := peer.recv(65536):
            for event in http.receive_data(data):
                if isinstance(event, StreamEnded):
                    stream, status = event.stream_id, 2 if os.path.exists("sick") else 1
                    http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
                    http.send_data(stream, bytes([0, 0, 0, 0, 2, 8, status]))
                    http.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            peer.sendall(http.data_to_send())
'"""
# Reads a mounted file in a loop: prints each new content once, and any content that is neither old nor new.
READ = """exec python3 -u -c '
import os, time
file, seen = os.environ["CONTAINER_SANDBOX_MOUNT_POINT"] + "/config/greeting", None
while True:
    try:
        text = open(file).read()
    except OSError as error:
        text = repr(error)
    if text != seen:
        print("saw", text)
        seen = text
    time.sleep(0.001)
'"""
# Neither the shell nor its child, which has its own session, ends on SIGTERM.
STUBBORN = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 0.2; done' &) ; echo up; while :; do sleep 0.2; done"


def objects(image: str, scratch: Path) -> list[Json]:
    """All pods of the tests, created together."""
    meta = {"namespace": "default"}
    encoded = {"password": base64.b64encode(b"s3cret").decode()}
    mount = "$CONTAINER_SANDBOX_MOUNT_POINT"
    whole = container(
        image,
        SHOW,
        env=[
            {"name": "PLAIN", "value": "plain"},
            {"name": "EXPANDED", "value": "$(PLAIN)-$(NODE)-$$(PLAIN)"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LATE", "value": "$(NODE)"},
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
            {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "greeting"}}},
            {"name": "NO_KEY", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "none", "optional": True}}},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
        ],
        envFrom=[{"prefix": "CM_", "configMapRef": {"name": "words"}}, {"secretRef": {"name": "keys"}}],
        resources={"requests": {"memory": "64Mi", "cpu": "10m"}},
        volumeMounts=[
            {"name": "empty", "mountPath": "/empty"},
            {"name": "host", "mountPath": "/host"},
            {"name": "config", "mountPath": "/config"},
            {"name": "config", "mountPath": "/one", "subPath": "greeting"},
            {"name": "secret", "mountPath": "/secret"},
            {"name": "all", "mountPath": "/all"},
            {"name": "downward", "mountPath": "/downward"},
        ],
    )
    to_empty = [{"name": "empty", "mountPath": "/empty"}]
    inits = [
        container(image, f"sleep 0.5; echo one >> {mount}/empty/order", "one", volumeMounts=to_empty),
        container(image, f"echo two >> {mount}/empty/order", "two", volumeMounts=to_empty),
    ]
    volumes = [
        {"name": "empty", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(scratch), "type": "Directory"}},
        {"name": "config", "configMap": {"name": "words"}},
        {"name": "secret", "secret": {"secretName": "keys", "defaultMode": 0o400}},
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                    {"configMap": {"name": "words", "items": [{"key": "greeting", "path": "deep/greeting"}]}},
                    {"secret": {"name": "keys"}},
                    {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                ]
            },
        },
        {"name": "downward", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]
    second = 'n=$(cat n 2>/dev/null); echo "try ${n:-0}"; echo $((n+1)) > n; [ "${n:-0}" -ge 1 ]'
    quick = {"periodSeconds": 1, "timeoutSeconds": 5}
    talk = "i=0; while :; do echo line $i; echo warn $i >&2; i=$((i+1)); sleep 0.2; done"
    items = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "words"}, "data": {"greeting": "old"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {**meta, "name": "keys"}, "data": encoded},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "name": "stranger"}},
        pod("whole", [whole], initContainers=inits, volumes=volumes),
        pod(
            "reader",
            [container(image, READ, volumeMounts=[{"name": "config", "mountPath": "/config"}])],
            volumes=[volumes[2]],
        ),
        pod(
            "probed",
            [
                container(
                    image,
                    SERVE,
                    startupProbe={"exec": {"command": ["test", "-f", "begun"]}, "failureThreshold": 300, **quick},
                    readinessProbe={"httpGet": {"path": "/ready", "port": HTTP_PORT}, "failureThreshold": 1, **quick},
                    livenessProbe={"tcpSocket": {"port": HTTP_PORT}, "failureThreshold": 2, **quick},
                )
            ],
        ),
        pod("health", [container(image, HEALTH, readinessProbe={"grpc": {"port": GRPC_PORT}, "failureThreshold": 1, **quick})]),
        pod("fails", [container(image, "echo sorry >&2; exit 3")], restartPolicy="Never"),
        pod("succeeds", [container(image, "true")], restartPolicy="Never"),
        pod(
            "again",
            [container(image, f"cd {mount}/empty; {second}", volumeMounts=to_empty)],
            restartPolicy="OnFailure",
            volumes=[volumes[0]],
        ),
        pod("crashes", [container(image, "echo here I crash; exit 5")]),
        pod("talks", [container(image, talk)]),
        pod("serves", [container(image, ANSWER)]),
        pod("listens", [container(image, LISTEN, stdin=True, stdinOnce=True)], restartPolicy="Never"),
        pod("shell", [container(image, "exec sh", stdin=True, tty=True)], restartPolicy="Never"),
        pod("stays", [container(image, 'echo "I am $$$$"; i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.2; done')]),
        pod("who", [container(image, "id -u; id -g; sleep 3600")]),
        pod(
            "stubborn",
            [
                container(
                    image,
                    STUBBORN,
                    lifecycle={"preStop": {"exec": {"command": ["/bin/sh", "-c", f"echo stopping > {mount}/host/prestop"]}}},
                    volumeMounts=[{"name": "host", "mountPath": "/host"}],
                )
            ],
            volumes=[volumes[1]],
        ),
        # Bound past the scheduler, as a DaemonSet's pod that tolerates everything is.
        pod("foreign", [{"name": "main", "image": "docker.io/library/nginx:1"}], nodeName=MAC, nodeSelector={}),
        # What the admission policy does not see, because it does not ask for a Mac.
        pod("unasked", [container(image, "id", securityContext={"runAsUser": 0})], nodeName=MAC, nodeSelector={}),
        pod("unbound", [container(image, "id", securityContext={"runAsUser": 0})], nodeSelector={"bound": "by-hand"}),
        pod("own-network", [container(image, "sleep 3600")], hostNetwork=False),
        pod("plain", [container(image, "echo up; sleep 3600")], node=LINUX),
    ]
    if ROOT:
        other: Json = {"securityContext": {"runAsUser": 2001, "runAsGroup": 3000}}
        items += [
            pod("other-user", [container(image, "id -u; id -g; sleep 3600", **other)]),
            pod("root", [container(image, "id -u; sleep 3600", securityContext={"runAsUser": 0})]),
        ]
    return items


_FLEETS: WeakKeyDictionary[Cluster, Fleet] = WeakKeyDictionary()


def fleet_of(cluster: Cluster) -> Fleet:
    """The cluster with all pods of the tests, which are made once."""
    if cluster not in _FLEETS:
        scratch = _new_scratch(cluster)
        found = _FLEETS[cluster] = Fleet(cluster, scratch)
        found.apply(*objects(cluster.image, scratch))
        # From here on the new content makes its way into the volume; the last of the quiet tests looks for it.
        found.running("reader")
        found.until_logged("reader", "saw old")
        found.kubectl("patch", "configmap", "words", "-p", '{"data":{"greeting":"new"}}')
    return _FLEETS[cluster]


def _new_scratch(cluster: Cluster) -> Path:
    """A folder that containers of every user may write to (pytest's own are closed to others again and again)."""
    folder = cluster.folder.root / "scratch"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def use_terminal(start: Callable[[int], "subprocess.Popen[str]"]) -> None:
    """Uses an attached shell until it exits with 4. ``start`` starts kubectl with a terminal of 33 lines and 111 columns."""
    outer, inner = os.openpty()
    termios.tcsetwinsize(inner, (33, 111))
    with start(inner) as process:
        os.close(inner)
        try:
            # kubectl sends the size in parallel with what is typed, and first one with a row and a column more.
            os.write(outer, b"until stty size | grep -qx '33 111'; do :; done; stty size; echo $((6*7)); exit 4\n")
            seen = b""
            while b"42\r\n" not in seen:
                assert select.select([outer], [], [], SECONDS)[0], seen
                seen += os.read(outer, 65536)
            assert b"33 111\r\n" in seen, "the size of the terminal of kubectl"
            process.wait(SECONDS)
        finally:
            process.kill()
            os.close(outer)
