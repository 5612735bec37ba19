"""The container's log: lines with time and stream, rotated by size."""

import errno
import os
import time
from collections.abc import Callable

LINE_BYTES = 16384
"""Longer lines are written in parts, as container runtimes do."""


def _parts(line: bytes) -> list[tuple[bytes, bool]]:
    """All parts of a long line but the last."""
    end = max(0, len(line) - 1) // LINE_BYTES * LINE_BYTES
    return [(line[at : at + LINE_BYTES], False) for at in range(0, end, LINE_BYTES)]


def _last_part(line: bytes) -> bytes:
    return line[max(0, len(line) - 1) // LINE_BYTES * LINE_BYTES :]


def _appending(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


class Log:
    """A log in the format of container runtimes: ``<RFC 3339 time> <stdout|stderr> <F|P> <text>``, one line per line of output.

    Its only writer rotates it: ``log`` -> ``log.1`` -> ``log.2`` …
    """

    def __init__(self, path: str, limit: int, files: int) -> None:
        self.path, self.limit, self.files = path, limit, files
        self.size = 0
        self.fd = -1
        self.torn = False
        """Whether the file ends within a line, because the disk was full."""
        self._second, self._text = -1, ""
        self.open()

    def open(self) -> None:
        """Opens the file, and creates it if needed."""
        self.fd = _appending(self.path)
        self.size = os.fstat(self.fd).st_size

    def _stamp(self) -> str:
        now = time.time_ns()
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{rest:09d}Z"

    def write(self, stream: str, lines: list[tuple[bytes, bool]]) -> None:
        """Appends ``lines``: (text without its newline, whether the line ends here)."""
        stamp = self._stamp()
        heads = {True: f"{stamp} {stream} F ".encode(), False: f"{stamp} {stream} P ".encode()}
        data = b"".join(heads[full] + text + b"\n" for text, full in lines)
        try:
            if self.size and self.size + len(data) > self.limit:
                self._rotate()
            if self.torn:
                data = b"\n" + data
            while data:
                written = os.write(self.fd, data)
                self.size += written
                self.torn = data[written - 1 : written] != b"\n"
                data = data[written:]
        except OSError:
            # A full disk must not end the program; its output is lost while the disk is full.
            return

    def _rotate(self) -> None:
        # The first step, because it may fail on a full disk: then nothing has changed, and the next line tries again.
        fresh = f"{self.path}.new"
        fd = _appending(fresh)
        try:
            for number in range(self.files - 1, 0, -1):
                older = f"{self.path}.{number - 1}" if number > 1 else self.path
                if os.path.exists(older):
                    os.replace(older, f"{self.path}.{number}")
            os.replace(fresh, self.path)
        except OSError:
            os.close(fd)
            raise
        os.close(self.fd)
        self.fd, self.size, self.torn = fd, 0, False


class Stream:
    """One of the program's outputs, copied to the log. ``tap`` gets its name and all bytes too."""

    def __init__(self, name: str, fd: int, log: Log, tap: Callable[[str, bytes], None] | None = None) -> None:
        self.name, self.fd, self.log, self.rest, self.open = name, fd, log, b"", True
        self.tap = tap
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Copies what is available. False at the end of the stream, or if nothing is available now."""
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return False
            data = b""
        if not data:
            self.finish()
            return False
        if self.tap is not None:
            self.tap(self.name, data)
        *ended, self.rest = (self.rest + data).split(b"\n")
        lines: list[tuple[bytes, bool]] = []
        for line in ended:
            lines += [*_parts(line), (_last_part(line), True)]
        lines += _parts(self.rest)
        self.rest = _last_part(self.rest)
        if lines:
            self.log.write(self.name, lines)
        return True

    def finish(self) -> None:
        """Writes an unfinished last line and closes the stream."""
        if self.open:
            if self.rest:
                self.log.write(self.name, [(self.rest, True)])
            os.close(self.fd)
            self.open = False
