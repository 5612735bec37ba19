"""The kubelet's own nice value: below 0 until it has taken over its pods, which wait for it while a machine boots.

launchd starts the kubelet with this value, so that its imports come first, too. A kubelet that something else starts sets it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

NICE = -15
"""The lowest value that still comes after the applications a person works with: macOS makes it 31 + 15 = 46, theirs is 47."""
_THREADS = "/proc/self/task"


@contextmanager
def preferred(wanted: bool) -> Iterator[Callable[[], None]]:
    """If ``wanted``, a process of root gets processors before other programs, until the block ends or calls its value.

    Processes that it starts meanwhile inherit that, so they must be short, and must not work for others.
    """
    given = os.getpriority(os.PRIO_PROCESS, 0)
    lasting = max(given, 0)

    def take_back() -> None:
        if os.getpriority(os.PRIO_PROCESS, 0) < lasting:
            _set(lasting)

    try:
        if wanted:
            # Without root it stays as it is.
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, min(NICE, given))
        yield take_back
    finally:
        take_back()


def _set(nice: int) -> None:
    # On Linux, each thread has a nice value of its own.
    threads = os.listdir(_THREADS) if sys.platform == "linux" else ["0"]
    for thread in threads:
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)
