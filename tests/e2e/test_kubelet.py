"""The kubelet on the real control plane as users see it: through kubectl, and through its own server.

All pods are made at once, when the cluster is up, and each test waits for what it is about: what takes long (crash-loop
back-off, a ConfigMap's way into a volume) passes while the others run. Tests that take the kubelet away come last.
"""

import base64
import contextlib
import http.client
import json
import os
import re
import select
import signal
import ssl
import subprocess
import termios
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.client.launch import kubelet_command

from tests.support.api import Api, path_of
from tests.support.waiting import until

Json = dict[str, Any]

LONE_FLEET = "machines: [{name: kube-one, kind: linux}]\n"
MAC, LINUX = "kube-mac", "kube-linux"
SECONDS = 90.0
SCHEDULED_SECONDS = 240.0
"""After an outage of the API server the scheduler asks it again after up to a minute, and that more than once."""
TOLERATION = {"key": "thunderfleet.io/macos", "operator": "Exists", "effect": "NoSchedule"}
ROOT = os.geteuid() == 0
HTTP_PORT = 18080
FORWARD_PORT = 18081


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


def _new_scratch(cluster: Cluster) -> Path:
    """A folder that containers of every user may write to (pytest's own are closed to others again and again)."""
    folder = cluster.folder.root / "scratch"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def test_loopback_network_runs_pods_too() -> None:
    """Machines without network namespaces, in a cluster of their own."""
    cluster = Cluster.start(LONE_FLEET, name=f"kube-lo-{os.getpid()}", network="loopback")
    try:
        fleet = Fleet(cluster, Path())
        fleet.apply(pod("here", [container(cluster.image, "echo hello; sleep 3600")], node="kube-one"))
        fleet.running("here")
        until(lambda: fleet.log("here") == "hello\n", "its log")
        assert fleet.exec("here", "cat", text="through") == "through"
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)


@pytest.fixture(scope="module")
def fleet(kubelets: Cluster) -> Fleet:
    scratch = _new_scratch(kubelets)
    found = Fleet(kubelets, scratch)
    found.apply(*objects(kubelets.image, scratch))
    # From here on the new content makes its way into the volume; the last of the quiet tests looks for it.
    found.running("reader")
    until(lambda: "saw old" in found.log("reader"), "the old content was seen")
    found.kubectl("patch", "configmap", "words", "-p", '{"data":{"greeting":"new"}}')
    return found


# Joining


def test_joined_node_says_what_it_is(fleet: Fleet) -> None:
    node = fleet.get("node", MAC)
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/os"] == "darwin"
    assert labels["kubernetes.io/arch"] == "arm64"
    assert labels["kubernetes.io/hostname"] == MAC
    assert labels["thunderfleet.io/chip"] == "Apple-M3-Ultra"
    assert {"key": "thunderfleet.io/macos", "effect": "NoSchedule"} in [
        {key: taint[key] for key in ("key", "effect")} for taint in node["spec"]["taints"]
    ]
    status = node["status"]
    # The default limit of macOS for GPU memory with 96 GB: three quarters.
    assert status["capacity"]["memory"] == "72Gi"
    assert int(status["capacity"]["cpu"]) > 1
    assert status["capacity"]["pods"] == "110"
    assert status["addresses"] == [{"type": "InternalIP", "address": fleet.cluster.machines[MAC].address}]
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "PodsShareUser": str(not ROOT),
    }
    linux = fleet.get("node", LINUX)
    assert linux["metadata"]["labels"]["kubernetes.io/os"] == "linux"
    assert not linux["spec"].get("taints")


def test_joined_node_has_certificates_and_renews_its_lease(fleet: Fleet) -> None:
    folder = fleet.cluster.machines[MAC].folder / "kubelet" / "identity"
    assert folder.stat().st_mode & 0o777 == 0o700
    pem = (folder / "client.pem").read_bytes()
    leaf = x509.load_pem_x509_certificate(pem[pem.find(b"-----BEGIN CERT") :])
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == f"system:node:{MAC}"
    assert leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:nodes"
    assert {(folder / name).stat().st_mode & 0o777 for name in ("client.pem", "serving.pem")} == {0o600}
    requests = fleet.get("csr")["items"]
    signers = {item["spec"]["signerName"] for item in requests if item["spec"]["username"].startswith("system:bootstrap:")}
    assert signers == {"kubernetes.io/kube-apiserver-client-kubelet"}
    assert any(
        item["spec"]["username"] == f"system:node:{MAC}" and item["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
        for item in requests
    )

    def renewed() -> str:
        lease = fleet.get("lease", MAC, "-n", "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == MAC
        return str(lease["spec"]["renewTime"])

    before = renewed()
    until(lambda: renewed() > before, "the Lease is renewed", 40)


def test_a_lease_that_a_wrong_clock_renewed_goes_on_from_there(fleet: Fleet) -> None:
    """The controller manager ignores a time of renewal that is before the last one, and would call the Node dead for a year."""
    machine, ahead = fleet.cluster.machines[LINUX], "2099-01-01T00:00:00.000000Z"

    def renewed() -> str:
        return str(fleet.get("lease", LINUX, "-n", "kube-node-lease")["spec"]["renewTime"])

    machine.stop_kubelet()
    patch = json.dumps({"spec": {"renewTime": ahead}})
    fleet.kubectl("patch", "lease", LINUX, "-n", "kube-node-lease", "--type=merge", "-p", patch)
    machine.start_kubelet()
    first = until(lambda: renewed() if renewed() > ahead else None, "the Lease is renewed", 40)
    until(lambda: renewed() > first, "and again", 40)


def joining(fleet: Fleet, folder: Path, name: str, *more: str, **given: str) -> subprocess.CompletedProcess[str]:
    """``thunderfleet-kubelet join --no-run`` on the Linux machine, into ``folder``."""
    machine = fleet.cluster.machines[LINUX]
    known = json.loads((machine.folder / "kubelet/identity/cluster.json").read_text())
    fresh = fleet.cluster.command(do="token")
    config = folder.parent / f"{folder.name}.yaml"
    config.write_text(json.dumps({"nodeName": name, "addresses": [machine.address]}))
    words = {"server": known["server"], "token": fresh["token"], "ca-hash": fresh["caHash"]} | given
    flags = [word for key, value in words.items() for word in (f"--{key}", value)]
    return machine.run(
        [*kubelet_command(), "join", *flags, "--root", str(folder), "--config", str(config), "--no-run", *more], seconds=60
    )


def test_join_with_a_wrong_hash_sends_no_token(fleet: Fleet, tmp_path: Path) -> None:
    done = joining(fleet, tmp_path / "node", "late-1", **{"ca-hash": "sha256:" + "0" * 64})
    assert done.returncode == 1
    assert "the token was not sent" in done.stderr
    assert not (tmp_path / "node/identity/client.pem").exists()


def test_join_with_a_token_that_is_no_good(fleet: Fleet, tmp_path: Path) -> None:
    unknown = joining(fleet, tmp_path / "node", "late-1", token="abcdef.0123456789abcdef")
    assert unknown.returncode == 1
    assert "rejected the token" in unknown.stderr
    assert "thunderfleet local token" in unknown.stderr
    mistyped = joining(fleet, tmp_path / "node", "late-1", token="nonsense")
    assert mistyped.returncode == 2
    assert "nonsense" not in mistyped.stderr
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-expird", "namespace": "kube-system"},
        "stringData": {
            "token-id": "expird",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:thunderfleet",
            "expiration": "2026-01-01T00:00:00Z",
        },
    }
    fleet.apply(secret)
    expired = joining(fleet, tmp_path / "node", "late-1", token="expird.0123456789abcdef")
    assert expired.returncode == 1
    assert "expired" in expired.stderr
    assert not (tmp_path / "node/identity/client.pem").exists()


def test_join_under_a_name_that_is_taken(fleet: Fleet, tmp_path: Path) -> None:
    unbound = joining(fleet, tmp_path / "node", LINUX, "--replace")
    assert unbound.returncode == 1
    assert f"thunderfleet local token --node {LINUX}" in unbound.stderr
    refused = joining(fleet, tmp_path / "node", LINUX, token=fleet.cluster.token(LINUX))
    assert refused.returncode == 1
    assert f"a Node named {LINUX} already exists (Lease last renewed at " in refused.stderr
    assert "--replace" in refused.stderr
    assert not (tmp_path / "node/identity/cluster.json").exists()
    taken = joining(fleet, tmp_path / "node", LINUX, "--replace", token=fleet.cluster.token(LINUX))
    assert taken.returncode == 0, taken.stderr
    assert (tmp_path / "node/identity/client.pem").exists()


# Inputs of a container


def test_init_containers_come_first_and_in_order(fleet: Fleet) -> None:
    item = fleet.running("whole")
    assert fleet.exec("whole", "cat", "empty/order") == "one\ntwo\n"
    for status in item["status"]["initContainerStatuses"]:
        assert status["state"]["terminated"]["reason"] == "Completed"
    conditions = {entry["type"]: entry["status"] for entry in item["status"]["conditions"]}
    assert conditions["Initialized"] == "True"


def test_environment_comes_from_every_source_and_nowhere_else(fleet: Fleet) -> None:
    fleet.running("whole")
    seen: dict[str, str] = json.loads(until(lambda: fleet.log("whole"), "its environment is printed"))
    address = fleet.cluster.machines[MAC].address
    wanted = {
        "PLAIN": "plain",
        "EXPANDED": "plain-$(NODE)-$(PLAIN)",
        "NODE": MAC,
        "LATE": MAC,
        "HOST_IP": address,
        "LABEL": "whole",
        "MEMORY": "64",
        "PASSWORD": "s3cret",
        "password": "s3cret",
        "HOSTNAME": MAC,
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert seen["GREETING"] == seen["CM_greeting"] in ("old", "new")
    assert seen["HOME"] == seen["CONTAINER_SANDBOX_MOUNT_POINT"]
    assert seen["TMPDIR"] == seen["HOME"] + "/tmp"
    machine = fleet.cluster.machines[MAC]
    assert seen["PATH"].split(":")[:2] == [str(machine.folder / "bin"), str(fleet.cluster.image_folder / "bin")]
    ours = {
        "GREETING",
        "CM_greeting",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "PATH",
        "CONTAINER_SANDBOX_MOUNT_POINT",
        "PYTHONPATH",
    }
    service = {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"}
    shell = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    image = dict(
        entry.split("=", 1) for entry in json.loads((fleet.cluster.image_folder / "config.json").read_text()).get("Env") or []
    )
    assert {name: seen.get(name) for name in image.keys() - ours} == {name: image[name] for name in image.keys() - ours}
    assert seen.keys() - wanted.keys() - ours - service - shell - image.keys() == set()


def test_volumes_of_every_kind(fleet: Fleet) -> None:
    fleet.running("whole")
    (fleet.scratch / "from-host").write_text("of the host")
    words = ["host/from-host", "secret/password", "all/password", "all/name", "downward/labels"]
    assert [fleet.exec("whole", "cat", word) for word in words] == [
        "of the host",
        "s3cret",
        "s3cret",
        "whole",
        'app="whole"',
    ]
    assert {fleet.exec("whole", "cat", word) for word in ("config/greeting", "one", "all/deep/greeting")} <= {"old", "new"}
    assert fleet.exec("whole", "stat", "-L", "-c", "%a", "secret/password").strip() == "400"
    assert fleet.exec("whole", "readlink", "config/greeting").strip() == "..data/greeting"
    fleet.exec("whole", "sh", "-c", "echo mine > host/from-pod; echo kept > empty/file")
    assert (fleet.scratch / "from-pod").read_text() == "mine\n"


ASK_WHO = """
import json, os, ssl, urllib.request
folder = os.environ["CONTAINER_SANDBOX_MOUNT_POINT"] + "/{folder}"
usual = os.environ["CONTAINER_SANDBOX_MOUNT_POINT"] + "/var/run/secrets/kubernetes.io/serviceaccount"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
body = {{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}}
request = urllib.request.Request(
    f"https://{{host}}:{{port}}/apis/authentication.k8s.io/v1/selfsubjectreviews", json.dumps(body).encode(),
    {{"Authorization": "Bearer " + open(folder + "/token").read(), "Content-Type": "application/json"}})
context = ssl.create_default_context(cafile=usual + "/ca.crt")
print(urllib.request.urlopen(request, context=context, timeout=20).read().decode())
"""


@pytest.mark.parametrize("folder", ["all", "var/run/secrets/kubernetes.io/serviceaccount"])
def test_token_of_the_service_account_authenticates(fleet: Fleet, folder: str) -> None:
    fleet.running("whole")
    answer = json.loads(fleet.exec("whole", "python3", "-c", ASK_WHO.format(folder=folder)))
    user = answer["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:default"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["whole"]
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [MAC]


def test_containers_run_as_the_requested_user_or_an_unprivileged_one(fleet: Fleet) -> None:
    fleet.running("who")
    uid, gid = until(lambda: found if len(found := fleet.log("who").split()) == 2 else None, "it has printed its user")
    if not ROOT:
        assert (int(uid), int(gid)) == (os.geteuid(), os.getegid())
        return
    assert uid == gid
    assert int(uid) in pod_users(fleet), "a user of the pool"
    fleet.running("other-user")
    until(lambda: fleet.log("other-user").split() == ["2001", "3000"], "it has printed its user")
    # Programs that exec starts are the container's, too.
    assert fleet.exec("other-user", "id", "-u").strip() == "2001"
    assert fleet.exec("who", "id", "-u").strip() == uid
    # Containers run as root only on request.
    until(lambda: fleet.log("root").split() == ["0"], "root")


def pod_users(fleet: Fleet) -> range:
    config = yaml.safe_load((fleet.cluster.machines[MAC].folder / "kubelet.yaml").read_text())["podUsers"]
    return range(config["first"], config["first"] + config["count"])


# Everything that a pod has: its folder, and what its processes show. "root" looks in the same way, so the look is not blind.
SPY = """
for place in {places}; do
  if cat "{pod}/$place" || ls "{pod}/$place"; then echo "read $place"; else echo "refused $place"; fi
done 2>/dev/null
grep -l {uid} /proc/[0-9]*/environ 2>/dev/null | grep -q . && echo "read environment"
echo done
"""
PLACES = (
    *("pod.json", "containers", "containers/main/0/spec.json", "empty/empty", "volumes/secret", "volumes/all", "logs"),
    *("containers/main/sandbox/0", "containers/main/sandbox/0/all/token", "containers/main/sandbox/0/secret/password"),
    *("../../identity/client.pem", ".."),
)


@pytest.mark.skipif(not ROOT, reason="only a kubelet that runs as root gives pods users of their own")
def test_a_pod_reads_nothing_of_another_pod(fleet: Fleet) -> None:
    users = {name: fleet.exec(name, "id", "-u").strip() for name in ("whole", "who", "talks") if fleet.running(name)}
    assert len(set(users.values())) == 3
    uid = fleet.pod("whole")["metadata"]["uid"]
    script = SPY.format(places=" ".join(PLACES), pod=fleet.cluster.machines[MAC].folder / "kubelet/pods" / uid, uid=uid)
    for name in ("who", "other-user"):
        fleet.running(name)
        assert fleet.exec(name, "sh", "-c", script).splitlines() == [*(f"refused {place}" for place in PLACES), "done"]
    fleet.running("root")
    seen = fleet.exec("root", "sh", "-c", script)
    assert [place for place in PLACES if f"read {place}\n" not in seen] == []
    assert "read environment" in seen


def test_the_node_says_whether_pods_share_a_user(fleet: Fleet) -> None:
    found = {item["type"]: item for item in fleet.get("node", MAC)["status"]["conditions"]}["PodsShareUser"]
    assert (found["status"], found["reason"]) == (("False", "OneUserPerPod") if ROOT else ("True", "KubeletNotRoot"))


def test_a_mac_is_kept_awake_while_pods_run(fleet: Fleet) -> None:
    """A recorded caffeinate runs tail, which ends when the process that -w names ends."""
    fleet.running("probed")
    machine = fleet.cluster.machines[MAC]

    def waits() -> list[str]:
        shown = machine.run(["pgrep", "-af", r"tail -s 5 --pid=[0-9]+ -f /dev/null"], seconds=20).stdout.split()
        return [word.partition("=")[2] for word in shown if word.startswith("--pid=")]

    pid = until(waits, "it is kept awake")[0]
    assert "thunderfleet" in machine.run(["ps", "-o", "args=", "-p", pid], seconds=20).stdout


# Lifecycle


def test_startup_readiness_and_liveness_probes(fleet: Fleet) -> None:
    fleet.running("probed")
    fleet.await_pod("probed", lambda item: first(item).get("started") is False, "is not started")
    until(lambda: "Unhealthy" in fleet.events("probed"), "the startup probe fails")
    fleet.exec("probed", "touch", "begun")
    item = fleet.await_pod("probed", lambda item: first(item).get("started") is True, "is started")
    assert first(item)["ready"] is False
    fleet.exec("probed", "touch", "ready")
    fleet.await_pod("probed", lambda item: first(item).get("ready") is True, "is ready")
    fleet.exec("probed", "rm", "ready")
    item = fleet.await_pod("probed", lambda item: first(item).get("ready") is False, "is ready no more")
    assert first(item)["restartCount"] == 0
    fleet.exec("probed", "touch", "deaf")
    item = fleet.await_pod("probed", lambda item: first(item).get("restartCount") == 1, "is restarted")
    assert first(item)["lastState"]["terminated"]["exitCode"] == 143
    until(lambda: "liveness probe failed" in fleet.events("probed").get("Killing", ""), "the Event")


def test_restart_policies_and_crash_loop_back_off(fleet: Fleet) -> None:
    failed = fleet.await_pod("fails", lambda item: item["status"].get("phase") == "Failed", "fails")
    assert first(failed)["state"]["terminated"]["exitCode"] == 3
    assert first(failed)["state"]["terminated"]["reason"] == "Error"
    assert first(failed)["restartCount"] == 0
    done = fleet.await_pod("succeeds", lambda item: item["status"].get("phase") == "Succeeded", "succeeds")
    assert first(done)["state"]["terminated"]["reason"] == "Completed"
    again = fleet.await_pod("again", lambda item: item["status"].get("phase") == "Succeeded", "succeeds at the second try")
    assert first(again)["restartCount"] == 1
    assert fleet.log("again") == "try 1\n"
    crashes = fleet.await_pod(
        "crashes",
        lambda item: first(item).get("restartCount", 0) >= 1 and waits_for("CrashLoopBackOff")(item),
        "waits for another restart",
    )
    message = first(crashes)["state"]["waiting"]["message"]
    assert re.match(r"back-off (10|20|40|80|160|300)s restarting failed container", message)
    assert first(crashes)["lastState"]["terminated"]["exitCode"] == 5
    assert fleet.log("crashes", "--previous") == "here I crash\n"


def test_deleted_pod_is_asked_first_and_ended_as_a_whole(fleet: Fleet) -> None:
    item = fleet.running("stubborn")
    uid = item["metadata"]["uid"]
    until(lambda: "up" in fleet.log("stubborn"), "it says that it is up")
    until(lambda: len(alive_with(uid)) >= 3, "its child runs")
    fleet.kubectl("delete", "pod", "stubborn", "--wait=true", "--timeout=60s")
    assert (fleet.scratch / "prestop").read_text() == "stopping\n"
    assert alive_with(uid) == []
    # A process that was killed may have left GPU memory wired: an Event must say so.
    until(lambda: "ExceededGracePeriod" in fleet.events("stubborn"), "the Event")


def test_pods_that_cannot_run_here_wait_and_say_why(fleet: Fleet) -> None:
    foreign = fleet.await_pod("foreign", waits_for("NotRunnableOnMac"), "waits")
    assert "kubernetes.io/os: linux" in first(foreign)["state"]["waiting"]["message"]
    assert foreign["status"]["phase"] == "Pending"
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "unbound"}, "target": {"kind": "Node", "name": MAC}}
    fleet.kubectl("create", "--raw", "/api/v1/namespaces/default/pods/unbound/binding", "-f", "-", text=json.dumps(binding))
    unasked = fleet.await_pod("unasked", waits_for("NotRunnableOnMac"), "waits")
    assert "set runtimeClassName: macos" in first(unasked)["state"]["waiting"]["message"]
    unbound = fleet.await_pod("unbound", lambda item: item["status"]["phase"] == "Failed", "is rejected")
    assert unbound["status"]["reason"] == "NodeAffinity"
    own = fleet.await_pod("own-network", waits_for("HostNetworkRequired"), "waits")
    assert "hostNetwork: true" in first(own)["state"]["waiting"]["message"]


# Logs, exec and metrics


def test_logs(fleet: Fleet) -> None:
    fleet.running("talks")
    until(lambda: fleet.log("talks").count("\n") > 12, "a few lines")
    assert fleet.log("talks").splitlines()[0] in ("line 0", "warn 0")
    assert len(fleet.log("talks", "--tail=3").splitlines()) == 3
    assert len(fleet.log("talks", "--limit-bytes=10")) == 10
    stamped = fleet.log("talks", "--timestamps", "--tail=4").splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (line|warn) \d+", line) for line in stamped)
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    late = until(lambda: fleet.log("talks", f"--since-time={since}"), "newer lines")
    assert not re.search(r"^line 0$", late, re.MULTILINE)
    assert fleet.log("talks", "--since=1h").startswith(("line 0\n", "warn 0\n"))
    refused = fleet.kubectl("logs", "talks", "--previous", check=False)
    assert refused.returncode == 1
    assert "previous terminated container main in pod talks not found" in refused.stderr


def following(fleet: Fleet, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(fleet.cluster.tool("kubectl")), "logs", "-f", "--tail=1", name],
        env=fleet.cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_followed_log_brings_what_is_written_meanwhile(fleet: Fleet) -> None:
    fleet.running("stays")
    until(lambda: "tick" in fleet.log("stays"), "it ticks")
    with following(fleet, "stays") as follower:
        assert follower.stdout is not None
        numbers = [int(follower.stdout.readline().removeprefix("tick ")) for _ in range(6)]
        follower.kill()
    assert numbers == list(range(numbers[0], numbers[0] + 6))


def test_exec(fleet: Fleet) -> None:
    fleet.running("talks")
    assert fleet.exec("talks", "cat", text="in and out\n" * 20_000) == "in and out\n" * 20_000
    done = fleet.kubectl("exec", "talks", "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr
    missing = fleet.kubectl("exec", "talks", "--", "no-such-command", check=False)
    assert missing.returncode != 0
    assert "command 'no-such-command' not found on PATH=" in missing.stderr
    nowhere = fleet.kubectl("exec", "talks", "-c", "none", "--", "true", check=False)
    assert nowhere.returncode != 0


def test_attach_with_input_and_with_a_terminal(fleet: Fleet) -> None:
    fleet.running("listens")
    # kubectl says on standard error how to see a prompt.
    said = fleet.kubectl("attach", "-i", "listens", text="one\ntwo\n").stdout
    assert said.endswith("heard one. heard two. \nover\n")
    fleet.await_pod("listens", lambda item: item["status"]["phase"] == "Succeeded", "its input has ended")
    fleet.running("shell")
    refused = fleet.kubectl("attach", "-i", "talks", text="x", check=False)
    assert "has no input; set stdin: true in its spec" in refused.stderr
    outer, inner = os.openpty()
    termios.tcsetwinsize(inner, (33, 111))
    words = [str(fleet.cluster.tool("kubectl")), "attach", "-it", "shell"]
    environment = fleet.cluster.environment()
    with subprocess.Popen(words, env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True) as process:
        os.close(inner)
        try:
            os.write(outer, b"stty size; echo $((6*7)); exit 4\n")
            seen = b""
            while b"42\r\n" not in seen:
                assert select.select([outer], [], [], SECONDS)[0], seen
                seen += os.read(outer, 65536)
            assert b"33 111\r\n" in seen, "the size of the terminal of kubectl"
            process.wait(SECONDS)
        finally:
            process.kill()
            os.close(outer)
    ended = fleet.await_pod("shell", lambda item: item["status"]["phase"] == "Failed", "its shell has ended")
    assert first(ended)["state"]["terminated"]["exitCode"] == 4


def test_port_forward_reaches_the_pods_own_ports_only(fleet: Fleet) -> None:
    uid = fleet.running("serves")["metadata"]["uid"]
    until(lambda: "listens" in fleet.log("serves"), "the pod listens")
    with forwarding(fleet, "serves", FORWARD_PORT) as local:
        for _ in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=20) as answer:
                assert answer.read() == b"from the pod"
        assert alive_with(uid)
    # etcd's, the kubelet's: any program of the machine may listen there.
    with forwarding(fleet, "talks", FORWARD_PORT) as local:
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=20)
        refused = f"pod default/talks does not listen on TCP port {FORWARD_PORT} of node {MAC}: another process"
        until(lambda: refused in (fleet.scratch / "forward.err").read_text(), "kubectl shows the reason")


def test_figures_of_pods_under_the_names_of_kubernetes(fleet: Fleet) -> None:
    fleet.running("talks")

    def read(path: str) -> str:
        return fleet.kubectl("get", "--raw", f"/api/v1/nodes/{MAC}/proxy/{path}").stdout

    def figures(path: str, pod: str) -> dict[str, float]:
        families = text_string_to_metric_families(read(path))
        return {one.name: one.value for family in families for one in family.samples if one.labels.get("pod") == pod}

    found = figures("metrics/cadvisor", "talks")
    assert found["container_memory_rss"] == found["container_memory_working_set_bytes"] > 0
    assert "container_cpu_usage_seconds_total" in found
    until(lambda: figures("metrics/probes", "probed").get("prober_probe_total"), "a probe has a result")
    summary = json.loads(read("stats/summary"))
    assert summary["node"]["fs"]["capacityBytes"] > summary["node"]["fs"]["availableBytes"] > 0
    assert "talks" in [one["podRef"]["name"] for one in summary["pods"]]


def test_what_metrics_server_reads_is_there_for_every_running_container(fleet: Fleet) -> None:
    """The names and rules of metrics-server, which skips a container if one of its three figures is missing or 0."""
    fleet.running("talks")
    path = f"/api/v1/nodes/{MAC}/proxy"

    def running() -> set[tuple[str, str]]:
        pods = [one for one in fleet.get("pods")["items"] if one["spec"].get("nodeName") == MAC]
        statuses = [(pod["metadata"]["name"], one) for pod in pods for one in pod["status"].get("containerStatuses") or ()]
        return {(pod, one["name"]) for pod, one in statuses if "running" in one["state"]}

    missing: set[tuple[str, str]] = set()

    def complete() -> bool:
        before, text = running(), fleet.kubectl("get", "--raw", f"{path}/metrics/resource").stdout
        summary = json.loads(fleet.kubectl("get", "--raw", f"{path}/stats/summary").stdout)
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        names = ("container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds")
        figures = [
            {(one.labels["pod"], one.labels["container"]) for one in samples if one.name == name and one.value > 0}
            for name in names
        ]
        nodes = {one.name: one.value for one in samples if one.name.startswith("node_")}
        assert nodes["node_cpu_usage_seconds_total"] > 0 and nodes["node_memory_working_set_bytes"] > 0
        counted = {
            (pod["podRef"]["name"], one["name"])
            for pod in summary["pods"]
            for one in pod["containers"]
            if one["memory"]["workingSetBytes"] > 0 and one["cpu"]["usageCoreNanoSeconds"] > 0
        }
        # Containers that have ended since then are in neither.
        stayed = before & running()
        missing.clear()
        missing.update(*(stayed - found for found in (*figures, counted)))
        return len(stayed) > 3 and not missing

    until(complete, "each running container has all figures", describe=lambda: str(missing))


def test_debug_says_why_it_cannot(fleet: Fleet) -> None:
    fleet.running("talks")
    done = fleet.kubectl("debug", "talks", "--image=busybox", "-c", "debugger", "-i", check=False)
    assert "this node does not run ephemeral containers" in done.stderr + done.stdout
    assert first(fleet.pod("talks"))["ready"]


@contextlib.contextmanager
def forwarding(fleet: Fleet, pod: str, port: int) -> Iterator[int]:
    """The local port of a running ``kubectl port-forward``."""
    errors = fleet.scratch / "forward.err"
    words = [str(fleet.cluster.tool("kubectl")), "port-forward", f"pod/{pod}", f":{port}", "--address", "127.0.0.1"]
    environment = fleet.cluster.environment()
    with (
        errors.open("w") as file,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Forwarding from 127.0.0.1:"), (line, errors.read_text())
            yield int(line.split(" -> ")[0].rpartition(":")[2])
        finally:
            process.terminate()


def test_exec_ends_with_its_command_though_a_child_holds_its_output(fleet: Fleet) -> None:
    fleet.running("talks")
    # The child would hold the streams for an hour.
    assert fleet.exec("talks", "sh", "-c", "(setsid sleep 3600 &); echo done") == "done\n"


def test_strangers_are_refused(fleet: Fleet) -> None:
    fleet.running("talks")
    log, run = "/containerLogs/default/talks/main", "/exec/default/talks/main?command=id&output=1"
    for path in (log, run, "/pods", "/metrics", "/metrics/resource", "/healthz", "/nothing", "/portForward/default/talks"):
        assert fleet.ask_kubelet(path)[0] == 401, path
        assert fleet.ask_kubelet(path, "nonsense")[0] == 401, path
    token = fleet.kubectl("create", "token", "stranger").stdout.strip()
    for path in (log, run, "/pods", "/metrics", "/healthz"):
        code, said = fleet.ask_kubelet(path, token)
        assert code == 403, path
        assert "system:serviceaccount:default:stranger cannot" in said
    as_stranger = ("--as=system:serviceaccount:default:stranger",)
    for words in (("logs", "talks"), ("exec", "talks", "--", "id")):
        done = fleet.kubectl(*as_stranger, *words, check=False)
        assert done.returncode != 0
        assert "orbidden" in done.stderr
    # Permission for metrics covers only metrics, however the path is written.
    fleet.kubectl("create", "clusterrole", "figures", "--verb=get", "--resource=nodes/metrics")
    fleet.kubectl("create", "clusterrolebinding", "figures", "--clusterrole=figures", "--serviceaccount=default:stranger")
    until(lambda: fleet.ask_kubelet("/metrics/resource", token)[0] == 200, "figures may be read")
    for path in (log, run, "/pods", "/metrics/..%2fpods", "/metrics/../pods", f"/metrics/..{run}", f"/metrics%2f..{run}"):
        assert fleet.ask_kubelet(path, token)[0] in (403, 404), path


# While the cluster changes


def test_new_content_of_a_config_map_arrives_whole(fleet: Fleet) -> None:
    until(lambda: "saw new" in fleet.log("reader"), "the new content", 150)
    assert fleet.log("reader").splitlines() == ["saw old", "saw new"]


def numbers_of(fleet: Fleet, name: str) -> list[int]:
    return [int(number) for number in re.findall(r"^tick (\d+)$", fleet.log(name), re.MULTILINE)]


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_containers_outlive_their_kubelet(fleet: Fleet, how: str) -> None:
    machine = fleet.cluster.machines[MAC]
    before = fleet.running("stays")
    printed = until(lambda: re.findall(r"^I am (\d+)$", fleet.log("stays"), re.MULTILINE), "it says who it is")
    main = next(pid for pid in alive_with(before["metadata"]["uid"]) if own_number(pid) == int(printed[0]))
    last = until(lambda: numbers_of(fleet, "stays"), "it ticks")[-1]
    if how == "killed":
        machine.kill_kubelet()
    else:
        machine.stop_kubelet()
    log = next(machine.folder.glob(f"kubelet/pods/{before['metadata']['uid']}/logs/main/0.log"))
    size = log.stat().st_size
    until(lambda: log.stat().st_size > size, "the container writes on by itself")
    machine.start_kubelet()
    until(lambda: fleet.kubectl("logs", "stays", "--tail=1", check=False).returncode == 0, "its log is served again")
    until(lambda: numbers_of(fleet, "stays")[-1] > last, "the log goes on")
    numbers = numbers_of(fleet, "stays")
    assert numbers == list(range(numbers[-1] + 1))
    after = fleet.pod("stays")
    assert first(after)["restartCount"] == 0
    assert first(after)["containerID"] == first(before)["containerID"]
    assert first(after)["state"] == first(before)["state"]
    assert main in alive_with(after["metadata"]["uid"])
    assert fleet.exec("stays", "echo", "still here") == "still here\n"


def test_pods_are_looked_after_while_the_api_server_is_away(fleet: Fleet) -> None:
    before = fleet.running("talks")
    uid = before["metadata"]["uid"]
    fleet.cluster.component("kube-apiserver", "off")
    try:
        old = set(alive_with(uid))
        for pid in old:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: set(alive_with(uid)) - old, "the container is started again")
    finally:
        fleet.cluster.component("kube-apiserver", "on")
    until(lambda: fleet.kubectl("get", "pod", "talks", check=False).returncode == 0, "the API server is back")
    after = fleet.await_pod("talks", lambda item: first(item).get("restartCount") == 1, "the restart is reported")
    assert first(after)["lastState"]["terminated"]["exitCode"] == 137
    assert after["metadata"]["uid"] == uid
    assert fleet.exec("talks", "echo", "here") == "here\n"


def test_pod_deleted_while_its_kubelet_is_dead_ends_when_it_returns(fleet: Fleet) -> None:
    item = fleet.running("who")
    uid = item["metadata"]["uid"]
    machine = fleet.cluster.machines[MAC]
    machine.kill_kubelet()
    # As if the API server had lost the pod: only its processes remain.
    fleet.kubectl("delete", "pod", "who", "--force", "--grace-period=0", "--wait=true")
    assert alive_with(uid)
    machine.start_kubelet()
    until(lambda: not alive_with(uid), "its processes end")
    until(lambda: not (machine.folder / "kubelet/pods" / uid).exists(), "its folder goes")


def test_pods_of_a_deleted_node_end_and_it_registers_again(fleet: Fleet) -> None:
    old = fleet.get("node", LINUX)["metadata"]["uid"]
    uid = fleet.running("plain")["metadata"]["uid"]
    assert alive_with(uid)
    fleet.kubectl("delete", "node", LINUX)
    until(lambda: not alive_with(uid), "its pods end")
    until(lambda: fleet.node_ready(LINUX), "the Node is registered again")
    assert fleet.get("node", LINUX)["metadata"]["uid"] != old
    until(lambda: fleet.kubectl("get", "pod", "plain", check=False).returncode != 0, "its pod is gone")
    fleet.apply(pod("plain", [container(fleet.cluster.image, "echo again; sleep 3600")], node=LINUX))
    fleet.running("plain", SCHEDULED_SECONDS)
    until(lambda: fleet.log("plain") == "again\n", "its log")
