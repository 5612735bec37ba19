"""What the agent does about a repository that a pod quantizes on its Mac: real files, as the pod leaves them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_agent.weights import keeper
from thunderfleet_crds.vocabulary import CopyPhase
from thunderfleet_crds.weights.quantization import Quantize, conversion_id, kept_name
from thunderfleet_lib.modelstore.manifest import Conversion, FileEntry, InvalidManifest, Manifest, converted_commit, load

from tests.unit.agent.test_weights import UID, Json, Mac, cache, contents, manifest

HOW = Quantize(bits=4, group_size=64)
KEPT = kept_name("owner/tiny", HOW)
SOURCE = "e" * 64


def made(**changed: Any) -> Manifest:
    """The manifest of the quantized files."""
    files = tuple(FileEntry(path, len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in contents("q").items())
    how = Conversion("owner/tiny", "c" * 40, 4, 64, "0.32.2")
    found = {"repository": KEPT, "commit": converted_commit(KEPT, files, how), "files": files, "conversion": how}
    return Manifest(**{**found, **changed})


def quantizing(*, done: bool, node: str = "mac") -> Json:
    source = {"commit": "c" * 40, "manifest": SOURCE, "bytes": 4000, "quantizedBytes": 1000, "node": node}
    status: Json = {"quantizedFrom": source}
    if done:
        status |= {"commit": made().commit, "manifest": made().digest, "bytes": made().total_bytes}
        status["assignments"] = [{"node": "mac", "source": "Hub"}]
    spec = {"repository": "owner/tiny", "quantize": HOW.dump()}
    return {"metadata": {"name": "tiny", "namespace": "ns", "uid": UID}, "spec": spec, "status": status}


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path / "store")


def staged(mac: Mac) -> Path:
    folder = mac.store.layout.staged(UID)
    folder.mkdir(exist_ok=True)
    return folder


def say(folder: Path, step: str, done: int, total: int) -> None:
    (folder / "progress.json").write_text(json.dumps({"step": step, "done": done, "total": total}))


def test_progress_is_reported_then_the_files_are_taken_over(mac: Mac) -> None:
    mac.wants(quantizing(done=False))
    folder = staged(mac)
    (folder / "source").mkdir()
    assert mac.round() == {KEPT.removeprefix("owner/"): (CopyPhase.QUANTIZING, None)}
    (copy,) = mac.keeper.copies
    assert (copy.manifest, copy.bytes_done, copy.message) == (
        conversion_id(SOURCE, HOW), 0, "waiting for the pod that quantizes the repository"
    )  # fmt: skip
    for done in (1000, 3000):
        say(folder, "Reading", done, 4000)
        mac.round()
    (copy,) = mac.keeper.copies
    assert (copy.bytes, copy.bytes_done, copy.message) == (4000, 3000, "reading the repository")
    assert (copy.bytes_per_second, copy.seconds_left) == (200, 5)
    say(folder, "Quantizing", 10, 1000)
    mac.round()
    (copy,) = mac.keeper.copies
    assert (copy.bytes, copy.bytes_done, copy.bytes_per_second) == (1000, 10, None)
    # The pod has ended, and the operator knows what it has made.
    for entry in made().files:
        (folder / entry.blob).write_bytes(contents("q")[entry.path])
    (folder / "manifest.json").write_bytes(made().canonical)
    # It assigns them a moment later.
    unassigned = quantizing(done=True)
    unassigned["status"]["assignments"] = []
    mac.wants(unassigned)
    assert mac.round() == {}
    mac.wants(quantizing(done=True))
    assert mac.round() == {KEPT.removeprefix("owner/"): (CopyPhase.COMPLETE, None)}
    there = mac.store.layout.snapshot(KEPT, made().commit)
    assert {path.name: path.read_bytes() for path in there.iterdir()} == contents("q")
    # A Mac that wants the repository as it is does not have it.
    assert not mac.store.layout.repository("owner/tiny").exists()
    # Its folder is removed when nothing else is to come from it.
    copied = quantizing(done=True)
    copied["status"]["assignments"][0]["source"] = "Peer"
    mac.wants(copied)
    mac.round()
    assert not folder.exists()


def test_the_folder_of_a_pod_stays_until_its_cache_is_gone(mac: Mac) -> None:
    mac.wants(quantizing(done=False))
    folder = staged(mac)
    mac.round()
    assert folder.is_dir()
    mac.wants(quantizing(done=False, node="other"))
    mac.round()
    assert not folder.exists()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[" * 1000,
        b'{"step": "Reading", "done": -1, "total": 5}',
        b'{"step": "Reading", "done": 9, "total": 5}',
        b'{"step": ["x"], "done": 1}',
        b'{"step": "Reading", "done": 1e400, "total": 1e400}',
        b'{"step": "Reading", "done": 1, "total": 9' + b"0" * 5000 + b"}",
    ],
)
def test_a_pod_may_say_anything(mac: Mac, said: bytes) -> None:
    mac.wants(quantizing(done=False))
    (staged(mac) / "progress.json").write_bytes(said)
    assert list(mac.round().values()) == [(CopyPhase.QUANTIZING, None)]
    assert (mac.keeper.copies[0].bytes, mac.keeper.copies[0].bytes_done) == (4000, 0)


def test_a_pipe_in_place_of_the_progress_does_not_hold_the_agent(mac: Mac) -> None:
    mac.wants(quantizing(done=False))
    os.mkfifo(staged(mac) / "progress.json")
    assert list(mac.round().values()) == [(CopyPhase.QUANTIZING, None)]
    (staged(mac) / "progress.json").unlink()
    (staged(mac) / "progress.json").symlink_to("/etc/passwd")
    assert list(mac.round().values()) == [(CopyPhase.QUANTIZING, None)]


def test_room_is_made_for_a_conversion(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.wants(cache("old", uid="another"))
    mac.download("old", uid="another")
    mac.round()
    mac.wants(quantizing(done=False))
    monkeypatch.setattr(mac.store, "free_bytes", lambda: keeper.RESERVE_BYTES + 5000 - 1)
    assert list(mac.round().values()) == [(CopyPhase.QUANTIZING, None)]
    assert mac.store.manifest(manifest("old").digest) is None


def test_the_commit_of_a_conversion_is_the_hash_of_its_files() -> None:
    whole = made()
    assert load(whole.canonical, whole.digest) == whole
    # A file of another tenant's conversion cannot come to the same folder.
    other = (*whole.files[:1], FileEntry("model.safetensors", 5, sha256="a" * 64))
    with pytest.raises(InvalidManifest, match="not the hash of the converted files"):
        made(files=other)
    with pytest.raises(InvalidManifest, match="version of mlx-lm"):
        made(conversion=Conversion("owner/tiny", "c" * 40, 4, 64, "../x"))
    for bad in ({"bits": "4"}, {"extra": 1}, {"repository": "../x"}, {"commit": "main"}):
        raw = json.loads(whole.canonical)
        raw["conversion"] |= bad
        with pytest.raises(InvalidManifest):
            load(json.dumps(raw).encode())
    assert whole.narrowed([0]).conversion is None
