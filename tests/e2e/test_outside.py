"""Examples for programs that lead to our Services or scale our ModelDeployments, checked by a real API server."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.client.cluster import Cluster

Json = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples" / "outside"


@pytest.mark.parametrize("name", ["ingress", "hpa"])
def test_the_api_server_accepts_an_example_as_it_is(control_plane: Cluster, name: str) -> None:
    """Without a warning: no field is unknown or deprecated. Nothing is stored."""
    wanted: Json = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    wanted["metadata"].pop("namespace", None)
    command = ("create", "--dry-run=server", "--validate=strict", "-n", "default", "-o", "json", "-f", "-")
    done = control_plane.kubectl(*command, text=yaml.safe_dump(wanted))
    assert done.stderr == ""
    assert json.loads(done.stdout)["kind"] == wanted["kind"]
