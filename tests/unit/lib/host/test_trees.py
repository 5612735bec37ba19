"""Trees of other users are removed without leaving them; the last lines of files."""

import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_lib.host import trees
from thunderfleet_lib.host.trees import remove_tree, tail


@pytest.fixture
def few_files() -> Iterator[None]:
    """As on a Mac, where a process may have 256 files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    victim, doomed = tmp_path / "victim", tmp_path / "doomed"
    (victim / "inner").mkdir(parents=True)
    (victim / "file").touch()
    (doomed / "a" / "b").mkdir(parents=True)
    (doomed / "a" / "b" / "file").touch()
    for place in (doomed, doomed / "a", doomed / "a" / "b"):
        (place / "folder").symlink_to(victim)
        (place / "link").symlink_to(victim / "file")
        (place / "dangling").symlink_to("/nowhere")
    remove_tree(doomed)
    assert not doomed.exists() and (victim / "file").exists() and (victim / "inner").exists()
    doomed.symlink_to(victim)
    with pytest.raises(OSError):
        remove_tree(doomed)
    assert (victim / "file").exists()


def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, doomed = tmp_path / "victim", tmp_path / "doomed"
    victim.mkdir()
    (victim / "file").touch()
    (doomed / "a").mkdir(parents=True)
    real = trees._unlink

    def swapped(name: str, folder: int) -> bool:
        gone = real(name, folder)
        if not gone:
            (doomed / "a").rmdir()
            (doomed / "a").symlink_to(victim)
        return gone

    monkeypatch.setattr(trees, "_unlink", swapped)
    with pytest.raises(OSError):
        remove_tree(doomed)
    assert (victim / "file").exists()


def test_a_tree_of_any_depth_is_removed(tmp_path: Path, few_files: None) -> None:
    """Its paths are longer than the system allows."""
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    here = os.open(doomed, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("level", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("level", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(doomed)
    assert list(tmp_path.iterdir()) == []


def test_another_file_system_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doomed" / "mounted").mkdir(parents=True)
    (tmp_path / "doomed" / "mounted" / "file").touch()
    real, inner = os.fstat, (tmp_path / "doomed" / "mounted").stat().st_ino

    def mounted(descriptor: int) -> os.stat_result:
        about = real(descriptor)
        return os.stat_result((*about[:2], about.st_dev + 1, *about[3:])) if about.st_ino == inner else about

    monkeypatch.setattr(os, "fstat", mounted)
    with pytest.raises(OSError, match="unmount it") as raised:
        remove_tree(tmp_path / "doomed")
    assert raised.value.errno == errno.EBUSY
    assert (tmp_path / "doomed" / "mounted" / "file").exists()


def test_flags_of_users_of_macos_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doomed" / "folder").mkdir(parents=True)
    (tmp_path / "doomed" / "folder" / "file").touch()
    real, unlink, cleared = os.stat, os.unlink, []

    class Locked:
        def __init__(self, about: os.stat_result) -> None:
            self.st_mode, self.st_flags = about.st_mode, stat.UF_IMMUTABLE

    def locked(name: str, *, dir_fd: int, follow_symlinks: bool) -> Locked:
        return Locked(real(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks))

    def refused(name: str, *, dir_fd: int) -> None:
        if os.path.basename(name) not in cleared:
            raise PermissionError(errno.EPERM, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    def clear(name: str, flags: int) -> None:
        assert flags == 0 and os.path.lexists(name)
        cleared.append(name)

    here = os.getcwd()
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", locked)
        patched.setattr(os, "unlink", refused)
        patched.setattr(os, "chflags", clear, raising=False)
        remove_tree(tmp_path / "doomed")
    assert "folder" in cleared and "file" in cleared
    assert (list(tmp_path.iterdir()), os.getcwd()) == ([], here)


def test_the_last_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path) == ""
    path.write_bytes(b"x" * 100_000 + b"\n" + b"\n".join(b"line %d \xff" % number for number in range(30)))
    assert tail(path, 2) == "    line 28 \ufffd\n    line 29 \ufffd"
    path.write_text("y" * 1000)
    assert len(tail(path)) == 4 + trees.TAIL_COLUMNS
    path.write_text('{"time": "x", "level": "error", "message": "it fails", "node": "a"}\n')
    assert tail(path) == "    ERROR it fails"
