"""How many more files and connections this process can open."""

import contextlib
import errno
import os
import resource
from dataclasses import dataclass
from typing import Final

FOLDER: Final = "/dev/fd"
"""Folder with an entry for each open file, on macOS and Linux."""


@dataclass(frozen=True)
class Descriptors:
    """``free``: how many of ``limit`` are left."""

    free: int
    limit: int


def descriptors() -> Descriptors | None:
    """The descriptors of this process; None without a limit, or if they cannot be counted."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError):
        return _counted(limit)
    return None


def _counted(limit: int) -> Descriptors:
    try:
        # One entry is that of the opened folder itself.
        used = len(os.listdir(FOLDER)) - 1
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        used = limit
    return Descriptors(max(0, limit - used), limit)
