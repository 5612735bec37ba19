"""Starts and stops the transfers of models from other Macs to this one, and reports their progress.

Each requested model has one task. The task gets the manifest, runs a transfer in a thread, and retries with back-off if that
fails. What was fetched stays on disk, so every attempt continues there. The task of a model that is no longer requested is
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.copies import CopyState
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.modelstore.manifest import InvalidManifest, Manifest, load

from thunderfleet_agent.copies.rates import From
from thunderfleet_agent.copies.shelf import Shelf
from thunderfleet_agent.copies.transfer import Network, Transfer, TransferFailed, TransferProgress
from thunderfleet_agent.copies.ways.connection import PeerFailed, connect
from thunderfleet_agent.copies.ways.pace import Pace
from thunderfleet_agent.copies.ways.paths import Path, Way, paths
from thunderfleet_agent.measure.schedule.view import View
from thunderfleet_agent.measure.session.streams import in_thread
from thunderfleet_agent.weights.wanted import Wanted

log = logging.getLogger(__name__)

MAX_RUNNING = 2
"""Models that are copied at once; the others wait for their turn."""
RETRY = Backoff(1.0, 15.0)
LOOK_UP_SECONDS = 30.0
STOP_SECONDS = 30.0
SWEEP_SECONDS = 3600.0


@dataclass(frozen=True)
class Limits:
    """Bytes per second that this Mac fetches at most; cables that no group uses have no limit."""

    network: float = 62.5e6
    used_cable: float = 25e6


@dataclass
class Attempt:
    """What is known of one requested model. ``problem``: the last failure, while it lasts."""

    files: frozenset[int] | None = None
    """Numbers of the files to fetch; None for all."""
    task: asyncio.Task[None] | None = None
    transfer: Transfer | None = None
    queued: bool = False
    """Whether it waits for others to end."""
    failures: int = 0
    problem: TransferFailed | None = None
    bytes_done: int = 0
    main: From | None = None
    """Source of most bytes."""


@dataclass(frozen=True)
class Counters:
    """Callbacks that receive what happened: bytes that arrived over a way, and nodes that sent wrong bytes."""

    received: Callable[[Path, int], None] = lambda way, count: None
    wrong: Callable[[str], None] = lambda node: None


@dataclass
class PeerCopies:
    """``agent_of`` reads the agent of a node from the API server; None if it has none. Raises Exception if it cannot."""

    node: str
    shelf: Shelf
    context: ssl.SSLContext
    agent_of: Callable[[str], Awaitable[Agent | None]]
    limits: Limits = field(default_factory=Limits)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self._wanted: dict[str, Wanted] = {}
        self._attempts: dict[str, Attempt] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._view = View()
        self._groups: Sequence[GroupUse] | None = None
        self._agents: dict[str, Agent] = {}
        self._paces = {Way.NETWORK: Pace(self.limits.network), Way.USED_CABLE: Pace(self.limits.used_cable)}
        self._slots = asyncio.Semaphore(MAX_RUNNING)

    @property
    def running(self) -> int:
        """Number of transfers that run now."""
        return sum(attempt.transfer is not None for attempt in self._attempts.values())

    def set_view(self, view: View) -> None:
        """Takes this Mac's cables and the addresses that it reaches."""
        self._view = view

    def set_groups(self, groups: Sequence[GroupUse] | None) -> None:
        """Takes the groups that use this Mac."""
        self._groups = groups

    def want(self, models: Collection[Wanted]) -> None:
        """Sets the models to fetch from other Macs. Transfers of all others are stopped."""
        self._wanted = {one.digest: one for one in models}
        for digest in [digest for digest, attempt in self._attempts.items() if not self._goes_on(digest, attempt)]:
            task = self._attempts.pop(digest).task
            if task is not None:
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        for digest, one in self._wanted.items():
            attempt = self._attempts.setdefault(digest, Attempt(one.files))
            if attempt.task is None or attempt.task.done():
                attempt.task = asyncio.get_running_loop().create_task(self._copy(digest, attempt))

    def _goes_on(self, digest: str, attempt: Attempt) -> bool:
        """Whether the same files are still requested."""
        one = self._wanted.get(digest)
        return one is not None and one.files == attempt.files

    def states(self) -> Mapping[str, CopyState]:
        """By digest, the progress of each model."""
        return {digest: _state(self._wanted[digest], attempt, self._ways(digest)) for digest, attempt in self._attempts.items()}

    async def run(self) -> None:
        """Looks up agents of sources that are not known from elsewhere, until cancelled."""
        rounds = 0
        try:
            while True:
                await self._look_up()
                if rounds % round(SWEEP_SECONDS / LOOK_UP_SECONDS) == 0:
                    await asyncio.to_thread(self.shelf.sweep)
                rounds += 1
                await asyncio.sleep(LOOK_UP_SECONDS)
        finally:
            self.want(())
            if self._ending:
                await asyncio.wait(self._ending, timeout=STOP_SECONDS)

    async def _look_up(self, digest: str | None = None) -> None:
        wanted = [one for one in self._wanted.values() if digest in (None, one.digest)]
        names = {name for one in wanted for name in one.sources if name not in self._view.agents}
        found = {}
        for name in sorted(names):
            try:
                agent = await self.agent_of(name)
            except Exception as error:
                log.warning("cannot read the NodeProfile of %s: %s", name, error)
                agent = self._agents.get(name)
            if agent is not None:
                found[name] = agent
        self._agents = found if digest is None else {**self._agents, **found}

    def _ways(self, digest: str) -> tuple[Path, ...]:
        """Also called from threads, so it reads only values that are replaced and never modified."""
        one, view = self._wanted.get(digest), self._view
        if one is None or not view.node:
            # Otherwise everything would be fetched over the LAN before the cables are known.
            return ()
        neighbors = sorted({cable.peer for cable in view.cables.values()})
        names = dict.fromkeys([*one.sources, *neighbors])
        return paths([name for name in names if name != self.node], view, self._started(), self._agents)

    def _started(self) -> Sequence[GroupUse] | None:
        """The groups whose cables count as used. A group that waits for its model on this Mac does not use its cables yet."""
        groups = self._groups
        if groups is None:
            return None
        layout = self.shelf.store.layout
        coming = {layout.snapshot(one.repository, one.commit) for one in self._wanted.values()}
        coming |= {layout.part(one.digest) for one in self._wanted.values()}
        absent = {str(folder) for folder in coming if not folder.is_dir()}
        return [group for group in groups if group.model_path not in absent]

    async def _copy(self, digest: str, attempt: Attempt) -> None:
        """The task of one model, until it is complete or no longer requested."""
        await self._look_up(digest)
        while self._goes_on(digest, attempt):
            try:
                attempt.queued = self._slots.locked()
                async with self._slots:
                    attempt.queued = False
                    manifest = _narrowed(await self._manifest(self._wanted[digest]), attempt)
                    if await self._transfer(digest, manifest, attempt):
                        attempt.problem = None
                        return
            except TransferFailed as error:
                self._failed(digest, attempt, error)
            except OSError as error:
                text = f"cannot write to {self.shelf.store.root}: {error.strerror or error}"
                self._failed(digest, attempt, TransferFailed(Reason.COPY_FAILED, text))
            except Exception as error:
                log.exception("a copy failed")
                self._failed(digest, attempt, TransferFailed(Reason.COPY_FAILED, f"internal error: {error!r}"[:300]))
            attempt.failures += 1
            await asyncio.sleep(RETRY.jittered(attempt.failures))

    def _failed(self, digest: str, attempt: Attempt, error: TransferFailed) -> None:
        if attempt.problem is None or str(attempt.problem) != str(error):
            one = self._wanted.get(digest)
            log.warning("copy of %s: %s", one.repository if one else digest, error)
        attempt.problem = error

    async def _transfer(self, digest: str, manifest: Manifest, attempt: Attempt) -> bool:
        network = Network(
            self.node, self.context, lambda: self._ways(digest), self._paces, self.counters.received, self.counters.wrong
        )
        # The keeper of the store makes the model's folder appear.
        attempt.transfer = transfer = Transfer(self.shelf.store, self.shelf, manifest, network, publish=False)
        attempt.problem = None
        ending = asyncio.ensure_future(in_thread(transfer.run))
        try:
            done = await asyncio.shield(ending)
            attempt.failures = 0
            return done
        finally:
            transfer.stop()
            ended = transfer.progress()
            attempt.bytes_done, attempt.main = ended.done, ended.most or attempt.main
            attempt.transfer = None
            if not ending.done():
                # This transfer must release its files before the next one of this model starts.
                with contextlib.suppress(Exception):
                    await asyncio.wait({ending}, timeout=STOP_SECONDS)

    async def _manifest(self, one: Wanted) -> Manifest:
        """The manifest, from the store or from another Mac. Raises TransferFailed, OSError."""
        known = await asyncio.to_thread(self.shelf.store.manifest, one.digest)
        if known is not None:
            await asyncio.to_thread(self.shelf.refresh)
            return known
        problems = []
        for way in self._ways(one.digest):
            try:
                found = await in_thread(partial(self._ask_manifest, way, one))
            except (PeerFailed, InvalidManifest) as error:
                problems.append(str(error))
                continue
            if found is not None:
                await asyncio.to_thread(self._add, found)
                return found
            problems.append(f"{way.to.node} does not have it")
        text = "; ".join(dict.fromkeys(problems))[:500] or "no other Mac of the ModelCache has an agent that can be reached"
        raise TransferFailed(Reason.NO_SOURCE, f"cannot get the list of the model's files from another Mac: {text}")

    def _ask_manifest(self, way: Path, one: Wanted) -> Manifest | None:
        connection = connect(way, self.node, self.context)
        try:
            raw = connection.manifest(one.digest)
        finally:
            connection.close()
        if raw is None:
            return None
        found = load(raw, one.digest)
        if (found.repository, found.commit) != (one.repository, one.commit):
            raise InvalidManifest(f"the manifest {one.digest} is that of {found.repository}, not of {one.repository}")
        return found

    def _add(self, found: Manifest) -> None:
        self.shelf.store.prepare_repository(found.repository)
        self.shelf.store.add_manifest(found)
        self.shelf.refresh()


def _narrowed(manifest: Manifest, attempt: Attempt) -> Manifest:
    """The files to fetch. Raises TransferFailed."""
    try:
        return manifest if attempt.files is None else manifest.narrowed(attempt.files)
    except InvalidManifest as error:
        raise TransferFailed(Reason.COPY_FAILED, str(error)) from error


def _state(one: Wanted, attempt: Attempt, ways: Sequence[Path]) -> CopyState:
    """What the NodeProfile shows."""
    transfer, problem = attempt.transfer, attempt.problem
    if transfer is None:
        if problem is None:
            text = "waiting until other models are copied" if attempt.queued else "connecting to the Macs that have the model"
            return _waiting(one, attempt.bytes_done, None, text).model_copy(update=_from(attempt.main))
        phase = CopyPhase.WAITING if problem.reason is Reason.NO_SOURCE else CopyPhase.FAILED
        return _waiting(one, attempt.bytes_done, problem.reason, str(problem), phase)
    progress: TransferProgress = transfer.progress()
    if progress.waits_for:
        reason = Reason.NO_SOURCE if progress.alone or not ways else None
        return _waiting(one, progress.done, reason, progress.waits_for)
    return CopyState(
        phase=CopyPhase.CHECKING if progress.checking else CopyPhase.COPYING,
        bytes=one.bytes,
        bytes_done=min(one.bytes, progress.done),
        bytes_per_second=progress.rate,
        seconds_left=progress.left,
        source=CopySource.PEER,
        **_from(progress.main),
    )


def _from(main: From | None) -> dict[str, str | None]:
    """The fields of a state with the sources of the bytes."""
    return {"peer": main.node, "link": main.link or None} if main is not None else {}


def _waiting(one: Wanted, done: int, reason: Reason | None, message: str, phase: CopyPhase = CopyPhase.WAITING) -> CopyState:
    return CopyState(
        phase=phase,
        bytes=one.bytes,
        bytes_done=min(one.bytes, done),
        source=CopySource.PEER,
        reason=reason,
        message=message[:1000],
    )
