"""Takes over files that another process downloads, and hashes a large one while its last part arrives.

A model can be used when the last file has its hash. Without this module, hashing a file of 40 GB would begin when its last byte
has arrived, and take half a minute. The other process can change its file at any time, so a copy is hashed that only this
process writes: on APFS a clone of what has arrived, to which the rest is appended; elsewhere a copy from the first byte. If
anything goes wrong with such a copy, it is dropped, and the whole file is checked when it is complete (``Store.adopt``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from thunderfleet_lib.modelstore import hashing
from thunderfleet_lib.modelstore.layout import INCOMPLETE
from thunderfleet_lib.modelstore.manifest import FileEntry
from thunderfleet_lib.modelstore.store import CLONES, Busy, Store, allocated_bytes, clone

log = logging.getLogger(__name__)

LEAST_BYTES = 64 * 2**20
"""Smaller files are hashed when they are complete, which is fast enough."""
CLONED_SHARE = 0.75 if CLONES else 0.0
"""The part of a file that has arrived when it is cloned. With a larger part, less is written twice; with a smaller one, hashing
keeps up with a faster network. This value is enough for a network with a third of the speed of hashing. Files that cannot be
cloned are copied from the first byte."""
STEP_BYTES = 512 * 2**20
"""Maximum bytes that one step hashes, so that the caller can report progress in between."""


class Adoption:
    """Takes files over into ``store``, and leaves ``reserve_bytes`` of the disk free. For one thread at a time."""

    def __init__(self, store: Store, reserve_bytes: int) -> None:
        self._store = store
        self._reserve = reserve_bytes
        self._arriving: dict[Path, _Arriving] = {}
        self._dropped: set[Path] = set()
        """Files whose copy failed. They are not copied again, because a pod could otherwise make the agent copy endlessly."""

    def take(self, repository: str, entry: FileEntry, folder: Path) -> bool:
        """Whether the store has the file now that a download writes to its staging ``folder``.

        Raises WrongBytes, Busy (which is an OSError), OSError.
        """
        staged = folder / entry.blob
        if not staged.is_file():
            self._follow(entry, staged)
            return False
        if staged in self._arriving:
            self._finish(repository, self._arriving[staged])
            self._arriving.pop(staged).close()
        self._store.adopt(repository, entry, staged)
        return True

    def retain(self, folders: Collection[Path]) -> None:
        """Drops the copies of files of all other staging folders, which frees their disk."""
        for staged in [staged for staged in self._arriving if staged.parent not in folders]:
            self._arriving.pop(staged).close()
        self._dropped = {staged for staged in self._dropped if staged.parent in folders}

    def _drop(self, staged: Path) -> None:
        self._dropped.add(staged)
        if staged in self._arriving:
            self._arriving.pop(staged).close()

    def _follow(self, entry: FileEntry, staged: Path) -> None:
        """Copies and hashes what has arrived since the last call."""
        if entry.size < LEAST_BYTES or staged in self._dropped:
            return
        try:
            arriving = self._arriving.get(staged)
            if arriving is None:
                arriving = self._begin(entry, staged)
                if arriving is None:
                    return
                self._arriving[staged] = arriving
            if not arriving.advance(STEP_BYTES):
                self._drop(staged)
        except OSError as error:
            # Such as a full disk. The file is checked when it is complete.
            log.info("%s: not hashed while it arrives: %s", entry.path, error)
            self._drop(staged)

    def _begin(self, entry: FileEntry, staged: Path) -> _Arriving | None:
        """A copy, if enough has arrived in order and there is room for the rest and for a copy of everything."""
        path = staged.with_name(staged.name + INCOMPLETE)
        try:
            about = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        size = about.st_size
        whole = stat.S_ISREG(about.st_mode) and allocated_bytes(about) == size
        if not whole or not CLONED_SHARE * entry.size <= size <= entry.size:
            return None
        if self._store.free_bytes() < 2 * entry.size - size + self._reserve:
            return None
        return _Arriving(entry, path, self._store.layout.temporary / uuid.uuid4().hex)

    def _finish(self, repository: str, arriving: _Arriving) -> None:
        """Makes the copy the blob, if it has the right bytes. Raises Busy."""
        try:
            if not arriving.ends_right():
                return
            with self._store.writer(repository, arriving.entry) as writer:
                os.replace(arriving.path, writer.path)
                writer.keep()
        except Busy:
            raise
        except OSError as error:
            log.info("%s: its copy is not used: %s", arriving.entry.path, error)


class _Arriving:
    """The copy at ``path`` of a file that arrives at ``staged``. Raises OSError."""

    def __init__(self, entry: FileEntry, staged: Path, path: Path) -> None:
        self.entry, self.path = entry, path
        self._hash, self._hashed = hashing.start(entry), 0
        with contextlib.ExitStack() as stack:
            source = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            self._source = stack.enter_context(os.fdopen(source, "rb", buffering=0))
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise OSError(f"{staged} is not a regular file")
            stack.callback(path.unlink, missing_ok=True)
            cloned = clone(source, path)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._copy: BinaryIO = stack.enter_context(os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0))
            self._cloned = os.fstat(self._copy.fileno()).st_size if cloned else 0
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes both files, and removes the copy if it has not got another name."""
        self._stack.close()

    def advance(self, most: int) -> bool:
        """Copies and hashes what is there, at most about ``most`` bytes. False if the file no longer has what was copied."""
        until = self._hashed + most
        if os.fstat(self._source.fileno()).st_size < max(self._hashed, self._cloned):
            return False
        block = memoryview(bytearray(hashing.BLOCK_BYTES))
        while self._hashed < min(until, self.entry.size + 1) and (count := self._read(block)):
            self._hash.update(block[:count])
            self._hashed += count
        # In steps, so that little is left to write back when the last byte arrives.
        os.fsync(self._copy.fileno())
        return True

    def _read(self, block: memoryview) -> int:
        """The next bytes, which are in the copy then."""
        if self._hashed < self._cloned:
            return os.preadv(self._copy.fileno(), [block[: self._cloned - self._hashed]], self._hashed)
        count = os.preadv(self._source.fileno(), [block], self._hashed)
        hashing.write_all(self._copy, block[:count], self._hashed)
        return count

    def ends_right(self) -> bool:
        """Whether the copy has all bytes of the entry, now that its file is complete."""
        right = self.advance(self.entry.size + 1) and self._hashed == self.entry.size
        return right and self._hash.hexdigest() == self.entry.blob
