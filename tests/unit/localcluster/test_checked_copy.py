"""What root copies from an installation that another user can change, and what it refuses."""

import base64
import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster import image
from thunderfleet_localcluster.checked_copy import copy_file, record, require_recorded
from thunderfleet_localcluster.errors import LocalClusterError

USER = 501
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


def hashed(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with one package, as pip installs it."""
    folder = tmp_path / "site"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "__init__.py").write_bytes(b"a = 1\n")
    info = folder / "one-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(b"Name: one\n")
    (info / "RECORD").write_text(
        f"one/__init__.py,{hashed(b'a = 1' + bytes([10]))},6\none/__pycache__/__init__.cpython-311.pyc,,\n"
        f'"one-1.0.dist-info/METADATA",{hashed(b"Name: one" + bytes([10]))},10\none-1.0.dist-info/RECORD,,\n../../bin/one,x,1\n'
    )
    return folder


def test_files_of_packages_are_those_of_their_records(site: Path) -> None:
    require_recorded(site)


def test_a_changed_file_is_named(site: Path) -> None:
    (site / "one" / "__init__.py").write_bytes(b"a = 2\n")
    with pytest.raises(LocalClusterError, match=r"^one/__init__\.py in site-packages differs from the RECORD of its package"):
        require_recorded(site)


@pytest.mark.parametrize("name", ["one/more.py", "sitecustomize.py", "two.pth", "one/__pycache__/__init__.cpython-311.pyc"])
def test_a_file_of_no_package_is_named(site: Path, name: str) -> None:
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).write_bytes(b"evil")
    with pytest.raises(LocalClusterError, match=rf"^{name} in site-packages (is in|differs from) the RECORD of "):
        require_recorded(site)


def test_weak_hashes_do_not_count(site: Path) -> None:
    (site / "one" / "weak.py").write_bytes(b"")
    info = site / "one-1.0.dist-info" / "RECORD"
    info.write_text(info.read_text() + f"one/weak.py,md5={base64.urlsafe_b64encode(hashlib.md5(b'').digest()).decode()},0\n")
    with pytest.raises(LocalClusterError, match=r"^one/weak\.py "):
        require_recorded(site)


def test_a_record_that_we_write_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b, c.py").write_text("x")
    text = record(tmp_path, [tmp_path / "a" / "b, c.py"])
    require_recorded(tmp_path, [text])
    (tmp_path / "a" / "b, c.py").write_text("y")
    with pytest.raises(LocalClusterError):
        require_recorded(tmp_path, [text])


@needs_root
def test_files_that_the_owner_could_not_read_are_not_copied(tmp_path: Path) -> None:
    """Else a user could have root copy any file to where everybody reads it."""
    tree, secret, target = tmp_path / "tree", tmp_path / "secret", tmp_path / "target"
    tree.mkdir()
    secret.write_text("password")
    secret.chmod(0o600)
    (tree / "own").write_text("own")
    (tree / "own").chmod(0o600)
    (tree / "link").symlink_to(secret)
    os.link(secret, tree / "hard")
    os.mkfifo(tree / "fifo")
    for path in (tree, tree / "own"):
        os.chown(path, USER, USER)
    copy_file(tree / "own", target, tree)
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("own", 0o644)
    target.unlink()
    for name in ("link", "hard", "fifo"):
        with pytest.raises(LocalClusterError, match=f"{tree / name} is "):
            copy_file(tree / name, target, tree)
        assert not target.exists(), name


@needs_root
def test_links_lead_to_public_files_of_root_only(tmp_path: Path) -> None:
    tree, target = tmp_path / "tree", tmp_path / "target"
    tree.mkdir()
    (tree / "inside").write_text("inside")
    (tree / "link").symlink_to("inside")
    copy_file(tree / "link", target, tree)
    assert target.read_text() == "inside"
    (tree / "usual").symlink_to("/etc/hostname")
    copy_file(tree / "usual", target, tree)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "file").write_text("x")
    (private / "file").chmod(0o644)
    (tree / "hidden").symlink_to(private / "file")
    with pytest.raises(LocalClusterError, match="remove the link"):
        copy_file(tree / "hidden", target, tree)


@pytest.fixture
def users(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The site-packages of an installation in which its user can write everywhere, also in our own packages."""
    monkeypatch.setattr(image, "site_folders", lambda: [site])
    monkeypatch.setattr(image, "PACKAGES", ("ours",))
    monkeypatch.setattr(image, "SHIPPED", ())
    monkeypatch.setattr(image, "_package", lambda name: site / name)
    monkeypatch.setattr(image, "_is_tool", lambda name: name.startswith(("ours", "thunderfleet-", "_virtualenv")))
    standard = tmp_path / "standard"
    (standard / "lib-dynload").mkdir(parents=True)
    (standard / "os.py").write_text("pass\n")
    real = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(standard) if name == "stdlib" else real(name))
    (site / "ours").mkdir()
    (site / "ours" / "__init__.py").write_text("b = 1\n")
    monkeypatch.setattr(image, "_own_record", lambda: [f"ours/__init__.py,{hashed(b'b = 1' + bytes([10]))},6\n"])
    (site / "_virtualenv.py").write_text("of no package, and not copied\n")
    (site / "one" / "__pycache__").mkdir()
    (site / "one" / "__pycache__" / f"__init__.{sys.implementation.cache_tag}.pyc").write_bytes(b"evil")
    for folder, _, files in os.walk(tmp_path):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            path.chmod(0o777)
            if os.geteuid() == 0:
                os.chown(path, USER, USER)
    yield site
    tmp_path.chmod(0o700)


def test_nothing_that_was_copied_for_root_can_be_changed_by_others(users: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    image.copy(made, Path("/opt/thunderfleet/1.0"))
    seen = [made, *made.rglob("*")]
    wrong = [path for path in seen if path.lstat().st_uid != os.geteuid() or (path.stat().st_mode & 0o022)]
    assert wrong == []
    names = {path.name for path in seen}
    assert {"one", "ours", "os.py", f"__init__.{sys.implementation.cache_tag}.pyc"} <= names and "_virtualenv.py" not in names
    assert not [path for path in seen if path.suffix == ".pyc" and path.read_bytes() == b"evil"]
    assert all(path.stat().st_mode & stat.S_IROTH for path in seen)


@pytest.mark.parametrize("name", ["one/__init__.py", "ours/__init__.py", "one/new.py", "ours/new.py"])
def test_a_copy_with_a_file_that_was_not_installed_ends_with_its_name(users: Path, tmp_path: Path, name: str) -> None:
    (users / name).write_text("evil\n")
    with pytest.raises(LocalClusterError, match=f"^{name} in site-packages"):
        image.copy(tmp_path / "made", Path("/opt/thunderfleet/1.0"))
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0, "nobody else reads an unfinished copy"


def test_a_file_of_a_tool_that_is_not_copied_is_one_of_a_package(users: Path, tmp_path: Path) -> None:
    """The name of such a file does not say that it is mypy's."""
    (users / "81d243__mypyc.so").write_bytes(b"tool")
    info = users / "_virtualenv-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"81d243__mypyc.so,{hashed(b'tool')},4\n")
    image.copy(tmp_path / "made", Path("/opt/thunderfleet/1.0"))
    (users / "81d243__mypyc.so").write_bytes(b"evil")
    with pytest.raises(LocalClusterError, match=r"^81d243__mypyc\.so in site-packages differs from the RECORD"):
        image.copy(tmp_path / "again", Path("/opt/thunderfleet/1.0"))


@pytest.mark.parametrize("where", ["site/one/linked", "standard/linked"])
def test_a_link_to_a_folder_is_not_followed(users: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / where).symlink_to("/etc")
    with pytest.raises(LocalClusterError, match="is a link to a folder"):
        image.copy(tmp_path / "made", Path("/opt/thunderfleet/1.0"))
