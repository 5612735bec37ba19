"""The file of a backup: its format, atomic writing, and reading within size limits.

Lines of JSON, compressed: the first describes the file, the last lists the contents and has the hash of everything before.
Each line between them has a part of one of the contents, whose names are known. So nothing in the file names a path, and there
are no links, owners or modes.
"""

import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from thunderfleet_controlplane.daemons.layout import SHARED
from thunderfleet_controlplane.install.errors import InstallError

FORMAT, VERSION = "thunderfleet backup", 1
SNAPSHOT = "etcd.snapshot"
KUBELET = "kubelet.yaml"
CONTROL_PLANE = (*SHARED, "init.json")
"""Files below ``HostLayout.control_plane``. All other certificates are issued again."""
REQUIRED = (*CONTROL_PLANE, SNAPSHOT)
KNOWN = (*REQUIRED, KUBELET)

PART_BYTES = 1 << 20
LINE_BYTES = 4 << 20
"""Maximum bytes of a line: a part in base64, and its JSON."""
FILE_BYTES = 1 << 20
SNAPSHOT_BYTES = 16 << 30
"""etcd's limit is 2 GiB unless it is raised; more than 8 GiB are not recommended."""
MODE = 0o600
ANOTHER = "copy it again, or use another backup"


@dataclass(frozen=True)
class About:
    """The first line of a backup. ``version``: of the Thunderfleet that wrote it; ``created``: RFC 3339."""

    version: str
    created: str


def limit(name: str) -> int:
    """Limit of the size of a content."""
    return SNAPSHOT_BYTES if name == SNAPSHOT else FILE_BYTES


# -- writing -------------------------------------------------------------------------------------------------------------


def write(target: Path, about: About, contents: Iterable[tuple[str, bytes]], *, force: bool) -> int:
    """Write a backup with ``contents``: parts, each with the name of its content. Returns the size of the file.

    The file appears only when it is complete, even after a power cut. Raises InstallError, also if the file exists without
    ``force``.
    """
    if not force and os.path.lexists(target):
        raise _exists(target)
    fresh = target.with_name(f".{target.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), MODE)
                _write(file, about, contents)
                file.flush()
                os.fsync(file.fileno())
            _publish(fresh, target, force=force)
        finally:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
        return target.stat().st_size
    except OSError as error:
        raise InstallError(f"cannot write {target}: {error.strerror or error}") from error


def _exists(target: Path) -> InstallError:
    return InstallError(f"{target} exists: choose another name, or use --force to replace it", usage=True)


def _publish(fresh: Path, target: Path, *, force: bool) -> None:
    if force:
        os.replace(fresh, target)
    else:
        try:
            # Unlike a rename, this replaces nothing.
            os.link(fresh, target)
        except FileExistsError:
            raise _exists(target) from None
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: BinaryIO, about: About, contents: Iterable[tuple[str, bytes]]) -> None:
    state, sizes = hashlib.sha256(), dict[str, int]()
    # Without the time, equal contents make equal files.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:

        def put(line: Mapping[str, object]) -> None:
            data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            state.update(data)
            packed.write(data)

        put({"format": FORMAT, "formatVersion": VERSION, "thunderfleet": about.version, "created": about.created})
        for name, data in contents:
            sizes[name] = sizes.get(name, 0) + len(data)
            if name not in KNOWN or sizes[name] > limit(name):
                raise InstallError(f"{name} cannot be in a backup: it is unknown, or larger than {limit(name) >> 20} MiB")
            for begin in range(0, len(data), PART_BYTES) or (0,):
                put({"name": name, "data": base64.b64encode(data[begin : begin + PART_BYTES]).decode()})
        put({"contents": sizes, "sha256": state.hexdigest()})


# -- reading -------------------------------------------------------------------------------------------------------------


def check(source: Path) -> About:
    """Read all of a backup and compare it with its list and its hash. Raises InstallError."""
    with _opened(source) as lines:
        about = _about(source, lines)
        for _ in _parts(source, lines):
            pass
    return about


def contents(source: Path) -> Iterator[tuple[str, bytes]]:
    """All parts, in their order. They are valid only if the iteration ends without InstallError."""
    with _opened(source) as lines:
        _about(source, lines)
        yield from _parts(source, lines)


class _Lines:
    """The lines of a backup, and the hash of those that were read."""

    def __init__(self, packed: gzip.GzipFile) -> None:
        self._packed = packed
        self.hash = hashlib.sha256()

    def next(self) -> dict[str, Any]:
        """The next line. Raises ValueError if it is invalid, and EOFError at the end."""
        data = self._packed.readline(LINE_BYTES)
        if not data:
            raise EOFError
        if not data.endswith(b"\n"):
            raise ValueError("a line is too long or not complete")
        line = json.loads(data)
        if not isinstance(line, dict):
            raise ValueError("a line is not an object")
        if "contents" not in line:
            self.hash.update(data)
        return line

    def at_end(self) -> bool:
        return self._packed.read(1) == b""


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[_Lines]:
    """The lines of a file. Errors of the file become an InstallError with the cause."""
    try:
        # A pipe without a writer would block.
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InstallError(f"{source} is not a file", usage=True)
            with gzip.GzipFile(fileobj=file, mode="rb") as packed:
                yield _Lines(packed)
    except EOFError:
        raise InstallError(f"{source} is not complete: its end is missing; {ANOTHER}") from None
    # RecursionError: deeply nested JSON.
    except (gzip.BadGzipFile, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InstallError(f"{source} is damaged, or was not written by `thunderfleet backup` ({error}); {ANOTHER}") from None
    except OSError as error:
        raise InstallError(f"cannot read {source}: {error.strerror or error}", usage=True) from None


def _about(source: Path, lines: _Lines) -> About:
    first = lines.next()
    if first.get("format") != FORMAT:
        raise ValueError("its first line is that of another format")
    version, created = str(first["thunderfleet"])[:64], str(first["created"])[:64]
    number = first["formatVersion"]
    if type(number) is not int or number < 1:
        raise ValueError("it has no version of its format")
    if number > VERSION:
        raise InstallError(
            f"{source} was written by version {version}, whose format this version does not support: install that version"
        )
    return About(version, created)


def _parts(source: Path, lines: _Lines) -> Iterator[tuple[str, bytes]]:
    sizes: dict[str, int] = {}
    current = None
    while True:
        line = lines.next()
        if "contents" in line:
            break
        name = line["name"]
        if name not in KNOWN:
            raise ValueError(f"it contains an unknown file, {str(name)[:64]!r}")
        if name != current and name in sizes:
            raise ValueError(f"it contains {name} twice")
        data = base64.b64decode(line["data"], validate=True)
        current, sizes[name] = name, sizes.get(name, 0) + len(data)
        if sizes[name] > limit(name):
            raise ValueError(f"{name} is larger than {limit(name) >> 20} MiB")
        yield name, data
    if line["contents"] != sizes:
        raise ValueError("its contents differ from its list")
    if line["sha256"] != lines.hash.hexdigest():
        raise ValueError("its hash is not that of its contents")
    if missing := [name for name in REQUIRED if name not in sizes]:
        raise ValueError(f"it does not contain {', '.join(missing)}")
    if not lines.at_end():
        raise ValueError("it has data after its end")


def newer(version: str, own: str) -> bool:
    """Whether ``version`` is newer than ``own``."""
    first, second = ([int(part) for part in re.findall(r"\d+", one)[:3]] for one in (version, own))
    return first > second
