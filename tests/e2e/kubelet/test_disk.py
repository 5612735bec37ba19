"""A Mac with a small disk, on the real control plane: limits, pressure, the taint, and who is evicted."""

import functools
import json
import os
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support.api import Api
from tests.support.waiting import until

Json = dict[str, Any]

MAC = "disk-mac"
SECONDS = 120.0
NODE = f"/api/v1/nodes/{MAC}"
TAINT = "node.kubernetes.io/disk-pressure"
SMALL = """
set -e
mv {kubelet} {kubelet}.old
mkdir {kubelet}
mount -t tmpfs -o size=64m,mode=0755 tmpfs {kubelet}
cp -a {kubelet}.old/. {kubelet}/
"""


@pytest.fixture(scope="module")
def cluster(kubelets: Cluster) -> Cluster:
    """One Mac's kubelet has its state on a file system of 64 MiB. No other tests use that Mac."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    machine = kubelets.machines[MAC]
    machine.stop_kubelet()
    done = machine.run(["sh", "-c", SMALL.format(kubelet=machine.folder / "kubelet")])
    assert done.returncode == 0, done.stderr
    file = machine.folder / "kubelet.yaml"
    # The thresholds of a real Mac.
    settings = {**yaml.safe_load(file.read_text()), "evictionHard": {}, "evictionPressureTransitionSeconds": 3}
    file.write_text(yaml.safe_dump(settings))
    machine.start_kubelet()
    return kubelets


def make(cluster: Cluster, name: str, script: str, empty: Json | None = None) -> None:
    container = {
        "name": "main",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    item = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": True,
            "nodeSelector": {"kubernetes.io/os": "darwin", "kubernetes.io/hostname": MAC},
            "tolerations": [{"key": "thunderfleet.io/macos", "operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": empty or {}}],
        },
    }
    cluster.kubectl("apply", "-f", "-", text=json.dumps(item))


@functools.cache
def api(cluster: Cluster) -> Api:
    return Api(cluster, SECONDS)


def status(cluster: Cluster, name: str) -> Json:
    found: Json = (api(cluster).get(f"/api/v1/namespaces/default/pods/{name}") or {})["status"]
    return found


def pressure(cluster: Cluster) -> tuple[str, bool]:
    """The status of the condition, and whether the Node has the taint."""
    return pressure_of(api(cluster).get(NODE) or {})


def pressure_of(node: Json) -> tuple[str, bool]:
    """As ``pressure``."""
    (condition,) = (item for item in node["status"]["conditions"] if item["type"] == "DiskPressure")
    return condition["status"], any(taint["key"] == TAINT for taint in node["spec"].get("taints") or [])


def write(count: int) -> str:
    return f'dd if=/dev/zero of="$HOME/data/file" bs=1M count={count}; sleep 3600'


def test_the_pod_that_fills_the_disk_is_evicted_and_the_node_recovers(cluster: Cluster) -> None:
    until(lambda: pressure(cluster) == ("False", False), "the node has no pressure", SECONDS)
    make(cluster, "quiet", write(1))
    make(cluster, "limited", write(3), {"sizeLimit": "2Mi"})
    until(lambda: status(cluster, "quiet").get("phase") == "Running", "it runs", SECONDS)
    until(lambda: status(cluster, "limited").get("phase") == "Failed", "it is evicted", SECONDS)
    ended = status(cluster, "limited")
    assert (ended["reason"], ended["message"]) == ("Evicted", 'Usage of EmptyDir volume "data" exceeds the limit "2Mi". ')
    # The pressure ends seconds after the eviction, maybe between two looks.
    with api(cluster).watched(NODE) as nodes:
        make(cluster, "fat", write(99))
        until(lambda: ("True", True) in [pressure_of(node) for node in list(nodes)], "condition and taint", SECONDS)
    until(lambda: status(cluster, "fat").get("phase") == "Failed", "it is evicted", SECONDS)
    ended = status(cluster, "fat")
    assert ended["reason"] == "Evicted"
    assert ended["message"].startswith("The node was low on resource: ephemeral-storage. Threshold quantity: ")
    (target,) = (item for item in ended["conditions"] if item["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
    until(lambda: pressure(cluster) == ("False", False), "the node has no pressure any more", SECONDS)
    assert status(cluster, "quiet")["phase"] == "Running"

    def events() -> set[tuple[str, str]]:
        items = api(cluster).items("/api/v1/namespaces/default/events")
        return {(item["involvedObject"]["name"], item["reason"]) for item in items}

    wanted = {("fat", "Evicted"), ("limited", "Evicted"), (MAC, "EvictionThresholdMet")}
    until(lambda: wanted <= events(), "Events tell of it", SECONDS, describe=lambda: str(events()))
    make(cluster, "next", "sleep 3600")
    until(lambda: status(cluster, "next").get("phase") == "Running", "the node takes pods again", SECONDS)
