"""One request from its body to its response: the caller, the model, a seat, and at most one other attempt."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aiohttp import web
from thunderfleet_crds.exchange.routing import KeyLimits
from thunderfleet_lib import logs
from thunderfleet_lib.httpapi import routed
from thunderfleet_lib.httpapi.bodies import Bodies
from thunderfleet_lib.httpapi.errors import ApiError
from thunderfleet_lib.httpapi.paths import LIGHT
from thunderfleet_lib.httpapi.shares import Shares

from thunderfleet_router.decide import asked, limits, names, prefixes, suspects
from thunderfleet_router.decide.asked import Asked
from thunderfleet_router.decide.callers import Caller, caller, sent_keys
from thunderfleet_router.decide.catalog import Catalog, Deployment
from thunderfleet_router.dispatcher import Dispatcher, exceeded
from thunderfleet_router.http.metrics import RouterMetrics
from thunderfleet_router.http.reply import ClientGone, Reply
from thunderfleet_router.http.upstream import Outcome, Upstream, Verdict
from thunderfleet_router.pool import BLOCK_SECONDS, Pool, Seat, Ticket
from thunderfleet_router.tracing import OFF, NoSpan, Span, Tracing

log = logging.getLogger(__name__)

MAX_REQUESTS = 1280
"""Requests that are read, wait or run; others get 429 before their body is read."""
UNKNOWN = "-"
"""Placeholder for an unknown value of a request."""
PARSED_HERE_BYTES = 256 * 1024
"""Larger bodies are parsed in a thread, one at a time: each holds the interpreter's lock for up to 0.2 s, and between two of
them the event loop has its turn."""
_PASSED = ("Content-Type", "Accept", "anthropic-version", "anthropic-beta", "traceparent", "tracestate")
T = TypeVar("T")
U = TypeVar("U")
NO_LIMITS = KeyLimits()
WORKED_SECONDS = 0.5
"""A gateway that refuses a request answers sooner than this."""


@dataclass(slots=True)
class Record:
    """The log record of a request."""

    request_id: str
    span: Span = field(default_factory=NoSpan)
    key: str = UNKNOWN
    model: str = UNKNOWN
    group: str = UNKNOWN
    attempts: int = 0
    tokens: int = 0
    waited: float = 0.0

    def describe(self, method: str, endpoint: str, code: int) -> None:
        """Writes the same values into the span."""
        self.span.set(
            {
                "http.request.method": method,
                "http.route": endpoint,
                "http.response.status_code": code,
                "gen_ai.request.model": self.model,
                "gen_ai.usage.total_tokens": self.tokens,
                "thunderfleet.request_id": self.request_id,
                "thunderfleet.key": self.key,
                "thunderfleet.attempts": self.attempts,
                "thunderfleet.waited_seconds": round(self.waited, 6),
            }
        )
        if code >= 500:
            self.span.failed(f"status {code}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the router that requests depend on."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """Fleet-wide aliases: name to ``namespace/name``."""
    anonymous_wake: bool = False
    hold_seconds: float = 300.0
    """How long a request waits for a seat at most."""


class Exchanges:
    """Answers requests. Belongs to one event loop."""

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        dispatcher: Dispatcher,
        upstream: Upstream,
        metrics: RouterMetrics,
        settings: Settings,
        tracing: Tracing = OFF,
    ) -> None:
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._upstream = upstream
        self._metrics = metrics
        self._settings = settings
        self._tracing = tracing
        # Callers without a key get half of each limit, because a client can have any number of addresses.
        self._bodies = Bodies(
            Shares(limits.BODY_BYTES, limits.BODY_BYTES_PER_CALLER, limits.BODY_BYTES // 2),
            Shares(MAX_REQUESTS, limits.RECEIVING_PER_CALLER, MAX_REQUESTS // 2),
        )
        self._suspects = suspects.Suspects()
        self._parsing = asyncio.Lock()

    async def answer(self, request: web.Request, reply: Reply, record: Record) -> None:
        """Answers a request. Raises ApiError if nothing but comments was sent to the client."""
        catalog = self._catalog()
        who = caller(catalog, request.headers, request.remote or "")
        record.key = who.name
        # Before the body is read: a caller who may use no model must not take memory.
        names.admit(catalog, who)
        async with self._bodies.read(request, who.id, known=who.known) as body:
            parsed = await self._aside(body, asked.parse, body)
            deployment = names.resolve(catalog, who, parsed.model, self._settings.aliases)
            record.model = deployment.full_name
            if parsed.model is not None and parsed.model not in deployment.gateway_names:
                body = await self._aside(body, parsed.renamed, deployment.full_name)
            with logs.fields(namespace=deployment.namespace, deployment=deployment.name):
                await self._limited(_Call(request, reply, record, who, deployment, parsed.without_fields(), body))

    async def _aside(self, body: bytes, work: Callable[[T], U], argument: T) -> U:
        """The result of work on a body: in a thread if it is large."""
        if len(body) <= PARSED_HERE_BYTES:
            return work(argument)
        async with self._parsing:
            return await asyncio.to_thread(work, argument)

    async def _limited(self, call: "_Call") -> None:
        """Counts the request for its key's limits."""
        grant = call.who.grants.get(call.deployment.uid)
        key_limits = grant if grant is None else grant.limits
        counted, wanted = f"{call.who.id} {call.deployment.uid}", key_limits or NO_LIMITS
        if grant is not None:
            # A key may have another name in each ModelDeployment that accepts it.
            call.record.key = grant.name
        try:
            self._dispatcher.callers.enter(counted, wanted, time.monotonic())
        except limits.Exceeded as error:
            raise exceeded(error) from error
        try:
            await self._attempts(call, wanted)
        except (asyncio.CancelledError, ClientGone):
            call.estimate()
            raise
        finally:
            self._dispatcher.callers.leave(counted, wanted, call.record.tokens, time.monotonic())

    async def _attempts(self, call: "_Call", key_limits: KeyLimits) -> None:
        self._refuse_suspect(call)
        pool = self._dispatcher.pool(call.deployment)
        blocks = prefixes.chain(call.parsed.prompt)
        until = time.monotonic() + self._settings.hold_seconds
        avoid: set[str] = set()
        async with call.reply.kept_alive(call.parsed.stream):
            while True:
                ticket = Ticket(
                    caller_id=call.who.id,
                    priority=key_limits.priority,
                    blocks=blocks,
                    may_wake=self._settings.anonymous_wake or call.deployment.namespace in call.who.namespaces,
                    known=call.who.known,
                    accepted=lambda: self._accepted(call),
                    light=call.request.path in LIGHT,
                    avoid=avoid,
                )
                outcome = await self._attempt(call, pool, ticket, until)
                if outcome.group_failed:
                    self._suspect(call)
                elif outcome.verdict is Verdict.ANSWERED and self._suspects:
                    self._suspects.answered(call.digest)
                if outcome.verdict in (Verdict.ANSWERED, Verdict.CUT):
                    call.estimate()
                    return
                assert outcome.error is not None
                if outcome.verdict is Verdict.FAILED:
                    self._refuse_suspect(call)
                    if len(avoid) > 1 or not pool.has_other(avoid):
                        raise outcome.error
                    self._metrics.retries.inc()
                elif time.monotonic() >= until:
                    raise outcome.error

    async def _attempt(self, call: "_Call", pool: Pool, ticket: Ticket, until: float) -> Outcome:
        started = time.monotonic()
        again = call.record.attempts > 0
        async with self._dispatcher.seat(pool, ticket, max(until - started, 0.001), again=again) as seat:
            call.record.waited += time.monotonic() - started
            call.record.attempts += 1
            call.sent_at = seated = time.monotonic()
            call.sent_to = seat.group.name
            call.record.group = str(seat.group.index)
            call.reply.on_stall = lambda stalled: self._dispatcher.stall(pool, seat, ticket, stalled=stalled)
            call.headers[routed.ANSWERED] = str(seat.group.index)
            with self._tracing.attempt(f"group {seat.group.name}", call.record.span) as span:
                sent = {**_headers(call, seat, ticket), **span.headers()}
                outcome = await self._upstream.attempt(
                    seat, call.request.path, call.body, sent, call.reply, stream=call.parsed.stream
                )
                if _failed_silently(outcome, seat, time.monotonic() - seated):
                    outcome = replace(outcome, verdict=Verdict.FAILED)
                _describe(span, seat, outcome)
            call.record.tokens += outcome.tokens
            group = seat.group.name
            if outcome.verdict is Verdict.NOT_TAKEN:
                pool.refused(group, reached=outcome.reached)
            elif not outcome.group_failed:
                pool.took(group)
            else:
                pool.block(group, BLOCK_SECONDS)
                ticket.avoid.add(group)
            return outcome

    def _accepted(self, call: "_Call") -> bool:
        """Whether the caller may still use the model, by the keys that it accepts now."""
        catalog = self._catalog()
        deployment = catalog.deployments.get(call.deployment.full_name)
        return deployment is None or caller(catalog, call.request.headers, call.request.remote or "").may_use(deployment)

    def _suspect(self, call: "_Call") -> None:
        count = self._suspects.failed(call.digest, call.sent_to, call.sent_at, time.monotonic())
        self._metrics.group_failures.inc()
        log.warning(
            "the request was in flight when group %s of %s failed (%d of %d); digest %s",
            call.record.group, call.record.model, count, suspects.FAILURES, call.digest, extra=_about(call),
        )  # fmt: skip

    def _refuse_suspect(self, call: "_Call") -> None:
        """Raises ApiError for a request that was in flight at two failures."""
        if not self._suspects or not self._suspects.refused(call.digest, time.monotonic()):
            return
        self._metrics.suspects.inc()
        text = "the request is refused: digest %s was in flight at two group failures"
        log.error(text, call.digest, extra=_about(call))
        raise ApiError(
            422,
            "two groups failed while they worked on this request, so it is not sent to another one; change it, or send it "
            f"again in {suspects.FORGET_SECONDS / 60:g} minutes",
            code="request_suspected",
        )


@dataclass(slots=True)
class _Call:
    """A request in flight."""

    request: web.Request
    reply: Reply
    record: Record
    who: Caller
    deployment: Deployment
    parsed: Asked
    body: bytes
    sent_to: str = ""
    """The name of the group that has it."""
    sent_at: float = 0.0
    _digest: str = ""

    @property
    def digest(self) -> str:
        """The request's digest for suspects. Computed only if there are suspects, since a body may have megabytes."""
        if not self._digest:
            self._digest = suspects.digest(self.deployment.uid, self.request.path, self.body)
        return self._digest

    @property
    def headers(self) -> dict[str, str]:
        return self.reply.headers

    def estimate(self) -> None:
        """Estimates the tokens of an answer that did not end, or of a group that does not count them."""
        if not self.record.tokens and (self.record.attempts or self.reply.answered):
            self.record.tokens = self.reply.events + len(self.parsed.prompt) // prefixes.BYTES_PER_TOKEN


def _describe(span: Span, seat: Seat, outcome: Outcome) -> None:
    span.set(
        {
            "thunderfleet.group": seat.group.index,
            "thunderfleet.verdict": outcome.verdict,
            "http.response.status_code": outcome.status,
            "gen_ai.usage.total_tokens": outcome.tokens,
        }
    )
    if outcome.group_failed:
        span.failed(str(outcome.error))


def _about(call: _Call) -> dict[str, object]:
    """Log fields for a request that was sent to a group."""
    group = int(call.record.group) if call.record.group != UNKNOWN else None
    return logs.about(group=group, **logs.of_key(call.record.model))


def _failed_silently(outcome: Outcome, seat: Seat, seconds: float) -> bool:
    """Whether a group of an earlier version failed: its gateway does not report failures, and answers 503 after some time."""
    of_before = seat.group.credential is None
    return of_before and outcome.verdict is Verdict.NOT_TAKEN and outcome.status == 503 and seconds >= WORKED_SECONDS


def _headers(call: _Call, seat: Seat, ticket: Ticket) -> dict[str, str]:
    """The headers for a gateway."""
    found = {name: call.request.headers[name] for name in _PASSED if name in call.request.headers}
    found["X-Request-Id"] = call.record.request_id
    found[routed.ROUTED] = "1"
    found[routed.TURN] = routed.turn(ticket.priority, ticket.caller_id)
    if seat.group.credential is not None:
        found["Authorization"] = f"Bearer {seat.group.credential}"
    elif call.deployment.requires_key:
        # A group of an earlier version, without credentials for routers. It checks the key itself.
        for key in sent_keys(call.request.headers)[:1]:
            found["Authorization"] = f"Bearer {key}"
    return found
