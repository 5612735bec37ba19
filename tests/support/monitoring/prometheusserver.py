"""A real Prometheus in a fleet, with the rights of a service account: its configuration, its start and its API."""

import base64
import contextlib
import os
import shlex
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support import yamltext
from tests.support.line import Line
from tests.support.waiting import until

Json = dict[str, Any]

COMMAND_SECONDS = 60.0
STACK_PAGES = ("/metrics/cadvisor", "/metrics/probes")
"""What kube-prometheus-stack scrapes of each kubelet beside ``/metrics``."""
RIGHTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
  - {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
"""


def promtool(programs: Path, *arguments: str, text: str | None = None) -> str:
    """Runs promtool, which must find nothing wrong."""
    done = subprocess.run(
        [str(programs / "promtool"), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


Configure = Callable[[str, Path], Json]
"""The configuration of Prometheus, from the URL of the API server and the folder with ``token`` and ``ca.crt``."""


def kubelets(api: Json) -> Json:
    """The job for kubelets, which have no PodMonitor because they run in no pod."""
    client = {"scheme": "https", "authorization": api["authorization"], "tls_config": api["tls_config"]}
    return {"job_name": "kubelets", "kubernetes_sd_configs": [{"role": "node", **api}], **client}


def access(server: str, folder: Path) -> Json:
    """How Prometheus reaches the API server."""
    token, ca = str(folder / "token"), str(folder / "ca.crt")
    return {"api_server": server, "authorization": {"credentials_file": token}, "tls_config": {"ca_file": ca}}


def scraping(
    server: str, folder: Path, rules: Path, pages: Sequence[str] = STACK_PAGES, interval: str = "1s", timeout: str = "1s"
) -> Json:
    """A configuration as people write it: pods by annotation, kubelets by node, and their other ``pages``."""
    api = access(server, folder)
    annotation = "__meta_kubernetes_pod_annotation_prometheus_io"
    pods = [
        {"source_labels": [f"{annotation}_scrape"], "action": "keep", "regex": "true"},
        {
            "source_labels": ["__meta_kubernetes_pod_ip", f"{annotation}_port"],
            "separator": ":",
            "target_label": "__address__",
        },
    ]
    # The label by which the rules and dashboards of kube-prometheus-stack choose among the targets of one kubelet.
    path = {"source_labels": ["__metrics_path__"], "target_label": "metrics_path"}
    stack = {**kubelets(api), "honor_labels": True, "scrape_interval": "3s", "relabel_configs": [path]}
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": timeout, "evaluation_interval": interval},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "pods", "kubernetes_sd_configs": [{"role": "pod", **api}], "relabel_configs": pods},
            kubelets(api),
            *({**stack, "job_name": page, "metrics_path": page} for page in pages),
        ],
    }


class Prometheus:
    """A running Prometheus and its API."""

    def __init__(self, line: Line, url: str) -> None:
        self.line = line
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        answer = self.line.request(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        assert answer.status == 200, f"{path} {query}: {answer.body}"
        return answer.json["data"]

    def answers(self) -> bool:
        try:
            return bool(self.line.request(f"{self.url}/-/ready", seconds=5).status == 200)
        except OSError:
            return False

    def value(self, expression: str) -> list[Json]:
        found: list[Json] = self.get("query", query=expression)["result"]
        return found


def command(line: Line, programs: Path, configure: Configure, folder: Path, address: str) -> list[str]:
    """What starts a Prometheus that listens at ``address``; its configuration, token and data are in ``folder``."""
    line.kubectl("apply", "-f", "-", text=RIGHTS)
    token = line.kubectl("create", "token", "prometheus", "-n", "default", "--duration=1h").strip()
    info = line.json("get", "configmap", "cluster-info", "-n", "kube-public")["data"]["kubeconfig"]
    cluster = yamltext.load(info)["clusters"][0]["cluster"]
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    configuration = folder / "prometheus.yaml"
    configuration.write_text(yamltext.dump(configure(cluster["server"], folder)))
    promtool(programs, "check", "config", str(configuration))
    return [
        *(str(programs / "prometheus"), f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    ]


@contextlib.contextmanager
def started(line: Line, programs: Path, configure: Configure, folder: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus on a Linux machine of the fleet."""
    machine = next(entry for entry in line.cluster.machines.values() if entry.kind == "linux")
    address = f"{machine.address}:{port}"
    words = shlex.join(command(line, programs, configure, folder, address))
    log, pid = folder / "log", folder / "pid"
    started = machine.run(["sh", "-c", f"{words} >{log} 2>&1 & echo $! >{pid}"])
    assert started.returncode == 0, started.stderr
    found = Prometheus(line, f"http://{address}")
    try:
        until(found.answers, "Prometheus answers", describe=lambda: log.read_text())
        yield found
    finally:
        machine.run(["kill", pid.read_text().strip()])


@contextlib.contextmanager
def beside(line: Line, programs: Path, configure: Configure, folder: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus in the network of the control plane, on no machine of the fleet, so that no fault of a machine hits it."""
    address = f"{urlsplit(str(line.cluster.state['innerServer'])).hostname}:{port}"
    user = () if os.geteuid() == 0 else ("-U", "--preserve-credentials")
    words = ["nsenter", "-t", str(line.cluster.pid), "-n", *user, *command(line, programs, configure, folder, address)]
    with (folder / "log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        found = Prometheus(line, f"http://{address}")
        try:
            until(found.answers, "Prometheus answers", describe=lambda: (folder / "log").read_text())
            yield found
        finally:
            process.terminate()
