"""Whether a container's shim is alive, now and from the event loop.

A running shim keeps a named pipe open for writing. A reader gets end of file when the shim has ended, for whatever reason.
On Linux the event loop can wait for that. On macOS it cannot: its kqueue reports nothing when the last writer of a named pipe
has closed it (https://github.com/golang/go/issues/24164), so there it waits for the end of the shim's process.
"""

import asyncio
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.folder import read_json


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


LOOK_AGAIN_SECONDS = 0.05
"""Interval of checks after the end of a shim's process, until its end of the pipe is closed too."""


class ShimWatch:
    """Calls ``ended`` once, from the event loop, when the shim of a running attempt has ended. Raises OSError."""

    def __init__(self, attempt: Path, ended: Callable[[], None]) -> None:
        self._attempt, self._ended = attempt, ended
        self._loop = asyncio.get_running_loop()
        self._source: _Pipe | _Process | None = _Pipe(attempt) if sys.platform == "linux" else _Process(attempt)
        self._loop.add_reader(self._source.fileno(), self._event)
        # A shim that ended before it was watched causes no event.
        self._loop.call_soon(self._look)

    def _event(self) -> None:
        if self._source is not None:
            self._source.take()
            self._look()

    def _look(self) -> None:
        if self._source is None:
            return
        # The pipe decides: the pid of a shim that had ended earlier may be another process's.
        if not is_alive(self._attempt):
            self.close()
            self._ended()
        elif self._source.exited:
            self._loop.call_later(LOOK_AGAIN_SECONDS, self._look)

    def close(self) -> None:
        """Stops watching."""
        source, self._source = self._source, None
        if source is not None:
            self._loop.remove_reader(source.fileno())
            source.close()


class _Pipe:
    """The named pipe: readable when the shim has ended."""

    exited = False

    def __init__(self, attempt: Path) -> None:
        self._fd = os.open(attempt / "alive", os.O_RDONLY | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def take(self) -> None:
        """Does nothing, because the pipe stays readable."""

    def close(self) -> None:
        os.close(self._fd)


class _Process:
    """A kqueue that is readable when the shim's process has ended."""

    def __init__(self, attempt: Path) -> None:
        running = read_json(attempt / "running.json")
        self.exited = running is None
        self._queue: Any = None
        if sys.platform != "linux":
            self._queue = select.kqueue()
            if running is not None:
                self.exited = not _add_exit(self._queue, int(running["shim"]))

    def fileno(self) -> int:
        return int(self._queue.fileno())

    def take(self) -> None:
        """Takes the event, so that the kqueue is not readable again."""
        self._queue.control(None, 1, 0)
        self.exited = True

    def close(self) -> None:
        self._queue.close()


def _add_exit(queue: Any, pid: int) -> bool:
    """Makes a kqueue report the end of process ``pid``, once. False if there is no such process."""
    if sys.platform != "linux":
        once = select.KQ_EV_ADD | select.KQ_EV_ONESHOT
        try:
            queue.control([select.kevent(pid, select.KQ_FILTER_PROC, once, select.KQ_NOTE_EXIT)], 0)
        except ProcessLookupError:
            return False
    return True
