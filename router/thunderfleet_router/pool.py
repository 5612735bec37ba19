"""The running and waiting requests for one ModelDeployment.

A request gets a seat at a group when the group has fewer requests of this router than its window: those that it runs at once,
and a few more, so that none of its places is idle between two requests. Other requests wait in the pool, where keys take turns.
Requests of several routers meet in the group's queue, which orders them in the same way (``routed.TURN``).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from thunderfleet_crds.vocabulary import KeyPriority
from thunderfleet_lib.httpapi.errors import ApiError
from thunderfleet_lib.httpapi.fairqueue import FairQueue

from thunderfleet_router.decide import names
from thunderfleet_router.decide.balance import Candidate, choose
from thunderfleet_router.decide.catalog import Deployment, Group, Outlook
from thunderfleet_router.decide.prefixes import Chain, Remembered

LOST_SECONDS = 5.0
"""How long requests may still be answered by a group that has failed, before their connections are closed."""
BLOCK_SECONDS = 2.0
"""How long a group that refused a connection gets no request; the ModelDeployment's status shows by then whether it failed."""
BUSY_SECONDS, MOST_BUSY_SECONDS = 0.25, 4.0
"""How long a group whose queue is full gets no request; the time doubles until it takes one."""
LIGHT_PER_GROUP = 64
"""Requests that need no turn of the model (such as to count tokens) that a group gets at once."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that waits for a seat."""

    caller_id: str
    priority: KeyPriority
    blocks: Chain
    may_wake: bool
    known: bool = True
    """Whether the caller has a key."""
    accepted: Callable[[], bool] = lambda: True
    """Whether the ModelDeployment still accepts the caller. Checked again after a change of its keys."""
    light: bool = False
    avoid: set[str] = field(default_factory=set)
    """Groups that failed with this request."""
    seat: "asyncio.Future[Seat]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False, slots=True)
class Seat:
    """A request's place at a group. Its holder must call ``leave``."""

    group: Group
    light: bool
    leave: Callable[[], None]
    on_lost: Callable[[], None] | None = None
    """Called when the group has failed and does not answer."""
    stalled: bool = False
    """Whether its client does not read, so that it does not count: the group may be done with the request."""


@dataclass(slots=True)
class _Load:
    seats: set[Seat] = field(default_factory=set)
    blocked_until: float = 0.0
    refusals: int = 0
    used: int = 0
    lost: asyncio.TimerHandle | None = None
    stalled: set[Seat] = field(default_factory=set)
    """Those whose clients do not read."""
    _light: int = 0
    _others: int = 0

    def count(self, *, light: bool) -> int:
        """Number of seats of light requests, or of others, that take a place at the group."""
        return self._light if light else self._others

    def add(self, seat: Seat) -> None:
        self.seats.add(seat)
        self._take(seat, 1)

    def discard(self, seat: Seat) -> None:
        self.stall(seat, False)
        self.seats.discard(seat)
        self._take(seat, -1)

    def stall(self, seat: Seat, stalled: bool) -> None:
        if stalled and seat not in self.stalled:
            self.stalled.add(seat)
            self._take(seat, -1)
        elif not stalled and seat in self.stalled:
            self.stalled.discard(seat)
            self._take(seat, 1)

    def _take(self, seat: Seat, places: int) -> None:
        if seat.light:
            self._light += places
        else:
            self._others += places


class Pool:
    """The seats and waiting requests of one ModelDeployment. Belongs to one event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.waiting: FairQueue[Ticket] = FairQueue()
        self.last_used = time.monotonic()
        self._loads: dict[str, _Load] = {}
        self._remembered: dict[str, Remembered] = {}
        self._chosen = 0

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent to groups."""
        return sum(len(load.seats) for load in self._loads.values())

    @property
    def stalled(self) -> int:
        """Number of requests whose clients do not read."""
        return sum(len(load.stalled) for load in self._loads.values())

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self.in_flight and not len(self.waiting)

    @property
    def wants_to_wake(self) -> bool:
        """Whether a waiting request may wake the ModelDeployment."""
        return self.deployment.outlook is not Outlook.READY and any(ticket.may_wake for ticket in self.waiting)

    # --- requests ---

    def ask(self, ticket: Ticket, *, again: bool = False) -> None:
        """Queues the request for a seat; ``again``: it had a seat before. If no seat can come, its future gets an ApiError."""
        self.last_used = time.monotonic()
        # Its key may have been removed while a group had it.
        refusal = self._refusal(ticket, check_key=again)
        if refusal is not None:
            ticket.seat.set_exception(refusal)
            return
        if not self.waiting and (group := self._choice(ticket, self._free(light=ticket.light))) is not None:
            # No request is ahead of it.
            self._seat(ticket, group)
            return
        self.waiting.add(ticket, first=again)
        self._seat_all()

    def give_up(self, ticket: Ticket) -> None:
        """Removes a request that no longer waits, and frees a seat that it has just got."""
        self.waiting.remove(ticket)
        if ticket.seat.done() and not ticket.seat.cancelled() and ticket.seat.exception() is None:
            ticket.seat.result().leave()
        ticket.seat.cancel()

    def has_other(self, avoid: Iterable[str]) -> bool:
        """Whether a group other than those of ``avoid`` is Ready or may become Ready."""
        shunned = set(avoid)
        return any(group.name not in shunned for group in self.deployment.groups if group.phase != "GaveUp")

    def block(self, group: str, seconds: float) -> None:
        """Gives the group no request for a while."""
        load = self._loads.setdefault(group, _Load())
        load.blocked_until = max(load.blocked_until, time.monotonic() + seconds)
        asyncio.get_running_loop().call_later(seconds + 0.01, self._seat_all)

    def refused(self, group: str, *, reached: bool) -> None:
        """Records that the group rejected a request. ``reached``: whether its gateway answered."""
        load = self._loads.setdefault(group, _Load())
        busy = min(BUSY_SECONDS * 2**load.refusals, MOST_BUSY_SECONDS)
        load.refusals = min(load.refusals + 1, 8)
        self.block(group, busy if reached else BLOCK_SECONDS)

    def took(self, group: str) -> None:
        """Records that the group has answered a request."""
        load = self._loads.get(group)
        if load is not None:
            load.refusals = 0

    def stall(self, seat: Seat, stalled: bool) -> None:
        """Records whether the client of a seat does not read. Meanwhile, another request can have its place at the group."""
        load = self._loads.get(seat.group.name)
        if load is None or seat not in load.seats:
            return
        load.stall(seat, stalled)
        if stalled:
            self._seat_all()

    # --- changes ---

    def update(self, deployment: Deployment) -> None:
        """Uses a new version of the ModelDeployment."""
        before, self.deployment = self.deployment, deployment
        other_keys = (before.requires_key, before.keys) != (deployment.requires_key, deployment.keys)
        groups = {group.name: group for group in deployment.groups}
        for name, load in list(self._loads.items()):
            group = groups.get(name)
            if group is not None and not group.lost:
                if load.lost is not None:
                    load.lost.cancel()
                    load.lost = None
            elif load.seats:
                if load.lost is None:
                    load.lost = asyncio.get_running_loop().call_later(LOST_SECONDS, self._lose, name)
            elif group is None:
                del self._loads[name]
        for name in self._remembered.keys() - groups.keys():
            del self._remembered[name]
        for ticket in list(self.waiting):
            refusal = self._refusal(ticket, check_key=other_keys)
            if refusal is not None:
                self._refuse(ticket, refusal)
        self._seat_all()

    def refuse_all(self, error: Callable[[], ApiError], *, wakers_only: bool = False) -> None:
        """Refuses waiting requests; ``wakers_only``: only if the ModelDeployment sleeps."""
        if wakers_only and self.deployment.outlook is not Outlook.ASLEEP:
            return
        for ticket in list(self.waiting):
            self._refuse(ticket, error())

    def _refuse(self, ticket: Ticket, error: ApiError) -> None:
        self.waiting.remove(ticket)
        if not ticket.seat.done():
            ticket.seat.set_exception(error)

    def _refusal(self, ticket: Ticket, *, check_key: bool) -> ApiError | None:
        """Why no seat can come; None if one may."""
        deployment = self.deployment
        if check_key and not ticket.accepted():
            return names.unauthorized()
        why = f": {deployment.message}" if deployment.message else ""
        match deployment.outlook:
            case Outlook.OFF if deployment.deleting:
                return ApiError(404, f"the model {deployment.full_name} is being deleted", code="model_not_found")
            case Outlook.OFF:
                return unavailable(f"{deployment.full_name} is suspended or has no replicas; requests do not wake it", 60)
            case Outlook.FAILED:
                return unavailable(f"{deployment.full_name} has failed{why}", 30)
            case Outlook.ASLEEP if not ticket.may_wake:
                return unavailable(
                    f"{deployment.full_name} sleeps: it has no groups, and only a request with one of its API keys wakes it", 60
                )
        return None

    # --- seats ---

    def _seat_all(self) -> None:
        while self.waiting and (found := self._next()) is not None:
            self._seat(*found)

    def _next(self) -> tuple[Ticket, Group] | None:
        """The next request and its group."""
        # If all groups are full, which is common, no request is examined: a thousand may wait.
        free: dict[bool, list[tuple[Group, _Load]]] = {}
        chosen: Group | None = None

        def fits(ticket: Ticket) -> bool:
            nonlocal chosen
            if ticket.light not in free:
                free[ticket.light] = self._free(light=ticket.light)
            chosen = self._choice(ticket, free[ticket.light])
            return chosen is not None

        ticket = self.waiting.take(fits)
        return (ticket, chosen) if ticket is not None and chosen is not None else None

    def _free(self, *, light: bool) -> list[tuple[Group, _Load]]:
        """The groups that can take another request."""
        window = LIGHT_PER_GROUP if light else self.deployment.slots + max(1, self.deployment.slots // 4)
        now = time.monotonic()
        loads = [(group, self._loads.setdefault(group.name, _Load())) for group in self.deployment.groups]
        return [
            (group, load)
            for group, load in loads
            if group.ready and load.count(light=light) < window and now >= load.blocked_until
        ]

    def _choice(self, ticket: Ticket, free: Sequence[tuple[Group, _Load]]) -> Group | None:
        if not free:
            return None
        able = {group.name: (group, load) for group, load in free if group.name not in ticket.avoid}
        chosen = choose(
            Candidate(name, load.count(light=ticket.light), self._cached(name, ticket.blocks), load.used)
            for name, (_, load) in able.items()
        )
        return able[chosen.name][0] if chosen is not None else None

    def _cached(self, group: str, blocks: Chain) -> int:
        remembered = self._remembered.get(group)
        return remembered.matching(blocks) if remembered is not None else 0

    def _seat(self, ticket: Ticket, group: Group) -> None:
        load = self._loads[group.name]
        self._chosen += 1
        load.used = self._chosen
        if not ticket.light:
            remembered = self._remembered.setdefault(group.name, Remembered(self.deployment.cached_tokens))
            remembered.add(ticket.blocks)
        seat = Seat(group, ticket.light, lambda: self._leave(load, seat))
        load.add(seat)
        if ticket.seat.done():
            seat.leave()
        else:
            ticket.seat.set_result(seat)

    def _leave(self, load: _Load, seat: Seat) -> None:
        if seat in load.seats:
            load.discard(seat)
            self.last_used = time.monotonic()
            self._seat_all()

    def _lose(self, group: str) -> None:
        load = self._loads.get(group)
        for seat in list(load.seats) if load is not None else ():
            if seat.on_lost is not None:
                with contextlib.suppress(RuntimeError):
                    seat.on_lost()


def unavailable(sentence: str, retry_after: int) -> ApiError:
    """Status 503."""
    return ApiError(503, sentence, type="server_error", code="not_ready", headers={"Retry-After": str(retry_after)})
