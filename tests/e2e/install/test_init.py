"""`thunderfleet init`, `join` and `reset` on recorded Macs, whose launchd reads the property lists that were installed.

The tests follow one Mac from its first `init` to `reset`, in this order. Network namespaces are needed: only there has a
recorded Mac folders of its own.
"""

import ipaddress
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.network.namespaces import program

from tests.support.install.installed import DAEMONS, PROGRAMS, SECONDS, Mac
from tests.support.install.upgrading import ASKER, next_version, version_of
from tests.support.suite.tiers import quick
from tests.support.waiting import until

FLEET = """
machines:
  - name: studio-1
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
    rdma: true
    bridge: [1, 2, 3, 4, 5, 6]
    bridgeAddress: 169.254.7.1
  - name: studio-2
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
    rdma: true
    bridge: [1, 2, 3, 4, 5, 6]
    bridgeAddress: 169.254.7.2
cables:
  - {a: "studio-1:1", b: "studio-2:2"}
"""
LINK = "studio-1.tb1--studio-2.tb2"
STEPS = (
    "[programs] installing",
    "[certificates] creating",
    "[certificates] new",
    "[daemons] io.thunderfleet.etcd",
    "[daemons] io.thunderfleet.kube-scheduler",
    "[wait]",
    "[kubelet] joining",
    "[kubelet] starting",
    "[chart]",
)
# Each leaves something else behind: programs, files, daemons, a Node.
FEW_STEPS = ("[programs] installing", "[certificates] new", "[daemons] io.thunderfleet.kube-scheduler", "[chart]")
JOIN_STEPS = (
    "[preflight] checking",
    "[programs] installing",
    "[daemons] io.thunderfleet.balancer",
    "[kubelet] joining",
    "[kubelet] starting",
)
HAS_BALANCER = "[daemons] io.thunderfleet.balancer"
"""The step of JOIN_STEPS at which this Mac has a balancer, but has not joined."""
JOINING = "[kubelet] joining"
"""The step of JOIN_STEPS at which the token may be used already."""
UPGRADE_STEPS_OF_A_NODE = ("[upgrade] from", "[programs] installing", "[kubelet] starting")
UPGRADE_STEPS = (
    "[backup]",
    "[upgrade] from",
    "[daemons] io.thunderfleet.etcd",
    "[wait]",
    "[kubelet] starting",
    "[chart] upgrading",
    "[chart] waiting",
)
# Each is later than the one before, because a step that is done is not reported again.
RESET_STEPS_OF_A_NODE = ("[reset] ended io.thunderfleet.kubelet", "[reset] removed /var/lib/thunderfleet/joined.json")
RESET_STEPS = (
    "[reset] stopping the pods",
    "[reset] ended io.thunderfleet.approver",
    "[reset] removed /var/lib/thunderfleet/joined.json",
    "[reset] removed /var/lib/thunderfleet/control-plane",
)
# Runs a command, and prints the command lines with a text while it runs. Its own have it as an argument.
WATCHED = """
import os, subprocess, sys
secret, seen, mine = sys.argv[1].encode(), set(), {os.getpid(), os.getppid()}
command = subprocess.Popen(sys.argv[2:])
while command.poll() is None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if secret in words and int(pid) not in mine:
            seen.add(words)
print("processes with the token:", sorted(seen))
sys.exit(command.returncode)
"""
# Prints the addresses on which something of this machine listens, as JSON.
LISTENING = """
import ipaddress, json
found = set()
for name, version in (("tcp", ipaddress.IPv4Address), ("tcp6", ipaddress.IPv6Address)):
    for line in open("/proc/net/" + name).read().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        digits, port = local.split(":")
        words = [bytes.fromhex(digits[at:at + 8])[::-1] for at in range(0, len(digits), 8)]
        if state == "0A":
            found.add(f"{version(b''.join(words))}:{int(port, 16)}")
print(json.dumps(sorted(found)))
"""
# Prints the status of a request without any credentials, or how it was refused.
KNOCK = """
import http.client, ssl, sys
try:
    connection = http.client.HTTPSConnection(sys.argv[1], timeout=10, context=ssl._create_unverified_context())
    connection.request("GET", sys.argv[2])
    print(connection.getresponse().status)
except OSError as error:
    print("refused", error)
"""
RESTORE_STEPS = (
    "[preflight] /",
    "[restore] preparing",
    "[restore] ended",
    "[restore] replacing",
    "[programs] installing",
    "[daemons] io.thunderfleet.kube-scheduler",
    "[wait]",
    "[kubelet]",
)
RUNNING = ("thunderfleet-runner serve", "thunderfleet_runner.rank")
"""What a pod of a group runs. Agents run the runner too, to compute the sizes of models."""
MODEL = """
apiVersion: thunderfleet.io/v1alpha1
kind: ModelDeployment
metadata: {name: kept}
spec: {model: {repository: nobody/has-it}}
"""


BOTH = """
apiVersion: thunderfleet.io/v1alpha1
kind: ModelDeployment
metadata: {name: both}
spec:
  model: {repository: nobody/tiny}
  nodes: {min: 2}
  transport: Ring
"""
ASK = """
import json, sys, urllib.request
body = json.dumps({"model": "nobody/tiny", "prompt": "one", "max_tokens": 4}).encode()
request = urllib.request.Request(sys.argv[1] + "/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=30).read())
"""


Before = list[tuple[dict[str, str], set[str], list[str]]]
"""Of each Mac: files, processes and network settings."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two recorded Macs that run nothing of ours."""
    made = Cluster.start(FLEET, name=f"e2e-init-{os.getpid()}", network="namespaces", control_plane_mac="studio-1")
    yield made
    made.stop()
    remove(made.folder, everything=True)


@pytest.fixture(scope="module")
def macs(cluster: Cluster) -> tuple[Mac, Mac]:
    first, second = (Mac(cluster, machine) for machine in cluster.machines.values())
    for mac in (first, second):
        # As on a Mac that nobody has configured.
        config = Path(mac.config)
        config.write_text(config.read_text().replace("thunderboltPorts: Unmanaged\n", ""))
    return first, second


@pytest.fixture(scope="module")
def before(macs: tuple[Mac, Mac]) -> Before:
    """Files, processes and network settings of each Mac before anything was installed."""
    return [(mac.files(), mac.processes(), mac.network()) for mac in macs]


@pytest.fixture(scope="module")
def only_route(macs: tuple[Mac, Mac]) -> Path:
    """Makes the API server unreachable for the second Mac while a port has left its bridge: write to it to change that."""
    mac = macs[1]
    folder = mac.machine.folder / "route"
    folder.mkdir()
    command = folder / "ifconfig"
    ip = program("ip")
    command.write_text(
        f"#!/bin/sh\ncase $2 in deletem) {ip} link set en0 down ;; addm) {ip} link set en0 up ;; esac\n"
        f'exec {mac.machine.folder}/bin/ifconfig "$@"\n'
    )
    command.chmod(0o755)
    config = Path(mac.config)
    config.write_text(config.read_text().replace("path:\n", f"path:\n- {folder}\n"))
    return command


def test_a_dry_run_changes_nothing(macs: tuple[Mac, Mac], before: Before) -> None:
    said = macs[0].init("--dry-run")
    assert "/Library/LaunchDaemons/io.thunderfleet.etcd.plist" in said and "https://192.168.64.11:6443" in said
    assert macs[0].files() == before[0][0]


def test_root_runs_no_command_of_its_caller(macs: tuple[Mac, Mac]) -> None:
    """`sudo` on a Mac keeps PATH and HOME."""
    mac = macs[0]
    trap = mac.machine.folder / "trap"
    trap.mkdir()
    for name in ("launchctl", "sw_vers", "ifconfig", "route", "ps", "go", "python3"):
        (trap / name).write_text(f"#!/bin/sh\necho {name} >> {trap}/ran\n")
        (trap / name).chmod(0o755)
    caller = ["env", f"PATH={trap}:/usr/bin:/bin", f"HOME={trap}"]
    assert mac.run(*caller, "sh", "-c", "sw_vers; cat $HOME/ran").split() == ["sw_vers"], "the trap works"
    assert "Node studio-1" in mac.run(*caller, mac.program, "init", "--dry-run")
    for command in ("reset", "doctor"):
        mac.machine.run([*caller, mac.program, command], seconds=SECONDS)
    assert (trap / "ran").read_text().split() == ["sw_vers"]


def test_what_is_wrong_is_said_before_anything_is_done(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    said = mac.run(mac.program, "init", "--advertise-address", "10.9.9.9", "--name", "Studio", code=1)
    assert "10.9.9.9 is not an address of this Mac" in said and "'Studio' cannot be the name of a Node" in said
    said = mac.run(mac.program, "join", "tf1-eyJ", code=2)
    assert "copy all of it" in said


@pytest.mark.parametrize("step", quick(FEW_STEPS, STEPS))
def test_init_is_killed_at_any_step(macs: tuple[Mac, Mac], step: str) -> None:
    macs[0].killed_at(step, "init", "--config", macs[0].config)


def test_init_completes_what_killed_ones_have_left(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    said = mac.init()
    assert "Node studio-1 is Ready" in said and "| sudo thunderfleet join -" in said
    assert mac.answers() and mac.node_ready("studio-1")
    labels = mac.kubectl("get", "node", "studio-1", "-o", "jsonpath={.metadata.labels}")
    assert "node-role.kubernetes.io/control-plane" in labels


def test_this_machine_reaches_the_control_plane_of_a_mac(cluster: Cluster, macs: tuple[Mac, Mac]) -> None:
    cluster.take_kubeconfig(macs[0].machine.name)
    assert cluster.kubectl("get", "nodes", "-o", "name").stdout.split() == ["node/studio-1"]
    assert {item["name"]: item["node"] for item in cluster.status()["machines"]} == {"studio-1": "Ready", "studio-2": "none"}
    with pytest.raises(
        LocalClusterError, match=r"are LaunchDaemons of its Macs; use launchctl there.*/bin/thunderfleet token create`"
    ):
        cluster.token()


@pytest.fixture(scope="module")
def own_values(macs: tuple[Mac, Mac]) -> None:
    """Sets values of the chart, as users may. No test looks at benchmarks, which take processor time."""
    chart = str(Path(__file__).resolve().parents[3] / "charts/thunderfleet")
    values = "dashboard.enabled=false,agent.measure.enabled=false"
    macs[0].helm("upgrade", "thunderfleet", chart, "--reuse-values", "--set", values)


def test_the_operator_and_the_agent_run(macs: tuple[Mac, Mac]) -> None:
    def ready() -> bool:
        listed = macs[0].kubectl("get", "pods", "-n", "thunderfleet-system", "--no-headers")
        return len(re.findall(r"thunderfleet-(?:operator|agent)-\S+ +1/1 +Running", listed)) == 2

    until(ready, "operator and agent are ready")


def test_the_kubelet_exports_when_the_certificates_of_the_control_plane_expire(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    path = "/api/v1/nodes/studio-1/proxy/metrics"
    # The kubelet listens once its serving certificate is approved.
    text = until(lambda: mac.kubectl("get", "--raw", path), "the kubelet answers", retry_on=(AssertionError,))
    name = "thunderfleet_control_plane_certificate_expiry_seconds"
    found = dict(re.findall(rf'^{name}{{name="([\w-]+)",node="studio-1"}} (\S+)$', text, re.MULTILINE))
    files = mac.run("find", "/var/lib/thunderfleet/control-plane/pki", "-name", "*.crt").split()
    assert found.keys() == {Path(file).stem for file in files} > {"apiserver", "etcd", "ca"}
    days = (float(found["apiserver"]) - datetime.now(UTC).timestamp()) / 86400
    assert 360 < days < 366


def component_state(mac: Mac) -> str:
    """Status and message of the condition of the Node about scheduler and controller manager."""
    path = '{.status.conditions[?(@.type=="ControlPlaneReady")]'
    return mac.kubectl("get", "node", "studio-1", "-o", f"jsonpath={path}.status}} {path}.message}}")


def test_the_kubelet_asks_the_components_of_the_control_plane(macs: tuple[Mac, Mac]) -> None:
    """With one control plane they elect nobody, so they renew no Lease."""
    until(lambda: component_state(macs[0]) == "True kube-controller-manager and kube-scheduler answer", "both are known")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["kube-scheduler", "kube-controller-manager"])
def test_a_component_that_is_frozen_is_named(macs: tuple[Mac, Mac], name: str) -> None:
    mac = macs[0]
    until(lambda: component_state(mac).startswith("True"), "both answer")
    mac.run("launchctl", "kill", "STOP", f"system/io.thunderfleet.{name}")
    try:
        until(lambda: component_state(mac).startswith(f"False {name} on this Mac does not answer"), "it is named")
    finally:
        mac.run("launchctl", "kill", "CONT", f"system/io.thunderfleet.{name}")
    until(lambda: component_state(mac).startswith("True"), "both answer again")


def test_nothing_that_runs_as_root_can_be_changed_by_others(macs: tuple[Mac, Mac]) -> None:
    """Every program that launchd starts, what it loads, and the folders above."""
    mac = macs[0]
    said = mac.run(mac.python, "-c", PROGRAMS)
    programs = said.split()
    assert len(programs) == len(DAEMONS) and all(program.startswith("/") for program in programs)
    installed = {str(parent) for program in programs for parent in (Path(program), *Path(program).parents)}
    own = ["/opt/thunderfleet", "/Library/LaunchDaemons", "/Library/Logs/Thunderfleet", "/var/lib/thunderfleet/control-plane"]
    trees = [*own, str(Path(mac.program).parents[1])]
    changeable = ["(", "!", "-user", "0", "-o", "-perm", "/022", "!", "-type", "l", ")"]
    assert mac.run("find", *trees, *changeable) == ""
    assert mac.run("find", *sorted(installed), "-maxdepth", "0", *changeable) == ""


def test_strangers_get_nothing_from_the_ports_of_a_control_plane(macs: tuple[Mac, Mac]) -> None:
    first, second = macs
    own = {f"127.0.0.1:{port}" for port in (2379, 2380, 6444, 10257, 10259)}
    nodes = {f"192.168.64.11:{port}" for port in (10250, 9440, 9441, 9401)}

    def listening() -> set[str]:
        return set(json.loads(first.run(first.python, "-c", LISTENING)))

    def expected() -> set[str]:
        # The agent is also there for the Mac at the other end of a cable: at the address of the bridge, until the ports leave
        # it because that Mac has not joined within a minute.
        addresses = re.findall(r"^\tinet (\S+) ", first.run("ifconfig", "-a"), re.MULTILINE)
        return {f"{address}:9440" for address in addresses if not address.startswith("127.")}

    def differs() -> list[str]:
        # The API server listens on all addresses, of both families.
        return sorted(listening() ^ (own | nodes | {":::6443"} | expected()))

    # Those of operator and agent are the last.
    until(
        lambda: not differs(), "everything listens and nothing else does", describe=lambda: f"missing or too many: {differs()}"
    )

    def knock(mac: Mac, address: str, path: str) -> str:
        return mac.run(mac.python, "-c", KNOCK, address, path).strip()

    assert knock(second, "192.168.64.11:6443", "/version") == "401"
    for address in ("127.0.0.1:2379", "127.0.0.1:2380"):
        assert knock(first, address, "/version").startswith("refused")
    for address in ("127.0.0.1:10257", "127.0.0.1:10259"):
        assert knock(first, address, "/healthz") == "200"
        assert knock(first, address, "/metrics") in ("401", "403")


@pytest.fixture(scope="module")
def join_line(macs: tuple[Mac, Mac]) -> str:
    """With what another Mac joins the first cluster."""
    (found,) = re.findall(r"tf1-[\w-]+", macs[0].run(macs[0].program, "init"))
    return str(found)


def kill_join_at(mac: Mac, line: str, *steps: str) -> None:
    """Kills `join` at each of these steps."""
    file = mac.machine.folder / "line"
    file.write_text(line)
    for step in steps:
        mac.killed_at(step, "join", "--token-file", str(file), "--config", mac.config)


@pytest.mark.usefixtures("own_values", "only_route")
def test_the_first_join_is_killed(macs: tuple[Mac, Mac], join_line: str) -> None:
    kill_join_at(macs[1], join_line, HAS_BALANCER)


def test_another_mac_joins(macs: tuple[Mac, Mac], only_route: Path, join_line: str) -> None:
    """Which completes what the killed one has left."""
    first, second = macs
    watched = (second.python, "-c", WATCHED, join_line[-40:])
    said = second.run(*watched, second.program, "join", "-", "--config", second.config, text=join_line)
    assert "joining" in said and "this Mac is Node studio-2 and is Ready" in said
    assert "processes with the token: []" in said
    assert first.node_ready("studio-2")
    again = second.run(second.program, "join", join_line)
    assert "joining" not in again and "is Ready" in again
    assert "has joined the cluster with the CA" in second.run(second.program, "init", code=1)


# From here to the test of the ports, the other Mac waits for its lost API server: about a minute.


@pytest.mark.usefixtures("own_values")
def test_init_again_changes_nothing(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    before = mac.pids()
    said = mac.run(mac.program, "init")
    assert json.loads(mac.helm("get", "values", "thunderfleet", "-o", "json"))["dashboard"] == {"enabled": False}
    assert "[certificates] new: none" in said
    assert re.findall(r"io\.thunderfleet\.\S+: (\w+)", said) == ["unchanged"] * 6
    assert mac.pids() == before


def test_secrets_are_encrypted_in_etcd(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    mac.kubectl("create", "configmap", "plain", "--from-literal=a=marker-of-a-config-map")
    mac.kubectl("create", "secret", "generic", "hidden", "--from-literal=a=marker-of-a-secret")
    found = mac.run("sh", "-c", "grep -rlaE 'marker-of-a-config-map' /var/lib/thunderfleet/control-plane/etcd | wc -l")
    assert int(found) > 0
    # In etcd a Secret's values would be bytes, so its text would be there as it is.
    found = mac.run("sh", "-c", "grep -rlaE 'marker-of-a-secret' /var/lib/thunderfleet/control-plane/etcd | wc -l")
    assert int(found) == 0
    assert "bWFya2VyLW9mLWEtc2VjcmV0" in mac.kubectl("get", "secret", "hidden", "-o", "jsonpath={.data.a}")


def test_ports_go_back_into_their_bridge_when_the_api_server_is_lost(macs: tuple[Mac, Mac], only_route: Path) -> None:
    first, second = macs

    def undone() -> bool:
        events = first.kubectl("get", "events", "--field-selector=involvedObject.name=studio-2", "-o", "jsonpath={..reason}")
        return "ThunderboltPortsRestored" in events

    until(undone, "the switch was undone", 150)
    assert len(second.members()) == 6
    assert "Thunderfleet" not in second.run("networksetup", "-listallnetworkservices")
    assert "ThunderboltPortsSeparated" not in first.kubectl(
        "get", "events", "--field-selector=involvedObject.name=studio-2", "-o", "jsonpath={..reason}"
    )
    only_route.write_text(f'#!/bin/sh\nexec {second.machine.folder}/bin/ifconfig "$@"\n')


def test_ports_have_services_and_addresses_of_their_own_and_rdma_works(cluster: Cluster, macs: tuple[Mac, Mac]) -> None:
    first, second = macs
    # What was undone is not tried again before something has changed.
    cluster.cable("pull", "studio-2:2")
    until(lambda: first.members() == [] and second.members() == [], "no port is in a bridge", 120)
    cluster.cable("plug", "studio-2:2")

    def usable() -> bool:
        return first.field('.status.conditions[?(@.type=="RDMAUsable")].status', "tbl", LINK) == "True"

    until(usable, "RDMA is usable", 120)
    found = {}
    for mac, interface, port in ((first, "en2", 1), (second, "en3", 2)):
        # RDMA is usable before the switch has counted, and the cable may become known after it.
        until(mac.has_separate_ports, "the service of the bridge is off")
        info = until(partial(mac.manual, port), "the cable has its address")
        (address,) = re.findall(r"^IP address: (.+)$", info, re.MULTILINE)
        assert f"inet {address} netmask 0xfffffffc" in mac.run("ifconfig", interface)
        found[interface] = ipaddress.ip_interface(f"{address}/30")
    assert found["en2"].network == found["en3"].network and found["en2"] in ipaddress.ip_network("10.128.0.0/9")


def test_a_control_plane_survives_that_its_mac_is_switched_off(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    mac.machine.off()
    mac.machine.on()
    until(mac.answers, "the API server answers again")
    assert mac.kubectl("get", "configmap", "plain", "-o", "jsonpath={.data.a}") == "marker-of-a-config-map"
    until(lambda: mac.node_ready("studio-1") and mac.node_ready("studio-2"), "both Nodes are Ready")
    until(mac.pids, "every daemon runs", retry_on=(IndexError,))
    # macOS puts the ports back into their bridge when it starts.
    until(lambda: mac.members() == [], "no port is in a bridge")


def test_a_daemon_that_is_killed_starts_again(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    # launchd starts a daemon that has ended again after a while.
    before = until(mac.pids, "every daemon runs", retry_on=(IndexError,))
    for name in ("etcd", "kube-apiserver"):
        mac.run("launchctl", "kill", "KILL", f"system/io.thunderfleet.{name}")

    def again() -> bool:
        now = mac.pids() if mac.answers() else {}
        return bool(now) and all(now[name] != before[name] for name in ("etcd", "kube-apiserver"))

    until(again, "both have other processes", retry_on=(IndexError,))


def test_what_is_destroyed_is_restored_from_a_backup(macs: tuple[Mac, Mac]) -> None:
    first = macs[0]
    saved = str(first.machine.folder / "saved")
    first.kubectl("apply", "-f", "-", text=MODEL)
    until(lambda: first.field(".status.observedGeneration", "md", "kept") == "1", "the operator has seen it")
    uids = [first.field(".metadata.uid", "node", name) for name in ("studio-1", "studio-2")]
    kubelets = [mac.pids(("kubelet",)) for mac in macs]
    programs = first.processes_of("bin/thunderfleet-operator", "bin/thunderfleet-agent")
    assert len(programs) >= 2, programs
    first.run(first.program, "backup", saved)
    assert first.run("stat", "-c", "%a %u", saved).split() == ["600", "0"]
    noted = first.field(r".metadata.annotations.thunderfleet\.io/backup", "node", "studio-1")
    assert datetime.fromisoformat(noted) <= datetime.now(UTC)
    assert "use --force" in first.run(first.program, "backup", saved, code=2)
    first.kubectl("create", "configmap", "later")
    first.destroy()
    assert "Node studio-1 is Ready" in first.run(first.program, "restore", saved)
    until(lambda: first.node_ready("studio-1") and first.node_ready("studio-2"), "both Nodes are Ready")
    assert "bWFya2VyLW9mLWEtc2VjcmV0" in first.field(".data.a", "secret", "hidden")
    assert "not found" in first.kubectl("get", "configmap", "later", code=1)
    assert [first.field(".metadata.uid", "node", name) for name in ("studio-1", "studio-2")] == uids
    assert [mac.pids(("kubelet",)) for mac in macs] == kubelets
    assert first.processes_of("bin/thunderfleet-operator", "bin/thunderfleet-agent") == programs, "pods go on"
    # What has watched since before the restore sees what changes after it.
    first.kubectl("patch", "md", "kept", "--type=merge", "-p", '{"spec": {"nodes": {"min": 2}}}')
    generation = first.field(".metadata.generation", "md", "kept")
    until(lambda: first.field(".status.observedGeneration", "md", "kept") == generation, "the operator has seen the change")
    first.kubectl("delete", "md", "kept")


@pytest.mark.soak
def test_a_restore_that_is_killed_at_any_step_is_completed_or_undone(macs: tuple[Mac, Mac]) -> None:
    mac = macs[0]
    saved = str(mac.machine.folder / "saved-2")
    mac.init("--no-chart")
    mac.run(mac.program, "backup", saved)
    for step in RESTORE_STEPS:
        mac.kubectl("create", "configmap", "later")
        mac.killed_at(step, "restore", saved)
        mac.machine.run([mac.program, "restore", "--undo"], seconds=SECONDS)
        mac.init("--no-chart")
        assert "later" in mac.kubectl("get", "configmaps"), f"{step}: what was there is there again"
        mac.killed_at(step, "restore", saved)
        mac.run(mac.program, "restore", saved)
        assert "later" not in mac.kubectl("get", "configmaps"), step
    mac.destroy()
    mac.killed_at("[wait]", "restore", saved)
    mac.run(mac.program, "reset")
    assert "control-plane" not in mac.run("ls", "/var/lib/thunderfleet"), "nothing of it is left"
    assert "Node studio-1 is Ready" in mac.run(mac.program, "restore", saved), "on a Mac that has nothing of ours"


def test_an_upgrade_fails_no_request_and_what_is_broken_is_rolled_back(cluster: Cluster, macs: tuple[Mac, Mac]) -> None:
    """A group that serves keeps its version. The Mac with the control plane is the last."""
    first, second = macs
    tinymodel.make(cluster.models / "nobody/tiny")
    newer, broken = next_version(cluster, "0.9.0"), next_version(cluster, "0.9.0.post1")
    models = f"agent.modelFolders={{{cluster.models}}},agent.modelsIntervalSeconds=2"
    chart = str(Path(__file__).resolve().parents[3] / "charts/thunderfleet")
    first.helm("upgrade", "thunderfleet", chart, "--reuse-values", "--set", models)
    first.kubectl("apply", "-f", "-", text=MODEL.replace("nobody/has-it", "nobody/tiny").replace("kept", "serving"))
    until(lambda: first.field(".status.groups[0].state", "md", "serving") == "Ready", "the group serves", 120)
    endpoint = first.field(".status.groups[0].endpoint", "md", "serving")
    ranks = [mac.processes_of(*RUNNING) for mac in macs]
    assert any(ranks)
    first.run("sh", "-c", f"{first.python} -c '{ASKER}' {endpoint} {first.machine.folder}/asked > /dev/null 2>&1 &")
    said = first.run(f"{newer}/bin/thunderfleet", "upgrade", code=1)
    assert f"studio-2 has version {version_of(cluster)}: upgrade it first" in said
    for mac in (second, first):
        assert "version 0.9.0 runs" in mac.run(f"{newer}/bin/thunderfleet", "upgrade")
    (values,) = broken.glob("lib/python3*/site-packages/thunderfleet_localcluster/shipped/charts/thunderfleet/values.yaml")
    values.unlink()
    said = first.run(f"{broken}/bin/thunderfleet", "upgrade", code=1)
    assert "helm upgrade failed" in said and "The previous version was restored, and runs" in said
    (first.machine.folder / "asked.stop").touch()
    until(lambda: (first.machine.folder / "asked").exists(), "the client has ended")
    asked, failed = json.loads((first.machine.folder / "asked").read_text())
    assert asked > 10 and failed == []
    assert [mac.processes_of(*RUNNING) for mac in macs] == ranks
    for name in ("studio-1", "studio-2"):
        assert first.field(".status.nodeInfo.kubeletVersion", "node", name).endswith("thunderfleet.0.9.0")

    def images() -> set[str]:
        return set(first.field(".items[*].spec.containers[*].image", "pods", "-n", "thunderfleet-system").split())

    until(lambda: images() == {"thunderfleet/thunderfleet:0.9.0"}, "operator and agents have the new version")
    first.kubectl("delete", "md", "serving")


@pytest.mark.soak
def test_an_upgrade_that_is_killed_at_any_step_is_completed(cluster: Cluster, macs: tuple[Mac, Mac]) -> None:
    newest = f"{next_version(cluster, '0.9.1')}/bin/thunderfleet"
    for mac in reversed(macs):
        for step in UPGRADE_STEPS if mac is macs[0] else UPGRADE_STEPS_OF_A_NODE:
            mac.killed_at(step, "upgrade", program=newest)
        assert "version 0.9.1 runs" in mac.run(newest, "upgrade")
        assert macs[0].field(".status.nodeInfo.kubeletVersion", "node", mac.machine.name).endswith("thunderfleet.0.9.1")
        assert "former-version" not in mac.run("ls", "-A", "/var/lib/thunderfleet")


def test_another_version_replaces_nothing_in_passing(macs: tuple[Mac, Mac]) -> None:
    """The `thunderfleet` of PATH may still be the one from before the upgrade."""
    mac = macs[0]
    before = mac.pids()
    for command in (("init",), ("token", "create", "--control-plane")):
        assert "is installed, and this is version" in mac.run(mac.program, *command, code=1)
    assert mac.pids() == before


def test_reset_leaves_no_file_and_no_process(macs: tuple[Mac, Mac], before: Before) -> None:
    for step in RESET_STEPS_OF_A_NODE:
        macs[1].killed_at(step, "reset")
    said = macs[1].run(macs[1].program, "reset")
    assert "kubectl delete node studio-2" in said
    for step in RESET_STEPS:
        macs[0].killed_at(step, "reset")
    macs[0].run(macs[0].program, "reset")
    for mac, (files, processes, network) in zip(macs, before, strict=True):
        assert mac.network() == network
        assert mac.files() == files
        assert mac.processes() == processes
    assert not Path("/Library").exists(), "recorded Macs have folders of their own"
    assert "ended" not in macs[0].run(macs[0].program, "reset")


def test_init_after_reset_is_another_cluster_which_needs_only_a_cable(cluster: Cluster, macs: tuple[Mac, Mac]) -> None:
    """The bridge carries the only route between the Macs, and its address moves to the port with the cable."""
    first, second = macs
    for mac in macs:
        cluster.lan("pull", mac.machine.name)
    said = first.init()
    assert "Node studio-1 is Ready" in said
    assert "not found" in first.kubectl("get", "configmap", "plain", code=1)
    (line,) = re.findall(r"tf1-[\w-]+", said)
    kill_join_at(second, line, JOINING)
    assert "is Ready" in second.run(second.program, "join", "-", "--config", second.config, text=line)
    until(lambda: first.has_separate_ports() and second.has_separate_ports(), "no port is in a bridge", 180)
    for mac, interface, number in ((first, "en2", 1), (second, "en3", 2)):
        assert f"inet 169.254.7.{number} netmask 0xffff0000" in mac.run("ifconfig", interface)


def test_two_macs_with_only_a_cable_serve_again_after_a_loss_of_power(cluster: Cluster, macs: tuple[Mac, Mac]) -> None:
    """The ports are back in their bridge when a Mac starts, and without the service of the bridge nothing has an address."""
    first, second = macs
    values = f"agent.modelFolders={{{cluster.models}}},agent.modelsIntervalSeconds=2,agent.measure.enabled=false"
    chart = str(Path(__file__).resolve().parents[3] / "charts/thunderfleet")
    first.helm("upgrade", "thunderfleet", chart, "--reuse-values", "--set", values)
    tinymodel.make(cluster.models / "nobody/tiny")
    first.kubectl("apply", "-f", "-", text=BOTH)

    def answers() -> bool:
        endpoint = first.field(".status.groups[0].endpoint", "md", "both")
        return bool(endpoint) and first.machine.run([first.python, "-c", ASK, endpoint], seconds=SECONDS).returncode == 0

    until(answers, "the group answers", 180)
    for mac in macs:
        mac.machine.off()
    for mac in (second, first):
        mac.machine.on()
    until(first.answers, "the API server answers again")
    both = ("studio-1", "studio-2")
    until(lambda: all(first.node_ready(name) for name in both), "both Macs are back over their cable", 120)
    assert [mac.members() for mac in macs] == [[], []]
    address = '.status.addresses[?(@.type=="InternalIP")].address'
    assert [first.field(address, "node", name) for name in both] == ["169.254.7.1", "169.254.7.2"]
    until(answers, "the group answers again", 180)


@pytest.mark.soak
def test_a_join_that_is_killed_at_any_step_is_completed(macs: tuple[Mac, Mac]) -> None:
    """Over the cable alone."""
    first, second = macs
    second.run(second.program, "reset")
    first.kubectl("delete", "node", "studio-2")
    (line,) = re.findall(r"tf1-[\w-]+", first.run(first.program, "init"))
    kill_join_at(second, line, *JOIN_STEPS)
    join = ("join", "--token-file", str(second.machine.folder / "line"), "--config", second.config)
    assert "this Mac is Node studio-2 and is Ready" in second.run(second.program, *join)
    assert first.node_ready("studio-2")
    until(second.has_separate_ports, "no port is in a bridge", 180)
