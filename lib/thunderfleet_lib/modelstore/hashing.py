"""Hashes of files as the hub gives them: SHA-256, or git's id of a blob for small files."""

import hashlib
import os
from typing import BinaryIO, Protocol

from thunderfleet_lib.modelstore.manifest import FileEntry

BLOCK_BYTES = 1024 * 1024


class Hash(Protocol):
    """What hashlib gives."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class WrongBytes(ValueError):
    """The bytes are not those of the manifest; the text has the file and what is different."""


def start(entry: FileEntry) -> Hash:
    """A hash that has the value of ``entry`` once all its bytes went into it."""
    if entry.sha256 is not None:
        return hashlib.sha256()
    # Git's SHA-1 does not protect against the author of the repository, who could change the file anyway.
    found = hashlib.sha1(usedforsecurity=False)
    found.update(b"blob %d\0" % entry.size)
    return found


def check(stream: BinaryIO, entry: FileEntry, copy: BinaryIO | None = None) -> None:
    """Reads the stream to its end. Raises WrongBytes, OSError.

    ``copy``, an unbuffered file, receives the bytes, at most the size of the entry.
    """
    found, size = start(entry), 0
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    while count := stream.readinto(block):  # type: ignore[attr-defined]
        size += count
        if size > entry.size:
            break
        found.update(view[:count])
        if copy is not None:
            write_all(copy, view[:count], size - count)
    if size != entry.size:
        raise WrongBytes(
            f"{entry.path} has {'more than ' if size > entry.size else ''}{min(size, entry.size)} bytes, not {entry.size}"
        )
    if found.hexdigest() != entry.blob:
        raise WrongBytes(f"{entry.path} does not have its hash {entry.blob}: the bytes were changed on the way or on disk")


def write_all(file: BinaryIO, data: memoryview, at: int) -> None:
    """Writes all of the bytes at an offset. Raises OSError: what one call to the system writes may be less, on a full disk."""
    while data:
        written = os.pwrite(file.fileno(), data, at)
        data, at = data[written:], at + written
