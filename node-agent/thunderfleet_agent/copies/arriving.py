"""A large file that arrives: its chunks on disk, and the hash of the whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from thunderfleet_lib.modelstore import hashing
from thunderfleet_lib.modelstore.manifest import FileEntry
from thunderfleet_lib.modelstore.store import BlobWriter, Store

from thunderfleet_agent.copies import chunks
from thunderfleet_agent.copies.chunks import CHUNK_BYTES, ChunkList
from thunderfleet_agent.copies.ways.connection import BLOCK_BYTES


@dataclass
class OpenFile:
    """A large file that arrives. ``hasher`` and ``hashed``: the chunks from its start that went into the hash."""

    writer: BlobWriter
    file: BinaryIO
    close: contextlib.ExitStack
    hasher: hashing.Hash
    hashed: int = 0
    users: int = field(default=0)
    """Connections that are writing to it."""

    def restart(self) -> None:
        """The hash begins again at the start of the file."""
        self.hasher, self.hashed = hashing.start(self.writer.entry), 0

    def hash_chunk(self, index: int, buffer: memoryview) -> None:
        """Adds the chunk ``index``, which is the next one and on disk, to the hash."""
        at = index * CHUNK_BYTES
        end = at + chunks.length(index, self.writer.entry.size)
        while at < end:
            read = os.preadv(self.file.fileno(), [buffer[: min(len(buffer), end - at)]], at)
            if read == 0:
                # Another program truncated the file, so the check of its hash will fail.
                break
            self.hasher.update(buffer[:read])
            at += read
        self.hashed = index + 1


def open_file(store: Store, repository: str, entry: FileEntry) -> OpenFile:
    """Opens the file in the store, with what has arrived before. Raises OSError (which Busy is)."""
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(store.writer(repository, entry))
        file = stack.enter_context(writer.open())
        if writer.size > entry.size:
            file.truncate(entry.size)
        return OpenFile(writer, file, stack.pop_all(), hashing.start(entry))


def intact(descriptor: int, entry: FileEntry, found: ChunkList, quits: Callable[[], bool]) -> list[int]:
    """The chunks on disk that have their hashes. Stops early when ``quits`` returns True."""
    whole, size = [], os.fstat(descriptor).st_size
    block = memoryview(bytearray(BLOCK_BYTES))
    for index in range(chunks.count(entry.size)):
        at, count = index * CHUNK_BYTES, chunks.length(index, entry.size)
        if at + count > size or quits():
            break
        if _is_hole(descriptor, at, count):
            continue
        hasher, left = hashlib.sha256(), count
        while left and (read := os.preadv(descriptor, [block[: min(left, BLOCK_BYTES)]], at)):
            hasher.update(block[:read])
            at, left = at + read, left - read
        if hasher.digest() == found.digest(index):
            whole.append(index)
    return whole


def _is_hole(descriptor: int, at: int, count: int) -> bool:
    """Whether nothing was written there. False if the file system does not report it."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA) >= at + count
    except OSError as error:
        return error.errno == errno.ENXIO
