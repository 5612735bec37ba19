"""Calls of Linux that Python lacks: namespaces, mounts, prctl. Standard library only, as ``launchd``, which imports it."""

import ctypes
import os

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000
MS_PRIVATE, MS_REC, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1 << 18, 1 << 14, 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def libc_call(name: str, *arguments: object) -> None:
    """Call a C library function that returns 0 on success. Raises OSError with its name."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def mount_own_proc() -> None:
    """Mount a /proc that shows this PID namespace, in this mount namespace only."""
    libc_call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    libc_call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
