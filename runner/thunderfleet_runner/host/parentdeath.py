"""Ends a rank's process when its supervisor dies.

While MLX's init holds the interpreter, no thread of the rank sees the socketpair close; only the kernel can end the process.
Linux has a call for this. macOS has none: there the next supervisor ends the process that its state folder names.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Makes the kernel end this process when its parent ``parent`` ends; exits at once if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
