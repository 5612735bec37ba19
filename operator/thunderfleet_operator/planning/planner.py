"""Decides which question is answered next. One process answers the questions of all ModelDeployments, one at a time.

Each ModelDeployment has at most one question for each group. A question that took long last time is repeated later and less
often: a deployment that cannot be placed takes at most a tenth of the process's time, and advice about serving groups at most a
quarter. Namespaces take turns, so that a user with thousands of deployments that cannot be placed delays others by one answer.

ModelDeployments that wait for a placement often have the same question, and a placement that one of them gets is not available
to the next. So the question of a ModelDeployment is about the fleet as it is when its turn comes. Its turn ends with the round
that carries the answer out.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib import logs
from thunderfleet_lib.backoff import Backoff

from thunderfleet_operator.placement import Answer, Answers, Placement, Question, Unplaceable, WherePlaced
from thunderfleet_operator.planning.answers import KnownAnswers
from thunderfleet_operator.planning.fairqueue import FairQueue, namespace_of
from thunderfleet_operator.planning.process import PlanningFailed

log = logging.getLogger(__name__)

MOMENT_SECONDS = 0.1
"""How long a round waits for its answers. Most arrive within this time. The rounds of other keys wait too."""
DUTY = 10.0
"""A question is repeated after this many times the processor time of its last answer."""
ADVICE_DUTY = 3.0
"""After advice about a better placement, no advice is computed for this many times its processor time."""
IDLE_SECONDS = 60.0
"""The process ends after this long without a question, to free its memory."""
TURN_SECONDS = 5.0
"""How long a turn waits for a round of its ModelDeployment. Then others take their turn, although the fleet may change after
their answer."""
RETRY = Backoff(15.0, 600.0)


class Process(Protocol):
    """What answers: ``PlanningProcess``."""

    async def ask(self, question: Question) -> tuple[Answer, float]:
        """The answer and its seconds of processor time. Raises PlanningFailed."""
        ...

    async def end(self) -> None:
        """Frees what it holds; it may be repeated."""
        ...


@dataclass(slots=True)
class _Client:
    """One ModelDeployment."""

    known: KnownAnswers
    number: int
    """Increases from client to client, and decides between questions of the same time."""
    waiting: dict[int, Question] = field(default_factory=dict)
    """Questions that have not been sent to the process yet, by group."""
    since: float = 0.0
    """Time since which it waits for its turn (monotonic)."""
    fleet: object = None
    """The fleet at the time of the question."""
    asked: int = 0
    """Number of questions that it has sent."""
    listening: bool = False
    """Whether a round waits for the answer."""
    answered: int = 0
    """Number of answers so far."""
    cost: float = 0.0
    """Processor time of the last answer in seconds."""
    unplaced: WherePlaced | None = None
    """The last question about a placement, if the answer was that there is none."""
    failures: int = 0
    """Number of times in a row that this question got no answer."""
    again: float = float("-inf")
    """Time before which this question is not repeated."""

    @property
    def first(self) -> tuple[int, Question]:
        """Its next question. A group without a placement comes before one that may get a better one."""
        group = min(self.waiting, key=lambda group: (not isinstance(self.waiting[group], WherePlaced), group))
        return group, self.waiting[group]

    @property
    def wants_place(self) -> bool:
        """Whether it waits for the placement of a group."""
        return any(isinstance(question, WherePlaced) for question in self.waiting.values())

    @property
    def due(self) -> float:
        """When its next question may be answered."""
        _, question = self.first
        same = self.unplaced is not None and isinstance(question, WherePlaced) and self.unplaced.same_request(question)
        return self.again if same else self.since

    @property
    def order(self) -> tuple[float, int]:
        """Sort key of the clients of a namespace: in the order of their questions, but hard ones later."""
        return self.since + DUTY * self.cost, self.number


@dataclass(frozen=True, slots=True)
class _Turn:
    """All other questions wait for a round of ``key``, until it has sent more than ``asked`` questions."""

    key: str
    asked: int


class Planner:
    """``changed(key)`` is called when there is an answer about a ModelDeployment. ``clock``: monotonic seconds.

    ``turn(key)`` is called instead if all other questions wait for its round, in which it repeats its question or carries out
    an answer. ``fleet`` returns another value after each change of the fleet.
    """

    def __init__(
        self,
        process: Process,
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        turn: Callable[[str], None] | None = None,
        fleet: Callable[[], object] = lambda: None,
    ) -> None:
        self._process = process
        self._changed = changed
        self._give_turn = turn if turn is not None else changed
        self._fleet = fleet
        self._clock = clock
        self._turn: _Turn | None = None
        self._clients: dict[str, _Client] = {}
        self._sizes: Counter[str] = Counter()
        """By namespace, the number of its clients."""
        self._numbers = itertools.count()
        self._served: dict[str, int] = {}
        """By namespace, the number of the last answer to it."""
        self._places = FairQueue(self._served)
        """Those whose next question is about a placement."""
        self._advices = FairQueue(self._served)
        """Those whose next question is about a better placement."""
        self._count = 0
        """Number of answers."""
        self._running: tuple[str, int, Question] | None = None
        self._advice_at = float("-inf")
        """Time before which no advice is given."""
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()

    def answers(self, key: str) -> Answers:
        """The answers about a ModelDeployment that have arrived."""
        return self._client(key).known

    def take_better(self, key: str) -> Mapping[int, str | None]:
        """What would be better about another placement (None: nothing), by group, from the answers since the last call."""
        return self._client(key).known.take_better()

    async def ask(self, key: str, questions: Mapping[int, Question]) -> bool:
        """Replaces the questions about a ModelDeployment. Returns whether one of them has been answered within a moment."""
        client = self._client(key)
        if not client.waiting:
            client.since = self._clock()
        # A question that is being answered is not repeated because the fleet has changed since.
        client.waiting = {group: new for group, new in questions.items() if not self._is_running(key, group, new)}
        client.fleet, client.asked = self._fleet(), client.asked + 1
        self._queue(key, client)
        self._wake.set()
        if not questions or not self._may_be_next(key):
            return False
        count, until = client.answered, self._clock() + MOMENT_SECONDS
        client.listening = True
        try:
            while client.answered == count and (left := until - self._clock()) > 0:
                self._answered.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._answered.wait()
        finally:
            client.listening = False
        return client.answered != count

    def _may_be_next(self, key: str) -> bool:
        """Whether an answer to this client may come within a moment."""
        if self._running is not None:
            return self._running[0] == key
        return key == (self._turn.key if self._turn is not None else self._next()[0])

    def in_line(self, key: str) -> bool:
        """Whether a ModelDeployment waits for its turn to request a placement. Until then, it ignores changes of the fleet."""
        client = self._clients.get(key)
        return client is not None and client.wants_place

    def round_over(self, key: str) -> None:
        """Ends the turn of a ModelDeployment after its round, unless the round began before the answer."""
        if self._turn is not None and self._turn.key == key and self._client(key).asked != self._turn.asked:
            self._end_turn()

    def _end_turn(self) -> None:
        self._turn = None
        self._wake.set()

    def _due(self, client: _Client) -> float:
        """When the next question of a client may be answered."""
        return client.due if isinstance(client.first[1], WherePlaced) else max(client.due, self._advice_at)

    def keep(self, key: str, groups: Set[int]) -> None:
        """Drops the placements of all groups but these."""
        self._client(key).known.keep(groups)

    def forget(self, key: str) -> None:
        """Drops a ModelDeployment."""
        if self._clients.pop(key, None) is not None:
            self._places.drop(key)
            self._advices.drop(key)
            namespace = namespace_of(key)
            self._sizes[namespace] -= 1
            if not self._sizes[namespace]:
                del self._sizes[namespace]
                self._served.pop(namespace, None)
        if self._turn is not None and self._turn.key == key:
            self._end_turn()

    async def run(self) -> None:
        """Answers questions until cancelled, and then ends the process."""
        try:
            while True:
                key, wait = self._next()
                if key is None:
                    await self._sleep(wait)
                elif await self._is_current(key):
                    await self._answer(key)
        finally:
            await self._process.end()

    async def _is_current(self, key: str) -> bool:
        """Whether a client's next question can be answered now. A question about an older fleet has to be repeated first."""
        client = self._clients[key]
        if not client.wants_place or client.fleet is self._fleet():
            return True
        turn = self._turn = _Turn(key, client.asked)
        self._give_turn(key)
        await self._until(lambda: self._turn is not turn or client.asked != turn.asked)
        self._turn = None
        return self._clients.get(key) is client and bool(client.waiting)

    async def _until(self, over: Callable[[], bool]) -> None:
        """Waits for a round, but only for a limited time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TURN_SECONDS):
                while not over():
                    self._wake.clear()
                    await self._wake.wait()

    async def _sleep(self, seconds: float | None) -> None:
        """Waits until there is a question, or one is due. Ends the process after a long idle time."""
        self._wake.clear()
        idle = seconds is None or seconds > IDLE_SECONDS
        try:
            # Not wait_for, which loses a cancellation that comes together with the event.
            async with asyncio.timeout(IDLE_SECONDS if idle else seconds):
                await self._wake.wait()
        except TimeoutError:
            if idle:
                await self._process.end()

    def _next(self) -> tuple[str | None, float | None]:
        """The client whose question is next; otherwise the seconds until one is due, or None if none waits."""
        now = self._clock()
        if self._turn is not None:
            client = self._clients.get(self._turn.key)
            if client is not None and client.waiting and self._due(client) <= now:
                return self._turn.key, None
        found = self._places.first(now)
        if found is None and self._advice_at <= now:
            found = self._advices.first(now)
        if found is not None:
            return found, None
        place, advice = self._places.due, self._advices.due
        times = (place, max(advice, self._advice_at) if advice is not None else None)
        return None, min((due - now for due in times if due is not None), default=None)

    def _queue(self, key: str, client: _Client) -> None:
        """Puts a client into the queue of its next question, after anything has changed that its place depends on."""
        place = bool(client.waiting) and isinstance(client.first[1], WherePlaced)
        for queue, here in ((self._places, place), (self._advices, bool(client.waiting) and not place)):
            if here:
                queue.put(key, client.due, client.order)
            else:
                queue.drop(key)

    def _note_answer(self, namespace: str) -> None:
        self._count += 1
        self._served[namespace] = self._count
        self._places.reorder(namespace)
        self._advices.reorder(namespace)

    async def _answer(self, key: str) -> None:
        client = self._clients[key]
        group, question = client.first
        del client.waiting[group]
        self._note_answer(namespace_of(key))
        self._queue(key, client)
        if isinstance(question, WherePlaced) and client.unplaced is not None and not client.unplaced.same_request(question):
            client.failures = 0
        self._running = (key, group, question)
        failed = False
        answer: Answer
        try:
            answer, client.cost = await self._process.ask(question)
            client.failures, pause = 0, DUTY * client.cost
        except PlanningFailed as failure:
            failed, client.failures = True, client.failures + 1
            pause = RETRY.seconds(client.failures)
            extra = logs.about(**logs.of_key(key))
            log.error("ModelDeployment %s: the planner %s; the next try is in %.0f s", key, failure, pause, extra=extra)
            answer = Unplaceable(Reason.PLANNING_FAILED, f"the planner {failure}", proven=False)
        finally:
            self._running = None
        client.since = self._clock()
        if not isinstance(question, WherePlaced):
            self._advice_at = client.since + ADVICE_DUTY * client.cost
        client.answered += 1
        if isinstance(question, WherePlaced):
            client.unplaced = question if isinstance(answer, Unplaceable) else None
            client.again = client.since + pause
        client.known.put(group, question, answer, final=not failed)
        self._answered.set()
        if self._clients.get(key) is not client:
            return
        self._queue(key, client)
        if not isinstance(answer, Placement):
            if not client.listening:
                self._changed(key)
            return
        turn = self._turn = _Turn(key, client.asked)
        if not client.listening:
            self._give_turn(key)
        # The memory that it gets is not available to the next one. For its own next group it may send a question at once.
        await self._until(lambda: self._turn is not turn or (client.asked != turn.asked and client.wants_place))
        if self._turn is turn and client.asked == turn.asked:
            self._turn = None

    def _client(self, key: str) -> _Client:
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _Client(KnownAnswers(self._clock), next(self._numbers))
            self._sizes[namespace_of(key)] += 1
        return client

    def _is_running(self, key: str, group: int, question: Question) -> bool:
        running = self._running
        return running is not None and running[:2] == (key, group) and _similar(running[2], question)


def _similar(one: Question, other: Question) -> bool:
    """Whether both are the same question, regardless of the fleet."""
    if isinstance(one, WherePlaced) and isinstance(other, WherePlaced):
        return one.same_request(other)
    return type(one) is type(other)
