"""Three recorded Macs with a control plane: each is switched off in turn, and everything goes on.

The tests follow the Macs in this order. What runs models does not matter here.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove

from tests.support.install.installed import SECONDS, Mac
from tests.support.line import condition
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


def kubectl(mac: Mac, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs kubectl once on a Mac."""
    admin = ("--kubeconfig", "/var/lib/thunderfleet/admin.kubeconfig", "--request-timeout=10s")
    (program,) = mac.run("sh", "-c", "echo /opt/thunderfleet/control-plane-*/kubectl").split()
    return mac.machine.run([program, *admin, *arguments], seconds=SECONDS)


def works(mac: Mac, *arguments: str) -> str:
    """What kubectl says on a Mac, as soon as it succeeds."""

    def said() -> subprocess.CompletedProcess[str] | None:
        done = kubectl(mac, *arguments)
        return done if done.returncode == 0 else None

    return until(said, f"kubectl {' '.join(arguments)} on {mac.machine.name}").stdout


def creates(mac: Mac, name: str) -> None:
    """Creates a ConfigMap with kubectl on a Mac. An attempt whose answer came too late, or not at all, may have made it."""

    def made() -> bool:
        done = kubectl(mac, "create", "configmap", name)
        return done.returncode == 0 or "already exists" in done.stderr

    until(made, f"kubectl on {mac.machine.name} creates {name}")


def replicas(mac: Mac) -> int:
    """The chart's value for the operator."""
    return int(json.loads(mac.helm("get", "values", "thunderfleet", "-o", "json"))["operator"]["replicas"])


def known_servers(mac: Mac) -> str:
    """The list of API servers that a Mac keeps for its next boot."""
    return mac.run("cat", "/var/lib/thunderfleet/api-servers.json")


def renewed(mac: Mac, node: str) -> str:
    """When a Node's Lease was renewed."""
    return str(json.loads(works(mac, "get", "--raw", f"{LEASES}/{node}"))["spec"]["renewTime"])


def killed_at(mac: Mac, step: str, line: str) -> None:
    """Kills `join --control-plane` as soon as it reports a step."""
    file = mac.machine.folder / "line"
    file.write_text(line)
    mac.killed_at(step, "join", "--control-plane", "--token-file", str(file), "--config", mac.config)


@dataclass(frozen=True)
class Planes:
    """Three Macs with a control plane, and what the commands said that made them so."""

    macs: tuple[Mac, Mac, Mac]
    second: str
    second_line_again: str
    third_init: str
    third: str


@pytest.fixture(scope="module")
def planes(macs: tuple[Mac, Mac, Mac]) -> Planes:
    """The second joins undisturbed; the third is killed when its line was used and its etcd has no vote yet."""
    first, second, third = macs
    first.init()
    line = line_of(first)
    said_second, again = joins(second, line), joins(third, line, code=1)
    line = line_of(second)
    killed_at(third, "[etcd] waiting", line)
    return Planes(macs, said_second, again, third.run(third.program, "init", code=1), joins(third, line))


def test_two_control_planes_are_warned_about_and_three_are_not(planes: Planes) -> None:
    assert "The cluster has 2 control planes" in planes.second
    assert "WARNING: 2 control planes do not survive the loss of one" in planes.second
    assert "The cluster has 3 control planes" in planes.third and "WARNING" not in planes.third
    names = [mac.machine.name for mac in planes.macs]
    # etcd may choose another leader when it has one more member, and kubectl waits for that.
    nodes = json.loads(works(planes.macs[0], "get", "nodes", "-o", "json"))["items"]
    assert {node["metadata"]["name"]: condition(node, "Ready")["status"] for node in nodes} == dict.fromkeys(names, "True")
    assert "[chart] setting operator.replicas=2" in planes.second and replicas(planes.macs[0]) == 2


def test_a_line_works_once_and_leaves_nothing(planes: Planes) -> None:
    assert "the join line was used already, or has expired" in planes.second_line_again
    kept = works(planes.macs[0], "get", "secrets,roles,rolebindings", "-n", "kube-system", "-o", "name")
    assert "secret/" in kept and "control-plane-" not in kept


def test_another_command_does_not_go_on_with_half_of_a_join(planes: Planes) -> None:
    assert "`join --control-plane` was interrupted on this Mac" in planes.third_init


def test_only_the_others_reach_etcd(planes: Planes) -> None:
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
        said = planes.macs[0].run(planes.macs[0].python, "-c", knock, "192.168.64.12", port)
        assert said.startswith("refused"), said


SOAKING = [pytest.param(number, marks=pytest.mark.soak) for number in (1, 2)]


@pytest.mark.parametrize("number", [0, *SOAKING])
def test_everything_goes_on_without_any_one_of_them(planes: Planes, number: int) -> None:
    """Kubectl on each Mac, the Leases of the Nodes, and objects that are new."""
    macs = planes.macs
    lost, others = macs[number], [*macs[:number], *macs[number + 1 :]]
    name, names = lost.machine.name, [mac.machine.name for mac in others]
    before = {node: renewed(others[0], node) for node in names}
    lost.machine.off()
    for mac in others:
        creates(mac, f"made-by-{mac.machine.name}-without-{name}")

    def known(mac: Mac) -> bool:
        return all(f"made-by-{node}-without-{name}" in works(mac, "get", "configmaps") for node in names)

    assert all(map(known, others))
    until(lambda: all(renewed(others[0], node) > before[node] for node in names), "the kubelets renew their Leases")
    lost.machine.on()
    until(lambda: known(lost), f"{name} has what it missed")
    until(lambda: others[0].node_ready(name), f"{name} is Ready")


@pytest.mark.soak
def test_the_address_of_one_changes(cluster: Cluster, planes: Planes) -> None:
    """The others learn it from each other; recorded Macs have no names in Bonjour."""
    first, second, third = planes.macs
    cluster.lan_address("studio-3", "192.168.64.73")
    said = third.run(third.program, "init", "--no-chart", "--advertise-address", "192.168.64.73")
    assert "sending the other members the new address 192.168.64.73" in said
    for mac in (first, second):
        until(lambda mac=mac: "192.168.64.73" in known_servers(mac), "its balancer knows the address")  # type: ignore[misc]
    second.machine.off()
    creates(third, "made-at-another-address")
    assert "made-at-another-address" in works(first, "get", "configmaps"), "etcd works with the moved member"
    second.machine.on()
    until(lambda: first.node_ready("studio-2"), "studio-2 is Ready")


@pytest.mark.soak
def test_a_backup_of_several_is_restored_when_the_others_are_reset(planes: Planes) -> None:
    first, second, third = planes.macs
    saved = str(first.machine.folder / "saved")
    first.run(first.program, "backup", saved)
    said = first.run(first.program, "restore", saved, code=1)
    assert "several control planes, and the others would continue without this one" in said and "member-studio-2" in said
    for mac in (second, third):
        mac.run(mac.program, "reset")
    assert "the control plane of the backup runs" in first.run(first.program, "restore", saved)
    for mac in (second, third):
        joins(mac, line_of(first))
    assert "The cluster has" not in first.run(first.program, "init", "--no-chart")


def test_a_mac_leaves_if_the_others_work_without_it(planes: Planes) -> None:
    first, second, third = planes.macs
    third.machine.off()
    said = second.run(second.program, "reset", code=1)
    assert "without this Mac the others would not work" in said and "member-studio-3" in said
    # etcd chooses another leader if the Mac that is off had it.
    until(second.answers, "nothing was changed, so its API server answers")
    said = first.run(first.program, "reset", "--member", "studio-3")
    assert "removing member-studio-3" in said
    said = second.run(second.program, "reset")
    assert "removing member-studio-2" in said and "[chart] setting operator.replicas=1" in said and replicas(first) == 1
    assert works(first, "get", "nodes", "-o", "name").split() == ["node/studio-1"]
    third.machine.on()
    assert "[reset]" in third.run(third.program, "reset", "--force")


@pytest.mark.soak
def test_a_join_that_is_killed_at_any_step_is_completed(macs: tuple[Mac, Mac, Mac]) -> None:
    first, second, third = macs
    for mac in (third, second):
        mac.run(mac.program, "reset", "--force")
    first.run(first.program, "reset", "--force")
    first.init("--no-chart")
    line = line_of(first)
    for step in STEPS:
        killed_at(third, step, line)
    assert "The cluster has 2 control planes" in joins(third, line)
