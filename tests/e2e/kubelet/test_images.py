"""Images of a registry on a Mac of a real cluster, as users see them: through kubectl.

The registry listens on the loopback of one of the Macs, where it needs no TLS.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_kubelet.node.machine import here
from thunderfleet_localcluster.client.cluster import Cluster, ClusterMachine
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.images import distribution
from tests.support.images.registry import Entry, Layer, Registry, folder, save, script
from tests.support.waiting import until

Json = dict[str, Any]

MAC = "kube-mac"
PORT = 15123
HOST = f"127.0.0.1:{PORT}"
SECONDS = 90.0
STAYS = "trap 'exit 0' TERM; echo runs from $0; while :; do sleep 0.1; done"


class Fleet:
    """The cluster, and the registry on its Mac."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.mac: ClusterMachine = cluster.machines[MAC]
        self.folder = self.mac.folder / "registry"
        self.registry = Registry()

    def publish(self) -> None:
        save(self.registry, self.folder)

    def start(self) -> None:
        self.publish()
        (self.folder / "log").touch()
        command = shlex.join([sys.executable, "-m", "tests.support.images.registry", str(self.folder), str(PORT)])
        where = f"cd {shlex.quote(str(Path(__file__).parents[3]))}"
        # It ends with the cluster's machine.
        self.mac.run(
            ["sh", "-c", f"{where}; {command} >{shlex.quote(str(self.folder / 'output'))} 2>&1 & echo $! >{self.folder}/pid"]
        )
        until(lambda: (self.folder / "ready").exists(), "the registry serves", describe=self.output)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def stop(self) -> None:
        self.mac.run(["kill", (self.folder / "pid").read_text().strip()])

    def requests(self, kind: str) -> int:
        return sum(f"/{kind}/" in line for line in (self.folder / "log").read_text().splitlines())

    def run(self, name: str, image: str, host: str = HOST, **spec: Any) -> None:
        container = {"name": "main", "image": f"{host}/{image}", "imagePullPolicy": spec.pop("policy", "IfNotPresent")}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "hostNetwork": True,
                "nodeSelector": {"kubernetes.io/hostname": MAC, "kubernetes.io/os": "darwin"},
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 2,
                "containers": [container],
                **spec,
            },
        }
        self.cluster.kubectl("apply", "-f", "-", text=json.dumps(body))

    def status(self, name: str) -> Json:
        found: Json = json.loads(self.cluster.kubectl("get", "pod", name, "-o", "json").stdout)["status"]
        return found

    def container(self, name: str) -> Json:
        return next(iter(self.status(name).get("containerStatuses") or [{}]))

    def reaches(self, name: str, holds: Callable[[Json], object], what: str) -> Json:
        """The container's status for which ``holds``. A moment later it may have another one, such as that of the next pull."""

        def found() -> Json | None:
            one = self.container(name)
            return one if holds(one) else None

        return until(found, f"{name}: {what}", SECONDS, describe=lambda: json.dumps(self.status(name)))

    def running(self, name: str) -> Json:
        return self.reaches(name, lambda one: "running" in (one.get("state") or {}), "runs")

    def waiting(self, name: str, reason: str) -> Json:
        return self.reaches(
            name, lambda one: ((one.get("state") or {}).get("waiting") or {}).get("reason") == reason, f"waits with {reason}"
        )

    def events(self, name: str) -> list[tuple[str, str, str]]:
        found = json.loads(
            self.cluster.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "json").stdout
        )
        return [(one["type"], one["reason"], one["message"]) for one in found["items"]]

    def images(self) -> set[str]:
        """The names of images in the Node's status that are of this registry."""
        node = json.loads(self.cluster.kubectl("get", "node", MAC, "-o", "json").stdout)
        return {name for one in node["status"].get("images") or [] for name in one["names"] if name.startswith(HOST)}


@pytest.fixture(scope="module")
def fleet(kubelets: Cluster) -> Iterator[Fleet]:
    found = Fleet(kubelets)
    program = Layer.of(folder("opt"), script("opt/stays", STAYS))
    other = found.registry.image(Layer.of(Entry("other")), platform=("darwin", "riscv"))
    for tag in ("1", "2"):
        mine = found.registry.image(program, Layer.of(Entry("version", tag.encode())), config={"Entrypoint": ["/opt/stays"]})
        index = found.registry.index(**{"darwin_riscv": other, "_".join(here()): mine})
        found.registry.put("team/app", tag, index, mine, other)
    found.start()
    yield found
    kubelets.kubectl("delete", "pod", "--wait=false", "--ignore-not-found", *(f"image-{one}" for one in ("one", "late", "old")))
    found.stop()


def test_an_image_is_pulled_missed_waited_for_and_deleted_when_nobody_needs_it(fleet: Fleet) -> None:
    fleet.run("image-one", "team/app:1")
    fleet.run("image-old", "team/app:2")
    fleet.run("image-late", "team/late:1")
    one = fleet.running("image-one")
    digest = one["imageID"].rpartition("@")[2]
    assert one["imageID"] == f"{HOST}/team/app@{digest}" and digest.startswith("sha256:")
    # The kubelet serves once its certificate is signed.
    log = until(lambda: fleet.cluster.kubectl("logs", "image-one").stdout, "its log", retry_on=(LocalClusterError,))
    assert "/opt/stays" in log

    def told() -> list[str]:
        return [message for _, reason, message in fleet.events("image-one") if reason == "Pulled"]

    # The kubelet sends Events one after the other, beside what it does.
    pulled = until(told, "an Event tells of the pull")
    assert len(pulled) == 1 and pulled[0].startswith(f"Successfully pulled image '{HOST}/team/app:1'")
    until(lambda: fleet.images() >= {f"{HOST}/team/app:1", one["imageID"]}, "the Node lists it")
    # What is missing is waited for, and the reason says what the registry said.
    late = fleet.waiting("image-late", "ImagePullBackOff")
    assert "manifest unknown" in late["state"]["waiting"]["message"]
    until(lambda: {"Failed", "BackOff"} <= {reason for _, reason, _ in fleet.events("image-late")}, "the Events")
    fleet.registry.simple("team/late", "1", script("late", STAYS), config={"Cmd": ["/late"]})
    fleet.publish()
    fleet.running("image-late")
    # An image without a pod goes when the disk is too full; those of pods stay.
    fleet.running("image-old")
    fleet.cluster.kubectl("delete", "pod", "image-old")
    file = fleet.mac.folder / "kubelet.yaml"
    before = file.read_text()
    pulls = {"highThresholdPercent": 1, "lowThresholdPercent": 0, "minimumAgeSeconds": 0}
    fleet.mac.stop_kubelet()
    file.write_text(yaml.safe_dump({**yaml.safe_load(before), "imagePulls": pulls}))
    fleet.mac.start_kubelet()
    try:
        until(lambda: f"{HOST}/team/app:2" not in fleet.images(), "the unused image is gone")
        assert fleet.images() >= {f"{HOST}/team/app:1", f"{HOST}/team/late:1"}
        assert fleet.running("image-one")["containerID"] == one["containerID"]
    finally:
        fleet.mac.stop_kubelet()
        file.write_text(before)
        fleet.mac.start_kubelet()


@pytest.mark.soak
def test_an_image_of_cncf_distribution(fleet: Fleet) -> None:
    """By tag, by digest and once more, from the registry that others descend from."""
    port = PORT + 1
    log = distribution.start(fleet.mac, fleet.folder, f"127.0.0.1:{port}")
    try:
        fleet.run("image-one", "team/app:1", f"127.0.0.1:{port}")
        digest = fleet.running("image-one")["imageID"].rpartition("@")[2]
        before = log.read_text().count("/blobs/")
        assert before >= 3
        fleet.run("image-old", f"team/app@{digest}", f"127.0.0.1:{port}", policy="Always")
        assert fleet.running("image-old")["imageID"].endswith(digest)
        assert log.read_text().count("/blobs/") == before
        fleet.run("image-late", "team/none:1", f"127.0.0.1:{port}")
        late = fleet.waiting("image-late", "ImagePullBackOff")
        assert "HTTP 404" in late["state"]["waiting"]["message"]
    finally:
        fleet.mac.run(["kill", (fleet.mac.folder / "distribution.pid").read_text().strip()])
        fleet.cluster.kubectl("delete", "pod", "--ignore-not-found", "image-one", "image-old", "image-late")
