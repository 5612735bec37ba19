"""Three recorded Macs with a control plane: each is switched off in turn, and everything goes on.

The tests follow the Macs in this order. No chart is installed: what runs models does not matter here.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove

from tests.support.installed import SECONDS, Mac
from tests.support.waiting import until

FLEET = """
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: studio-3, model: Mac Studio (M3 Ultra), memory: 96 GB}
"""
STEPS = (
    "[programs] installing",
    "[daemons] io.thunderfleet.balancer",
    "[keys] getting",
    "[keys] deleting",
    "[etcd] adding",
    "[daemons] io.thunderfleet.etcd",
    "[etcd] waiting",
    "[etcd] member-studio-3 has all data",
    "[daemons] io.thunderfleet.kube-scheduler",
    "[wait]",
    "[kubelet] starting",
)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three recorded Macs that run nothing of ours."""
    made = Cluster.start(FLEET, name=f"e2e-planes-{os.getpid()}", network="namespaces", control_plane_mac="studio-1")
    yield made
    made.stop()
    remove(made.folder, everything=True)


@pytest.fixture(scope="module")
def macs(cluster: Cluster) -> tuple[Mac, Mac, Mac]:
    first, second, third = (Mac(cluster, machine) for machine in cluster.machines.values())
    return first, second, third


def line_of(mac: Mac) -> str:
    """A line for one Mac that gets a control plane."""
    (line,) = re.findall(r"tf1-[\w-]+", mac.run(mac.program, "token", "create", "--control-plane"))
    return str(line)


def joins(mac: Mac, line: str, code: int = 0) -> str:
    return mac.run(mac.program, "join", "--control-plane", "-", "--config", mac.config, text=line, code=code)


def works(mac: Mac, *arguments: str) -> str:
    """What kubectl says on a Mac, as soon as it succeeds."""
    admin = ("--kubeconfig", "/var/lib/thunderfleet/admin.kubeconfig", "--request-timeout=10s")

    def said() -> subprocess.CompletedProcess[str] | None:
        (program,) = mac.run("sh", "-c", "echo /opt/thunderfleet/control-plane-*/kubectl").split()
        done = mac.machine.run([program, *admin, *arguments], seconds=SECONDS)
        return done if done.returncode == 0 else None

    return until(said, f"kubectl {' '.join(arguments)} on {mac.machine.name}").stdout


def renewed(mac: Mac, node: str) -> str:
    """When a Node's Lease was renewed."""
    return str(json.loads(works(mac, "get", "--raw", f"{LEASES}/{node}"))["spec"]["renewTime"])


def test_the_second_control_plane_is_warned_about(macs: tuple[Mac, Mac, Mac]) -> None:
    first, second, third = macs
    first.init("--no-chart")
    line = line_of(first)
    said = joins(second, line)
    assert "The cluster has 2 control planes" in said and "WARNING: 2 control planes do not survive the loss of one" in said
    assert first.node_ready("studio-2")
    said = joins(third, line, code=1)
    assert "the line was used already, or has expired" in said
    assert "studio-2" in works(second, "get", "nodes")
    assert works(first, "get", "secrets,roles,rolebindings", "-n", "kube-system", "-o", "name").count("control-plane-") == 0


def killed_at(mac: Mac, step: str, line: str) -> None:
    """Kills `join --control-plane` as soon as it reports a step."""
    file = mac.machine.folder / "line"
    file.write_text(line)
    mac.killed_at(step, "join", "--control-plane", "--token-file", str(file), "--config", mac.config)


def test_a_third_that_is_killed_is_completed(macs: tuple[Mac, Mac, Mac]) -> None:
    """After its line was used, and when its etcd has no vote yet."""
    third, line = macs[2], line_of(macs[1])
    for step in ("[keys] deleting", "[etcd] waiting"):
        killed_at(third, step, line)
    assert "was interrupted" in third.run(third.program, "init", code=1)
    said = joins(third, line)
    assert "The cluster has 3 control planes" in said and "WARNING" not in said


def test_only_the_others_reach_etcd(macs: tuple[Mac, Mac, Mac]) -> None:
    """Its ports are open to other Macs now, and ask for a certificate of its own authority."""
    knock = (
        "import ssl, socket, sys\n"
        "context = ssl._create_unverified_context()\n"
        "try:\n"
        "    with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)) as end:\n"
        "        end.sendall(b'GET /version HTTP/1.0\\r\\n\\r\\n')\n"
        "        print('answers', end.recv(100))\n"
        "except OSError as error:\n"
        "    print('refused', error)\n"
    )
    for port in ("2379", "2380"):
        said = macs[0].run(macs[0].python, "-c", knock, "192.168.64.12", port)
        assert said.startswith("refused"), said


@pytest.mark.parametrize("number", range(3))
def test_everything_goes_on_without_any_one_of_them(macs: tuple[Mac, Mac, Mac], number: int) -> None:
    """Kubectl on each Mac, the Leases of the Nodes, and objects that are new."""
    lost, others = macs[number], [*macs[:number], *macs[number + 1 :]]
    name, names = lost.machine.name, [mac.machine.name for mac in others]
    before = {node: renewed(others[0], node) for node in names}
    lost.machine.off()
    for mac in others:
        works(mac, "create", "configmap", f"made-by-{mac.machine.name}-without-{name}")

    def known(mac: Mac) -> bool:
        return all(f"made-by-{node}-without-{name}" in works(mac, "get", "configmaps") for node in names)

    assert all(map(known, others))
    until(lambda: all(renewed(others[0], node) > before[node] for node in names), "the kubelets renew their Leases")
    lost.machine.on()
    until(lambda: known(lost), f"{name} has what it missed")
    until(lambda: others[0].node_ready(name), f"{name} is Ready")


def test_a_mac_leaves_if_the_others_work_without_it(macs: tuple[Mac, Mac, Mac]) -> None:
    first, second, third = macs
    third.machine.off()
    said = second.run(second.program, "reset", code=1)
    assert "without this Mac the others would not work" in said and "member-studio-3" in said
    assert second.answers(), "nothing was changed"
    said = first.run(first.program, "reset", "--member", "studio-3")
    assert "removing member-studio-3" in said
    assert "removing member-studio-2" in second.run(second.program, "reset")
    assert works(first, "get", "nodes", "-o", "name").split() == ["node/studio-1"]
    third.machine.on()
    assert "[reset]" in third.run(third.program, "reset", "--force")


@pytest.mark.soak
def test_a_join_that_is_killed_at_any_step_is_completed(macs: tuple[Mac, Mac, Mac]) -> None:
    first, _, third = macs
    line = line_of(first)
    for step in STEPS:
        killed_at(third, step, line)
    assert "The cluster has 2 control planes" in joins(third, line)
