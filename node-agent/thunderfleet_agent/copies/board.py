"""What a transfer still has to fetch, and what each connection fetches next. Pure: time and chance are arguments.

A connection takes one piece of work at a time: chunks of large files, whole small files, or a query. Chunks are taken in order,
but randomly within a window, so that Macs that fetch the same file can fetch chunks from each other. A worse way waits while a
better one makes progress. A chunk is accepted only if it has the hash in a list that another Mac gave. The file is used only
when its own hash is right. If all chunks are as listed and the file's hash is wrong, the list is wrong, and so the Mac that
gave it is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from thunderfleet_lib.modelstore.manifest import FileEntry

from thunderfleet_agent.copies import chunks, wire
from thunderfleet_agent.copies.chunks import CHUNK_BYTES, ChunkList
from thunderfleet_agent.copies.ways.paths import Way

# Large files that are fetched at once.
MAX_ACTIVE = wire.MAX_HAVE
WINDOW = 16
# Maximum bytes of one request for small files.
FILES_BYTES = CHUNK_BYTES
# How often another Mac that is fetching the file itself gets a request for which chunks it has.
ASK_SECONDS = 0.1
LATER_SECONDS = 1.0
# A worse way is used when nothing has arrived over the better ones for this time.
GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Fetch a chunk."""

    blob: str
    index: int
    digest: bytes
    length: int


@dataclass(frozen=True, slots=True)
class Files:
    """Fetch small files."""

    entries: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Request which chunks of these files the other Mac has."""

    blobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GetList:
    """Fetch the hashes of a file's chunks."""

    blob: str


Work = Chunk | Files | Ask | GetList


@dataclass
class Large:
    """A file of more than one chunk."""

    entry: FileEntry
    list: ChunkList | None = None
    giver: str = ""
    """The node that gave the list."""
    ready: bool = False
    """Whether chunks that were on disk before have been checked."""
    have: set[int] = field(default_factory=set)
    flying: dict[int, str] = field(default_factory=dict)
    asking_list: str | None = None
    wrong: dict[int, set[str]] = field(default_factory=dict)
    """Nodes that sent other bytes than the list says, by chunk."""
    cursor: int = 0

    @property
    def whole(self) -> bool:
        return len(self.have) == chunks.count(self.entry.size)

    @property
    def arrived_bytes(self) -> int:
        """Bytes of the chunks that are there."""
        last = chunks.count(self.entry.size) - 1
        short = CHUNK_BYTES - chunks.length(last, self.entry.size) if last in self.have else 0
        return len(self.have) * CHUNK_BYTES - short


@dataclass
class Source:
    """What is known of one connection."""

    node: str
    way: Way
    holds: dict[str, frozenset[int] | None] = field(default_factory=dict)
    """Chunks of each file; None for all of them."""
    asked: dict[str, float] = field(default_factory=dict)
    """When the source last got a request for a file of which it did not have all chunks, or for a small file that it did not
    have."""
    lists_at: dict[str, float] = field(default_factory=dict)
    busy: int = 0
    """Chunks and files on their way."""


class Board:
    """Not thread-safe: the transfer holds a lock."""

    def __init__(self, entries: Iterable[FileEntry], choose: Callable[[int], int], now: float) -> None:
        """``choose(n)`` gives a number from 0 to n - 1."""
        self._choose = choose
        self.large: dict[str, Large] = {}
        self.small: dict[str, FileEntry] = {}
        self._flying_small: dict[str, str] = {}
        self._sources: dict[str, Source] = {}
        self._connecting: dict[str, Way] = {}
        self._moved: dict[Way, float] = {way: now for way in Way}
        for entry in sorted(entries, key=lambda entry: (entry.size, entry.path)):
            if entry.size > CHUNK_BYTES:
                self.large[entry.blob] = Large(entry)
            else:
                self.small[entry.blob] = entry

    @property
    def done(self) -> bool:
        return not self.large and not self.small

    @property
    def active(self) -> tuple[Large, ...]:
        """The large files that are fetched now."""
        return tuple(self.large.values())[:MAX_ACTIVE]

    def expect(self, key: str, way: Way) -> None:
        """A connection is being made. Worse ways wait for it at the start, but not when it is retried."""
        self._connecting[key] = way

    def join(self, key: str, node: str, way: Way, now: float) -> None:
        """A new connection."""
        self._connecting.pop(key, None)
        self._sources[key] = Source(node, way)
        self._moved[way] = now

    def leave(self, key: str) -> None:
        """A connection ended, or could not be made. Other connections take over its unfinished work."""
        self._connecting.pop(key, None)
        self._sources.pop(key, None)
        for large in self.large.values():
            large.flying = {index: by for index, by in large.flying.items() if by != key}
            if large.asking_list == key:
                large.asking_list = None
        self._flying_small = {blob: by for blob, by in self._flying_small.items() if by != key}

    # --- the next piece of work ----------------------------------------------------------------------------------------

    def take(self, key: str, now: float) -> Work | None:
        """The next piece of work of a connection; None: call again soon."""
        source = self._sources[key]
        if self._yields(source, now):
            return None
        work = self._small_files(key, source, now) or self._list(key, source, now) or self._chunk(key, source)
        if work is not None:
            source.busy += not isinstance(work, GetList)
            self._moved[source.way] = now
            return work
        return self._question(source, now)

    def _yields(self, source: Source, now: float) -> bool:
        """Whether a better way makes progress."""
        known = {*(other.way for other in self._sources.values()), *self._connecting.values()}
        better = {way for way in known if way < source.way}
        busy = {other.way for other in self._sources.values() if other.busy}
        return any(way in busy or now - self._moved[way] < GRACE_SECONDS for way in better)

    def _small_files(self, key: str, source: Source, now: float) -> Files | None:
        chosen: list[FileEntry] = []
        total = 0
        for blob, entry in self.small.items():
            if blob in self._flying_small or now - source.asked.get(blob, -LATER_SECONDS) < LATER_SECONDS:
                continue
            if len(chosen) == wire.MAX_FILES or (chosen and total + entry.size > FILES_BYTES):
                break
            chosen.append(entry)
            total += entry.size
        self._flying_small.update((entry.blob, key) for entry in chosen)
        return Files(tuple(chosen)) if chosen else None

    def _list(self, key: str, source: Source, now: float) -> GetList | None:
        for large in self.active:
            blob = large.entry.blob
            waits = now - source.lists_at.get(blob, -LATER_SECONDS) < LATER_SECONDS
            if large.list is None and large.asking_list is None and blob in source.holds and not waits:
                large.asking_list = key
                return GetList(blob)
        return None

    def _chunk(self, key: str, source: Source) -> Chunk | None:
        for large in self.active:
            blob = large.entry.blob
            if large.list is None or not large.ready or blob not in source.holds:
                continue
            found = self._candidates(large, source.holds[blob])
            if found:
                index = found[self._choose(len(found))]
                large.flying[index] = key
                return Chunk(blob, index, large.list.digest(index), chunks.length(index, large.entry.size))
        return None

    def _candidates(self, large: Large, held: frozenset[int] | None) -> list[int]:
        total = chunks.count(large.entry.size)
        while large.cursor < total and large.cursor in large.have:
            large.cursor += 1
        found: list[int] = []
        for index in range(large.cursor, total) if held is None else sorted(held):
            if index not in large.have and index not in large.flying:
                found.append(index)
                if len(found) == WINDOW:
                    break
        return found

    def _question(self, source: Source, now: float) -> Ask | None:
        unknown = tuple(
            large.entry.blob
            for large in self.active
            if source.holds.get(large.entry.blob, frozenset()) is not None
            and now - source.asked.get(large.entry.blob, -ASK_SECONDS) >= ASK_SECONDS
        )
        for blob in unknown:
            source.asked[blob] = now
        return Ask(unknown) if unknown else None

    # --- results ---------------------------------------------------------------------------------------------

    def answered(self, key: str, held: Mapping[str, frozenset[int] | None]) -> None:
        """What a source has: chunks, or None for all of them. A file that is missing is not there."""
        source = self._sources.get(key)
        if source is not None:
            source.holds.update(held)

    def absent(self, key: str, blob: str, now: float) -> None:
        """A source does not have a small file, or lost a large one. It is not asked again for a while."""
        source = self._sources.get(key)
        if source is not None:
            source.asked[blob] = now
            source.holds.pop(blob, None)
        self._flying_small.pop(blob, None)

    def ended(self, key: str) -> None:
        """A connection's chunk or files have arrived, or will not arrive."""
        source = self._sources.get(key)
        if source is not None:
            source.busy = max(0, source.busy - 1)

    def listed(self, key: str, blob: str, found: ChunkList | None, now: float) -> bool:
        """Takes the list of hashes from a source (None if it has none yet). Returns whether the list is used."""
        large, source = self.large.get(blob), self._sources.get(key)
        if large is None or source is None:
            return False
        large.asking_list = None
        source.lists_at[blob] = now
        if found is None or large.list is not None or not found.fits(large.entry.size):
            return False
        large.list, large.giver, large.ready = found, source.node, False
        return True

    def found_on_disk(self, blob: str, have: Iterable[int]) -> None:
        """Chunks of the file that were there before, and have their hashes."""
        large = self.large.get(blob)
        if large is not None:
            large.have |= set(have)
            large.ready = True

    def expects(self, key: str, chunk: Chunk) -> bool:
        """Whether a chunk that a source sends now is still needed from it."""
        large = self.large.get(chunk.blob)
        if large is None or large.list is None or large.list.digest(chunk.index) != chunk.digest:
            return False
        return large.flying.get(chunk.index) == key

    def arrived(self, key: str, chunk: Chunk) -> None:
        """A chunk is on disk and has its hash."""
        large = self.large.get(chunk.blob)
        if large is not None:
            large.flying.pop(chunk.index, None)
            if large.list is not None and large.list.digest(chunk.index) == chunk.digest:
                large.have.add(chunk.index)

    def lost(self, key: str, chunk: Chunk, now: float) -> None:
        """A source no longer has a chunk that it had."""
        source, large = self._sources.get(key), self.large.get(chunk.blob)
        if large is not None:
            large.flying.pop(chunk.index, None)
        if source is not None:
            source.holds.pop(chunk.blob, None)
            source.asked[chunk.blob] = now

    def wrong(self, key: str, chunk: Chunk) -> tuple[str, bool]:
        """A chunk has other bytes than the list says. Returns the node to drop, and whether it gave a wrong list.

        If two nodes send other bytes, the list is wrong: it is dropped with the node that gave it.
        """
        large, source = self.large.get(chunk.blob), self._sources.get(key)
        node = source.node if source is not None else ""
        if large is None or large.list is None or large.list.digest(chunk.index) != chunk.digest:
            return "", False
        large.flying.pop(chunk.index, None)
        senders = large.wrong.setdefault(chunk.index, set())
        senders.add(node)
        if len(senders) < 2:
            return node, False
        giver = large.giver
        self.reset(chunk.blob)
        return giver, True

    def reset(self, blob: str) -> str:
        """Starts a file again without its list. Returns the node that gave the list."""
        large = self.large[blob]
        self.large[blob] = Large(large.entry)
        return large.giver

    def small_done(self, blob: str) -> None:
        self.small.pop(blob, None)
        self._flying_small.pop(blob, None)

    def large_done(self, blob: str) -> None:
        """The whole file has its hash."""
        self.large.pop(blob, None)

    @property
    def connected(self) -> bool:
        """Whether there is a source."""
        return bool(self._sources)

    def waits_for(self) -> str:
        """What the transfer waits for."""
        if not self._sources:
            return "no Mac that has the model can be reached"
        names = ", ".join(sorted({source.node for source in self._sources.values()}))
        unlisted = [large.entry.path for large in self.active if large.list is None]
        if unlisted:
            return f"no checked copy of {unlisted[0]} on {names} yet"
        path = next((large.entry.path for large in self.active), "") or next(iter(self.small.values())).path
        return f"none of the missing parts of {path} has arrived on {names} yet"
