"""The chart's PodMonitors and alerts, at an API server with the CRDs of prometheus-operator."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support import yamltext
from tests.support.monitoring import prometheusoperator
from tests.support.waiting import until

Json = dict[str, Any]

CHART = Path(__file__).parents[3] / "charts" / "thunderfleet"
NAMES = [f"{kind}.monitoring.coreos.com" for kind in prometheusoperator.KINDS]
VALUES = "podMonitors.enabled=true,alerts.enabled=true,router.enabled=true,router.tls.secretName=router"
DRY_RUN = ("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-")


@pytest.fixture
def monitored(control_plane: Cluster) -> Iterator[Cluster]:
    """An API server that has PodMonitors and PrometheusRules."""
    for crd in prometheusoperator.definitions():
        control_plane.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(crd))
    crds = [f"crd/{name}" for name in NAMES]
    control_plane.kubectl("wait", "--for=condition=Established", *crds, "--timeout=60s", seconds=90)
    yield control_plane
    control_plane.kubectl("delete", "crd", *NAMES, "--timeout=60s", seconds=90)


def test_the_api_server_accepts_monitors_and_alerts_and_keeps_all_of_them(monitored: Cluster) -> None:
    done = monitored.helm("template", "x", str(CHART), "--namespace", "default", "--set", VALUES)
    objects = [item for item in yamltext.load_all(done.stdout) if item and item["kind"] in ("PodMonitor", "PrometheusRule")]
    assert len(objects) == 5
    for wanted in objects:

        def accepted(wanted: Json = wanted) -> Json:
            found: Json = json.loads(monitored.kubectl(*DRY_RUN, text=json.dumps(wanted)).stdout)
            return found

        # Discovery may know the new kind a moment later.
        found = until(accepted, f"{wanted['metadata']['name']} is accepted", retry_on=(LocalClusterError,))
        for endpoint in found["spec"].get("podMetricsEndpoints", ()):
            for relabeling in endpoint.get("relabelings", ()):
                # The default, which the API server adds.
                if relabeling["action"] == "replace":
                    del relabeling["action"]
        assert found["spec"] == wanted["spec"]

    # The schema is in force.
    monitor, rule = objects[0], next(item for item in objects if item["kind"] == "PrometheusRule")
    wrong = (
        {**monitor, "spec": {**monitor["spec"], "selectors": {}}},
        {**monitor, "spec": {**monitor["spec"], "podMetricsEndpoints": [{"port": 1}]}},
        {**rule, "spec": {"groups": [{"name": "x", "rules": [{"alert": "x"}]}]}},
    )
    for item in wrong:
        with pytest.raises(LocalClusterError, match=r"unknown field|invalid"):
            monitored.kubectl(*DRY_RUN, text=json.dumps(item))
