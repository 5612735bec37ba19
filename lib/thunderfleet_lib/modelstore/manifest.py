"""The manifest of a model: the files of one commit of a repository, with their sizes and hashes.

It is JSON in canonical form, so its SHA-256 identifies the model on every Mac. It comes from the hub or from another Mac, so
``load`` checks everything: a name in it becomes a path.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from thunderfleet_crds.uris import is_kept_name

from thunderfleet_lib import jsonbounds
from thunderfleet_lib.modelstore import selection, sums

VERSION = 1
MAX_FILES = 16_384
MAX_PATH_BYTES = 512
MAX_NAME_BYTES = 200
MAX_DEPTH = 16
MAX_FILE_BYTES = 2**42
MAX_TOTAL_BYTES = 2**45
MAX_MANIFEST_BYTES = 16 * 2**20
_VALUES_PER_FILE = 16

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"[A-Za-z0-9._+-]{1,64}")


class InvalidManifest(ValueError):
    """The manifest breaks a rule; the text names it and the file."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file. Exactly one hash is set: SHA-256 for files that the hub keeps in its large storage, else git's blob id."""

    path: str
    """Relative to the model's folder, with ``/``."""
    size: int
    """Bytes."""
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def blob(self) -> str:
        """The name of its blob, which is the hash that the hub gives as the file's ETag."""
        return self.sha256 or self.git_sha1 or ""

    def dump(self) -> dict[str, Any]:
        """Its JSON object."""
        found: dict[str, Any] = {"path": self.path, "size": self.size}
        if self.sha256 is not None:
            found["sha256"] = self.sha256
        if self.git_sha1 is not None:
            found["gitSHA1"] = self.git_sha1
        return found


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the files of a manifest were made from, and how."""

    repository: str
    commit: str
    bits: int
    group_size: int
    mlx_lm: str
    """Version of mlx-lm."""

    def dump(self) -> dict[str, Any]:
        """Its JSON object."""
        found = {"repository": self.repository, "commit": self.commit, "mlxLM": self.mlx_lm}
        return {**found, "bits": self.bits, "groupSize": self.group_size}


@dataclass(frozen=True)
class Manifest:
    """The files of one commit, by path. Raises InvalidManifest if they break a rule.

    With ``conversion``, the files are on no hub, and ``commit`` is ``converted_commit``: so the folder of a commit cannot have
    the files of another one. For the same reason, files of a URI have ``sums``, the list with their hashes, whose SHA-256 is
    ``commit``.
    """

    repository: str
    commit: str
    files: tuple[FileEntry, ...]
    conversion: Conversion | None = None
    sums: str | None = None
    narrow: bool = False
    """Whether it has only some of the files. Then it is neither stored nor sent."""

    def __post_init__(self) -> None:
        check_repository(self.repository)
        if not _COMMIT.fullmatch(self.commit):
            raise InvalidManifest(f"commit {self.commit[:80]!r} is not a full hash of a commit in lower case")
        if not 0 < len(self.files) <= MAX_FILES:
            raise InvalidManifest(f"{len(self.files)} files; a model has 1 to {MAX_FILES}")
        for entry in self.files:
            _check_entry(entry)
        _check_together(self.files)
        object.__setattr__(self, "files", tuple(sorted(self.files, key=lambda entry: entry.path)))
        if self.narrow:
            return
        if (self.sums is not None) != is_kept_name(self.repository):
            raise InvalidManifest("the manifest of a model at a URI, and no other, must contain the list of its hashes")
        if self.sums is not None:
            _check_sums(self.commit, self.files, self.sums)
        if self.conversion is not None:
            _check_conversion(self.conversion)
            if self.commit != converted_commit(self.repository, self.files, self.conversion):
                raise InvalidManifest(f"commit {self.commit[:80]!r} is not the hash of the converted files")

    def narrowed(self, numbers: Collection[int]) -> "Manifest":
        """A manifest of some of the files, by their numbers. Its digest does not identify a model.

        Raises InvalidManifest if there are no such files.
        """
        if any(not 0 <= number < len(self.files) for number in numbers):
            raise InvalidManifest(f"{self.repository} has {len(self.files)} files, and a requested file is not among them")
        if len(numbers) == len(self.files):
            return self
        # Some of the files do not have the commit of a conversion.
        files = tuple(self.files[number] for number in sorted(numbers))
        return replace(self, files=files, conversion=None, sums=None, narrow=True)

    @cached_property
    def total_bytes(self) -> int:
        """The sum of the sizes; a blob that several files share counts once."""
        return sum(self.blobs.values())

    @cached_property
    def blobs(self) -> dict[str, int]:
        """Size of each blob by name."""
        return {entry.blob: entry.size for entry in self.files}

    @cached_property
    def canonical(self) -> bytes:
        """The only form in which it is stored, sent and hashed."""
        whole = {
            "version": VERSION,
            "repository": self.repository,
            "commit": self.commit,
            "files": [entry.dump() for entry in self.files],
        }
        if self.conversion is not None:
            whole["conversion"] = self.conversion.dump()
        if self.sums is not None:
            whole["sums"] = self.sums
        return _canonical(whole)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical).hexdigest()


def load(raw: bytes, digest: str | None = None) -> Manifest:
    """The manifest of its JSON. Raises InvalidManifest, also if its digest is not ``digest``."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise InvalidManifest(f"the manifest has {len(raw)} bytes; at most {MAX_MANIFEST_BYTES} are allowed")
    if digest is not None and hashlib.sha256(raw).hexdigest() != digest:
        raise InvalidManifest(f"the manifest does not have the digest {digest}")
    try:
        whole = jsonbounds.loads(raw, values=MAX_FILES * _VALUES_PER_FILE, depth=4)
        if not isinstance(whole, dict) or whole.get("version") != VERSION:
            raise InvalidManifest(f"the manifest is not of version {VERSION}")
        files = tuple(_entry(item) for item in whole["files"])
        names = _text(whole["repository"]), _text(whole["commit"])
        listed = _text(whole["sums"]) if "sums" in whole else None
        return Manifest(*names, files, _conversion(whole.get("conversion")), listed)
    except InvalidManifest:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidManifest(f"the manifest is not valid: {type(error).__name__}: {error}") from error


def converted_commit(repository: str, files: Iterable[FileEntry], conversion: Conversion) -> str:
    """The commit of converted files: a hash of them, and of what they were made from."""
    entries = sorted(files, key=lambda entry: entry.path)
    what = {"repository": repository, "files": [entry.dump() for entry in entries], "conversion": conversion.dump()}
    return hashlib.sha256(_canonical(what)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _conversion(value: Any) -> Conversion | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"repository", "commit", "mlxLM", "bits", "groupSize"}:
        raise InvalidManifest("conversion has other fields than repository, commit, mlxLM, bits and groupSize")
    if type(value["bits"]) is not int or type(value["groupSize"]) is not int:
        raise InvalidManifest("bits and groupSize of a conversion are not numbers")
    texts = [_text(value[name]) for name in ("repository", "commit", "mlxLM")]
    return Conversion(texts[0], texts[1], value["bits"], value["groupSize"], texts[2])


def _check_conversion(conversion: Conversion) -> None:
    check_repository(conversion.repository)
    if not _COMMIT.fullmatch(conversion.commit):
        raise InvalidManifest("the commit that was converted is not a full hash of a commit in lower case")
    if not _VERSION.fullmatch(conversion.mlx_lm):
        raise InvalidManifest("the version of mlx-lm has more than 64 characters, or others than letters, digits and ._+-")


def _check_sums(commit: str, files: Iterable[FileEntry], text: str) -> None:
    raw = text.encode()
    if hashlib.sha256(raw).hexdigest() != commit:
        raise InvalidManifest(f"the list of the files' hashes does not have the hash {commit}")
    try:
        listed = {name: digest for name, digest in sums.parse(raw).items() if selection.belongs(name)}
    except sums.InvalidSums as error:
        raise InvalidManifest(str(error)) from None
    if listed != {entry.path: entry.sha256 for entry in files}:
        raise InvalidManifest("the files are not those of the list with their hashes")


def check_repository(name: str) -> None:
    """Raises InvalidManifest for what cannot be the name of a repository."""
    if not _REPOSITORY.fullmatch(name) or "--" in name or ".." in name:
        raise InvalidManifest(
            f"repository {name[:200]!r} must have the form owner/name, with letters, digits and ._-, without -- and .."
        )


def is_blob(name: str) -> bool:
    """Whether it can be the name of a blob."""
    return bool(_SHA256.fullmatch(name) or _SHA1.fullmatch(name))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not a string")
    return value


def _entry(item: Any) -> FileEntry:
    if not isinstance(item, dict) or not set(item) <= {"path", "size", "sha256", "gitSHA1"}:
        raise InvalidManifest("an entry of files has unknown fields or is no object")
    if not isinstance(item.get("size"), int) or isinstance(item.get("size"), bool):
        raise InvalidManifest("an entry of files has no size")
    hashes = [item.get("sha256"), item.get("gitSHA1")]
    if not all(one is None or isinstance(one, str) for one in hashes):
        raise InvalidManifest("an entry of files has a hash that is not a string")
    return FileEntry(_text(item.get("path")), item["size"], *hashes)


def check_path(path: str) -> None:
    """Raises InvalidManifest for a path that is not plainly below the model's folder."""
    shown = repr(path[:120])
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise InvalidManifest(f"the name of file {shown} is not valid Unicode") from None
    if not 0 < len(encoded) <= MAX_PATH_BYTES:
        raise InvalidManifest(f"the path {shown} has {len(encoded)} bytes; allowed are 1 to {MAX_PATH_BYTES}")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        raise InvalidManifest(f"the path {shown} has more than {MAX_DEPTH} levels")
    for part in parts:
        if part in ("", ".", ".."):
            raise InvalidManifest(f"the path {shown} is not a plain path below the model's folder")
        if len(part.encode()) > MAX_NAME_BYTES:
            raise InvalidManifest(f"a name in the path {shown} is longer than {MAX_NAME_BYTES} bytes")
    if any(sign == "\\" or unicodedata.category(sign) in ("Cc", "Cs") for sign in path):
        raise InvalidManifest(f"the path {shown} has a backslash or a control character")


def _check_entry(entry: FileEntry) -> None:
    check_path(entry.path)
    if (entry.sha256 is None) == (entry.git_sha1 is None):
        raise InvalidManifest(f"file {entry.path!r} needs exactly one of sha256 and gitSHA1")
    if not (_SHA256.fullmatch(entry.sha256) if entry.sha256 else _SHA1.fullmatch(entry.git_sha1 or "")):
        raise InvalidManifest(f"file {entry.path!r} has a hash that is not hexadecimal in lower case: {entry.blob[:80]!r}")
    if not 0 <= entry.size <= MAX_FILE_BYTES:
        raise InvalidManifest(f"file {entry.path!r} has {entry.size} bytes; allowed are 0 to {MAX_FILE_BYTES}")


def _check_together(files: Iterable[FileEntry]) -> None:
    """File systems of Macs ignore case and Unicode forms, so names that differ only in them are one file there."""
    sizes: dict[str, int] = {}
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for entry in files:
        if sizes.setdefault(entry.blob, entry.size) != entry.size:
            raise InvalidManifest(f"file {entry.path!r} has the hash of another file, but a different size")
        key = _folded(entry.path)
        if key in seen:
            raise InvalidManifest(f"files {seen[key]!r} and {entry.path!r} have the same name on a Mac's disk")
        seen[key] = entry.path
        parts = entry.path.split("/")
        for level in range(1, len(parts)):
            folders.setdefault(_folded("/".join(parts[:level])), entry.path)
    for key in seen.keys() & folders.keys():
        raise InvalidManifest(f"{seen[key]!r} is a file and also a folder of {folders[key]!r}")
    if sum(sizes.values()) > MAX_TOTAL_BYTES:
        raise InvalidManifest(f"the files have more than {MAX_TOTAL_BYTES} bytes together")


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", path).casefold())
