"""One rank's place in the group, on its own Mac: carries out the leader's orders and reports what becomes of them.

It is the same on every rank; only the way to the leader differs (a call on rank 0, a websocket elsewhere). It holds at most
one process: a rank, or one that waits for the next attempt (it has imported MLX by then). It says Ended only when the rank is
reaped. What waits belongs to no attempt, has no port and no model, and knows nothing of the group.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.vocabulary import Backend, FaultClass

from thunderfleet_runner import faults, framing, protocol
from thunderfleet_runner.faults import Fault, Stage
from thunderfleet_runner.host import preflight, wired_memory
from thunderfleet_runner.host.rankprocess import RankProcess, rank_command, resident_bytes
from thunderfleet_runner.net import jaccl, peers
from thunderfleet_runner.net.ports import NoFreePort, PortBlock
from thunderfleet_runner.net.relay import NOT_YET, Relays, not_taken

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
SILENT_TICKS = 6
"""A serving rank whose heartbeat missed this many of our own ticks (3 s) is frozen. Ticks, not seconds: if this process was
itself held up, time has passed for both."""
SILENT_TICKS_LOADING = 60
"""While loading, libraries hold the interpreter for seconds at a time."""
WARM_SECONDS = 20.0
"""How long a process may take to be started and to import MLX, before another one is tried."""
_EVERY_ATTEMPT = 1 << 62


@dataclass(frozen=True)
class _Settle:
    done: "asyncio.Future[None]"


class _Started:
    """A process that was started to be a rank. ``attempt`` is None while it waits for one."""

    def __init__(self) -> None:
        self.attempt: int | None = None
        self.up = asyncio.Event()
        """It waits for its attempt, or has gone."""
        self.gone = False
        self.process: RankProcess | None = None


def _port_taken(error: NoFreePort) -> Fault:
    return Fault(FaultClass.RETRY, "PortTaken", f"{error}: what listens there is not of this group")


class Member:
    """``report`` carries to the leader; ``on_rank`` gets every message of the rank (rank 0: the service's). ``tls``: for the
    relays that a plan may ask for.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        state_folder: Path,
        report: Callable[[peers.Report], None],
        on_rank: Callable[[protocol.FromRank], None],
        command: Callable[[str, int, int], list[str]] = rank_command,
        jaccl_environment: bool = False,
        wired: wired_memory.Reader | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.plan = plan
        self.entry = plan.ranks[rank]
        self.rank = rank
        self._folder = state_folder
        self._report = report
        self._on_rank = on_rank
        self._command = command
        self._coordinates = jaccl_environment and rank == 0 and jaccl.wants_coordinator(plan)
        self._wired = wired
        self._tls = tls
        self._relays: Relays | None = None
        self._ledger = wired_memory.Ledger()
        self.blocked: Fault | None = None
        """What keeps this supervisor itself from serving: every attempt fails with it."""
        self._block = PortBlock(self.entry.ring_ports)
        self._process: RankProcess | None = None
        self._spare: _Started | None = None
        self._attempt = 0
        self._stage = Stage.PREFLIGHT
        self._ending = False
        self._blamed = False
        self._heard = 0.0
        self._silent_ticks = 0
        self._beating = False
        self._heartbeat: protocol.Heartbeat | None = None
        self._orders: asyncio.Queue[peers.Order | _Settle] = asyncio.Queue()
        self._end_asked = 0
        self._closed = False

    @property
    def pid_file(self) -> Path:
        return self._folder / "rank.pid"

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the rank spoke last; 0 when it is not expected to."""
        return time.monotonic() - self._heard if self._beating else 0.0

    def pulse(self) -> peers.Pulse:
        """How the rank's work moves, for the leader."""
        beat = self._heartbeat
        if beat is None:
            return peers.Pulse(attempt=self._attempt)
        return peers.Pulse(
            attempt=self._attempt,
            steps=beat.steps,
            in_step=beat.in_step,
            longest_step_seconds=beat.longest_step_seconds,
            heartbeat_age_seconds=round(self.heartbeat_age, 1),
            peak_memory_bytes=beat.peak_memory_bytes,
        )

    def order(self, order: peers.Order) -> None:
        """Takes an order; orders are carried out one after the other, but End interrupts a preflight's result."""
        if isinstance(order, peers.End):
            self._end_asked = max(self._end_asked, order.attempt)
        if isinstance(order, peers.TurnRank) and order.attempt == self._attempt and self._process is not None:
            # Turns wait behind nothing: tokens depend on them.
            self._process.send(protocol.Turn(number=order.number))
            return
        if isinstance(order, peers.MeasureRank):
            # Not through the queue: turns pass it by, and every rank must meet turns and measurements in the same order.
            if order.attempt == self._attempt:
                self.to_rank(protocol.Measure())
            return
        if isinstance(order, peers.Gathered):
            if order.attempt == self._attempt:
                self.to_rank(protocol.Gathered(number=order.number, data=order.data))
            return
        self._orders.put_nowait(order)

    def to_rank(self, message: protocol.ToRank) -> None:
        """Straight to the rank's process, if there is one."""
        if self._process is not None:
            self._process.send(message)

    async def run(self) -> None:
        """Carries out orders until cancelled; then the rank is ended and reaped."""
        watch = asyncio.create_task(self._watch(), name="rank-watch")
        try:
            await self._prepare()
            while True:
                await self._carry_out(await self._orders.get())
        finally:
            watch.cancel()
            self._closed = True
            await self.end()
            while not self._orders.empty():
                left = self._orders.get_nowait()
                if isinstance(left, _Settle) and not left.done.done():
                    left.done.set_result(None)

    async def end(self) -> None:
        """Ends and reaps the rank, or what waits to be one, if there is any."""
        await self._dismiss()
        await self._end_rank()

    async def _end_rank(self) -> None:
        process, self._ending = self._process, True
        if process is not None:
            await asyncio.shield(process.end())
        relays, self._relays = self._relays, None
        if relays is not None:
            await relays.close()

    async def settle(self) -> None:
        """The leader is gone: what it still wanted is void, and when this returns no process of an attempt is left.

        It goes through the queue like an order, so that a launch that is under way is ended too.
        """
        while not self._orders.empty():
            self._orders.get_nowait()
        self._end_asked = _EVERY_ATTEMPT
        if self._closed:
            await self.end()
            return
        settled = _Settle(asyncio.get_running_loop().create_future())
        self._orders.put_nowait(settled)
        await settled.done

    # --- orders ---

    async def _carry_out(self, order: "peers.Order | _Settle") -> None:
        match order:
            case _Settle(done=done):
                try:
                    await self._end_rank()
                    # The next leader counts its attempts anew.
                    self._attempt, self._end_asked = 0, 0
                finally:
                    # Also when this member is cancelled meanwhile: who waits must not wait for ever.
                    if not done.done():
                        done.set_result(None)
                await self._prepare()
            case peers.Preflight(attempt=attempt):
                await self._preflight(attempt)
            case peers.Launch(attempt=attempt):
                if attempt > self._end_asked:
                    await self._launch(order)
            case peers.CheckRank(attempt=attempt):
                if attempt == self._attempt:
                    self._stage = Stage.CHECK
                    self.to_rank(protocol.Check())
            case peers.LookAtDevices(attempt=attempt):
                await self._look(attempt)
            case peers.StopRank(attempt=attempt):
                await self._stop(attempt)
            case peers.End(attempt=attempt):
                await self._end_rank()
                self._report(peers.Ended(attempt=attempt))
                await self._prepare()
            case _:
                pass

    async def _preflight(self, attempt: int) -> None:
        await self._end_rank()
        self._attempt, self._stage, self._ending, self._blamed = attempt, Stage.PREFLIGHT, False, False
        if self.blocked is not None:
            self._blame(self.blocked)
            return
        if (kept := await self._memory_kept()) is not None:
            self._blame(kept)
            return
        await self._prepare()
        try:
            passed = await asyncio.to_thread(self._check)
            await self._until_warm()
            port = self._take_port()
        except preflight.PreflightFailed as error:
            self._blame(error.fault)
        except NoFreePort as error:
            self._blame(_port_taken(error))
        except OSError as error:
            self._blame(faults.from_text(Stage.PREFLIGHT, str(error)))
        else:
            self._report(peers.Checked(attempt=attempt, port=port, digest=passed.digest))

    def _check(self) -> preflight.Passed:
        pid = self._waiting_pid
        return preflight.check(self.plan, self.entry, held=resident_bytes(pid) if pid is not None else 0)

    async def _look(self, attempt: int) -> None:
        """JACCL tells of a cable that was pulled in a running group never, and its ranks go on beating."""
        try:
            await asyncio.to_thread(preflight.check_rdma, self.plan, self.entry)
        except preflight.PreflightFailed as error:
            if attempt == self._attempt and self._process is not None:
                self._blame(error.fault)

    async def _memory_kept(self) -> Fault | None:
        """What a kill has left behind on this Mac; waits while that may still be given back."""
        if self._wired is None:
            return None
        while True:
            wired, ledger = await asyncio.to_thread(self._wired), self._ledger
            verdict = ledger.verdict(time.monotonic(), wired, self.entry.memory_bytes)
            if verdict is wired_memory.Verdict.STRANDED and ledger.before is not None and wired is not None:
                return wired_memory.stranded(self.entry.node, ledger.before, wired)
            if verdict is wired_memory.Verdict.FREE:
                break
            if self._end_asked >= self._attempt:
                # The attempt has ended elsewhere; the next one looks again.
                return None
            await asyncio.sleep(TICK_SECONDS)
        self._ledger = self._ledger.settled()
        hold = self._ledger.hold_seconds(time.monotonic())
        return wired_memory.held(self.entry.node, hold) if hold > 0 else None

    def _take_port(self) -> int:
        """The port that this rank's MLX is to listen on; 0 when it does not listen."""
        if self.plan.backend is Backend.RING:
            return self._block.take(self.entry.ring_address or "")
        return self._block.take(self.entry.address) if self._coordinates else 0

    async def _launch(self, launch: peers.Launch) -> None:
        attempt, hosts = launch.attempt, launch.hosts
        await self._end_rank()
        self._attempt, self._stage, self._ending, self._blamed = attempt, Stage.INIT, False, False
        self._heartbeat, self._beating, self._silent_ticks = None, False, 0
        if self._wired is not None:
            self._ledger = self._ledger.started(await asyncio.to_thread(self._wired))
        told: dict[str, str] = {}
        try:
            hostfile = self._write_hostfile(attempt, await self._with_relays(attempt, hosts)) if hosts else None
            if hostfile is not None:
                told = {"MLX_RANK": str(self.rank), "MLX_HOSTFILE": str(hostfile)}
            elif self.plan.backend is Backend.JACCL:
                devices = jaccl.write_devices(self.plan, self._folder, attempt)
                told = jaccl.environment(self.plan, self.rank, devices, launch.coordinator)
            await self._prepare()
            started, self._spare = self._spare, None
            if started is None:
                started = await self._spawn()
        except NoFreePort as error:
            self._blame(_port_taken(error))
            return
        except OSError as error:
            self._blame(Fault(FaultClass.BUG, "RankNotStarted", f"the rank's process cannot be started: {error}"))
            return
        assert started.process is not None
        started.attempt, self._process = attempt, started.process
        self._process.send(self._start(attempt, hostfile, told, jaccl_environment=launch.coordinator != ""))
        log.info("attempt %d: rank %d is process %d", attempt, self.rank, self._process.pid)

    # --- the process that waits ---

    @property
    def _waiting_pid(self) -> int | None:
        spare = self._spare
        return spare.process.pid if spare is not None and spare.process is not None and not spare.gone else None

    async def _spawn(self) -> _Started:
        """A process that waits for its ``Start``. Raises OSError when it cannot be started."""
        started = _Started()

        def said(message: protocol.FromRank) -> None:
            if isinstance(message, protocol.Waiting):
                started.up.set()
            elif started.attempt is not None:
                self._said(started.attempt, message)

        def exited(code: int) -> None:
            started.gone = True
            started.up.set()
            if started.attempt is not None:
                self._exited(started.attempt, code)

        command = self._command(self.plan.group, self.plan.epoch, self.rank)
        started.process = await RankProcess.start(command, pid_file=self.pid_file, on_message=said, on_exit=exited)
        return started

    async def _prepare(self) -> None:
        """Sees to a process that waits. One that cannot be started is no matter yet: the launch tries again, and says so."""
        if self._closed or self._process is not None or self._waiting_pid is not None:
            return
        self._spare = None
        try:
            self._spare = await self._spawn()
        except OSError as error:
            log.warning("no process could be started ahead: %s", error)

    async def _until_warm(self) -> None:
        """Peers that begin together form at once. One that does not come to wait, or has gone, is left to the launch."""
        spare = self._spare
        if spare is None:
            return
        try:
            async with asyncio.timeout(WARM_SECONDS):
                await spare.up.wait()
        except TimeoutError:
            log.warning("a process did not import MLX within %g s; another one is started", WARM_SECONDS)
            await self._dismiss()

    async def _dismiss(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None and spare.process is not None and not spare.gone:
            await asyncio.shield(spare.process.leave())

    async def _with_relays(self, attempt: int, hosts: Sequence[str]) -> list[str]:
        """The hosts as this rank is to see them: a hop that is relayed begins at a port of this supervisor.

        Raises NoFreePort, OSError when that port cannot be had.
        """
        found = list(hosts)
        relayed = [entry.rank for entry in self.plan.ranks if entry.relay is not None]
        following = (self.rank + 1) % self.plan.world_size
        if self._tls is None or not {self.rank, following} & set(relayed):
            return found
        self._relays = Relays(self.plan, self.rank, attempt, self._tls, self._blame)
        listens = int(hosts[self.rank].rpartition(":")[2])
        target = await self._relays.start(self._block.take, listens, lambda: self.pid)
        if target is not None:
            found[following] = target
        return found

    async def relay(self, request: web.Request) -> web.StreamResponse:
        """A peer's supervisor asks to carry a hop of the ring."""
        if self._relays is None:
            return not_taken(NOT_YET, "no ranks are being started here")
        return await self._relays.answer(request)

    def _start(self, attempt: int, hostfile: Path | None, told: dict[str, str], *, jaccl_environment: bool) -> protocol.Start:
        plan = self.plan
        return protocol.Start(
            attempt=attempt,
            rank=self.rank,
            size=plan.world_size,
            backend=plan.backend,
            split=plan.split,
            layers=self.entry.layers,
            pipeline=tuple(entry.layers for entry in plan.ranks if entry.layers is not None),
            model=plan.model,
            model_path=plan.model_path,
            memory_bytes=self.entry.memory_bytes,
            memory=plan.memory,
            hostfile=str(hostfile) if hostfile else None,
            jaccl_environment=jaccl_environment,
            environment={framing.ATTEMPT_VARIABLE: str(attempt), **told},
        )

    def _write_hostfile(self, attempt: int, hosts: Sequence[str]) -> Path:
        """MLX's own format: one list of ``ip:port`` a rank. A file for each attempt: an orphan must not read the next one's."""
        for old in self._folder.glob("hosts-*.json"):
            old.unlink(missing_ok=True)
        path = self._folder / f"hosts-{attempt}.json"
        path.write_text("[" + ",".join(f'["{host}"]' for host in hosts) + "]")
        return path

    async def _stop(self, attempt: int) -> None:
        process = self._process
        if process is not None and attempt == self._attempt:
            self._ending = True
            process.send(protocol.Stop())
            # The leader has the limit: it sends End when this takes too long, and End must not wait behind this.
            waits = asyncio.create_task(process.wait())
            while not waits.done() and self._end_asked < attempt:
                await asyncio.wait({waits}, timeout=0.1)
            waits.cancel()
        if self._process is None:
            self._report(peers.Ended(attempt=attempt))

    # --- the rank ---

    def _said(self, attempt: int, message: protocol.FromRank) -> None:
        self._heard, self._silent_ticks = time.monotonic(), 0
        match message:
            case protocol.Formed(rank=rank, size=size, all_sum=all_sum):
                self._formed(attempt, rank, size, all_sum)
            case protocol.Gather(number=number, data=data):
                self._report(peers.Gather(attempt=attempt, number=number, data=data))
            case protocol.Progress(loaded_bytes=loaded, total_bytes=total, layers=layers):
                self._report(peers.RankProgress(attempt=attempt, loaded_bytes=loaded, total_bytes=total, layers=layers))
            case protocol.Loaded(total_bytes=total, peak_memory_bytes=peak):
                self._report(peers.RankLoaded(attempt=attempt, total_bytes=total, peak_memory_bytes=peak))
            case protocol.Ready() as ready:
                self._stage = Stage.SERVE
                self._report(
                    peers.RankReady(
                        attempt=attempt,
                        tokens=ready.tokens,
                        vocabulary=ready.vocabulary,
                        chat_template=ready.chat_template,
                        peak_memory_bytes=ready.peak_memory_bytes,
                    )
                )
            case protocol.Heartbeat() as beat:
                self._beating, self._heartbeat = True, beat
            case protocol.Failed(stage=stage, text=text):
                self._stage = Stage(stage)
                self._blame(faults.from_text(self._stage, text))
            case protocol.Log(level=level, text=text):
                logging.getLogger("rank").log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
            case _:
                pass
        self._on_rank(message)

    def _formed(self, attempt: int, rank: int, size: int, all_sum: int) -> None:
        planned = self.plan.world_size
        right = planned * (planned + 1) // 2
        if (rank, size) != (self.rank, planned):
            text = f"MLX says rank {rank} of {size}, the planned rank is {self.rank} of {planned}"
            self._blame(Fault(FaultClass.BUG, "WrongGroup", text))
        elif all_sum != right:
            self._blame(Fault(FaultClass.BUG, "WrongSum", f"the group's all-sum gave {all_sum}, {right} is right"))
        else:
            self._stage = Stage.LOAD
            self._report(peers.RankFormed(attempt=attempt, rank=rank, size=size, all_sum=all_sum))

    def _exited(self, attempt: int, code: int) -> None:
        process, self._process = self._process, None
        self._beating = False
        if code < 0 and self._stage in (Stage.LOAD, Stage.CHECK, Stage.SERVE):
            self._ledger = self._ledger.killed(time.monotonic())
        log.info("attempt %d: rank %d has gone (code %d)", attempt, self.rank, code)
        if not self._ending and process is not None:
            self._blame(faults.from_exit(self._stage, code, process.tail))

    def _blame(self, fault: Fault) -> None:
        """Reports a failure of this attempt, the first one only: what follows from it is not news."""
        if self._blamed or self._ending:
            return
        self._blamed = True
        self._report(
            peers.Failure(
                attempt=self._attempt,
                stage=self._stage,
                fault=fault.fault,
                reason=fault.reason,
                message=fault.message,
                echo=fault.echo,
            )
        )

    async def _watch(self) -> None:
        """Notices a rank whose heartbeat thread has fallen silent. Init is not watched: it holds the interpreter."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self._beating:
                continue
            self._silent_ticks += 1
            limit = SILENT_TICKS if self._stage is Stage.SERVE else SILENT_TICKS_LOADING
            if self._silent_ticks > limit:
                self._beating = False
                self._blame(faults.frozen(limit * TICK_SECONDS))
