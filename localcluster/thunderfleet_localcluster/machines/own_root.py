"""The root file system of a recorded Mac: its own folders of macOS, and the rest of this machine's file system.

Installing software on a Mac writes to ``/Library/LaunchDaemons``, ``/opt`` and ``/var/lib``. On a recorded Mac these are
folders below its own, mounted in its mount namespace only: nothing is written to this machine. The folders survive when the Mac
is switched off, and are removed with the cluster's folder. Standard library only, as ``launchd``.
"""

import contextlib
import os
from collections.abc import Iterable

from thunderfleet_localcluster.machines.linux import MS_PRIVATE, MS_REC, libc_call

MS_BIND, MNT_DETACH = 4096, 2
OWN = ("/Library", "/Users/Shared", "/opt/thunderfleet", "/var/lib/thunderfleet")
"""Folders of which every recorded Mac has its own."""


COMMANDS = "/Library/Apple/usr/bin"
"""Folder in which root looks for commands first: programs that run as root on a Mac do not use their caller's PATH."""


def enter(disk: str, cluster: str, commands: str = "", own: Iterable[str] = OWN) -> None:
    """Give this mount namespace a root in which the folders ``own`` are the ones below ``disk``. Raises OSError.

    ``cluster``: a folder that stays visible even if it is below one of ``own``; ``commands``: that of the Mac's commands.
    """
    own = tuple(own)
    opened = {"/"} | {parent for path in own for parent in _parents(path)}
    libc_call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    root = os.path.join(disk, "root")
    os.makedirs(root, exist_ok=True)
    libc_call("mount", b"tmpfs", root.encode(), b"tmpfs", 0, b"mode=755,size=4m")
    for folder in sorted(opened):
        target = root + folder.rstrip("/")
        os.makedirs(target, exist_ok=True)
        for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, entry)
            if path not in opened and path not in own:
                _show(path, os.path.join(target, entry))
    for folder in own:
        inside = os.path.join(disk, folder.lstrip("/"))
        os.makedirs(inside, exist_ok=True)
        os.makedirs(root + folder)
        _bind(inside, root + folder)
        if os.path.commonpath((cluster, folder)) == folder:
            os.makedirs(root + cluster, exist_ok=True)
            _bind(cluster, root + cluster)
    os.makedirs(os.path.join(disk, "Library/LaunchDaemons"), exist_ok=True)
    found = os.path.join(disk, COMMANDS.lstrip("/"))
    if commands and not os.path.lexists(found):
        os.makedirs(os.path.dirname(found), exist_ok=True)
        os.symlink(commands, found)
    os.chdir(root)
    libc_call("pivot_root", b".", b".")
    # The old root is mounted over the new one now.
    libc_call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def _bind(source: str, target: str) -> None:
    libc_call("mount", source.encode(), target.encode(), None, MS_BIND | MS_REC, None)


def _show(path: str, target: str) -> None:
    """Show an entry of this machine's file system at ``target``."""
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    # Entries that this user may not bind, such as another user's FUSE mount, are empty on the Mac.
    with contextlib.suppress(OSError):
        _bind(path, target)
