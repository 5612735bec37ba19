"""Writes, checks and removes the models of one folder. Works on macOS and Linux; all methods block.

Nothing is used before it has been checked: a blob gets its name when its bytes have the hash, and the folder of a commit
appears by one rename when all of its blobs are there. Each step can be interrupted and repeated. A blob has one writer, who
holds a lock; the lock ends with the process.
"""

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from thunderfleet_lib.host.trees import remove_tree
from thunderfleet_lib.modelstore import hashing, parts
from thunderfleet_lib.modelstore.eviction import Kept
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.layout import RESTRICTED, Layout
from thunderfleet_lib.modelstore.manifest import MAX_MANIFEST_BYTES, FileEntry, InvalidManifest, Manifest, load

log = logging.getLogger(__name__)

MAX_MODELS = 1024
CLONES = sys.platform == "darwin"
"""Whether file systems of this platform support copies that share their blocks with the original."""


class Busy(OSError):
    """Another process or task writes this blob."""


class Incomplete(OSError):
    """Files of the model are missing."""


class BlobWriter:
    """The only writer of one blob. ``path`` may have bytes from before: they are checked with the others by ``finish``."""

    def __init__(self, layout: Layout, repository: str, entry: FileEntry) -> None:
        self.entry = entry
        self.path = layout.incomplete(repository, entry.blob)
        self.blob = layout.blob(repository, entry.blob)

    @property
    def size(self) -> int:
        """Bytes of the incomplete file, 0 without one."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat(follow_symlinks=False).st_size
        return 0

    def open(self) -> BinaryIO:
        """The incomplete file for reading and writing at any offset; it is created if needed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self.path, flags, 0o644), "r+b", buffering=0)

    def finish(self) -> None:
        """Checks the bytes and gives the blob its name. Raises WrongBytes, and removes the bytes then; OSError."""
        try:
            with self._read() as file:
                hashing.check(file, self.entry)
        except WrongBytes:
            self.path.unlink(missing_ok=True)
            raise
        self.keep()

    def keep(self, *, sync_folder: bool = True) -> None:
        """Gives the blob its name. Only for a caller that has checked the bytes on disk itself. Raises OSError.

        Without ``sync_folder`` the name may be lost in a power failure, until another blob of the repository is kept.
        """
        with self._read() as file:
            os.fsync(file.fileno())
        os.chmod(self.path, 0o444)
        os.replace(self.path, self.blob)
        if sync_folder:
            _sync_folder(self.blob.parent)

    def _read(self) -> BinaryIO:
        # Not for writing: a link to a blob of another repository, and what an interrupted call left, are read-only.
        return os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0)

    def discard(self) -> None:
        """Removes the incomplete file."""
        self.path.unlink(missing_ok=True)


class Store:
    """The models below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = Layout(root)
        self._prepared = False

    def prepare(self) -> None:
        """Creates the folders, and removes what an interrupted change left. Raises OSError."""
        for folder in (self.layout.manifests, self.layout.locks, self.layout.staging):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.layout.temporary, ignore_errors=True)
        self.layout.temporary.mkdir(parents=True, exist_ok=True)

    def prepare_once(self) -> None:
        """Calls ``prepare`` the first time; later creates only missing folders. Raises OSError."""
        if not self._prepared:
            self.prepare()
            self._prepared = True
        for folder in (self.layout.manifests, self.layout.locks, self.layout.staging, self.layout.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        # Pods that download reach their own folder by its name, and list no others.
        if self.layout.staging.stat().st_mode & 0o777 != 0o711:
            self.layout.staging.chmod(0o711)

    def free_bytes(self) -> int:
        """Bytes that can still be written. Raises OSError."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    # --- manifests ---------------------------------------------------------------------------------------------------

    def add_manifest(self, manifest: Manifest) -> None:
        """Stores a manifest, which makes its model one of the store's; replaces a damaged one. Raises OSError."""
        path = self.layout.manifest(manifest.digest)
        if self.manifest(manifest.digest) is not None:
            os.utime(path)
            return
        fresh = self.layout.temporary / uuid.uuid4().hex
        with fresh.open("wb") as file:
            file.write(manifest.canonical)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)

    def manifest(self, digest: str) -> Manifest | None:
        """The stored manifest; None if there is none, or if it was damaged."""
        return read_manifest(self.layout.manifest(digest), digest)

    def manifests(self) -> Iterator[Manifest]:
        """All stored manifests that are intact, at most MAX_MODELS."""
        for path in sorted(self.layout.manifests.glob("*.json"))[:MAX_MODELS]:
            with contextlib.suppress(ValueError):
                found = read_manifest(path, path.stem)
                if found is not None:
                    yield found

    def restrict(self, tokens: Mapping[str, bool]) -> None:
        """Notes, by digest, whether the hub has listed a model's files only for a token. Raises OSError.

        Notes about models that are neither in ``tokens`` nor in the store are removed.
        """
        for digest, token in tokens.items():
            path = self.layout.restricted(digest)
            if not token:
                path.unlink(missing_ok=True)
            elif not path.exists():
                path.touch()
        for path in self.layout.manifests.glob(f"*{RESTRICTED}"):
            if path.stem not in tokens and not path.with_suffix(".json").exists():
                path.unlink(missing_ok=True)

    def restricted(self) -> frozenset[str]:
        """The folders of commits whose files the hub has listed only for a token."""
        found = (self.manifest(path.stem) for path in self.layout.manifests.glob(f"*{RESTRICTED}"))
        return frozenset(str(self.layout.snapshot(one.repository, one.commit)) for one in found if one is not None)

    # --- blobs -------------------------------------------------------------------------------------------------------

    def has(self, repository: str, entry: FileEntry) -> bool:
        """Whether the blob is there. Its bytes were checked when it got its name."""
        try:
            found = self.layout.blob(repository, entry.blob).stat(follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == entry.size

    def prepare_repository(self, repository: str) -> None:
        """Creates the folders for a repository's blobs. Raises OSError."""
        self.layout.temporary.mkdir(parents=True, exist_ok=True)
        self.layout.blobs(repository).mkdir(parents=True, exist_ok=True)

    def missing(self, manifest: Manifest) -> tuple[FileEntry, ...]:
        """One entry for each blob that is not there."""
        absent = {entry.blob: entry for entry in manifest.files if not self.has(manifest.repository, entry)}
        return tuple(absent.values())

    def arrived_bytes(self, manifest: Manifest) -> int:
        """Bytes of the model that are on disk, with those of incomplete blobs."""
        total = 0
        for entry in {entry.blob: entry for entry in manifest.files}.values():
            if self.has(manifest.repository, entry):
                total += entry.size
            else:
                with contextlib.suppress(OSError):
                    path = self.layout.incomplete(manifest.repository, entry.blob)
                    total += min(entry.size, allocated_bytes(path.stat(follow_symlinks=False)))
        return total

    @contextlib.contextmanager
    def writer(self, repository: str, entry: FileEntry) -> Iterator[BlobWriter]:
        """The writer of a blob, as long as the context lasts. Raises Busy if there is another one; OSError."""
        self.layout.blobs(repository).mkdir(parents=True, exist_ok=True)
        self.layout.locks.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.layout.locks / entry.blob, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(errno.EBUSY, f"another process writes {entry.path}") from None
            yield BlobWriter(self.layout, repository, entry)
        finally:
            os.close(lock)

    def adopt(self, repository: str, entry: FileEntry, staged: Path) -> None:
        """Takes a file over that another process has written. Raises WrongBytes, Busy, OSError.

        The file may still be changed by its writer, so what is checked is a copy: on APFS a clone, which takes no time and no
        disk. A file of this process's own user is moved instead.
        """
        if self.has(repository, entry):
            return
        with self.writer(repository, entry) as writer:
            writer.discard()
            source = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(source, "rb", buffering=0) as file:
                about = os.fstat(source)
                if not stat.S_ISREG(about.st_mode):
                    raise WrongBytes(f"{entry.path} is not a regular file")
                if about.st_uid == os.geteuid() and about.st_nlink == 1 and about.st_dev == writer.path.parent.stat().st_dev:
                    os.replace(staged, writer.path)
                elif not clone(source, writer.path):
                    try:
                        with writer.open() as copy:
                            hashing.check(file, entry, copy)
                    except WrongBytes:
                        writer.discard()
                        raise
                    writer.keep()
                    return
            writer.finish()

    # --- models ------------------------------------------------------------------------------------------------------

    def complete(self, manifest: Manifest) -> bool:
        """Whether the folder of the commit is there with all files of the manifest."""
        snapshot = self.layout.snapshot(manifest.repository, manifest.commit)
        return not self.missing(manifest) and all((snapshot / entry.path).exists() for entry in manifest.files)

    def publish(self, manifest: Manifest, revision: str | None = None) -> Path:
        """Makes the folder of the commit appear. Raises Incomplete if a blob is missing, OSError."""
        absent = self.missing(manifest)
        if absent:
            raise Incomplete(errno.ENOENT, f"{len(absent)} files are missing, such as {absent[0].path}")
        target = self.layout.snapshot(manifest.repository, manifest.commit)
        if not self.complete(manifest):
            fresh = self.layout.temporary / uuid.uuid4().hex
            for entry in manifest.files:
                link = fresh / entry.path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to("/".join([*[".."] * (entry.path.count("/") + 2), "blobs", entry.blob]))
            target.parent.mkdir(parents=True, exist_ok=True)
            # The folder is damaged or has another selection of files. Blobs stay, so programs with open files are not affected.
            self._drop_folder(target)
            os.replace(fresh, target)
            _sync_folder(target.parent)
        if revision is not None and revision != manifest.commit:
            with contextlib.suppress(ValueError, OSError):
                # A branch with a slash in its name has no file: only other programs read it.
                reference = self.layout.reference(manifest.repository, revision)
                reference.parent.mkdir(parents=True, exist_ok=True)
                fresh = self.layout.temporary / uuid.uuid4().hex
                fresh.write_text(manifest.commit)
                os.replace(fresh, reference)
        return target

    def publish_part(self, manifest: Manifest, files: Collection[int], layers: Collection[int]) -> frozenset[int]:
        """Makes files of a manifest, by number, appear in the folder for its part. Returns the layers that are in it then.

        What was there before stays. Raises Incomplete if a blob is missing, OSError.
        """
        folder = self.layout.part(manifest.digest)
        before = self._part(manifest)
        wanted = frozenset(files) | (before.files if before is not None else frozenset())
        found = frozenset(layers) | (before.layers if before is not None else frozenset())
        narrowed = manifest.narrowed(wanted)
        absent = self.missing(narrowed)
        if absent and before is not None:
            # Files of earlier layers were removed as damaged.
            wanted, found = frozenset(files), frozenset(layers)
            narrowed = manifest.narrowed(wanted)
            absent = self.missing(narrowed)
        if absent:
            raise Incomplete(errno.ENOENT, f"{len(absent)} files are missing, such as {absent[0].path}")
        made = parts.Part(manifest.digest, wanted, found)
        if before == made and all((folder / entry.path).exists() for entry in narrowed.files):
            return found
        for entry in narrowed.files:
            link = folder / entry.path
            self._link(link, os.path.relpath(self.layout.blob(manifest.repository, entry.blob), link.parent))
        self._drop_links(folder, {entry.path for entry in narrowed.files})
        # Written last, because readers take it as proof that the other files are complete.
        fresh = self.layout.temporary / uuid.uuid4().hex
        fresh.write_bytes(made.dump())
        os.replace(fresh, folder / parts.PART_FILE)
        _sync_folder(folder)
        return found

    def part_layers(self, manifest: Manifest) -> frozenset[int] | None:
        """The layers in the folder for a part of the model; None if there is none, or if a file of it is missing."""
        found = self._part(manifest)
        return None if found is None or self.missing(manifest.narrowed(found.files)) else found.layers

    def _part(self, manifest: Manifest) -> parts.Part | None:
        try:
            found = parts.read(self.layout.part(manifest.digest))
        except ValueError as error:
            log.warning("%s", error)
            return None
        usable = found is not None and found.manifest == manifest.digest and found.files
        return found if found is not None and usable and max(found.files) < len(manifest.files) else None

    def _link(self, link: Path, target: str) -> None:
        """A symbolic link, which replaces what is there."""
        with contextlib.suppress(OSError):
            if os.readlink(link) == target:
                return
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.layout.temporary / uuid.uuid4().hex
        fresh.symlink_to(target)
        os.replace(fresh, link)

    def _drop_links(self, folder: Path, kept: Collection[str]) -> None:
        """Removes links other than ``kept``: a rank reads every file of weights that it finds, and they may lead nowhere."""
        for path in folder.rglob("*"):
            if path.is_symlink() and path.relative_to(folder).as_posix() not in kept:
                path.unlink(missing_ok=True)

    def verify(self, manifest: Manifest) -> tuple[str, ...]:
        """Reads every file again and returns what is wrong with them; a wrong blob loses its name. Raises OSError."""
        problems: list[str] = []
        for entry in {entry.blob: entry for entry in manifest.files}.values():
            blob = self.layout.blob(manifest.repository, entry.blob)
            try:
                with blob.open("rb", buffering=0) as file:
                    hashing.check(file, entry)
            except FileNotFoundError:
                problems.append(f"{entry.path} is missing")
            except WrongBytes as error:
                blob.unlink(missing_ok=True)
                problems.append(str(error))
        return tuple(problems)

    def kept(self) -> tuple[Kept, ...]:
        """The models of the store, complete or not."""
        found: list[Kept] = []
        for manifest in self.manifests():
            with contextlib.suppress(OSError):
                used = self.layout.manifest(manifest.digest).stat().st_mtime
                size = self.arrived_bytes(manifest)
                found.append(Kept(manifest.digest, manifest.repository, manifest.commit, size, used))
        return tuple(found)

    def touch(self, digest: str) -> None:
        """Notes that something refers to a model now."""
        with contextlib.suppress(OSError):
            os.utime(self.layout.manifest(digest), (time.time(), time.time()))

    def remove(self, digest: str) -> int:
        """Removes a model of the store. Returns how many bytes that freed. Raises OSError.

        Blobs stay that another model of the store, or any other folder of a commit in this repository, refers to: a user may
        have put that there. A model without a manifest is not the store's, so nothing of it is removed.
        """
        manifest = self.manifest(digest)
        if manifest is None:
            return 0
        others = [other for other in self.manifests() if other.digest != digest and other.repository == manifest.repository]
        if not any(other.commit == manifest.commit for other in others):
            self._drop_folder(self.layout.snapshot(manifest.repository, manifest.commit))
        self._drop_folder(self.layout.part(digest))
        held = {blob for other in others for blob in other.blobs} | self._linked(manifest.repository)
        freed = 0
        for name in manifest.blobs.keys() - held:
            freed += _remove_file(self.layout.blob(manifest.repository, name))
            freed += _remove_file(self.layout.incomplete(manifest.repository, name))
            (self.layout.locks / name).unlink(missing_ok=True)
        self.layout.manifest(digest).unlink(missing_ok=True)
        self.layout.restricted(digest).unlink(missing_ok=True)
        self._drop_empty(manifest.repository)
        return freed

    def _drop_folder(self, folder: Path) -> None:
        """Makes a folder disappear by one rename, and removes it then."""
        dropped = self.layout.temporary / uuid.uuid4().hex
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder, dropped)
            shutil.rmtree(dropped, ignore_errors=True)

    def _linked(self, repository: str) -> set[str]:
        """Names of blobs that links in folders of commits lead to."""
        found: set[str] = set()
        for path in (self.layout.repository(repository) / "snapshots").rglob("*"):
            with contextlib.suppress(OSError):
                found.add(Path(os.readlink(path)).name)
        return found

    def _drop_empty(self, repository: str) -> None:
        folder = self.layout.repository(repository)
        if any((folder / name).is_dir() and any((folder / name).iterdir()) for name in ("snapshots", "blobs")):
            return
        shutil.rmtree(folder, ignore_errors=True)

    def clear_staging(self, downloads: Collection[str]) -> None:
        """Removes the folders of downloads other than these, as far as this user may. Pods have filled them with anything."""
        with contextlib.suppress(OSError):
            for folder in list(self.layout.staging.iterdir()):
                if folder.name not in downloads:
                    with contextlib.suppress(OSError):
                        remove_tree(folder)


def allocated_bytes(found: os.stat_result) -> int:
    """Bytes of a file that are on disk: a file that is filled out of order has its full size at once."""
    return min(found.st_size, found.st_blocks * 512)


def read_manifest(path: Path, digest: str) -> Manifest | None:
    """The manifest in a file that may be anything. None if there is none with this digest."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return load(file.read(MAX_MANIFEST_BYTES + 1), digest)
    except OSError:
        return None
    except InvalidManifest as error:
        log.warning("%s: %s", path, error)
        return None


def _remove_file(path: Path) -> int:
    try:
        size = allocated_bytes(path.stat(follow_symlinks=False))
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def clone(source: int, target: Path) -> bool:
    """Makes a copy-on-write copy of an open file, for this user alone. False where the file system has none. Raises OSError."""
    if not CLONES:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    # fclonefileat(srcfd, dst_dirfd, dst, flags): AT_FDCWD is -2 on macOS.
    if library.fclonefileat(source, -2, os.fsencode(target), 0) != 0:
        return False
    # The clone has the mode and flags of the original, which a pod could set so that no user may write or remove it.
    if (set_flags := getattr(os, "chflags", None)) is not None:
        set_flags(target, 0)
    target.chmod(0o600)
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
