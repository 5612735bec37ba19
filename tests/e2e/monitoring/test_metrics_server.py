"""``kubectl top`` through the real metrics-server, with the TLS of the kubelets and the rights of a service account."""

import base64
import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.assets import METRICS_SERVER
from thunderfleet_lib.quantity import to_bytes
from thunderfleet_localcluster.programs import find_programs

from tests.support import yamltext
from tests.support.api import Unreachable
from tests.support.line import Deployment, Line
from tests.support.otherprojects import oldkubectl
from tests.support.waiting import until

Json = dict[str, Any]

pytestmark = pytest.mark.soak
PORT = 10443
NAME = "metrics-server"
TOP_SECONDS = 180.0
"""metrics-server needs two scrapes, 15 seconds apart, for a rate of CPU time."""

OBJECTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:metrics-server}
rules:
  - {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
  - {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:metrics-server}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:metrics-server}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-server:system:auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
"""


def front(address: str) -> list[Json]:
    """How the API server reaches it. A local cluster has no addresses of Services, so an ExternalName is the way."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": address, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                # Its certificate for the API server is its own, as in its manifests. Those of the kubelets are checked.
                "insecureSkipTLSVerify": True,
                "service": {"name": NAME, "namespace": "kube-system", "port": PORT},
            },
        },
    ]


@pytest.fixture(scope="module")
def metrics_server(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The log of a metrics-server that runs on a Linux machine of the fleet."""
    program = find_programs(lambda event: None, METRICS_SERVER) / NAME
    machine = next(entry for entry in line.cluster.machines.values() if entry.kind == "linux")
    line.kubectl("apply", "-f", "-", text=OBJECTS)
    line.kubectl("apply", "-f", "-", text=yamltext.dump_all(front(str(machine.address))))
    folder = tmp_path_factory.mktemp(NAME)
    info = line.json("get", "configmap", "cluster-info", "-n", "kube-public")["data"]["kubeconfig"]
    cluster = yamltext.load(info)["clusters"][0]["cluster"]
    token = line.kubectl("create", "token", NAME, "-n", "kube-system", "--duration=1h").strip()
    (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yamltext.dump(config))
    command = [
        str(program),
        *(f"--{name}={folder / 'kubeconfig'}" for name in ("kubeconfig", "authentication-kubeconfig")),
        f"--authorization-kubeconfig={folder / 'kubeconfig'}",
        f"--kubelet-certificate-authority={folder / 'ca.crt'}",
        *("--kubelet-preferred-address-types=InternalIP", "--metric-resolution=15s"),
        *(f"--bind-address={machine.address}", f"--secure-port={PORT}", f"--cert-dir={folder / 'certificates'}"),
    ]
    log, pid = folder / "log", folder / "pid"
    started = machine.run(["sh", "-c", f"{shlex.join(command)} >{log} 2>&1 & echo $! >{pid}"])
    assert started.returncode == 0, started.stderr
    try:
        yield log
    finally:
        machine.run(["kill", pid.read_text().strip()])
        line.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io")


def rows(text: str) -> dict[str, list[str]]:
    """A table of ``kubectl top``, by the first column."""
    return {row.split()[0]: row.split()[1:] for row in text.splitlines()}


def test_kubectl_top_shows_every_node_and_container(line: Line, pair: Deployment, metrics_server: Path) -> None:
    def listed(kind: str) -> set[str]:
        try:
            found = line.api.get(f"/apis/metrics.k8s.io/v1beta1/{kind}") or {}
        except Unreachable:
            # Until the API server has found it, or while it has no figures yet.
            return set()
        return {item["metadata"]["name"] for item in found.get("items", ())}

    nodes = {item["metadata"]["name"] for item in line.items("nodes")}
    ranks = {str(rank["pod"]) for rank in pair.ranks()}

    def complete() -> bool:
        return listed("nodes") == nodes and ranks <= listed("pods")

    until(complete, "every Node and every rank has metrics", TOP_SECONDS, describe=lambda: metrics_server.read_text()[:3000])
    shown = rows(line.kubectl("top", "nodes", "--no-headers"))
    assert set(shown) == nodes
    for cpu, _, memory, _ in shown.values():
        assert re.fullmatch(r"\d+m", cpu) and to_bytes(memory) > 0
    pods = rows(line.kubectl("top", "pods", "--no-headers", "-n", pair.namespace))
    assert ranks <= set(pods)
    containers = line.kubectl("top", "pods", "--containers", "--no-headers", "-n", pair.namespace).splitlines()
    assert {tuple(row.split()[:2]) for row in containers} >= {(pod, "runner") for pod in ranks}
    for rank in ranks:
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{pair.namespace}/pods/{rank}"
        (runner,) = json.loads(line.kubectl("get", "--raw", path))["containers"]
        # A supervisor, its intake and a rank with a model.
        assert to_bytes(runner["usage"]["memory"]) > 50 * 2**20
    # kubectl of two versions before shows the same.
    old = partial(oldkubectl.run, oldkubectl.program(), line.cluster.environment())
    assert set(rows(old("top", "nodes", "--no-headers").stdout)) == nodes
    assert ranks <= set(rows(old("top", "pods", "--no-headers", "-n", pair.namespace).stdout))
    scrapes = [row for row in metrics_server.read_text().splitlines() if "scrape" in row]
    assert not [row for row in scrapes if "x509" in row], "the certificates of kubelets are valid for their addresses"
