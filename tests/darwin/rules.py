"""The rules of macOS for one Python process."""

import contextlib
import errno
import fcntl
import functools
import os
import resource
import select
import selectors
import socket
import sys
import termios
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from tests.darwin import kqueue, libsystem, platform

PROC_VARIABLE = "THUNDERFLEET_TESTS_PROC"
"""The environment variable with the folder of the hidden /proc."""

SUN_PATH_BYTES = 104
"""``sizeof(sun_path)`` of macOS, the final NUL included; Linux has 108."""

IP_BOUND_IF, IPV6_BOUND_IF = 25, 125
TCP_KEEPALIVE, TCP_RXT_CONNDROPTIME = 0x10, 0x80
SO_BINDTOIFINDEX = 62

_real_getrusage = resource.getrusage
_real_setpriority = os.setpriority
_real_poll = select.poll
_real_setsockopt = socket.socket.setsockopt
# By name, because type checkers for macOS do not know it.
_selector: Any = vars(selectors)["EpollSelector"]
_real_register, _real_modify, _real_select = _selector.register, _selector.modify, _selector.select
_IN, _EDGE = (int(vars(select)[f"EPOLL{name}"]) for name in ("IN", "ET"))


@functools.cache
def apply(proc: Path) -> None:
    """From now on, in this process. ``proc``: where /proc is.

    A worker of pytest-xdist asks twice, as a Python that a test has started and for the plugin; once is enough.
    """
    platform.apply()
    libsystem.apply()
    kqueue.Kqueue.PROC = proc
    _apply_select()
    _apply_named_pipes()
    _apply_sockets()
    _replace(resource, getrusage=_getrusage)
    _replace(os, setpriority=functools.partial(_setpriority, proc))
    # Linux's own, which the standard library may have taken already.
    for module, names in ((os, ("pidfd_open", "memfd_create", "setresuid", "setresgid")), (select, ("epoll",))):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def _setpriority(proc: Path, which: int, who: int, priority: int) -> None:
    """For all threads of a process; on Linux each has a nice value of its own."""
    _real_setpriority(which, who, priority)
    if which == os.PRIO_PROCESS:
        # It may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(proc / str(who or os.getpid()) / "task"):
                _real_setpriority(which, int(thread), priority)


def _getrusage(who: int) -> resource.struct_rusage:
    """With ``ru_maxrss`` in bytes, where Linux has KiB."""
    found = list(_real_getrusage(who))
    found[2] *= 1024
    return resource.struct_rusage(found)


class BlindPoll:
    """``select.poll``, which on macOS reports a hang-up only of descriptors of which reading or writing was asked.

    Apple's bugs rdar://37537852 (``events`` 0) and FB17447257 (POLLHUP alone).
    """

    USEFUL = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDNORM | select.POLLWRNORM

    def __init__(self) -> None:
        self._poll = _real_poll()
        self._blind: set[int] = set()

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """As of the standard library."""
        number = fd if isinstance(fd, int) else fd.fileno()
        if eventmask & self.USEFUL:
            self._blind.discard(number)
            self._poll.register(number, eventmask)
        else:
            self._blind.add(number)

    def modify(self, fd: Any, eventmask: int) -> None:
        """As of the standard library."""
        self.unregister(fd)
        self.register(fd, eventmask)

    def unregister(self, fd: Any) -> None:
        """As of the standard library."""
        number = fd if isinstance(fd, int) else fd.fileno()
        if number in self._blind:
            self._blind.remove(number)
        else:
            self._poll.unregister(number)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """As of the standard library."""
        return self._poll.poll(timeout)


def _replace(owner: Any, **functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        setattr(owner, name, function)


def _apply_select() -> None:
    names: dict[str, Any] = {"poll": BlindPoll, "kqueue": kqueue.Kqueue, "kevent": kqueue.Kevent}
    for name in ("EV_ADD", "EV_DELETE", "EV_ENABLE", "EV_ONESHOT", "EV_CLEAR", "EV_EOF", "NOTE_EXIT"):
        names[f"KQ_{name}"] = getattr(kqueue, name)
    names |= {"KQ_FILTER_READ": kqueue.EVFILT_READ, "KQ_FILTER_PROC": kqueue.EVFILT_PROC}
    for name, value in names.items():
        setattr(select, name, value)


def _apply_named_pipes() -> None:
    """An event loop, which uses kqueue on macOS, learns of data in a named pipe, but not of the end of its last writer."""

    def register(self: Any, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return _without_end(self, cast(selectors.SelectorKey, _real_register(self, fileobj, events, data)))

    def modify(self: Any, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return _without_end(self, cast(selectors.SelectorKey, _real_modify(self, fileobj, events, data)))

    def select_(self: Any, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [(key, events) for key, events in _real_select(self, timeout) if not _at_its_end(key)]

    _replace(_selector, register=register, modify=modify, select=select_)


def _reads_named_pipe(key: selectors.SelectorKey) -> bool:
    return key.events == selectors.EVENT_READ and kqueue.is_named_pipe(key.fd)


def _without_end(selector: Any, key: selectors.SelectorKey) -> selectors.SelectorKey:
    """The end of a named pipe wakes the selector once instead of all the time; ``_at_its_end`` leaves that out."""
    if _reads_named_pipe(key):
        selector._selector.modify(key.fd, _IN | _EDGE)
    return key


def _at_its_end(key: selectors.SelectorKey) -> bool:
    return _reads_named_pipe(key) and not int.from_bytes(fcntl.ioctl(key.fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def limited(self: socket.socket, address: Any) -> Any:
        if self.family == socket.AF_UNIX and len(os.fsencode(address)) >= SUN_PATH_BYTES:
            raise OSError("AF_UNIX path too long")
        return function(self, address)

    return limited


def _apply_sockets() -> None:

    def setsockopt(self: socket.socket, level: int, name: int, *value: Any) -> None:
        for option in _options(self, level, name, value):
            _real_setsockopt(self, *option)

    for name in ("bind", "connect", "connect_ex"):
        setattr(socket.socket, name, _limited(getattr(socket.socket, name)))
    _replace(socket.socket, setsockopt=setsockopt)
    for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "SO_BINDTODEVICE"):
        if hasattr(socket, name):
            delattr(socket, name)


def _options(sock: socket.socket, level: int, name: int, value: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    """What Linux has for an option of macOS. Raises OSError as macOS does."""
    wanted = {socket.AF_INET: (socket.IPPROTO_IP, IP_BOUND_IF), socket.AF_INET6: (socket.IPPROTO_IPV6, IPV6_BOUND_IF)}
    if (level, name) in wanted.values():
        # ip6_ctloutput of XNU takes no other level than IPPROTO_IPV6.
        if (level, name) != wanted.get(sock.family):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return [(socket.SOL_SOCKET, SO_BINDTOIFINDEX, *value)]
    if (level, name) == (socket.IPPROTO_TCP, TCP_KEEPALIVE):
        return [(socket.IPPROTO_TCP, _TCP_KEEPIDLE, *value)]
    if (level, name) == (socket.IPPROTO_TCP, TCP_RXT_CONNDROPTIME):
        return [(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, value[0] * 1000)]
    return [(level, name, *value)]


_TCP_KEEPIDLE, _TCP_USER_TIMEOUT = vars(socket)["TCP_KEEPIDLE"], vars(socket)["TCP_USER_TIMEOUT"]
