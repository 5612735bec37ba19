"""Models that are on no Mac: from a repository of the hub to tokens, with two Macs whose model stores are empty.

The hub is a real server on a Linux machine of the cluster's network.
"""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import CHART, INSTALL_SECONDS, MODEL, SYSTEM, Alone, Deploy, Line
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
REPOSITORY = "fresh/tiny"
PORT = 18080
PROMPT, TOKENS = "Hello", 8


@pytest.fixture(scope="module")
def line(desk: Line) -> Line:
    return desk


@pytest.fixture(scope="module")
def hub(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a hub that has the model, which the operator uses."""
    machine = line.cluster.machines["linux-1"]
    folder = machine.folder / "hub"
    tinymodel.make(folder / "model")
    address = machine.address
    command = [sys.executable, "-m", "tests.support.hub", address, str(PORT), f"{REPOSITORY}={folder / 'model'}"]
    script = f"cd {shlex.quote(str(ROOT))} && {shlex.join(command)} >{folder}/log 2>&1 & echo $! >{folder}/pid"
    machine.run(["sh", "-c", script])
    until(lambda: "ready" in (folder / "log").read_text(), "the hub serves", describe=lambda: (folder / "log").read_text())
    url = f"http://{address}:{PORT}"
    configure(line, "true", url)
    yield url
    machine.run(["kill", (folder / "pid").read_text().strip()])
    configure(line, "false", "")


def configure(line: Line, enabled: str, endpoint: str) -> None:
    line.cluster.helm(
        *("upgrade", "thunderfleet", str(CHART), "--namespace", SYSTEM, "--reuse-values", "--wait"),
        *("--set", f"hub.enabled={enabled}", "--set", f"hub.endpoint={endpoint}", "--timeout", f"{INSTALL_SECONDS}s"),
        seconds=INSTALL_SECONDS + 30,
    )


def test_a_repository_that_is_on_no_mac_serves_the_tokens_of_one_process(
    line: Line, hub: str, deploy: Deploy, alone: Alone
) -> None:
    deployment = deploy("fetched", model={"repository": REPOSITORY}, parallelism="Pipeline", transport="Ring").until_ready()
    status = deployment.status
    assert {copy["node"]: copy["phase"] for copy in status["copies"]} == dict.fromkeys(line.macs, "Complete")
    assert deployment.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)
    cache = line.json("get", "mc", deployment.name, "-n", deployment.namespace)
    assert cache["status"]["copies"] == "2/2"
    assert cache["metadata"]["ownerReferences"][0]["name"] == deployment.name
    wanted = {path.name: path.read_bytes() for path in (line.cluster.models / MODEL).iterdir()}
    for name in line.macs:
        store = line.cluster.machines[name].folder / "disk/Library/Thunderfleet/models/models--fresh--tiny"
        snapshot = store / "snapshots" / status["commit"]
        assert {path.name: (store / "blobs" / path.readlink().name).read_bytes() for path in snapshot.iterdir()} == wanted
