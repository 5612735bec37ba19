"""What root uses of its caller's environment, and which files it trusts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_lib.host.privilege import ROOT_FOLDERS, distrust, root_environment

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


def test_root_finds_commands_in_folders_of_the_system_only() -> None:
    own = root_environment({"PATH": "/Users/anna/bin:/usr/bin", "HOME": "/Users/anna"})
    assert own["PATH"].split(":") == list(ROOT_FOLDERS)
    assert own["HOME"] != "/Users/anna"


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONPATH", "PYTHONSTARTUP", "GOFLAGS", "GOCACHE", "GOPATH", "GOENV", "GOROOT", "DYLD_INSERT_LIBRARIES"),
        *("LD_PRELOAD", "PIP_CONFIG_FILE", "PIP_TARGET", "KUBECONFIG", "HELM_PLUGINS", "BASH_ENV", "TMPDIR", "XDG_CACHE_HOME"),
    ],
)
def test_what_changes_programs_is_not_kept(name: str) -> None:
    assert name not in root_environment({name: "/Users/anna/evil"})


def test_what_only_shows_or_downloads_is_kept() -> None:
    given = {"LANG": "C.UTF-8", "LC_ALL": "C", "TERM": "xterm", "SUDO_UID": "501", "HTTPS_PROXY": "http://proxy:3128"}
    assert given.items() <= root_environment(given).items()


@needs_root
def test_a_process_of_root_takes_its_own_environment() -> None:
    code = (
        "import os; from thunderfleet_lib.host.privilege import take_own_environment as take; take();"
        "print(os.environ.get('GOFLAGS'), os.environ['PATH'], oct(os.umask(0)))"
    )
    environment = {**os.environ, "GOFLAGS": "-toolexec=/Users/anna/evil", "PATH": "/Users/anna/bin"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, umask=0, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == ["None", ":".join(ROOT_FOLDERS), "0o22"]


@needs_root
def test_files_that_others_can_change_are_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir(mode=0o755)
    (folder / "file").touch(0o644)
    assert distrust([folder / "file", folder / "missing", Path("/usr/bin")]) is None
    os.chown(folder, 501, 20)
    assert (distrust([folder / "file"]) or "").startswith(f"{folder} belongs to user 501, not to root: `sudo chown root ")
    assert distrust([folder / "missing"]) == distrust([folder / "file"])
    os.chown(folder, 0, 0)
    folder.chmod(0o775)
    assert f"users other than root can write {folder}: `sudo chmod go-w '{folder}'`" in (distrust([folder / "file"]) or "")
    folder.chmod(0o1777)
    assert distrust([folder / "file"]) is None, "in a sticky folder nobody replaces a file of root"
    os.chown(folder / "file", 501, 20)
    assert "user 501" in (distrust([folder / "file"]) or "")


@needs_root
def test_a_link_is_as_safe_as_both_its_ends(tmp_path: Path) -> None:
    (tmp_path / "safe").mkdir(mode=0o755)
    (tmp_path / "unsafe").mkdir()
    (tmp_path / "unsafe").chmod(0o777)
    (tmp_path / "safe" / "link").symlink_to(tmp_path / "unsafe")
    (tmp_path / "unsafe" / "link").symlink_to(tmp_path / "safe")
    for path in (tmp_path / "safe" / "link", tmp_path / "unsafe" / "link"):
        assert f"can write {tmp_path / 'unsafe'}:" in (distrust([path]) or "")
