"""Removes folders of other users without following links out of them, and reads the last lines of logs."""

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from thunderfleet_lib.logtext import readable

TAIL_BYTES = 16384
TAIL_COLUMNS = 400


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it. Raises OSError.

    The owners of folders in it may change them meanwhile: no link is followed, no other file system is entered, and at any
    depth this needs two descriptors and no recursion. The folder above ``path`` must be one that no other user changes.
    """
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        device, unique = os.fstat(root).st_dev, (f".{secrets.token_hex(8)}.{number}" for number in itertools.count())
        while names := os.listdir(root):
            for name in names:
                if not _unlink(name, root):
                    _flatten(name, root, device, unique, path)
    finally:
        os.close(root)
    path.rmdir()


def _unlink(name: str, folder: int) -> bool:
    """Remove an entry that is no folder; whether it is gone."""
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(about.st_mode) and getattr(about, "st_flags", 0) & (stat.UF_IMMUTABLE | stat.UF_APPEND):
            _unlock(name, folder)
        if stat.S_ISDIR(about.st_mode):
            return False
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    return True


def _unlock(name: str, folder: int) -> None:
    """Clear the flags with which a user of macOS protects a file, also from root (`chflags uchg`)."""
    if (clear := getattr(os, "chflags", None)) is None:
        return
    before = os.open(".", os.O_RDONLY)
    try:
        # ``chflags`` accepts no descriptor of a folder.
        os.fchdir(folder)
        clear(name, 0)
    finally:
        os.fchdir(before)
        os.close(before)


def _flatten(name: str, root: int, device: int, unique: Iterator[str], path: Path) -> None:
    """Remove the folder ``name`` of ``root``; the folders in it are moved to ``root``."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    try:
        if os.fstat(folder).st_dev != device:
            raise OSError(errno.EBUSY, "another file system is mounted here; unmount it", str(path / name))
        for entry in os.listdir(folder):
            if not _unlink(entry, folder):
                os.rename(entry, next(unique), src_dir_fd=folder, dst_dir_fd=root)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a file, indented, those of JSON as text; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    shown = [shown for line in text.splitlines()[-lines:] for shown in readable(line).splitlines()]
    return "\n".join("    " + line[:TAIL_COLUMNS] for line in shown[-lines:])
