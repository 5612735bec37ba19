"""An upgrade of the chart from its first release while groups serve: operator, agents and runners of that release are real."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.models import tinymodel

from tests.e2e.conftest import DESK, started
from tests.e2e.groups.test_lifecycle import asking
from tests.support.install.upgrading import release_of, version_of
from tests.support.line import CHART, INSTALL_SECONDS, MODEL, SYSTEM, Deployment, Line, condition, discovered
from tests.support.waiting import until

pytestmark = pytest.mark.soak

Json = dict[str, Any]

COMMIT, OLDER = "8b17501", "0.0.1"
IMAGE = "thunderfleet/thunderfleet"
VALUES = "operator.replicas=1,agent.modelsIntervalSeconds=2,agent.measure.enabled=false"
WAIT = ("--wait", "--timeout", f"{INSTALL_SECONDS}s")


@pytest.fixture(scope="module")
def older() -> Iterator[Line]:
    """The fleet with that release: kubelets are of this version, because the release has none that this fleet could start."""
    with started(DESK, "upgrade") as cluster:
        folder, chart = release_of(cluster, COMMIT, OLDER)
        for machine in cluster.machines.values():
            config = machine.folder / "kubelet.yaml"
            settings = yaml.safe_load(config.read_text())
            settings["images"][f"{IMAGE}:{OLDER}"] = str(folder)
            config.write_text(yaml.safe_dump(settings))
            machine.stop_kubelet()
            machine.start_kubelet()
        tinymodel.make(cluster.models / MODEL)
        cluster.kubectl("create", "namespace", SYSTEM)
        cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
        values = f"{VALUES},image.tag={OLDER},agent.modelFolders={{{cluster.models}}}"
        install(cluster, chart, "install", "--set", values)
        line = Line(cluster)
        until(lambda: discovered(line), "the agents know their Macs", INSTALL_SECONDS, describe=line.report)
        yield line


def install(cluster: Cluster, chart: Path, command: str, *options: str) -> None:
    cluster.helm(command, "thunderfleet", str(chart), "-n", SYSTEM, *options, *WAIT, seconds=INSTALL_SECONDS + 30)


def running(served: Deployment) -> dict[str, tuple[str, int, str]]:
    """UID, restarts and image of its pods."""
    return {
        item["metadata"]["name"]: (
            str(item["metadata"]["uid"]),
            sum(one["restartCount"] for one in item["status"]["containerStatuses"]),
            str(item["spec"]["containers"][0]["image"]),
        )
        for item in served.children()
        if item["kind"] == "Pod"
    }


def test_an_upgrade_from_the_first_release_restarts_no_group(older: Line) -> None:
    alone = older.deploy("alone", nodes={"min": 1, "max": 1})
    pair = older.deploy("pair", nodes={"min": 2, "max": 2}, parallelism="Pipeline", transport="Ring")
    groups = [served.until_ready() for served in (alone, pair)]
    before = [(served.group()["epoch"], running(served)) for served in groups]
    assert {image for _, pods in before for _, _, image in pods.values()} == {f"{IMAGE}:{OLDER}"}
    with asking(older, alone) as of_alone, asking(older, pair) as of_pair:
        # As a user does who has set values before and sets the image for this upgrade.
        install(older.cluster, CHART, "upgrade", "--reuse-values", "--set", "image.tag=")
        wanted = f"{IMAGE}:{version_of(older.cluster)}"

        def renewed() -> bool:
            pods = older.items("pods", "-n", SYSTEM)
            ready = [pod for pod in pods if condition(pod, "Ready").get("status") == "True"]
            return len(ready) == len(pods) == 3 and {pod["spec"]["containers"][0]["image"] for pod in pods} == {wanted}

        until(renewed, "operator and agents are of this version", INSTALL_SECONDS, describe=older.report)
        for served in groups:
            # A condition that only this version writes.
            served.until_condition("Reconciling", "False")
            served.until_ready()
        assert (of_alone, of_pair) == ([], [])
        assert [(served.group()["epoch"], running(served)) for served in groups] == before
        assert [served.group().get("restarts", 0) for served in groups] == [0, 0]
    kinds = json.loads(older.kubectl("get", "crd", "-o", "json"))["items"]
    assert "modelcaches.thunderfleet.io" in {item["metadata"]["name"] for item in kinds}
    assert "FIELD: suspend" in older.kubectl("explain", "md.spec.suspend")

    # The new operator goes on with what the old one made.
    alone.patch({"memory": {"contextTokens": 2048}})
    alone.until(lambda: alone.group().get("epoch", 0) > before[0][0], "a changed spec is a new placement")
    alone.until_ready()
    assert {image for _, _, image in running(alone).values()} == {wanted}
    assert running(pair) == before[1][1], "the other group goes on"
    for served in groups:
        older.forget(served)
