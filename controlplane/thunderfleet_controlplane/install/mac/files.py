"""Files and folders that only root can change."""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thunderfleet_lib.host.trees import remove_tree

from thunderfleet_controlplane.install.errors import InstallError

REMOVING = ".removing"


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold a lock on the file ``path`` in this block. Raises InstallError if another process holds it."""
    busy = InstallError("another `thunderfleet` command, such as init or backup, runs on this Mac; wait until it ends")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Mode 0600, because a lock needs no write permission: any user who can open the file could hold it.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        # A reset that has just ended has removed this file.
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
            raise busy
        yield


def make_folder(path: Path, mode: int) -> None:
    """Create a folder, and set its mode."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def write(path: Path, data: bytes, mode: int) -> bool:
    """Write a file atomically, even across a power cut. Returns whether its content changed."""
    with contextlib.suppress(OSError):
        about = path.lstat()
        own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_mode & 0o7777 == mode
        if own and path.read_bytes() == data:
            return False
    fresh = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        # The mode above is reduced by the umask.
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    return True


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file; empty if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object that only root can read."""
    write(path, json.dumps(content, indent=2).encode() + b"\n", 0o600)


def remove(path: Path) -> bool:
    """Remove a file, a link, or a folder with its contents. Follows no link. Returns whether there was one."""
    if not os.path.lexists(path):
        return False
    if path.is_dir() and not path.is_symlink():
        # An atomic step, because a part of a folder could be mistaken for the whole.
        doomed = path if path.name.endswith(REMOVING) else path.with_name(path.name + REMOVING)
        if doomed != path:
            remove(doomed)
            path.rename(doomed)
        remove_tree(doomed)
    else:
        path.unlink()
    return True


def with_leftovers(path: Path) -> list[Path]:
    """A folder, and the remains of an interrupted ``remove``."""
    return [path, path.with_name(path.name + REMOVING)]


def remove_empty(path: Path) -> list[str]:
    """Remove a folder if it is empty. Returns its contents otherwise."""
    with contextlib.suppress(OSError):
        path.rmdir()
    return sorted(os.listdir(path)) if path.is_dir() else []
