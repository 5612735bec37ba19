"""A cluster that kubeadm made, with nothing of ours: the chart is installed, Macs join, and their logs can be read.

The phases of ``kubeadm init`` make certificates, command lines of the control plane, bootstrap token, roles, and add-ons. A
recorded Linux machine runs these command lines instead of a container engine, and our kubelet as the node.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from thunderfleet_controlplane.assets import CONTROL_PLANE, KUBERNETES, Bundle, find_go
from thunderfleet_lib.net.tls import public_key_hash
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.launch import kubelet_command
from thunderfleet_localcluster.models import tinymodel

from tests.e2e.conftest import started
from tests.support.line import CHART, MODEL, SYSTEM, manifest
from tests.support.waiting import until

pytestmark = pytest.mark.soak

Json = dict[str, Any]

FLEET = """
machines:
  - {name: cp, kind: linux}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
"""
TOKEN = "abcdef.0123456789abcdef"
TAINT = "node-role.kubernetes.io/control-plane"
BUILD_SECONDS = 1200
LOGS_SECONDS = 60.0
SECONDS = 180.0


@dataclass(frozen=True)
class Tool(Bundle):
    """Kubeadm of the version of our control plane, which only this test uses."""

    @property
    def module(self) -> Path:
        return Path(__file__).parents[2] / "clients" / "kubeadm"


TOOL = Tool("kubeadm", {"kubeadm": ("k8s.io/kubernetes/cmd/kubeadm", 60)}, CONTROL_PLANE.flags, given=False)


@pytest.fixture(scope="module")
def kubeadm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubeadm")
    go, env = find_go(TOOL, folder / "cache", lambda event: None)
    command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", TOOL.flags, "-o", str(folder / "kubeadm")]
    done = subprocess.run(
        [*command, TOOL.programs["kubeadm"][0]],
        cwd=TOOL.module,
        env=env,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "kubeadm"


class Foreign:
    """The cluster. Commands run on its first machine, where its API server is."""

    def __init__(self, cluster: Cluster, kubeadm: Path, folder: Path) -> None:
        self.cluster, self.kubeadm, self.folder = cluster, kubeadm, folder
        self.address = cluster.machines["cp"].address
        self.tools = cluster.tool("kubectl").parent
        self.admin = folder / "admin.conf"
        self.config = folder / "kubeadm.yaml"
        node = {"name": "cp", "criSocket": "unix:///none"}
        documents: list[Json] = [
            {
                "kind": "InitConfiguration",
                "localAPIEndpoint": {"advertiseAddress": self.address, "bindPort": 6443},
                "nodeRegistration": node,
                "bootstrapTokens": [{"token": TOKEN, "ttl": "1h"}],
            },
            {
                "kind": "ClusterConfiguration",
                "kubernetesVersion": KUBERNETES,
                "certificatesDir": str(folder / "pki"),
                "networking": {"podSubnet": "10.244.0.0/16"},
                "etcd": {"local": {"dataDir": str(folder / "etcd")}},
            },
        ]
        self.config.write_text(yaml.safe_dump_all({"apiVersion": "kubeadm.k8s.io/v1beta4", **one} for one in documents))

    def run(self, *argv: object, machine: str = "cp", text: str = "", code: int | None = 0) -> str:
        done = self.cluster.machines[machine].run([str(one) for one in argv], text, seconds=SECONDS)
        assert code is None or done.returncode == code, f"{argv}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def kubectl(self, *arguments: str, text: str = "", code: int | None = 0) -> str:
        return self.run(self.tools / "kubectl", "--kubeconfig", self.admin, *arguments, text=text, code=code)

    def items(self, *arguments: str) -> list[Json]:
        found: list[Json] = json.loads(self.kubectl("get", *arguments, "-o", "json"))["items"]
        return found

    def phase(self, *phase: str) -> None:
        self.run(self.kubeadm, "init", "phase", *phase, "--config", self.config, "--kubeconfig", self.admin)

    def background(self, machine: str, argv: list[str], log: str) -> None:
        """Starts a program on a machine; it ends with the machine."""
        self.run("sh", "-c", f"setsid {shlex.join(argv)} </dev/null >{self.folder}/{log}.log 2>&1 &", machine=machine)

    def start(self) -> None:
        """What ``kubeadm init`` does up to its add-ons."""
        manifests = self.folder / "manifests"
        manifests.mkdir()
        # With --dry-run and this variable, kubeadm writes the manifests of the control plane there, and not below /etc.
        environment = {**os.environ, "KUBEADM_INIT_DRYRUN_DIR": str(manifests)}
        for phase in (
            ("certs", "all"),
            ("kubeconfig", "all", "--kubeconfig-dir", str(self.folder)),
            ("etcd", "local", "--dry-run"),
            ("control-plane", "all", "--dry-run"),
        ):
            command = [str(self.kubeadm), "init", "phase", *phase, "--config", str(self.config)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
            assert done.returncode == 0, done.stderr
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
            made = yaml.safe_load((manifests / f"{name}.yaml").read_text())
            argv = [word.replace("/etc/kubernetes", str(self.folder)) for word in made["spec"]["containers"][0]["command"]]
            assert argv[0] == name
            self.background("cp", [str(self.tools / name), *argv[1:]], name)
        until(lambda: self.kubectl("get", "--raw", "/readyz", code=None) == "ok", "the API server is ready", SECONDS)
        # As kubeadm init does with this kubeconfig, so that admin.conf and the API server's client of kubelets have rights.
        admins = "kubeadm:cluster-admins"
        granted = ("create", "clusterrolebinding", admins, "--clusterrole=cluster-admin", f"--group={admins}")
        self.run(self.tools / "kubectl", "--kubeconfig", self.folder / "super-admin.conf", *granted)
        for step in (("upload-config", "kubeadm"), ("bootstrap-token",), ("addon", "kube-proxy"), ("addon", "coredns")):
            self.phase(*step)

    def join(self, machine: str) -> None:
        """As docs/install.md says for a cluster with another control plane."""
        home = self.cluster.machines[machine].folder
        (home / "token").write_text(TOKEN)
        ca = x509.load_pem_x509_certificate((self.folder / "pki/ca.crt").read_bytes())
        where = ["--server", f"https://{self.address}:6443", "--ca-hash", public_key_hash(ca.public_key())]
        files = ["--token-file", str(home / "token"), "--root", str(home / "kubelet"), "--config", str(home / "kubelet.yaml")]
        self.background(machine, [*kubelet_command(), "join", *where, *files], f"kubelet-{machine}")

    def ready(self) -> list[str]:
        found = []
        for node in self.items("nodes"):
            conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", [])}
            found += [node["metadata"]["name"]] if conditions.get("Ready") == "True" else []
        return sorted(found)


@pytest.fixture(scope="module")
def foreign(kubeadm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with started(FLEET, "kubeadm", join=False) as cluster:
        found = Foreign(cluster, kubeadm, tmp_path_factory.mktemp("foreign"))
        found.start()
        yield found


def test_macs_join_a_cluster_of_kubeadm(foreign: Foreign) -> None:
    foreign.join("cp")
    until(lambda: foreign.ready() == ["cp"], "the control plane's node is Ready", SECONDS)
    # As the phase mark-control-plane does.
    foreign.kubectl("label", "node", "cp", f"{TAINT}=")
    foreign.kubectl("taint", "node", "cp", f"{TAINT}=:NoSchedule")
    tinymodel.make(foreign.cluster.models / MODEL)
    foreign.kubectl("create", "namespace", SYSTEM)
    foreign.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
    values = (
        f"operator.replicas=1,agent.modelFolders={{{foreign.cluster.models}}},agent.measure.enabled=false,hub.enabled=false"
    )
    helm = (foreign.tools / "helm", "--kubeconfig", foreign.admin, "install", "thunderfleet", CHART, "--namespace", SYSTEM)
    foreign.run(*helm, "--set", values, "--wait", "--timeout", "150s")

    began = time.monotonic()
    for mac in ("studio-1", "studio-2"):
        foreign.join(mac)

    def logs() -> bool:
        pods = foreign.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=agent")
        return len(pods) == 2 and all(
            foreign.kubectl("logs", "-n", SYSTEM, pod["metadata"]["name"], "--tail=1", code=None) for pod in pods
        )

    until(logs, "kubectl logs of both agents", LOGS_SECONDS)
    print(f"kubectl logs worked {time.monotonic() - began:.0f} s after both Macs were asked to join", file=sys.stderr)
    assert foreign.ready() == ["cp", "studio-1", "studio-2"]

    # kube-proxy and CoreDNS of kubeadm are for Linux only, and Macs take no pods of theirs.
    placed = {
        (pod["metadata"]["labels"]["k8s-app"], pod["spec"].get("nodeName"))
        for pod in foreign.items("pods", "-n", "kube-system")
    }
    assert {node for _, node in placed} <= {"cp", None}

    foreign.kubectl("create", "namespace", "models")
    made = manifest("models", "tiny", {"model": {"repository": MODEL}, "benchmark": {"promptTokens": 2, "generationTokens": 1}})
    foreign.kubectl("apply", "-f", "-", text=yaml.safe_dump(made))
    foreign.kubectl("wait", "md/tiny", "-n", "models", "--for=condition=Ready", "--timeout=150s")
    foreign.kubectl("wait", "md/tiny", "-n", "models", "--for=condition=Reconciling=false", "--timeout=30s")
