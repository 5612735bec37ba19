"""Sends requests through the intake process, one after the other, and replaces the process when a request has ended it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from thunderfleet_runner import intakeprotocol
from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.intakehealth import IntakeHealth
from thunderfleet_runner.api.service import GroupFailed, Unavailable
from thunderfleet_runner.host.intakeprocess import Cause, Ended
from thunderfleet_runner.intakeprotocol import Endpoint, ModelLimits, Subject

log = logging.getLogger(__name__)

LARGE_BYTES = 64 * 1024
"""At most one body above this size waits for the process together with the small ones, so small requests wait for at most one
large one."""
TURN_SECONDS = 30.0
"""How long a request waits for its turn."""

_TOO_MUCH = {
    Cause.CPU: "reading, rendering and tokenizing this request takes too much CPU time (more than 1 s); shorten it",
    Cause.MEMORY: "reading, rendering and tokenizing this request takes too much memory (1 GiB); shorten it",
}


class Process(Protocol):
    """An intake process; see ``IntakeProcess``."""

    @property
    def gone(self) -> bool:
        """Whether it has ended."""

    async def ask(self, *frames: bytes) -> bytes:
        """The answer to a question. Raises Ended."""

    async def end(self) -> None:
        """Kills and reaps it."""


class Intake:
    """Uses the process that ``start`` starts. Belongs to one event loop.

    ``on_end`` receives the reason why a process has ended. ``start`` raises OSError or Ended. ``now``: monotonic seconds.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Process]],
        on_end: Callable[[Cause], None] = lambda cause: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self.on_end = on_end
        self._health = IntakeHealth(now)
        self._started: asyncio.Future[Process] | None = None
        self._renewals: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._large = asyncio.Lock()
        self._closed = False

    @property
    def problem(self) -> str:
        """What is wrong with the process, unless a request caused it; "" if nothing is wrong."""
        return self._health.problem

    async def prepare(self, endpoint: Endpoint, raw: bytes, limits: ModelLimits) -> intakeprotocol.Prepared:
        """The request in a body. Raises ApiError for one that is refused, Unavailable when no process can be had."""
        answer = await self._about(intakeprotocol.Prepare(endpoint=endpoint, limits=limits), raw)
        if isinstance(answer, intakeprotocol.Prepared):
            return answer
        raise Unavailable("the intake process gave no answer to a request")

    async def examine(self, subject: Subject, raw: bytes, limits: ModelLimits) -> str:
        """The response to a request for numbers of tokens, as JSON. Raises like ``prepare``."""
        answer = await self._about(intakeprotocol.Examine(subject=subject, limits=limits), raw)
        if isinstance(answer, intakeprotocol.Examined):
            return answer.body
        raise Unavailable("the intake process gave no answer to a request")

    async def embed(self, raw: bytes, limits: ModelLimits) -> intakeprotocol.Texts:
        """The texts in a body. Raises like ``prepare``."""
        answer = await self._about(intakeprotocol.Embed(limits=limits), raw)
        if isinstance(answer, intakeprotocol.Texts):
            return answer
        raise Unavailable("the intake process gave no answer to a request")

    async def parse_tools(self, tools: str, texts: tuple[str, ...]) -> intakeprotocol.ToolsParsed:
        """The tool calls in what the model wrote; what cannot be parsed within the limits is no tool call."""
        question = intakeprotocol.ParseTools(tools=tools, texts=texts).model_dump_json().encode()
        try:
            answer = intakeprotocol.decode_answer(await self._in_turn(question))
        except (ApiError, Unavailable) as error:
            log.warning("tool calls are left as text: %s", error)
            answer = None
        if isinstance(answer, intakeprotocol.ToolsParsed):
            return answer
        return intakeprotocol.ToolsParsed(unparsed=texts)

    def renew(self) -> None:
        """Replaces the process by one for the model's files as they are now, after the question that it may work on."""
        renewing = asyncio.create_task(self._renew(), name="intake-renewal")
        self._renewals.add(renewing)
        renewing.add_done_callback(self._renewals.discard)

    async def close(self) -> None:
        """Ends the process; no other is started."""
        self._closed = True
        for renewing in self._renewals:
            renewing.cancel()
        await self._end()

    # --- inside ---

    async def _about(
        self, question: intakeprotocol.Prepare | intakeprotocol.Examine | intakeprotocol.Embed, raw: bytes
    ) -> intakeprotocol.Answer:
        """The answer about a body. Raises ApiError for one that is refused."""
        asked = question.model_dump_json().encode()
        if len(raw) > LARGE_BYTES:
            await _acquire(self._large)
            try:
                answer = intakeprotocol.decode_answer(await self._in_turn(asked, raw))
            finally:
                self._large.release()
        else:
            answer = intakeprotocol.decode_answer(await self._in_turn(asked, raw))
        if isinstance(answer, intakeprotocol.Rejected):
            raise ApiError(answer.status, answer.message, type=answer.error, param=answer.param, code=answer.code)
        return answer

    async def _in_turn(self, *frames: bytes) -> bytes:
        """Returns the answer. A cancelled caller leaves the queue; a request that was already sent is completed anyway."""
        await _acquire(self._turn)
        asking = asyncio.create_task(self._ask(*frames), name="intake-question")
        asking.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(asking)

    async def _ask(self, *frames: bytes) -> bytes:
        if self._closed:
            raise Unavailable("the group is stopping")
        started = self._process()
        try:
            process = await started
            if process.gone:
                self._bad(Cause.OTHER, "another process ended it")
                log.warning("another process ended the intake process since the last request; a new intake process starts")
                await process.end()
                self._started = None
                started = self._process()
                process = await started
            self._health.asked()
            answer = await process.ask(*frames)
            self._health.answered()
            return answer
        except (Ended, OSError) as error:
            if self._started is started:
                self._started = None
            if self._closed:
                raise Unavailable("the group is stopping") from error
            raise self._failure(error, started) from error

    def _failure(self, error: Ended | OSError, started: "asyncio.Future[Process]") -> Exception:
        """What the client gets. ``started``: of the process that got the request, or that did not start."""
        cause = _cause(error)
        asked = started.exception() is None
        if asked:
            # A failed start has already been recorded.
            self._ended(cause, error)
            # The next request uses the process that is being started.
            self._process()
        if cause in _TOO_MUCH:
            return refused(None, _TOO_MUCH[cause], "request_too_expensive")
        # A router sends a request at which a group failed to one other group, and not to one after the other.
        kind = GroupFailed if asked else Unavailable
        return kind(f"requests cannot be read now, retry later: the process that tokenizes them ended: {error}")

    def _ended(self, cause: Cause, error: Ended | OSError) -> None:
        log.warning("the intake process ended: %s", error)
        if cause in _TOO_MUCH:
            self._health.answered()
            self.on_end(cause)
        else:
            self._bad(cause, str(error))

    def _bad(self, cause: Cause, text: str) -> None:
        self._health.ended(text)
        self.on_end(cause)

    def _process(self) -> "asyncio.Future[Process]":
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
            self._started.add_done_callback(self._start_ended)
        return self._started

    def _start_ended(self, started: "asyncio.Future[Process]") -> None:
        """Notes whether a process has started, also if no request waits for it."""
        if started.cancelled():
            return
        error = started.exception()
        if error is None:
            self._health.started()
            return
        if self._started is started:
            # The next request tries again.
            self._started = None
        if isinstance(error, Ended | OSError) and not self._closed:
            log.warning("the intake process did not start: %s", error)
            self._bad(_cause(error), str(error))

    async def _renew(self) -> None:
        await self._turn.acquire()
        try:
            await self._end()
            if not self._closed:
                self._process()
        finally:
            self._turn.release()

    async def _end(self) -> None:
        started, self._started = self._started, None
        if started is None:
            return
        if not started.done():
            # A start that is cancelled ends its process.
            started.cancel()
        with contextlib.suppress(asyncio.CancelledError, Ended, OSError):
            await (await started).end()


def _cause(error: Ended | OSError) -> Cause:
    return error.cause if isinstance(error, Ended) else Cause.OTHER


async def _acquire(lock: asyncio.Lock) -> None:
    """Waits for the turn of a request. Raises Unavailable when it takes too long."""
    try:
        async with asyncio.timeout(TURN_SECONDS):
            await lock.acquire()
    except TimeoutError as error:
        raise Unavailable(
            f"too many requests arrive at once: this one was not read within {TURN_SECONDS:g} s; retry later"
        ) from error
