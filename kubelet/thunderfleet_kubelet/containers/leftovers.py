"""Ends every process of a pod's user, and deletes what the pod's containers wrote.

A process can leave its process group and wipe its environment, but not its user.
"""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

from thunderfleet_kubelet.shim.processes import of_user, signal_all

KILL_SECONDS = 10.0
DELETE_SECONDS = 600.0
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


def delete(path: Path) -> None:
    """Deletes a file or folder with everything in it; links are not followed. Raises OSError if something is left.

    Asks ``rm``, because containers wrote these files: it needs no stack frame for each level of a deep folder, and on macOS it
    clears the flags with which users protect files (``chflags uchg``). Blocks, so run it in a thread.
    """
    try:
        done = subprocess.run(
            ["/bin/rm", "-rf", "--", str(path)], capture_output=True, text=True, timeout=DELETE_SECONDS, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"rm did not end within {DELETE_SECONDS:.0f} s", str(path)) from None
    if os.path.lexists(path):
        raise OSError(errno.EBUSY, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "not deleted", str(path))
