"""Limits the size of logs that launchd keeps open: it appends to them while a daemon is loaded, and never rotates them."""

import os
from collections.abc import Iterable
from pathlib import Path

LIMIT_BYTES = 32 << 20
KEPT_BYTES = 4 << 20


def bound(paths: Iterable[Path], limit: int = LIMIT_BYTES, kept: int = KEPT_BYTES) -> list[Path]:
    """Shorten every file that is larger than ``limit`` to its last ``kept`` bytes, in place; returns the shortened ones.

    Lines that are written between reading and shortening are lost. A file that cannot be shortened stays unchanged.
    """
    shortened = []
    for path in paths:
        try:
            if path.stat().st_size <= limit:
                continue
            with path.open("r+b") as file:
                file.seek(-kept, os.SEEK_END)
                tail = file.read(kept)
                file.truncate(0)
            # Launchd's descriptor appends, and so does this one.
            with path.open("ab") as file:
                file.write(tail[tail.find(b"\n") + 1 :])
        except OSError:
            continue
        shortened.append(path)
    return shortened
