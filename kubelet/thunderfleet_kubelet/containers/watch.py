"""Whether a container's shim is alive, now and from the event loop.

A running shim keeps a named pipe open for writing. A reader sees its end of file when the shim has ended, for whatever reason.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path


def is_alive(attempt: Path) -> bool:
    """Whether the shim of an attempt runs. Raises OSError if that cannot be determined now."""
    try:
        fd = os.open(attempt / "alive", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


class ShimWatch:
    """Calls ``ended`` once, from the event loop, when the shim of an attempt has ended. Raises OSError."""

    def __init__(self, attempt: Path, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._fd = os.open(attempt / "alive", os.O_RDONLY | os.O_NONBLOCK)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable)
        # A shim that ended before the pipe was opened causes no event.
        self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._fd < 0:
            return
        try:
            if os.read(self._fd, 64):
                return
        except BlockingIOError:
            return
        self.close()
        self._ended()

    def close(self) -> None:
        """Stops watching."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
