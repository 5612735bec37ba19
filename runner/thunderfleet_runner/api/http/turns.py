"""Which requests run and in which order the others follow, by their number and their tokens. Pure: nothing here waits."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from thunderfleet_crds.exchange.plan import RouterPlan
from thunderfleet_crds.vocabulary import KeyPriority
from thunderfleet_lib.httpapi import routed
from thunderfleet_lib.httpapi.fairqueue import FairQueue


@dataclass(frozen=True, slots=True)
class Place:
    """A request's place in the queue. Requests of one caller share its turn; those that no router sends are of one caller."""

    priority: KeyPriority = KeyPriority.NORMAL
    caller_id: str = ""


ANYONE = Place()


@dataclass(eq=False, slots=True)
class Turn:
    """One request of ``tokens`` (prompt and answer). ``admitted``: whether it runs; otherwise it is in the queue."""

    tokens: int
    place: Place = ANYONE
    admitted: bool = False

    @property
    def caller_id(self) -> str:
        return self.place.caller_id

    @property
    def priority(self) -> KeyPriority:
        return self.place.priority


class Turns:
    """At most ``slots`` requests with ``budget`` tokens together run at once, and ``queue`` wait.

    Requests of a higher priority run first, then callers take turns, then they run in the order they came. No request overtakes
    another because it is smaller.
    """

    def __init__(self, *, budget: int, slots: int, queue: int) -> None:
        self.limit = slots + queue
        """Maximum number of requests that run or wait."""
        self.budget = budget
        self._slots = slots
        self._queue_limit = queue
        self._running: set[Turn] = set()
        self._queue: FairQueue[Turn] = FairQueue()

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

    def ask(self, tokens: int, place: Place = ANYONE) -> Turn | None:
        """Admits a request or puts it into the queue; None if the queue is full. One that is too large runs alone."""
        turn = Turn(min(tokens, self.budget), place)
        if not len(self._queue) and self._fits(turn):
            self._admit(turn)
        elif len(self._queue) < self._queue_limit:
            self._queue.add(turn)
            # It may be ahead of a large request that has no room yet.
            self._admit_next()
        else:
            return None
        return turn

    def end(self, turn: Turn) -> tuple[Turn, ...]:
        """Removes a request that has ended or no longer waits, once. Returns the requests that this admits."""
        self._queue.remove(turn)
        self._running.discard(turn)
        return self._admit_next()

    def _admit_next(self) -> tuple[Turn, ...]:
        admitted = []
        while (following := self._queue.first()) is not None and self._fits(following):
            # Only the first request of the queue is considered.
            taken = self._queue.take(lambda _: True)
            assert taken is following
            self._admit(following)
            admitted.append(following)
        return tuple(admitted)

    def _fits(self, turn: Turn) -> bool:
        return len(self._running) < self._slots and self.reserved + turn.tokens <= self.budget

    def _admit(self, turn: Turn) -> None:
        turn.admitted = True
        self._running.add(turn)


def place_of(headers: Mapping[str, str], router: RouterPlan | None) -> Place:
    """The place of a request with these headers. Only routers can name it, because they have the group's credential."""
    if router is None:
        return ANYONE
    scheme, _, credential = headers.get("Authorization", "").partition(" ")
    digest = hashlib.sha256(credential.strip().encode("utf-8", "surrogateescape")).hexdigest()
    if scheme.lower() != "bearer" or not hmac.compare_digest(digest, router.digest):
        return ANYONE
    return Place(*routed.read_turn(headers.get(routed.TURN, "")))
