"""Blobs as files: bounded, resumed where they broke off, and verified before they get their name."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Protocol
from weakref import WeakValueDictionary

import aiohttp
from thunderfleet_lib.backoff import Backoff

from thunderfleet_kubelet.disk import file_system
from thunderfleet_kubelet.images.errors import NotContinued, PullError, Transient
from thunderfleet_kubelet.images.registry.manifest import Blob
from thunderfleet_kubelet.images.registry.repository import Registry
from thunderfleet_kubelet.images.registry.requests import chunks

RETRY = Backoff(0.5, 8.0, jitter=0.3)
FRUITLESS = 4
"""Maximum number of consecutive attempts to continue a blob that receive no byte."""
MAX_TRIES = 50
WINDOW_SECONDS = 30.0
LEAST_RATE = 16 * 1024
"""A registry that sends fewer bytes per second than this for a whole window counts as silent."""
READ = 1024**2
ROOM_STEP = 4 * 1024**2
"""Number of bytes after which the free space is checked."""
SPARE_BYTES = 256 * 1024**2
"""Free space that pulls leave."""

ProgressCallback = Callable[[int], None]
"""Called with the bytes that have come in since the last call; negative when some of them are dropped."""


class Hash(Protocol):
    """What hashlib returns."""

    def update(self, data: bytes, /) -> None:
        """Adds data."""

    def hexdigest(self) -> str:
        """The digest in hexadecimal digits."""


class Downloads:
    """Fetches blobs into ``blobs``, by way of ``partial``; both are folders of one file system.

    What has come in belongs to its registry until it is verified: one that sends little, or other bytes, must not delay or
    damage what another one sends.
    """

    def __init__(self, blobs: Path, partial: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._blobs, self._partial, self._clock = blobs, partial, clock
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By registry and digest."""

    def file(self, blob: Blob) -> Path:
        """Where the blob is or will be."""
        return self._blobs / blob.digest.partition(":")[2]

    def has(self, blob: Blob) -> bool:
        """Whether the blob is there. It was verified when it got its name."""
        try:
            return self.file(blob).stat().st_size == blob.size
        except OSError:
            return False

    def missing_bytes(self, registry: Registry, blob: Blob) -> int:
        """How many bytes of the blob an earlier pull has not left here."""
        return 0 if self.has(blob) else max(0, blob.size - _size(self._part(registry, blob)))

    def drop_damaged(self, blobs: Iterable[Blob]) -> int:
        """Deletes files whose content is no longer that of their digest. Returns how many. Reads them whole. Raises OSError."""
        found = 0
        for blob in blobs:
            file = self.file(blob)
            if file.exists() and _hash(file).hexdigest() != file.name:
                file.unlink(missing_ok=True)
                found += 1
        return found

    def _part(self, registry: Registry, blob: Blob) -> Path:
        # ``digest_of`` takes the digest from its name.
        return self._partial / f"{blob.digest.partition(':')[2]}.{hashlib.sha256(registry.origin.encode()).hexdigest()[:16]}"

    @property
    def busy(self) -> set[str]:
        """The digests of blobs that are being fetched."""
        # A traceback may keep a lock referenced that is no longer in use.
        return {digest for (_, digest), lock in self._locks.items() if lock.locked()}

    async def fetch(self, registry: Registry, blob: Blob, progress: ProgressCallback = lambda count: None) -> Path:
        """The file of the blob, which is fetched unless it is there. Raises PullError and OSError."""
        lock = self._locks.setdefault((registry.origin, blob.digest), asyncio.Lock())
        async with lock:
            if not self.has(blob):
                await self._fetch(registry, blob, progress)
        return self.file(blob)

    async def _fetch(self, registry: Registry, blob: Blob, progress: ProgressCallback) -> None:
        part = self._part(registry, blob)
        fruitless = 0
        for tries in range(1, MAX_TRIES + 1):
            before = _size(part)
            try:
                await self._continue(registry, blob, part, progress)
                return
            except Transient as error:
                fruitless = 0 if _size(part) > before else fruitless + 1
                if fruitless >= FRUITLESS or tries == MAX_TRIES:
                    raise PullError(str(error)) from None
                await asyncio.sleep(RETRY.jittered(fruitless or 1))

    async def _continue(self, registry: Registry, blob: Blob, part: Path, progress: ProgressCallback) -> None:
        offset = _size(part)
        if offset > blob.size:
            os.unlink(part)
            offset = 0
        if offset < blob.size or not offset:
            try:
                digest = await self._receive(registry, blob, part, offset, progress)
            except NotContinued:
                os.unlink(part)
                progress(-offset)
                raise
        else:
            digest = await asyncio.to_thread(_hash, part)
        if digest.hexdigest() != blob.digest.partition(":")[2]:
            os.unlink(part)
            progress(-blob.size)
            raise PullError(f"the registry sent content that does not have the digest {blob.digest}")
        os.replace(part, self.file(blob))

    async def _receive(self, registry: Registry, blob: Blob, part: Path, offset: int, progress: ProgressCallback) -> Hash:
        # Opened without the event loop's help: the writes go to the page cache.
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as stream:
            digest = await asyncio.to_thread(_hash, part) if offset else hashlib.sha256()
            async with registry.part(blob, offset) as answer:
                if answer.offset != offset:
                    progress(-offset)
                    digest, offset = hashlib.sha256(), 0
                stream.truncate(offset)
                stream.seek(offset)
                await self._write(answer.response, stream, digest, blob, offset, progress)
        return digest

    async def _write(
        self,
        response: aiohttp.ClientResponse,
        stream: BinaryIO,
        digest: Hash,
        blob: Blob,
        offset: int,
        progress: ProgressCallback,
    ) -> None:
        began, counted, size = self._clock(), 0, offset
        unchecked = ROOM_STEP
        async with _Writer(stream, digest) as writer:
            async for chunk in chunks(response):
                size += len(chunk)
                if size > blob.size:
                    raise PullError(f"the registry sends more than the {blob.size} bytes of {blob.digest}")
                unchecked += len(chunk)
                if unchecked >= ROOM_STEP:
                    # There was room when the pull began, but several pulls, and pods, may have found the same room.
                    _check_room(self._partial)
                    unchecked = 0
                await writer.put(chunk)
                progress(len(chunk))
                counted += len(chunk)
                if self._clock() - began > WINDOW_SECONDS:
                    if counted < LEAST_RATE * WINDOW_SECONDS:
                        raise Transient(f"the registry sends less than {LEAST_RATE} bytes a second")
                    began, counted = self._clock(), 0
        if size < blob.size:
            raise Transient(f"the connection broke off after {size} of {blob.size} bytes")


class _Writer:
    """Writes and hashes in a thread while the next bytes come in: at most one block is being written, and one filled."""

    def __init__(self, stream: BinaryIO, digest: Hash) -> None:
        self._stream, self._digest = stream, digest
        self._parts: list[bytes] = []
        self._held = 0
        self._writing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "_Writer":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        """Writes what is left, also after an error: what has come in is continued from."""
        await self._flush()
        await self._finished()

    async def put(self, chunk: bytes) -> None:
        """Takes a chunk. Raises OSError."""
        self._parts.append(chunk)
        self._held += len(chunk)
        if self._held >= READ:
            await self._flush()

    async def _flush(self) -> None:
        await self._finished()
        block, self._parts, self._held = b"".join(self._parts), [], 0
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, block))

    async def _finished(self) -> None:
        if self._writing is not None:
            # A pull that is cancelled waits for the thread, which has the file.
            await asyncio.shield(self._writing)
            self._writing = None

    def _write(self, block: bytes) -> None:
        self._stream.write(block)
        self._digest.update(block)


def _check_room(folder: Path) -> None:
    if file_system(folder).available < SPARE_BYTES + ROOM_STEP:
        raise PullError(f"less than {SPARE_BYTES // 1024**2} MiB would stay free on the disk of {folder.parent}")


def digest_of(file: Path) -> str:
    """The digest of a file in ``blobs`` or ``partial``, from its name."""
    return f"sha256:{file.name.partition('.')[0]}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _hash(file: Path) -> Hash:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(READ):
            digest.update(block)
    return digest
