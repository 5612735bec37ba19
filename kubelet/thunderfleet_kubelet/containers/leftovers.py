"""Ends every process of a pod's user, and deletes what the pod's containers wrote.

A process can leave its process group and wipe its environment, but not its user.
"""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

from thunderfleet_kubelet.shim.processes import of_user, signal_all

KILL_SECONDS = 10.0
PAUSE_SECONDS = 0.05

# The kernel signals all processes of the user at once, so none can fork in between. The killer itself is not signalled.
_KILLER = "import os,sys; n=int(sys.argv[1]); os.setgroups([]); os.setgid(n); os.setuid(n); os.kill(-1, 9)"


def end_processes(user: int, seconds: float = KILL_SECONDS) -> list[int]:
    """Kills all processes of ``user``, which must be the user of one pod only. Returns the pids that remain after ``seconds``.

    Blocks, so run it in a thread.
    """
    limit = time.monotonic() + seconds
    while pids := of_user(user):
        if time.monotonic() >= limit:
            return pids
        signal_all(pids, 9)
        # Fails without harm if nothing is left to signal, or if a process of the user was faster.
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _KILLER, str(user)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            timeout=seconds,
            check=False,
        )
        time.sleep(PAUSE_SECONDS)
    return []


def delete(folder: Path) -> None:
    """Deletes a folder and everything in it; links are not followed. Raises OSError if something cannot be deleted."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        unlock(folder)
        shutil.rmtree(folder)


def unlock(folder: Path) -> None:
    """Clears the flags with which a user of macOS protects its files even from root (``chflags uchg``)."""
    if sys.platform != "darwin":
        return
    locked = stat.UF_IMMUTABLE | stat.UF_APPEND
    for here, folders, names in os.walk(folder):
        for path in [here, *(os.path.join(here, name) for name in (*folders, *names))]:
            flags = os.lstat(path).st_flags
            if flags & locked:
                os.lchflags(path, flags & ~locked)
