"""A rank must not outlive its supervisor.

While MLX's init runs, the interpreter is held and no thread of the rank sees the socketpair close; only the kernel can end
it. Linux does so when asked. macOS has no such call: there the next supervisor ends what its state folder names.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Asks the kernel to end this process when its parent ``parent`` ends; exits at once if it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
