"""Files that are hashed while they arrive: written as a pod writes them, also by one that cheats."""

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from thunderfleet_lib.modelstore import adoption, hashing
from thunderfleet_lib.modelstore.adoption import Adoption
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.manifest import FileEntry
from thunderfleet_lib.modelstore.store import Busy, Store

REPOSITORY = "owner/name"
DATA = random.Random(1).randbytes(100_000)
ENTRY = FileEntry("model.safetensors", len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
CLONED_AT = 75_000


def _copied(source: int, target: Path) -> bool:
    """As APFS clones a file."""
    target.write_bytes(os.pread(source, 2 * len(DATA), 0))
    return True


class Mac:
    """A store, what takes files over, and a pod's folder."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.store.prepare()
        self.adoption = Adoption(self.store, 0)
        self.folder = self.store.layout.staged("download")
        self.folder.mkdir()
        self.arriving = self.folder / f"{ENTRY.blob}.incomplete"
        self.read = 0
        """Bytes that went into hashes."""

    def take(self) -> bool:
        return self.adoption.take(REPOSITORY, ENTRY, self.folder)

    def writes(self, *parts: bytes) -> None:
        """Appends, and takes what has arrived after each part."""
        for part in parts:
            with self.arriving.open("ab") as file:
                file.write(part)
            assert not self.take()

    def completes(self) -> None:
        os.replace(self.arriving, self.folder / ENTRY.blob)

    @property
    def copies(self) -> list[Path]:
        return list(self.store.layout.temporary.iterdir())

    @property
    def blob(self) -> Path:
        return self.store.layout.blob(REPOSITORY, ENTRY.blob)


@pytest.fixture(params=["copies", "clones"])
def mac(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mac:
    monkeypatch.setattr(adoption, "LEAST_BYTES", 1000)
    monkeypatch.setattr(hashing, "BLOCK_BYTES", 1000)
    clones = request.param == "clones"
    monkeypatch.setattr(adoption, "CLONED_SHARE", CLONED_AT / len(DATA) if clones else 0.0)
    monkeypatch.setattr(adoption, "clone", _copied if clones else lambda source, target: False)
    found = Mac(tmp_path / "store")
    real = hashing.start

    class Counted:
        def __init__(self, hasher: hashing.Hash) -> None:
            self.hexdigest, self._update = hasher.hexdigest, hasher.update

        def update(self, data: bytes | bytearray | memoryview, /) -> None:
            found.read += len(data)
            self._update(data)

    monkeypatch.setattr(hashing, "start", lambda entry: Counted(real(entry)))
    return found


def parts(count: int) -> list[bytes]:
    size = len(DATA) // count
    return [DATA[at : at + size] for at in range(0, len(DATA), size)]


def test_only_the_last_part_is_hashed_after_the_last_byte(mac: Mac) -> None:
    mac.writes(*parts(20))
    assert mac.read == len(DATA) and len(mac.copies) == 1
    mac.completes()
    assert mac.take()
    assert mac.read == len(DATA)
    assert mac.blob.read_bytes() == DATA and mac.blob.stat().st_mode & 0o777 == 0o444
    assert mac.copies == [] and not mac.store.layout.incomplete(REPOSITORY, ENTRY.blob).exists()


def test_what_arrives_between_the_last_look_and_the_end_counts(mac: Mac) -> None:
    *most, last = parts(5)
    mac.writes(*most)
    with mac.arriving.open("ab") as file:
        file.write(last)
    mac.completes()
    assert mac.take()
    assert mac.read == len(DATA) and mac.blob.read_bytes() == DATA


def test_a_file_that_changes_after_it_was_hashed_changes_nothing(mac: Mac) -> None:
    """Its pod could write other weights over those that have the hash."""
    mac.writes(*parts(10))
    mac.completes()
    staged = mac.folder / ENTRY.blob
    with staged.open("r+b") as file:
        file.write(b"other weights")
        file.flush()
        assert mac.take()
        file.seek(50_000)
        file.write(b"later")
    assert mac.blob.read_bytes() == DATA


def _restarts(path: Path) -> None:
    path.write_bytes(DATA[:2000])


def _is_replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(DATA)


def _is_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hosts")


def _is_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("changes", [_restarts, _is_replaced, _is_a_link, _is_a_pipe])
def test_whatever_becomes_of_a_file_that_arrives_only_right_bytes_get_the_name(
    mac: Mac, changes: Callable[[Path], None]
) -> None:
    mac.writes(DATA[:80_000])
    changes(mac.arriving)
    assert not mac.take()
    staged = mac.folder / ENTRY.blob
    mac.arriving.unlink()
    for wrong in (DATA[:-1], DATA + b"x", b"x" + DATA[1:]):
        staged.write_bytes(wrong)
        with pytest.raises(WrongBytes):
            mac.take()
        assert not mac.blob.exists()
    staged.write_bytes(DATA)
    assert mac.take()
    assert mac.blob.read_bytes() == DATA and mac.copies == []


@pytest.mark.parametrize("wrong", [b"x" + DATA[1:], DATA[:90_000] + b"x" + DATA[90_001:], DATA[:-1], DATA + b"x"])
def test_wrong_bytes_that_arrive_never_get_the_name(mac: Mac, wrong: bytes) -> None:
    mac.writes(wrong[:80_000], wrong[80_000:])
    mac.completes()
    with pytest.raises(WrongBytes):
        mac.take()
    assert not mac.blob.exists() and mac.copies == []


def test_a_file_gets_one_copy(mac: Mac) -> None:
    """Else a pod could have the agent copy without an end."""
    mac.writes(DATA[:80_000])
    for _ in range(3):
        mac.arriving.write_bytes(b"")
        assert not mac.take()
        mac.writes(DATA[:80_000])
    assert mac.read == 80_000 and mac.copies == []
    mac.writes(DATA[80_000:])
    mac.completes()
    assert mac.take() and mac.blob.read_bytes() == DATA


def test_what_is_not_written_in_order_has_to_be_complete_first(mac: Mac) -> None:
    with mac.arriving.open("wb") as file:
        file.seek(len(DATA) - 1)
        file.write(DATA[-1:])
    assert not mac.take() and mac.copies == []


def test_without_room_for_a_copy_there_is_none(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac.store, "free_bytes", lambda: len(DATA))
    mac.writes(DATA[:80_000])
    assert mac.copies == []


def test_a_disk_that_gets_full_costs_the_copy_alone(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.writes(DATA[:80_000])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(hashing, "write_all", full)
        mac.writes(DATA[80_000:])
    assert mac.copies == []
    mac.completes()
    assert mac.take() and mac.blob.read_bytes() == DATA


def test_copies_of_downloads_that_are_gone_go(mac: Mac) -> None:
    mac.writes(DATA[:80_000])
    mac.adoption.retain([mac.folder])
    assert len(mac.copies) == 1
    mac.adoption.retain([])
    assert mac.copies == []


def test_a_copy_waits_for_another_writer_of_its_blob(mac: Mac) -> None:
    mac.writes(*parts(10))
    mac.completes()
    with mac.store.writer(REPOSITORY, ENTRY), pytest.raises(Busy):
        mac.take()
    assert mac.take()
    assert mac.read == len(DATA) and mac.blob.read_bytes() == DATA


def test_small_files_are_not_copied(tmp_path: Path) -> None:
    mac = Mac(tmp_path / "store")
    mac.writes(DATA)
    assert mac.copies == []


def test_a_write_that_takes_less_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:7], at))
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        hashing.write_all(file, memoryview(DATA[:1000]), 10)
    assert (tmp_path / "file").read_bytes() == bytes(10) + DATA[:1000]
