"""The files that other Macs can fetch from this one, by hash: complete and incomplete files of its model store.

The hashes of a file's chunks are computed with the hash of the whole file, in one pass, when the model is complete or when
another Mac requests them. They are stored beside the model store. A file that has changed on disk is not sent, and is removed.
Thread-safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import stat
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from thunderfleet_lib.modelstore import hashing
from thunderfleet_lib.modelstore.layout import OWN
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest
from thunderfleet_lib.modelstore.store import Store

from thunderfleet_agent.copies import chunks, wire
from thunderfleet_agent.copies.chunks import CHUNK_BYTES, ChunkList

log = logging.getLogger(__name__)

BLOCK_BYTES = 2**20
# The manifests are read again at most this often.
REFRESH_SECONDS = 1.0
MAX_LISTS = 64
MAX_QUEUE = 4096
_MAX_HEAD = 64


@dataclass
class Partial:
    """A file that this Mac fetches. ``have`` grows; a chunk is in it when it is on disk and has its hash."""

    entry: FileEntry
    path: Path
    list: ChunkList
    giver: str
    have: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Held:
    """A file that can be sent: its path, its size, and the chunks that are on disk; None for all."""

    path: Path
    size: int
    have: frozenset[int] | None


class Shelf:
    """The files of one store."""

    def __init__(self, store: Store, node: str) -> None:
        self.store = store
        self._node = node
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[str, FileEntry]] = {}
        self._read_at = -REFRESH_SECONDS
        self._seen: object = None
        self._partials: dict[str, Partial] = {}
        self._lists: OrderedDict[str, ChunkList] = OrderedDict()
        self._queue: queue.Queue[str] = queue.Queue(MAX_QUEUE)
        self._queued: set[str] = set()
        self._worker: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Stops computing hashes soon."""
        self._closed.set()

    # --- what others request -------------------------------------------------------------------------------------------

    def manifest(self, digest: str) -> bytes | None:
        """The canonical form of a manifest."""
        found = self.store.manifest(digest)
        return None if found is None else found.canonical

    def held(self, blob: str) -> Held | None:
        """The file as it can be given now."""
        known = self._entry(blob)
        if known is not None:
            repository, entry = known
            if self.store.has(repository, entry):
                return Held(self.store.layout.blob(repository, blob), entry.size, None)
        with self._lock:
            partial = self._partials.get(blob)
            if partial is not None:
                return Held(partial.path, partial.entry.size, frozenset(partial.have))
        return None

    def chunks(self, blob: str) -> str | None:
        """The chunks that are there, as HAVE answers; None if there are none."""
        found = self.held(blob)
        if found is None:
            return None
        return wire.COMPLETE if found.have is None else chunks.pack(found.have, found.size)

    def chunk_list(self, blob: str) -> tuple[ChunkList, str] | None:
        """The hashes of a file's chunks, and who has checked the file. None if they are not known yet."""
        with self._lock:
            partial = self._partials.get(blob)
            if partial is not None:
                return partial.list, partial.giver
        known = self._entry(blob)
        if known is None or not self.store.has(*known):
            return None
        found = self._kept(*known)
        if found is None:
            self._enqueue(blob)
            return None
        return found, self._node

    # --- what this Mac does --------------------------------------------------------------------------------------------

    def begin(self, partial: Partial) -> None:
        """Starts sending chunks of this file."""
        with self._lock:
            self._partials[partial.entry.blob] = partial

    def end(self, blob: str) -> None:
        """The file is complete, or is no longer being fetched."""
        with self._lock:
            self._partials.pop(blob, None)

    def keep(self, repository: str, entry: FileEntry, found: ChunkList) -> None:
        """Keeps the list of a file whose own hash was right. If this fails, the list is computed again later."""
        about = self._about(repository, entry)
        if about is None:
            return
        with self._lock:
            self._remember(entry.blob, found)
        path = self._list_path(entry.blob)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.store.layout.temporary / uuid.uuid4().hex
            fresh.write_bytes(about + found.digests)
            os.replace(fresh, path)

    def prepare(self, manifest: Manifest) -> None:
        """Computes the lists of a complete model's files soon, so that the first Mac that requests them does not wait."""
        for entry in manifest.files:
            if entry.size > CHUNK_BYTES and self._kept(manifest.repository, entry) is None:
                self._entry(entry.blob)
                self._enqueue(entry.blob)

    def sweep(self) -> None:
        """Removes lists of files that the store no longer has."""
        with contextlib.suppress(OSError):
            for path in self._list_path("").iterdir():
                if self._entry(path.name) is None:
                    path.unlink(missing_ok=True)

    def _entry(self, blob: str) -> tuple[str, FileEntry] | None:
        with self._lock:
            found = self._entries.get(blob)
            if found is None and time.monotonic() - self._read_at >= REFRESH_SECONDS:
                self._read()
                found = self._entries.get(blob)
        if found is not None and not self.store.layout.blob(*_names(found)).exists():
            # The model may have been removed, or another model's file has the same hash.
            with self._lock:
                if time.monotonic() - self._read_at >= REFRESH_SECONDS:
                    self._read()
                return self._entries.get(blob)
        return found

    def refresh(self) -> None:
        """Reads the manifests again: one was added."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        self._read_at = time.monotonic()
        try:
            about = self.store.layout.manifests.stat()
        except OSError:
            self._entries = {}
            return
        if self._seen == about.st_mtime_ns and time.time_ns() - about.st_mtime_ns > 2_000_000_000:
            return
        self._seen = about.st_mtime_ns
        found: dict[str, tuple[str, FileEntry]] = {}
        for manifest in self.store.manifests():
            for entry in manifest.files:
                # If several repositories have the file, any complete one is used.
                if entry.blob not in found or not self.store.has(*found[entry.blob]):
                    found[entry.blob] = (manifest.repository, entry)
        self._entries = found

    # --- hashes of chunks ----------------------------------------------------------------------------------------------

    def _list_path(self, blob: str) -> Path:
        return self.store.root / OWN / "chunks" / blob

    def _about(self, repository: str, entry: FileEntry) -> bytes | None:
        """What a list is valid for: size and time of the file."""
        try:
            found = self.store.layout.blob(repository, entry.blob).stat(follow_symlinks=False)
        except OSError:
            return None
        return f"{found.st_size} {found.st_mtime_ns}".ljust(_MAX_HEAD).encode()

    def _remember(self, blob: str, found: ChunkList) -> None:
        self._lists[blob] = found
        self._lists.move_to_end(blob)
        if len(self._lists) > MAX_LISTS:
            self._lists.popitem(last=False)

    def _kept(self, repository: str, entry: FileEntry) -> ChunkList | None:
        with self._lock:
            found = self._lists.get(entry.blob)
        if found is not None:
            return found
        try:
            raw = self._list_path(entry.blob).read_bytes()
        except OSError:
            return None
        kept = ChunkList(raw[_MAX_HEAD:])
        if raw[:_MAX_HEAD] != self._about(repository, entry) or not kept.fits(entry.size):
            return None
        with self._lock:
            self._remember(entry.blob, kept)
        return kept

    def _enqueue(self, blob: str) -> None:
        with self._lock:
            if blob in self._queued:
                return
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(blob)
                self._queued.add(blob)
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._compute, name="copy-hashes", daemon=True)
                self._worker.start()

    def _compute(self) -> None:
        while not self._closed.is_set():
            try:
                blob = self._queue.get(timeout=1.0)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._worker = None
                        return
                continue
            known = self._entry(blob)
            try:
                if known is not None and self._kept(*known) is None:
                    self._hash(*known)
            except OSError as error:
                log.warning("cannot compute the hashes of %s: %s", blob, error)
            finally:
                with self._lock:
                    self._queued.discard(blob)

    def _hash(self, repository: str, entry: FileEntry) -> None:
        path = self.store.layout.blob(repository, entry.blob)
        about = self._about(repository, entry)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            found, right = hash_chunks(file.fileno(), entry, self._closed)
        if self._closed.is_set() or about != self._about(repository, entry):
            return
        if not right:
            log.error("%s has changed on disk; it is removed, and fetched again if a ModelCache needs it", path)
            path.unlink(missing_ok=True)
            return
        self.keep(repository, entry, found)


def hash_chunks(descriptor: int, entry: FileEntry, stop: threading.Event) -> tuple[ChunkList, bool]:
    """Reads an open file once. Returns the hashes of its chunks, and whether the whole has its own."""
    whole, digests = hashing.start(entry), bytearray()
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    for index in range(chunks.count(entry.size)):
        part, at = hashlib.sha256(), index * CHUNK_BYTES
        end = at + chunks.length(index, entry.size)
        while at < end and not stop.is_set():
            count = os.preadv(descriptor, [view[: min(BLOCK_BYTES, end - at)]], at)
            if count == 0:
                return ChunkList(b""), False
            part.update(view[:count])
            whole.update(view[:count])
            at += count
        digests += part.digest()
    more = os.pread(descriptor, 1, entry.size)
    return ChunkList(bytes(digests)), not more and whole.hexdigest() == entry.blob


def _names(found: tuple[str, FileEntry]) -> tuple[str, str]:
    return found[0], found[1].blob
