"""Whether the file systems of pods and images are full, and how much a pod uses."""

import contextlib
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host

from thunderfleet_kubelet import pressure
from thunderfleet_kubelet.pressure import DiskState, FileSystem, Threshold

log = logging.getLogger(__name__)

USAGE_SECONDS = 60.0
SEARCH_SECONDS = 10.0
KIB = 1024
BLOCK = 512
_OWNER_AND_BLOCKS = ("stat", "-f" if sys.platform == "darwin" else "-c", "%u %b")
_HOST = Host((Path("/usr/bin"), Path("/bin")), environment={})


class DiskWatch:
    """Measures the file systems. ``transition``: seconds that pressure lasts after a threshold was last exceeded."""

    def __init__(
        self,
        root: Path,
        images: Iterable[Path],
        thresholds: tuple[Threshold, ...],
        transition: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._images = root, tuple(images)
        self._thresholds, self._transition, self._clock = thresholds, transition, clock
        self._since: dict[Threshold, float] = {}

    def look(self) -> DiskState:
        """The state now."""
        systems = self._read()
        if systems is None:
            return DiskState()
        found, now = pressure.met(self._thresholds, systems), self._clock()
        self._since |= dict.fromkeys((one.threshold for one in found), now)
        self._since = {one: at for one, at in self._since.items() if now - at < self._transition or at == now}
        return DiskState(found, bool(self._since), tuple(self._since))

    def _read(self) -> dict[str, FileSystem] | None:
        try:
            found = {"nodefs": file_system(self._root)}
            device = self._root.stat().st_dev
        except OSError as error:
            log.warning("%s: cannot read free space: %s", self._root, error.strerror)
            return None
        for folder in self._images:
            # A folder that is missing is reported by the pods that need it.
            with contextlib.suppress(OSError):
                if folder.stat().st_dev != device and not os.statvfs(folder).f_flag & os.ST_RDONLY:
                    found["imagefs"] = file_system(folder)
                    break
        return found


def file_system(path: Path) -> FileSystem:
    """The file system of ``path``. Raises OSError."""
    about = os.statvfs(path)
    return FileSystem(about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize, about.f_favail, about.f_files)


async def used(paths: Iterable[Path], seconds: float = USAGE_SECONDS) -> Mapping[Path, int]:
    """Bytes on disk below each path that exists; links are not followed. Raises OSError; after ``seconds``, TimeoutError.

    Runs ``du``, which, unlike os.walk, needs neither a file descriptor nor a stack frame for each level of a deep folder.
    """
    present = [path for path in paths if path.exists()]
    if not present:
        return {}
    said = await _HOST.run(["du", "-s", "-k", "-x", *map(str, present)], seconds)
    # It fails if something was deleted meanwhile, and has counted the rest.
    if isinstance(said, Failure) and said.kind is not FailureKind.FAILED:
        kind = TimeoutError if said.kind is FailureKind.TIMED_OUT else OSError
        raise kind(f"du {said.message} ({present[0]})")
    return parse_du(said.text)


def parse_du(output: str) -> dict[Path, int]:
    """The output of ``du -s -k``: bytes by path."""
    rows = [line.split("\t", 1) for line in output.splitlines() if "\t" in line]
    return {Path(path): int(size) * KIB for size, path in rows if size.strip().isdigit()}


async def owned(users: Collection[int], folders: Iterable[str], seconds: float = SEARCH_SECONDS) -> Counter[int]:
    """Bytes on disk of each user's files in these folders, in which every user can create some. Nothing if that takes longer.

    Runs ``find`` for the reason for which ``used`` runs ``du``.
    """
    existing = _folders(folders)
    if not existing or not users:
        return Counter()
    wanted = [word for user in sorted(users) for word in ("-o", "-uid", str(user))][1:]
    command = ["find", *existing, "-xdev", "-type", "f", "(", *wanted, ")", "-exec", *_OWNER_AND_BLOCKS, "{}", "+"]
    said = await _HOST.run(command, seconds)
    # It fails if something was deleted meanwhile, and has counted the rest.
    if isinstance(said, Failure) and said.kind is not FailureKind.FAILED:
        log.warning("cannot measure the files of pods in %s: find %s", existing[0], said.message)
        return Counter()
    found: Counter[int] = Counter()
    for row in said.text.splitlines():
        user, _, blocks = row.partition(" ")
        if user.isdigit() and blocks.isdigit():
            found[int(user)] += int(blocks) * BLOCK
    return found


def _folders(names: Iterable[str]) -> list[str]:
    return [name for name in names if os.path.isdir(name)]
