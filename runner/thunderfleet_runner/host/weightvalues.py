"""The values of a model's weights as one hash, read once for each copy.

Every preflight compares names, types and shapes of the tensors. Whether two Macs have the same values, or whether the values on
one Mac have changed, shows only when all bytes are read. This takes minutes for a large model, so it is done slowly while the
group serves, bypassing the cache of the file system, and not repeated until the files change.
"""

import fcntl
import hashlib
import json
import logging
import os
import threading
import time
from pathlib import Path

from thunderfleet_lib.modelstore import hashing
from thunderfleet_lib.modelstore.manifest import FileEntry

from thunderfleet_runner.host import weightfiles
from thunderfleet_runner.host.weightfiles import PATTERN

log = logging.getLogger(__name__)

BYTES_PER_SECOND = 200_000_000
BLOCK_BYTES = 8 << 20
_SHA256 = 64
_NO_CACHE = getattr(fcntl, "F_NOCACHE", None)


class Interrupted(Exception):
    """The process ends, or the files have changed meanwhile."""


def signature(folder: Path) -> str:
    """A signature that stays equal until the weight files are written. Raises OSError."""
    found = []
    for path in sorted(folder.glob(PATTERN)):
        about = path.stat()
        found.append([path.name, about.st_size, about.st_mtime_ns, about.st_ino])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def digest(folder: Path, end: threading.Event, rate: float = BYTES_PER_SECOND) -> tuple[str, str]:
    """The signature of the files and the hash of their bytes, read at ``rate`` bytes a second. Raises Interrupted, OSError.

    Ranks with parts of a model have other files. If each has the hash in its name in the model store, the hash is that
    of the manifest, which is equal on all Macs.
    """
    before = signature(folder)
    part = weightfiles.part_of(folder)
    state, intact = hashlib.sha256(), part is not None
    for path in sorted(folder.glob(PATTERN)):
        size = path.stat().st_size
        state.update(f"{path.name}\0{size}\0".encode())
        name = Path(os.path.realpath(path)).name
        whole = hashing.start(FileEntry(path.name, size, sha256=name if len(name) == _SHA256 else None))
        with path.open("rb", buffering=0) as file:
            if _NO_CACHE is not None:
                # A model as large as the memory would evict everything else from the cache.
                fcntl.fcntl(file.fileno(), _NO_CACHE, 1)
            began, done = time.monotonic(), 0
            while block := file.read(BLOCK_BYTES):
                (state if part is None else whole).update(block)
                done += len(block)
                if end.wait(max(0.0, done / rate - (time.monotonic() - began))):
                    raise Interrupted
        if part is not None:
            found = whole.hexdigest()
            state.update(found.encode())
            intact = intact and found == name
    if signature(folder) != before:
        raise Interrupted
    return before, part.manifest if part is not None and intact else state.hexdigest()


class Known:
    """What this pod has hashed, in a file, so that its next supervisor need not do it again."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, folder: Path) -> tuple[str, str] | None:
        """Signature and digest of the copy in ``folder``, if they are known."""
        try:
            saved = json.loads(self._file.read_text(encoding="utf-8"))
            found = str(saved["signature"]), str(saved["digest"])
            return found if found[0] == signature(folder) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, found: tuple[str, str]) -> None:
        """Replaces the file atomically."""
        try:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({"signature": found[0], "digest": found[1]}), encoding="utf-8")
            new.replace(self._file)
        except OSError as error:
            log.warning("cannot write %s: %s", self._file, error)
