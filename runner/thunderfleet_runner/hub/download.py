"""Downloads the files of a manifest into the staging folder, from where this Mac's agent takes them over.

A file gets its hash as its name when all of its bytes have arrived; until then it is ``HASH.incomplete``, which the next pod
continues. The agent checks the hash of everything. A staged file is removed when the store has it, so that a model needs its
size on disk once.
"""

import concurrent.futures
import contextlib
import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.modelstore import hashing
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.layout import INCOMPLETE
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest
from thunderfleet_lib.modelstore.store import Store

from thunderfleet_runner.hub.errors import HubFault
from thunderfleet_runner.hub.source import Source

log = logging.getLogger(__name__)

AT_ONCE = 4
RESERVE_BYTES = 512 * 2**20
"""Disk space that a download leaves free."""
POLL_SECONDS = 0.5
LEAST_POLL_SECONDS = 0.05
POLL_SHARE = 20
"""Checking the files takes at most a 20th of the time."""
TAKE_OVER_SECONDS = 900.0
"""How long the agent may take to take over the last files: hashing 100 GB takes minutes."""
MANIFEST = "manifest.json"
TRIES = 5
RETRY = Backoff(0.5, 8.0)


class _Stoppable:
    """A file whose next write fails once ``stop`` is set, which ends a transfer."""

    def __init__(self, file: BinaryIO, stop: threading.Event) -> None:
        self._file = file
        self._stop = stop
        self.seek, self.tell, self.truncate = file.seek, file.tell, file.truncate

    def write(self, data: bytes) -> int:
        """Writes, or raises OSError."""
        if self._stop.is_set():
            raise OSError(errno.ECANCELED, "another file failed")
        return self._file.write(data)


class Download:
    """One download. ``store`` is read only; ``staging`` is this download's own folder."""

    def __init__(
        self,
        hub: Source,
        manifest: Manifest,
        store: Store,
        staging: Path,
        free: Callable[[Path], int] | None = None,
        files: Collection[int] | None = None,
    ) -> None:
        """``files``: numbers of those to download; None for all. Raises InvalidManifest, which is a ValueError."""
        self._hub = hub
        self._whole = manifest
        self._manifest = manifest if files is None else manifest.narrowed(files)
        self._store = store
        self._staging = staging
        self._free = free or (lambda path: shutil.disk_usage(path).free)
        self._stop = threading.Event()

    def run(self) -> FetchResult:
        """Downloads what the store does not have, and waits until it has everything. Raises HubFault, OSError."""
        self.fetch()
        self._wait_for_agent()
        return FetchResult(
            reason=Reason.FETCHED,
            commit=self._manifest.commit,
            manifest=self._whole.digest,
            files=len(self._manifest.files),
            bytes=self._manifest.total_bytes,
            token_used=self._hub.token is not None,
        )

    def fetch(self, extra_bytes: int = 0) -> None:
        """Downloads what the store does not have. ``extra_bytes``: disk that is needed for something else then.

        Raises HubFault, OSError.
        """
        self._leave_manifest()
        self._clean()
        missing = [entry for entry in self._store.missing(self._manifest) if not (self._staging / entry.blob).exists()]
        self._check_disk(missing, extra_bytes)
        # Small files first: the agent can begin to take them over.
        missing.sort(key=lambda entry: entry.size)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [pool.submit(self._fetch, entry) for entry in missing]
            try:
                self._watch(jobs)
            except BaseException:
                self._stop.set()
                for job in jobs:
                    job.cancel()
                raise

    def _leave_manifest(self) -> None:
        # The agent runs as another user, and removes files that it has rejected or no longer needs.
        with contextlib.suppress(PermissionError):
            self._staging.chmod(0o777)
        fresh = self._staging / f"{MANIFEST}{INCOMPLETE}"
        fresh.write_bytes(self._whole.canonical)
        os.replace(fresh, self._staging / MANIFEST)

    def _clean(self) -> None:
        """Removes files of an earlier manifest."""
        names = self._manifest.blobs.keys()
        for path in self._staging.iterdir():
            if path.name != MANIFEST and path.name.removesuffix(INCOMPLETE) not in names:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _check_disk(self, missing: list[FileEntry], extra_bytes: int) -> None:
        arriving = [self._staging / (entry.blob + INCOMPLETE) for entry in missing]
        there = sum(path.stat().st_size for path in arriving if path.exists())
        needed = sum(entry.size for entry in missing) + extra_bytes + RESERVE_BYTES - there
        free = self._free(self._staging)
        if free < needed:
            raise HubFault(
                Reason.DISK_FULL,
                f"the disk has {free} bytes free, and the download needs {needed} bytes; free disk space on this Mac",
            )

    def _watch(self, jobs: list["concurrent.futures.Future[None]"]) -> None:
        left = set(jobs)
        while left:
            done, left = concurrent.futures.wait(left, POLL_SECONDS, concurrent.futures.FIRST_EXCEPTION)
            for job in done:
                job.result()
            self._drop_taken()
            self._flush()

    def _flush(self) -> None:
        """Flushes arrived data to disk, so that the agent does not wait for this when a file is complete."""
        for path in self._staging.glob(f"*{INCOMPLETE}"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                os.fsync(file.fileno())

    def _fetch(self, entry: FileEntry) -> None:
        if self._stop.is_set():
            return
        path = self._staging / (entry.blob + INCOMPLETE)
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) > entry.size:
                file.truncate(0)
            if entry.size:
                self._continue(entry, file, path)
        # The agent checks the hashes of all files; for small ones this is quick.
        if entry.sha256 is None:
            check(entry, path, self._hub.endpoint)
        os.chmod(path, 0o644)
        os.replace(path, self._staging / entry.blob)
        log.info("downloaded %s, %d bytes", entry.path, entry.size)

    def _continue(self, entry: FileEntry, file: BinaryIO, path: Path) -> None:
        """Downloads the rest of a file. Continues after a broken connection; fails after TRIES attempts without a new byte."""
        failures = 0
        while True:
            before = path.stat().st_size
            try:
                self._hub.fetch(self._manifest.commit, entry, _Stoppable(file, self._stop), path)  # type: ignore[arg-type]
                return
            except HubFault as fault:
                file.flush()
                if fault.reason != Reason.HUB_UNREACHABLE or self._stop.is_set():
                    raise
                failures = failures + 1 if path.stat().st_size == before else 0
                if failures >= TRIES:
                    raise
                log.warning("%s; continuing at byte %d", fault, path.stat().st_size)
                self._stop.wait(RETRY.seconds(failures + 1))

    def _drop_taken(self) -> None:
        """Removes staged files that the store has."""
        for entry in self._manifest.files:
            staged = self._staging / entry.blob
            if staged.exists() and self._store.has(self._manifest.repository, entry):
                staged.unlink(missing_ok=True)

    def _wait_for_agent(self) -> None:
        deadline = time.monotonic() + TAKE_OVER_SECONDS
        while missing := self._store.missing(self._manifest):
            began = time.monotonic()
            for entry in missing:
                self._check_taken(entry)
            if time.monotonic() > deadline:
                raise HubFault(
                    Reason.DOWNLOAD_FAILED,
                    f"the agent of this Mac has not taken {len(missing)} files over in {TAKE_OVER_SECONDS:.0f} s; see its log",
                )
            self._drop_taken()
            # Checked often for a few files, so that the end is noticed at once, and less often for thousands of files.
            self._stop.wait(min(POLL_SECONDS, max(LEAST_POLL_SECONDS, POLL_SHARE * (time.monotonic() - began))))
        self._drop_taken()

    def _check_taken(self, entry: FileEntry) -> None:
        """Raises HubFault if the agent has rejected a file: one that is neither here, nor arriving in the store, nor in it."""
        arriving = self._store.layout.incomplete(self._manifest.repository, entry.blob)
        on_the_way = (self._staging / entry.blob).exists() or arriving.exists()
        if not on_the_way and not self._store.has(self._manifest.repository, entry):
            raise HubFault(Reason.WRONG_BYTES, f"{self._hub.endpoint}: {entry.path} does not have the hash that it lists")


def check(entry: FileEntry, path: Path, endpoint: str) -> None:
    """Checks the hash of a file that came from ``endpoint``, and removes a wrong one. Raises HubFault, OSError."""
    try:
        with path.open("rb", buffering=0) as file:
            hashing.check(file, entry)
    except WrongBytes as error:
        path.unlink(missing_ok=True)
        raise HubFault(Reason.WRONG_BYTES, f"{endpoint}: {error}") from error
