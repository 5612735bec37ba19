"""The intake process from its supervisor's side: start, one question at a time, and why it ended.

See ``intake``. The kernel ends it at its limits of CPU time and, on Linux, of memory; memory is watched here too.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from enum import StrEnum

from thunderfleet_runner import framing
from thunderfleet_runner.host import priority
from thunderfleet_runner.host.rankprocess import rank_environment, resident_bytes

log = logging.getLogger(__name__)

INTAKE_MODULE = "thunderfleet_runner.intake"
START_SECONDS = 60.0
"""Time limit for the import of the tokenizer's libraries and its load; both read from disk."""
ANSWER_SECONDS = 30.0
"""Time limit for one question: a second of CPU, on a Mac that is busy with other work."""
LOOK_SECONDS = 0.1
"""How often the memory of a working process is read."""
MEMORY_BYTES = 1 << 30
"""Maximum resident memory beyond that of the idle process."""
_EXIT_MEMORY = 4


class Cause(StrEnum):
    """Why an intake process ended."""

    CPU = "cpu"
    MEMORY = "memory"
    TIME = "time"
    OTHER = "other"


class Ended(Exception):
    """The process has ended, or was ended, before it answered."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


def intake_command(model_path: str, group: str) -> list[str]:
    """The command line; ``--group`` is only for people with ``ps``."""
    # -P: do not search the working directory for modules.
    return [sys.executable, "-P", "-m", INTAKE_MODULE, "--model", model_path, "--group", group]


class IntakeStarter:
    """Starts processes. After a warm-up has exceeded a limit, they start without one, for prompts without chat template."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._cold = False

    async def start(self) -> "IntakeProcess":
        """Returns a process that is ready. Raises OSError or Ended."""
        try:
            return await IntakeProcess.start([*self._command, *(["--cold"] if self._cold else [])])
        except Ended as error:
            if self._cold or error.cause not in (Cause.CPU, Cause.MEMORY):
                raise
            self._cold = True
        return await self.start()


class IntakeProcess:
    """One started process; ``start`` makes it."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._idle_bytes = 0
        self._exceeded: Cause | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    @classmethod
    async def start(cls, command: Sequence[str]) -> "IntakeProcess":
        """Starts ``command`` and waits until it can work. Raises OSError, or Ended when it ends first."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=rank_environment(os.environ, theirs.fileno()),
                # A kubelet sends SIGTERM to the whole group, and the requests that are still running need this process.
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        priority.inherited(process.pid)
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            # Also when this call is cancelled.
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        self = cls(process, reader, writer)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._receive()
            # It has inherited the value of a pod that starts, and from now on it works for clients.
            priority.ordinary(self.pid)
            self._idle_bytes = await asyncio.to_thread(resident_bytes, self.pid)
        except TimeoutError as error:
            await self.end()
            raise Ended(Cause.TIME, f"it did not start within {START_SECONDS:g} s") from error
        except BaseException:
            await self.end()
            raise
        return self

    async def ask(self, *frames: bytes) -> bytes:
        """The answer to a question. Raises Ended; the process is reaped then."""
        watch = asyncio.create_task(self._watch(), name="intake-memory")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for body in frames:
                    self._writer.write(framing.prefix(len(body)))
                    self._writer.write(body)
                await self._writer.drain()
                return await self._receive()
        except TimeoutError as error:
            await self.end()
            raise Ended(Cause.TIME, f"it did not answer within {ANSWER_SECONDS:g} s") from error
        except BaseException:
            # Also when this call is cancelled: the next question must not get this answer.
            await self.end()
            raise
        finally:
            watch.cancel()

    async def end(self) -> None:
        """Kills and reaps it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._writer.transport.abort()

    async def _receive(self) -> bytes:
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            if length > framing.FRAME_LIMIT:
                raise Ended(Cause.OTHER, f"it sent a frame of {length} bytes")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise self._ended(await self._process.wait()) from error

    def _ended(self, code: int) -> Ended:
        if self._exceeded is not None:
            return Ended(self._exceeded, "it exceeded a limit and was ended")
        if code == -signal.SIGPROF:
            return Ended(Cause.CPU, "it took too much CPU time")
        if code in (_EXIT_MEMORY, -signal.SIGABRT):
            # Native libraries abort when they get no memory.
            return Ended(Cause.MEMORY, "it needed too much memory")
        return Ended(Cause.OTHER, f"it ended with {'signal' if code < 0 else 'exit code'} {abs(code)}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await asyncio.to_thread(resident_bytes, self.pid) > self._idle_bytes + MEMORY_BYTES:
                self._exceeded = Cause.MEMORY
                self._process.kill()
                return
