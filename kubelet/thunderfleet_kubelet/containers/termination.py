"""The termination message that a container leaves (``terminationMessagePath``, ``terminationMessagePolicy``)."""

import contextlib
import os
import stat
from pathlib import Path

MESSAGE_BYTES = 4096
LOG_BYTES = 2048
LOG_LINES = 80


def message_file(sandbox: Path, path: str) -> Path | None:
    """Where the message is below the sandbox; None if that is in a volume, whose content belongs to the containers."""
    target = sandbox / path.lstrip("/")
    inside = ".." not in target.parts and target.parent in (sandbox, sandbox / "dev", sandbox / "tmp")
    return target if inside and not target.parent.is_symlink() and not target.is_symlink() else None


def read_message(sandbox: Path, path: str, user: int) -> str:
    """The message in ``path`` (relative to the sandbox); empty without one. The container's ``user`` owns the sandbox.

    macOS lets every user make a hard link to a file of another one, also to a file that only root can read.
    """
    text = b""
    with contextlib.suppress(OSError):
        fd = open_inside(sandbox, path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(fd)
            if stat.S_ISREG(about.st_mode) and (about.st_nlink == 1 or about.st_uid == user):
                text = file.read(MESSAGE_BYTES)
    return text.decode("utf-8", "replace")


def end_of_log(log: Path) -> str:
    """The last lines of a container's log, without times and stream names."""
    text = b""
    with contextlib.suppress(OSError):
        lines = log.read_bytes().splitlines()[-LOG_LINES:]
        text = b"\n".join(line.split(b" ", 3)[3] for line in lines if line.count(b" ") >= 3)[-LOG_BYTES:]
    return text.decode("utf-8", "replace")


def open_inside(root: Path, path: str, flags: int) -> int:
    """Opens ``path`` below ``root`` without following symbolic links. Raises OSError."""
    *folders, name = Path(path).parts
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
