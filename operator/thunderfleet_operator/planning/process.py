"""The process that answers questions: started when it is needed, killed when it does not answer in time."""

import asyncio
import contextlib
import logging
import pickle
import sys
from collections.abc import Iterator

from thunderfleet_operator.placement import Answer, Difference, Fleet, Question, WherePlaced
from thunderfleet_operator.planning import wire

log = logging.getLogger(__name__)

SECONDS = 15.0
"""Time limit of one answer, including the start of the process and sending the fleet. Answers take about a second."""
KILL_SECONDS = 5.0
CHUNK = 100
"""Macs and cables of one message. A large fleet is encoded in several messages, because encoding takes long."""
PROGRAM = ("-P", "-m", "thunderfleet_operator.planning.child")


class PlanningFailed(Exception):
    """There is no answer. The text is the end of a sentence that begins with "the planner"."""


def _parts(change: Difference) -> Iterator[wire.Changed]:
    if change.gone:
        yield wire.Changed(gone=change.gone)
    for first in range(0, len(change.macs), CHUNK):
        yield wire.Changed(macs=change.macs[first : first + CHUNK])
    for first in range(0, len(change.cables), CHUNK):
        yield wire.Changed(cables=change.cables[first : first + CHUNK])


class PlanningProcess:
    """Answers one question at a time. ``program``: arguments of the interpreter."""

    def __init__(self, seconds: float = SECONDS, program: tuple[str, ...] = PROGRAM) -> None:
        self._seconds = seconds
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._sent = Fleet()

    @property
    def pid(self) -> int | None:
        """Process ID, if there is a process."""
        return self._process.pid if self._process is not None else None

    async def ask(self, question: Question) -> tuple[Answer, float]:
        """The answer and its seconds of processor time. Raises PlanningFailed, also when there is none within the limit."""
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._ask(question)
        except TimeoutError:
            await self.end()
            raise PlanningFailed(f"did not answer within {self._seconds:g} s; {wire.LIMIT_THE_MACS}") from None
        except (OSError, EOFError) as error:
            await self.end()
            raise PlanningFailed("ended without an answer; see the operator's log") from error
        except Exception as error:
            await self.end()
            raise PlanningFailed(f"failed: {type(error).__name__}: {error}") from error
        except BaseException:
            await self.end()
            raise
        if isinstance(found, wire.Failed):
            # The state of the process is unknown, for example after it ran out of memory.
            await self.end()
            raise PlanningFailed(found.why)
        return found.answer, found.seconds

    async def _ask(self, question: Question) -> wire.Answered | wire.Failed:
        if self._process is None or self._process.returncode is not None:
            await self.end()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *self._program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None and reader is not None
        for part in _parts(question.fleet.difference(self._sent)):
            writer.write(wire.encode(part))
            await writer.drain()
            await asyncio.sleep(0)
        self._sent = question.fleet
        if isinstance(question, WherePlaced):
            writer.write(wire.encode(wire.AskedWhere(question.requests)))
        else:
            writer.write(wire.encode(wire.AskedBetter(question.request, question.running, question.links, question.split)))
        await writer.drain()
        size = wire.size_of(await reader.readexactly(wire.LENGTH.size))
        found = pickle.loads(await reader.readexactly(size))
        if not isinstance(found, wire.Answered | wire.Failed):
            raise ValueError(f"an answer of type {type(found).__name__}")
        return found

    async def end(self) -> None:
        """Kills the process, if there is one. A later question starts another."""
        process, self._process, self._sent = self._process, None, Fleet()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
        except TimeoutError:
            log.error("planning process %d has not ended %g s after SIGKILL", process.pid, KILL_SECONDS)
