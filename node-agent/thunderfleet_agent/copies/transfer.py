"""Fetches one model from other Macs, over several connections at once. Blocking: ``run`` has a thread of its own.

One thread per connection receives, hashes and writes. One more follows the chunks of each large file in order and computes the
hash of the whole, from what is on disk. Chunks may arrive in any order and from any source. What is on disk from before is used
as far as its chunks have their hashes. A file gets its name when the whole has its hash, and the model's folder appears when
every file has its name.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.modelstore import hashing
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest
from thunderfleet_lib.modelstore.store import Busy, Store

from thunderfleet_agent.copies import arriving, chunks, wire
from thunderfleet_agent.copies.arriving import OpenFile
from thunderfleet_agent.copies.board import Ask, Board, Chunk, Files, GetList, Work
from thunderfleet_agent.copies.chunks import CHUNK_BYTES, ChunkList
from thunderfleet_agent.copies.failures import Failures
from thunderfleet_agent.copies.rates import From, Rates, seconds_left
from thunderfleet_agent.copies.shelf import Partial, Shelf
from thunderfleet_agent.copies.ways.connection import BLOCK_BYTES, Arrived, Connection, PeerFailed, connect
from thunderfleet_agent.copies.ways.pace import Pace
from thunderfleet_agent.copies.ways.paths import Path, Way
from thunderfleet_agent.copies.wire import Op, Request

log = logging.getLogger(__name__)

# Requests that a connection has open: the next chunk is on its way while one is written.
DEPTH = 2
# A thread without work checks again after this time.
IDLE_SECONDS = 0.1
# Interval of the search for new ways.
TURN_SECONDS = 0.5
JOIN_SECONDS = 30.0
# Bytes are counted, and the rate is limited, in steps of this size.
STEP_BYTES = 64 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


class TransferFailed(Exception):
    """The model cannot be fetched now. ``reason`` is one of the API's."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """A moment of a transfer. ``main``: where most bytes come from now, ``most``: where they came from; None if none do.

    ``alone``: no Mac is connected, and those that got requests failed or sent wrong bytes.
    """

    done: int
    rate: int
    left: int | None
    main: From | None
    waits_for: str
    checking: bool
    most: From | None = None
    alone: bool = False


@dataclass(frozen=True)
class Network:
    """How a transfer reaches other Macs. ``ways`` is called again and again; ``received`` and ``wrong`` count."""

    node: str
    context: ssl.SSLContext
    ways: Callable[[], tuple[Path, ...]]
    paces: Mapping[Way, Pace]
    received: Callable[[Path, int], None] = lambda way, count: None
    wrong: Callable[[str], None] = lambda node: None


class Transfer:
    """One model. Made once; ``run`` is called once."""

    def __init__(self, store: Store, shelf: Shelf, manifest: Manifest, network: Network, *, publish: bool = True) -> None:
        """``publish``: make the model's folder appear at the end."""
        self._publish = publish
        self._store = store
        self._shelf = shelf
        self._manifest = manifest
        self._network = network
        self._lock = threading.Condition()
        self._stop = threading.Event()
        self._over = False
        self._failure: TransferFailed | None = None
        now = time.monotonic()
        self._board = Board((), lambda n: 0, now)
        self._rates = Rates(now)
        self._files: dict[str, OpenFile] = {}
        self._threads: dict[str, threading.Thread] = {}
        # Replaced, never changed.
        self._kinds: Mapping[str, Way] = {}
        self._connections: dict[str, Connection] = {}
        self._failures = Failures()
        self._started = False

    def stop(self) -> None:
        """Ends the transfer soon. What has arrived stays for the next one."""
        self._stop.set()
        with self._lock:
            connections = list(self._connections.values())
            self._lock.notify_all()
        for connection in connections:
            connection.interrupt()

    def progress(self) -> TransferProgress:
        """Where the transfer is now."""
        now = time.monotonic()
        with self._lock:
            left = self._missing_bytes() if self._started else self._manifest.total_bytes
            rate, main = self._rates.bytes_per_second(now), self._rates.main(now)
            checking = any(large.whole for large in self._board.active) and left == 0
            waits = "" if rate or checking else self._waits_for()
            most = self._rates.most()
            alone = bool(waits) and not self._board.connected and bool(self._failures.texts())
        done = self._manifest.total_bytes - left
        return TransferProgress(done, rate, seconds_left(left, rate), main, waits, checking, most, alone)

    def run(self) -> bool:
        """Fetches all files and makes the model's folder appear. Returns False if it was stopped.

        Raises TransferFailed, OSError (which Busy is).
        """
        self._store.prepare_repository(self._manifest.repository)
        missing = self._link_known(self._store.missing(self._manifest))
        self._check_room(missing)
        with self._lock:
            self._board = Board(missing, random.randrange, time.monotonic())
            self._started = True
        checker = threading.Thread(target=self._guard, args=(self._check_files,), name="copy-check", daemon=True)
        checker.start()
        try:
            while not self._ended():
                self._start_connections()
                with self._lock:
                    if not (self._board.done or self._failure):
                        self._lock.wait(TURN_SECONDS)
        finally:
            self._finish(checker)
        if self._failure is not None:
            raise self._failure
        if not self._board.done:
            return False
        if self._publish:
            self._store.publish(self._manifest)
        self._shelf.refresh()
        return True

    def _ended(self) -> bool:
        with self._lock:
            return self._stop.is_set() or self._failure is not None or self._board.done

    def _finish(self, checker: threading.Thread) -> None:
        with self._lock:
            self._over = True
            connections = list(self._connections.values())
            self._lock.notify_all()
        for connection in connections:
            connection.interrupt()
        for thread in (checker, *self._threads.values()):
            # A thread that is still connecting uses no files, and ends when the transfer is over.
            thread.join(JOIN_SECONDS)
        for blob in list(self._files):
            self._close_file(blob)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _FULL:
            text = f"the disk is full: {self._short_of()} more are needed in {self._store.root}; free space on this Mac"
            failure = TransferFailed(Reason.DISK_FULL, text)
        elif isinstance(error, TransferFailed):
            failure = error
        else:
            failure = TransferFailed(Reason.COPY_FAILED, f"cannot write to {self._store.root}: {error}")
        with self._lock:
            self._failure = self._failure or failure
            self._lock.notify_all()

    def _guard(self, work: Callable[[], None]) -> None:
        """Runs a thread's work; an unexpected error ends the transfer."""
        try:
            work()
        except Exception as error:
            if not isinstance(error, OSError | TransferFailed):
                log.exception("a copy failed")
            self._fail(error)

    # --- before the first byte -----------------------------------------------------------------------------------------

    def _link_known(self, missing: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
        """Files that another repository of the store has need no copy."""
        left: list[FileEntry] = []
        for entry in missing:
            held = self._shelf.held(entry.blob)
            if held is None or held.have is not None or held.size != entry.size:
                left.append(entry)
                continue
            try:
                with self._store.writer(self._manifest.repository, entry) as writer:
                    writer.discard()
                    os.link(held.path, writer.path, follow_symlinks=False)
                    writer.keep()
            except FileNotFoundError:
                left.append(entry)
        return tuple(left)

    def _missing_bytes(self) -> int:
        large = sum(one.entry.size - one.arrived_bytes for one in self._board.large.values())
        return large + sum(entry.size for entry in self._board.small.values())

    def _check_room(self, missing: tuple[FileEntry, ...]) -> None:
        wanted = sum(entry.size for entry in missing)
        arrived = self._store.arrived_bytes(self._manifest) - (self._manifest.total_bytes - wanted)
        free = self._store.free_bytes()
        if wanted - max(0, arrived) > free:
            text = (
                f"{(wanted - max(0, arrived)) / 1e9:.1f} GB more are needed in {self._store.root}, which has {free / 1e9:.1f} "
                "GB free; free space on this Mac, or delete a ModelCache"
            )
            raise TransferFailed(Reason.DISK_FULL, text)

    def _short_of(self) -> str:
        with self._lock:
            return f"{self._missing_bytes() / 1e9:.1f} GB"

    # --- connections ---------------------------------------------------------------------------------------------------

    def _start_connections(self) -> None:
        now = time.monotonic()
        ways = self._network.ways()
        self._kinds = {way.key: way.way for way in ways}
        for way in ways:
            with self._lock:
                running = self._threads.get(way.key)
                usable = self._failures.usable(way.key, way.to.node, now)
                if not usable or (running is not None and running.is_alive()):
                    continue
                thread = threading.Thread(target=self._guard, args=(lambda way=way: self._work(way),), daemon=True)
                thread.name = "copy-fetch"
                self._threads[way.key] = thread
                self._board.expect(way.key, way.way)
            thread.start()

    def _work(self, way: Path) -> None:
        """The thread of one connection."""
        try:
            connection = connect(way, self._network.node, self._network.context)
            try:
                with self._lock:
                    self._connections[way.key] = connection
                    self._board.join(way.key, way.to.node, way.way, time.monotonic())
                if not self._stop.is_set():
                    self._fetch(way, connection)
            finally:
                connection.close()
        except PeerFailed as error:
            self._failed(way, str(error))
        finally:
            with self._lock:
                self._connections.pop(way.key, None)
                self._board.leave(way.key)
                self._lock.notify_all()

    def _failed(self, way: Path, why: str) -> None:
        if self._quits(way):
            return
        with self._lock:
            first = self._failures.failed(way.key, why, time.monotonic())
        (log.warning if first else log.debug)("copy of %s: %s", self._manifest.repository, why)

    def _changed(self, way: Path) -> bool:
        """Whether a group started or stopped using this cable, so that another limit and another order apply."""
        return self._kinds.get(way.key, way.way) is not way.way

    def _quits(self, way: Path) -> bool:
        return self._stop.is_set() or self._over or self._failure is not None or self._failures.is_dropped(way.to.node)

    def _fetch(self, way: Path, connection: Connection) -> None:
        block, flying, arrived = memoryview(bytearray(BLOCK_BYTES)), deque[Chunk](), self._counter(way)
        next_: Work | None = None
        while not self._quits(way):
            if next_ is None and len(flying) < DEPTH:
                with self._lock:
                    if self._board.done or (self._changed(way) and not flying):
                        return
                    next_ = None if self._changed(way) else self._board.take(way.key, time.monotonic())
            if isinstance(next_, Chunk):
                connection.send(Request(Op.CHUNK, (next_.blob,), next_.index))
                flying.append(next_)
                next_ = None
            elif flying:
                self._receive_chunk(way, connection, flying.popleft(), block, arrived)
            elif next_ is not None:
                self._do(way, connection, next_, arrived)
                next_ = None
            else:
                with self._lock:
                    self._lock.wait(IDLE_SECONDS)
            if len(flying) == DEPTH:
                self._receive_chunk(way, connection, flying.popleft(), block, arrived)

    def _do(self, way: Path, connection: Connection, work: Work, arrived: Arrived) -> None:
        if isinstance(work, Ask):
            answer = connection.ask(Request(Op.HAVE, work.blobs))
            with self._lock:
                self._board.answered(way.key, dict(self._held(way, answer, work)))
        elif isinstance(work, GetList):
            self._get_list(way, connection, work)
        elif isinstance(work, Files):
            self._get_files(way, connection, work, arrived)

    def _held(self, way: Path, answer: wire.Answer, work: Ask) -> Iterator[tuple[str, frozenset[int] | None]]:
        for blob in work.blobs:
            text, large = answer.held.get(blob), self._board.large.get(blob)
            if text is not None and large is not None:
                try:
                    yield blob, None if text == wire.COMPLETE else chunks.unpack(text, large.entry.size)
                except ValueError as error:
                    raise PeerFailed(f"{way}: {error}") from None

    def _counter(self, way: Path) -> Callable[[int], None]:
        """Counts bytes and limits the rate."""
        pace, waiting = self._network.paces.get(way.way), 0
        source = From(way.to.node, way.link)

        def arrived(count: int) -> None:
            nonlocal waiting
            waiting += count
            if waiting < STEP_BYTES:
                return
            now = time.monotonic()
            with self._lock:
                self._rates.add(source, waiting, now)
                delay = pace.delay(waiting, now) if pace is not None else 0.0
            self._network.received(way, waiting)
            waiting = 0
            if delay > 0:
                self._stop.wait(min(delay, 5.0))

        return arrived

    # --- large files ---------------------------------------------------------------------------------------------------

    def _get_list(self, way: Path, connection: Connection, work: GetList) -> None:
        large = self._board.large.get(work.blob)
        if large is None:
            return
        body, answer = connection.fetch(Request(Op.LIST, (work.blob,)), chunks.count(large.entry.size) * chunks.DIGEST_BYTES)
        found = None if answer.error else ChunkList(body)
        if found is not None and not found.fits(large.entry.size):
            raise PeerFailed(f"{way}: sent a list of chunks with a wrong length for {large.entry.path}")
        with self._lock:
            if not self._board.listed(way.key, work.blob, found, time.monotonic()):
                return
            self._failures.worked(way.key)
        self._open_file(work.blob)

    def _open_file(self, blob: str) -> None:
        """Opens the file whose list has arrived, and checks what is on disk from before."""
        with self._lock:
            large = self._board.large.get(blob)
            if large is None or large.list is None:
                return
            opened = self._files.get(blob)
        if opened is None:
            opened = arriving.open_file(self._store, self._manifest.repository, large.entry)
            with self._lock:
                self._files[blob] = opened
        opened.restart()
        have = arriving.intact(opened.file.fileno(), large.entry, large.list, self._quits_any)
        with self._lock:
            self._board.found_on_disk(blob, have)
            self._shelf.begin(Partial(large.entry, opened.writer.path, large.list, large.giver, large.have))
            self._lock.notify_all()

    def _quits_any(self) -> bool:
        return self._stop.is_set() or self._over or self._failure is not None

    def _receive_chunk(self, way: Path, connection: Connection, chunk: Chunk, block: memoryview, arrived: Arrived) -> None:
        answer = connection.receive()
        if answer.error:
            with self._lock:
                self._board.ended(way.key)
                self._board.lost(way.key, chunk, time.monotonic())
            return
        if answer.size != chunk.length:
            raise PeerFailed(f"{way}: sent {answer.size} bytes for a chunk of {chunk.length}")
        with self._lock:
            # The file may have been started again since the request.
            opened = self._files.get(chunk.blob) if self._board.expects(way.key, chunk) else None
            if opened is not None:
                opened.users += 1
        descriptor = -1 if opened is None else opened.file.fileno()
        try:
            at = chunk.index * CHUNK_BYTES
            digest = connection.chunk_into(descriptor, at, chunk.length, block, arrived, keep=opened is not None)
        finally:
            with self._lock:
                if opened is not None:
                    opened.users -= 1
                self._board.ended(way.key)
        if opened is not None:
            self._take_chunk(way, chunk, digest == chunk.digest, opened.writer.entry.path)

    def _take_chunk(self, way: Path, chunk: Chunk, right: bool, path: str) -> None:
        with self._lock:
            self._lock.notify_all()
            if right:
                self._board.arrived(way.key, chunk)
                self._failures.worked(way.key)
                return
            node, listed = self._board.wrong(way.key, chunk)
            if listed:
                self._shelf.end(chunk.blob)
        if node:
            what = "sent a wrong list of chunks" if listed else f"sent wrong bytes for chunk {chunk.index}"
            self._drop(node, f"{node} {what} of {path}")

    def _drop(self, node: str, why: str) -> None:
        """Stops fetching from a Mac that sent wrong bytes, for a limited time."""
        log.error("copy of %s: %s; nothing is copied from that Mac for a while", self._manifest.repository, why)
        self._network.wrong(node)
        with self._lock:
            self._failures.drop(node, why, time.monotonic())
            doomed = [connection for connection in self._connections.values() if connection.way.to.node == node]
            self._lock.notify_all()
        for connection in doomed:
            connection.interrupt()

    def _close_file(self, blob: str) -> None:
        self._shelf.end(blob)
        opened = self._files.pop(blob, None)
        if opened is not None:
            opened.close.close()

    # --- the hash of the whole -----------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        """The thread that follows the large files from their start."""
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while not self._quits_any() and not self._board.done:
            with self._lock:
                found = self._next_to_hash()
                if found is None:
                    self._lock.wait(IDLE_SECONDS)
                    continue
            blob, opened, index = found
            large = self._board.large[blob]
            if index < chunks.count(large.entry.size):
                opened.hash_chunk(index, buffer)
            else:
                self._finish_file(blob, opened)

    def _next_to_hash(self) -> tuple[str, OpenFile, int] | None:
        for large in self._board.active:
            opened, total = self._files.get(large.entry.blob), chunks.count(large.entry.size)
            if opened is None or not large.ready:
                continue
            if opened.hashed < total and opened.hashed in large.have:
                return large.entry.blob, opened, opened.hashed
            if opened.hashed == total and large.whole and opened.users == 0:
                return large.entry.blob, opened, total
        return None

    def _finish_file(self, blob: str, opened: OpenFile) -> None:
        large = self._board.large[blob]
        list_, right = large.list, opened.hasher.hexdigest() == large.entry.blob
        if right:
            opened.writer.keep()
        else:
            opened.writer.discard()
        with self._lock:
            self._close_file(blob)
            giver = "" if right else self._board.reset(blob)
            if right:
                self._board.large_done(blob)
            self._lock.notify_all()
        if right and list_ is not None:
            self._shelf.keep(self._manifest.repository, large.entry, list_)
        elif giver:
            self._drop(
                giver,
                f"{large.entry.path} does not have its hash, although all of its chunks have the hashes that {giver} listed",
            )

    # --- small files ---------------------------------------------------------------------------------------------------

    def _get_files(self, way: Path, connection: Connection, work: Files, arrived: Arrived) -> None:
        connection.send(Request(Op.FILES, tuple(entry.blob for entry in work.entries)))
        answer = connection.receive()
        sizes = answer.sizes
        wanted = {entry.blob: size for entry, size in zip(work.entries, sizes, strict=False) if size >= 0}
        if len(sizes) != len(work.entries) or answer.size != sum(wanted.values()) or answer.size > CHUNK_BYTES:
            raise PeerFailed(f"{way}: answered with sizes that differ from those of the files")
        try:
            for entry in work.entries:
                if entry.blob not in wanted:
                    with self._lock:
                        self._board.absent(way.key, entry.blob, time.monotonic())
                    continue
                body = bytearray(wanted[entry.blob])
                connection.read_into(memoryview(body), arrived)
                if not self._keep_small(entry, body):
                    self._drop(way.to.node, f"{way.to.node} sent wrong bytes for {entry.path}")
                    return
        finally:
            with self._lock:
                self._board.ended(way.key)
                self._lock.notify_all()

    def _keep_small(self, entry: FileEntry, body: bytearray) -> bool:
        """Returns False if the bytes do not have the hash."""
        hasher = hashing.start(entry)
        hasher.update(body)
        if len(body) != entry.size or hasher.hexdigest() != entry.blob:
            return False
        if not self._store.has(self._manifest.repository, entry):
            with self._store.writer(self._manifest.repository, entry) as writer:
                with writer.open() as file:
                    file.truncate(0)
                    view = memoryview(body)
                    while view:
                        view = view[file.write(view) :]
                writer.keep(sync_folder=False)
        with self._lock:
            self._board.small_done(entry.blob)
        return True

    def _waits_for(self) -> str:
        """Called with the lock held."""
        return "; ".join([self._board.waits_for(), *self._failures.texts()][:4])


__all__ = ["Busy", "Network", "Transfer", "TransferFailed", "TransferProgress"]
