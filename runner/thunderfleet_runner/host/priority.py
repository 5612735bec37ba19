"""The nice value of a supervisor or a rank: the kubelet starts a pod before other programs of its Mac."""

import contextlib
import os


def ordinary() -> None:
    """Takes back the priority of the process group of this process, which came before other programs while a group starts.

    On Linux each thread has a nice value of its own; that of a process group is set for all of its threads.
    """
    if os.getpriority(os.PRIO_PGRP, 0) < 0:
        # One of its processes may have a higher value, which only root can lower; the others are set.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PGRP, 0, 0)
