"""``select.kqueue`` for what our programs ask of it, with the behaviour of macOS.

- ``EVFILT_PROC`` with ``NOTE_EXIT`` reports the end of any process once; a process that does not exist, or that has ended and
  is a zombie, gives ESRCH.
- ``EVFILT_READ`` sets ``EV_EOF`` when the other end of a socket or an anonymous pipe is closed, but reports nothing when the
  last writer closes a named pipe (golang/go#24164).
- A kqueue's descriptor is readable when it has events, so that another kqueue can watch it.
"""

import errno
import os
import select
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVFILT_READ, EVFILT_PROC = -1, -5
EV_ADD, EV_DELETE, EV_ENABLE, EV_ONESHOT, EV_CLEAR, EV_EOF = 0x1, 0x2, 0x4, 0x10, 0x20, 0x8000
NOTE_EXIT = 0x80000000
# By name, because type checkers for macOS do not know them.
_epoll: Any = vars(select)["epoll"]
_pidfd_open: Any = vars(os)["pidfd_open"]
_IN, _HUP, _RDHUP, _EDGE = (int(vars(select)[f"EPOLL{name}"]) for name in ("IN", "HUP", "RDHUP", "ET"))


@dataclass(frozen=True)
class Kevent:
    """An event, or a change of what is watched."""

    ident: int
    filter: int = EVFILT_READ
    flags: int = EV_ADD
    fflags: int = 0
    data: int = 0
    udata: int = 0


def is_named_pipe(descriptor: int) -> bool:
    """Whether it is a named pipe, which ``stat`` puts on the device of its file system; anonymous pipes have their own."""
    found = os.fstat(descriptor)
    return stat.S_ISFIFO(found.st_mode) and found.st_dev != _anonymous_device()


def _anonymous_device() -> int:
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)


class Kqueue:
    """A kqueue. ``PROC``: where /proc is."""

    PROC = Path("/proc")

    def __init__(self) -> None:
        self._epoll = _epoll()
        self._watched: dict[int, Kevent] = {}
        """By descriptor: that of the file, or one of the process."""

    @property
    def closed(self) -> bool:
        """As of a kqueue of the standard library."""
        return bool(self._epoll.closed)

    def fileno(self) -> int:
        """Its descriptor."""
        return int(self._epoll.fileno())

    def close(self) -> None:
        """Frees all descriptors."""
        for descriptor, change in self._watched.items():
            if change.filter == EVFILT_PROC:
                os.close(descriptor)
        self._watched.clear()
        self._epoll.close()

    def control(self, changes: Iterable[Kevent] | None, most: int, timeout: float | None = None) -> list[Kevent]:
        """Makes changes and returns at most ``most`` events."""
        for change in changes or ():
            self._change(change)
        if not most:
            return []
        found = self._epoll.poll(-1 if timeout is None else timeout, most)
        return [self._event(descriptor, mask) for descriptor, mask in found]

    def _change(self, change: Kevent) -> None:
        known = [d for d, other in self._watched.items() if (other.ident, other.filter) == (change.ident, change.filter)]
        if change.flags & EV_DELETE:
            if not known:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._forget(known[0])
        elif not known:
            self._add(change)

    def _add(self, change: Kevent) -> None:
        if change.filter == EVFILT_PROC:
            if change.fflags != NOTE_EXIT:
                raise OSError(errno.ENOTSUP, "only NOTE_EXIT is emulated")
            descriptor, mask = self._process(change.ident), _IN
        elif change.filter == EVFILT_READ:
            descriptor, mask = change.ident, _IN | _RDHUP
            if is_named_pipe(descriptor):
                return
        else:
            raise OSError(errno.ENOTSUP, "only EVFILT_READ and EVFILT_PROC are emulated")
        self._epoll.register(descriptor, mask | (_EDGE if change.flags & EV_CLEAR else 0))
        self._watched[descriptor] = change

    def _process(self, pid: int) -> int:
        try:
            state = (self.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                return int(_pidfd_open(pid))
        except OSError as error:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def _forget(self, descriptor: int) -> None:
        change = self._watched.pop(descriptor)
        self._epoll.unregister(descriptor)
        if change.filter == EVFILT_PROC:
            os.close(descriptor)

    def _event(self, descriptor: int, mask: int) -> Kevent:
        change = self._watched[descriptor]
        if change.filter == EVFILT_PROC:
            # The kernel deletes it with the process.
            self._forget(descriptor)
            return Kevent(change.ident, EVFILT_PROC, change.flags | EV_EOF, NOTE_EXIT, 0, change.udata)
        ended = EV_EOF if mask & (_HUP | _RDHUP) else 0
        if change.flags & EV_ONESHOT:
            self._forget(descriptor)
        return Kevent(change.ident, EVFILT_READ, change.flags | ended, 0, 0, change.udata)
