"""Local clusters on the real control plane: both kinds of network, side by side, and nothing that remains when they end."""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import running
from thunderfleet_localcluster.client.launch import Network, kubelet_command
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.network.namespaces import can_isolate

from tests.support.kubelets import Fleet, container, pod
from tests.support.network.proxy import proxy_headers
from tests.support.suite.tiers import quick
from tests.support.waiting import until

FLEET = """
machines:
- {name: studio-1, model: Mac Studio (M3 Ultra), rdma: true}
- {name: studio-2, model: Mac Studio (M3 Ultra), rdma: true}
- {name: linux-1, kind: linux}
cables:
- {a: studio-1:1, b: studio-2:3, speed: 80}
- {a: studio-1:2, b: studio-2:2, speed: 40, through: Some Hub, rateMbps: 100}
"""
NO_NAMESPACES = can_isolate()
NAMESPACES = [pytest.param("namespaces", marks=pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES)))]
LOOPBACK = [pytest.param("loopback")]
MODES = NAMESPACES + LOOPBACK


def left_of(folder: Path, but: int = 0) -> list[str]:
    """Processes of the cluster in ``folder``: whose command line, environment or working directory names it."""
    found, needle = [], str(folder).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), but):
            continue
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            where = os.readlink(entry / "cwd").encode()
            if needle in line or where.startswith(needle) or needle in (entry / "environ").read_bytes():
                found.append(f"{entry.name}: {line.replace(bytes(1), b' ').decode()}")
    return found


def assert_nothing_left(folder: Path, ports: tuple[int, ...] = (), but: int = 0) -> None:
    """No process (``but`` one), no port, no mount, no lock."""
    until(lambda: not left_of(folder, but), f"processes end: {left_of(folder, but)}")
    assert not running(ClusterFolder(folder))
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def processes_of(folder: Path, program: str) -> list[int]:
    """Process ids of ``program`` in the cluster in ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(bytes(1)) if entry.name.isdigit() else [b""]
            if words[0].endswith(program.encode()) and any(str(folder).encode() in word for word in words):
                found.append(int(entry.name))
    return found


def code_of(opener: urllib.request.OpenerDirector, url: str) -> int:
    """The HTTP status that an address answers with."""
    try:
        with opener.open(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def ports_of(cluster: Cluster) -> tuple[int, ...]:
    return tuple(int(address.rsplit(":", 1)[1]) for address in (cluster.server, cluster.proxy))


@pytest.fixture(scope="module", params=MODES)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster in one mode. pytest runs all tests of a mode before those of the next, in the order of this file."""
    mode: Network = request.param
    with tempfile.TemporaryDirectory(prefix=f"{mode}-") as folder:
        # Pods have users of their own, to whom the folders of pytest are closed.
        Path(folder).chmod(0o755)
        with Cluster.start(FLEET, name=mode, directory=Path(folder), network=mode) as started:
            yield started


def test_every_machine_is_a_ready_node(cluster: Cluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json").stdout)["items"]
    assert {node["metadata"]["name"] for node in nodes} == {"studio-1", "studio-2", "linux-1"}
    systems = {node["metadata"]["name"]: node["metadata"]["labels"]["kubernetes.io/os"] for node in nodes}
    assert systems == {"studio-1": "darwin", "studio-2": "darwin", "linux-1": "linux"}
    for node in nodes:
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
        address = cluster.machines[node["metadata"]["name"]].address
        assert [a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"] == [address]
    status = cluster.status()
    assert all(item["pid"] for item in status["components"]) and len(status["components"]) == 4
    assert all(item["node"] == "Ready" and item["kubelet"] for item in status["machines"])


def test_the_cluster_is_a_hardened_one(cluster: Cluster) -> None:
    context = ssl.create_default_context(cafile=str(cluster.folder.pki / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    assert code_of(opener, cluster.server + "/api/v1/nodes") == 401
    (pid,) = processes_of(cluster.folder.root, "kube-apiserver")
    flags = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    for flag in ("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false"):
        assert flag in flags
    denied = cluster.kubectl(
        "auth", "can-i", "get", "secrets", "--as=system:node:studio-1", "--as-group=system:nodes", check=False
    )
    assert denied.stdout.strip().startswith("no")


def open_to_others(folder: Path) -> list[Path]:
    """What every user of the machine may read or write in a folder, if they can get there: its files and sockets."""
    found = []
    for entry in folder.iterdir():
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode):
            found += open_to_others(entry) if mode & stat.S_IXOTH else []
        elif (stat.S_ISREG(mode) or stat.S_ISSOCK(mode)) and mode & (stat.S_IROTH | stat.S_IWOTH):
            found.append(entry)
    return found


def test_another_user_finds_no_secret_in_the_folder(cluster: Cluster) -> None:
    """Private keys, tokens and kubeconfigs, and the socket that takes commands. Command lines hold none either."""
    readable = open_to_others(cluster.folder.root)
    assert not [path for path in readable if path.is_socket()]
    texts = {path: path.read_bytes() for path in readable if path.is_file() and path.stat().st_size < 1 << 20}
    password = str(urlsplit(cluster.proxy).password).encode()
    for secret in (b"PRIVATE KEY", b"client-key-data", password):
        assert not [path for path, text in texts.items() if secret in text]
    assert cluster.folder.state not in readable and cluster.folder.kubeconfig not in readable
    assert texts, "recorded commands can be read, or this test looks in the wrong place"
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            assert password not in line
            assert b"--token\0" not in line or str(cluster.folder.root).encode() not in line


# Asks every port without credentials, as another user: the status of /metrics, or why there is none.
STRANGER = """
import json, os, ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
found = {}
for at in json.loads(sys.argv[1]):
    for path in ("/metrics", "/v3/kv/range", "/pods"):
        try:
            with opener.open(f"https://{at}{path}", timeout=10) as answer:
                found[at + path] = answer.status
        except urllib.error.HTTPError as error:
            found[at + path] = error.code
        except OSError as error:
            found[at + path] = str(error)
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("cluster", LOOPBACK, indirect=True)
def test_another_user_gets_no_answer_from_any_port(cluster: Cluster) -> None:
    """In loopback mode every user of the machine reaches etcd, API server, controllers and kubelets."""
    network = f"{cluster.machines['studio-1'].address.rpartition('.')[0]}."

    def listeners() -> set[str]:
        found = set()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            (address, _, port), state = line.split()[1].partition(":"), line.split()[3]
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            if state == "0A" and host.startswith(network):
                found.add(f"{host}:{int(port, 16)}")
        return found

    # etcd twice, API server, two controllers, three kubelets.
    listening = until(
        lambda: found if len(found := listeners()) >= 8 else None, "everything listens", describe=lambda: str(listeners())
    )
    # This Python may be below a folder that others cannot enter; that of the image is for every user.
    python = next((cluster.image_folder / "bin").glob("python3.*[0-9]"))
    asked = [str(python), "-c", STRANGER, json.dumps(sorted(listening))]
    config = json.loads((cluster.image_folder / "config.json").read_text())
    own = dict(entry.split("=", 1) for entry in config.get("Env") or [])
    done = subprocess.run(
        asked, user=12345, group=12345, extra_groups=[], env=own, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    given = {where: answer for where, answer in answers.items() if isinstance(answer, int) and answer not in (401, 403, 404)}
    assert not given
    # etcd asks for a certificate before it answers anything.
    assert sum("certificate" in str(answer) for answer in answers.values()) >= 2, answers


def test_tokens_of_machines_are_spent_and_new_ones_join(cluster: Cluster, tmp_path: Path) -> None:
    secrets = ("get", "secrets", "-n", "kube-system", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", "name")
    assert cluster.kubectl(*secrets).stdout == ""
    token = cluster.token()
    config = tmp_path / "kubelet.yaml"
    config.write_text("nodeName: stranger-1\naddresses: [127.0.0.1]\n")
    line = [
        "join",
        "--server",
        cluster.server,
        "--token",
        token,
        "--no-run",
        "--root",
        str(tmp_path / "root"),
        "--config",
        str(config),
    ]
    wrong = subprocess.run(
        [*kubelet_command(), *line, "--ca-hash", "sha256:" + "0" * 64], capture_output=True, text=True, timeout=60, check=False
    )
    assert wrong.returncode != 0
    right = subprocess.run(
        [*kubelet_command(), *line, "--ca-hash", str(cluster.state["caHash"])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert right.returncode == 0, right.stderr
    requests = json.loads(cluster.kubectl("get", "csr", "-o", "json").stdout)["items"]
    mine = [item for item in requests if item["spec"]["username"] == f"system:bootstrap:{token.split('.')[0]}"]
    assert [condition["type"] for item in mine for condition in item["status"]["conditions"]] == ["Approved"]


@pytest.mark.parametrize("cluster", NAMESPACES, indirect=True)
def test_recorded_commands_say_what_the_kernel_has(cluster: Cluster) -> None:
    for name in ("studio-1", "studio-2"):
        machine = cluster.machines[name]
        printed = machine.run(["ifconfig", "-a"]).stdout
        real = json.loads(machine.run(["ip", "-j", "addr"]).stdout)
        for item in real:
            if item["ifname"] == "lo":
                continue
            block = re.search(rf"^{item['ifname']}: (?:.|\n)*?(?=^\S|\Z)", printed, re.MULTILINE)
            assert block is not None
            assert f"\tether {item['address']}\n" in block[0]
            inet = next(info for info in item["addr_info"] if info["family"] == "inet")
            assert f"\tinet {inet['local']} netmask" in block[0] and f"broadcast {inet['broadcast']}" in block[0]
            assert "status: active" in block[0]
            inet6 = [info["local"] for info in item["addr_info"] if info["family"] == "inet6"]
            assert all(f"\tinet6 {address}%{item['ifname']} " in block[0] for address in inet6)
        assert {item["ifname"] for item in real} == {"lo", "en0", *(str(cable["interface"]) for cable in machine.cables)}


def test_cables_carry_and_nothing_else_gets_in(cluster: Cluster) -> None:
    one, two = cluster.machines["studio-1"], cluster.machines["studio-2"]
    far = {cable["peerPort"]: cable for cable in one.cables}
    address = next(str(cable["address"]) for cable in two.cables if cable["port"] in far)
    serve = (
        "import socket, sys\n"
        f"s = socket.create_server(({address!r}, 0)); s.settimeout(30)\n"
        "import subprocess; print(s.getsockname()[1], flush=True)\n"
        "open(sys.argv[1], 'w').write(str(s.getsockname()[1]))\n"
        "c, peer = s.accept(); c.sendall(peer[0].encode())\n"
    )
    note = one.folder / "port"
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(_Background(lambda: two.run([sys.executable, "-c", serve, str(note)], seconds=40)))
        until(lambda: note.exists() and note.read_text() != "", "the server listens")
        dial = f"import socket; c = socket.create_connection(({address!r}, {note.read_text()}), 10); print(c.recv(99).decode())"
        done = one.run([sys.executable, "-c", dial])
        assert done.returncode == 0, done.stderr
        if cluster.network == "namespaces":
            assert done.stdout.strip() in {str(cable["address"]) for cable in one.cables}
        assert pool.result().returncode == 0


class _Background:
    """A call in a thread."""

    def __init__(self, call: Callable[[], subprocess.CompletedProcess[str]]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.pool = ThreadPoolExecutor(1)
        self.call = call

    def __enter__(self) -> "_Background":
        self.future = self.pool.submit(self.call)
        return self

    def result(self) -> subprocess.CompletedProcess[str]:
        return self.future.result(60)

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()


def test_the_proxy_reaches_machines_only_and_needs_its_token(cluster: Cluster) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": cluster.proxy}))
    assert code_of(opener, "http://10.99.99.99/") == 403
    kubelet = f"{cluster.machines['studio-1'].address}:10250"
    at = urlsplit(cluster.proxy)
    stranger = urllib.request.build_opener(urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{at.port}"}))
    assert code_of(stranger, f"http://{kubelet}/") == 407
    known = "\r\n".join(f"{name}: {value}" for name, value in proxy_headers(cluster.proxy).items())

    def dial() -> socket.socket | None:
        """A tunnel to the kubelet; it listens as soon as its serving certificate is signed."""
        channel = socket.create_connection((str(at.hostname), at.port or 0), 10)
        channel.sendall(f"CONNECT {kubelet} HTTP/1.1\r\n{known}\r\n\r\n".encode())
        if channel.recv(100).startswith(b"HTTP/1.1 200 "):
            return channel
        channel.close()
        return None

    with until(dial, "the kubelet listens") as channel:
        context = ssl.create_default_context(cafile=str(cluster.folder.pki / "ca.crt"))
        with context.wrap_socket(channel, server_hostname=cluster.machines["studio-1"].address) as tls:
            # The kubelet's serving certificate, approved by the supervisor and signed by the cluster, for this address.
            certificate = tls.getpeercert()
            assert certificate is not None
            assert ("IP Address", cluster.machines["studio-1"].address) in certificate["subjectAltName"]


def test_a_killed_kubelet_and_a_machine_without_power(cluster: Cluster) -> None:
    machine = cluster.machines["studio-2"]

    def mine() -> dict[str, object]:
        return next(item for item in cluster.status()["machines"] if item["name"] == "studio-2")

    machine.kill_kubelet()
    assert (mine()["kubelet"], mine()["end"], mine()["on"]) == (None, "signal 9", True)
    with pytest.raises(LocalClusterError, match="its kubelet is not running"):
        machine.kill_kubelet()
    machine.start_kubelet()
    with pytest.raises(LocalClusterError, match="its kubelet is already running"):
        machine.start_kubelet()
    machine.off()
    assert (mine()["kubelet"], mine()["on"]) == (None, False)
    until(lambda: not left_of(machine.folder), "all of its processes end")
    with pytest.raises(LocalClusterError, match="studio-2 is off"):
        machine.run(["true"])
    machine.on()
    assert mine()["kubelet"]
    if cluster.network == "namespaces":
        links = {item["ifname"] for item in json.loads(machine.run(["ip", "-j", "link"]).stdout)}
        assert links == {"lo", "en0", *(str(cable["interface"]) for cable in machine.cables)}
    lease = ("get", "lease", "-n", "kube-node-lease", "studio-2", "-o", "jsonpath={.spec.renewTime}")
    before = cluster.kubectl(*lease).stdout
    until(lambda: cluster.kubectl(*lease).stdout != before, "it renews its lease again")


def test_a_component_that_dies_is_reported_with_its_last_words(cluster: Cluster) -> None:
    scheduler = next(item for item in cluster.status()["components"] if item["name"] == "kube-scheduler")
    (pid,) = processes_of(cluster.folder.root, "kube-scheduler")
    os.kill(pid, signal.SIGTERM)

    def ended() -> bool:
        item = next(item for item in cluster.status()["components"] if item["name"] == "kube-scheduler")
        return item["pid"] is None and item["tail"] != "" and item["log"] == scheduler["log"]

    until(ended, "its end is reported")
    cluster.component("kube-scheduler", "on")
    assert all(item["pid"] for item in cluster.status()["components"])


def test_the_api_server_may_go_away_for_a_while(cluster: Cluster) -> None:
    cluster.component("kube-apiserver", "off")
    assert cluster.kubectl("get", "--raw=/readyz", check=False).returncode != 0
    assert [item["end"] for item in cluster.status()["components"] if item["name"] == "kube-apiserver"] == ["stopped"]
    cluster.component("kube-apiserver", "on")
    until(lambda: cluster.kubectl("get", "--raw=/readyz", check=False).stdout == "ok", "it answers")
    assert cluster.token()


def test_the_same_folder_takes_one_cluster(cluster: Cluster) -> None:
    with pytest.raises(LocalClusterError, match="is already running"):
        Cluster.start(FLEET, name=cluster.name, directory=cluster.folder.root)
    assert Cluster.attach(cluster.name, cluster.folder.root).server == cluster.server


def secrets_of(cluster: Cluster) -> set[bytes]:
    """Values of all Secrets, private keys of the control plane, and the proxy's token."""
    items = json.loads(cluster.kubectl("get", "secrets", "-A", "-o", "json").stdout)["items"]
    data = {base64.b64decode(value) for item in items for key, value in (item.get("data") or {}).items() if "secret" in key}
    keys = {path.read_bytes() for path in cluster.folder.pki.glob("*.key")}
    return data | keys | {b"".join(key.splitlines()[1:2]) for key in keys} | {str(urlsplit(cluster.proxy).password).encode()}


def test_the_support_archive_holds_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    planted = "hunter2hunter2hunter2"
    account = cluster.kubectl("create", "token", "default").stdout.strip()
    cluster.kubectl("create", "secret", "generic", "planted", f"--from-literal=secret-word={planted}")
    token = cluster.token()
    # Where secrets leak: environment, arguments, annotations, and logs.
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "leaky", "annotations": {"note": f"Authorization: Bearer {account}"}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/os": "none"},
            "containers": [
                {"name": "a", "image": "x", "args": ["--token", token], "env": [{"name": "HF_TOKEN", "value": planted}]}
            ],
        },
    }
    cluster.kubectl("apply", "-f", "-", text=json.dumps(pod))
    with cluster.folder.log("supervisor").open("a") as log:
        log.write(f"--token {token} api_key={planted} {account}\n")
    output = tmp_path / "support.tar.gz"
    command = [sys.executable, "-m", "thunderfleet_cli", "support", "--output", str(output)]
    where = ["--name", cluster.name, "--dir", str(cluster.folder.root)]
    done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(output) as archive:
        streams = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive.getmembers()}
        files = {name: stream.read() for name, stream in streams.items() if stream is not None}
    secrets = {value for value in secrets_of(cluster) | {planted.encode(), account.encode(), token.encode()} if len(value) > 7}
    assert len(secrets) > 20
    assert not [(name, secret) for name, text in files.items() for secret in secrets if secret in text]
    assert {"logs/local/kube-apiserver.log", "local/status.json", "objects/nodes.json", "objects/events.json"} < files.keys()
    assert [node["metadata"]["name"] for node in json.loads(files["objects/nodes.json"])] == ["linux-1", "studio-1", "studio-2"]
    assert b"api_key=[redacted]" in files["logs/local/supervisor.log"]
    # The kinds of Thunderfleet are not installed here; the rest is collected all the same.
    problems = files["problems.txt"].decode().splitlines()
    ours = ("modelcaches", "modeldeployments", "nodeprofiles", "thunderboltlinks")
    assert sorted(line.partition(":")[0] for line in problems) == [f"objects/{name}.json" for name in ours]
    cluster.kubectl("delete", "pod/leaky", "secret/planted", "--wait=false")


@pytest.mark.parametrize("cluster", LOOPBACK, indirect=True)
def test_up_and_down_by_command(cluster: Cluster, tmp_path: Path) -> None:
    """Beside another cluster, which goes on."""

    def run(*argv: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "thunderfleet_cli", "local", *argv],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    where = ("--dir", str(tmp_path / "cluster"), "--name", "commands")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    assert "export KUBECONFIG=" in run("up", str(fleet), *where)
    started = Cluster.attach("commands", tmp_path / "cluster")
    ports = ports_of(started)
    assert "studio-1" in run("status", *where) and json.loads(run("status", "-o", "json", *where))["running"]
    assert json.loads(run("kubeconfig", *where))["clusters"][0]["cluster"]["server"] == started.server
    assert re.fullmatch(
        r"thunderfleet-kubelet join --server https://127\.0\.0\.1:\d+ "
        r"--token [a-z0-9]{6}\.[a-z0-9]{16} --ca-hash sha256:[0-9a-f]{64}\n",
        run("token", *where),
    )
    assert run("machine", "exec", *where, "studio-1", "--", "sw_vers", "-productVersion") == "26.3\n"
    assert "linux-1" in run("node", *where, "remove", "linux-1")
    run("down", *where)
    assert_nothing_left(tmp_path / "cluster", ports)
    run("down", *where)
    assert sorted(path.name for path in (tmp_path / "cluster").iterdir()) == ["logs"]
    run("status", *where, code=1)
    machines = cluster.status()["machines"]
    assert all(item["node"] == "Ready" and item["kubelet"] for item in machines), machines


@pytest.mark.parametrize("cluster", LOOPBACK, indirect=True)
def test_loopback_network_runs_pods_too(cluster: Cluster) -> None:
    """Machines without network namespaces. The pod runs until the cluster ends."""
    fleet = Fleet(cluster, Path())
    fleet.apply(pod("here", [container(cluster.image, "echo hello; sleep 3600")], node="linux-1"))
    fleet.running("here")
    assert fleet.until_logged("here", "hello\n") == "hello\n"
    assert fleet.exec("here", "cat", text="through") == "through"


# -- ends --------------------------------------------------------------------------------------------------------------------

_PARENT = """
import sys, time
from pathlib import Path
from thunderfleet_localcluster.client.cluster import Cluster
cluster = Cluster.start({fleet!r}, name="child", directory=Path({folder!r}), network={mode!r})
print(cluster.server, cluster.proxy, flush=True)
time.sleep(600)
"""


def test_a_killed_supervisor_leaves_nothing(cluster: Cluster) -> None:
    """The last test of this cluster."""
    folder, ports = cluster.folder.root, ports_of(cluster)
    assert left_of(folder)
    os.kill(cluster.pid, signal.SIGKILL)
    assert_nothing_left(folder, ports)


@pytest.mark.parametrize("mode", quick([], ["namespaces", "loopback"]))
def test_a_killed_parent_leaves_nothing(mode: str, tmp_path: Path) -> None:
    """Whose supervisor notices it; that nothing is left then is what the test above shows."""
    if mode == "namespaces" and NO_NAMESPACES is not None:
        pytest.skip(str(NO_NAMESPACES))
    code = _PARENT.format(fleet=FLEET, folder=str(tmp_path), mode=mode)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ports = tuple(int(address.rsplit(":", 1)[1]) for address in parent.stdout.readline().split())
        try:
            assert left_of(tmp_path, but=parent.pid)
            parent.kill()
            assert_nothing_left(tmp_path, ports, but=parent.pid)
        finally:
            parent.kill()


MOMENTS = ("image", "API server", "machines join")


# That nothing is left of machines in namespaces is also what a killed supervisor shows.
@pytest.mark.parametrize(
    ("mode", "moment"),
    quick(
        [("namespaces", "image"), ("loopback", "image"), ("loopback", "machines join")],
        product(("namespaces", "loopback"), MOMENTS),
    ),
)
def test_ctrl_c_in_the_middle_of_up_leaves_nothing(mode: str, moment: str, tmp_path: Path) -> None:
    if mode == "namespaces" and NO_NAMESPACES is not None:
        pytest.skip(str(NO_NAMESPACES))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    folder = tmp_path / "cluster"
    argv = ["local", "up", str(fleet), "--dir", str(folder), "--network", mode, "--name", "interrupted"]
    command = [sys.executable, "-u", "-m", "thunderfleet_cli", *argv]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # Lines come when a step is done: the signal hits the step after it.
        for line in process.stderr:
            if {"image": "image", "API server": "certificates", "machines join": "controllers"}[moment] in line:
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
    assert_nothing_left(folder)


def test_a_control_plane_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thunderfleet_controlplane.assets import CONTROL_PLANE
    from thunderfleet_localcluster.programs import find_programs

    real, broken = find_programs(lambda event: None), tmp_path / "assets"
    broken.mkdir()
    for name in CONTROL_PLANE.programs:
        (broken / name).symlink_to(real / name)
    (broken / "kube-apiserver").unlink()
    (broken / "kube-apiserver").write_text("#!/bin/sh\necho 'no etcd for me' >&2\nexit 7\n")
    (broken / "kube-apiserver").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(broken))
    with pytest.raises(LocalClusterError, match=r"kube-apiserver ended \(exit code 7\)(.|\n)*no etcd for me"):
        Cluster.start(FLEET, name="broken", directory=tmp_path / "cluster")
    assert_nothing_left(tmp_path / "cluster")
