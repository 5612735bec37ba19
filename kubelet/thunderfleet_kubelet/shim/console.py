"""Input and raw output of a container with ``stdin`` or ``tty``, for ``kubectl attach``.

The kubelet may restart, so both communicate through files of the attempt. ``stdin`` is a named pipe into which the kubelet
writes. For each stream of a client it makes a named pipe in ``attach``, whose name ends in ``.stdout`` or ``.stderr``; the shim
opens it and deletes the name. ``size`` has the columns and rows of the terminal; ``stdin.closed`` ends the input. SIGUSR1 makes
the shim read the folder. A client that does not read its output is disconnected, so that it does not block the container.
"""

import os
import select

CLIENTS = 32
"""The most pipes of clients at once."""
CLIENT_BYTES = 1024 * 1024
"""Bytes of output that are kept for a client that does not read."""
INPUT_BYTES = 4096


class Console:
    """``folder``: the files of the attempt. ``poll``: what the shim waits for."""

    def __init__(self, folder: str, tty: bool, stdin: bool) -> None:
        self.folder, self.tty, self.stdin = folder, tty, stdin
        self.poll = select.poll()
        self.outer = self.inner = self.pipe = -1
        self.rest = b""
        self.clients: dict[int, tuple[str, bytes]] = {}
        """By descriptor: its stream, and the bytes to be written."""

    def path(self, name: str) -> str:
        """A file of the attempt."""
        return os.path.join(self.folder, name)

    def open(self, uid: int | None, gid: int | None) -> int:
        """Makes the terminal or opens the pipe. Returns the program's standard input; -1 for none."""
        if self.stdin:
            # Open for writing too, so that the input does not end with a client.
            self.pipe = os.open(self.path("stdin"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if not self.tty:
            return os.open(self.path("stdin"), os.O_RDONLY | os.O_CLOEXEC) if self.stdin else -1
        self.outer, self.inner = os.openpty()
        os.set_blocking(self.outer, False)
        if os.geteuid() == 0:
            os.fchown(self.inner, -1 if uid is None else uid, -1 if gid is None else gid)
        return self.inner

    def serve(self, poll: "select.poll") -> None:
        """Waits with ``poll`` from now on."""
        self.poll = poll
        if self.tty and self.pipe >= 0:
            poll.register(self.pipe, select.POLLIN)
        self.look()

    def look(self) -> None:
        """Processes the files that the kubelet has put into the folder."""
        self._resize()
        self._drop_gone()
        for name in sorted(os.listdir(self.path("attach"))):
            path = os.path.join(self.path("attach"), name)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if len(self.clients) < CLIENTS:
                    self.clients[fd] = (name.rpartition(".")[2], b"")
                else:
                    os.close(fd)
            except OSError:
                # Its kubelet has ended.
                pass
            try:
                os.unlink(path)
            except FileNotFoundError:
                # The kubelet, which has waited too long, deletes it too.
                continue
        if self.pipe >= 0 and not self.tty and os.path.exists(self.path("stdin.closed")):
            os.close(self.pipe)
            self.pipe = -1

    def _resize(self) -> None:
        if self.outer < 0:
            return
        try:
            with open(self.path("size"), encoding="ascii") as file:
                columns, rows = (int(word) for word in file.read().split())
        except (OSError, ValueError):
            return
        # Imported here: most containers have no terminal.
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _drop_gone(self) -> None:
        """Removes clients that have disconnected. A failed write shows this too, but a quiet program writes nothing."""
        gone = select.poll()
        for fd in self.clients:
            gone.register(fd, select.POLLOUT)
        for fd, events in gone.poll(0):
            if events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                self._drop(fd)

    def put(self, stream: str, data: bytes) -> None:
        """Sends output of the program to the clients."""
        for fd, (wanted, waiting) in list(self.clients.items()):
            if wanted == stream:
                self._write(fd, wanted, waiting + data)

    def _write(self, fd: int, stream: str, data: bytes) -> None:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(fd)
            return
        if len(data) > CLIENT_BYTES:
            self._drop(fd)
            return
        if bool(data) != bool(self.clients[fd][1]):
            if data:
                self.poll.register(fd, select.POLLOUT)
            else:
                self.poll.unregister(fd)
        self.clients[fd] = (stream, data)

    def _drop(self, fd: int) -> None:
        if self.clients.pop(fd)[1]:
            self.poll.unregister(fd)
        os.close(fd)

    def handles(self, fd: int) -> bool:
        """Handles an event of ``poll`` if it is for the console. Returns whether it was."""
        if fd in self.clients:
            stream, waiting = self.clients[fd]
            self._write(fd, stream, waiting)
            return True
        if fd == self.pipe:
            self._type()
            return True
        if fd == self.outer and self.rest:
            self._flush()
        return False

    def _type(self) -> None:
        """Types input into the terminal, which first gets the size that the kubelet has written before the input."""
        self._resize()
        try:
            self.rest += os.read(self.pipe, INPUT_BYTES)
        except OSError:
            return
        self._flush()
        if self.rest:
            # The program does not read: the pipe fills up, and the kubelet waits.
            self.poll.unregister(self.pipe)
            self.poll.modify(self.outer, select.POLLIN | select.POLLOUT)

    def _flush(self) -> None:
        before = self.rest
        try:
            self.rest = self.rest[os.write(self.outer, self.rest) :]
        except BlockingIOError:
            return
        except OSError:
            self.rest = b""
        if before and not self.rest and self.outer >= 0:
            self.poll.register(self.pipe, select.POLLIN)
            self.poll.modify(self.outer, select.POLLIN)

    def closed(self, fd: int) -> None:
        """The terminal has been closed."""
        if fd == self.outer:
            self.outer = -1
            if self.pipe >= 0:
                if not self.rest:
                    # While input waits for the terminal, the pipe is not polled.
                    self.poll.unregister(self.pipe)
                os.close(self.pipe)
                self.pipe, self.rest = -1, b""
