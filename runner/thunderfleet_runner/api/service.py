"""What the gateway and the benchmark see of the group: one object in the supervisor's process.

It stands between two things that come and go on their own: clients' requests, and ranks that live for one attempt. The
supervisor attaches rank 0's link when the group is Ready and detaches it when the group fails; whatever runs then ends with
Unavailable, never as if complete. It also decides when a turn is announced: idle ranks sleep outside of any collective, so
work for them begins with a word to all of them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from thunderfleet_crds.group import BenchmarkReport, GroupState
from thunderfleet_crds.plan import MemoryPlan, Plan

from thunderfleet_runner import protocol
from thunderfleet_runner.faults import GRACE_IS_OVER

MOVED_SECONDS = 30
"""When a client whose answer a drain has cut may find the group elsewhere."""
REST_SECONDS = 5.0
"""How long the end of a turn is waited for before the all-reduce is not measured."""
PREPARE_SECONDS = 30.0
"""How long a rank may take to render and count one prompt."""


FIRST_CAUSE_SECONDS = 1.0
"""How long requests that a failure has cut wait for its first cause to be known: ranks that see a peer go are often heard
before the one that has gone."""


class Unavailable(Exception):
    """The group does not serve now; answer 503 with Retry-After. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Refused(Exception):
    """The request cannot be served whatever the group does; answer 400 with the text."""


class GenerationFailed(Exception):
    """This request failed, the group goes on; answer 500, or end the stream with an error event."""


class RankLink(Protocol):
    """Rank 0 of a Ready group, as the supervisor offers it."""

    def send(self, message: protocol.ToRank) -> None:
        """To rank 0's process."""

    def announce(self, turn: int) -> None:
        """Turn ``turn`` to every rank of the group, rank 0 included."""

    def measure(self) -> None:
        """The all-reduce's measurement to every rank; only between turns."""


@dataclass(frozen=True)
class Vocabulary:
    """What the gateway must know of the model to check a request before a rank sees it."""

    size: int
    """Ids are 0 <= id < size; 0: not known."""
    chat_template: bool


class Service:
    """The served model, from inside the supervisor of any rank. All methods belong to the event loop's thread."""

    def __init__(self, plan: Plan, rank: int, state: Callable[[], GroupState]) -> None:
        self.plan = plan
        self.rank = rank
        self.registry = CollectorRegistry()
        """Every metric of this supervisor; the gateway adds its own and serves all of it on /metrics."""
        self.benchmark: BenchmarkReport | None = None
        """Set by the benchmark; the supervisor reports it in its state."""
        self.draining = False
        self.vocabulary = Vocabulary(0, True)
        self.visitor = asyncio.Event()
        """Set by the gateway when a client's request comes: a running benchmark gives way."""
        self._state = state
        self._link: RankLink | None = None
        self._away = "the group is not formed yet"
        self._untold: asyncio.TimerHandle | None = None
        """Set while what a failure has cut is not told yet."""
        self._turn = 0
        self._turn_open = False
        self._streams: dict[str, asyncio.Queue[protocol.Token | protocol.Done | Exception]] = {}
        self._ends: dict[str, Callable[[protocol.Done | None], None]] = {}
        """Of every request that rank 0 still works on, whether or not anybody listens."""
        self._counts: dict[str, asyncio.Future[int]] = {}
        self._measured: asyncio.Future[protocol.Measured] | None = None
        self._between = asyncio.Event()
        """Set while no turn is open."""
        self._between.set()
        self.used_at = time.monotonic()
        """When something was generated last."""

    # --- for the gateway ---

    @property
    def state(self) -> GroupState:
        """The group's state as this supervisor knows it (of rank 0: the truth)."""
        return self._state()

    @property
    def leader(self) -> bool:
        """Whether this is rank 0's supervisor: the only one whose gateway serves the API."""
        return self.rank == 0

    @property
    def leader_url(self) -> str:
        """Base URL of rank 0's gateway, without a path."""
        entry = self.plan.ranks[0]
        return f"http://{entry.address}:{entry.gateway_port}"

    @property
    def ready(self) -> bool:
        """Whether a request would be admitted. On other ranks: whether the group is Ready."""
        if self.leader:
            return self._link is not None and not self.draining
        return self.state.phase.value == "Ready"

    @property
    def model_name(self) -> str:
        return self.plan.model

    @property
    def memory(self) -> MemoryPlan:
        """Tokens to admit by."""
        return self.plan.memory

    @property
    def running(self) -> int:
        """Requests that rank 0 has and has not ended."""
        return len(self._ends)

    async def prepare(self, request: protocol.Request) -> int:
        """Tokens of the request's prompt, template applied.

        Raises Refused when the model's template or tokenizer cannot make a prompt of it, Unavailable when no group is Ready.
        """
        link = self._admitting()
        count: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if request.id in self._counts:
            raise Refused(f"request id {request.id} is in use")
        self._counts[request.id] = count
        try:
            link.send(protocol.Prepare(request=request))
            async with asyncio.timeout(PREPARE_SECONDS):
                return await count
        except TimeoutError as error:
            raise Unavailable(f"rank 0 did not count the prompt within {PREPARE_SECONDS:g} s") from error
        finally:
            self._counts.pop(request.id, None)

    def works_on(self, request_id: str) -> bool:
        """Whether rank 0 has the request and has not ended it: also when the client has left and it is only being cancelled."""
        return request_id in self._ends

    async def submit(
        self, request: protocol.Request, ended: Callable[[protocol.Done | None], None] = lambda done: None
    ) -> AsyncIterator[protocol.Token | protocol.Done]:
        """The request's tokens as they come, and Done last. Leaving the iterator early (aclose) cancels the request.

        ``ended`` is called once when rank 0 is done with it, however slowly the tokens are taken: with its Done, or None when
        it failed or the group did.

        Raises Unavailable when no group is Ready or the group fails meanwhile, GenerationFailed when only this request failed.
        """
        link = self._admitting()
        if request.id in self._ends:
            raise Refused(f"request id {request.id} is in use")
        stream: asyncio.Queue[protocol.Token | protocol.Done | Exception] = asyncio.Queue()
        self._streams[request.id] = stream
        self._ends[request.id] = ended
        self.used_at = time.monotonic()
        over = False
        try:
            # The request first: rank 0 must find it in its queue when the turn begins, or it would end the turn at once.
            link.send(protocol.Generate(request=request))
            self._open_turn()
            while not over:
                event = await stream.get()
                over = not isinstance(event, protocol.Token)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            if not over:
                self.cancel(request.id)
            self._streams.pop(request.id, None)
            self.used_at = time.monotonic()

    async def measure_all_reduce(self) -> protocol.Measured | None:
        """What the ranks' all-reduce takes now; None when requests run, or begin to wait, so that it would say nothing.

        Raises Unavailable when no group is Ready or the group fails meanwhile.
        """
        # The last request's turn ends a moment after the request.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await self._between.wait()
        link = self._admitting()
        if self._turn_open or self._ends or self._measured is not None:
            return None
        measured: asyncio.Future[protocol.Measured] = asyncio.get_running_loop().create_future()
        self._measured = measured
        # As a turn: requests that come meanwhile wait for its end, a few tens of milliseconds.
        self._open()
        link.measure()
        return await measured

    def queued(self, request_id: str) -> bool:
        """Whether more of the request's tokens have come than were taken."""
        stream = self._streams.get(request_id)
        return stream is not None and not stream.empty()

    def cancel(self, request_id: str) -> None:
        """Ends a request soon; its iterator gets Done with finish_reason cancelled. Nothing happens when it has ended."""
        if request_id in self._ends and self._link is not None:
            self._link.send(protocol.Cancel(id=request_id))

    # --- for the supervisor ---

    def attach(self, link: RankLink, vocabulary: Vocabulary) -> None:
        """The group is Ready: rank 0 is reached through ``link``."""
        self._tell()
        self._link = link
        self._measured = None
        self.vocabulary = vocabulary
        self._turn = 0
        self._close()

    def detach(self, why: str, *, settled: bool = True) -> None:
        """The group is not Ready any more: everything that runs ends with Unavailable, and ``why``.

        Not ``settled``: it is told by the next ``detach``, which may know better, at the latest in FIRST_CAUSE_SECONDS.
        """
        self._link = None
        self._away = why
        ends, self._ends = self._ends, {}
        for ended in ends.values():
            ended(None)
        if settled:
            self._tell()
        elif self._untold is None:
            self._untold = asyncio.get_running_loop().call_later(FIRST_CAUSE_SECONDS, self._tell)

    def _tell(self) -> None:
        if self._untold is not None:
            self._untold.cancel()
            self._untold = None
        for stream in self._streams.values():
            stream.put_nowait(Unavailable(self._away))
        waiting: list[asyncio.Future[Any]] = [*self._counts.values()]
        if self._measured is not None:
            waiting.append(self._measured)
            self._measured = None
        for future in waiting:
            if not future.done():
                future.set_exception(Unavailable(self._away))

    def deliver(self, message: protocol.FromRank) -> None:
        """A message of rank 0's process that concerns requests; others are ignored, and all that come after a failure."""
        if self._link is None:
            return
        match message:
            case protocol.Token(id=name):
                if name in self._streams:
                    self._streams[name].put_nowait(message)
            case protocol.Done(id=name):
                if name in self._streams:
                    # Ranks that stop cancel what still runs; nobody has asked for that who still listens.
                    cut = message.finish_reason == "cancelled" and self.draining
                    self._streams[name].put_nowait(Unavailable(GRACE_IS_OVER, MOVED_SECONDS) if cut else message)
                self._end(name, message)
            case protocol.RequestError(id=name, text=text):
                if name in self._streams:
                    self._streams[name].put_nowait(GenerationFailed(text))
                self._end(name, None)
            case protocol.Prepared(id=name, prompt_tokens=tokens, error=error):
                count = self._counts.get(name)
                if count is not None and not count.done():
                    if error is None:
                        count.set_result(tokens)
                    else:
                        count.set_exception(Refused(error))
            case protocol.Measured() if self._measured is not None:
                measured, self._measured = self._measured, None
                self._close()
                if not measured.done():
                    measured.set_result(message)
                if self._ends:
                    self._open_turn()
            case protocol.Idle(turn=number) if number == self._turn:
                self._close()
                if self._ends:
                    self._open_turn()
            case _:
                pass

    def _end(self, name: str, done: protocol.Done | None) -> None:
        ended = self._ends.pop(name, None)
        if ended is not None:
            ended(done)

    def _open(self) -> None:
        self._turn_open = True
        self._between.clear()

    def _close(self) -> None:
        self._turn_open = False
        self._between.set()

    def _admitting(self) -> RankLink:
        if not self.leader:
            raise Unavailable(f"rank {self.rank} does not serve; ask rank 0 at {self.leader_url}")
        if self.draining:
            raise Unavailable("the group is draining and takes no new requests", retry_after=MOVED_SECONDS)
        if self._link is None:
            raise Unavailable(self._away)
        return self._link

    def _open_turn(self) -> None:
        if self._link is None or self._turn_open:
            return
        self._turn += 1
        self._open()
        self._link.announce(self._turn)
