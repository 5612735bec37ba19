"""What an upgrade keeps, replaces and puts back, wherever it is interrupted. Programs are recorded; files are real."""

import os
import plistlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import ORDER, label
from thunderfleet_controlplane.install import upgrade as module
from thunderfleet_controlplane.install.backup import archive
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.facts import version_in
from thunderfleet_controlplane.install.mac.files import write, write_json
from thunderfleet_controlplane.install.mac.preflight import Facts
from thunderfleet_controlplane.install.upgrade import REPOSITORY, Steps, outdated, unavailable, upgrade

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root upgrades")


class Killed(BaseException):
    """SIGKILL: nothing of the process runs after it."""


class RecordedMac:
    """A Mac with a control plane of version 0.1.0, on which the command of version 0.2.0 runs."""

    def __init__(self, folder: Path) -> None:
        self.layout = HostLayout("0.2.0", *(folder / name for name in ("opt", "data", "logs", "daemons")))
        self.shipped = SimpleNamespace(version="0.2.0")
        self.launchctl: Any = SimpleNamespace(
            describe=lambda label: "loaded", unload=lambda label, seconds: self.tick(), load=lambda label, path: self.tick()
        )
        self.said: list[str] = []
        self.kill_at = 10_000
        self.broken: set[str] = set()
        self.chart_version = "0.1.0"
        self.layout.control_plane.mkdir(parents=True)
        write_json(self.layout.kubelet_state, {"name": "studio-1", "server": "https://192.168.64.11:6443"})
        write(self.layout.kubelet_config, b"nodeName: studio-1\n", 0o644)
        self.layout.daemons.mkdir()
        for version in ("0.1.0", "0.2.0"):
            site = self.layout.programs_root / version / "lib/python3.11/site-packages"
            (site / f"thunderfleet-{version}.dist-info").mkdir(parents=True)
        self.put("0.1.0")

    def put(self, version: str) -> None:
        for name in ORDER:
            program = f"{self.layout.programs_root}/{version}/bin/{name}"
            spec = {"Label": label(name), "ProgramArguments": [program]}
            write(self.layout.plist(label(name)), plistlib.dumps(spec), 0o644)
            self.tick()

    def versions(self) -> set[str]:
        paths = self.layout.daemons.glob("*.plist")
        return {Path(plistlib.loads(path.read_bytes())["ProgramArguments"][0]).parts[-3] for path in paths}

    def tick(self) -> None:
        """A moment at which the process can be killed."""
        self.kill_at -= 1
        if self.kill_at < 0:
            raise Killed

    def step(self, name: str, text: str) -> None:
        self.said.append(f"[{name}] {text}")
        self.tick()

    def facts(self, daemons: object) -> Facts:
        return Facts(True, "14.0", True, ("192.168.64.11",), joined={"name": "studio-1"})

    def start(self, mac: Any) -> None:
        self.put(self.shipped.version)
        if "daemons" in self.broken:
            raise InstallError("Node studio-1 is not Ready")

    def chart(self, mac: Any) -> None:
        self.chart_version = self.shipped.version
        self.tick()
        if "chart" in self.broken:
            raise InstallError("the operator is not available")

    def healthy(self, mac: Any) -> None:
        if "all" in self.broken:
            raise InstallError("the disk is full")

    def back(self, mac: Any, revision: str) -> None:
        assert revision == "7"
        self.chart_version = "0.1.0"

    def upgrade(self) -> None:
        mac: Any = self
        upgrade(mac, Steps(self.start, self.chart, self.healthy, self.back))

    def images(self) -> dict[str, str]:
        found: dict[str, str] = yaml.safe_load(self.layout.kubelet_config.read_text()).get("images", {})
        return found


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of an API server or of etcd."""
    monkeypatch.setattr(module, "_others", lambda mac: [])
    monkeypatch.setattr(module, "release", lambda layout: "7")
    monkeypatch.setattr(archive, "write", lambda target, about, contents, force: 0)


@pytest.fixture
def mac(tmp_path: Path) -> RecordedMac:
    return RecordedMac(tmp_path)


def test_an_upgrade_serves_the_images_of_both_versions(mac: RecordedMac) -> None:
    mac.upgrade()
    assert mac.versions() == {"0.2.0"} and mac.chart_version == "0.2.0"
    assert mac.images() == {f"{REPOSITORY}:0.1.0": str(mac.layout.programs_root / "0.1.0")}
    assert not mac.layout.former_version.exists()


@pytest.mark.parametrize("part", ["daemons", "chart"])
def test_what_is_not_healthy_is_replaced_by_the_former_version(mac: RecordedMac, part: str) -> None:
    mac.broken = {part}
    failed = r"the upgrade to version 0\.2\.0 failed: (.|\n)*The previous version was restored, and runs"
    with pytest.raises(InstallError, match=failed):
        mac.upgrade()
    assert mac.versions() == {"0.1.0"} and mac.chart_version == "0.1.0" and mac.images() == {}
    assert not mac.layout.former_version.exists()
    mac.broken = {part, "all"}
    with pytest.raises(InstallError, match="Going back failed too: the disk is full"):
        mac.upgrade()
    assert mac.layout.former_version.exists(), "the next run can go back"


def test_an_upgrade_that_is_killed_at_any_step_is_completed_or_rolled_back(tmp_path: Path) -> None:
    counted = RecordedMac(tmp_path / "counted")
    counted.kill_at = 10_000
    counted.upgrade()
    count = 10_000 - counted.kill_at
    assert count > 10
    for step in range(count):
        for broken in ("", "chart"):
            mac = RecordedMac(tmp_path / f"{step}{broken}")
            mac.kill_at = step
            with pytest.raises(Killed):
                mac.upgrade()
            mac.kill_at, mac.broken = 10_000, {broken}
            complete = mac.versions() == {"0.2.0"} and not mac.layout.former_version.exists()
            if broken and not complete:
                with pytest.raises(InstallError, match="was restored, and runs"):
                    mac.upgrade()
                assert mac.versions() == {"0.1.0"} and mac.images() == {}, step
            elif not broken:
                mac.upgrade()
                assert mac.versions() == {"0.2.0"} and not mac.layout.former_version.exists(), step


def test_an_entry_of_a_version_that_was_replaced_where_it_was_goes(mac: RecordedMac) -> None:
    stale = {f"{REPOSITORY}:0.0.9": str(mac.layout.programs_root / "0.1.0"), "other:1": "/other"}
    write(mac.layout.kubelet_config, yaml.safe_dump({"nodeName": "studio-1", "images": stale}).encode(), 0o644)
    mac.upgrade()
    assert mac.images() == {"other:1": "/other", f"{REPOSITORY}:0.1.0": str(mac.layout.programs_root / "0.1.0")}


def test_a_mac_without_an_installation_is_told_to_install(mac: RecordedMac) -> None:
    mac.layout.plist(label("kubelet")).unlink()
    with pytest.raises(InstallError, match="no kubelet is installed: run `sudo thunderfleet init`"):
        mac.upgrade()
    assert version_in(mac.layout.programs_root) is None


def node(name: str, version: str, ready: str = "True") -> dict[str, Any]:
    status = {"nodeInfo": {"kubeletVersion": version}, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name}, "status": status}


def test_other_macs_are_upgraded_first() -> None:
    old, new = "v1.36.3-thunderfleet.0.1.0", "v1.36.3-thunderfleet.0.2.0"
    nodes = [node("studio-1", old), node("studio-2", old), node("studio-3", new), node("studio-4", old, "False")]
    nodes.append(node("linux-1", "v1.36.3"))
    assert outdated(nodes, "studio-1", "0.2.0", control_planes=False) == {"studio-2": "0.1.0"}
    assert outdated(nodes, "studio-1", "0.2.0", control_planes=True) == {}


def test_control_planes_do_not_wait_for_each_other() -> None:
    """The last of them upgrades the chart."""
    nodes = [node(f"studio-{number}", "v1.36.3-thunderfleet.0.1.0") for number in (1, 2)]
    for one in nodes:
        one["metadata"]["labels"] = {"node-role.kubernetes.io/control-plane": ""}
    assert outdated(nodes, "studio-1", "0.2.0", control_planes=False) == {}
    assert outdated(nodes, "studio-1", "0.2.0", control_planes=True) == {"studio-2": "0.1.0"}


def test_a_deployment_that_is_not_rolled_out_says_why() -> None:
    counts = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {"observedGeneration": 2, **counts}}
    assert unavailable(deployment) == ""
    assert "1 of 1 replicas are new, 0 are available" in unavailable(
        deployment | {"status": deployment["status"] | {"availableReplicas": 0}}
    )
    assert "has not observed" in unavailable(deployment | {"metadata": {"generation": 3}})
    assert "no Deployment" in unavailable(None)
