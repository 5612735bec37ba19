"""Runs commands of this machine: an argument list in, text or a typed failure out.

Every command has a time limit and a bound on its output. A command that cannot be killed (a stuck RDMA stack leaves
``ibv_devinfo`` in uninterruptible sleep, where SIGKILL has no effect) is left behind and recorded, and no second copy of it
is started while it hangs. Recorded Macs put small executables with the commands' names at the front of PATH.

``Host`` is for asyncio, ``BlockingHost`` for threads; both return the same values.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, cast

OUTPUT_LIMIT_BYTES: Final = 8 * 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
GRACE_SECONDS: Final = 1.0
"""How long a killed command may take to exit before it is left behind."""
SHORTEST_WAIT_SECONDS: Final = 0.001
LONGEST_WAIT_SECONDS: Final = 0.05
"""How often to check whether a program that has closed its output has exited: from the first, doubled up to the second."""
COMMANDS_AT_ONCE: Final = 32
QUOTE_CHARACTERS: Final = 300


class FailureKind(StrEnum):
    """How a command failed."""

    ABSENT = "Absent"
    """It does not exist or cannot be started."""
    FAILED = "Failed"
    """It exited with another code than 0, or by a signal."""
    TIMED_OUT = "TimedOut"
    TOO_MUCH_OUTPUT = "TooMuchOutput"
    UNREADABLE = "Unreadable"
    """It succeeded, but its output cannot be parsed. Only parsers report this."""


@dataclass(frozen=True)
class Output:
    """Standard output of a command that exited with code 0."""

    command: str
    text: str


@dataclass(frozen=True)
class Failure:
    """A command that did not succeed; ``str()`` gives a message that names it.

    ``text`` and ``error`` are its standard output and standard error so far; ``code`` is its exit code (negative: the number
    of the signal), None when it has none.
    """

    command: str
    kind: FailureKind
    message: str
    code: int | None = None
    text: str = ""
    error: str = ""

    def __str__(self) -> str:
        return f"`{self.command}` {self.message}"


def quote(text: str) -> str:
    """The beginning of a command's output on one line, for messages."""
    line = " ".join(text.split())
    return line if len(line) <= QUOTE_CHARACTERS else line[: QUOTE_CHARACTERS - 1] + "…"


class _Commands:
    """What both hosts share: environment and messages."""

    def __init__(self, path: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> None:
        self._folders = [str(folder) for folder in path]
        self._given = environment

    @property
    def search_path(self) -> str:
        """Where commands are looked up: the given folders, then PATH."""
        return os.pathsep.join([*self._folders, os.environ.get("PATH", os.defpath)])

    def find(self, command: str) -> str | None:
        """The command's executable, or None."""
        return shutil.which(command, path=self.search_path)

    def _environment(self) -> Mapping[str, str]:
        own = os.environ if self._given is None else self._given
        return {**own, "PATH": self.search_path, "LC_ALL": "C", "LANG": "C"}


def _absent(command: str, error: OSError | None = None) -> Failure:
    if error is None or isinstance(error, FileNotFoundError):
        return Failure(command, FailureKind.ABSENT, "does not exist (no such command in PATH)")
    return Failure(command, FailureKind.ABSENT, f"cannot be started: {error.strerror or error}")


def _hung(command: str, pid: int) -> Failure:
    text = f"still hangs: process {pid} cannot be killed; reboot this machine"
    return Failure(command, FailureKind.TIMED_OUT, text)


def _timed_out(command: str, seconds: float, said: bytearray, complained: bytearray) -> Failure:
    message = f"did not answer within {seconds:g} s" + _and_said(complained)
    return Failure(command, FailureKind.TIMED_OUT, message, text=_text(said), error=_text(complained))


def _too_much(command: str) -> Failure:
    limit = OUTPUT_LIMIT_BYTES // 2**20
    return Failure(command, FailureKind.TOO_MUCH_OUTPUT, f"printed more than {limit} MiB and was killed")


def _ended(command: str, code: int, said: bytearray, complained: bytearray) -> Output | Failure:
    text, error = _text(said), _text(complained)
    if code == 0:
        return Output(command, text)
    how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
    return Failure(command, FailureKind.FAILED, how + _and_said(complained or said), code, text, error)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")


def _and_said(data: bytearray) -> str:
    words = quote(_text(data))
    return f": {words}" if words else ""


class Stop:
    """Ends a running command from another thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def fileno(self) -> int:
        """A descriptor that is readable after ``now``."""
        return self._reading

    def now(self) -> None:
        """Ends the command."""
        os.write(self._writing, b".")

    def close(self) -> None:
        """Frees the descriptors, once the command has ended."""
        os.close(self._reading)
        os.close(self._writing)


class BlockingHost(_Commands):
    """Runs commands of this machine in the calling thread. Use one per program: it remembers which commands hang."""

    def __init__(self, path: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> None:
        super().__init__(path, environment)
        self._stuck: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}

    def run(self, argv: Sequence[str], seconds: float, stop: Stop | None = None, given: bytes = b"") -> Output | Failure:
        """Runs ``argv`` in the locale C, with ``given`` as input, for at most ``seconds`` and about one second of clean-up.

        Failures of the command are returned, never raised. ``stop`` ends the command early; the result is then a timeout.
        """
        key = tuple(argv)
        command = " ".join(argv)
        stuck = self._stuck.get(key)
        if stuck is not None and stuck.poll() is None:
            return _hung(command, stuck.pid)
        self._stuck.pop(key, None)
        program = self.find(argv[0])
        if program is None and os.sep not in argv[0]:
            return _absent(command)
        try:
            # Before the process is started, because a process without these pipes would have to be killed.
            selector = selectors.DefaultSelector()
        except OSError as error:
            return _absent(command, error)
        with selector:
            return self._start(key, [program or argv[0], *argv[1:]], seconds, stop, given, selector)

    def _start(
        self,
        key: tuple[str, ...],
        argv: Sequence[str],
        seconds: float,
        stop: Stop | None,
        given: bytes,
        selector: selectors.BaseSelector,
    ) -> Output | Failure:
        command = " ".join(key)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if given else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(),
                # A process group, so that the command's children are killed with it.
                process_group=0,
            )
        except OSError as error:
            return _absent(command, error)
        assert process.stdout is not None and process.stderr is not None
        # Closes this end of the pipes, which a descendant in another process group may hold open.
        with process.stdout, process.stderr, process.stdin or contextlib.nullcontext():
            outcome = _listen(command, process, seconds, stop, given, selector)
            if isinstance(outcome, Failure) and outcome.kind is not FailureKind.FAILED:
                # Even when the command has exited: its children may hold its output open.
                self._end(key, process)
        return outcome

    def _end(self, key: tuple[str, ...], process: subprocess.Popen[bytes]) -> None:
        """Kills the process and its children; one that does not exit is left behind and recorded."""
        _kill_group(process.pid)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck[key] = process


class Host:
    """Runs commands of this machine in asyncio. Use one per program: it remembers which commands hang.

    ``path``: folders in front of PATH. ``environment``: the commands' environment beside PATH and locale; None passes on the
    program's own. ``at_once``: how many commands run at the same time; others wait, and their time begins when they start.

    Every command has a thread. asyncio's own subprocesses leave a process or a pipe behind when their caller is cancelled
    twice or their event loop ends, and may then wait forever.
    """

    def __init__(
        self,
        path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        at_once: int = COMMANDS_AT_ONCE,
    ) -> None:
        self._host = BlockingHost(path, environment)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="command")

    def find(self, command: str) -> str | None:
        """The command's executable, or None."""
        return self._host.find(command)

    async def run(self, argv: Sequence[str], seconds: float, given: bytes = b"") -> Output | Failure:
        """As ``BlockingHost.run``. Cancelling kills the command."""
        loop = asyncio.get_running_loop()
        try:
            stop = Stop()
        except OSError as error:
            return _absent(" ".join(argv), error)
        running = loop.run_in_executor(self._threads, self._host.run, argv, seconds, stop, given)
        running.add_done_callback(lambda _: stop.close())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                # Afterwards its descriptors are closed, and their numbers may be in use for other files.
                stop.now()
            deadline = loop.time() + 2 * GRACE_SECONDS
            while not running.done() and (left := deadline - loop.time()) > 0:
                # Even if this is cancelled several times, no command outlives its caller.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({running}, timeout=left)
            raise


def _feed(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Writes what the pipe takes of the input that is left, ``key.data``, and closes it at the end."""
    try:
        sent = os.write(key.fd, key.data[:CHUNK_BYTES])
    except BlockingIOError:
        return
    except BrokenPipeError:
        # The command has read enough, or has exited.
        sent = len(key.data)
    if sent < len(key.data):
        selector.modify(key.fileobj, selectors.EVENT_WRITE, key.data[sent:])
        return
    selector.unregister(key.fileobj)
    cast(IO[bytes], key.fileobj).close()


def _listen(
    command: str,
    process: subprocess.Popen[bytes],
    seconds: float,
    stop: Stop | None,
    given: bytes,
    selector: selectors.BaseSelector,
) -> Output | Failure:
    """Writes the input and reads both streams to their ends, within time limit and bound, and waits for the exit code."""
    assert process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + seconds
    said, complained = bytearray(), bytearray()
    open_streams, delay = 2, SHORTEST_WAIT_SECONDS
    selector.register(process.stdout, selectors.EVENT_READ, said)
    selector.register(process.stderr, selectors.EVENT_READ, complained)
    if stop is not None:
        selector.register(stop, selectors.EVENT_READ)
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE, memoryview(given))
    while open_streams or process.poll() is None:
        left = deadline - time.monotonic()
        # A program may close its output and keep running; its exit causes no event here.
        delay = left if open_streams else min(left, 2 * delay, LONGEST_WAIT_SECONDS)
        events = [key for key, _ in selector.select(delay)] if left > 0 else []
        if left <= 0 or any(key.fileobj is stop for key in events):
            return _timed_out(command, seconds, said, complained)
        for key in events:
            if key.fileobj is process.stdin:
                _feed(selector, key)
                continue
            chunk = os.read(key.fd, CHUNK_BYTES)
            if not chunk:
                selector.unregister(key.fileobj)
                open_streams -= 1
                delay = SHORTEST_WAIT_SECONDS
            key.data.extend(chunk)
            if len(key.data) > OUTPUT_LIMIT_BYTES:
                return _too_much(command)
    return _ended(command, process.returncode, said, complained)
