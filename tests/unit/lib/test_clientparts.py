"""Parts of the official Kubernetes client are loaded when they are used, and not before."""

import json
import subprocess
import sys
from typing import Any

import pytest
from thunderfleet_lib import clientparts

LOADED = """
import json, sys
import thunderfleet_cli.cli
before = sorted(sys.modules)
import kubernetes
works = {
    "client": kubernetes.client.Configuration.__module__,
    "config": kubernetes.config.load_kube_config.__module__,
    "watch": kubernetes.watch.Watch.__module__,
    "aio": kubernetes.aio.watch.Watch.__module__,
}
print(json.dumps({"before": before, "works": works}))
"""

OF_EVERY_MAC = """
import json, sys
import {module}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def loaded() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_program_loads_no_part_that_it_does_not_use_and_parts_work() -> None:
    found = loaded()
    below = [name for name in found["before"] if any(name.startswith(f"{part}.") for part in clientparts.PARTS)]
    assert "kubernetes.aio.client" in found["before"]
    assert below == [] and "requests" not in found["before"]
    assert found["works"] == {
        "client": "kubernetes.client.configuration",
        "config": "kubernetes.config.kube_config",
        "watch": "kubernetes.watch.watch",
        "aio": "kubernetes.aio.watch.watch",
    }


@pytest.mark.parametrize("module", ["thunderfleet_kubelet.app", "thunderfleet_agent.agent"])
def test_no_program_of_every_mac_imports_the_synchronous_client(module: str) -> None:
    """It takes 7 MB of each."""
    command = [sys.executable, "-c", OF_EVERY_MAC.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = set(json.loads(done.stdout))
    assert "kubernetes" in found
    assert not found & {"requests", "oauthlib", "requests_oauthlib", "websocket"}
