"""The file of a backup: what is written is read, and nothing else is; it appears complete, and replaces nothing by itself."""

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.install.backup import archive
from thunderfleet_controlplane.install.backup.archive import About, check, contents, newer, write
from thunderfleet_controlplane.install.backup.etcd import verified
from thunderfleet_controlplane.install.errors import InstallError

ABOUT = About("0.1.0", "2026-11-24T03:00:00Z")
PARTS = [(name, f"content of {name}".encode()) for name in archive.REQUIRED]

Lines = list[dict[str, Any]]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    write(path, ABOUT, PARTS, force=False)
    return path


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def sealed(path: Path, lines: Lines) -> Path:
    """Writes these lines with an end that fits them: whoever writes a hostile file can do that too."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    end = {"sha256": hashlib.sha256(data).hexdigest(), **lines[-1]}
    path.write_bytes(gzip.compress(data + json.dumps(end).encode() + b"\n"))
    return path


def part(name: str, data: bytes = b"x") -> dict[str, Any]:
    return {"name": name, "data": base64.b64encode(data).decode()}


def test_what_is_written_is_read(saved: Path) -> None:
    assert check(saved) == ABOUT
    assert list(contents(saved)) == PARTS
    assert saved.stat().st_mode & 0o777 == 0o600
    assert os.listdir(saved.parent) == ["saved"]


def test_large_contents_have_several_parts(tmp_path: Path) -> None:
    data = os.urandom(2 * archive.PART_BYTES + 1)
    write(tmp_path / "saved", ABOUT, [*PARTS[:-1], (archive.SNAPSHOT, data[:-1]), (archive.SNAPSHOT, data[-1:])], force=False)
    assert b"".join(one for name, one in contents(tmp_path / "saved") if name == archive.SNAPSHOT) == data


def test_a_file_that_exists_is_replaced_by_force_only(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(InstallError, match="use --force") as refused:
        write(saved, ABOUT, [("pki/ca.crt", b"other")], force=False)
    assert refused.value.usage and saved.read_bytes() == before
    write(saved, About("0.2.0", "then"), PARTS, force=True)
    assert check(saved).version == "0.2.0"


def test_a_file_that_appears_while_a_backup_is_written_is_not_replaced(tmp_path: Path) -> None:
    def parts() -> Iterator[tuple[str, bytes]]:
        yield from PARTS
        (tmp_path / "saved").write_text("another's")

    with pytest.raises(InstallError, match="use --force"):
        write(tmp_path / "saved", ABOUT, parts(), force=False)
    assert (tmp_path / "saved").read_text() == "another's" and os.listdir(tmp_path) == ["saved"]


@pytest.mark.parametrize("force", [False, True])
def test_a_backup_that_fails_leaves_what_was_there(saved: Path, force: bool) -> None:
    before = saved.read_bytes()
    target = saved if force else saved.with_name("new")

    def parts() -> Iterator[tuple[str, bytes]]:
        yield PARTS[0]
        raise InstallError("the snapshot of etcd is not complete")

    with pytest.raises(InstallError, match="not complete"):
        write(target, ABOUT, parts(), force=force)
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["saved"]


def test_what_an_interrupted_backup_left_is_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    (tmp_path / ".saved.new").symlink_to(tmp_path / "victim")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    write(tmp_path / "saved", ABOUT, PARTS, force=False)
    write(tmp_path / "link", ABOUT, PARTS, force=True)
    assert (tmp_path / "victim").read_text() == "kept" and not (tmp_path / "link").is_symlink()
    with pytest.raises(InstallError, match=r"cannot write .*: No such file"):
        write(tmp_path / "no" / "saved", ABOUT, PARTS, force=False)


def test_a_truncated_file_is_refused_wherever_it_ends(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    for size in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(InstallError, match=r"cut is not complete|cut is damaged"):
            check(tmp_path / "cut")


def test_a_changed_byte_is_found(saved: Path, tmp_path: Path) -> None:
    packed = saved.read_bytes()
    for place in range(10, len(packed), 7):
        (tmp_path / "bad").write_bytes(packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :])
        with pytest.raises(InstallError, match=r"is damaged|is not complete"):
            check(tmp_path / "bad")


FOREIGN = {
    "empty": b"",
    "text": b"hello",
    "the beginning of gzip": b"\x1f\x8b",
    "compressed text": gzip.compress(b"hello\n"),
    "a list": gzip.compress(b"[1]\n"),
    "nested lists": gzip.compress(b"[" * 100_000 + b"\n"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_of_another_program_is_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / "file").write_bytes(FOREIGN[case])
    with pytest.raises(InstallError, match=r"file is damaged, or was not written by|file is not complete"):
        check(tmp_path / "file")


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "is not a file"), (".", "Is a directory"), ("missing", "No such file")):
        with pytest.raises(InstallError, match=why):
            check(tmp_path / name)


def test_a_newer_version_is_named(saved: Path, tmp_path: Path) -> None:
    first, *rest = lines_of(saved)
    with pytest.raises(InstallError, match=r"version 0\.9\.0, whose format this version does not support"):
        check(sealed(tmp_path / "newer", [first | {"formatVersion": 2, "thunderfleet": "0.9.0"}, *rest]))
    assert newer("0.10.0", "0.9.1") and not newer("0.9.1", "0.9.1") and not newer("0.9.0.dev1", "0.9.0")


HOSTILE: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a path": (
        lambda lines: [*lines[:-1], part("../../etc/sudoers"), lines[-1]],
        "it contains an unknown file, '../../etc/sudoers'",
    ),
    "an absolute path": (
        lambda lines: [*lines[:-1], part("/etc/sudoers"), lines[-1]],
        "it contains an unknown file, '/etc/sudoers'",
    ),
    "an unknown name": (
        lambda lines: [*lines[:-1], part("pki/evil.key"), lines[-1]],
        "it contains an unknown file, 'pki/evil.key'",
    ),
    "a name that is none": (lambda lines: [*lines[:-1], {"name": ["pki"], "data": ""}, lines[-1]], "is damaged"),
    "one twice": (lambda lines: [*lines[:-1], part("pki/ca.key"), lines[-1]], "it contains pki/ca.key twice"),
    "a list that lies": (lambda lines: [*lines[:-2], lines[-1]], "differ from its list"),
    "one is missing": (
        lambda lines: [
            lines[0],
            *lines[2:-1],
            {"contents": {k: v for k, v in lines[-1]["contents"].items() if k != "pki/ca.crt"}},
        ],
        "it does not contain pki/ca.crt",
    ),
    "a hash that lies": (lambda lines: [*lines[:-1], lines[-1] | {"sha256": "0" * 64}], "its hash is not"),
    "no base64": (lambda lines: [lines[0], {"name": "pki/ca.crt", "data": "!"}, *lines[2:]], "is damaged"),
    "an end that is not the last": (lambda lines: [*lines, part(archive.KUBELET)], "is damaged"),
    "no number of the format": (
        lambda lines: [lines[0] | {"formatVersion": True}, *lines[1:]],
        "has no version of its format",
    ),
    "a large file": (
        lambda lines: [lines[0], part("pki/ca.crt", b"x" * (archive.FILE_BYTES + 1)), *lines[2:]],
        "pki/ca.crt is larger than 1 MiB",
    ),
    "a long line": (lambda lines: [lines[0], part("pki/ca.crt", b"x" * archive.LINE_BYTES), *lines[2:]], "too long"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(saved: Path, tmp_path: Path, case: str) -> None:
    change, why = HOSTILE[case]
    lines = change([line for line in lines_of(saved)])
    if case not in ("a hash that lies", "an end that is not the last"):
        lines[-1].pop("sha256", None)
    with pytest.raises(InstallError) as refused:
        check(sealed(tmp_path / "hostile", lines))
    assert why in str(refused.value)


def test_something_after_the_end_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + gzip.compress(b"more"))
    with pytest.raises(InstallError, match="it has data after its end"):
        check(saved)


def test_a_small_file_that_unpacks_to_much_ends_at_the_bound(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "SNAPSHOT_BYTES", 3 * archive.PART_BYTES)
    lines = lines_of(saved)
    bomb = [part(archive.SNAPSHOT, b"\0" * archive.PART_BYTES)] * 50
    with pytest.raises(InstallError, match=r"etcd\.snapshot is larger than 3 MiB"):
        check(sealed(tmp_path / "bomb", [*lines[:-2], *bomb, {"contents": {}}]))
    with pytest.raises(InstallError, match=r"etcd\.snapshot cannot be in a backup"):
        write(tmp_path / "new", ABOUT, [(archive.SNAPSHOT, b"\0" * archive.PART_BYTES)] * 4, force=False)


def test_a_snapshot_ends_with_its_hash() -> None:
    data = os.urandom(1024)
    whole = data + hashlib.sha256(data).digest()
    for size in (1, 31, 32, 33, 500, 5000):
        assert b"".join(verified(whole[at : at + size] for at in range(0, len(whole), size))) == whole
    for wrong in (whole[:-1], whole[:-512], b"", data, whole[:-1] + bytes([whole[-1] ^ 1])):
        with pytest.raises(InstallError, match="not complete"):
            list(verified(iter([wrong])))
