"""The client of the groups: polls rank 0 of each for its state, and requests drains, over mutual TLS with the group's keys.

A long poll: rank 0 answers as soon as its group enters another phase, so no failure is missed between two polls. Each change,
and a silence that lasts, puts the ModelDeployment on the work queue.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import aiohttp
from pydantic import ValidationError
from thunderfleet_crds.exchange.group import DRAIN_PATH, STATE_PATH, GroupState
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME, Plan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_lib.net import tls

from thunderfleet_operator.act.keys import KeyPair
from thunderfleet_operator.observe.objects.plans import Report

log = logging.getLogger(__name__)

MOVED_SECONDS = 0.05
"""The pause after a change of phase. It bounds the load of a group that changes all the time."""
BUSY_SECONDS = 1.0
QUIET_SECONDS = 5.0
ANSWER_SECONDS = 4.0
FIRST_ANSWER_SECONDS = 5.0
"""How long the first answer of a group is expected, for example after a restart of the operator."""
BODY_BYTES = 2**20
"""Maximum size of a state; that of 64 ranks is a tenth of it."""
REMIND_SECONDS = 10.0
"""How often a silent group puts its ModelDeployment on the queue."""


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _without_requests(state: GroupState) -> GroupState:
    """The part of the state whose change needs a round at once. Excludes figures of requests, which change all the time."""
    return state.model_copy(update={"requests": None, "in_flight": None, "idle_seconds": None})


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """The body. Raises ``ValueError`` if it is too long: anyone with the keys of a group can answer in place of rank 0."""
    found = bytearray()
    async for chunk in answer.content.iter_any():
        found += chunk
        if len(found) > BODY_BYTES:
            raise ValueError(f"the answer is longer than {BODY_BYTES} bytes")
    return bytes(found)


class _Poller:
    """One placement of one group."""

    def __init__(
        self,
        plan: Plan,
        pair: KeyPair,
        session: aiohttp.ClientSession,
        changed: Callable[[], None],
        leading: Callable[[], bool],
    ) -> None:
        self.plan = plan
        self.state: GroupState | None = None
        self.connections = ""
        """What identifies the connections of its cables."""
        self.asked = False
        """Whether it has been polled once, with or without an answer."""
        self._started = self._answered = self._phase_since = time.monotonic()
        self._draining: asyncio.Task[None] | None = None
        self._accepted = False
        self._context = tls.pinned(pair.certificate, pair.key, server=False)
        self._session = session
        self._changed = changed
        self._leading = leading
        self.task = asyncio.create_task(self._run(), name=f"poll {plan.group} e{plan.epoch}")

    @property
    def report(self) -> Report:
        """The last state, and its age."""
        now = time.monotonic()
        return Report(self.state, now - self._answered, now - self._phase_since)

    @property
    def first_answer_seconds(self) -> float:
        """Seconds until the first answer has taken too long to wait for."""
        return self._started + FIRST_ANSWER_SECONDS - time.monotonic()

    def _url(self, path: str) -> str:
        leader = self.plan.ranks[0]
        return f"https://{_host(leader.address)}:{leader.control_port}{path}"

    def drain(self) -> None:
        """Starts to request a drain of rank 0, until it accepts or this replica no longer leads."""
        if self._draining is None or (self._draining.done() and not self._accepted):
            self._draining = asyncio.create_task(self._drain(), name=f"drain {self.plan.group} e{self.plan.epoch}")

    async def _drain(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        while self._leading():
            try:
                async with self._session.post(
                    self._url(DRAIN_PATH),
                    ssl=self._context,
                    server_hostname=GROUP_TLS_NAME,
                    timeout=timeout,
                    allow_redirects=False,
                ) as answer:
                    if answer.status == 202:
                        self._accepted = True
                        log.info("%s: epoch %d is draining", self.plan.group, self.plan.epoch)
                        return
                    why = f"HTTP {answer.status}"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = str(error) or type(error).__name__
            log.warning("%s: rank 0 at %s has not accepted the drain yet: %s", self.plan.group, self._url(DRAIN_PATH), why)
            await asyncio.sleep(BUSY_SECONDS)

    def end(self) -> list["asyncio.Task[None]"]:
        """Cancels its tasks and returns them, to be awaited."""
        tasks = [task for task in (self.task, self._draining) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _ask(self, seconds: float, known: GroupState | None) -> GroupState | None:
        """The group's state: at once if it differs from ``known``, else when it changes or after ``seconds``."""
        url = self._url(STATE_PATH)
        wait = {} if known is None else {"wait": f"{seconds:g}", "phase": known.phase.value, "attempt": str(known.attempt)}
        about = {"connections": self.connections} if self.connections else {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS + (seconds if wait else 0))
        try:
            async with self._session.get(
                url,
                params=wait | about,
                ssl=self._context,
                server_hostname=GROUP_TLS_NAME,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    log.debug("%s: %s: HTTP %d", self.plan.group, url, answer.status)
                    return None
                state = GroupState.model_validate_json(await _body(answer))
        except (aiohttp.ClientError, OSError, TimeoutError, ValidationError, ValueError) as error:
            log.debug("%s: %s: %s", self.plan.group, url, error)
            return None
        mine = (self.plan.uid, self.plan.index, self.plan.epoch)
        return state if (state.uid, state.index, state.epoch) == mine else None

    async def _run(self) -> None:
        reminded = 0.0
        known: GroupState | None = None
        while True:
            seconds = QUIET_SECONDS if known is not None and known.phase is GroupPhase.READY else BUSY_SECONDS
            began = time.monotonic()
            state = await self._ask(seconds, known)
            now = time.monotonic()
            first, self.asked = not self.asked, True
            if state is not None:
                back = now - self._answered > REMIND_SECONDS
                self._answered = now
                if self.state is None or self.state.phase is not state.phase:
                    self._phase_since = now
                before, self.state = self.state, state
                if before is None or back or _without_requests(state) != _without_requests(before):
                    self._changed()
            elif now - self._answered > REMIND_SECONDS and now - reminded > REMIND_SECONDS:
                reminded = now
                self._changed()
            elif first:
                self._changed()
            moved = state is not None and (known is None or (state.phase, state.attempt) != (known.phase, known.attempt))
            known = state
            # A supervisor that answers early without a change is not polled more often.
            await asyncio.sleep(MOVED_SECONDS if moved else max(0.0, seconds - (now - began)))


class GroupClient:
    """All pollers.

    ``changed(key)`` is called with the ModelDeployment's ``namespace/name``. ``leading``: whether this replica may act.
    """

    def __init__(self, changed: Callable[[str], None], leading: Callable[[], bool]) -> None:
        self._changed = changed
        self._leading = leading
        self._pollers: dict[tuple[str, int], _Poller] = {}
        self._session: aiohttp.ClientSession | None = None

    def listen(self, key: str, plans: Mapping[int, tuple[Plan, KeyPair]], connections: Mapping[int, str] | None = None) -> None:
        """Polls exactly these groups of one ModelDeployment. ``connections``: what identifies those of a group's cables."""
        if self._session is None and plans:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        for known in [known for known in self._pollers if known[0] == key]:
            wanted = plans.get(known[1])
            if wanted is None or wanted[0] != self._pollers[known].plan:
                self._pollers.pop(known).end()
        for index, (plan, pair) in plans.items():
            if (key, index) not in self._pollers and self._session is not None:
                self._pollers[key, index] = _Poller(plan, pair, self._session, lambda: self._changed(key), self._leading)
            if (poller := self._pollers.get((key, index))) is not None:
                poller.connections = (connections or {}).get(index, "")

    def drain(self, key: str, index: int, epoch: int) -> None:
        """Requests that rank 0 admits no new requests, and stops the ranks when the running ones have ended."""
        poller = self._pollers.get((key, index))
        if poller is not None and poller.plan.epoch == epoch:
            poller.drain()

    def first_answers_in(self, key: str) -> float:
        """Seconds that the first answers of the ModelDeployment's groups are still worth waiting for; 0 or less: none.

        The end of each first poll, with or without an answer, puts the ModelDeployment on the queue.
        """
        pollers = [poller for known, poller in self._pollers.items() if known[0] == key]
        return max((poller.first_answer_seconds for poller in pollers if not poller.asked), default=0.0)

    def report(self, key: str, index: int, epoch: int) -> Report:
        """What rank 0 of this placement reported last; an empty report if it is not polled."""
        poller = self._pollers.get((key, index))
        return poller.report if poller is not None and poller.plan.epoch == epoch else Report()

    async def close(self) -> None:
        """Ends all pollers."""
        tasks = [task for poller in self._pollers.values() for task in poller.end()]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pollers.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None
