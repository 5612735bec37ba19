"""The newest report of a kernel panic of this Mac, which macOS writes after the reboot that follows."""

import json
import os
import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path("/Library/Logs/DiagnosticReports")
_NAMES = re.compile(r"(panic-full|panic-base|kernel)[-_].*\.(panic|ips)", re.IGNORECASE)
FILES = 10_000
"""Maximum number of entries of the folder that are read."""
BYTES = 8 << 20
"""Larger reports are not read completely."""
CHARACTERS = 400
_TEXT = re.compile(r'"panicString"\s*:\s*("(?:[^"\\]|\\.)*")')
_PLAIN = re.compile(r"panic\(cpu [^\n]*")


@dataclass(frozen=True)
class Panic:
    """``at``: when the report was written; ``text``: the kernel's message, on one line."""

    at: datetime
    text: str


def newest(folder: Path = FOLDER) -> Panic | None:
    """The newest panic; None if there is no report that can be read."""
    found: list[tuple[float, Path]] = []
    try:
        for number, path in enumerate(folder.iterdir()):
            if number >= FILES:
                break
            if not _NAMES.fullmatch(path.name):
                continue
            about = path.lstat()
            # Other users can write to this folder, so links are not followed and pipes are not opened.
            if stat.S_ISREG(about.st_mode):
                found.append((about.st_mtime, path))
    except OSError:
        return None
    for at, path in sorted(found, reverse=True):
        try:
            text = text_of(_read(path))
            return Panic(datetime.fromtimestamp(int(at), UTC), text) if text else None
        except (OSError, ValueError, OverflowError):
            continue
    return None


def _read(path: Path) -> bytes:
    """The beginning of a report, which another user may have replaced by a link or a pipe by now. Raises OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def text_of(report: bytes) -> str:
    """The kernel's message, from a report as JSON or as plain text; "" if there is nothing like it."""
    text = report.decode("utf-8", "replace")
    said = _TEXT.search(text)
    if said is not None:
        try:
            text = str(json.loads(said[1], strict=False))
        except ValueError:
            text = said[1]
    panic = _PLAIN.search(text)
    line = panic[0] if panic is not None else text.partition("\n")[0] if said is not None else ""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())[:CHARACTERS]
