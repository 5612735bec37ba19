"""The pools of all ModelDeployments, and the limits of all waiting requests together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from thunderfleet_crds.exchange.routing import MAX_DEMANDS, Demand, DemandAnswer
from thunderfleet_lib.httpapi.errors import ApiError
from thunderfleet_lib.httpapi.shares import Full, Scope, Shares

from thunderfleet_router.decide import limits
from thunderfleet_router.decide.catalog import Catalog, Deployment, Outlook
from thunderfleet_router.pool import Pool, Seat, Ticket, unavailable

MAX_WAITING = 1024
"""Requests that wait in a router."""
MAX_STALLED = 512
"""Requests whose clients do not read."""
REPORT_IDLE_SECONDS = 3600
"""How long after its last request a ModelDeployment is reported as idle."""


class Dispatcher:
    """Gives seats to requests. ``can_wake``: why ModelDeployments cannot be woken now, or None. Belongs to one event loop."""

    def __init__(self, can_wake: Callable[[], str | None] = lambda: None) -> None:
        self.pools: dict[str, Pool] = {}
        """By UID."""
        self.hurry = asyncio.Event()
        """Set when a ModelDeployment must be woken."""
        self.callers = limits.CallerLimits()
        self._can_wake = can_wake
        self._deleted: set[str] = set()
        """UIDs of deleted ModelDeployments that still have requests."""
        self._waiting = Shares(MAX_WAITING, limits.WAITING_PER_CALLER, MAX_WAITING // 2)
        self._stalled = Shares(MAX_STALLED, limits.STALLED_PER_CALLER, MAX_STALLED // 2)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return self._waiting.held

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent to groups."""
        return sum(pool.in_flight for pool in self.pools.values())

    def update(self, catalog: Catalog) -> None:
        """Uses a new catalog."""
        present = {deployment.uid: deployment for deployment in catalog.deployments.values()}
        for uid, pool in list(self.pools.items()):
            if uid in present:
                pool.update(present[uid])
                continue
            name = pool.deployment.full_name
            pool.refuse_all(lambda name=name: ApiError(404, f"the model {name} was deleted", code="model_not_found"))  # type: ignore[misc]
            if pool.idle:
                del self.pools[uid]
            else:
                self._deleted.add(uid)

    def pool(self, deployment: Deployment) -> Pool:
        """The pool of a ModelDeployment."""
        pool = self.pools.get(deployment.uid)
        if pool is None:
            pool = self.pools[deployment.uid] = Pool(deployment)
        return pool

    @asynccontextmanager
    async def seat(self, pool: Pool, ticket: Ticket, seconds: float, *, again: bool = False) -> AsyncIterator[Seat]:
        """Waits for a seat; the end of the block frees it. Raises ApiError."""
        waking = pool.wants_to_wake
        pool.ask(ticket, again=again)
        try:
            if not ticket.seat.done():
                self._admit(pool, ticket, waking)
                await self._wait(pool, ticket, seconds, waking)
            seat = await ticket.seat
        except BaseException:
            pool.give_up(ticket)
            raise
        try:
            yield seat
        finally:
            seat.leave()
            if pool.idle and pool.deployment.uid in self._deleted:
                self._deleted.discard(pool.deployment.uid)
                self.pools.pop(pool.deployment.uid, None)

    def stall(self, pool: Pool, seat: Seat, ticket: Ticket, *, stalled: bool) -> bool:
        """The client of a request does not read any more, or reads again. Returns whether it may go on.

        It loses its place at the group, or a few clients of one key could keep out all others. Their number is limited too.
        """
        if seat.stalled is stalled:
            return True
        if stalled:
            try:
                self._stalled.take(ticket.caller_id, 1, known=ticket.known)
            except Full:
                return False
        else:
            self._stalled.give_back(ticket.caller_id, 1, known=ticket.known)
        seat.stalled = stalled
        pool.stall(seat, stalled)
        return True

    async def _wait(self, pool: Pool, ticket: Ticket, seconds: float, waking: bool) -> None:
        if pool.wants_to_wake and not waking:
            self.hurry.set()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait([ticket.seat])
        except TimeoutError:
            why = f": {pool.deployment.message}" if pool.deployment.message else ""
            raise unavailable(f"the request waited for {seconds:g} s for {pool.deployment.full_name}{why}", 10) from None
        finally:
            self._waiting.give_back(ticket.caller_id, 1, known=ticket.known)

    def _admit(self, pool: Pool, ticket: Ticket, waking: bool) -> None:
        """Reserves a place for a waiting request. Raises ApiError if the request may not wait.

        ``waking``: whether another request already wakes the ModelDeployment.
        """
        try:
            self._waiting.check(ticket.caller_id, 1, known=ticket.known)
        except Full as error:
            whose = {Scope.ALL: "", Scope.CALLER: "of this key ", Scope.STRANGERS: "without an API key "}[error.scope]
            raise _full(f"too many requests {whose}wait in this router ({error.held}); retry later") from error
        if pool.deployment.outlook is Outlook.ASLEEP and ticket.may_wake:
            self._check_wake(pool, ticket, waking)
        self._waiting.take(ticket.caller_id, 1, known=ticket.known)

    def _check_wake(self, pool: Pool, ticket: Ticket, waking: bool) -> None:
        obstacle = self._can_wake()
        if obstacle is not None:
            raise unavailable(f"{pool.deployment.full_name} sleeps and cannot be woken now: {obstacle}", 10)
        if not waking:
            try:
                self.callers.wake(ticket.caller_id, time.monotonic())
            except limits.Exceeded as error:
                raise exceeded(error) from error

    # --- demand ---

    def demands(self) -> tuple[Demand, ...]:
        """The demand to report to the operator, wakes first."""
        now = time.monotonic()
        found = []
        for pool in self.pools.values():
            seconds = 0 if not pool.idle else int(now - pool.last_used)
            if seconds > REPORT_IDLE_SECONDS:
                continue
            deployment = pool.deployment
            found.append(
                Demand(
                    namespace=deployment.namespace,
                    deployment=deployment.name,
                    uid=deployment.uid,
                    in_flight=pool.in_flight,
                    waiting=len(pool.waiting),
                    wake=pool.wants_to_wake,
                    idle_seconds=seconds,
                )
            )
        found.sort(key=lambda demand: (not demand.wake, demand.idle_seconds))
        return tuple(found[:MAX_DEMANDS])

    def answered(self, answer: DemandAnswer) -> None:
        """Refuses waiting requests for ModelDeployments that the operator does not wake."""
        by_name = {pool.deployment.full_name: pool for pool in self.pools.values()}
        for refusal in answer.refusals:
            pool = by_name.get(f"{refusal.namespace}/{refusal.deployment}")
            if pool is not None:
                seconds, text = refusal.retry_after_seconds or 60, refusal.message
                pool.refuse_all(lambda text=text, seconds=seconds: unavailable(text, seconds), wakers_only=True)  # type: ignore[misc]

    def refuse_vain_wakes(self) -> None:
        """Refuses requests that wait for a wake that has become impossible meanwhile."""
        obstacle = self._can_wake()
        if obstacle is not None:
            self.wake_failed(obstacle)

    def wake_failed(self, why: str) -> None:
        """Refuses requests that wait for a wake that was not reported to the operator."""
        for pool in self.pools.values():
            pool.refuse_all(lambda: unavailable(f"the model sleeps and cannot be woken now: {why}", 10), wakers_only=True)


def exceeded(error: limits.Exceeded) -> ApiError:
    """Status 429 for a key's limit."""
    retry = {"Retry-After": str(error.retry_after)}
    return ApiError(429, str(error), type="rate_limit_error", code=error.code, headers=retry)


def _full(sentence: str) -> ApiError:
    return ApiError(429, sentence, type="rate_limit_error", code="queue_full", headers={"Retry-After": "5"})
