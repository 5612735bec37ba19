"""``kubectl attach`` to a container with ``stdin`` or ``tty``: its input and raw output, through its shim.

The shim and the kubelet communicate through files of the attempt (``thunderfleet_kubelet.shim.console``), so that a restarted
kubelet can attach to what an earlier one has started.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from thunderfleet_kubelet.containers.folder import read_json
from thunderfleet_kubelet.shim import files

OPEN_SECONDS = 10.0
"""How long a shim may take to open the pipes."""
LOOK_SECONDS = 0.02
LIVE_SECONDS = 1.0
"""Interval of checks whether the container still runs, and whether its output has ended."""
READ_BYTES = 65536


class NotAttachable(Exception):
    """The container has neither input nor a terminal, or is ending."""


class Attached:
    """Streams of a running container, like those of a command in ``exec_session``. ``live``: whether it runs."""

    def __init__(self, attempt: Path, live: Callable[[], bool]) -> None:
        spec = read_json(attempt / "spec.json") or {}
        running = read_json(attempt / "running.json")
        if running is None or not (spec.get("stdin") or spec.get("tty")):
            raise NotAttachable
        self._attempt, self._live, self._shim = attempt, live, int(running["shim"])
        self.tty = bool(spec.get("tty"))
        self.has_stdin = bool(spec.get("stdin"))
        self._once = bool(spec.get("stdinOnce")) and not self.tty
        self._outputs: dict[str, _Output] = {}
        self.stdin = _Input(self)
        self._ended = asyncio.Event()

    async def open(self, *, stdin: bool) -> None:
        """Connects the streams. Raises NotAttachable if the shim does not answer, and OSError."""
        pipes: dict[str, tuple[Path, int]] = {}
        name = secrets.token_hex(8)
        try:
            for stream in ("stdout",) if self.tty else ("stdout", "stderr"):
                path = self._attempt / "attach" / f"{name}.{stream}"
                os.mkfifo(path, 0o600)
                pipes[stream] = path, os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if stdin:
                self.stdin.open(self._attempt / "stdin")
            self.nudge()
            await self._until_open([path for path, _ in pipes.values()])
            for stream in list(pipes):
                _, fd = pipes.pop(stream)
                self._outputs[stream] = _Output(fd)
        except BaseException:
            for path, fd in pipes.values():
                os.close(fd)
                path.unlink(missing_ok=True)
            await self.kill()
            raise

    async def _until_open(self, paths: list[Path]) -> None:
        """Waits until the shim has opened the pipes and deleted their names. An earlier reader would see end of file."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                for path in paths:
                    while path.exists():
                        if not self._live():
                            raise NotAttachable
                        await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise NotAttachable from None

    def nudge(self) -> None:
        """Signals the shim to read its folder."""
        if self._live():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._shim, signal.SIGUSR1)

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """The output of the program from now on."""
        return self._chunks("stdout")

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        """Its standard error; empty with a terminal."""
        return self._chunks("stderr")

    async def _chunks(self, stream: str) -> AsyncIterator[bytes]:
        output = self._outputs.get(stream)
        while output is not None and (data := await output.read()):
            yield data
        if stream == "stdout":
            self._ended.set()

    def resize(self, columns: int, rows: int) -> None:
        """Sets the size of the terminal."""
        with contextlib.suppress(OSError):
            files.write_file(str(self._attempt / "size"), f"{columns} {rows}")
        self.nudge()

    async def wait(self) -> int:
        """Waits until the output ends, or the container. Always 0: the exit code is in the pod's status."""
        while self._live():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIVE_SECONDS):
                    await self._ended.wait()
                    break
        return 0

    async def close_input(self) -> None:
        """Ends the program's input if its container has ``stdinOnce``."""
        if self._once:
            with contextlib.suppress(OSError):
                (self._attempt / "stdin.closed").touch(mode=0o600)
            self.nudge()

    async def kill(self) -> None:
        """Disconnects. The container keeps running."""
        await self.stdin.close()
        for output in self._outputs.values():
            output.close()


class _Output:
    """A stream of the program, from a named pipe whose other end the shim has.

    macOS reports data in a named pipe, but not that its last writer has closed it. So the pipe is also read at intervals.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ready = asyncio.Event()

    async def read(self) -> bytes:
        """The bytes that have arrived, at least one; empty at the end, and after ``close``."""
        while self._fd >= 0:
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                await self._wait()
            except OSError:
                break
        return b""

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready.clear()
        loop.add_reader(self._fd, self._ready.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIVE_SECONDS):
                    await self._ready.wait()
        finally:
            if self._fd >= 0:
                loop.remove_reader(self._fd)

    def close(self) -> None:
        """Ends ``read``."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._ready.set()


class _Input:
    """The program's standard input. Writing to a program that does not read waits."""

    def __init__(self, attached: Attached) -> None:
        self._attached, self._fd = attached, -1

    def open(self, path: Path) -> None:
        """Opens the pipe. Raises OSError if the shim has ended."""
        self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def write(self, data: bytes) -> None:
        """Writes when there is room."""
        while data and self._fd >= 0:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                await asyncio.sleep(LOOK_SECONDS)
            except OSError:
                return

    async def close(self) -> None:
        """Ends the input of a client."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            await self._attached.close_input()
