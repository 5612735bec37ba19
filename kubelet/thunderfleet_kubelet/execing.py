"""Programs inside a running container's surroundings: ``kubectl exec``, exec probes, preStop.

Same user, environment, sandbox and working folder as the container's own program, taken from the record of its attempt. Such a
program is the kubelet's child, not the shim's: it ends with its connection or its time limit, never with a container's restart.
It carries the container's marker, so what it leaves behind ends with the container.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import AsyncIterator
from typing import Any

from thunderfleet_kubelet import shim
from thunderfleet_kubelet.containers import PodFolder

Json = dict[str, Any]

OUTPUT_LIMIT = 10 * 1024


class Input:
    """The program's standard input. Writing to a program that reads no more is no error."""

    def __init__(self, stream: asyncio.StreamWriter | None, terminal: "Terminal | None") -> None:
        self._stream, self._terminal = stream, terminal

    async def write(self, data: bytes) -> None:
        if self._terminal is not None:
            await self._terminal.write(data)
        elif self._stream is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._stream.write(data)
                await self._stream.drain()

    async def close(self) -> None:
        if self._terminal is not None:
            # End of file, typed.
            await self._terminal.write(b"\x04")
        elif self._stream is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._stream.close()


class Terminal:
    """The kubelet's end of a pseudo-terminal."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            # Linux answers EIO when the last process has closed its end.
            data = b""
        if not data:
            self._loop.remove_reader(self.fd)
        self._chunks.put_nowait(data)

    async def read(self) -> AsyncIterator[bytes]:
        while True:
            data = await self._chunks.get()
            if not data:
                return
            yield data

    def finish(self) -> None:
        """The program has ended: what is still in the terminal is read, then its output ends."""
        self._loop.call_later(0.1, self._chunks.put_nowait, b"")

    async def write(self, data: bytes) -> None:
        while data and self.fd >= 0:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.02)
            except OSError:
                return

    def resize(self, columns: int, rows: int) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        if self.fd >= 0:
            self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1


async def _chunks(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        data = await stream.read(65536)
        if not data:
            return
        yield data


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


class Session:
    """One program; see ``podmanager.ExecSession``."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: Terminal | None) -> None:
        self._process, self._terminal = process, terminal
        self._input = Input(process.stdin, terminal)
        self._output = terminal.read() if terminal else _chunks(_stream(process.stdout))
        self._errors = _nothing() if terminal else _chunks(_stream(process.stderr))

    @property
    def stdin(self) -> Input:
        return self._input

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        return self._output

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        return self._errors

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            self._terminal.resize(columns, rows)

    async def wait(self) -> int:
        code = await self._process.wait()
        if self._terminal is not None:
            self._terminal.finish()
        return 128 - code if code < 0 else code

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._terminal is not None:
            self._terminal.close()


def _stream(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None
    return stream


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def start(folder: PodFolder, container: str, number: int, command: list[str], *, stdin: bool, tty: bool) -> Session:
    """Starts ``command`` in the surroundings of attempt ``number``. Raises FileNotFoundError or PermissionError."""
    spec = folder.spec(container, number)
    identity: Json = {}
    if spec["uid"] != os.geteuid() or spec["gid"] != os.getegid():
        identity = {"user": spec["uid"], "group": spec["gid"], "extra_groups": spec["groups"]}
    elif spec["groups"]:
        identity = {"extra_groups": spec["groups"]}
    env = dict(spec["env"])
    if tty:
        env.setdefault("TERM", "xterm")
    program = _find(command[0], env.get("PATH", ""), spec["cwd"])
    terminal: Terminal | None = None
    inner = -1
    try:
        if tty:
            outer, inner = os.openpty()
            with contextlib.suppress(OSError):
                os.fchown(inner, spec["uid"], spec["gid"])
            terminal = Terminal(outer)
            identity["preexec_fn"] = _take_terminal
        process = await asyncio.create_subprocess_exec(
            *command,
            executable=program,
            stdin=inner if tty else asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=inner if tty else asyncio.subprocess.PIPE,
            stderr=inner if tty else asyncio.subprocess.PIPE,
            cwd=spec["cwd"],
            env=env,
            start_new_session=True,
            **identity,
        )
    except (FileNotFoundError, PermissionError) as error:
        if terminal is not None:
            terminal.close()
        raise type(error)(f"{shim.explain(spec | {'argv': command}, error)}") from error
    finally:
        if inner >= 0:
            os.close(inner)
    return Session(process, terminal)


def _find(name: str, path: str, cwd: str) -> str:
    """The program's file, looked up on the container's PATH, not the kubelet's."""
    if "/" in name:
        return name
    for folder in path.split(":"):
        candidate = os.path.join(folder or cwd, name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(f"command {name!r} was not found on PATH={path}")


async def run(folder: PodFolder, container: str, number: int, command: list[str], seconds: float) -> tuple[int, str]:
    """Runs ``command`` to its end: exit code and the first of what it said. Raises TimeoutError, FileNotFoundError,
    PermissionError; after the time limit its process group is gone."""
    session = await start(folder, container, number, command, stdin=False, tty=False)
    said = bytearray()

    async def take(stream: AsyncIterator[bytes]) -> None:
        async for data in stream:
            said.extend(data[: max(0, OUTPUT_LIMIT - len(said))])

    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(take(session.stdout), take(session.stderr))
            code = await session.wait()
    finally:
        await session.kill()
    return code, said.decode("utf-8", "replace").strip()
