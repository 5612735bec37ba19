"""Lets MLX's ring wait for its peers without using the processor, where several ranks share the processors of one machine.

A thread of MLX's ring asks its socket again and again until data arrive. On a Mac of its own that is the fastest way and costs
one of many cores. Recorded Macs share the processors of one machine: there the thread takes the processor from the rank that
it waits for. A local cluster sets VARIABLE for its pods.
"""

import contextlib
import os
import socket
import stat
import struct
import sys

VARIABLE = "THUNDERFLEET_SHARED_PROCESSORS"
"""The environment variable: ``1`` if ranks share their processors."""
WAIT_MICROSECONDS = 5000
"""How long a thread waits for its socket at most, because what it sends over the same one waits meanwhile."""
DESCRIPTORS = 1024
"""Those of a rank are below."""


def wait_if_shared() -> int:
    """Call it after MLX has formed its group. Returns the number of sockets of a ring whose threads wait from now on."""
    if os.environ.get(VARIABLE) != "1":
        return 0
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
