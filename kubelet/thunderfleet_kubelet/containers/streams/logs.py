"""Reads the log that a shim writes: the end, since a time, following, across rotated files.

A line on disk is ``<RFC 3339 time> <stdout|stderr> <F|P> <text>``; P marks a part of a line that continues in the next one. All
times are UTC with nine decimals, so they compare as text.
"""

import asyncio
import contextlib
import mmap
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLLOW_SECONDS = 0.2
OPEN_TRIES = 20
CHUNK_BYTES = 64 * 1024
TURN_LINES = 500
"""Lines after which the search for the last ones lets other tasks run: a log can have a million empty lines."""


@dataclass(frozen=True)
class LogOptions:
    """Which part of a log to read.

    ``tail``: the last lines only. ``since``: nothing older. ``timestamps``: keep the time of each line. ``stream``: ``stdout``
    or ``stderr`` only.
    """

    follow: bool = False
    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None
    stream: str | None = None


def format_stamp(at: datetime) -> str:
    """The time as it is written at the start of a line."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def files_of(path: Path) -> list[Path]:
    """The log's files, oldest first; ``path`` itself is the current one."""
    rotated = [file for file in path.parent.glob(f"{path.name}.*") if file.name[len(path.name) + 1 :].isdigit()]
    rotated.sort(key=lambda file: int(file.name[len(path.name) + 1 :]), reverse=True)
    return rotated + ([path] if path.exists() else [])


def _is_full(line: bytes) -> bool:
    head = line[:64].split(b" ", 3)
    return len(head) > 2 and head[2] == b"F"


def _open_all(path: Path) -> list[int]:
    """The log's files, open, oldest first. Each occurs exactly once, even if the shim rotates them meanwhile."""
    for number in range(OPEN_TRIES):
        opened: list[int] = []
        try:
            for file in files_of(path):
                with contextlib.suppress(FileNotFoundError):
                    opened.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            _close(opened)
            raise
        if number == OPEN_TRIES - 1 or [_inode(file) for file in files_of(path)] == [os.fstat(fd).st_ino for fd in opened]:
            break
        _close(opened)
    return opened


def _close(opened: list[int]) -> None:
    for fd in opened:
        os.close(fd)


async def tail_start(fd: int, size: int, lines: int) -> tuple[int, int]:
    """The offset in bytes of the last ``lines`` whole lines in the first ``size`` bytes of a file, and how many these have."""
    if size == 0:
        return 0, 0
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as view:
        end = view.rfind(b"\n") + 1
        found, start, seen = 0, end, 0
        while start > 0:
            seen += 1
            if seen % TURN_LINES == 0:
                await asyncio.sleep(0)
            before = view.rfind(b"\n", 0, start - 1) + 1
            if _is_full(view[before : min(before + 64, start)]):
                # A whole line ends here. If enough are found, the requested ones start after it.
                if found == lines:
                    return start, found
                found += 1
            start = before
        return 0, found


def _render(line: bytes, options: LogOptions, since: bytes) -> bytes:
    stamp, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if stamp < since or (options.stream is not None and stream != options.stream.encode()):
        return b""
    end = b"\n" if tag == b"F" else b""
    return (stamp + b" " if options.timestamps else b"") + text + end


async def read(path: Path, options: LogOptions, live: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log at ``path`` in chunks. With ``follow``, until ``live`` returns False and everything is read."""
    left = options.limit_bytes
    since = format_stamp(options.since).encode() if options.since else b""
    async for chunk in _lines(path, options, live):
        text = b"".join(_render(line, options, since) for line in chunk)
        if left is not None:
            text = text[:left]
            left -= len(text)
        if text:
            yield text
        if left == 0:
            return


class _Reader:
    """Reads whole lines across the files of a log. Open files are read to their end even after a rotation.

    Without ``follow`` the log ends where it ended at the start: one that is written as fast as it is read has no other end.
    """

    def __init__(self, path: Path, follow: bool) -> None:
        self._path = path
        self._rest = b""
        self._open = _open_all(path)
        self._follow = follow
        self._sizes = {fd: os.fstat(fd).st_size for fd in self._open}
        """Of the files that were open at the start, in bytes."""

    async def skip_to(self, tail: int) -> None:
        """Skips all but the last ``tail`` lines. Before the first ``read``."""
        left = tail
        for index in range(len(self._open) - 1, -1, -1):
            fd = self._open[index]
            offset, found = await tail_start(fd, self._sizes[fd], left)
            os.lseek(fd, offset, os.SEEK_SET)
            left -= found
            if left <= 0 and offset > 0:
                _close(self._open[:index])
                self._open = self._open[index:]
                return

    def close(self) -> None:
        _close(self._open)

    def _newer(self) -> list[int]:
        """The files after the one that is open. A slow reader may have missed several rotations."""
        opened = _open_all(self._path)
        inodes = [os.fstat(fd).st_ino for fd in opened]
        own = os.fstat(self._open[0]).st_ino
        start = inodes.index(own) + 1 if own in inodes else 0
        _close(opened[:start])
        return opened[start:]

    def read(self) -> list[bytes] | None:
        """The next lines; None if there are none now."""
        while True:
            if not self._open:
                self._open = _open_all(self._path) if self._follow else []
                if not self._open:
                    return None
            lines = self._chunk(self._open[0])
            if lines is None and len(self._open) == 1:
                if not self._follow or not _replaced(self._open[0], self._path):
                    return None
                # More may have been written between the last read and the rotation.
                lines = self._chunk(self._open[0])
                if lines is None:
                    self._open += self._newer()
                    if len(self._open) == 1:
                        return None
            if lines is not None:
                return lines
            os.close(self._open.pop(0))

    def _chunk(self, fd: int) -> list[bytes] | None:
        most = CHUNK_BYTES if self._follow else min(CHUNK_BYTES, self._sizes[fd] - os.lseek(fd, 0, os.SEEK_CUR))
        data = os.read(fd, most)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


async def _lines(path: Path, options: LogOptions, live: Callable[[], bool]) -> AsyncIterator[list[bytes]]:
    """Whole lines as they are on disk, in groups."""
    reader = _Reader(path, options.follow)
    try:
        if options.tail is not None:
            await reader.skip_to(options.tail)
        while True:
            was_live = live()
            while (lines := reader.read()) is not None:
                yield lines
                await asyncio.sleep(0)
            if not options.follow or not was_live:
                return
            await asyncio.sleep(FOLLOW_SECONDS)
    finally:
        reader.close()


def _replaced(fd: int, path: Path) -> bool:
    return _inode(path) not in (None, os.fstat(fd).st_ino)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
