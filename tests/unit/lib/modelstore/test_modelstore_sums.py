"""Manifests of files at a URI: what cannot be stored or sent, because it is not what the list of hashes says."""

import hashlib
import json

import pytest
from thunderfleet_crds.uris import kept_name
from thunderfleet_lib.modelstore.manifest import FileEntry, InvalidManifest, Manifest, load
from thunderfleet_lib.modelstore.sums import InvalidSums, parse

NAME = kept_name("https://models.example.com/tiny/")
DATA = {"config.json": b"{}", "model.safetensors": b"weights", "code.py": b"evil()"}
FILES = tuple(FileEntry(name, len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in DATA.items())
SUMS = "".join(f"{entry.sha256}  {entry.path}\n" for entry in FILES)
COMMIT = hashlib.sha256(SUMS.encode()).hexdigest()
MODEL = FILES[:2]


def test_a_manifest_is_what_the_list_says() -> None:
    found = Manifest(NAME, COMMIT, MODEL, sums=SUMS)
    assert load(found.canonical, found.digest) == found
    part = found.narrowed([0])
    assert [entry.path for entry in part.files] == ["config.json"]


@pytest.mark.parametrize(
    ("repository", "commit", "files", "sums"),
    [
        (NAME, COMMIT, MODEL, None),
        (NAME, "a" * 64, MODEL, SUMS),
        (NAME, COMMIT, MODEL, SUMS.replace("code", "kode")),
        (NAME, COMMIT, FILES, SUMS),
        (NAME, COMMIT, MODEL[:1], SUMS),
        (NAME, COMMIT, (MODEL[0], FileEntry("model.safetensors", 7, sha256="b" * 64)), SUMS),
        (NAME, COMMIT, (MODEL[0], FileEntry("model.safetensors", 7, git_sha1="b" * 40)), SUMS),
        (NAME, COMMIT, (*MODEL, FileEntry("more.json", 7, sha256="b" * 64)), SUMS),
        ("owner/name", COMMIT, MODEL, SUMS),
        ("owner/name", hashlib.sha256(b"x").hexdigest(), MODEL, "x"),
        (NAME, hashlib.sha256(b"x").hexdigest(), MODEL, "x"),
    ],
)
def test_others_are_refused(repository: str, commit: str, files: tuple[FileEntry, ...], sums: str | None) -> None:
    with pytest.raises(InvalidManifest):
        Manifest(repository, commit, files, sums=sums)


def test_a_part_that_claims_to_be_the_whole_is_refused() -> None:
    whole = json.loads(Manifest(NAME, COMMIT, MODEL, sums=SUMS).canonical)
    for change in ({"files": whole["files"][:1]}, {"sums": 7}, {"sums": ""}, {"narrow": True, "files": whole["files"][:1]}):
        with pytest.raises(InvalidManifest):
            load(json.dumps({**whole, **change}).encode())
    del whole["sums"]
    with pytest.raises(InvalidManifest):
        load(json.dumps({**whole, "narrow": True}).encode())


def test_both_forms_of_sha256sum_are_read() -> None:
    digest = "a" * 64
    assert parse(f"{digest}  a b.json\n{digest} *model.safetensors".encode()) == {
        "a b.json": digest,
        "model.safetensors": digest,
    }
    with pytest.raises(InvalidSums, match="line 2"):
        parse(f"{digest}  a\nSHA256 (b) = {digest}\n".encode())
