"""The image of operator and router runs as a container: the command lines of the chart, an API server, ``/readyz``."""

import contextlib
import filecmp
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support import yamltext
from tests.support.images import oci
from tests.support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.linux]

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "thunderfleet"
NAMESPACE = "thunderfleet-system"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
BUILD_SECONDS = 900
RUNC_SECONDS = 30
READY_SECONDS = 90.0
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Container:
    """A container that runc runs on the network of the host."""

    name: str
    bundle: Path
    log: Path
    process: "subprocess.Popen[bytes]"

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def build(folder: Path, name: str, *arguments: str) -> Path:
    """An image in ``folder``. Downloads stay in the user's cache."""
    command = [
        sys.executable,
        "-m",
        "thunderfleet_image",
        "--checkout",
        str(ROOT),
        "build",
        "--out",
        str(folder / name),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / name


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("image"), "first")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def bundle(image: Path, folder: Path, pod: Json, cluster: Cluster) -> None:
    """What containerd makes of a pod's only container: the root file system, and the configuration for runc."""
    manifest = oci.manifests(image)[MACHINES[platform.machine()]]
    config = oci.configuration(image, manifest)["config"]
    (folder / "rootfs").mkdir(parents=True)
    oci.unpack(image, manifest, folder / "rootfs")
    (container,) = pod["containers"]
    server = urlsplit(cluster.server)
    fields = {
        "status.hostIP": "127.0.0.1",
        "metadata.name": pod["serviceAccountName"],
        "metadata.namespace": NAMESPACE,
        "metadata.uid": "5b1f2c1e-0000-4000-8000-000000000001",
        "spec.nodeName": "node-1",
    }
    named = {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
    }
    given = named | {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
    uid, gid = (int(part) for part in config["User"].split(":"))
    assert uid != 0
    security = container["securityContext"]
    assert security["capabilities"]["drop"] == ["ALL"]
    process = {
        "user": {"uid": uid, "gid": gid},
        "args": [*container["command"], *container["args"]],
        "env": [*config["Env"], *(f"{name}={value}" for name, value in given.items())],
        "cwd": config["WorkingDir"],
        "capabilities": {},
        "noNewPrivileges": not security["allowPrivilegeEscalation"],
    }
    account = folder / "account"
    account.mkdir()
    token = cluster.kubectl("create", "token", pod["serviceAccountName"], "-n", NAMESPACE).stdout.strip()
    authority = yamltext.load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    (account / "ca.crt").write_text(
        subprocess.run(["base64", "-d"], input=authority, capture_output=True, text=True, check=True).stdout
    )
    (account / "namespace").write_text(NAMESPACE)
    (account / "token").write_text(token)
    (account / "token").chmod(0o644)
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": ACCOUNT, "type": "bind", "source": str(account), "options": ["rbind", "ro"]},
    ]
    empty = {volume["name"] for volume in pod.get("volumes", []) if "emptyDir" in volume}
    for mount in container.get("volumeMounts", []):
        assert mount["name"] in empty
        (folder / mount["name"]).mkdir()
        (folder / mount["name"]).chmod(0o777)
        source = str(folder / mount["name"])
        mounts.append({"destination": mount["mountPath"], "type": "bind", "source": source, "options": ["rbind", "rw"]})
    namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    spec = {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": "rootfs", "readonly": security["readOnlyRootFilesystem"]},
        "mounts": mounts,
        "linux": {"namespaces": namespaces},
    }
    (folder / "config.json").write_text(json.dumps(spec))


@contextlib.contextmanager
def running(folder: Path, name: str) -> Iterator[Container]:
    if not shutil.which("runc"):
        pytest.fail("runc is not installed: make runc")
    state, log = folder / "state", folder / "log"
    runc = ["runc", "--root", str(state)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*runc, "run", "--bundle", str(folder), name], stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    try:
        yield Container(name, folder, log, process)
    finally:
        subprocess.run([*runc, "kill", name, "TERM"], timeout=RUNC_SECONDS, capture_output=True, check=False)
        try:
            process.wait(RUNC_SECONDS)
        except subprocess.TimeoutExpired:
            subprocess.run([*runc, "delete", "--force", name], timeout=RUNC_SECONDS, capture_output=True, check=False)
            process.wait(RUNC_SECONDS)


def ready(port: int) -> str:
    """The answer of /readyz; nothing if there is none yet or it is not 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return str(answer.read().decode().strip()) or "ready"
    except (urllib.error.URLError, OSError):
        return ""


@pytest.fixture(scope="module")
def pods(control_plane: Cluster) -> Iterator[Mapping[str, Json]]:
    """The pods of operator and router as the chart installs them on Linux nodes."""
    ports = {"operator.metricsPort": free_port(), "operator.demandPort": free_port(), "router.port": free_port()}
    values = ["router.enabled=true", "router.linuxReplicas=1", "operator.replicas=1", *(f"{k}={v}" for k, v in ports.items())]
    words = [word for value in values for word in ("--set", value)]
    control_plane.helm("upgrade", "--install", "thunderfleet", str(CHART), "-n", NAMESPACE, "--create-namespace", *words)
    listed = json.loads(control_plane.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json").stdout)["items"]
    yield {item["metadata"]["name"].removeprefix("thunderfleet-"): item["spec"]["template"]["spec"] for item in listed}
    control_plane.helm("uninstall", "thunderfleet", "-n", NAMESPACE, "--ignore-not-found", "--wait")


def port_of(pod: Json) -> int:
    (container,) = pod["containers"]
    wanted = container["readinessProbe"]["httpGet"]["port"]
    return int(next(port["containerPort"] for port in container["ports"] if port["name"] == wanted))


def test_operator_and_router_run_from_the_image(
    image: Path, pods: Mapping[str, Json], control_plane: Cluster, tmp_path: Path
) -> None:
    assert set(pods) == {"operator", "router"}
    with contextlib.ExitStack() as stack:
        for component in ("operator", "router"):
            folder, pod = tmp_path / component, pods[component]
            bundle(image, folder, pod, control_plane)
            container = stack.enter_context(running(folder, f"thunderfleet-{component}-{os.getpid()}"))

            def answers(container: Container = container, port: int = port_of(pod)) -> str:
                assert container.process.poll() is None, container.text()
                return ready(port)

            said = until(answers, f"{component} is ready", READY_SECONDS, describe=container.text)
            assert said == {"operator": "leader"}.get(component, said)


def test_two_builds_have_the_same_bytes(image: Path, tmp_path: Path) -> None:
    again = build(tmp_path, "second")
    found = filecmp.dircmp(image, again)
    assert (found.left_only, found.right_only, found.diff_files) == ([], [], [])
    blobs = sorted(path.name for path in (image / "blobs/sha256").iterdir())
    assert blobs == sorted(path.name for path in (again / "blobs/sha256").iterdir())
    assert not filecmp.cmpfiles(image / "blobs/sha256", again / "blobs/sha256", blobs, shallow=False)[1]


def head_of(path: Path) -> bytes:
    """The first bytes of a file; nothing of anything else."""
    if path.is_symlink() or not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(20)


def test_the_programs_of_both_platforms_are_of_their_machine(image: Path, tmp_path: Path) -> None:
    machines = {"amd64": 0x3E, "arm64": 0xB7}
    for architecture, manifest in oci.manifests(image).items():
        root = tmp_path / architecture
        oci.unpack(image, manifest, root)
        heads = [head for path in root.rglob("*") if (head := head_of(path)).startswith(b"\x7fELF")]
        assert len(heads) > 50
        assert {int.from_bytes(head[18:20], "little") for head in heads} == {machines[architecture]}
