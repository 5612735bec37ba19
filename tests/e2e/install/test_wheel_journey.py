"""From a wheel to an answer and back, on two Macs without a checkout.

The wheel is installed into a folder in which others than root could change files, as by `uv tool install`, so `init` and
`join` copy it. `test_init` has everything else that these commands do.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster.client.cluster import ADMIN_KUBECONFIG, Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.models import demo_model

from tests.support.install import wheel
from tests.support.install.installed import PROGRAMS, Mac
from tests.support.waiting import until

pytestmark = pytest.mark.soak

FLEET = """
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB}
cables:
  - {a: "studio-1:1", b: "studio-2:1"}
"""
QUESTION = ("run", demo_model.REPOSITORY, "--prompt", "What is Thunderfleet?", "--timeout", "180")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command of the wheel."""
    environment = wheel.install(tmp_path_factory.mktemp("wheel"))
    wheel.link_dependencies(environment)
    environment.chmod(0o777)
    return str(environment / "bin" / "thunderfleet")


@pytest.fixture(scope="module")
def macs(program: str) -> Iterator[tuple[Mac, Mac]]:
    """Two recorded Macs on which the wheel is installed, and nothing runs."""
    cluster = Cluster.start(FLEET, name=f"e2e-wheel-{os.getpid()}", network="namespaces", control_plane_mac="studio-1")
    first, second = (Mac(cluster, machine, program) for machine in cluster.machines.values())
    for mac in (first, second):
        demo_model.install(mac.machine.models / demo_model.REPOSITORY)
    yield first, second
    cluster.stop()
    remove(cluster.folder, everything=True)


def test_a_wheel_serves_survives_a_loss_of_power_and_leaves_nothing(program: str, macs: tuple[Mac, Mac]) -> None:
    first, second = macs
    before = [(mac.files(), mac.processes(), mac.network()) for mac in macs]
    (line,) = re.findall(r"tf1-[\w-]+", first.init())
    second.run(second.program, "join", "-", "--config", second.config, text=line)
    for mac in macs:
        started = mac.run(mac.python, "-c", PROGRAMS).split()
        assert started and all(path.startswith("/opt/thunderfleet/") for path in started)
    assert str(Path(program).parents[1]) not in first.run("sh", "-c", "cat /Library/LaunchDaemons/*"), "it may be removed now"

    def asked() -> str:
        return first.run("env", f"KUBECONFIG={ADMIN_KUBECONFIG}", program, *QUESTION)

    answer = asked()
    assert "Thunderfleet" in answer
    checked = first.machine.run([program, "doctor", "--kubeconfig", ADMIN_KUBECONFIG], seconds=180)
    assert checked.returncode in (0, 1) and "studio-1.tb1--studio-2.tb1" in checked.stdout, checked.stdout + checked.stderr
    for mac in macs:
        mac.machine.off()
    for mac in macs:
        mac.machine.on()
    until(first.answers, "the API server answers again")
    # Until the operator runs again, status names the group as it was, and `run` does not wait long for such a group.
    until(lambda: answer.splitlines()[-1] in asked(), "the model answers as before", 180, retry_on=(AssertionError,))
    for mac, (files, processes, network) in zip((second, first), reversed(before), strict=True):
        mac.run(mac.program, "reset")
        assert mac.network() == network
        assert mac.files() == files
        assert mac.processes() == processes
