"""Parts of the official Kubernetes client are loaded when they are used, and not before."""

import json
import subprocess
import sys
from typing import Any

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
