"""The prober: asks ``due`` what runs now, runs it, keeps what it found; and answers peers that want to measure with this Mac.

Thin on purpose. What it decides is decided by pure functions of a view, the groups and the ledger; what it does is start one
probe at a time, and end it at once when a group arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from thunderfleet_crds.nodeprofile import GroupUse

from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.measure.schedule import gates
from thunderfleet_agent.measure.schedule.due import WINDOW_SECONDS, due, room
from thunderfleet_agent.measure.schedule.probes import Key, Kind, Need, Probe, Target, rdma, socket
from thunderfleet_agent.measure.schedule.results import Figures, Ledger
from thunderfleet_agent.measure.schedule.settings import Settings
from thunderfleet_agent.measure.schedule.verdict import verdict
from thunderfleet_agent.measure.schedule.view import View, notes, wanted
from thunderfleet_agent.measure.session import sessions, talk
from thunderfleet_agent.measure.session.probe_lock import Busy, Desk
from thunderfleet_agent.measure.session.sessions import Found
from thunderfleet_agent.measure.session.talk import Answer, Ask, Broken, Line, Refused, Step
from thunderfleet_agent.measure.worker import process

log = logging.getLogger(__name__)

# A busy peer is asked again so soon (jittered), one that a group has not so soon.
BUSY_SECONDS = 1.0
IN_USE_SECONDS = 30.0
# After a refusal nobody is asked for a while, ever longer while everybody is busy: so few connections come to nothing.
REST_SECONDS = 0.1
REST_LIMIT_SECONDS = 4.0
# For somebody at a terminal who was told that a Mac is busy, it is kept free for so long: else on a fleet that measures all the
# time he would never have his turn.
KEPT_SECONDS = 5.0
NOT_READ = "it is not known yet what was measured before"
# The condition is looked at anew at least so often.
LOOK_SECONDS = 60.0


class Counter(Protocol):
    """What is counted of probes."""

    def probed(self, kind: str, outcome: str, seconds: float, count: int) -> None: ...


class _NoCounter:
    def probed(self, kind: str, outcome: str, seconds: float, count: int) -> None:
        pass


@dataclass(eq=False)
class Running:
    """A probe that runs; ``gate`` says why it was ended, when a group ended it."""

    probe: Probe
    task: asyncio.Task[Found]
    gate: str | None = None


class Prober:
    """One Mac's. ``changed`` is called when status should be written."""

    def __init__(
        self,
        node: str,
        settings: Settings,
        context: ssl.SSLContext,
        ledger: Ledger,
        changed: Callable[[], None] = lambda: None,
        counter: Counter | None = None,
        *,
        by_hand: bool = False,
    ) -> None:
        """``by_hand``: for somebody at a terminal, who has his turn before what agents do by themselves."""
        self.settings = settings
        self.ledger = ledger
        self.desk = Desk(node)
        self.groups: tuple[GroupUse, ...] | None = None
        self.view = View(node)
        self._wanted: tuple[Probe, ...] = wanted(self.view, settings)
        self._shown = False
        self.running: set[Running] = set()
        self._node = node
        self._context = context
        self._changed = changed
        self._counter = counter or _NoCounter()
        self._spent: list[tuple[float, int]] = []
        self._wake = asyncio.Event()
        self._started = time.monotonic()
        self._refusals = 0
        self._rest_until = self._started
        self._by_hand = by_hand
        self._kept_for, self._kept_until = "", self._started
        self._verdict: ConditionValue | None = None

    # --- what it is told ---

    def look(self, view: View) -> None:
        """This Mac and its neighbours as they are now."""
        self.view = view
        self._wanted = wanted(view, self.settings)
        self._shown = True
        self._wake.set()

    def use(self, groups: Sequence[GroupUse]) -> None:
        """The groups that have this Mac now: whatever runs beside them ends."""
        self.groups = tuple(groups)
        for running in list(self.running):
            why = gates.closed(running.probe, self.groups)
            if why is not None and running.gate is None:
                log.info("%s ends: %s", running.probe.key, why)
                running.gate = why
                running.task.cancel()
        self._wake.set()

    # --- what it says ---

    @property
    def verdict(self) -> ConditionValue:
        """The condition BenchmarksFresh."""
        return verdict(
            self.settings,
            self._wanted,
            self.ledger.history,
            self.ledger.troubles,
            self._closed(),
            notes(self.view, self.settings),
            time.monotonic(),
        )

    def _closed(self) -> dict[Key, str]:
        if not self._shown:
            # Whoever shows the view has read what was measured before; until then everything would seem to be missing.
            return dict.fromkeys((probe.key for probe in self._wanted), NOT_READ)
        said = {probe.key: gates.closed(probe, self.groups) for probe in self._wanted}
        return {key: why for key, why in said.items() if why is not None}

    # --- the loop ---

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            self._spent = [(at, count) for at, count in self._spent if at > now - WINDOW_SECONDS]
            plan = due(
                self._wanted,
                self.ledger.history,
                self._closed(),
                self._spent,
                self.settings.bytes_per_minute,
                node=self._node,
                started=self._started,
                spread=self.settings.spread_seconds,
                now=now,
            )
            wake = plan.wake
            if plan.probe is not None and self.desk.peer is None:
                wake = max(self._kept_until, self._rest_until if Need.PEER in plan.probe.needs else now)
                if wake <= now:
                    await self._carry_out(plan.probe)
                    continue
            self._tell()
            # While a peer measures with this Mac, its end wakes us.
            seconds = LOOK_SECONDS if self.desk.peer is not None else min(LOOK_SECONDS, max(0.0, wake - now))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)

    def _tell(self) -> None:
        said = self.verdict
        if said != self._verdict:
            self._verdict = said
            self._changed()

    async def _carry_out(self, probe: Probe) -> None:
        """One probe, and what becomes of it."""
        begun = time.monotonic()
        try:
            found = await self._bounded(probe, self._probe(probe))
        except (Busy, Refused) as error:
            again = BUSY_SECONDS if isinstance(error, Busy) else error.again
            now = time.monotonic()
            if again is None:
                self._failed(probe, f"{error}", begun)
            else:
                self.ledger.later(probe.key, now + again * random.uniform(0.7, 1.7))
                self._refusals += 1
                rest = min(REST_LIMIT_SECONDS, REST_SECONDS * 2.0 ** min(self._refusals, 16))
                self._rest_until = now + rest * random.uniform(0.5, 1.5)
                self._counter.probed(probe.kind, "refused", now - begun, 0)
        except (Broken, process.ChildFailed, OSError) as error:
            self._failed(probe, str(error), begun)
        except Ended:
            self._counter.probed(probe.kind, "ended", time.monotonic() - begun, 0)
        except Exception:
            log.exception("%s failed by a fault of ours", probe.key)
            self._failed(probe, "a fault of the agent; see its log", begun)
        else:
            self._record(probe.key, found, begun)

    async def once(self, probe: Probe) -> Figures:
        """One probe now, whatever is due. Raises what it fails with: Busy, Refused, Broken, ChildFailed, OSError, Ended."""
        why = gates.closed(probe, self.groups)
        if why is not None:
            raise Refused(why)
        return (await self._bounded(probe, self._probe(probe))).figures

    def _failed(self, probe: Probe, why: str, begun: float) -> None:
        now = time.monotonic()
        # What it moved before it failed is not known; the most that it may have is what counts.
        self._spend(now, probe.shared_bytes)
        wait = self.ledger.fail(probe.key, why, datetime.now(UTC), now)
        self._counter.probed(probe.kind, "failed", now - begun, probe.bytes)
        log.warning("%s: %s; again in %.0f s", probe.key, why, wait)
        self._tell()

    def _record(self, key: Key, found: Found, begun: float) -> None:
        now = time.monotonic()
        self._refusals, self._rest_until = 0, now
        self._spend(now, 0 if key.target.link else found.bytes)
        self._counter.probed(key.kind, "ok", now - begun, found.bytes)
        log.info("%s: %s", key, found.figures.words())
        if self.ledger.record(key, found.figures, datetime.now(UTC), now):
            self._changed()
        self._wake.set()

    def _spend(self, now: float, count: int) -> None:
        if count:
            self._spent.append((now, count))

    async def _bounded(self, probe: Probe, session: Coroutine[Any, Any, Found]) -> Found:
        """Runs a session within the probe's limit, to be ended by a group. Raises Ended then."""
        running = Running(probe, asyncio.create_task(session))
        self.running.add(running)
        try:
            slack = 0.0 if probe.kind is Kind.SOCKET else process.GRACE_SECONDS
            async with asyncio.timeout(probe.seconds + slack + 3 * sessions.SLACK_SECONDS):
                return await running.task
        except TimeoutError:
            raise Broken(f"was not done within {probe.seconds:g} s") from None
        except asyncio.CancelledError:
            if running.gate is None:
                raise
            raise Ended(running.gate) from None
        finally:
            self.running.discard(running)
            if not running.task.done():
                running.task.cancel()
                await asyncio.gather(running.task, return_exceptions=True)

    async def _probe(self, probe: Probe) -> Found:
        if probe.kind in (Kind.GPU, Kind.MEMORY):
            with self.desk.alone():
                said = await process.run({"what": probe.kind.value, "seconds": probe.seconds})
                return Found(Figures.model_validate(said))
        target = probe.target
        to = self.view.dial(target)
        if to is None:
            raise Refused(f"no address of {target.node} answers", BUSY_SECONDS)
        with self.desk.asking(target.node) as hold:
            source = self.view.source(target, to.address)
            async with talk.call(to, self._node, self._context, source) as (line, ours, _):

                def sure() -> None:
                    self.desk.sure(hold)

                if probe.kind is Kind.RDMA:
                    end = self.view.cables[target.link].mine
                    return await sessions.dial_pair(line, target, self.settings, end, sure, self._by_hand)
                return await sessions.dial_socket(line, target, self.settings, ours, to.interface, sure, self._by_hand)

    # --- the other side ---

    async def answer(self, line: Line, peer: str, here: str, there: str) -> None:
        """A peer that is known has come from ``there`` to this Mac's address ``here`` and wants to measure. Somebody at this
        Mac's own terminal comes as this Mac, and keeps it out of other probes while he measures.
        """
        try:
            ask = await line.hear(Ask)
            probe = self._asked(ask, peer, here, there)
            begun = time.monotonic()
            with self.desk.granted(peer):
                try:
                    found = await self._bounded(probe, self._session(line, peer, ask, probe, here, there))
                finally:
                    self._wake.set()
            if peer != self._node:
                self._record(probe.key, found, begun)
        except (Busy, Refused) as error:
            again = BUSY_SECONDS if isinstance(error, Busy) else error.again
            with contextlib.suppress(Broken):
                await line.say(Answer(refused=str(error)[:400], again=again))
        except Ended as error:
            log.info("the probe of %s ended: %s", peer, error)
            with contextlib.suppress(Broken):
                await line.say(Step(error=str(error)[:400]))
        except (Broken, process.ChildFailed) as error:
            # The peer, which wanted it, counts it as a failure.
            log.info("the probe of %s came to nothing: %s", peer, error)

    def _asked(self, ask: Ask, peer: str, here: str, there: str) -> Probe:
        """The probe as this Mac sees it. Raises Refused."""
        if not self.settings.enabled:
            raise Refused(f"measuring is switched off on {self._node}", IN_USE_SECONDS)
        now = time.monotonic()
        if self.desk.peer is None and now < self._kept_until and self._kept_for != peer:
            raise Refused(f"{self._node} is about to be measured by hand", BUSY_SECONDS)
        if peer == self._node:
            if ask.kind not in (Kind.SOCKET, Kind.RDMA):
                raise Refused(f"a {ask.kind} needs no other Mac")
            probe = (socket if ask.kind is Kind.SOCKET else rdma)(self.settings, Target(ask.node, "", ask.link))
        elif ask.kind is Kind.SOCKET:
            probe = socket(self.settings, Target(peer, there, self.view.link_at(here, peer)))
        elif ask.kind is Kind.RDMA:
            cable = self.view.cables.get(ask.link)
            if cable is None or cable.peer != peer:
                raise Refused(f"{self._node} knows no cable {ask.link[:120] or 'without a name'} to {peer}", IN_USE_SECONDS)
            if ask.transport is not self.settings.rdma.transport:
                raise Refused(f"{self._node} measures cables over {self.settings.rdma.transport}, not {ask.transport}")
            if cable.problem is not None:
                raise Refused(f"{self._node}: {cable.problem}")
            probe = rdma(self.settings, Target(peer, "", ask.link))
        else:
            raise Refused(f"a {ask.kind} is nobody else's to measure")
        why = gates.closed(probe, self.groups)
        if why is not None:
            raise Refused(f"{self._node}: {why}", IN_USE_SECONDS)
        if ask.by_hand or peer == self._node:
            self._kept_for, self._kept_until = peer, now + KEPT_SECONDS
        fits = room(self._spent, self.settings.bytes_per_minute, probe.shared_bytes, now)
        if probe.shared_bytes and fits > now:
            raise Refused(f"{self._node} has moved its bytes of this minute", fits - now)
        return probe

    async def _session(self, line: Line, peer: str, ask: Ask, probe: Probe, here: str, there: str) -> Found:
        if peer == self._node:
            return await sessions.lend(line, probe)
        if probe.kind is Kind.RDMA:
            return await sessions.answer_pair(line, ask, self.settings, self.view.cables[probe.target.link].mine)
        asked = ask.model_copy(update={"link": probe.target.link})
        return await sessions.answer_socket(line, asked, self.settings, here, there)


class Ended(Exception):
    """A group has come, and which."""
