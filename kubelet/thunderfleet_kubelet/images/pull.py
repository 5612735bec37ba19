"""One pull: from the name of an image to its unpacked files."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_kubelet.disk import file_system
from thunderfleet_kubelet.images import unpacking
from thunderfleet_kubelet.images.errors import PullError, Refused
from thunderfleet_kubelet.images.registry import manifest
from thunderfleet_kubelet.images.registry.clients import Clients
from thunderfleet_kubelet.images.registry.download import SPARE_BYTES
from thunderfleet_kubelet.images.registry.manifest import Json, Manifest
from thunderfleet_kubelet.images.registry.reference import Reference, is_allowed
from thunderfleet_kubelet.images.registry.repository import Registry
from thunderfleet_kubelet.images.registry.requests import Requests
from thunderfleet_kubelet.images.registry.secrets import Credential
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.images.store import PUBLIC, Store, Stored

LAYERS_AT_ONCE = 3
REPORT_SECONDS = 30.0
"""How often the progress of a long pull is reported."""
MIB = 1024**2


@dataclass(frozen=True)
class Pulled:
    """``fetched``: bytes of layers that came over the network."""

    stored: Stored
    fetched: int


class PullProgress:
    """Counts what has come in, and reports it now and then."""

    def __init__(self, total: int, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._report, self._clock = total, report, clock
        self._began = self._said = clock()
        self.fetched = 0

    def add(self, count: int) -> None:
        """Counts ``count`` bytes more."""
        self.fetched += count
        now = self._clock()
        if now - self._said >= REPORT_SECONDS:
            self._said = now
            rate = max(0, self.fetched) / (now - self._began) / MIB
            self._report(f"{max(0, self.fetched) // MIB} of {self._total // MIB} MiB, {rate:.1f} MiB/s")


class Pull:
    """Pulls ``reference`` into ``store``. ``make_room``: deletes unused images, and returns how many bytes that gave."""

    def __init__(
        self,
        clients: Clients,
        store: Store,
        settings: PullSettings,
        reference: Reference,
        make_room: Callable[[int], Awaitable[int]],
        report: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._clients, self._store, self._settings, self._reference = clients, store, settings, reference
        self._make_room, self._report = make_room, report

    async def run(self, credentials: Sequence[Credential]) -> Pulled:
        """Pulls with the first of ``credentials`` that is not refused, or without any. Raises PullError and OSError."""
        if not is_allowed(self._reference, self._settings.registries):
            raise PullError(
                f"registry {self._reference.registry} is not allowed: imagePulls.registries in the kubelet's configuration has "
                f"{', '.join(self._settings.registries) or 'none'}"
            )
        for credential in credentials[:-1]:
            # Nothing else differs between them: a broken network or a damaged layer would be requested once for each.
            with contextlib.suppress(Refused):
                return await self._with(credential)
        return await self._with(credentials[-1] if credentials else None)

    async def _with(self, credential: Credential | None) -> Pulled:
        requests = Requests(self._clients, self._reference, self._settings, credential)
        registry = Registry(requests, self._reference)
        mark = credential.mark if credential is not None else PUBLIC
        content, media, top = await registry.manifest(self._reference.target)
        known = self._store.by_digest(self._reference.name, top)
        fetched = 0
        if known is None:
            known, fetched = await self._image(registry, content, media, top)
        self._store.name(known, self._reference, top, mark)
        return Pulled(known, fetched)

    async def _image(self, registry: Registry, content: bytes, media: str, digest: str) -> tuple[Stored, int]:
        media, document = manifest.read(content, media)
        if media in manifest.INDEXES:
            chosen = manifest.choose(document, self._settings.platforms)
            content, media, digest = await registry.manifest(chosen.digest)
            media, document = manifest.read(content, media)
            if media not in manifest.MANIFESTS:
                raise PullError("the index lists another index")
        key = digest.partition(":")[2]
        there = self._store.images.get(key)
        if there is not None:
            return there, 0
        image = manifest.parse(document, self._settings.max_bytes)
        config, digests = manifest.check_config(await registry.small(image.config), len(image.layers), self._settings.platforms)
        with self._store.reserving(layer.digest for layer in image.layers):
            fetched = await self._fetch(registry, image)
            return await self._unpack(image, digests, config, key), fetched

    async def _fetch(self, registry: Registry, image: Manifest) -> int:
        downloads = self._store.downloads
        missing = {layer.digest: layer for layer in image.layers if not downloads.has(layer)}
        await self._need(sum(downloads.missing_bytes(registry, layer) for layer in missing.values()))
        progress, gate = PullProgress(image.size, self._report), asyncio.Semaphore(LAYERS_AT_ONCE)

        async def fetch(digest: str) -> None:
            async with gate:
                await downloads.fetch(registry, missing[digest], progress.add)

        try:
            async with asyncio.TaskGroup() as tasks:
                for digest in missing:
                    tasks.create_task(fetch(digest))
        except ExceptionGroup as group:
            # The first one says it; the others were cancelled, or say the same.
            raise group.exceptions[0] from None
        return progress.fetched

    async def _need(self, size: int) -> None:
        lacking = size + SPARE_BYTES - file_system(self._store.root).available
        if lacking <= 0 or await self._make_room(lacking) >= lacking:
            return
        available = file_system(self._store.root).available
        if available < size + SPARE_BYTES:
            raise PullError(
                f"the image needs {size // MIB} MiB more, and {max(0, available - SPARE_BYTES) // MIB} MiB are free for images "
                f"on the disk of {self._store.root}"
            )

    async def _unpack(self, image: Manifest, digests: Sequence[str], config: Json, key: str) -> Stored:
        files = [
            (self._store.downloads.file(layer), manifest.COMPRESSIONS[layer.media], digest)
            for layer, digest in zip(image.layers, digests, strict=True)
        ]
        async with self._store.staging() as folder:
            try:
                await unpacking.unpack(files, folder / "rootfs", self._settings.max_bytes, SPARE_BYTES)
            except PullError as error:
                # They were verified when they came, but a power failure can take what was not on the disk yet.
                damaged = await asyncio.to_thread(self._store.downloads.drop_damaged, image.layers)
                if damaged:
                    raise PullError(
                        f"{error}; damaged on the disk: {damaged} layers, which the next pull fetches again"
                    ) from None
                raise
            size = await asyncio.to_thread(_size, folder / "rootfs")
            return self._store.add(folder, key, size, config)


def _size(folder: Path) -> int:
    """Bytes on the disk below ``folder``; a file with several names counts once."""
    seen, total = set(), 0
    for here, _, names in os.walk(folder):
        for name in names:
            about = os.lstat(os.path.join(here, name))
            if (about.st_dev, about.st_ino) not in seen:
                seen.add((about.st_dev, about.st_ino))
                total += about.st_blocks * 512
    return total
