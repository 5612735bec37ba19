"""A process beside the child, without MLX, that ends the child when its agent is gone or its time is over.

The child cannot do this itself: MLX holds the interpreter lock in some calls (the init of a ring for half a minute).
"""

from __future__ import annotations

import os
import select
import shutil
import signal


def guard(seconds: float, folder: str, lifeline: int) -> None:
    """Forks the guard. Must be called before any thread starts. Raises OSError.

    When the writer of ``lifeline`` is gone, or after ``seconds``, the guard kills this process's group. The guard ends with
    this process, and removes ``folder`` then.

    ``lifeline``: a pipe to which nothing is written. On stdin, the guard could wait for a hang-up only: it must not read what
    the agent sends. On macOS ``poll`` reports none unless reading is requested (https://openradar.appspot.com/37537852).
    """
    # A group of this process and what it starts, regardless of the parent.
    os.setpgid(0, 0)
    group = os.getpgrp()
    ended, ours = os.pipe()
    if os.fork() != 0:
        # `ours` stays open until the kernel closes it at the end of this process. A program that MLX starts (a compiler) does
        # not inherit it.
        os.close(ended)
        os.close(lifeline)
        return
    try:
        os.close(ours)
        os.close(1)
        os.close(2)
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        poll.register(ended, select.POLLIN)
        if ended not in [number for number, _ in poll.poll(seconds * 1000)]:
            # Out of the group, to survive the signal.
            os.setpgid(0, 0)
            os.killpg(group, signal.SIGKILL)
        # The agent usually removes it, unless the agent has exited too.
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)
