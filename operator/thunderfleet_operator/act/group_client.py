"""Talks to the groups: rank 0 of each is asked for its state, and to drain, over mutual TLS with the group's own keys.

Often while something is going on, seldom once it serves; and rank 0 answers a question early when the group has come to
another phase, so that no failure is missed and nothing waits for the next poll. What changes puts the deployment on the work
queue; that rank 0 has been silent for long does too.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

import aiohttp
from pydantic import ValidationError
from thunderfleet_crds.group import DRAIN_PATH, STATE_PATH, GroupState
from thunderfleet_crds.plan import GROUP_TLS_NAME, Plan
from thunderfleet_crds.vocabulary import GroupPhase

from thunderfleet_operator.act.keys import KeyPair, client_context
from thunderfleet_operator.decide.lifecycle import Heard

log = logging.getLogger(__name__)

MOVED_SECONDS = 0.05
"""After another phase: the next is asked for soon, but a group that changes without end does not keep us busy."""
BUSY_SECONDS = 1.0
QUIET_SECONDS = 5.0
ANSWER_SECONDS = 4.0
REMIND_SECONDS = 10.0


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class _Listener:
    """One placement of one group."""

    def __init__(self, plan: Plan, pair: KeyPair, session: aiohttp.ClientSession, changed: Callable[[], None]) -> None:
        self.plan = plan
        self.state: GroupState | None = None
        self.asked = asyncio.Event()
        self._heard = self._phase_since = time.monotonic()
        self._draining: asyncio.Task[None] | None = None
        self._context = client_context(pair)
        self._session = session
        self._changed = changed
        self.task = asyncio.create_task(self._run(), name=f"listen to {plan.group} e{plan.epoch}")

    @property
    def heard(self) -> Heard:
        now = time.monotonic()
        return Heard(self.state, now - self._heard, now - self._phase_since)

    def _url(self, path: str) -> str:
        leader = self.plan.ranks[0]
        return f"https://{_host(leader.address)}:{leader.control_port}{path}"

    def drain(self) -> None:
        """Asks rank 0 to drain until it has agreed; returns at once."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(), name=f"drain {self.plan.group} e{self.plan.epoch}")

    async def _drain(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        while True:
            try:
                async with self._session.post(
                    self._url(DRAIN_PATH), ssl=self._context, server_hostname=GROUP_TLS_NAME, timeout=timeout
                ) as answer:
                    if answer.status == 202:
                        log.info("%s: epoch %d drains", self.plan.group, self.plan.epoch)
                        return
                    why = f"answers {answer.status}"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = str(error) or type(error).__name__
            log.warning("%s: rank 0 at %s does not drain yet: %s", self.plan.group, self._url(DRAIN_PATH), why)
            await asyncio.sleep(BUSY_SECONDS)

    def end(self) -> list["asyncio.Task[None]"]:
        """Cancels its work; the tasks that are to be waited for."""
        tasks = [task for task in (self.task, self._draining) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _ask(self, seconds: float, known: GroupState | None) -> GroupState | None:
        """The group's state; when it is still as ``known``, as it is when it has moved on, or ``seconds`` later."""
        url = self._url(STATE_PATH)
        wait = {} if known is None else {"wait": f"{seconds:g}", "phase": known.phase.value, "attempt": str(known.attempt)}
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS + (seconds if wait else 0))
        try:
            async with self._session.get(
                url, params=wait, ssl=self._context, server_hostname=GROUP_TLS_NAME, timeout=timeout
            ) as answer:
                if answer.status != 200:
                    log.debug("%s: %s answers %d", self.plan.group, url, answer.status)
                    return None
                state = GroupState.model_validate_json(await answer.read())
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
            first = not self.asked.is_set()
            self.asked.set()
            if state is not None:
                back = now - self._heard > REMIND_SECONDS
                self._heard = now
                if self.state is None or self.state.phase is not state.phase:
                    self._phase_since = now
                if state != self.state or back:
                    self.state = state
                    self._changed()
            elif now - self._heard > REMIND_SECONDS and now - reminded > REMIND_SECONDS:
                reminded = now
                self._changed()
            elif first:
                self._changed()
            moved = state is not None and (known is None or (state.phase, state.attempt) != (known.phase, known.attempt))
            known = state
            # A supervisor that answers at once although nothing has moved is not asked more often for it.
            await asyncio.sleep(MOVED_SECONDS if moved else max(0.0, seconds - (now - began)))


class Groups:
    """All listeners. ``changed(key)`` is called with the deployment's ``namespace/name``."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._session: aiohttp.ClientSession | None = None

    def listen(self, key: str, plans: Mapping[int, tuple[Plan, KeyPair]]) -> None:
        """Listen to exactly these groups of one deployment."""
        if self._session is None and plans:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        for known in [known for known in self._listeners if known[0] == key]:
            wanted = plans.get(known[1])
            if wanted is None or wanted[0] != self._listeners[known].plan:
                self._listeners.pop(known).end()
        for index, (plan, pair) in plans.items():
            if (key, index) not in self._listeners and self._session is not None:
                self._listeners[key, index] = _Listener(plan, pair, self._session, lambda: self._changed(key))

    def drain(self, key: str, index: int, epoch: int) -> None:
        """Asks a group's rank 0 to admit nothing new, and to stop the ranks when what runs has ended. What comes of it is
        heard.
        """
        listener = self._listeners.get((key, index))
        if listener is not None and listener.plan.epoch == epoch:
            listener.drain()

    def keys(self) -> set[str]:
        return {key for key, _ in self._listeners}

    async def first_answers(self, key: str, seconds: float) -> None:
        """Waits until every group of the deployment has been asked once, answered or not."""
        waits = [listener.asked.wait() for known, listener in self._listeners.items() if known[0] == key]
        if waits:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*waits), seconds)

    def heard(self, key: str, index: int, epoch: int) -> Heard:
        listener = self._listeners.get((key, index))
        return listener.heard if listener is not None and listener.plan.epoch == epoch else Heard()

    async def close(self) -> None:
        tasks = [task for listener in self._listeners.values() for task in listener.end()]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listeners.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None
