"""Ends a rank's process when its supervisor dies.

While MLX's init holds the interpreter lock, no thread of the rank notices that the socketpair is closed, so the process must be
ended from outside. On Linux the kernel does this. On macOS a small guard process does, which waits for the end of either
process.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_DESCRIPTORS = 256
"""More descriptors than a process has that has just started."""


def die_with(parent: int) -> None:
    """Makes this process end when its parent ``parent`` ends; exits at once if it already has.

    Must be called before any thread starts.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        _guard(parent)
    if os.getppid() != parent:
        os._exit(1)


def _guard(parent: int) -> None:
    """Forks a process that kills this one when ``parent`` ends, and ends with this one."""
    guarded = os.getpid()
    if os.fork() != 0:
        return
    try:
        # The guard is in the process's group, so that it is killed with it, but it must not end before it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The supervisor reads from these until all holders have closed them.
        os.closerange(0, _DESCRIPTORS)
        if _first_to_end(parent, guarded) == parent:
            os.kill(guarded, signal.SIGKILL)
    finally:
        os._exit(0)


def _first_to_end(*pids: int) -> int:
    """Waits for the end of one of the processes. Returns which; the first that does not exist."""
    if sys.platform != "linux":
        queue = select.kqueue()
        for pid in pids:
            try:
                queue.control([select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)], 0)
            except ProcessLookupError:
                return pid
        return int(queue.control(None, 1)[0].ident)
    raise NotImplementedError("on Linux the kernel ends a process with its parent")
