"""Commands in a running container: ``kubectl exec``, exec probes, hooks.

A command runs with the user, environment, sandbox and working directory of the container's program, taken from the record of
its attempt. It is a child of the kubelet, not of the shim: it ends with its connection or its time limit. It has the
container's marker in its environment, so whatever it leaves behind ends with the container.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from thunderfleet_kubelet.containers.folder import PodFolder, read_json
from thunderfleet_kubelet.shim.program import Program, explain, take_terminal

Json = dict[str, Any]
RunCommand = Callable[[list[str], float], Awaitable[tuple[int, str]]]
"""Runs a command in a container, for that many seconds at most. Returns its exit code and output; raises TimeoutError."""

OUTPUT_LIMIT = 10 * 1024
READ_BYTES = 65536
WRITE_RETRY_SECONDS = 0.02

DRAIN_SECONDS = 0.5
"""How long to wait for more output after the program has ended, if a process that it left behind holds its streams."""

LATE_BYTES = 2 * 1024 * 1024
"""The limit for such output. Pipes and terminals hold less, so nothing that the program itself wrote is lost."""

KILL_SECONDS = 5.0

MAX_FOLDERS = 256
"""How many folders of a container's PATH are searched."""


class Input:
    """The program's standard input. Writing to a program that no longer reads is not an error."""

    def __init__(self, stream: asyncio.StreamWriter | None, terminal: "Terminal | None") -> None:
        self._stream, self._terminal = stream, terminal

    async def write(self, data: bytes) -> None:
        """Writes when the program has room for it."""
        if self._terminal is not None:
            await self._terminal.write(data)
        elif self._stream is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._stream.write(data)
                await self._stream.drain()

    async def close(self) -> None:
        """Ends the input."""
        if self._terminal is not None:
            # Control-D, as typed.
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
        self._readable: asyncio.Future[None] | None = None

    async def read(self, ended: asyncio.Event) -> AsyncIterator[bytes]:
        """Output until the terminal closes, or until the program has exited and no output arrives for ``DRAIN_SECONDS``.

        Reads only on demand: when the caller is slow, the terminal fills up and the program blocks.
        """
        left = LATE_BYTES
        while self.fd >= 0 and left > 0:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                if not await self._wait(ended):
                    return
                continue
            except OSError:
                # Linux returns EIO when the last process has closed its end.
                return
            if not data:
                return
            if ended.is_set():
                left -= len(data)
            yield data
            await asyncio.sleep(0)

    async def _wait(self, ended: asyncio.Event) -> bool:
        """Waits for output. False if the program has ended and there is none."""
        readable = self._readable = self._loop.create_future()
        self._loop.add_reader(self.fd, self._wake)
        end = asyncio.ensure_future(ended.wait())
        try:
            await asyncio.wait({readable, end}, return_when=asyncio.FIRST_COMPLETED)
            if not readable.done():
                await asyncio.wait({readable}, timeout=DRAIN_SECONDS)
            return readable.done()
        finally:
            end.cancel()
            self._readable = None
            if self.fd >= 0:
                self._loop.remove_reader(self.fd)

    def _wake(self) -> None:
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)

    async def write(self, data: bytes) -> None:
        """Types ``data``; waits while the terminal is full."""
        while data and self.fd >= 0:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                await asyncio.sleep(WRITE_RETRY_SECONDS)
            except OSError:
                return

    def resize(self, columns: int, rows: int) -> None:
        """Sets the size; the program gets SIGWINCH."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Hangs up."""
        if self.fd >= 0:
            self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
            self._wake()


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Sets ``ended`` when the program has ended; asyncio's own ``wait`` also waits for others that hold its streams."""

    def __init__(self) -> None:
        super().__init__(limit=2**16, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        """Called by asyncio."""
        super().process_exited()
        self.ended.set()


async def _chunks(stream: asyncio.StreamReader, ended: asyncio.Event) -> AsyncIterator[bytes]:
    """The stream to its end, or until the program has exited and no output arrives for ``DRAIN_SECONDS``."""
    end, left = asyncio.ensure_future(ended.wait()), LATE_BYTES
    try:
        while left > 0:
            read = asyncio.ensure_future(stream.read(READ_BYTES))
            try:
                await asyncio.wait({read, end}, return_when=asyncio.FIRST_COMPLETED)
                if not read.done():
                    await asyncio.wait({read}, timeout=DRAIN_SECONDS)
                if not read.done():
                    return
            finally:
                read.cancel()
            data = read.result()
            if not data:
                return
            if ended.is_set():
                left -= len(data)
            yield data
    finally:
        end.cancel()


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


class Session:
    """One running command. ``stdout`` and ``stderr`` end when the command has closed them; a terminal has only ``stdout``."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol, terminal: Terminal | None) -> None:
        self._transport, self._ended, self._terminal = transport, protocol.ended, terminal
        self._input = Input(protocol.stdin, terminal)
        self._output = terminal.read(self._ended) if terminal else _chunks(_stream(protocol.stdout), self._ended)
        self._errors = _nothing() if terminal else _chunks(_stream(protocol.stderr), self._ended)

    @property
    def stdin(self) -> Input:
        """Standard input."""
        return self._input

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """Standard output, or the terminal's output."""
        return self._output

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        """Standard error; empty with a terminal."""
        return self._errors

    def resize(self, columns: int, rows: int) -> None:
        """Sets the size of the terminal, if there is one."""
        if self._terminal is not None:
            self._terminal.resize(columns, rows)

    async def wait(self) -> int:
        """Waits for the command's end. Returns its exit code, or 128 + the number of the signal that killed it."""
        await self._ended.wait()
        code = self._transport.get_returncode() or 0
        return 128 - code if code < 0 else code

    async def kill(self) -> None:
        """Kills the command's process group, unless the command has ended; closes all streams. May be called twice."""
        # After the end, the pid may be reused. What the command left in the background ends with the container.
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await self._ended.wait()
        # Processes that still hold the other ends of the streams see them closed.
        self._transport.close()
        if self._terminal is not None:
            self._terminal.close()


def _stream(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None
    return stream


async def start(folder: PodFolder, container: str, number: int, command: list[str], *, stdin: bool, tty: bool) -> Session:
    """Starts ``command`` in the environment of attempt ``number``. Raises OSError, which names what cannot start."""
    spec = read_json(folder.attempt(container, number) / "spec.json")
    if spec is None:
        raise FileNotFoundError(folder.attempt(container, number) / "spec.json")
    identity = _identity(spec)
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
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            *command,
            executable=program,
            stdin=inner if tty else asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=inner if tty else asyncio.subprocess.PIPE,
            stderr=inner if tty else asyncio.subprocess.PIPE,
            cwd="/" if "user" in identity else spec["cwd"],
            env=env,
            start_new_session=True,
            umask=0o022,
            preexec_fn=_last_steps(spec["cwd"] if "user" in identity else None, tty),
            **identity,
        )
    except BaseException as error:
        if terminal is not None:
            terminal.close()
        failed = Program(command, env, spec["cwd"], spec["uid"], spec["gid"], spec["groups"])
        if isinstance(error, FileNotFoundError | PermissionError):
            raise type(error)(explain(failed, error)) from error
        if isinstance(error, subprocess.SubprocessError):
            raise OSError(f"user {spec['uid']} cannot enter the working directory {spec['cwd']}") from error
        if isinstance(error, OSError | ValueError):
            # Not a program, too many arguments, a null character in one of them.
            raise OSError(explain(failed, error)) from error
        raise
    finally:
        if inner >= 0:
            os.close(inner)
    return Session(transport, protocol, terminal)


def _identity(spec: Json) -> Json:
    """The user and groups of the container's program, as arguments of a process."""
    if spec["uid"] != os.geteuid() or spec["gid"] != os.getegid():
        return {"user": spec["uid"], "group": spec["gid"], "extra_groups": spec["groups"]}
    return {"extra_groups": spec["groups"]} if spec["groups"] else {}


def _last_steps(cwd: str | None, tty: bool) -> Callable[[], None] | None:
    """What the child does after it has become the container's user.

    It enters the working folder only then: a container can replace it by a link to a folder into which only root may go.
    """
    if cwd is None:
        return take_terminal if tty else None

    def steps() -> None:
        os.chdir(cwd)
        if tty:
            take_terminal()

    return steps


def _find(name: str, path: str, cwd: str) -> str:
    """The program's file, found on the container's PATH. Raises FileNotFoundError."""
    if "/" in name:
        return name
    for folder in path.split(":", MAX_FOLDERS)[:MAX_FOLDERS]:
        candidate = os.path.join(folder or cwd, name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(f"command {name!r} not found on PATH={path}")


async def run(folder: PodFolder, container: str, number: int, command: list[str], seconds: float) -> tuple[int, str]:
    """Runs ``command`` for at most ``seconds``. Returns its exit code and the first ``OUTPUT_LIMIT`` bytes of its output.

    Raises TimeoutError, FileNotFoundError and PermissionError; the command's process group is killed in any case.
    """
    session = await start(folder, container, number, command, stdin=False, tty=False)
    output = bytearray()

    async def take(stream: AsyncIterator[bytes]) -> None:
        async for data in stream:
            output.extend(data[: max(0, OUTPUT_LIMIT - len(output))])

    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(take(session.stdout), take(session.stderr))
            code = await session.wait()
    finally:
        await session.kill()
    return code, output.decode("utf-8", "replace").strip()
