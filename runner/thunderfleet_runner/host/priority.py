"""The nice values of a group's processes: the kubelet starts a pod before other programs of its Mac.

A process inherits the value. Each may raise it, and only root may lower it again.
"""

import contextlib
import os

START_SECONDS = 60.0
"""How long after the start of its supervisor a pod comes before other programs at most, if it is not ready earlier."""
LOADED = -5
"""The value of a rank that has loaded its part: it waits for ranks that have not, perhaps with a whole processor."""


def loaded() -> None:
    """Lets processes of other ranks that still load come before the process group of this one."""
    _raise(0, LOADED)


def ordinary(group: int = 0) -> None:
    """Makes a process group (0: that of this process) equal to other programs. No effect if it has ended."""
    _raise(group, 0)


def inherited(group: int) -> None:
    """Gives a process group that was started just now the value of this process, which may have been raised meanwhile."""
    _raise(group, min(0, os.getpriority(os.PRIO_PROCESS, 0)))


def _raise(group: int, value: int) -> None:
    # It may have ended. One of its processes may have a higher value, which only root can lower; the others are set.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # On Linux each thread has a nice value of its own; that of a process group is set for all of its threads.
        if os.getpriority(os.PRIO_PGRP, group) < value:
            os.setpriority(os.PRIO_PGRP, group, value)
