"""What `thunderfleet reset` takes for containers, how it removes, and the lock that it shares with init and join."""

import base64
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install import reset
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.joinline import PREFIX, decode
from thunderfleet_controlplane.install.mac import files
from thunderfleet_controlplane.install.mac.files import only_one, remove, with_leftovers
from thunderfleet_lib.host.hostcmd import Output

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root removes an installation")


class Processes:
    """A Mac whose ``ps`` prints these lines."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def run(self, command: list[str], seconds: float) -> Output:
        assert command == ["ps", "-axww", "-o", "pid=,uid=,command="]
        return Output("ps", "".join(f"{line}\n" for line in self.lines))


def containers(root: Path, *lines: str) -> dict[int, Path]:
    host: Any = Processes(*lines)
    return reset._containers(host, root)


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    """The kubelet's folder as it is configured, below a link, and where it is: /var is a link on a Mac."""
    real = tmp_path / "private/var/lib/kubelet"
    (real / "pods/a").mkdir(parents=True)
    (tmp_path / "var").symlink_to("private/var")
    return tmp_path / "var/lib/kubelet", real


def test_containers_are_found_by_both_names_of_the_folder(linked: tuple[Path, Path]) -> None:
    root, real = linked
    shim = "/opt/python3 /opt/thunderfleet_kubelet/shim"
    found = containers(
        root, f"  12     0 {shim} {root}/pods/a", f"    7 0 {shim} {real}/pods/a", f"9 0 {shim} /elsewhere/pods/a"
    )
    assert found == {12: root / "pods/a", 7: real / "pods/a"}


def test_processes_of_other_users_and_folders_elsewhere_are_no_containers(linked: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = linked
    shim = "x thunderfleet_kubelet/shim"
    (tmp_path / "evil").mkdir()
    (root / "out").symlink_to(tmp_path / "evil")
    assert containers(root, f"5 501 {shim} {root}/pods/a") == {}
    assert containers(root, f"5 0 {shim} {root}/../../../../evil", f"6 0 {shim} {root}/out") == {}


def test_the_order_to_stop_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "stop").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        reset._write_stop(tmp_path)
    assert not (tmp_path / "victim").exists()
    (tmp_path / "stop").unlink()
    reset._write_stop(tmp_path)
    assert (tmp_path / "stop").read_text() == "0"


def test_a_folder_is_never_half_removed_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "control-plane"
    (folder / "pki").mkdir(parents=True)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "remove_tree", killed)
        remove(folder)
    assert not folder.exists()
    (folder / "pki").mkdir(parents=True)
    assert [remove(path) for path in with_leftovers(folder)] == [True, False]
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_for_its_owner_only_and_not_held_by_who_locked_a_removed_file(tmp_path: Path) -> None:
    lock = tmp_path / "install.lock"
    lock.touch(0o644)
    with only_one(lock):
        assert lock.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InstallError, match="another `thunderfleet` command"), only_one(lock):
            pass
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), only_one(lock):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, real = tmp_path / "install.lock", os.fchmod

    def removed_by_reset(descriptor: int, mode: int) -> None:
        real(descriptor, mode)
        lock.unlink()

    monkeypatch.setattr(os, "fchmod", removed_by_reset)
    with pytest.raises(InstallError, match="another `thunderfleet` command"), only_one(lock):
        pass


def test_a_deeply_nested_line_is_refused() -> None:
    line = PREFIX + base64.urlsafe_b64encode(b"[" * 1500).decode().rstrip("=")
    with pytest.raises(ValueError, match="incomplete"):
        decode(line)


class Tree:
    """A Mac on which everything was installed, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.layout = HostLayout("0.1.0", *(folder / name for name in ("opt", "data", "logs", "daemons")))
        self.said: list[str] = []
        self.victim = folder / "victim"
        self.victim.mkdir()
        (self.victim / "file").write_text("kept")
        pod = self.layout.kubelet / "pods" / "one"
        for place in (pod, self.layout.control_plane / "etcd", self.layout.programs / "bin", self.layout.logs):
            place.mkdir(parents=True)
            (place / "0.9.log").symlink_to(self.victim / "file")
            (place / "folder.log").symlink_to(self.victim)
        # Everything below a pod's folder belongs to its user.
        os.chown(pod, 501, 20)

    def reset(self) -> None:
        host = Processes()
        mac: Any = SimpleNamespace(
            layout=self.layout,
            host=host,
            launchctl=SimpleNamespace(describe=lambda label: None, unload=lambda label, seconds: False),
            step=lambda name, text: self.said.append(text),
        )
        reset.reset(mac)


@needs_root
@pytest.mark.parametrize("link", ["", "opt/0.2.0", "opt/control-plane-0.2.0", "data/kubelet.removing", "data/kubelet.yaml"])
def test_a_reset_leads_nowhere_else(tmp_path: Path, link: str) -> None:
    mac = Tree(tmp_path)
    if link:
        (tmp_path / link).symlink_to(mac.victim)
    mac.reset()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim"], mac.said
    assert (mac.victim / "file").read_text() == "kept"


@needs_root
@pytest.mark.parametrize("name", ["opt", "data", "logs"])
def test_a_reset_below_a_folder_that_others_can_replace_is_refused(tmp_path: Path, name: str) -> None:
    mac = Tree(tmp_path)
    (tmp_path / name).chmod(0o777)
    with pytest.raises(InstallError, match=f"can write {tmp_path / name}: `sudo chmod go-w"):
        mac.reset()
    (tmp_path / name).chmod(0o755)
    mac.reset()


def test_a_file_of_another_user_is_replaced_even_if_it_says_the_same(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "kubelet.yaml", tmp_path / "elsewhere"
    assert files.write(path, b"a", 0o644) and not files.write(path, b"a", 0o644)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert files.write(path, b"a", 0o644) and not path.is_symlink()
    if os.geteuid() == 0:
        os.chown(path, 501, 20)
        assert files.write(path, b"a", 0o644) and path.stat().st_uid == 0


@pytest.mark.parametrize("models", [(), ("models--nobody--tiny",)])
def test_the_store_goes_unless_it_has_models(tmp_path: Path, models: tuple[str, ...]) -> None:
    layout = HostLayout("0.1.0", models=tmp_path / "Thunderfleet/models")
    for folder in (".thunderfleet/tmp", *models):
        (layout.models / folder).mkdir(parents=True)
    said: list[str] = []
    mac: Any = SimpleNamespace(layout=layout, step=lambda _, text: said.append(text))
    reset._empty_store(mac)
    assert (tmp_path / "Thunderfleet").exists() is bool(models)
    assert said == [f"not removed: {layout.models}, which contains {name}" for name in models]
    reset._empty_store(mac)
