"""The nice value of this process, which comes before other programs of its Mac while a group starts."""

import os


def ordinary() -> None:
    """Takes back the priority that the process group of this process has inherited from the supervisor.

    On Linux each thread has a nice value of its own; that of a process group is set for all of its threads.
    """
    if os.getpriority(os.PRIO_PGRP, 0) < 0:
        os.setpriority(os.PRIO_PGRP, 0, 0)
