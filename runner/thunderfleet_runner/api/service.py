"""Passes requests to rank 0 and tokens back: the interface of the group for the gateway and the benchmark.

It connects clients' requests with ranks that live for one attempt. The supervisor attaches rank 0's link when the group is
Ready and detaches it when the group fails; running requests then end with Unavailable, never as if complete. It also announces
turns: idle ranks are blocked outside of any collective, so all work starts with a message to all of them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry
from thunderfleet_crds.exchange.group import BenchmarkReport, GroupState
from thunderfleet_crds.exchange.plan import MemoryPlan, Plan

from thunderfleet_runner import protocol
from thunderfleet_runner.api.passages import Answers, fitting
from thunderfleet_runner.api.visits import Visits
from thunderfleet_runner.faults import GRACE_IS_OVER

MOVED_SECONDS = 30
"""Retry-After for a client whose answer was cut by a drain: by then the group may run elsewhere."""
REST_SECONDS = 5.0
"""How long to wait for the end of a turn. If it takes longer, the all-reduce is not measured."""
UNREAD_VALUES = 100_000
"""Tokens, and alternatives to them, that wait for a slow reader; then its request is cancelled. About 40 MB."""
FIRST_CAUSE_SECONDS = 1.0
"""How long requests that a failure has ended wait for its first cause. Ranks that lose a peer often report this before the peer
reports its own failure."""


class Unavailable(Exception):
    """The group is not serving: status 503 with Retry-After. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: int = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class GroupFailed(Unavailable):
    """The group, or the process that reads requests, failed while it worked on the request: the request may be the cause."""


class Refused(Exception):
    """The request can never be served: status 400 with the text, or an error event at the end of the stream."""


class GenerationFailed(Exception):
    """This request failed, the group continues: status 500, or an error event at the end of the stream."""


class _Stream:
    """Events of one request that wait for its reader."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[protocol.Token | protocol.Done | Exception] = asyncio.Queue()
        self._unread = 0

    def put(self, event: protocol.Token | protocol.Done | Exception) -> bool:
        """Adds an event; False if the reader is too late. Then it gets an error after the events that it has not read yet."""
        late = isinstance(event, protocol.Token) and self._unread > UNREAD_VALUES
        if late:
            event = GenerationFailed("the client reads its response too slowly, so the request was cancelled")
        self._unread += _values(event)
        self._events.put_nowait(event)
        return not late

    async def get(self) -> protocol.Token | protocol.Done | Exception:
        event = await self._events.get()
        self._unread -= _values(event)
        return event

    def empty(self) -> bool:
        return self._events.empty()


def _values(event: protocol.Token | protocol.Done | Exception) -> int:
    return 1 + len(event.top_logprobs) if isinstance(event, protocol.Token) else 1


class RankLink(Protocol):
    """Rank 0 of a Ready group."""

    def send(self, message: protocol.ToRank) -> None:
        """Sends a message to rank 0's process."""

    def announce(self, turn: int) -> None:
        """Announces turn ``turn`` to every rank of the group."""

    def measure(self) -> None:
        """Starts the all-reduce measurement on every rank; only between turns."""


@dataclass(frozen=True)
class Vocabulary:
    """Properties of the model against which the gateway checks requests."""

    size: int
    """Token ids are 0 <= id < size; 0: unknown."""
    chat_template: bool


class Service:
    """The served model, in the supervisor of any rank. All methods run on the event loop's thread."""

    def __init__(self, plan: Plan, rank: int, state: Callable[[], GroupState]) -> None:
        self.plan = plan
        self.rank = rank
        self.registry = CollectorRegistry()
        """All metrics of this supervisor."""
        self.benchmark: BenchmarkReport | None = None
        """Result of the benchmark, which the supervisor reports in its state."""
        self.answers = Answers()
        """Results of the passages that the group was asked to continue; the supervisor reports them in its state."""
        self.connections = ""
        """Identifies the connections of the group's cables, as the operator sends it; it changes after an interruption."""
        self.intake_problem: Callable[[], str] = lambda: ""
        """What is wrong with the intake process; "" if nothing is. The supervisor reports it in its state."""
        self.draining = False
        self.private = False
        """Whether only the group's own checks run: clients' requests are not admitted yet."""
        self.vocabulary = Vocabulary(0, True)
        self.arrival = asyncio.Event()
        """Set by the gateway when a request arrives: a running benchmark stops for it."""
        self._state = state
        self._link: RankLink | None = None
        self._away = "the group has not formed yet"
        self._pending_end: asyncio.TimerHandle | None = None
        """Set while requests cut by a failure wait for its first cause."""
        self._turn = 0
        self._turn_open = False
        self._streams: dict[str, _Stream] = {}
        self._ends: dict[str, Callable[[protocol.Done | None], None]] = {}
        """Callbacks of all requests that rank 0 still works on, whether or not a client still listens."""
        self._measured: asyncio.Future[protocol.Measured] | None = None
        self._between = asyncio.Event()
        """Set while no turn is open."""
        self._between.set()
        self.used_at = time.monotonic()
        """When a request was last submitted or ended."""
        self.visits = Visits(time.monotonic)
        """Requests of clients at the gateway; the supervisor reports their number in its state."""

    # --- for the gateway ---

    @property
    def state(self) -> GroupState:
        """The group's state as far as this supervisor has it; on rank 0 it is authoritative."""
        return self._state()

    @property
    def leader(self) -> bool:
        """Whether this is rank 0's supervisor, the only one whose gateway serves the API."""
        return self.rank == 0

    @property
    def leader_url(self) -> str:
        """Base URL of rank 0's gateway, without a path."""
        entry = self.plan.ranks[0]
        return f"http://{entry.address}:{entry.gateway_port}"

    @property
    def ready(self) -> bool:
        """Whether a request would be admitted; on other ranks, whether the group is Ready."""
        if self.leader:
            return self._link is not None and not self.draining and not self.private
        return self.state.phase.value == "Ready"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all metrics of this supervisor."""
        plan = self.plan
        place = {"namespace": plan.namespace, "deployment": plan.deployment, "group": str(plan.index)}
        return {**place, "rank": str(self.rank), "node": plan.ranks[self.rank].node}

    @property
    def model_name(self) -> str:
        return self.plan.model

    @property
    def memory(self) -> MemoryPlan:
        """Token limits for admission."""
        return self.plan.memory

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the passages that the group can continue."""
        return fitting(self.memory.context_tokens, self.vocabulary.size)

    @property
    def running(self) -> int:
        """Number of requests that rank 0 works on."""
        return len(self._ends)

    def works_on(self, request_id: str) -> bool:
        """Whether rank 0 still works on the request, also when the client has left and it is being cancelled."""
        return request_id in self._ends

    async def submit(
        self, request: protocol.Request, ended: Callable[[protocol.Done | None], None] = lambda done: None, *, own: bool = False
    ) -> AsyncIterator[protocol.Token | protocol.Done]:
        """Yields the request's tokens as they arrive, and Done last. Closing the iterator early (aclose) cancels the request.

        ``ended`` is called once when rank 0 has finished the request, even if its tokens have not been consumed: with its Done,
        or None if the request or the group failed. ``own``: the request is not a client's.

        Raises Unavailable when no group is Ready or the group fails meanwhile, GenerationFailed when only this request failed.
        """
        link = self._admitting(own=own)
        if request.id in self._ends:
            raise Refused(f"request id {request.id} is in use")
        stream = _Stream()
        self._streams[request.id] = stream
        self._ends[request.id] = ended
        self.used_at = time.monotonic()
        over = False
        try:
            # The request first: rank 0 must find it in its queue when the turn starts, or it would end the turn at once.
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
        """Measures the ranks' all-reduce; None when requests are running or start to wait, which would distort it.

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
        # Like a turn: requests that arrive meanwhile wait for its end, a few tens of milliseconds.
        self._open()
        link.measure()
        return await measured

    def queued(self, request_id: str) -> bool:
        """Whether tokens of the request have arrived that are not consumed yet."""
        stream = self._streams.get(request_id)
        return stream is not None and not stream.empty()

    def cancel(self, request_id: str) -> None:
        """Ends a request soon; its iterator yields Done with finish_reason cancelled. No effect on a request that has ended."""
        if request_id in self._ends and self._link is not None:
            self._link.send(protocol.Cancel(id=request_id))

    # --- for the supervisor ---

    def attach(self, link: RankLink, vocabulary: Vocabulary, *, private: bool = False) -> None:
        """The group is Ready; ``link`` leads to rank 0. ``private``: it is not Ready yet, and only its own checks run."""
        self._end_streams()
        self.private = private
        self._link = link
        self.visits.opened()
        self._measured = None
        self.vocabulary = vocabulary
        self._turn = 0
        self._close()

    def detach(self, why: str, *, settled: bool = True, awaited: Callable[[], bool] = lambda: False) -> None:
        """The group is no longer Ready: running requests end with Unavailable and ``why``.

        If not ``settled``, they end with the next ``detach``, which may have the first cause. The wait for it has steps of
        FIRST_CAUSE_SECONDS: at least one, and more while ``awaited`` returns True.
        """
        self._link = None
        self.private = False
        self._away = why
        ends, self._ends = self._ends, {}
        for ended in ends.values():
            ended(None)
        if settled:
            self._end_streams()
        elif self._pending_end is None:
            self._wait_for_cause(awaited)

    def _wait_for_cause(self, awaited: Callable[[], bool]) -> None:
        self._pending_end = asyncio.get_running_loop().call_later(FIRST_CAUSE_SECONDS, self._cause_is_late, awaited)

    def _cause_is_late(self, awaited: Callable[[], bool]) -> None:
        if awaited():
            self._wait_for_cause(awaited)
        else:
            self._end_streams()

    def _end_streams(self) -> None:
        if self._pending_end is not None:
            self._pending_end.cancel()
            self._pending_end = None
        for stream in self._streams.values():
            stream.put(Unavailable(self._away) if self.draining else GroupFailed(self._away))
        measured, self._measured = self._measured, None
        if measured is not None and not measured.done():
            measured.set_exception(Unavailable(self._away))

    def deliver(self, message: protocol.FromRank) -> None:
        """Handles a message of rank 0's process about requests; ignores others, and all messages after a failure."""
        if self._link is None:
            return
        match message:
            case protocol.Token(id=name):
                self._put(name, message)
            case protocol.Done(id=name):
                # Stopping ranks cancel running requests; a client that still listens did not cancel.
                cut = message.finish_reason == "cancelled" and self.draining
                self._put(name, Unavailable(GRACE_IS_OVER, MOVED_SECONDS) if cut else message)
                self._end(name, message)
            case protocol.RequestError(id=name, text=text, refused=refused):
                self._put(name, Refused(text) if refused else GenerationFailed(text))
                self._end(name, None)
            case protocol.Measured() if self._measured is not None:
                measured, self._measured = self._measured, None
                if not measured.done():
                    measured.set_result(message)
                self._turn_ended()
            case protocol.Idle(turn=number) if number == self._turn:
                self._turn_ended()
            case _:
                pass

    def _put(self, name: str, event: protocol.Token | protocol.Done | Exception) -> None:
        stream = self._streams.get(name)
        if stream is not None and not stream.put(event):
            # Its reader gets the rest from the stream itself.
            del self._streams[name]
            self.cancel(name)

    def _turn_ended(self) -> None:
        self._close()
        if self._ends:
            self._open_turn()

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

    def _admitting(self, *, own: bool = False) -> RankLink:
        if not self.leader:
            raise Unavailable(f"rank {self.rank} does not serve requests; use rank 0 at {self.leader_url}")
        if self.draining:
            raise Unavailable("the group is draining and accepts no new requests", retry_after=MOVED_SECONDS)
        if self._link is None:
            raise Unavailable(self._away)
        if self.private and not own:
            raise Unavailable("the group checks its answers before it serves")
        return self._link

    def _open_turn(self) -> None:
        if self._link is None or self._turn_open:
            return
        self._turn += 1
        self._open()
        self._link.announce(self._turn)
