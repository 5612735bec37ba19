"""The chart of a registry: pushed as an OCI artifact, installed and upgraded from there by helm on a machine of the fleet."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.models import tinymodel

from tests.e2e.conftest import DESK, started
from tests.e2e.groups.test_lifecycle import asking
from tests.e2e.routing.test_router import ONE_MAC
from tests.support.images import distribution
from tests.support.images.registry import Registry, save
from tests.support.line import CHART, INSTALL_SECONDS, MODEL, SYSTEM, Line, discovered
from tests.support.waiting import until

pytestmark = pytest.mark.soak

Json = dict[str, Any]

PORT = 15127
FIRST, SECOND = "0.0.7", "0.0.8"
"""Versions of the chart. Both install the same image."""
HELM_SECONDS = INSTALL_SECONDS + 60


class Published:
    """A cluster without the chart, and a registry on its Linux machine that has two versions of it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.home = cluster.machines["linux-1"]
        self.host = f"{self.home.address}:{PORT}"
        self.url = f"oci://{self.host}/charts/thunderfleet"
        save(Registry(), folder / "empty")
        distribution.start(self.home, folder / "empty", self.host)
        for version in (FIRST, SECOND):
            self.helm("package", str(CHART), "--version", version, "-d", str(folder))
            self.helm("push", str(self.package(version)), f"oci://{self.host}/charts", "--plain-http")

    def package(self, version: str) -> Path:
        return self.folder / f"thunderfleet-{version}.tgz"

    def helm(self, *words: str, code: int = 0) -> str:
        """Runs helm on the Linux machine, which reaches the registry. Returns what it prints."""
        own = {f"HELM_{name}_HOME": str(self.folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        own |= {"KUBECONFIG": str(self.cluster.folder.inner_kubeconfig), "PATH": os.environ["PATH"]}
        settings = [f"{name}={value}" for name, value in own.items()]
        command = shlex.join(["env", *settings, str(self.cluster.tool("helm")), *words])
        done = self.home.run(["sh", "-c", f"{command} 2>&1"], seconds=HELM_SECONDS)
        assert done.returncode == code, f"helm {shlex.join(words)}: {done.stdout}"
        return done.stdout

    def released(self, verb: str, version: str, *words: str, code: int = 0) -> str:
        """Installs or upgrades the release with a version of the registry's chart."""
        wait = ("--wait", "--timeout", f"{INSTALL_SECONDS}s")
        options = ("--version", version, "--plain-http", "-n", SYSTEM, *wait, *words)
        return self.helm(verb, "thunderfleet", self.url, *options, code=code)

    def chart_of(self, line: Line) -> set[str]:
        """The versions that the labels of the running Deployment and DaemonSet name."""
        found = line.items("deployments", "-n", SYSTEM) + line.items("daemonsets", "-n", SYSTEM)
        return {item["metadata"]["labels"]["helm.sh/chart"] for item in found}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    with started(DESK, "charts") as cluster:
        tinymodel.make(cluster.models / MODEL)
        cluster.kubectl("create", "namespace", SYSTEM)
        cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
        yield Published(cluster, tmp_path_factory.mktemp("charts"))


def test_helm_installs_and_upgrades_the_chart_of_a_registry(published: Published) -> None:
    line = Line(published.cluster)
    missing = published.released("install", "9.9.9", code=1)
    assert "9.9.9" in missing
    assert line.items("deployments", "-n", SYSTEM) == []
    models = f"agent.modelFolders={{{published.cluster.models}}}"
    usual = "operator.replicas=1,agent.modelsIntervalSeconds=2,agent.measure.enabled=false,hub.enabled=false"
    said = published.released("install", FIRST, "--set", usual, "--set", models)
    assert f"{published.host}/charts/thunderfleet:{FIRST}" in said
    assert published.chart_of(line) == {f"thunderfleet-{FIRST}"}
    until(lambda: discovered(line), "the agents know their Macs", INSTALL_SECONDS, describe=line.report)
    served = line.deploy("served", **ONE_MAC).until_ready()
    pods = {pod["metadata"]["uid"] for pod in line.items("pods", "-n", served.namespace)}

    with asking(line, served) as lost:
        published.released("upgrade", SECOND, "--reuse-values")
        assert published.chart_of(line) == {f"thunderfleet-{SECOND}"}
        served.until(served.serves, "it serves")
        assert lost == []
    assert {pod["metadata"]["uid"] for pod in line.items("pods", "-n", served.namespace)} == pods
    published.helm("rollback", "thunderfleet", "1", "-n", SYSTEM, "--wait", "--timeout", f"{INSTALL_SECONDS}s")
    assert published.chart_of(line) == {f"thunderfleet-{FIRST}"}
    line.forget(served)
