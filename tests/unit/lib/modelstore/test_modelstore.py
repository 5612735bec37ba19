"""The store of fetched models: with a real folder, real locks in other processes, and bytes that are wrong."""

import ctypes
import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from thunderfleet_lib.modelstore import store as stores
from thunderfleet_lib.modelstore.eviction import Kept, evict
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.manifest import MAX_FILES, FileEntry, InvalidManifest, Manifest, load
from thunderfleet_lib.modelstore.store import Busy, Incomplete, Store

COMMIT = "a" * 40
REPOSITORY = "owner/name"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


CONTENTS = {
    "config.json": b"{}",
    "empty.txt": b"",
    "model.safetensors": b"weights" * 1000,
    "sub/módel-日本.json": b"[1]",
}


def entry(path: str, data: bytes) -> FileEntry:
    if path.endswith(".safetensors"):
        return FileEntry(path, len(data), sha256=sha256(data))
    return FileEntry(path, len(data), git_sha1=git_sha1(data))


def manifest(contents: dict[str, bytes] = CONTENTS, commit: str = COMMIT) -> Manifest:
    return Manifest(REPOSITORY, commit, tuple(entry(path, data) for path, data in contents.items()))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    found.prepare()
    return found


def stage(store: Store, name: str, data: bytes) -> Path:
    folder = store.layout.staged("download")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def fill(store: Store, wanted: Manifest, contents: dict[str, bytes] = CONTENTS) -> Path:
    store.add_manifest(wanted)
    for one in wanted.files:
        store.adopt(REPOSITORY, one, stage(store, one.blob, contents[one.path]))
    return store.publish(wanted, "main")


def test_a_model_is_a_hugging_face_cache_once_it_is_complete(store: Store) -> None:
    wanted = manifest()
    folder = fill(store, wanted)
    assert folder == store.root / "models--owner--name" / "snapshots" / COMMIT
    assert {path: (folder / path).read_bytes() for path in CONTENTS} == CONTENTS
    assert (store.root / "models--owner--name" / "refs" / "main").read_text() == COMMIT
    assert store.complete(wanted)
    assert store.verify(wanted) == ()
    assert store.arrived_bytes(wanted) == sum(map(len, CONTENTS.values()))
    # Nobody can change a file by accident.
    assert (folder / "model.safetensors").stat().st_mode & 0o222 == 0
    assert store.publish(wanted) == folder


def test_the_canonical_form_identifies_a_manifest() -> None:
    wanted = manifest()
    turned = Manifest(REPOSITORY, COMMIT, tuple(reversed(wanted.files)))
    assert turned.digest == wanted.digest
    assert load(wanted.canonical, wanted.digest) == wanted
    with pytest.raises(InvalidManifest, match="does not have the digest"):
        load(wanted.canonical + b" ", wanted.digest)


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", "a/../b", "a//b", "", ".", "a/.", "a\\b", "a\nb", "a\0b", "x" * 201, "a/" * 20 + "b", "\ud800", "é" * 300],
)
def test_names_that_are_no_plain_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidManifest):
        Manifest(REPOSITORY, COMMIT, (FileEntry(path, 1, sha256="0" * 64),))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ("Config.json", "config.json", "same name"),
        ("stra\u00dfe", "STRASSE", "same name"),
        ("caf\u00e9", "cafe\u0301", "same name"),
        ("a", "a/b", "also a folder"),
        ("A", "a/b", "also a folder"),
        ("a", "a", "same name"),
    ],
)
def test_names_that_are_one_file_on_a_mac_are_refused(one: str, other: str, says: str) -> None:
    files = (FileEntry(one, 1, sha256="0" * 64), FileEntry(other, 1, sha256="1" * 64))
    with pytest.raises(InvalidManifest, match=says):
        Manifest(REPOSITORY, COMMIT, files)


@pytest.mark.parametrize(
    "change",
    [
        {"repository": "../x"},
        {"repository": "a--b/c"},
        {"commit": "main"},
        {"files": []},
        {"files": [{"path": "a", "size": -1, "sha256": "0" * 64}]},
        {"files": [{"path": "a", "size": True, "sha256": "0" * 64}]},
        {"files": [{"path": "a", "size": 1}]},
        {"files": [{"path": "a", "size": 1, "sha256": "0" * 64, "gitSHA1": "0" * 40}]},
        {"files": [{"path": "a", "size": 1, "sha256": "Z" * 64}]},
        {"files": [{"path": "a", "size": 1, "sha256": "0" * 64, "link": "/etc/passwd"}]},
        {"files": [{"path": "a", "size": 1, "sha256": "0" * 64}, {"path": "b", "size": 2, "sha256": "0" * 64}]},
        {"files": [{"path": "a", "size": 2**45, "sha256": "0" * 64}]},
        {"files": "x"},
        {"files": [["path", "a"]]},
        {"version": 2},
    ],
)
def test_hostile_manifests_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidManifest):
        load(json.dumps({**json.loads(manifest().canonical), **change}).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"[" * 100_000, b'{"version":1', b"\xff"])
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidManifest):
        load(raw)


def test_ten_thousand_files_are_one_model_and_more_than_the_bound_are_refused(store: Store) -> None:
    data = b"x"
    wanted = Manifest(REPOSITORY, COMMIT, tuple(entry(f"folder{n % 10}/{n}.json", data) for n in range(10_000)))
    store.add_manifest(wanted)
    store.adopt(REPOSITORY, wanted.files[0], stage(store, "x", data))
    folder = store.publish(wanted)
    assert sum(1 for path in folder.rglob("*.json") if path.read_bytes() == data) == 10_000
    with pytest.raises(InvalidManifest, match="files"):
        Manifest(REPOSITORY, COMMIT, tuple(entry(f"{n}.json", data) for n in range(MAX_FILES + 1)))


@pytest.mark.parametrize("bad", [b"Weights" + b"weights" * 999, b"weights" * 999, b"weights" * 1001, b""])
def test_wrong_bytes_never_get_the_name_of_a_blob(store: Store, bad: bytes) -> None:
    wanted = manifest()
    weights = next(one for one in wanted.files if one.path == "model.safetensors")
    with pytest.raises(WrongBytes, match="safetensors"):
        store.adopt(REPOSITORY, weights, stage(store, "x", bad))
    assert list(store.layout.blobs(REPOSITORY).iterdir()) == []
    with pytest.raises(Incomplete):
        store.publish(wanted)
    assert not store.layout.snapshot(REPOSITORY, COMMIT).exists()


def test_links_pipes_and_folders_are_not_adopted(store: Store, tmp_path: Path) -> None:
    wanted = manifest()
    weights = next(one for one in wanted.files if one.path == "model.safetensors")
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENTS["model.safetensors"])
    folder = store.layout.staged("download")
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises((OSError, WrongBytes)):
            store.adopt(REPOSITORY, weights, folder / name)
    assert not store.has(REPOSITORY, weights)
    assert secret.exists()


def test_a_clone_of_a_protected_file_can_be_written_and_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As APFS clones a file: with its mode and its flags, which its owner chooses."""
    flags: dict[Path, int] = {}

    class Library:
        @staticmethod
        def fclonefileat(source: int, folder: int, target: bytes, how: int) -> int:
            assert (folder, how) == (-2, 0)
            path = Path(os.fsdecode(target))
            path.write_bytes(os.pread(source, 10_000, 0))
            path.chmod(0o400)
            flags[path] = stat.UF_IMMUTABLE
            return 0

    monkeypatch.setattr(stores, "CLONES", True)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library)
    monkeypatch.setattr(os, "chflags", flags.__setitem__, raising=False)
    path, target = tmp_path / "staged", tmp_path / "clone"
    path.write_bytes(b"weights")
    with path.open("rb") as file:
        assert stores.clone(file.fileno(), target)
    assert flags == {target: 0}
    assert target.stat().st_mode & 0o777 == 0o600


HOLD = """
import sys
import tempfile
from pathlib import Path
from thunderfleet_lib.modelstore.manifest import FileEntry
from thunderfleet_lib.modelstore.store import Store
store = Store(Path(sys.argv[1]))
with store.writer("owner/name", FileEntry("x", 7000, sha256=sys.argv[2])) as writer:
    with writer.open() as file:
        file.write(b"weights" * 500)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_blob_has_one_writer_whose_bytes_survive_it(store: Store) -> None:
    wanted = manifest()
    weights = next(one for one in wanted.files if one.path == "model.safetensors")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.root), weights.blob], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Busy), store.writer(REPOSITORY, weights):
            pass
        other.kill()
    with store.writer(REPOSITORY, weights) as writer:
        assert writer.size == 3500
        with writer.open() as file:
            file.seek(3500)
            file.write(b"weights" * 500)
        writer.finish()
    assert store.has(REPOSITORY, weights)


READ_ONLY = """
import os, sys
from pathlib import Path
from thunderfleet_lib.modelstore.manifest import FileEntry
from thunderfleet_lib.modelstore.store import Store
# Root may write what nobody may write; the agent's user may not.
if os.geteuid() == 0:
    os.setuid(65534)
store = Store(Path(sys.argv[1]))
with store.writer("owner/name", FileEntry("x", 7000, sha256=sys.argv[2])) as writer:
    writer.path.write_bytes(b"weights" * 1000)
    writer.path.chmod(0o444)
    writer.finish()
"""


def test_a_read_only_file_is_finished_by_a_user_who_is_not_root() -> None:
    weights = next(one for one in manifest().files if one.path == "model.safetensors")
    # Other users cannot enter the folders of pytest.
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.prepare()
        blobs = store.layout.blobs(REPOSITORY)
        blobs.mkdir(parents=True)
        for path in (Path(folder), blobs, store.layout.locks):
            path.chmod(0o777)
        subprocess.run([sys.executable, "-c", READ_ONLY, folder, weights.blob], check=True, timeout=60)
        assert store.has(REPOSITORY, weights)


def test_two_writers_in_one_process_exclude_each_other(store: Store) -> None:
    weights = manifest().files[0]
    with store.writer(REPOSITORY, weights), pytest.raises(Busy), store.writer(REPOSITORY, weights):
        pass


def test_verify_takes_the_name_from_a_blob_that_changed_on_disk(store: Store) -> None:
    wanted = manifest()
    folder = fill(store, wanted)
    blob = (folder / "model.safetensors").resolve()
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"W")
    assert len(store.verify(wanted)) == 1
    assert not store.complete(wanted)
    assert [one.path for one in store.missing(wanted)] == ["model.safetensors"]


def test_removing_a_model_keeps_what_others_refer_to(store: Store) -> None:
    one, other = manifest(), manifest({**CONTENTS, "config.json": b'{"x": 1}'}, "b" * 40)
    fill(store, one)
    kept = fill(store, other, {**CONTENTS, "config.json": b'{"x": 1}'})
    assert store.remove(one.digest) == 2
    assert not store.layout.snapshot(REPOSITORY, COMMIT).exists()
    assert (kept / "model.safetensors").read_bytes() == CONTENTS["model.safetensors"]
    assert store.complete(other)
    store.remove(other.digest)
    assert not store.layout.repository(REPOSITORY).exists()
    assert store.kept() == ()


def test_a_users_own_snapshot_in_the_same_cache_is_never_removed(store: Store) -> None:
    wanted = manifest()
    fill(store, wanted)
    own = store.layout.snapshot(REPOSITORY, "c" * 40)
    own.mkdir()
    weights = next(one for one in wanted.files if one.path == "model.safetensors")
    (own / "model.safetensors").symlink_to(f"../../blobs/{weights.blob}")
    assert store.remove("f" * 64) == 0
    store.remove(wanted.digest)
    assert (own / "model.safetensors").read_bytes() == CONTENTS["model.safetensors"]


def test_an_interrupted_change_leaves_nothing(store: Store) -> None:
    (store.layout.temporary / "x").mkdir()
    store.prepare()
    assert list(store.layout.temporary.iterdir()) == []
    wanted = manifest()
    fill(store, wanted)
    link = store.layout.snapshot(REPOSITORY, COMMIT) / "config.json"
    link.unlink()
    assert not store.complete(wanted)
    store.publish(wanted)
    assert store.complete(wanted)


def test_a_download_that_left_a_deep_folder_is_removed_like_others(store: Store) -> None:
    """Users can run programs in the pods of their ModelCaches; what they leave must not stop the store of the Mac."""
    deep, other = store.layout.staged("deep"), store.layout.staged("other")
    for folder in (deep, other):
        folder.mkdir()
        (folder / "file").touch()
    here = os.open(deep, os.O_RDONLY)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    store.clear_staging(["kept"])
    assert list(store.layout.staging.iterdir()) == []


def test_a_damaged_manifest_does_not_count(store: Store) -> None:
    wanted = manifest()
    store.add_manifest(wanted)
    store.layout.manifest(wanted.digest).write_bytes(b"{}")
    assert store.manifest(wanted.digest) is None
    assert list(store.manifests()) == []
    assert store.manifest("0" * 64) is None


def test_names_that_lead_out_of_the_store_are_refused(store: Store) -> None:
    for wrong in ("..", "a/b", ".x", "", "x" * 65):
        with pytest.raises(ValueError, match="cannot be"):
            store.layout.staged(wrong)
        with pytest.raises(ValueError, match="cannot be"):
            store.layout.reference(REPOSITORY, wrong)
    with pytest.raises(ValueError, match="not a hash"):
        store.layout.blob(REPOSITORY, "../x")


def test_eviction_takes_the_oldest_that_nothing_refers_to() -> None:
    models = [Kept(name, "o/n", "c", 10, used) for name, used in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 0.0))]
    assert [one.digest for one in evict(models, {"d"}, 15)] == ["b", "c"]
    assert evict(models, {"a", "b", "c", "d"}, 15) == ()
    assert evict(models, (), 0) == ()
