"""Unpacked images and their layers on this disk, each under its digest.

``trees/DIGEST`` is the image with that manifest: ``rootfs``, its files; ``config.json``, the ``config`` object of its
configuration; ``image.json``, a record of its names. A tree appears when it is complete. ``blobs`` has layers as they were
sent, which other images may share; ``partial`` those that are still coming; ``staging`` trees that are being unpacked.
"""

import contextlib
import fcntl
import json
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.images.registry.download import Downloads, digest_of
from thunderfleet_kubelet.images.registry.reference import Reference
from thunderfleet_kubelet.shim import files

log = logging.getLogger(__name__)

Json = dict[str, Any]

PUBLIC = "public"
"""The mark of an image that its registry gives to everyone."""
MAX_NAMES = 64
"""How many tags, digests and repositories a record keeps."""
USED_STEP = 60.0
"""The record of the last use is at most this old (seconds)."""
STALE_PARTIAL_SECONDS = 86400.0


@dataclass
class Stored:
    """An unpacked image. ``key``: the digits of its manifest's digest. ``size``: bytes of its files.

    ``tags``: full names to the digests that they had when they were pulled; ``digests``: full names with digests. ``access``:
    by registry and repository, the marks of the credentials with which the registry gave it. Times are seconds since the epoch.
    """

    key: str
    size: int
    tags: dict[str, str] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    access: dict[str, list[str]] = field(default_factory=dict)
    used: float = 0.0
    written: float = 0.0

    @property
    def names(self) -> list[str]:
        """All names, as in a Node's status."""
        return [*self.digests, *self.tags]

    @property
    def contents(self) -> set[str]:
        """The digests by which registries call the image, under whatever name."""
        return {f"sha256:{self.key}", *(one.rpartition("@")[2] for one in self.digests)}

    def is_open(self, name: str, mark: str) -> bool:
        """Whether the registry gave ``name`` (registry and repository) to everyone, or to the owner of these credentials."""
        marks = self.access.get(name, [])
        return PUBLIC in marks or mark in marks


class Store:
    """The folder ``root``. ``images``: by key."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        self.root = root
        self.trees, self._staging = root / "trees", root / "staging"
        self.blobs, self.partial = root / "blobs", root / "partial"
        self.downloads = Downloads(self.blobs, self.partial)
        self._now = now
        self._reserved: Counter[str] = Counter()
        self._in_work: set[str] = set()
        """The names of the folders in ``staging`` that are being filled."""
        self.images: dict[str, Stored] = {}
        self._unread: set[str] = set()
        """The keys of trees whose records could not be read, for a reason that may pass."""

    def open(self) -> None:
        """Makes the folders and reads the records. Raises OSError.

        Deletes an image only if its record is proven to be broken. What cannot be read now may belong to pods that run: it is
        kept and read later.
        """
        for folder, mode in (
            (self.root, 0o711),
            (self.trees, 0o711),
            (self._staging, 0o700),
            (self.blobs, 0o700),
            (self.partial, 0o700),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            os.chmod(folder, mode)
        self._unread = {tree.name for tree in self.trees.iterdir()}
        self.read_again(log.warning)

    def read_again(self, say: Callable[..., None] = log.debug) -> None:
        """Reads the records that could not be read before."""
        for key in sorted(self._unread):
            try:
                stored = _read(self.trees / key)
            except (OSError, MemoryError) as error:
                say("%s: cannot read the record of this image, so the image is not used now: %s", self.trees / key, error)
                continue
            self._unread.discard(key)
            if stored is not None:
                self.images[key] = stored
                continue
            log.warning("%s: the record of this image is damaged; the image is deleted", self.trees / key)
            with contextlib.suppress(OSError):
                # Files are deleted beside the event loop, later.
                self._move_out(key)

    def rootfs(self, stored: Stored) -> Path:
        """The files of an image."""
        return self.trees / stored.key / "rootfs"

    def config(self, stored: Stored) -> Json:
        """The ``config`` object. Raises OSError and ValueError."""
        found: Json = json.loads((self.trees / stored.key / "config.json").read_text(encoding="utf-8"))
        return found

    def find(self, reference: Reference) -> Stored | None:
        """The image of this name."""
        self.read_again()
        text = str(reference)
        for stored in self.images.values():
            if (text in stored.digests) if reference.digest else (text in stored.tags):
                return stored
        return None

    def by_digest(self, name: str, digest: str) -> Stored | None:
        """The image that a registry called ``digest``, which may be that of an index."""
        self.read_again()
        full = f"{name}@{digest}"
        return next((stored for stored in self.images.values() if full in stored.digests), None)

    @contextlib.asynccontextmanager
    async def staging(self) -> AsyncIterator[Path]:
        """A new folder for an image; what is left in it at the end is deleted. Raises OSError."""
        folder = self._staging / uuid.uuid4().hex
        self._in_work.add(folder.name)
        try:
            (folder / "rootfs").mkdir(parents=True)
            yield folder
        finally:
            self._in_work.discard(folder.name)
            # A million files take minutes.
            with contextlib.suppress(OSError):
                await leftovers.delete(folder)

    async def drop_staging(self) -> None:
        """Deletes what an earlier kubelet left half done. May take long."""
        for left in list(self._staging.iterdir()):
            if left.name not in self._in_work:
                with contextlib.suppress(OSError):
                    await leftovers.delete(left)

    def add(self, folder: Path, key: str, size: int, config: Json) -> Stored:
        """Takes a complete staging folder as the image ``key``, unless it is there. Raises OSError."""
        if key in self.images:
            return self.images[key]
        stored = Stored(key, size, used=self._now())
        files.write_file(str(folder / "config.json"), json.dumps(config))
        self._write(stored, folder)
        os.chmod(folder, 0o755)
        os.chmod(folder / "rootfs", 0o755)
        # Those of ``rootfs`` were synced when they were unpacked.
        for path in (folder / "image.json", folder, folder / "config.json"):
            _sync(path)
        if (self.trees / key).exists():
            # Its record cannot be read. Programs that run from it find the same files under the same names.
            self._move_out(key)
        os.rename(folder, self.trees / key)
        self._unread.discard(key)
        self.images[key] = stored
        return stored

    def name(self, stored: Stored, reference: Reference, digest: str, mark: str) -> None:
        """Records that the registry gave the image under this name and digest. A tag belongs to one image. Raises OSError."""
        full = f"{reference.name}@{digest}"
        if reference.tag and not reference.digest:
            for other in list(self.images.values()):
                if other is not stored and other.tags.pop(str(reference), None) is not None:
                    self._write(other)
            stored.tags.pop(str(reference), None)
            stored.tags[str(reference)] = digest
            stored.tags = dict(list(stored.tags.items())[-MAX_NAMES:])
        if full not in stored.digests:
            stored.digests = [*stored.digests, full][-MAX_NAMES:]
        # The name that was used last stays longest.
        marks = stored.access[reference.name] = stored.access.pop(reference.name, [])
        if mark not in marks:
            stored.access[reference.name] = [*marks, mark][-MAX_NAMES:]
        stored.access = dict(list(stored.access.items())[-MAX_NAMES:])
        stored.used = self._now()
        self._write(stored)

    def touch(self, stored: Stored) -> None:
        """Records that the image is used now."""
        stored.used = self._now()
        if abs(stored.used - stored.written) > USED_STEP:
            # On a full disk, the next kubelet may delete it a little too early.
            with contextlib.suppress(OSError):
                self._write(stored)

    def take_out(self, stored: Stored) -> Path:
        """Ends an image, in one step, so that no kubelet finds half of it. Returns the folder to delete. Raises OSError."""
        doomed = self._move_out(stored.key)
        self.images.pop(stored.key, None)
        return doomed

    def _move_out(self, key: str) -> Path:
        doomed = self._staging / uuid.uuid4().hex
        os.rename(self.trees / key, doomed)
        return doomed

    @contextlib.contextmanager
    def reserving(self, digests: Iterable[str]) -> Iterator[None]:
        """Keeps layers that are about to be unpacked."""
        mine = Counter(digests)
        self._reserved += mine
        try:
            yield
        finally:
            self._reserved -= mine

    def drop_partials(self) -> None:
        """Deletes what has not grown for a day."""
        for file in self.partial.iterdir():
            with contextlib.suppress(OSError):
                if digest_of(file) not in self.downloads.busy and self._age(file) > STALE_PARTIAL_SECONDS:
                    file.unlink()

    def _age(self, file: Path) -> float:
        return self._now() - file.stat().st_mtime

    def spare_blobs(self) -> list[tuple[Path, int]]:
        """The layers that are kept for other images only, parts that no pull waits for, and their sizes, the oldest first."""
        found = []
        for file in (*self.blobs.iterdir(), *self.partial.iterdir()):
            with contextlib.suppress(OSError):
                about = file.stat()
                if digest_of(file) not in self.downloads.busy and not self._reserved[digest_of(file)]:
                    found.append((about.st_mtime, file, about.st_size))
        return [(file, size) for _, file, size in sorted(found)]

    def _write(self, stored: Stored, folder: Path | None = None) -> None:
        record = {
            "key": stored.key,
            "size": stored.size,
            "tags": stored.tags,
            "digests": stored.digests,
            "access": stored.access,
            "used": stored.used,
        }
        file = (folder or self.trees / stored.key) / "image.json"
        temporary = file.with_suffix(".new")
        # Closed from the beginning: it has hashes of passwords.
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            json.dump(record, stream)
        os.replace(temporary, file)
        stored.written = stored.used


def _sync(path: Path) -> None:
    """Waits until a file or folder is on the disk, and on macOS also until the disk has written what it was sent before."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        whole = getattr(fcntl, "F_FULLFSYNC", None)
        if whole is not None and path.suffix:
            # Not every file system has it.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, whole)
    finally:
        os.close(descriptor)


def _read(tree: Path) -> Stored | None:
    """The record of a tree; None if it is broken. Raises OSError and MemoryError if it cannot be read now."""
    try:
        text = (tree / "image.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        # A tree gets its name when it is complete, so what is no image now has never been one, or was damaged.
        return None
    try:
        record = json.loads(text)
        used = float(record["used"])
        return Stored(
            key=tree.name,
            size=int(record["size"]),
            tags={str(name): str(digest) for name, digest in record["tags"].items()},
            digests=[str(one) for one in record["digests"]],
            access={str(name): [str(one) for one in marks] for name, marks in record["access"].items()},
            used=used,
            written=used,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
