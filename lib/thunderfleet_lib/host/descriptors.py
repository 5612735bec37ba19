"""How many more files and connections this process can open, and a higher limit."""

import contextlib
import errno
import os
import resource
from dataclasses import dataclass
from typing import Final

FOLDER: Final = "/dev/fd"
"""Folder with an entry for each open file, on macOS and Linux."""
WANTED: Final = 4096
"""Enough for all connections of a program that listens. launchd gives 256 at first."""


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


def allow_descriptors() -> None:
    """Raises the soft limit of open files to WANTED, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
