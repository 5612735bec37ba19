"""One rank's part of the group, on its own Mac: carries out the leader's orders and reports the results.

It is the same on every rank; only the way to the leader differs (a call on rank 0, a websocket elsewhere). It reports
``RankEnded`` only when the rank's process is reaped.
"""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend, FaultClass, Verify
from thunderfleet_lib import logs

from thunderfleet_runner import faults, protocol
from thunderfleet_runner.faults import Fault, Stage
from thunderfleet_runner.group import heartbeats, launch
from thunderfleet_runner.group.kill_guard import KillGuard
from thunderfleet_runner.group.slot import RankSlot
from thunderfleet_runner.host import preflight, weightvalues, wired_memory
from thunderfleet_runner.host.rankprocess import RankProcess, rank_command, resident_bytes
from thunderfleet_runner.net import jaccl, peers
from thunderfleet_runner.net.ports import NoFreePort, PortBlock
from thunderfleet_runner.net.relay import NOT_YET, Relays, not_taken

log = logging.getLogger(__name__)

_EVERY_ATTEMPT = 1 << 62


@dataclass(frozen=True)
class _Settle:
    done: "asyncio.Future[None]"


def _port_taken(error: NoFreePort) -> Fault:
    return Fault(FaultClass.RETRY, Reason.PORT_TAKEN, f"{error}: other programs use them")


def _bounded(message: str) -> str:
    """Makes a message encodable and limits its length, because it may quote a file or another program."""
    return message[: peers.TEXT_CHARACTERS].encode("utf-8", "replace").decode()


class Member:
    """``report`` sends to the leader; ``on_rank`` gets every message of the rank (rank 0: the service's).

    ``tls`` is for the relays that a plan may need.
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
        self.blocked: Fault | None = None
        """The fault that prevents this supervisor from serving: every attempt fails with it."""
        self.slot = RankSlot(command(plan.group, plan.epoch, rank), state_folder / "rank.pid", self._received, self._exited)
        self.heartbeats = heartbeats.Heartbeats()
        self._folder = state_folder
        self._weights = weightvalues.Known(state_folder / "weights.json")
        self._loads = ""
        """The signature of the weight files that this attempt's rank loads; empty if it is not known."""
        self._report = report
        self._on_rank = on_rank
        self._coordinates = jaccl_environment and rank == 0 and jaccl.wants_coordinator(plan)
        self._tls = tls
        self._relays: Relays | None = None
        self._kills = KillGuard(wired, self.entry.node, self.entry.memory_bytes)
        self._block = PortBlock(self.entry.ring_ports)
        self._attempt = 0
        self._stage = Stage.PREFLIGHT
        self._stopping = False
        """Whether the rank was asked to exit. Then its exit is not a failure."""
        self._ending = False
        """Whether the rank is being ended. Then its exit follows from that, unless it had exited by itself before."""
        self._failed = False
        """Whether this attempt's failure is reported."""
        self._orders: asyncio.Queue[peers.Order | _Settle] = asyncio.Queue()
        self._end_ordered = 0
        """The latest attempt that the leader has ordered to end."""
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether a rank's process runs."""
        return self.slot.process is not None

    @property
    def pid(self) -> int | None:
        """The process id of the rank."""
        return self.slot.process.pid if self.slot.process is not None else None

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the rank's last message; 0 when none is expected."""
        return self.heartbeats.age

    def pulse(self) -> peers.Pulse:
        """The progress of the rank's work, for the leader."""
        return self.heartbeats.pulse(self._attempt)

    def order(self, order: peers.Order) -> None:
        """Accepts an order. Orders run one after the other, but turns pass them, and ``End`` cancels a preflight's result."""
        match order:
            case peers.TurnRank(attempt=attempt, number=number) if attempt == self._attempt and self.running:
                # Turns do not wait for other orders, because tokens depend on them.
                self.slot.send(protocol.Turn(number=number))
            case peers.MeasureRank(attempt=attempt):
                # Not through the queue: turns would pass it, and every rank must get turns and measurements in the same order.
                if attempt == self._attempt:
                    self.slot.send(protocol.Measure())
            case peers.Gathered(attempt=attempt, number=number, data=data):
                if attempt == self._attempt:
                    self.slot.send(protocol.Gathered(number=number, data=data))
            case _:
                if isinstance(order, peers.End):
                    self._end_ordered = max(self._end_ordered, order.attempt)
                self._orders.put_nowait(order)

    def to_rank(self, message: protocol.ToRank) -> None:
        """Directly to the rank's process, if there is one."""
        self.slot.send(message)

    async def run(self) -> None:
        """Carries out orders until cancelled; then ends and reaps the rank."""
        watch = asyncio.create_task(self._watch(), name="rank-watch")
        try:
            await self.slot.prepare()
            while True:
                await self._carry_out(await self._orders.get())
        finally:
            watch.cancel()
            self._closed = True
            self.slot.close()
            await self.end()
            while not self._orders.empty():
                left = self._orders.get_nowait()
                if isinstance(left, _Settle) and not left.done.done():
                    left.done.set_result(None)

    async def end(self) -> None:
        """Ends and reaps the rank and its spare."""
        await self.slot.dismiss()
        await self._end_rank()

    async def _end_rank(self) -> None:
        self._ending = True
        await self.slot.end()
        relays, self._relays = self._relays, None
        if relays is not None:
            await relays.close()

    async def settle(self) -> None:
        """The leader is gone: its orders are void. When this returns, no process of an attempt is left.

        It goes through the queue like an order, so that a launch in progress is ended too.
        """
        while not self._orders.empty():
            self._orders.get_nowait()
        self._end_ordered = _EVERY_ATTEMPT
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
                await self._settle(done)
            case peers.Preflight(attempt=attempt):
                await self._preflight(attempt)
            case peers.Launch(attempt=attempt) if attempt > self._end_ordered:
                await self._launch(order)
            case peers.CheckRank(attempt=attempt) if attempt == self._attempt:
                self._stage = Stage.CHECK
                self.slot.send(protocol.Check())
            case peers.ProbeDevices(attempt=attempt):
                await self._probe_devices(attempt)
            case peers.StopRank(attempt=attempt):
                await self._stop(attempt)
            case peers.End(attempt=attempt):
                await self._end_rank()
                self._report(peers.RankEnded(attempt=attempt))
                await self.slot.prepare()
            case _:
                pass

    async def _settle(self, done: "asyncio.Future[None]") -> None:
        try:
            await self._end_rank()
            # The next leader counts its attempts from 1 again.
            self._attempt, self._end_ordered = 0, 0
        finally:
            # Also when this member is cancelled here: the caller must not wait forever.
            if not done.done():
                done.set_result(None)
        await self.slot.prepare()

    def _begin(self, attempt: int, stage: Stage) -> None:
        self._attempt, self._stage = attempt, stage
        self._stopping = self._ending = self._failed = False
        logs.always(attempt=attempt)

    async def _preflight(self, attempt: int) -> None:
        await self._end_rank()
        self._begin(attempt, Stage.PREFLIGHT)
        blocked = self.blocked or await self._kills.check(lambda: self._end_ordered >= self._attempt)
        if blocked is not None:
            self._fail(blocked)
            return
        await self.slot.prepare()
        try:
            digest = await asyncio.to_thread(self._check)
            await self.slot.until_warm()
            port = self._take_port()
        except preflight.PreflightFailed as error:
            self._fail(error.fault)
        except NoFreePort as error:
            self._fail(_port_taken(error))
        except OSError as error:
            self._fail(faults.from_text(Stage.PREFLIGHT, str(error)))
        else:
            # Read before the rank loads the files, so that an answer is recorded for the files that it came from.
            self._loads = await asyncio.to_thread(self._signature)
            known = await asyncio.to_thread(self._known_weights)
            signature, weights = known if known is not None else ("", "")
            self._report(peers.Checked(attempt=attempt, port=port, digest=digest, weights=weights, signature=signature))

    def _known_weights(self) -> tuple[str, str] | None:
        """Signature and hash of the copy of the model, from this pod or from an earlier placement."""
        if (found := self._weights.of(Path(self.plan.model_path))) is not None:
            return found
        known = next((one for one in self.plan.known_weights if one.node == self.entry.node), None)
        return (known.signature, known.digest) if known and known.signature == self._signature() else None

    def _signature(self) -> str:
        """Signature of the weight files; empty if they cannot be read."""
        try:
            return weightvalues.signature(Path(self.plan.model_path))
        except OSError:
            return ""

    async def read_weights(self) -> None:
        """Hashes the weights once, unless it is known, and reports them. Until cancelled, or the files change.

        Nothing is reported about files that were replaced after this attempt's rank had loaded them.
        """
        if await asyncio.to_thread(self._known_weights) is not None:
            return
        end = threading.Event()
        try:
            found = await asyncio.to_thread(weightvalues.digest, Path(self.plan.model_path), end)
        except (weightvalues.Interrupted, OSError) as error:
            log.warning("the values of the weights were not read: %s", error or "the files have changed")
            return
        finally:
            # The thread goes on when this task is cancelled.
            end.set()
        await asyncio.to_thread(self._weights.save, found)
        if found[0] != self._loads:
            log.warning(
                "the weight files in %s were replaced while the group serves; it uses the earlier ones until it restarts",
                self.plan.model_path,
            )
            return
        self._report(peers.WeightsRead(signature=found[0], weights=found[1]))

    def _check(self) -> str:
        pid = self.slot.spare_pid
        return preflight.check(self.plan, self.entry, held=resident_bytes(pid) if pid is not None else 0)

    async def _probe_devices(self, attempt: int) -> None:
        """Probes the RDMA devices, because JACCL does not report a cable that is pulled from a running group."""
        try:
            await asyncio.to_thread(preflight.check_rdma, self.plan, self.entry)
        except preflight.PreflightFailed as error:
            if attempt == self._attempt and self.running:
                self._fail(error.fault)

    def _take_port(self) -> int:
        """The port on which this rank's MLX will listen; 0 when it does not listen."""
        if self.plan.backend is Backend.RING:
            return self._block.take(self.entry.ring_address or "")
        return self._block.take(self.entry.address) if self._coordinates else 0

    async def _launch(self, order: peers.Launch) -> None:
        attempt, hosts, coordinator = order.attempt, order.hosts, order.coordinator
        await self._end_rank()
        self._begin(attempt, Stage.INIT)
        self.heartbeats.start()
        await self._kills.started()
        try:
            if hosts:
                hosts = tuple(await self._with_relays(attempt, hosts))
            environment, hostfile = launch.mlx_environment(self.plan, self.rank, attempt, self._folder, hosts, coordinator)
            process = await self.slot.launch(attempt)
        except NoFreePort as error:
            self._fail(_port_taken(error))
            return
        except OSError as error:
            self._fail(Fault(FaultClass.BUG, Reason.RANK_NOT_STARTED, f"cannot start the rank's process: {error}"))
            return
        jaccl_environment = coordinator != ""
        process.send(
            launch.start_message(self.plan, self.rank, attempt, hostfile, environment, jaccl_environment=jaccl_environment)
        )
        log.info("attempt %d: rank %d is process %d", attempt, self.rank, process.pid)

    async def _with_relays(self, attempt: int, hosts: Sequence[str]) -> list[str]:
        """The hosts as this rank reaches them: a relayed hop starts at a port of this supervisor.

        Raises NoFreePort, or OSError when that port cannot be bound.
        """
        found = list(hosts)
        relayed = [entry.rank for entry in self.plan.ranks if entry.relay is not None]
        following = (self.rank + 1) % self.plan.world_size
        if self._tls is None or not {self.rank, following} & set(relayed):
            return found
        self._relays = Relays(self.plan, self.rank, attempt, self._tls, self._fail)
        listens = int(hosts[self.rank].rpartition(":")[2])
        target = await self._relays.start(self._block.take, listens, lambda: self.pid)
        if target is not None:
            found[following] = target
        return found

    async def relay(self, request: web.Request) -> web.StreamResponse:
        """Answers a peer's supervisor that opens a relay for a hop of the ring."""
        if self._relays is None:
            return not_taken(NOT_YET, "this pod is not starting a rank now")
        return await self._relays.answer(request)

    async def _stop(self, attempt: int) -> None:
        process = self.slot.process
        if process is not None and attempt == self._attempt:
            self._stopping = True
            process.send(protocol.Stop())
            # The leader has the time limit: it sends End when this takes too long, and End must not wait behind this.
            waits = asyncio.create_task(process.wait())
            while not waits.done() and self._end_ordered < attempt:
                await asyncio.wait({waits}, timeout=0.1)
            waits.cancel()
        if not self.running:
            self._report(peers.RankEnded(attempt=attempt))

    # --- the rank ---

    def _received(self, attempt: int, message: protocol.FromRank) -> None:
        self.heartbeats.received(message)
        match message:
            case protocol.Formed(rank=rank, size=size, all_sum=all_sum):
                self._formed(attempt, rank, size, all_sum)
            case protocol.Gather(number=number, data=data):
                self._report(peers.Gather(attempt=attempt, number=number, data=data))
            case protocol.Proved(exchanges=exchanges, seconds=seconds):
                log.info("%d exchanges with the other ranks in %.2f s, all values right", exchanges, seconds)
                self._stage = Stage.LOAD
                self._report(peers.RankProved(attempt=attempt, exchanges=exchanges, seconds=seconds))
            case protocol.Progress(loaded_bytes=loaded, total_bytes=total, layers=layers):
                self._stage = Stage.LOAD
                self._report(peers.RankProgress(attempt=attempt, loaded_bytes=loaded, total_bytes=total, layers=layers))
            case protocol.Loaded() as loaded:
                self._report(peers.RankLoaded(attempt=attempt, **loaded.model_dump(exclude={"type"})))
            case protocol.Ready() as ready:
                self._stage = Stage.SERVE
                self._report(peers.RankReady(attempt=attempt, **ready.model_dump(exclude={"type"})))
            case protocol.Failed() as failed:
                self._stage = Stage(failed.stage)
                fault = self._corrupted(failed) if failed.corrupted else faults.from_text(self._stage, failed.text)
                self._fail(fault, first=self.slot.process is not None and self.slot.process.by_itself)
            case protocol.Log(level=level, text=text):
                logging.getLogger("rank").log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
            case _:
                pass
        self._on_rank(message)

    def _corrupted(self, failed: protocol.Failed) -> Fault:
        here = f"rank {self.rank} ({self.plan.ranks[self.rank].node})"
        if failed.peer is None:
            where = f"between the ranks of the group, as {here} received it"
            return replace(faults.link_corrupts(where, failed.text), echo=failed.echo)
        sender = f"rank {failed.peer} ({self.plan.ranks[failed.peer].node})"
        return faults.link_corrupts(f"from {sender} to {here}", failed.text, failed.peer)

    def _formed(self, attempt: int, rank: int, size: int, all_sum: int) -> None:
        planned = self.plan.world_size
        right = planned * (planned + 1) // 2
        if (rank, size) != (self.rank, planned):
            text = f"MLX reports rank {rank} of {size}, the planned rank is {self.rank} of {planned}"
            self._fail(Fault(FaultClass.BUG, Reason.WRONG_GROUP, text))
        elif all_sum != right:
            self._fail(Fault(FaultClass.BUG, Reason.WRONG_SUM, f"the group's all-sum is {all_sum}, expected {right}"))
        else:
            self._stage = Stage.PROVE if planned > 1 and self.plan.verify is not Verify.NONE else Stage.LOAD
            self._report(peers.RankFormed(attempt=attempt, rank=rank, size=size, all_sum=all_sum))

    def _exited(self, attempt: int, process: RankProcess) -> None:
        code = process.code
        self.heartbeats.stop()
        if code < 0 and self._stage in (Stage.PROVE, Stage.LOAD, Stage.CHECK, Stage.SERVE):
            self._kills.killed()
        log.info("attempt %d: rank %d exited (code %d)", attempt, self.rank, code)
        fault = faults.from_exit(self._stage, code, process.tail, rdma=self.plan.backend is Backend.JACCL)
        self._fail(fault, first=process.by_itself)

    def _fail(self, fault: Fault, *, first: bool = False) -> None:
        """Reports a failure of this attempt; only the first one, since the others follow from it.

        ``first``: the rank failed before it was ended, though this is noticed later. Its peers may report the loss earlier, and
        the leader then orders the end of all ranks; what they report is only an echo of this.
        """
        if self._failed or self._stopping or (self._ending and not first):
            return
        self._failed = True
        self._report(
            peers.RankFailed(
                attempt=self._attempt,
                stage=self._stage,
                fault=fault.fault,
                reason=fault.reason,
                message=_bounded(fault.message),
                echo=fault.echo,
                peer=fault.peer,
            )
        )

    async def _watch(self) -> None:
        """Notices a rank whose heartbeats have stopped."""
        while True:
            await asyncio.sleep(heartbeats.TICK_SECONDS)
            silent = self.heartbeats.tick(self._stage)
            if silent is not None:
                self._fail(faults.frozen(silent))
