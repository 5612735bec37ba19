"""The container's process: combines a leader or a follower with a member, the control port and the gateway.

It never imports MLX or a tokenizer, directly or indirectly, so that nothing the rank does can block it.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.plan import LEAVE_SECONDS, Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import GroupPhase, Verify
from thunderfleet_lib.host.descriptors import allow_descriptors

from thunderfleet_runner import faults, protocol
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.service import Service
from thunderfleet_runner.api.upkeep import canary
from thunderfleet_runner.group.decide import attempts, events
from thunderfleet_runner.group.decide.rendezvous import Identity
from thunderfleet_runner.group.follower import Follower
from thunderfleet_runner.group.leader import Leader
from thunderfleet_runner.group.member import Member
from thunderfleet_runner.group.metrics import GroupMetrics
from thunderfleet_runner.host import preflight, priority, wired_memory
from thunderfleet_runner.host.intakeprocess import IntakeStarter, intake_command
from thunderfleet_runner.host.rankprocess import ignored_variables, mlx_settings, rank_command
from thunderfleet_runner.net import connection, control, jaccl, peers

log = logging.getLogger(__name__)
T = TypeVar("T")

PORT_SECONDS = 15.0
"""How long to retry a fixed port that is in use."""


@dataclass(frozen=True)
class SupervisorSettings:
    """A supervisor's input. ``pod`` and ``node`` come from the pod's metadata."""

    plan: Plan
    pod: str
    node: str
    keys_folder: Path
    state_folder: Path
    api_keys: frozenset[str] = frozenset()
    command: Callable[[str, int, int], list[str]] = rank_command
    intake: Callable[[str, str], list[str]] = intake_command
    limits: attempts.Limits | None = None
    gateway: bool = True
    benchmark: bool = True
    jaccl_environment: bool = False
    """Let JACCL run its own exchange; rank 0's setting applies to the group."""
    wired: wired_memory.Reader | None = field(default_factory=wired_memory.reader)
    """How wired memory is read; None where a kill leaves none wired."""

    @property
    def rank(self) -> int:
        """This pod's rank. Raises ValueError when the plan does not name it."""
        for entry in self.plan.ranks:
            if entry.pod == self.pod:
                return entry.rank
        pods = ", ".join(entry.pod for entry in self.plan.ranks)
        raise ValueError(f"the plan of {self.plan.group} does not name pod {self.pod}; it names {pods}")

    def check(self) -> None:
        """Raises ValueError when the plan does not fit this pod, OSError when the keys cannot be read."""
        entry = self.plan.ranks[self.rank]
        if self.node != entry.node:
            raise ValueError(f"the plan places pod {self.pod} on node {entry.node}, this is node {self.node}")
        if self.jaccl_environment and jaccl.wants_coordinator(self.plan) and not self.plan.ranks[0].ring_ports:
            raise ValueError(
                f"--jaccl-environment needs ringPorts of rank 0 for MLX's own exchange; the plan of {self.plan.group} has "
                f"none: run `kubectl delete pod -n {self.plan.namespace} {self.plan.ranks[0].pod}` so that the operator makes "
                "a new plan, or start without --jaccl-environment"
            )
        for name in ("tls.crt", "tls.key"):
            with (self.keys_folder / name).open("rb"):
                pass


class Blocked(OSError):
    """The supervisor cannot serve the state of its group, so the fault goes to the pod's termination message."""

    def __init__(self, fault: faults.Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Supervisor:
    """One pod's supervisor. Raises ValueError for invalid settings, OSError or ssl.SSLError for keys that cannot be read."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self.settings = settings
        self.plan = settings.plan
        self.rank = settings.rank
        settings.check()
        self._server_tls = control.server_tls(settings.keys_folder)
        self._client_tls = control.client_tls(settings.keys_folder)
        self._ending = asyncio.Event()
        self._changes = control.Changes()
        self._tasks: list[asyncio.Task[None]] = []
        if ignored := ignored_variables(os.environ):
            log.warning("ranks run without %s: set MLX's variables in spec.runtime", ", ".join(ignored))
        self.service = Service(self.plan, self.rank, lambda: self.role.state)
        command = settings.intake(self.plan.model_path, self.plan.group)
        self._intake = Intake(IntakeStarter(command).start)
        self.service.intake_problem = lambda: self._intake.problem
        self._metrics = GroupMetrics(self.service.registry, self._ages)
        self._benchmark: asyncio.Task[None] | None = None
        self._proofs: asyncio.Task[None] | None = None
        self._weights: asyncio.Task[None] | None = None
        self._was_ready = False
        self.role: Leader | Follower
        if self.rank == 0:
            versions = preflight.version("mlx"), preflight.version("mlx-lm")
            identity = Identity(*versions, preflight.digest(self.plan), self._mlx_settings())
            leader = Leader(
                self.plan,
                identity,
                lambda: self.service,
                self._changed,
                self._ready,
                settings.state_folder / "history.json",
                settings.limits,
                settings.jaccl_environment,
            )
            self.role = leader
            report: Callable[[peers.Report], None] = functools.partial(leader.receive, 0)
        else:
            self.role = Follower(self.plan, self._client_tls, self._hello, self._changed)
            report = self.role.report
        self.member = Member(
            self.plan,
            self.rank,
            settings.state_folder,
            report,
            self._from_rank,
            settings.command,
            settings.jaccl_environment,
            settings.wired,
            self._client_tls,
        )
        self.role.member = self.member

    @property
    def state(self) -> GroupState:
        """The group's state, as far as this rank has it."""
        return self.role.state

    def end(self) -> None:
        """Handles SIGTERM: drain, stop together, exit."""
        self._ending.set()

    async def run(self) -> None:
        """Runs until ``end``. Raises Blocked when rank 0's control port is in use, OSError when an address is lost."""
        settings = self.settings
        await asyncio.to_thread(settings.state_folder.mkdir, parents=True, exist_ok=True)
        # The process imports MLX while the ports are opened and the peers connect.
        self._start(self.member.run(), "member")
        equal = asyncio.get_running_loop().call_later(priority.START_SECONDS, self._end_preference)
        listening: list[web.AppRunner | None] = []
        try:
            await self._serve(listening)
        finally:
            equal.cancel()
            self._end_preference()
            self._tasks += [task for task in (self._benchmark, self._proofs, self._weights) if task is not None]
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._intake.close()
            await self.member.end()
            for runner in reversed(listening):
                if runner is not None:
                    await runner.cleanup()

    async def _serve(self, listening: list[web.AppRunner | None]) -> None:
        """Adds to ``listening`` what ``run`` must clean up."""
        leader = self.role if isinstance(self.role, Leader) else None
        server = control.ControlServer(
            self.plan,
            self.rank,
            state=lambda: self.state,
            join=leader.join if leader is not None else _refuse,
            drain=lambda: leader.feed(events.Drain(for_good=True)) if leader is not None else None,
            changes=self._changes,
            relay=self.member.relay,
            connections=self._connected,
        )
        listening.append(await self._lasting("control", lambda: _once_free(lambda: server.listen(self._server_tls))))
        if self.settings.gateway:
            listening.append(await self._lasting("gateway", self._serve_gateway))
        self._metrics.observe(self.state)
        self._start(self.role.run(), "role")
        if leader is not None:
            self._start(canary.run(self.service, leader.output_wrong), "canary")
            leader.feed(events.Joined(0))
        ending = asyncio.create_task(self._ending.wait(), name="ending")
        await asyncio.wait([ending, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        for task in self._tasks:
            if task.done():
                await task
        await self._leave()

    async def _lasting(self, what: str, listen: Callable[[], Awaitable[web.AppRunner]]) -> web.AppRunner | None:
        """The server of a fixed port; None if another program uses the port, and then every attempt fails.

        Raises Blocked for rank 0's control port, without which no state can be served; OSError for another reason.
        """
        try:
            return await listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            entry = self.plan.ranks[self.rank]
            port = entry.control_port if what == "control" else entry.gateway_port
            fault = faults.lasting_port_taken(what, entry.address, port, entry.node)
            if what == "control" and self.rank == 0:
                raise Blocked(fault) from error
            self.member.blocked = fault
            return None

    async def _leave(self) -> None:
        if isinstance(self.role, Leader):
            # It may still be set because a member left. If the group is stopped, the state machine sets it again.
            self.role.released.clear()
            self.role.feed(events.Drain(for_good=True))
        else:
            self.role.leave()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.role.released.wait()
        except TimeoutError:
            log.warning("the group did not stop within %g s; exiting", LEAVE_SECONDS)
        if isinstance(self.role, Leader):
            await self.role.flush(2.0)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _serve_gateway(self) -> web.AppRunner:
        from thunderfleet_runner.api.http import gateway

        entry = self.plan.ranks[self.rank]
        served = gateway.Gateway(self.service, self._intake, self.settings.api_keys)
        runner = web.AppRunner(
            served.app(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=2.0,
            handler_cancellation=True,
            # A few kilobytes of gzip become a gigabyte; encoded bodies are refused.
            auto_decompress=False,
            logger=_unlogged(),
        )
        await runner.setup()
        try:
            await _once_free(lambda: served.listener.listen(runner, entry.address, entry.gateway_port))
        except OSError:
            await runner.cleanup()
            raise
        return runner

    def _from_rank(self, message: protocol.FromRank) -> None:
        if isinstance(message, protocol.Loaded) and self.rank == 0 and self.settings.gateway:
            # The attempt's ranks have read the model's files: the intake reads the same ones, while the ranks run the check.
            self._intake.renew()
        if isinstance(message, protocol.Ready):
            # Before the group accepts requests.
            self._end_preference()
        self.service.deliver(message)

    def _end_preference(self) -> None:
        """From now on, this pod's processes are equal to other programs. A process of the intake is when it has started."""
        for group in (0, self.member.slot.spare_pid, self.member.pid):
            if group is not None:
                priority.ordinary(group)

    def _hello(self) -> peers.Hello:
        return peers.Hello(
            uid=self.plan.uid,
            index=self.plan.index,
            epoch=self.plan.epoch,
            rank=self.rank,
            node=self.settings.node,
            mlx=preflight.version("mlx"),
            mlx_lm=preflight.version("mlx-lm"),
            digest=preflight.digest(self.plan),
            environment=self._mlx_settings(),
        )

    def _mlx_settings(self) -> dict[str, str]:
        return mlx_settings(os.environ, self.plan.runtime.environment)

    def _changed(self, state: GroupState) -> None:
        ready = state.phase is GroupPhase.READY
        if ready and not self._was_ready and self.settings.benchmark and self.plan.verify is Verify.FULL:
            self._weights = asyncio.create_task(self._read_weights(self._weights), name="weights")
        self._was_ready = ready
        self._metrics.observe(state)
        self._changes.notify()

    def _connected(self, connections: str) -> None:
        self.service.connections = connections

    def _ages(self) -> dict[int, float]:
        if isinstance(self.role, Leader):
            return self.role.heartbeat_ages
        return {self.rank: self.member.heartbeat_age}

    def _ready(self) -> None:
        if not self.settings.benchmark:
            return
        if isinstance(self.role, Leader) and (self._proofs is None or self._proofs.done()):
            self._proofs = asyncio.create_task(self._prove(self.role), name="proofs")
        if self._benchmark is None or self._benchmark.done():
            self._benchmark = asyncio.create_task(self._measure(), name="benchmark")

    async def _prove(self, leader: Leader) -> None:
        try:
            await leader.prove()
        except Exception:
            log.exception("the check of the group's answers failed")

    async def _read_weights(self, before: asyncio.Task[None] | None) -> None:
        """Hashes each copy of the model once, while the group serves. ``before``: an earlier call that may still run."""
        if before is not None:
            await asyncio.wait([before])
        try:
            await self.member.read_weights()
        except Exception:
            log.exception("the weights could not be read")

    async def _measure(self) -> None:
        """Benchmarks until the group is no longer Ready; ``_ready`` starts it again."""
        from thunderfleet_runner.api.upkeep import benchmark

        if self._proofs is not None:
            await asyncio.wait([self._proofs])
        try:
            await benchmark.keep(self.service, self.plan.benchmark)
        except Exception:
            log.exception("the benchmark failed")


def _unlogged() -> logging.Logger:
    """For connections that do not speak HTTP: aiohttp would log a traceback for each. The gateway logs its own errors."""
    logger = logging.getLogger(f"{__name__}.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


async def _once_free(listen: Callable[[], Awaitable[T]]) -> T:
    """Listens, retrying for PORT_SECONDS while an earlier supervisor of this pod still holds the port.

    Raises OSError with the address and the port when they cannot be bound.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + PORT_SECONDS
    while True:
        try:
            return await listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or loop.time() > until:
                raise
            log.warning("%s; retrying", error)
        await asyncio.sleep(0.5)


async def _refuse(_: peers.Hello, __: connection.Connection) -> peers.Refusal | None:
    return peers.Refusal(reason=Reason.NOT_LEADER, message="this pod is not that of rank 0")


def api_keys(folder: Path) -> frozenset[str]:
    """All values in the mounted Secret; empty when none is mounted, and every client may use the API.

    Raises Blocked for a Secret without a value, OSError or ValueError when it cannot be read.
    """
    if not folder.is_dir():
        return frozenset()
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".."))
    keys = frozenset(filter(None, (path.read_text(encoding="utf-8").strip() for path in files)))
    if not keys:
        raise Blocked(faults.no_api_keys())
    return keys


async def serve(settings: SupervisorSettings) -> None:
    """Runs a supervisor until SIGTERM or SIGINT, and its shutdown."""
    allow_descriptors()
    supervisor = Supervisor(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.end)
    with contextlib.suppress(AttributeError):
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
    log.info(
        "supervisor of rank %d of %s, epoch %d, process %d",
        supervisor.rank, settings.plan.group, settings.plan.epoch, os.getpid(),
    )  # fmt: skip
    await supervisor.run()
