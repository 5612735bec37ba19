"""Rank 0's supervisor as the leader of its group: feeds the state machine and carries out its actions.

The decisions are in ``attempts`` and ``rendezvous``; this module has the connections, the timer and the reports.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thunderfleet_crds.exchange.group import Failure, GroupState, RankReport
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend, FaultClass, RankPhase, Verify

from thunderfleet_runner import faults, protocol
from thunderfleet_runner.api.passages import fitting
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable, Vocabulary
from thunderfleet_runner.api.upkeep import continuation
from thunderfleet_runner.group import history
from thunderfleet_runner.group.decide import attempts, events, status
from thunderfleet_runner.group.decide.attempts import Phase, StateMachine
from thunderfleet_runner.group.decide.evidence import Evidence
from thunderfleet_runner.group.decide.rendezvous import Identity, Rendezvous
from thunderfleet_runner.group.decide.stall import TICK_SECONDS, StallDetector
from thunderfleet_runner.group.member import Member
from thunderfleet_runner.host import preflight
from thunderfleet_runner.net import jaccl, peers
from thunderfleet_runner.net.connection import Connection

log = logging.getLogger(__name__)


class Leader:
    """``on_change`` runs after every change of the state, ``on_ready`` when the group starts to serve."""

    def __init__(
        self,
        plan: Plan,
        identity: Identity,
        service: Callable[[], Service],
        on_change: Callable[[GroupState], None],
        on_ready: Callable[[], None],
        history_file: Path,
        limits: attempts.Limits | None = None,
        jaccl_environment: bool = False,
    ) -> None:
        self.plan = plan
        self._jaccl_environment = jaccl_environment and jaccl.wants_coordinator(plan)
        self._exchange = jaccl.Exchange(plan.world_size)
        past = self._past = history.load(history_file, plan)
        self.machine = StateMachine(
            tuple(entry.node for entry in plan.ranks),
            limits or attempts.Limits(plan.bootstrap.attempts, plan.bootstrap.attempt_timeout_seconds),
            was_ready=past.was_ready,
            recoveries=past.recoveries,
        )
        self.released = asyncio.Event()
        """Set when the group has stopped: supervisors that have received SIGTERM may exit."""
        self.member: Member | None = None
        self._rendezvous = Rendezvous(plan, identity)
        self._service = service
        self._on_change = on_change
        self._on_ready = on_ready
        self._history_file = history_file
        self._links: dict[int, Connection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reports = {
            entry.rank: RankReport(rank=entry.rank, node=entry.node, phase=RankPhase.ABSENT) for entry in plan.ranks
        }
        self._evidence = Evidence(plan, identity, past.recorded, preflight.prompt_versions())
        self._vocabulary = Vocabulary(0, True)
        self._pulses: dict[int, peers.Pulse] = {}
        self._stall = StallDetector()
        self._proving: asyncio.Task[None] | None = None
        self._ready_since: datetime | None = None
        self._failure: Failure | None = None
        self._version = preflight.version("thunderfleet") or None
        self._dirty = True

    # --- state ---

    @property
    def state(self) -> GroupState:
        """What ``/v1/state`` answers."""
        machine = self.machine
        refusals = self._rendezvous.refusals
        return GroupState(
            uid=self.plan.uid,
            index=self.plan.index,
            epoch=self.plan.epoch,
            phase=status.GROUP_PHASES[machine.phase],
            message=status.message(
                machine,
                failure=self._failure.message if self._failure is not None else "",
                refusals=refusals,
                exchange_missing=self._exchange.missing,
                running=self._service().running,
            ),
            attempt=machine.attempt,
            recoveries=machine.recoveries,
            ready_since=self._ready_since,
            failure=self._failure,
            ranks=tuple(
                status.rank_report(self._with_peak(rank), machine, refusals.get(rank, ""))
                for rank in range(self.plan.world_size)
            ),
            requests=self._service().running,
            in_flight=self._service().visits.inside,
            idle_seconds=round(self._service().visits.idle_seconds, 1),
            benchmark=self._service().benchmark,
            verified=self._evidence.report(machine, self._service().answers, self._service().lengths),
            runner_version=self._version,
            intake=self._service().intake_problem(),
        )

    @property
    def heartbeat_ages(self) -> dict[int, float]:
        """Seconds since the last heartbeat of each present rank's process; 0 for one that sends none yet."""
        ages = {rank: pulse.heartbeat_age_seconds for rank, pulse in self._pulses.items()}
        if self.member is not None:
            ages[0] = self.member.heartbeat_age
        return ages

    def _with_peak(self, rank: int) -> RankReport:
        report = self._reports[rank]
        peak = self._pulses[rank].peak_memory_bytes if rank in self._pulses else 0
        return report.model_copy(update={"peak_memory_bytes": max(peak, report.peak_memory_bytes)})

    # --- members ---

    async def join(self, hello: peers.Hello, connection: Connection) -> peers.Refusal | None:
        """Decides on a claim; runs the connection of an accepted member until it ends."""
        if hello.digest != self._rendezvous.identity.digest:
            # The model's files may have been replaced since this supervisor read them.
            digest = await asyncio.to_thread(preflight.digest, self.plan)
            self._rendezvous = replace(self._rendezvous, identity=replace(self._rendezvous.identity, digest=digest))
        self._rendezvous, refusal = self._rendezvous.claim(hello)
        if refusal is not None:
            self._changed()
            return refusal
        rank = hello.rank
        log.info("%s joined", connection.peer)
        connection.send(peers.Welcome())
        connection.send(peers.Beat(state=self.state))
        self._links[rank] = connection
        self.feed(events.Joined(rank))
        why = "its main process ended"
        try:
            why = await connection.serve(lambda text: self.receive(rank, peers.REPORT.validate_json(text)), lambda: None)
        finally:
            log.warning("lost %s: %s", connection.peer, why)
            del self._links[rank]
            self._pulses.pop(rank, None)
            self._rendezvous = self._rendezvous.leave(rank)
            self.feed(events.Left(rank, why))
        return None

    def receive(self, rank: int, report: peers.Report) -> None:
        """A member's report."""
        match report:
            case peers.Pulse():
                self._pulses[rank] = report
            case peers.WeightsRead():
                self._wrong(self._evidence.read(rank, report))
                self._save()
                self._changed()
            case peers.Leaving():
                log.info("rank %d received SIGTERM: draining", rank)
                self.feed(events.Drain(for_good=False))
            case peers.Gather() | peers.RankProved() | peers.RankProgress():
                if report.attempt == self.machine.attempt:
                    self._advance(rank, report)
            case _:
                self.feed(self._event(rank, report))

    def _advance(self, rank: int, report: peers.Gather | peers.RankProved | peers.RankProgress) -> None:
        """A report that is no event of the state machine."""
        if isinstance(report, peers.Gather):
            self._gather(rank, report)
            return
        self._stall.reset()
        if isinstance(report, peers.RankProved):
            self._evidence.proved(rank, report)
            self._changed()
            return
        self._update(rank, loaded_bytes=report.loaded_bytes, total_bytes=report.total_bytes, loaded_layers=report.layers)

    def _event(
        self,
        rank: int,
        report: peers.Checked | peers.RankFailed | peers.RankFormed | peers.RankLoaded | peers.RankReady | peers.RankEnded,
    ) -> events.AttemptEvent:
        """A report as an event of the state machine."""
        attempt = report.attempt
        match report:
            case peers.Checked():
                differs = self._evidence.checked(rank, report)
                if differs is not None:
                    return events.RankFailed(rank, attempt, differs, faults.Stage.PREFLIGHT)
                return events.Checked(rank, attempt, report.port)
            case peers.RankFailed():
                stage = faults.Stage(report.stage)
                log.warning("attempt %d: rank %d failed %s: %s", attempt, rank, stage.during, report.message)
                fault = faults.Fault(report.fault, report.reason, report.message, report.echo, report.peer)
                return events.RankFailed(rank, attempt, fault, stage)
            case peers.RankFormed():
                return events.RankFormed(rank, attempt)
            case peers.RankLoaded():
                if attempt == self.machine.attempt:
                    total, peak = report.total_bytes, report.peak_memory_bytes
                    self._evidence.loaded(rank, report.products)
                    self._update(rank, loaded_bytes=total, total_bytes=total, peak_memory_bytes=peak)
                return events.RankLoaded(rank, attempt)
            case peers.RankReady():
                return self._ready(rank, report)
            case peers.RankEnded():
                return events.RankEnded(rank, attempt)

    def _ready(self, rank: int, report: peers.RankReady) -> events.AttemptEvent:
        """A rank has answered the test prompt."""
        if report.attempt == self.machine.attempt:
            if rank == 0:
                self._vocabulary = Vocabulary(report.vocabulary, report.chat_template)
                self.machine = replace(self.machine, proves=self._asks())
            wrong = self._evidence.answered(rank, report)
            if wrong is not None:
                return events.Wrong(report.attempt, wrong)
        return events.RankReady(rank, report.attempt, report.tokens)

    def _gather(self, rank: int, report: peers.Gather) -> None:
        """One rank's part of JACCL's exchange; the last part completes it for all ranks."""
        try:
            part = base64.b64decode(report.data, validate=True)
            self._exchange, whole = self._exchange.put(rank, report.number, part)
        except ValueError as error:
            fault = faults.Fault(FaultClass.BUG, Reason.EXCHANGE_FAILED, f"JACCL's exchange of connection data: {error}")
            self.feed(events.RankFailed(rank, report.attempt, fault, faults.Stage.INIT))
            return
        if whole is not None:
            data = base64.b64encode(whole).decode()
            self._order(peers.Gathered(attempt=report.attempt, number=report.number, data=data))

    def _update(self, rank: int, **values: int) -> None:
        self._reports[rank] = self._reports[rank].model_copy(update=values)
        self._changed()

    # --- the state machine ---

    def feed(self, event: events.Event) -> None:
        """Feeds one event and carries out its actions, in order."""
        before = self.machine
        self.machine, actions = before.step(event)
        if self.machine.phase is not before.phase:
            self._entered(before.phase)
        if self.machine.cause is not before.cause:
            self._failure = self._as_failure(self.machine.cause)
            if isinstance(event, events.Stalled | events.Timer) and self._failure is not None:
                log.warning("attempt %d: %s", self._failure.attempt, self._failure.message)
        for action in actions:
            self._act(action)
        if self.machine is not before:
            self._changed()

    def _entered(self, before: Phase) -> None:
        phase = self.machine.phase
        log.info("%s -> %s (attempt %d)", before, phase, self.machine.attempt)
        if (before, phase) != (Phase.PROVING, Phase.READY):
            # Between these two phases, the same work continues.
            self._stall.reset()
        if phase is Phase.READY:
            self._ready_since = datetime.now(UTC)
        elif phase is not Phase.DRAINING:
            self._ready_since = None
        if phase is not Phase.PROVING and self._proving is not None:
            self._proving.cancel()
            self._proving = None
        if phase is Phase.CHECKING:
            self._evidence.begin()
            for rank, report in self._reports.items():
                self._reports[rank] = RankReport(rank=rank, node=report.node, phase=RankPhase.JOINED)
        if not self.machine.timer_on and self._timer is not None:
            self._timer.cancel()

    def _asks(self) -> bool:
        """Whether there is anything to check before the group serves, from the record of these weights."""
        if self.plan.verify is not Verify.FULL:
            return False
        service, digest = self._service(), self._evidence.digest
        remembered = [one for one in (self.plan.proven_lengths, self._past) if one is not None and one.digest == digest]
        service.answers = service.answers.again(digest, {length for one in remembered for length in one.lengths})
        return bool(digest and service.answers.first(fitting(self.plan.memory.context_tokens, self._vocabulary.size)))

    def _as_failure(self, cause: events.Cause | None) -> Failure | None:
        if cause is None:
            return None
        now = datetime.now(UTC)
        if self._failure is not None and (self._failure.attempt, self._failure.message) == (cause.attempt, cause.fault.message):
            now = self._failure.at
        return Failure(
            fault=cause.fault.fault,
            reason=cause.fault.reason,
            message=cause.fault.message,
            rank=cause.rank,
            node=self.plan.ranks[cause.rank].node if cause.rank is not None else None,
            attempt=cause.attempt,
            at=now,
            echoes=cause.echoes,
            peer=cause.fault.peer,
        )

    def _act(self, action: events.Action) -> None:
        order = self._ordered_by(action)
        if order is not None:
            self._order(order)
            return
        match action:
            case events.Prove(attempt=attempt):
                self._service().attach(_Link(self, attempt), self._vocabulary, private=True)
                self._proving = asyncio.create_task(self._prove(attempt), name="prove")
            case events.Serve(attempt=attempt):
                self._serve(attempt)
            case events.Unserve(why=why, settled=settled):
                self._service().detach(why, settled=settled, awaited=lambda: self.machine.awaits_cause)
            case events.Admit(admit=admit):
                self._admit(admit)
            case events.Cut(rank=rank):
                self._cut(rank)
            case events.SetTimer(number=number, seconds=seconds):
                self._set_timer(number, seconds)
            case events.ReleaseAll():
                self._order(peers.Release())
                self.released.set()
            case events.GiveUp(cause=cause):
                log.error("giving up (%s, %s): %s", cause.fault.fault, cause.fault.reason, cause.line)

    def _admit(self, admit: bool) -> None:
        service = self._service()
        service.draining = not admit
        if service.draining:
            # Clients' requests take precedence over the group's own checks.
            service.arrival.set()

    def _serve(self, attempt: int) -> None:
        self._save()
        service = self._service()
        if service.private:
            # The turns of this attempt continue.
            service.private = False
        else:
            service.attach(_Link(self, attempt), self._vocabulary)
        self._on_ready()

    async def _prove(self, attempt: int) -> None:
        """Checks what must be right before the group serves."""
        if await self._asked(attempt, continuation.before_serving(self._service())):
            self.feed(events.Proved(attempt))

    async def prove(self) -> None:
        """Checks what is not known yet, while the group is idle, until it is no longer Ready."""
        service = self._service()
        if self.plan.verify is Verify.FULL and service.answers.digest:
            await self._asked(self.machine.attempt, continuation.while_idle(service))
            self._save()
            self._changed()

    def output_wrong(self, what: str) -> None:
        """The group has answered wrong while it was idle."""
        self._wrong(faults.output_wrong(what))

    def _wrong(self, fault: faults.Fault | None) -> None:
        """Ends the attempt after a check has failed."""
        if fault is not None:
            self.feed(events.Wrong(self.machine.attempt, fault))

    def _save(self) -> None:
        passed = self._service().answers
        answer = self._evidence.recorded
        recorded = (answer,) if answer is not None else self._past.recorded
        now = history.History(self.machine.was_ready, self.machine.recoveries, passed.digest, passed.ever, recorded)
        history.save(self._history_file, self.plan, now)

    async def _asked(self, attempt: int, work: Coroutine[Any, Any, None]) -> bool:
        """False after a wrong answer, or if the group has failed meanwhile; that failure is reported elsewhere."""
        try:
            await work
        except continuation.OutputWrong as error:
            self.feed(events.Wrong(attempt, faults.output_wrong(str(error))))
            return False
        except Unavailable:
            return False
        except (Refused, GenerationFailed, TimeoutError) as error:
            # A check that could not be made has neither passed nor failed.
            log.warning("the group's answers could not be checked: %s", error)
        return True

    def _cut(self, rank: int) -> None:
        if rank in self._links:
            self._links[rank].cut("it did not end its rank in time")

    def _set_timer(self, number: int, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up, number)

    def _ordered_by(self, action: events.Action) -> peers.Order | None:
        """The order to every member that carries out ``action``; None when the leader does so itself."""
        match action:
            case events.Preflight(attempt=attempt):
                return peers.Preflight(attempt=attempt)
            case events.StartRanks(attempt=attempt, ports=ports):
                ring = self.plan.backend is Backend.RING
                hosts = tuple(f"{entry.ring_address}:{ports[entry.rank]}" for entry in self.plan.ranks) if ring else ()
                leader = self.plan.ranks[0]
                coordinator = f"{leader.address}:{ports[0]}" if self._jaccl_environment else ""
                self._exchange = jaccl.Exchange(self.plan.world_size)
                return peers.Launch(attempt=attempt, hosts=hosts, coordinator=coordinator)
            case events.Compare(attempt=attempt):
                return peers.CheckRank(attempt=attempt)
            case events.StopRanks(attempt=attempt):
                return peers.StopRank(attempt=attempt)
            case events.EndRanks(attempt=attempt):
                return peers.End(attempt=attempt)
            case _:
                return None

    def _time_is_up(self, number: int) -> None:
        late = self._exchange.missing if self.machine.phase is Phase.FORMING else ()
        self.feed(events.Timer(number, late, self._stall.still))

    def _order(self, order: peers.Order) -> None:
        for connection in self._links.values():
            connection.send(order)
        if self.member is not None:
            self.member.order(order)

    def turn(self, attempt: int, number: int) -> None:
        """Starts a turn on every rank of the attempt."""
        self._order(peers.TurnRank(attempt=attempt, number=number))

    def measure(self, attempt: int) -> None:
        """Makes every rank of the attempt measure the all-reduce."""
        self._order(peers.MeasureRank(attempt=attempt))

    # --- time ---

    async def run(self) -> None:
        """Ticks until cancelled: beats to the members, stalls, the end of a drain."""
        tick = 0
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                tick += 1
                self._tick(tick)
        finally:
            if self._proving is not None:
                self._proving.cancel()

    def _tick(self, tick: int) -> None:
        self._watch_steps()
        if self.machine.phase is Phase.DRAINING and self._service().running == 0:
            self.feed(events.Quiet())
        if self._dirty or tick % 2 == 0:
            beat = peers.Beat(state=self.state if self._dirty else None)
            self._dirty = False
            for connection in self._links.values():
                connection.send(beat)

    async def flush(self, seconds: float) -> None:
        """Waits until all messages to members are handed to their sockets, at most ``seconds``."""
        await asyncio.gather(*(connection.flush(seconds) for connection in self._links.values()))

    def _watch_steps(self) -> None:
        pulses = dict(self._pulses)
        if self.member is not None:
            pulses[0] = self.member.pulse()
        attempt, phase = self.machine.attempt, self.machine.phase
        pulses = {rank: pulse for rank, pulse in pulses.items() if pulse.attempt == attempt}
        self._stall.tick(phase, pulses)
        if self.plan.backend is Backend.JACCL and self._stall.probe_due:
            self._order(peers.ProbeDevices(attempt=attempt))
        stalled = self._stall.stalled(phase, pulses)
        if stalled is not None:
            self.feed(events.Stalled(attempt, *stalled))

    def _changed(self) -> None:
        self._dirty = True
        self._on_change(self.state)


class _Link:
    """Rank 0 of one attempt, as the service uses it."""

    def __init__(self, leader: Leader, attempt: int) -> None:
        self._leader = leader
        self._attempt = attempt

    def send(self, message: protocol.ToRank) -> None:
        if self._leader.member is not None:
            self._leader.member.to_rank(message)

    def announce(self, turn: int) -> None:
        self._leader.turn(self._attempt, turn)

    def measure(self) -> None:
        self._leader.measure(self._attempt)
