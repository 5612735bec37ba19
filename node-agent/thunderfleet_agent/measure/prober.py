"""Runs this Mac's probes one at a time, and takes part in those that peers request.

``due`` decides which probe runs, ``gates`` which must wait, ``admission`` which requests are accepted; the prober carries out
what they decide, and ends a probe at once when a group needs what it uses.
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

from thunderfleet_crds.kinds.nodeprofile import GroupUse
from thunderfleet_lib.backoff import Backoff

from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.measure.admission import BUSY_SECONDS, Reservation, Situation, admit, check_budget
from thunderfleet_agent.measure.ledger import Ledger
from thunderfleet_agent.measure.schedule import gates
from thunderfleet_agent.measure.schedule.due import WINDOW_SECONDS, due
from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.freshness import benchmarks_fresh
from thunderfleet_agent.measure.schedule.probes import Key, Need, Probe, ProbeKind
from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.measure.schedule.view import View, notes, wanted
from thunderfleet_agent.measure.session import channel, lease, pair_session, socket_session
from thunderfleet_agent.measure.session.channel import Channel
from thunderfleet_agent.measure.session.messages import MAX_ERROR, ProbeReply, ProbeRequest, SessionMessage
from thunderfleet_agent.measure.session.probe_lock import MacBusy, ProbeLock
from thunderfleet_agent.measure.session.result import ProbeRefused, SessionFailed, SessionResult
from thunderfleet_agent.measure.session.steps import SLACK_SECONDS
from thunderfleet_agent.measure.worker import parent

log = logging.getLogger(__name__)

# After a refusal, requests to peers back off; the delay grows while every peer is busy.
REST = Backoff(0.2, 4.0)
NOT_LOADED = "the agent has not loaded earlier measurements yet"
# The condition is computed again at least this often.
CHECK_SECONDS = 60.0


class Preempted(Exception):
    """A group needs what the probe uses."""


class Counter(Protocol):
    """Counts probes."""

    def probed(self, kind: str, outcome: str, seconds: float, count: int) -> None: ...


class _NoCounter:
    def probed(self, kind: str, outcome: str, seconds: float, count: int) -> None:
        pass


@dataclass(eq=False)
class Running:
    """A running probe. ``preempted_by`` is set when a group ends it."""

    probe: Probe
    task: asyncio.Task[SessionResult]
    preempted_by: str | None = None


class Prober:
    """The prober of one Mac. ``changed`` is called when status should be written."""

    def __init__(
        self,
        node: str,
        settings: MeasureSettings,
        context: ssl.SSLContext,
        ledger: Ledger,
        changed: Callable[[], None] = lambda: None,
        counter: Counter | None = None,
        *,
        interactive: bool = False,
    ) -> None:
        """``interactive``: for a user at a terminal; its probes preempt background probes."""
        self.settings = settings
        self.ledger = ledger
        self.lock = ProbeLock(node)
        self.groups: tuple[GroupUse, ...] | None = None
        self.view = View(node)
        self._wanted: tuple[Probe, ...] = wanted(self.view, settings)
        self._loaded = False
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
        self._interactive = interactive
        self._reservation = Reservation()
        self._published: ConditionValue | None = None

    def set_view(self, view: View) -> None:
        """Takes the current cables and peers. Earlier measurements have been loaded by now."""
        self.view = view
        self._wanted = wanted(view, self.settings)
        self._loaded = True
        self._wake.set()

    def set_groups(self, groups: Sequence[GroupUse]) -> None:
        """Takes the groups that use this Mac, and ends the probes that they block."""
        self.groups = tuple(groups)
        for running in list(self.running):
            why = gates.blocked_by(running.probe, self.groups)
            if why is not None and running.preempted_by is None:
                log.info("%s: stopped: %s", running.probe.key, why)
                running.preempted_by = why
                running.task.cancel()
        self._wake.set()

    @property
    def benchmarks_fresh(self) -> ConditionValue:
        """The condition BenchmarksFresh."""
        return benchmarks_fresh(
            self.settings,
            self._wanted,
            self.ledger.history,
            self.ledger.failures,
            self._blocked(),
            notes(self.view, self.settings),
            time.monotonic(),
        )

    def _blocked(self) -> dict[Key, str]:
        if not self._loaded:
            # Until the ledger is loaded, every result would seem to be missing.
            return dict.fromkeys((probe.key for probe in self._wanted), NOT_LOADED)
        reasons = {probe.key: gates.blocked_by(probe, self.groups) for probe in self._wanted}
        return {key: why for key, why in reasons.items() if why is not None}

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            self._spent = [(at, count) for at, count in self._spent if at > now - WINDOW_SECONDS]
            plan = due(
                self._wanted,
                self.ledger.history,
                self._blocked(),
                self._spent,
                self.settings.bytes_per_minute,
                node=self._node,
                started=self._started,
                spread=self.settings.spread_seconds,
                now=now,
            )
            wake = plan.wake
            if plan.probe is not None and self.lock.peer is None:
                wake = max(self._reservation.until, self._rest_until if Need.PEER in plan.probe.needs else now)
                if wake <= now:
                    await self._carry_out(plan.probe)
                    continue
            self._publish_if_changed()
            # While this Mac takes part in a probe of a peer, the end of that probe sets the event.
            seconds = CHECK_SECONDS if self.lock.peer is not None else min(CHECK_SECONDS, max(0.0, wake - now))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    def _publish_if_changed(self) -> None:
        value = self.benchmarks_fresh
        if value != self._published:
            self._published = value
            self._changed()

    async def _carry_out(self, probe: Probe) -> None:
        """Runs one probe and records how it ended."""
        started = time.monotonic()
        try:
            found = await self._bounded(probe, self._probe(probe))
        except (MacBusy, ProbeRefused) as error:
            again = BUSY_SECONDS if isinstance(error, MacBusy) else error.retry_seconds
            now = time.monotonic()
            if again is None:
                self._failed(probe, f"{error}", started)
            else:
                self.ledger.postpone(probe.key, now + again * random.uniform(0.7, 1.7))
                self._refusals += 1
                self._rest_until = now + REST.seconds(self._refusals) * random.uniform(0.5, 1.5)
                self._counter.probed(probe.kind, "refused", now - started, 0)
        except (SessionFailed, parent.WorkerFailed, OSError) as error:
            self._failed(probe, str(error), started)
        except Preempted:
            self._counter.probed(probe.kind, "ended", time.monotonic() - started, 0)
        except Exception:
            log.exception("%s: internal error", probe.key)
            self._failed(probe, "internal error of the agent; see its log", started)
        else:
            self._record(probe.key, found, started)

    async def run_once(self, probe: Probe) -> Figures:
        """Runs one probe now.

        Raises MacBusy, ProbeRefused, SessionFailed, WorkerFailed, OSError or Preempted.
        """
        why = gates.blocked_by(probe, self.groups)
        if why is not None:
            raise ProbeRefused(why)
        return (await self._bounded(probe, self._probe(probe))).figures

    def _failed(self, probe: Probe, why: str, started: float) -> None:
        now = time.monotonic()
        # How many bytes a failed probe moved is unknown, so its limit counts.
        self._spend(now, probe.shared_bytes)
        wait = self.ledger.fail(probe, why, datetime.now(UTC), now)
        self._counter.probed(probe.kind, "failed", now - started, probe.bytes)
        log.warning("%s: %s; retrying in %.0f s", probe.key, why, wait)
        self._publish_if_changed()

    def _record(self, key: Key, found: SessionResult, started: float) -> None:
        now = time.monotonic()
        self._refusals, self._rest_until = 0, now
        self._spend(now, 0 if key.target.link else found.bytes)
        self._counter.probed(key.kind, "ok", now - started, found.bytes)
        log.info("%s: %s", key, found.figures.words())
        if self.ledger.record(key, found.figures, datetime.now(UTC), now):
            self._changed()
        self._wake.set()

    def _spend(self, now: float, count: int) -> None:
        if count:
            self._spent.append((now, count))

    async def _bounded(self, probe: Probe, session: Coroutine[Any, Any, SessionResult]) -> SessionResult:
        """Runs a session within the probe's limit. Raises Preempted if a group ends it."""
        running = Running(probe, asyncio.create_task(session))
        self.running.add(running)
        try:
            slack = 0.0 if probe.kind is ProbeKind.SOCKET else parent.GRACE_SECONDS
            async with asyncio.timeout(probe.seconds + slack + 3 * SLACK_SECONDS):
                return await running.task
        except TimeoutError:
            raise SessionFailed(f"did not finish within {probe.seconds:g} s") from None
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if running.preempted_by is None or (own is not None and own.cancelling()):
                raise
            raise Preempted(running.preempted_by) from None
        finally:
            self.running.discard(running)
            if not running.task.done():
                running.task.cancel()
                await asyncio.gather(running.task, return_exceptions=True)

    async def _probe(self, probe: Probe) -> SessionResult:
        if not probe.target.node:
            with self.lock.alone():
                found = await parent.run({"what": probe.kind.value, "seconds": probe.seconds})
                return SessionResult(Figures.model_validate(found))
        target = probe.target
        to = self.view.dial(target)
        if to is None:
            raise ProbeRefused(f"no address of {target.node} is reachable", BUSY_SECONDS)
        with self.lock.asking(target.node) as hold:
            source = self.view.source(target, to.address)
            async with channel.connect(to, self._node, self._context, source) as (peer, ours, _):

                def confirm() -> None:
                    self.lock.confirm(hold)

                if probe.kind is ProbeKind.RDMA:
                    end = self.view.cables[target.link].mine
                    return await pair_session.dial(peer, target, self.settings, end, confirm, self._interactive)
                return await socket_session.dial(peer, target, self.settings, ours, to.interface, confirm, self._interactive)

    async def answer(self, connection: Channel, peer: str, here: str, there: str) -> None:
        """Takes part in a probe that ``peer`` (authenticated) requests from address ``there`` at this Mac's ``here``.

        A ``peer`` of this Mac's own name is an interactive measurement, which keeps other probes away while it runs.
        """
        try:
            request = await connection.receive(ProbeRequest)
            probe = self._admit(request, peer, here, there)
            started = time.monotonic()
            with self.lock.granted(peer):
                try:
                    found = await self._bounded(probe, self._session(connection, peer, request, probe, here, there))
                finally:
                    self._wake.set()
            if peer != self._node:
                self._record(probe.key, found, started)
        except (MacBusy, ProbeRefused) as error:
            again = BUSY_SECONDS if isinstance(error, MacBusy) else error.retry_seconds
            with contextlib.suppress(SessionFailed):
                await connection.send(ProbeReply(refused=str(error)[:MAX_ERROR], again=again))
        except Preempted as error:
            log.info("the benchmark requested by %s was preempted: %s", peer, error)
            with contextlib.suppress(SessionFailed):
                await connection.send(SessionMessage(error=str(error)[:MAX_ERROR]))
        except (SessionFailed, parent.WorkerFailed) as error:
            # The peer, which requested the probe, records the failure.
            log.info("the benchmark requested by %s failed: %s", peer, error)

    def _admit(self, request: ProbeRequest, peer: str, here: str, there: str) -> Probe:
        """The probe from the side of this Mac. Raises ProbeRefused."""
        situation = Situation(
            node=self._node,
            settings=self.settings,
            view=self.view,
            groups=self.groups,
            spent=self._spent,
            reservation=self._reservation,
            busy=self.lock.peer is not None,
            now=time.monotonic(),
        )
        probe, self._reservation = admit(request, peer, here, there, situation)
        check_budget(probe, situation)
        return probe

    async def _session(
        self, connection: Channel, peer: str, request: ProbeRequest, probe: Probe, here: str, there: str
    ) -> SessionResult:
        if peer == self._node:
            return await lease.lend(connection, probe)
        if probe.kind is ProbeKind.RDMA:
            return await pair_session.answer(connection, request, self.settings, self.view.cables[probe.target.link].mine)
        asked = request.model_copy(update={"link": probe.target.link})
        return await socket_session.answer(connection, asked, self.settings, here, there)
