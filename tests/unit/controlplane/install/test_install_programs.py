"""Where the programs that launchd runs as root are, and who can change them."""

import os
from pathlib import Path

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.steps import programs
from thunderfleet_controlplane.install.steps.programs import put_control_plane, put_python, python_environment, unsafe


class Builder:
    """Builds a copy of Python that is one file."""

    def __init__(self) -> None:
        self.digest, self.built = "one", 0

    def build(self, part: Path) -> None:
        assert not part.exists()
        (part / "bin").mkdir(parents=True)
        (part / "bin" / "python3").write_text(self.digest)
        self.built += 1

    def put(self, layout: HostLayout) -> Path:
        return put_python(layout, lambda: self.digest, self.build)


@pytest.fixture
def layout(tmp_path: Path) -> HostLayout:
    return HostLayout("0.1.0", programs_root=tmp_path / "opt")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    """The installation that runs is one that other users can change."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    monkeypatch.setattr(programs, "running_from", lambda: (tmp_path / "home", (tmp_path / "home",)))
    return Builder()


def test_an_installation_that_others_can_change_is_copied_once(layout: HostLayout, builder: Builder) -> None:
    assert builder.put(layout) == layout.programs
    assert builder.put(layout) == layout.programs
    assert builder.built == 1
    builder.digest = "two"
    builder.put(layout)
    assert (layout.programs / "bin/python3").read_text() == "two"
    assert sorted(os.listdir(layout.programs_root)) == ["0.1.0"]


@pytest.mark.parametrize("left", ["0.1.0.part", "0.1.0.old"])
def test_what_an_interrupted_copy_left_is_removed(layout: HostLayout, builder: Builder, left: str) -> None:
    (layout.programs_root / left / "bin").mkdir(parents=True)
    builder.put(layout)
    assert sorted(os.listdir(layout.programs_root)) == ["0.1.0"]


def test_a_copy_that_fails_leaves_the_old_one(layout: HostLayout, builder: Builder) -> None:
    builder.put(layout)
    builder.digest = "two"

    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InstallError, match="No space left"):
        put_python(layout, lambda: "two", full)
    assert (layout.programs / "bin/python3").read_text() == "one"

    def refused(part: Path) -> None:
        part.mkdir()
        (part / "secret").touch()
        raise InstallError("a file is in no RECORD")

    with pytest.raises(InstallError, match="no RECORD"):
        put_python(layout, lambda: "two", refused)
    assert sorted(os.listdir(layout.programs_root)) == ["0.1.0"], "what was refused does not stay"


def test_programs_of_the_control_plane_are_copied_when_they_differ(layout: HostLayout, tmp_path: Path) -> None:
    source = tmp_path / "built"
    source.mkdir()
    for name in ("etcd", "helm"):
        (source / name).write_text(name)
    first = put_control_plane(layout, ("etcd", "helm"), source)
    copied = layout.control_plane_programs / "etcd"
    assert copied.stat().st_mode & 0o777 == 0o755
    before = copied.stat().st_ino
    assert put_control_plane(layout, ("helm", "etcd"), source) == first
    assert copied.stat().st_ino == before
    (source / "etcd").write_text("newer")
    assert put_control_plane(layout, ("etcd", "helm"), source) != first
    assert copied.read_text() == "newer"
    with pytest.raises(InstallError, match="cannot copy the programs"):
        put_control_plane(layout, ("kubectl",), source)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_programs_that_another_user_can_change_are_not_copied(layout: HostLayout, tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    os.chown(tmp_path / "etcd", 501, 20)
    with pytest.raises(InstallError, match="etcd belongs to user 501"):
        put_control_plane(layout, ("etcd",), tmp_path)
    assert not (layout.control_plane_programs / "etcd").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of root")
def test_root_runs_nothing_that_others_can_change(tmp_path: Path) -> None:
    """The folders above count too: who can rename a folder can replace what is in it."""
    inner = Path("/usr/bin")
    assert unsafe([inner]) is None
    folder = tmp_path / "a"
    folder.mkdir(mode=0o755)
    assert (unsafe([folder]) or "").startswith("only root can read"), "pytest's folders are private"
    os.chown(folder, 501, 20)
    assert (unsafe([folder]) or "").startswith(f"{folder} belongs to user 501, not to root: ")
    os.chown(folder, 0, 0)
    folder.chmod(0o775)
    assert (unsafe([folder]) or "").startswith(f"users other than root can write {folder}: ")


def test_the_environment_of_an_image(tmp_path: Path) -> None:
    assert python_environment(tmp_path) == {}
    (tmp_path / "config.json").write_text('{"Env": ["A=1", "B=x=y"]}')
    assert python_environment(tmp_path) == {"A": "1", "B": "x=y"}
