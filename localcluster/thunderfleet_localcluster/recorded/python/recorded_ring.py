"""Lets MLX's ring wait for its peers without using the processor.

A thread of MLX's ring polls its socket until data arrive. On a Mac of its own that is the fastest way and costs
one of many cores. Recorded Macs share the processors of one machine: there the thread takes the processor from the rank that
it waits for.
"""

import contextlib
import os
import socket
import stat
import struct
import sys
from types import ModuleType
from typing import Any

WAIT_MICROSECONDS = 5000
"""How long a thread waits for its socket at most, because what it sends over the same one waits meanwhile."""
DESCRIPTORS = 1024
"""Those of a rank are below."""


def replace(module: ModuleType) -> None:
    """Has the sockets of every group that ``mlx.core`` forms wait."""
    core: Any = module
    init = core.distributed.init

    def waiting(*arguments: Any, **options: Any) -> Any:
        group = init(*arguments, **options)
        wait()
        return group

    core.distributed.init = waiting


def wait() -> int:
    """Returns the number of sockets of rings whose threads wait from now on."""
    return sum(_wait(fd) for fd in range(3, DESCRIPTORS))


def _wait(fd: int) -> bool:
    """Whether this is a TCP connection that does not block: MLX's are the only ones of a rank."""
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(fd).st_mode) or os.get_blocking(fd):
            return False
        found = socket.socket(fileno=os.dup(fd))
        with found:
            if found.family != socket.AF_INET or found.type != socket.SOCK_STREAM:
                return False
            limit = struct.pack("@ll", 0, WAIT_MICROSECONDS)
            if sys.platform == "darwin":
                limit = struct.pack("@lixxxx", 0, WAIT_MICROSECONDS)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                found.setsockopt(socket.SOL_SOCKET, option, limit)
        os.set_blocking(fd, True)
        return True
    return False
