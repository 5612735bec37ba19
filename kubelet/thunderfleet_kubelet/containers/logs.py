"""Reading the log that a shim writes: from the end, from a time, following, over rotated files.

A line on disk is ``<RFC 3339 time> <stdout|stderr> <F|P> <text>``; P is part of a line that goes on in the next one. All times
are UTC with nine decimals, so they compare as text.
"""

import asyncio
import mmap
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLLOW_SECONDS = 0.2
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class LogOptions:
    """What part of a log, and how. ``tail`` lines (None: all); ``since``: nothing older; ``stream``: ``stdout`` or ``stderr``
    alone (None: both).
    """

    follow: bool = False
    tail: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None
    stream: str | None = None


def format_stamp(at: datetime) -> str:
    """``at`` in the form that a log's lines begin with."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def files_of(path: Path) -> list[Path]:
    """The log's files that exist, oldest first; ``path`` itself is the one being written."""
    rotated = [file for file in path.parent.glob(f"{path.name}.*") if file.name[len(path.name) + 1 :].isdigit()]
    rotated.sort(key=lambda file: int(file.name[len(path.name) + 1 :]), reverse=True)
    return rotated + ([path] if path.exists() else [])


def _is_full(line: bytes) -> bool:
    head = line[:64].split(b" ", 3)
    return len(head) > 2 and head[2] == b"F"


def tail_start(path: Path, lines: int) -> tuple[int, int]:
    """Where the last ``lines`` whole lines of a file begin: (offset in bytes, how many of them the file holds)."""
    if path.stat().st_size == 0:
        return 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        end = view.rfind(b"\n") + 1
        found, start = 0, end
        while start > 0:
            before = view.rfind(b"\n", 0, start - 1) + 1
            if _is_full(view[before : min(before + 64, start)]):
                # A whole line ends here: one more than wanted means that the wanted ones begin after it.
                if found == lines:
                    return start, found
                found += 1
            start = before
        return 0, found


def _first(files: list[Path], tail: int | None) -> list[tuple[Path, int]]:
    """The files to read and where to begin in each."""
    if tail is None:
        return [(file, 0) for file in files]
    chosen: list[tuple[Path, int]] = []
    left = tail
    for file in reversed(files):
        offset, found = tail_start(file, left)
        chosen.insert(0, (file, offset))
        left -= found
        if left <= 0 and offset > 0:
            break
    return chosen


def _render(line: bytes, options: LogOptions, since: bytes) -> bytes:
    stamp, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if stamp < since or (options.stream is not None and stream != options.stream.encode()):
        return b""
    end = b"\n" if tag == b"F" else b""
    return (stamp + b" " if options.timestamps else b"") + text + end


async def read(path: Path, options: LogOptions, live: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log at ``path`` in chunks. With ``follow`` it goes on until ``live`` is false and everything was read."""
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


async def _lines(path: Path, options: LogOptions, live: Callable[[], bool]) -> AsyncIterator[list[bytes]]:
    """Whole lines on disk, in groups."""
    # Held open from here on: a file that is rotated away meanwhile is still read to its end.
    opened = []
    for file, offset in _first(files_of(path), options.tail):
        try:
            fd = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            continue
        os.lseek(fd, offset, os.SEEK_SET)
        opened.append(fd)
    rest = b""
    try:
        while True:
            was_live = live()
            while opened:
                data = os.read(opened[0], CHUNK_BYTES)
                if data:
                    lines = (rest + data).split(b"\n")
                    rest = lines.pop()
                    yield lines
                    await asyncio.sleep(0)
                    continue
                if len(opened) == 1 and not _replaced(opened[0], path):
                    break
                if len(opened) == 1:
                    # Between the last read and the rotation more may have been written to it.
                    if data := os.read(opened[0], CHUNK_BYTES):
                        lines = (rest + data).split(b"\n")
                        rest = lines.pop()
                        yield lines
                        continue
                    opened.append(os.open(path, os.O_RDONLY))
                os.close(opened.pop(0))
            if not options.follow or not was_live:
                return
            if not opened and _inode(path) is not None:
                opened.append(os.open(path, os.O_RDONLY))
                continue
            await asyncio.sleep(FOLLOW_SECONDS)
    finally:
        for fd in opened:
            os.close(fd)


def _replaced(fd: int, path: Path) -> bool:
    return _inode(path) not in (None, os.fstat(fd).st_ino)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
