"""Which requests run and in which order the others follow, by their number and their tokens. Pure: nothing here waits."""

from collections import deque
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Turn:
    """One request of ``tokens`` (prompt and answer). ``admitted``: whether it runs; otherwise it is in the queue."""

    tokens: int
    admitted: bool = False


class Turns:
    """At most ``slots`` requests with ``budget`` tokens together run at once, and ``queue`` wait, in the order they came."""

    def __init__(self, *, budget: int, slots: int, queue: int) -> None:
        self.limit = slots + queue
        """Maximum number of requests that run or wait."""
        self.budget = budget
        self._slots = slots
        self._queue_limit = queue
        self._running: set[Turn] = set()
        self._queue: deque[Turn] = deque()

    @property
    def reserved(self) -> int:
        """Tokens of the requests that run."""
        return sum(one.tokens for one in self._running)

    @property
    def running(self) -> int:
        """Number of requests that run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._queue)

    def ask(self, tokens: int) -> Turn | None:
        """Admits a request or puts it into the queue; None if the queue is full. One that is too large runs alone."""
        turn = Turn(min(tokens, self.budget))
        if not self._queue and self._fits(turn):
            self._admit(turn)
        elif len(self._queue) < self._queue_limit:
            self._queue.append(turn)
        else:
            return None
        return turn

    def end(self, turn: Turn) -> tuple[Turn, ...]:
        """Takes back a request that has ended or no longer waits; has no effect the second time. Those that this admits."""
        if turn in self._queue:
            self._queue.remove(turn)
        self._running.discard(turn)
        admitted = []
        while self._queue and self._fits(self._queue[0]):
            admitted.append(self._queue.popleft())
            self._admit(admitted[-1])
        return tuple(admitted)

    def _fits(self, turn: Turn) -> bool:
        return len(self._running) < self._slots and self.reserved + turn.tokens <= self.budget

    def _admit(self, turn: Turn) -> None:
        turn.admitted = True
        self._running.add(turn)
