"""The one edge to this Mac's commands: an argument list in, text or a typed failure out.

Everything discovery knows comes through here, so the promises are made once: a command that hangs costs its time limit and no
more (a dead RDMA stack leaves ``ibv_devinfo`` in uninterruptible sleep, where even SIGKILL waits), a flood of output costs a
bounded amount of memory, and no second copy of a command that is still stuck is started. Tests and recorded Macs put small
executables of the commands' names at the front of PATH; there is no other way in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
# How long a killed command may take to be gone before it is left behind.
GRACE_SECONDS = 1.0
QUOTE_CHARACTERS = 300


class FailureKind(StrEnum):
    """In which way a command failed."""

    ABSENT = "Absent"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    TOO_MUCH_OUTPUT = "TooMuchOutput"
    # The command worked and what it said cannot be read; the parsers say so, never Host.
    UNREADABLE = "Unreadable"


@dataclass(frozen=True)
class Output:
    """What a command that ended with exit code 0 said."""

    command: str
    text: str


@dataclass(frozen=True)
class Failure:
    """What became of a command that did not end well, in words that name it.

    ``text`` and ``error`` are what it said on stdout and stderr before (cut for failures without an exit code); ``code`` is its
    exit code (negative: the signal), None when it had none.
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
    """The first words of a command's complaint, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= QUOTE_CHARACTERS else line[: QUOTE_CHARACTERS - 1] + "…"


class Host:
    """Runs commands of this Mac. One value a program: it remembers which commands are stuck."""

    def __init__(self) -> None:
        self._stuck: dict[tuple[str, ...], asyncio.subprocess.Process] = {}

    async def run(self, argv: Sequence[str], seconds: float) -> Output | Failure:
        """Runs ``argv`` (found through PATH, locale C, no input) for at most ``seconds`` and about a second of clean-up.

        Never raises for what the command does; cancelling kills it.
        """
        key = tuple(argv)
        command = " ".join(argv)
        stuck = self._stuck.get(key)
        if stuck is not None and stuck.returncode is None:
            return Failure(
                command,
                FailureKind.TIMED_OUT,
                f"still hangs (process {stuck.pid} cannot be ended, so no second one is started); a reboot of this Mac ends it",
            )
        self._stuck.pop(key, None)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C", "LANG": "C"},
                # A group of its own, so that whatever it started goes with it at the limit.
                process_group=0,
            )
        except FileNotFoundError:
            return Failure(command, FailureKind.ABSENT, "is not there (no such command in PATH)")
        except OSError as error:
            return Failure(command, FailureKind.ABSENT, f"cannot be started: {error.strerror or error}")
        heard = False
        try:
            outcome = await self._talk(command, process, seconds)
            heard = not isinstance(outcome, Failure) or outcome.kind is FailureKind.FAILED
            return outcome
        finally:
            if not heard:
                # Even when it has ended itself: what it started may hold its output open.
                await self._end(key, process)

    async def _talk(self, command: str, process: asyncio.subprocess.Process, seconds: float) -> Output | Failure:
        assert process.stdout is not None and process.stderr is not None
        said, complained = bytearray(), bytearray()
        try:
            async with asyncio.timeout(seconds):
                if not await _drain_both((process.stdout, said), (process.stderr, complained)):
                    limit = OUTPUT_LIMIT_BYTES // 2**20
                    return Failure(command, FailureKind.TOO_MUCH_OUTPUT, f"said more than {limit} MiB and was ended")
                code = await process.wait()
        except TimeoutError:
            return Failure(
                command,
                FailureKind.TIMED_OUT,
                f"did not answer within {seconds:g} s" + _and_said(complained),
                text=_text(said),
                error=_text(complained),
            )
        text, error = _text(said), _text(complained)
        if code == 0:
            return Output(command, text)
        how = f"exited with code {code}" if code >= 0 else f"was ended by signal {-code}"
        return Failure(command, FailureKind.FAILED, how + _and_said(complained or said), code, text, error)

    async def _end(self, key: tuple[str, ...], process: asyncio.subprocess.Process) -> None:
        """Kills the process and what it started; what does not go is left behind and remembered."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            self._stuck[key] = process
        finally:
            # Closes our ends of the pipes, which a descendant in another group may hold open.
            process._transport.close()  # type: ignore[attr-defined]


class _TooMuch(Exception):
    pass


async def _drain_both(*streams: tuple[asyncio.StreamReader, bytearray]) -> bool:
    """Reads all streams to their ends; False as soon as one says too much."""
    within_limit = True
    try:
        async with asyncio.TaskGroup() as readers:
            for stream, into in streams:
                readers.create_task(_drain(stream, into))
    except* _TooMuch:
        within_limit = False
    return within_limit


async def _drain(stream: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await stream.read(CHUNK_BYTES):
        into += chunk
        if len(into) > OUTPUT_LIMIT_BYTES:
            raise _TooMuch


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")


def _and_said(data: bytearray) -> str:
    words = quote(_text(data))
    return f": {words}" if words else ""
