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
from thunderfleet_kubelet.containers.folder import PodFolder

Json = dict[str, Any]

OUTPUT_LIMIT = 10 * 1024

DRAIN_SECONDS = 0.5
"""How long more output is waited for when the program has ended and something that it left behind holds its streams."""

LATE_BYTES = 2 * 1024 * 1024
"""The most that is still taken then: more than pipes hold, so nothing that the program itself said is lost."""

KILL_SECONDS = 5.0


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


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells when the program itself has ended: asyncio's own ``wait`` waits for whoever holds its streams, too."""

    def __init__(self) -> None:
        super().__init__(limit=2**16, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


async def _chunks(stream: asyncio.StreamReader, ended: asyncio.Event) -> AsyncIterator[bytes]:
    """The stream to its end, or until the program has ended and nothing more comes for a moment."""
    end, left = asyncio.ensure_future(ended.wait()), LATE_BYTES
    try:
        while left > 0:
            read = asyncio.ensure_future(stream.read(65536))
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
    """One program; see ``podmanager.ExecSession``."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol, terminal: Terminal | None) -> None:
        self._transport, self._ended, self._terminal = transport, protocol.ended, terminal
        self._input = Input(protocol.stdin, terminal)
        self._output = terminal.read() if terminal else _chunks(_stream(protocol.stdout), self._ended)
        self._errors = _nothing() if terminal else _chunks(_stream(protocol.stderr), self._ended)

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
        await self._ended.wait()
        code = self._transport.get_returncode() or 0
        if self._terminal is not None:
            self._terminal.finish()
        return 128 - code if code < 0 else code

    async def kill(self) -> None:
        # Once it has ended, its number may be another's; what it left in the background ends with the container.
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await self._ended.wait()
        # Our ends of the streams: whoever still holds the others finds them closed.
        self._transport.close()
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
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            *command,
            executable=program,
            stdin=inner if tty else asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=inner if tty else asyncio.subprocess.PIPE,
            stderr=inner if tty else asyncio.subprocess.PIPE,
            cwd=spec["cwd"],
            env=env,
            start_new_session=True,
            umask=0o022,
            **identity,
        )
    except (FileNotFoundError, PermissionError) as error:
        if terminal is not None:
            terminal.close()
        raise type(error)(f"{shim.explain(spec | {'argv': command}, error)}") from error
    finally:
        if inner >= 0:
            os.close(inner)
    return Session(transport, protocol, terminal)


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
    PermissionError; after the time limit its process group is gone.
    """
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
