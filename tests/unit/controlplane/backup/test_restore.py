"""What a restore replaces, keeps aside and puts back, wherever it is interrupted. Programs are recorded; files are real."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.balancer.servers import ApiServer
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import HostConfig
from thunderfleet_controlplane.install.backup import archive, restore
from thunderfleet_controlplane.install.backup.archive import About
from thunderfleet_controlplane.install.backup.restore import RestoreOptions, Steps
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.preflight import Facts, init_problems
from thunderfleet_controlplane.install.peers.quorum import Member
from thunderfleet_controlplane.pki_files import PkiFiles
from thunderfleet_lib.host.hostcmd import BlockingHost

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root restores")
STATE = {"name": "studio-1", "address": "192.168.64.11"}


class Killed(BaseException):
    """SIGKILL: nothing of the process runs after it."""


class RecordedMac:
    """A Mac with a control plane of the content ``old``, and a backup with the content ``new``."""

    def __init__(self, folder: Path) -> None:
        self.layout = HostLayout("0.1.0", *(folder / name for name in ("opt", "data", "logs", "daemons")))
        self.shipped = SimpleNamespace(version="0.1.0")
        self.host = BlockingHost()
        self.launchctl = SimpleNamespace(unload=self.unload)
        self.running: str | None = "old"
        self.joined: dict[str, object] = {}
        self.said: list[str] = []
        self.kill_at = 10_000
        self.broken: set[str] = set()
        self.layout.control_plane.mkdir(parents=True)
        (self.layout.control_plane / "ca").write_text("old")
        self.layout.state.write_text(json.dumps(STATE))
        self.file = folder / "saved"
        parts = [(name, json.dumps(STATE).encode() if name == "init.json" else b"new") for name in archive.REQUIRED]
        archive.write(self.file, About("0.1.0", "then"), parts, force=False)

    def step(self, name: str, text: str) -> None:
        self.said.append(f"[{name}] {text}")
        self.tick()

    def tick(self) -> None:
        """A moment at which the process can be killed."""
        self.kill_at -= 1
        if self.kill_at < 0:
            raise Killed

    def facts(self, daemons: object) -> Facts:
        known = json.loads(self.layout.state.read_text()) if self.layout.state.exists() else {}
        return Facts(True, "14.0", True, (STATE["address"],), initialised=known, joined=self.joined)

    def unload(self, label: str, seconds: float) -> bool:
        self.tick()
        if label.endswith("etcd"):
            self.running = None
        return False

    def stage(self, mac: Any, file: Path, config: HostConfig) -> None:
        self.tick()
        staged = self.layout.staged
        assert (staged.data / archive.SNAPSHOT).read_bytes() == b"new"
        assert staged.data.stat().st_mode & 0o777 == 0o700 and (staged.pki.folder / "ca.key").stat().st_mode & 0o777 == 0o600
        (staged.control_plane / "ca").write_text("new")

    def start(self, mac: Any, config: HostConfig) -> None:
        assert (config.name, config.address) == ("studio-1", "192.168.64.11")
        self.tick()
        content = (self.layout.control_plane / "ca").read_text()
        if content in self.broken:
            raise InstallError("the API server is not ready")
        self.running = content

    def restore(self, file: Path | None) -> None:
        mac: Any = self
        restore.restore(mac, RestoreOptions(file), Steps(self.stage, self.start))

    def left(self) -> list[str]:
        return sorted(path.name for path in self.layout.data.iterdir() if path != self.layout.lock)


@pytest.fixture
def mac(tmp_path: Path) -> RecordedMac:
    return RecordedMac(tmp_path)


def test_a_restore_replaces_and_leaves_nothing_aside(mac: RecordedMac) -> None:
    mac.restore(mac.file)
    assert mac.running == "new" and mac.left() == ["control-plane"]
    assert mac.said[-1].endswith("Macs that had joined it need nothing")


def test_other_macs_join_again_if_the_address_changes(mac: RecordedMac, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, other = mac.facts(()), "192.168.64.12"
    monkeypatch.setattr(mac, "facts", lambda daemons: replace(facts, addresses=(other,)))
    here: Any = mac
    restore.restore(here, RestoreOptions(mac.file, other), Steps(mac.stage, lambda mac, config: None))
    assert (
        "Macs that had joined it find it by the name of this Mac; where they do not, run `sudo thunderfleet join -`"
        in mac.said[-1]
    )


def test_what_is_not_ready_is_replaced_by_the_former(mac: RecordedMac) -> None:
    mac.broken.add("new")
    with pytest.raises(
        InstallError,
        match=r"is not Ready: the API server is not ready\nThe previous one was restored, and "
        r"runs",
    ):
        mac.restore(mac.file)
    assert mac.running == "old" and "control-plane.former" not in mac.left()
    mac.broken.add("old")
    failed = r"was restored, and does not start: the API server is not ready\nRun `sudo thunderfleet init`"
    with pytest.raises(InstallError, match=failed):
        mac.restore(mac.file)
    assert (mac.layout.control_plane / "ca").read_text() == "old"


def test_without_a_former_one_nothing_can_be_put_back(mac: RecordedMac) -> None:
    (mac.layout.control_plane / "ca").unlink()
    mac.layout.state.unlink()
    mac.layout.control_plane.rmdir()
    mac.broken.add("new")
    with pytest.raises(InstallError, match="This Mac had no control plane before"):
        mac.restore(mac.file)
    mac.broken.clear()
    mac.restore(mac.file)
    assert mac.running == "new" and mac.left() == ["control-plane"]


def ticks(mac: RecordedMac) -> int:
    mac.kill_at = 10_000
    mac.restore(mac.file)
    return 10_000 - mac.kill_at


@pytest.mark.parametrize("how", ["completed", "undone"])
def test_a_restore_that_is_killed_at_any_step_is_completed_or_undone(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every report, every daemon that ends and every change of a name is a step."""
    real = Path.rename
    current: list[RecordedMac] = []

    def rename(self: Path, target: Path) -> Path:
        current[-1].tick()
        done = real(self, target)
        current[-1].tick()
        return done

    monkeypatch.setattr(Path, "rename", rename)
    current.append(RecordedMac(tmp_path / "counted"))
    count = ticks(current[-1])
    assert count > 15
    committed = 0
    for step in range(count):
        mac = RecordedMac(tmp_path / str(step))
        current.append(mac)
        mac.kill_at = step
        with pytest.raises(Killed):
            mac.restore(mac.file)
        mac.kill_at = 10_000
        there = mac.layout.former if mac.layout.former.exists() else mac.layout.control_plane
        content = (there / "ca").read_text()
        # Only what was Ready has replaced the former one.
        assert content == "old" or mac.running == "new", step
        committed += content == "new"
        if how == "completed":
            mac.restore(mac.file)
            assert mac.running == "new" and mac.left() == ["control-plane"], step
            continue
        if mac.layout.former.exists():
            mac.restore(None)
        else:
            with pytest.raises(InstallError, match="nothing to undo"):
                mac.restore(None)
        assert (mac.layout.control_plane / "ca").read_text() == content, step
    assert 0 < committed < count // 2


def test_init_refuses_while_two_control_planes_are_there(mac: RecordedMac) -> None:
    facts = Facts(True, "14.0", True, (STATE["address"],), restoring=True)
    (said,) = init_problems(facts, "studio-1", STATE["address"])
    assert "run `sudo thunderfleet restore FILE` again" in said and "restore --undo" in said


def test_a_damaged_backup_changes_nothing(mac: RecordedMac) -> None:
    mac.file.write_bytes(mac.file.read_bytes()[:-20])
    with pytest.raises(InstallError, match="is not complete"):
        mac.restore(mac.file)
    assert mac.running == "old" and mac.left() == ["control-plane"]


def test_a_backup_of_a_newer_version_changes_nothing(mac: RecordedMac) -> None:
    mac.shipped.version = "0.0.9"
    with pytest.raises(InstallError, match=r"from version 0\.1\.0, which is newer .* \(0\.0\.9\): install 0\.1\.0 first"):
        mac.restore(mac.file)
    assert mac.running == "old" and mac.left() == ["control-plane"]


def test_a_node_of_another_control_plane_is_left_alone(mac: RecordedMac, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.layout.state.unlink()
    mac.joined = {"caHash": "sha256:1"}
    with pytest.raises(InstallError, match="has joined the cluster with the CA sha256:1"):
        mac.restore(mac.file)
    assert mac.running == "old"
    monkeypatch.setattr(restore, "own_ca_hash", lambda layout: "sha256:1")
    mac.restore(mac.file)
    assert mac.running == "new"


def test_other_control_planes_would_go_on_with_other_data(mac: RecordedMac, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing is left here that says so: they are found with the keys of the backup."""
    several = [Member(1, "thunderfleet", ("https://192.168.64.11:2380",)), Member(2, "two", ("https://192.168.64.12:2380",))]
    asked: list[tuple[str, ...]] = []

    def etcd(pki: PkiFiles, hosts: Iterable[str]) -> Any:
        assert pki.folder == mac.layout.staged.pki.folder
        asked.append(tuple(hosts))
        return SimpleNamespace(members=lambda: tuple(several))

    monkeypatch.setattr(restore, "Etcd", etcd)
    disk.write(mac.layout.api_servers, (ApiServer("192.168.64.12", 6443),))
    for _ in range(2):
        with pytest.raises(InstallError, match=r"and the others would continue without this one.*two \(192\.168\.64\.12\)"):
            mac.restore(mac.file)
        assert mac.running == "old" and not mac.layout.former.exists()
        mac.layout.state.unlink(missing_ok=True)
    assert asked == [("192.168.64.12",)] * 2
    del several[1]
    mac.restore(mac.file)
    assert mac.running == "new"


def test_a_folder_that_others_can_change_is_refused(mac: RecordedMac) -> None:
    mac.layout.data.chmod(0o777)
    with pytest.raises(InstallError, match="users other than root can write"):
        mac.restore(mac.file)
