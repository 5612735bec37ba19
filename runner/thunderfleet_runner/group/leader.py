"""Rank 0's supervisor as the leader of its group: feeds what happens to the machine, and carries out what it decides.

The decisions are in ``attempts`` and ``rendezvous``; here are the connections, the timer, and the state that people see.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_crds.group import Failure, GroupState, RankReport
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.vocabulary import Backend, FaultClass, GroupPhase, RankPhase

from thunderfleet_runner import faults, protocol
from thunderfleet_runner.api.service import Service, Vocabulary
from thunderfleet_runner.group import attempts, history
from thunderfleet_runner.group.attempts import Machine, Stage
from thunderfleet_runner.group.member import Member
from thunderfleet_runner.group.rendezvous import Identity, Rendezvous
from thunderfleet_runner.host import preflight
from thunderfleet_runner.net import jaccl, peers
from thunderfleet_runner.net.control import Connection

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
STALL_SECONDS = 10.0
STALL_STEPS = 5.0
STALL_FIRST_SECONDS = 30.0
"""While a rank is at its process's first step of a shape: it compiles, and no step says how long one takes."""
STALL_LOADING_SECONDS = 120.0
LOOK_SECONDS = 2.0
"""How long no step of a group over JACCL may move before its devices are looked at, once."""

_PHASES = {
    Stage.WAITING: GroupPhase.WAITING,
    Stage.CHECKING: GroupPhase.PREPARING,
    Stage.ENDING: GroupPhase.PREPARING,
    Stage.BACKOFF: GroupPhase.PREPARING,
    Stage.FORMING: GroupPhase.FORMING,
    Stage.LOADING: GroupPhase.LOADING,
    Stage.COMPARING: GroupPhase.LOADING,
    Stage.READY: GroupPhase.READY,
    Stage.DRAINING: GroupPhase.DRAINING,
    Stage.STOPPING: GroupPhase.DRAINING,
    Stage.STOPPED: GroupPhase.DRAINING,
    Stage.GAVE_UP: GroupPhase.GAVE_UP,
}


class Leader:
    """``on_change`` runs after every change of the state; ``on_ready`` when the group begins to serve."""

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
        past = history.load(history_file, plan)
        self.machine = Machine(
            plan.world_size,
            limits or attempts.Limits(plan.bootstrap.attempts, plan.bootstrap.attempt_timeout_seconds),
            was_ready=past.was_ready,
            recoveries=past.recoveries,
        )
        self.released = asyncio.Event()
        """Set when the group has stopped: who was told to end may go."""
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
        self._digests: dict[int, str] = {}
        self._vocabulary = Vocabulary(0, True)
        self._pulses: dict[int, peers.Pulse] = {}
        self._steps: dict[int, int] = {}
        self._still_ticks = 0
        self._ready_since: datetime | None = None
        self._failure: Failure | None = None
        self._dirty = True

    # --- state ---

    @property
    def state(self) -> GroupState:
        """What /v1/state answers."""
        machine = self.machine
        return GroupState(
            uid=self.plan.uid,
            index=self.plan.index,
            epoch=self.plan.epoch,
            phase=_PHASES[machine.stage],
            message=self._message(),
            attempt=machine.attempt,
            recoveries=machine.recoveries,
            ready_since=self._ready_since,
            failure=self._failure,
            ranks=tuple(self._report(rank) for rank in range(self.plan.world_size)),
            benchmark=self._service().benchmark,
        )

    @property
    def heartbeat_ages(self) -> dict[int, float]:
        """Seconds since each present rank's process spoke; 0 for one that is not expected to."""
        ages = {rank: pulse.heartbeat_age_seconds for rank, pulse in self._pulses.items()}
        if self.member is not None:
            ages[0] = self.member.heartbeat_age
        return ages

    def _names(self, ranks: tuple[int, ...]) -> str:
        return ", ".join(f"rank {rank} ({self.plan.ranks[rank].node})" for rank in ranks)

    def _message(self) -> str:
        machine = self.machine
        who, one = self._names(machine.waiting_for), len(machine.waiting_for) == 1
        failure = self._failure.message if self._failure is not None else ""
        match machine.stage:
            case Stage.WAITING:
                refused = "; ".join(text for _, text in sorted(self._rendezvous.refusals.items()))
                return f"waiting for {who}" + (f"; refused: {refused}" if refused else "")
            case Stage.CHECKING:
                return f"attempt {machine.attempt}: preflight checks run on {who}"
            case Stage.FORMING:
                late = f"; the exchange waits for {self._names(self._exchange.missing)}" if self._exchange.missing else ""
                return f"attempt {machine.attempt}: {who} {'is' if one else 'are'} in MLX's init{late}"
            case Stage.LOADING:
                return f"{who} {'loads' if one else 'load'} the model"
            case Stage.COMPARING:
                return "all ranks have loaded and run the fixed prompt"
            case Stage.READY:
                return "the group serves"
            case Stage.ENDING:
                return f"attempt {machine.attempt} failed, its ranks are being ended: {failure}"
            case Stage.BACKOFF:
                return f"next attempt in {machine.backoff:g} s; the last one failed: {failure}"
            case Stage.GAVE_UP:
                return failure
            case Stage.DRAINING:
                return f"no new requests; {self._service().running} still run"
            case Stage.STOPPING:
                return "the ranks are stopping together"
            case Stage.STOPPED:
                return "the group has stopped"

    def _report(self, rank: int) -> RankReport:
        report, machine = self._reports[rank], self.machine
        peak = self._pulses[rank].peak_memory_bytes if rank in self._pulses else 0
        report = report.model_copy(update={"peak_memory_bytes": max(peak, report.peak_memory_bytes)})
        if rank not in machine.present:
            refused = self._rendezvous.refusals.get(rank, "")
            return report.model_copy(update={"phase": RankPhase.ABSENT, "message": refused and f"refused: {refused}"})
        after_failure = machine.stage in (Stage.ENDING, Stage.BACKOFF, Stage.GAVE_UP)
        if after_failure and machine.cause is not None and machine.cause.rank == rank:
            return report.model_copy(update={"phase": RankPhase.FAILED, "message": machine.cause.fault.message})
        phase = {
            Stage.CHECKING: RankPhase.CHECKED if rank in machine.done else RankPhase.JOINED,
            Stage.FORMING: RankPhase.FORMING,
            Stage.LOADING: RankPhase.LOADING,
            Stage.COMPARING: RankPhase.LOADING,
            Stage.READY: RankPhase.SERVING,
            Stage.DRAINING: RankPhase.SERVING,
        }.get(machine.stage, RankPhase.JOINED)
        return report.model_copy(update={"phase": phase, "message": ""})

    # --- members ---

    async def join(self, hello: peers.Hello, connection: Connection) -> peers.Refusal | None:
        """Judges a claim; of an accepted member, runs the connection to its end."""
        if hello.digest != self._rendezvous.identity.digest:
            # The model's files may have been put right since they were read here.
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
        self.feed(attempts.Joined(rank))
        why = "the supervisor ended"
        try:
            why = await connection.serve(lambda text: self.heard(rank, peers.REPORT.validate_json(text)), lambda: None)
        finally:
            log.warning("lost %s: %s", connection.peer, why)
            del self._links[rank]
            self._pulses.pop(rank, None)
            self._rendezvous = self._rendezvous.leave(rank)
            self.feed(attempts.Left(rank, why))
        return None

    def heard(self, rank: int, report: peers.Report) -> None:
        """A member's report."""
        match report:
            case peers.Pulse():
                self._pulses[rank] = report
                return
            case peers.Checked(attempt=attempt, port=port, digest=digest):
                self._digests[rank] = digest
                odd = self._odd_digest(rank)
                if odd is None:
                    self.feed(attempts.Checked(rank, attempt, port))
                else:
                    self.feed(attempts.Failed(rank, attempt, odd, faults.Stage.PREFLIGHT))
            case peers.Failure(attempt=attempt, stage=stage, message=message):
                log.warning("attempt %d: rank %d failed in %s: %s", attempt, rank, stage, message)
                fault = faults.Fault(report.fault, report.reason, message, report.echo)
                self.feed(attempts.Failed(rank, attempt, fault, faults.Stage(stage)))
            case peers.Gather(attempt=attempt) if attempt == self.machine.attempt:
                self._gather(rank, report)
            case peers.RankFormed(attempt=attempt):
                self.feed(attempts.RankFormed(rank, attempt))
            case peers.RankProgress(attempt=attempt) if attempt == self.machine.attempt:
                self._still_ticks = 0
                self._update(
                    rank,
                    loaded_bytes=report.loaded_bytes,
                    total_bytes=report.total_bytes,
                    loaded_layers=report.layers,
                )
            case peers.RankLoaded(attempt=attempt, total_bytes=total, peak_memory_bytes=peak):
                if attempt == self.machine.attempt:
                    self._update(rank, loaded_bytes=total, total_bytes=total, peak_memory_bytes=peak)
                self.feed(attempts.RankLoaded(rank, attempt))
            case peers.RankReady(attempt=attempt, tokens=tokens):
                if rank == 0:
                    self._vocabulary = Vocabulary(report.vocabulary, report.chat_template)
                self.feed(attempts.RankReady(rank, attempt, tokens))
            case peers.Ended(attempt=attempt):
                self.feed(attempts.Ended(rank, attempt))
            case peers.Leaving():
                log.info("rank %d was told to end: draining", rank)
                self.feed(attempts.Drain(for_good=False))
            case _:
                pass

    def _gather(self, rank: int, report: peers.Gather) -> None:
        """One rank's part of JACCL's exchange; the whole goes to all when it was the last."""
        try:
            part = base64.b64decode(report.data, validate=True)
            self._exchange, whole = self._exchange.put(rank, report.number, part)
        except ValueError as error:
            fault = faults.Fault(FaultClass.BUG, "ExchangeFailed", f"JACCL's exchange: {error}")
            self.feed(attempts.Failed(rank, report.attempt, fault, faults.Stage.INIT))
            return
        if whole is not None:
            data = base64.b64encode(whole).decode()
            self._order(peers.Gathered(attempt=report.attempt, number=report.number, data=data))

    def _odd_digest(self, rank: int) -> faults.Fault | None:
        mine = self._digests.get(0, "")
        for other, theirs in sorted(self._digests.items()):
            if mine and theirs and theirs != mine and rank in (0, other):
                text = (
                    f"the model in {self.plan.model_path} on {self.plan.ranks[other].node} is not the one on "
                    f"{self.plan.ranks[0].node}: configuration, tokenizer files or tensors differ"
                )
                return faults.Fault(FaultClass.CONFIGURE, "ModelDiffers", text)
        return None

    def _update(self, rank: int, **values: int) -> None:
        self._reports[rank] = self._reports[rank].model_copy(update=values)
        self._changed()

    # --- the machine ---

    def feed(self, event: attempts.Event) -> None:
        """One event; its actions are carried out at once, in order."""
        before = self.machine
        self.machine, actions = before.step(event)
        if self.machine.stage is not before.stage:
            self._entered(before.stage)
        if self.machine.cause is not before.cause:
            self._failure = self._as_failure(self.machine.cause)
            if isinstance(event, attempts.Stalled | attempts.Timer) and self._failure is not None:
                log.warning("attempt %d: %s", self._failure.attempt, self._failure.message)
        for action in actions:
            self._act(action)
        if self.machine is not before:
            self._changed()

    def _entered(self, before: Stage) -> None:
        stage = self.machine.stage
        log.info("%s -> %s (attempt %d)", before, stage, self.machine.attempt)
        self._still_ticks = 0
        if stage is Stage.READY:
            self._ready_since = datetime.now(UTC)
        elif stage is not Stage.DRAINING:
            self._ready_since = None
        if stage is Stage.CHECKING:
            self._digests = {}
            for rank, report in self._reports.items():
                self._reports[rank] = RankReport(rank=rank, node=report.node, phase=RankPhase.JOINED)
        if not self.machine.timer_on and self._timer is not None:
            self._timer.cancel()

    def _as_failure(self, cause: attempts.Cause | None) -> Failure | None:
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
        )

    def _act(self, action: attempts.Action) -> None:
        match action:
            case attempts.Preflight(attempt=attempt):
                self._order(peers.Preflight(attempt=attempt))
            case attempts.StartRanks(attempt=attempt, ports=ports):
                ring = self.plan.backend is Backend.RING
                hosts = tuple(f"{entry.ring_address}:{ports[entry.rank]}" for entry in self.plan.ranks) if ring else ()
                leader = self.plan.ranks[0]
                coordinator = f"{leader.address}:{ports[0]}" if self._jaccl_environment else ""
                self._exchange = jaccl.Exchange(self.plan.world_size)
                self._order(peers.Launch(attempt=attempt, hosts=hosts, coordinator=coordinator))
            case attempts.Compare(attempt=attempt):
                self._order(peers.CheckRank(attempt=attempt))
            case attempts.Serve(attempt=attempt):
                past = history.History(self.machine.was_ready, self.machine.recoveries)
                history.save(self._history_file, self.plan, past)
                self._service().attach(_Link(self, attempt), self._vocabulary)
                self._on_ready()
            case attempts.Unserve(why=why, settled=settled):
                self._service().detach(why, settled=settled)
            case attempts.Admit(admit=admit):
                self._service().draining = not admit
            case attempts.StopRanks(attempt=attempt):
                self._order(peers.StopRank(attempt=attempt))
            case attempts.EndRanks(attempt=attempt):
                self._order(peers.End(attempt=attempt))
            case attempts.Cut(rank=rank):
                if rank in self._links:
                    self._links[rank].cut("it did not end its rank in time")
            case attempts.SetTimer(number=number, seconds=seconds):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up, number)
            case attempts.ReleaseAll():
                self._order(peers.Release())
                self.released.set()
            case attempts.GiveUp(cause=cause):
                log.error("gave up (%s, %s): %s", cause.fault.fault, cause.fault.reason, cause.line)

    def _time_is_up(self, number: int) -> None:
        late = self._exchange.missing if self.machine.stage is Stage.FORMING else ()
        self.feed(attempts.Timer(number, late))

    def _order(self, order: peers.Order) -> None:
        for connection in self._links.values():
            connection.send(order)
        if self.member is not None:
            self.member.order(order)

    def turn(self, attempt: int, number: int) -> None:
        """Wakes every rank of the attempt."""
        self._order(peers.TurnRank(attempt=attempt, number=number))

    def measure(self, attempt: int) -> None:
        """Lets every rank of the attempt measure the all-reduce."""
        self._order(peers.MeasureRank(attempt=attempt))

    # --- time ---

    async def run(self) -> None:
        """Ticks: beats to the members, stalls, the end of a drain."""
        tick = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            tick += 1
            self._watch_steps()
            if self.machine.stage is Stage.DRAINING and self._service().running == 0:
                self.feed(attempts.Quiet())
            if self._dirty or tick % 2 == 0:
                beat = peers.Beat(state=self.state if self._dirty else None)
                self._dirty = False
                for connection in self._links.values():
                    connection.send(beat)

    async def flush(self, seconds: float) -> None:
        """Waits until the members' connections have taken what was said."""
        await asyncio.gather(*(connection.flush(seconds) for connection in self._links.values()))

    def _watch_steps(self) -> None:
        stage = self.machine.stage
        if stage not in (Stage.LOADING, Stage.COMPARING, Stage.READY, Stage.DRAINING):
            self._still_ticks = 0
            return
        pulses = dict(self._pulses)
        if self.member is not None:
            pulses[0] = self.member.pulse()
        pulses = {rank: pulse for rank, pulse in pulses.items() if pulse.attempt == self.machine.attempt}
        steps = {rank: pulse.steps for rank, pulse in pulses.items()}
        working = stage is Stage.LOADING or any(pulse.in_step for pulse in pulses.values())
        if steps != self._steps or not working:
            self._steps, self._still_ticks = steps, 0
            return
        self._still_ticks += 1
        if self.plan.backend is Backend.JACCL and self._still_ticks == round(LOOK_SECONDS / TICK_SECONDS):
            self._order(peers.LookAtDevices(attempt=self.machine.attempt))
        longest = max((pulse.longest_step_seconds for pulse in pulses.values()), default=0.0)
        first = any(pulse.in_step and pulse.longest_step_seconds == 0.0 for pulse in pulses.values())
        limit = max(STALL_FIRST_SECONDS if first else STALL_SECONDS, STALL_STEPS * longest)
        if stage is Stage.LOADING:
            limit = STALL_LOADING_SECONDS
        if self._still_ticks * TICK_SECONDS > limit:
            slowest = min(steps, key=lambda rank: steps[rank], default=0)
            where = {Stage.LOADING: faults.Stage.LOAD, Stage.COMPARING: faults.Stage.CHECK}.get(stage, faults.Stage.SERVE)
            self.feed(attempts.Stalled(self.machine.attempt, slowest, faults.stalled(limit, where)))

    def _changed(self) -> None:
        self._dirty = True
        self._on_change(self.state)


class _Link:
    """Rank 0 of one attempt, for the service."""

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
