"""A group over JACCL from ``kubectl apply`` on: two Macs whose MLX has a recorded JACCL."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster import tinymodel
from thunderfleet_localcluster.cluster import Cluster, remove

FLEET = """
machines:
  - {name: linux-1, kind: linux}
  - {name: linux-2, kind: linux}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-1:1", b: "studio-2:1"}
"""
PROMPT, TOKENS = tinymodel.DEMO_MESSAGES[0]["content"], tinymodel.DEMO_TOKENS


@pytest.fixture(scope="module")
def line(request: pytest.FixtureRequest) -> Iterator[Any]:
    """As the line of the other tests, on Macs with JACCL."""
    shared: Any = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    with contextlib.ExitStack() as stack:
        cluster = Cluster.start(FLEET, name=f"e2e-jaccl-{os.getpid()}")
        stack.callback(remove, cluster.folder, everything=True)
        stack.callback(cluster.stop)
        shared.install(cluster)
        found = shared.Line(cluster)
        found.until("the agents know their Macs", lambda: shared.discovered(found), told=lambda: found.kubectl("get", "np,tbl"))
        yield found
        for deployment in list(found.deployments):
            found.forget(deployment)


def test_two_macs_over_jaccl_say_what_one_process_says(line: Any, deploy: Callable[..., Any], jaccl_alone: list[int]) -> None:
    profiles = {item["metadata"]["name"]: item["status"] for item in line.items("np")}
    assert all("jaccl" in json.dumps(status) for status in profiles.values())
    served = deploy("jaccl", transport="JACCL", parallelism="Tensor").until_ready()
    group = served.group()
    assert (group["parallelism"], group["transport"]) == ("Tensor", "JACCL")
    assert [rank["shard"] for rank in group["ranks"]] == ["1/2", "2/2"]
    assert served.tokens(PROMPT, TOKENS) == jaccl_alone


@pytest.fixture(scope="module")
def jaccl_alone(line: Any) -> list[int]:
    """What one process of mlx-lm says."""
    model = line.cluster.models / "thunderfleet" / "tiny-qwen2"
    command = [sys.executable, "-m", "thunderfleet_localcluster.reference", str(model), PROMPT, "--tokens", str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found: list[int] = json.loads(done.stdout)
    return found
