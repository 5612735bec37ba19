"""The example of an InferencePool, at an API server with the CRD of gateway-api-inference-extension."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.otherprojects.otherkinds import INFERENCE_EXTENSION
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "inferencepool.yaml"
NAME = "inferencepools.inference.networking.k8s.io"
FILE = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"


@pytest.fixture
def pools(control_plane: Cluster) -> Iterator[Cluster]:
    """An API server that has InferencePools."""
    control_plane.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(INFERENCE_EXTENSION.definition(FILE)))
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=60s", seconds=90)
    yield control_plane
    control_plane.kubectl("delete", "crd", NAME, "--timeout=60s", seconds=90)


def test_the_api_server_accepts_the_example_and_keeps_all_of_it(pools: Cluster) -> None:
    wanted: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    namespace = wanted["metadata"]["namespace"]
    if namespace not in pools.kubectl("get", "namespaces", "-o", "name").stdout:
        pools.kubectl("create", "namespace", namespace)
    # Discovery may know the new kind a moment later.
    arguments = ("create", "--validate=strict", "-f", str(EXAMPLE))
    until(lambda: pools.kubectl(*arguments).stdout, "the example is accepted", retry_on=(LocalClusterError,))
    name = wanted["metadata"]["name"]
    found = json.loads(pools.kubectl("get", NAME, name, "-n", namespace, "-o", "json").stdout)
    picker = found["spec"]["endpointPickerRef"]
    # What the API server adds: the example means a Service.
    assert picker.pop("kind") == "Service" and picker.pop("group") == ""
    assert found["spec"] == wanted["spec"]

    # The rules of the CRD are in force.
    for change in (
        {"endpointPickerRef": {"port": None}},
        {"targetPorts": [{"number": 0}]},
        {"selector": {"matchLabels": None}},
    ):
        with pytest.raises(LocalClusterError, match="is invalid"):
            pools.kubectl("patch", NAME, name, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": change}))
