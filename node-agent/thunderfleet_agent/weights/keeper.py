"""Maintains this Mac's model store for ModelCaches: takes over downloaded files, makes room, reports progress.

It is the only writer of the store. A pod that downloads leaves files in its staging folder; each is checked against the hash of
the manifest before it is used. Files from other Macs are fetched by ``peers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.nodeprofile import ModelStore
from thunderfleet_crds.names import API_VERSION, MODELCACHE_PLURAL
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.copies import CopyState, ModelCopy
from thunderfleet_crds.weights.parts import ranges
from thunderfleet_lib.kube import Kube, Reflector
from thunderfleet_lib.modelstore.adoption import Adoption
from thunderfleet_lib.modelstore.eviction import Kept, evict
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.layout import INCOMPLETE
from thunderfleet_lib.modelstore.manifest import InvalidManifest, Manifest
from thunderfleet_lib.modelstore.store import Busy, Store, allocated_bytes, read_manifest

from thunderfleet_agent.weights.conversions import Conversion, conversions_of, made_on, report
from thunderfleet_agent.weights.progress import Rate
from thunderfleet_agent.weights.wanted import Wanted, named_by_deployments, reports, wanted_of

log = logging.getLogger(__name__)

CACHES = f"/apis/{API_VERSION}/{MODELCACHE_PLURAL}"
UNREAD = ("managedFields", "annotations", "labels", "finalizers")
"""Metadata of ModelCaches that is not kept: any user who may create some can add hundreds of kilobytes to each."""
POLL_SECONDS = 0.5
LEAST_POLL_SECONDS = 0.1
POLL_SHARE = 20
"""While files arrive, rounds take at most a 20th of the time, with at least LEAST_POLL_SECONDS between two."""
IDLE_SECONDS = 30.0
REPORT_SECONDS = 5.0
"""Progress is published at most this often; a change of phase at once."""
RESERVE_BYTES = 2**30
"""Disk that the store leaves free."""
STEP_BYTES = 256 * 2**20
"""Free disk is published in multiples of this, so that it does not change all the time."""
MANIFEST = "manifest.json"
ENDED = frozenset((CopyPhase.COMPLETE, CopyPhase.PART))
"""Phases in which a Mac has all files that it needs."""
TOUCH_SECONDS = 3600.0
"""If the agent is killed, the recorded time of a model's last use is wrong by at most this."""
BLOBS_AT_ONCE = 16
"""Files that one round takes over, before it reports progress."""


class Peers(Protocol):
    """Fetches models from other Macs."""

    def want(self, models: Collection[Wanted]) -> None:
        """Sets the models to fetch from other Macs. Transfers of all others are stopped."""

    def states(self) -> Mapping[str, CopyState]:
        """The progress of each model, by digest. A model is complete when the folder of its commit exists."""


class Keeper:
    """The model store in ``folder``. ``changed`` is called when something must be published, ``arrived`` after each model.

    ``used`` returns the paths of models that groups on this Mac serve.
    """

    def __init__(
        self,
        kube: Kube,
        node: str,
        folder: Path,
        changed: Callable[[], None],
        arrived: Callable[[], None],
        used: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = Store(folder)
        self.peers: Peers | None = None
        self.completed: Callable[[Manifest], None] = lambda manifest: None
        """Called in a thread for every model that is complete: after the start, and when it becomes so."""
        self.about = ModelStore(folder=str(folder))
        """What the NodeProfile says about the store."""
        self.copies: tuple[ModelCopy, ...] = ()
        self.restricted = frozenset[str]()
        """Paths of models of the store that the hub has listed only for a token. They are not published as models of this Mac:
        a namespace gets them through a ModelCache whose own token the hub has accepted."""
        self.restricted = self._restricted({})
        self._adoption = Adoption(self.store, RESERVE_BYTES)
        self._node = node
        self._changed = changed
        self._arrived = arrived
        self._used = used
        self._clock = clock
        self._wake = asyncio.Event()
        self._caches = Reflector(kube, CACHES, {}, lambda _: self._wake.set(), unread=UNREAD)
        self._complete: set[tuple[object, ...]] = set()
        self._touched: dict[str, float] = {}
        self._rates: dict[str, Rate] = {}
        self._problems: dict[str, CopyState] = {}
        self._origins: dict[str, dict[str, object]] = {}
        """By digest, the fields of a state that name a model's source. Empty when the process starts."""
        self._reported = float("-inf")

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._caches.run())
            tasks.create_task(self._rounds())

    async def _rounds(self) -> None:
        await self._caches.synced.wait()
        while True:
            self._wake.clear()
            busy, began = True, time.monotonic()
            try:
                busy = await self._round()
            except OSError as error:
                busy = False
                self._tell(self.about.model_copy(update={"problem": _said(error)}), self.copies)
                log.warning("model store %s: %s", self.store.root, _said(error))
            except Exception:
                log.exception("a round of the model store failed")
            with contextlib.suppress(TimeoutError):
                pause = min(POLL_SECONDS, max(LEAST_POLL_SECONDS, POLL_SHARE * (time.monotonic() - began)))
                async with asyncio.timeout(pause if busy else IDLE_SECONDS):
                    await self._wake.wait()

    def _models(self) -> list[ModelCache]:
        found = []
        # A copy: a thread reads them while they change.
        for key, item in list(self._caches.items.items()):
            try:
                found.append(ModelCache.load(item))
            except ValidationError as error:
                log.warning("ModelCache %s is invalid: %s", key, error.errors()[0]["msg"])
        return found

    def _wanted(self) -> dict[str, Wanted]:
        return wanted_of(self._models(), self._node)

    def _conversions(self) -> tuple[Conversion, ...]:
        return conversions_of(self._models(), self._node)

    async def _round(self) -> bool:
        """Does one round. Returns whether the next one is due soon."""
        wanted = self._wanted()
        states = await asyncio.to_thread(self._work, wanted)
        if self.peers is not None:
            here = {digest for digest, state in states.items() if state.phase in ENDED}
            self._note_origins(self.peers.states())
            self.peers.want([one for one in wanted.values() if one.source is CopySource.PEER and one.digest not in here])
            states |= {
                digest: state for digest, state in self.peers.states().items() if digest in wanted and digest not in here
            }
        for digest, state in states.items():
            if state.phase in ENDED:
                states[digest] = state.model_copy(update=self._origins.get(digest, {}))
        self._origins = {digest: origin for digest, origin in self._origins.items() if digest in wanted}
        kept = await asyncio.to_thread(self.store.kept)
        parts = await asyncio.to_thread(self._parts)
        conversions = await asyncio.to_thread(self._reports_of, self._conversions())
        self._publish(wanted, states, kept, parts, conversions)
        return bool(conversions) or any(state.phase not in ENDED for state in states.values())

    def _note_origins(self, copied: Mapping[str, CopyState]) -> None:
        """Records the Mac and the cable that a copy comes from, because a transfer's state is lost when it ends."""
        for digest, state in copied.items():
            if state.peer is not None:
                self._origins[digest] = {"source": state.source, "peer": state.peer, "link": state.link}

    def _restricted(self, wanted: Mapping[str, Wanted]) -> frozenset[str]:
        """Folders of models that the hub has listed only for a token: those of the store, and those of ``wanted``."""
        try:
            found = set(self.store.restricted())
        except OSError as error:
            log.warning("model store %s: %s", self.store.root, _said(error))
            found = set(self.restricted)
        for one in wanted.values():
            with contextlib.suppress(ValueError):
                if one.token:
                    found.add(str(self.store.layout.snapshot(one.repository, one.commit)))
        return frozenset(found)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _work(self, wanted: Mapping[str, Wanted]) -> dict[str, CopyState]:
        """Takes over what has arrived. Raises OSError if the store cannot be used at all."""
        self.store.prepare_once()
        self.store.restrict({digest: one.token for digest, one in wanted.items()})
        self.restricted = self._restricted(wanted)
        self._adoption.retain([self.store.layout.staged(download) for one in wanted.values() for download in one.downloads])
        states = {}
        for digest, one in wanted.items():
            try:
                states[digest] = self._advance(one)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                reason = Reason.DISK_FULL if full else Reason.DOWNLOAD_FAILED
                states[digest] = CopyState(phase=CopyPhase.FAILED, bytes=one.bytes, reason=reason, message=_said(error))
            except InvalidManifest as error:
                states[digest] = CopyState(
                    phase=CopyPhase.FAILED, bytes=one.bytes, reason=Reason.DOWNLOAD_FAILED, message=str(error)
                )
        self._note_use(wanted)
        self._complete &= {_key(one) for one in wanted.values()}
        conversions = self._conversions()
        for conversion in conversions:
            self._make_room_to_quantize(conversion)
        kept = {download for one in wanted.values() for download in one.downloads}
        # Kept until the store has the result of the pod. The operator assigns it to this Mac a moment after the pod has ended.
        made = made_on(self._models(), self._node)
        self.store.clear_staging(kept | {download for download, digest in made.items() if not self._is_stored(digest)})
        return states

    def _is_stored(self, digest: str | None) -> bool:
        manifest = self.store.manifest(digest) if digest is not None else None
        return manifest is not None and not self.store.missing(manifest)

    def _reports_of(self, conversions: Collection[Conversion]) -> list[ModelCopy]:
        found = []
        for one in conversions:
            copy = report(one, self.store.layout.staged(one.download))
            rate = self._rates.setdefault(f"{one.digest} {copy.message}", Rate())
            rate.add(self._clock(), copy.bytes_done)
            seconds = rate.seconds_left(copy.bytes)
            found.append(copy.model_copy(update={"bytes_per_second": rate.bytes_per_second, "seconds_left": seconds}))
        return found

    def _make_room_to_quantize(self, one: Conversion) -> None:
        """Removes models that nothing refers to, if the files of a pod that quantizes would not fit otherwise."""
        staged = sum(_folder_bytes(self.store.layout.staged(one.download) / name) for name in ("", "source", "writing", "out"))
        self._evict(one.bytes + one.quantized_bytes - staged)

    def _note_use(self, wanted: Mapping[str, Wanted]) -> None:
        """Records the last use of models: every TOUCH_SECONDS while they are needed, and when they no longer are."""
        now = self._clock()
        for digest in {str(key[0]) for key in self._complete}:
            if digest not in wanted or now - self._touched.get(digest, float("-inf")) >= TOUCH_SECONDS:
                self.store.touch(digest)
                self._touched[digest] = now
        self._touched = {digest: at for digest, at in self._touched.items() if digest in wanted}

    def _advance(self, one: Wanted) -> CopyState:
        if _key(one) in self._complete and self._is_published(one):
            return _ended(one)
        whole = self._manifest(one)
        if whole is None:
            return self._moving(one, CopyPhase.WAITING, 0)
        manifest = one.of(whole)
        self._make_room(one, manifest)
        left = self._adopt(one, manifest)
        if not left:
            self._make_appear(one, whole)
            self._complete.add(_key(one))
            self._problems.pop(one.digest, None)
            self._arrived()
            self.completed(manifest)
            part = f", layers {ranges(one.layers)}" if one.files is not None else ""
            log.info("%s: commit %s is complete%s, %d bytes", one.repository, one.commit, part, one.bytes)
            return _ended(one)
        done = self.store.arrived_bytes(manifest) + self._staged_bytes(one, manifest)
        phase = CopyPhase.CHECKING if done >= one.bytes else CopyPhase.COPYING if done else CopyPhase.WAITING
        return self._moving(one, phase, done)

    def _make_appear(self, one: Wanted, whole: Manifest) -> None:
        if one.files is None:
            for revision in one.revisions:
                self.store.publish(whole, revision)
        if one.layers:
            every = range(len(whole.files))
            self.store.publish_part(whole, every if one.files is None else one.files, one.layers)

    def _is_published(self, one: Wanted) -> bool:
        manifest = self.store.manifest(one.digest)
        if manifest is None or (one.files is None and not self._is_whole(manifest)):
            return False
        return not one.layers or one.layers <= (self.store.part_layers(manifest) or frozenset())

    def _is_whole(self, manifest: Manifest) -> bool:
        """Whether the folder of the commit is there with all files: one that has changed on disk has lost its name."""
        return self.store.layout.snapshot(manifest.repository, manifest.commit).is_dir() and not self.store.missing(manifest)

    def _parts(self) -> dict[str, frozenset[int]]:
        """By digest, the layers in the folders for parts."""
        found = ((manifest.digest, self.store.part_layers(manifest)) for manifest in self.store.manifests())
        return {digest: layers for digest, layers in found if layers is not None}

    def _manifest(self, one: Wanted) -> Manifest | None:
        """The model's manifest, from the store or from a download. Its digest is verified."""
        known = self.store.manifest(one.digest)
        if known is not None:
            return known
        for download in one.downloads:
            found = read_manifest(self.store.layout.staged(download) / MANIFEST, one.digest)
            if found is not None and (found.repository, found.commit) == (one.repository, one.commit):
                self.store.add_manifest(found)
                return found
        return None

    def _adopt(self, one: Wanted, manifest: Manifest) -> int:
        """Takes over at most BLOBS_AT_ONCE downloaded files. Returns how many files are still missing."""
        missing, taken = self.store.missing(manifest), 0
        for entry in missing:
            for download in one.downloads:
                if taken >= BLOBS_AT_ONCE:
                    continue
                folder = self.store.layout.staged(download)
                try:
                    if not self._adoption.take(one.repository, entry, folder):
                        continue
                except Busy:
                    continue
                except FileNotFoundError:
                    # The pod has removed it again.
                    continue
                except WrongBytes as error:
                    log.warning("%s: %s", one.repository, error)
                    (folder / entry.blob).unlink(missing_ok=True)
                    self._problems[one.digest] = CopyState(reason=Reason.WRONG_BYTES, message=str(error))
                    continue
                self._origins[one.digest] = {"source": CopySource.HUB}
                taken += 1
                break
        return len(missing) - taken

    def _staged_bytes(self, one: Wanted, manifest: Manifest) -> int:
        total = 0
        for download in one.downloads:
            folder = self.store.layout.staged(download)
            for entry in self.store.missing(manifest):
                for name in (entry.blob, entry.blob + INCOMPLETE):
                    with contextlib.suppress(OSError):
                        total += min(entry.size, allocated_bytes((folder / name).stat()))
        return total

    def _moving(self, one: Wanted, phase: CopyPhase, done: int) -> CopyState:
        rate = self._rates.setdefault(one.digest, Rate())
        rate.add(self._clock(), done)
        problem = self._problems.get(one.digest)
        source = "the pod that downloads the model" if one.source is CopySource.HUB else "a Mac that has the model"
        waits = f"waiting for {source}"
        return CopyState(
            phase=phase,
            bytes=one.bytes,
            bytes_done=min(done, one.bytes),
            bytes_per_second=rate.bytes_per_second,
            seconds_left=rate.seconds_left(one.bytes),
            source=one.source,
            reason=problem.reason if problem else None,
            message=problem.message if problem else waits if phase is CopyPhase.WAITING else "",
        )

    def _make_room(self, one: Wanted, manifest: Manifest) -> None:
        """Removes models that nothing refers to, the oldest first, if this one would not fit otherwise."""
        self.store.touch(one.digest)
        self._evict(one.bytes - self.store.arrived_bytes(manifest) - self._staged_bytes(one, manifest))

    def _evict(self, needed: int) -> None:
        excess = needed + RESERVE_BYTES - self.store.free_bytes()
        if excess > 0:
            # Copies of arriving files only save time, so they are dropped first.
            self._adoption.retain(())
            excess = needed + RESERVE_BYTES - self.store.free_bytes()
        kept = self.store.kept()
        for old in evict(kept, self._referenced(kept, self._wanted()), excess):
            log.info("removing %s, commit %s, which nothing needs, to make room on the disk", old.repository, old.commit)
            self.store.remove(old.digest)

    def _referenced(self, kept: Collection[Kept], wanted: Mapping[str, Wanted]) -> set[str]:
        """Digests of models that are not removed: assigned to this Mac, named by a ModelDeployment, or served by a group."""
        used = set(self._used())
        layout = self.store.layout
        served = {
            one.digest
            for one in kept
            if not used.isdisjoint((str(layout.snapshot(one.repository, one.commit)), str(layout.part(one.digest))))
        }
        return served | wanted.keys() | named_by_deployments(self._models())

    # --- reports -----------------------------------------------------------------------------------------------------

    def _publish(
        self,
        wanted: Mapping[str, Wanted],
        states: Mapping[str, CopyState],
        kept: Collection[Kept],
        parts: Mapping[str, frozenset[int]],
        conversions: Collection[ModelCopy],
    ) -> None:
        referenced = self._referenced(kept, wanted)
        spare = sum(model.bytes for model in kept if model.digest not in referenced)
        free = max(0, self.store.free_bytes() + spare - RESERVE_BYTES) // STEP_BYTES * STEP_BYTES
        others = [
            ModelCopy(
                repository=model.repository,
                commit=model.commit,
                manifest=model.digest,
                phase=self._phase(model, parts),
                layers=ranges(parts[model.digest]) if model.digest in parts else None,
                bytes=model.bytes,
                bytes_done=model.bytes,
                used_at=None if model.digest in referenced else datetime.fromtimestamp(int(model.used), UTC),
            )
            for model in kept
        ]
        others = [*conversions, *others]
        self._tell(ModelStore(folder=str(self.store.root), free_bytes=free), reports(wanted, states, others, parts))

    def _phase(self, model: Kept, parts: Mapping[str, frozenset[int]]) -> CopyPhase:
        """The state of a model that nothing needs any more."""
        manifest = self.store.manifest(model.digest)
        if manifest is not None and self._is_whole(manifest):
            return CopyPhase.COMPLETE
        return CopyPhase.PART if model.digest in parts else CopyPhase.WAITING

    def _tell(self, about: ModelStore, copies: tuple[ModelCopy, ...]) -> None:
        if (about, copies) == (self.about, self.copies):
            return
        same = _phases(copies) == _phases(self.copies)
        if same and about.problem == self.about.problem and self._clock() - self._reported < REPORT_SECONDS:
            return
        self.about, self.copies, self._reported = about, copies, self._clock()
        self._changed()


def _phases(copies: Collection[ModelCopy]) -> list[object]:
    """The fields that are published at once when they change."""
    return [(copy.manifest, copy.phase, copy.reason, copy.layers) for copy in copies]


def _key(one: Wanted) -> tuple[object, ...]:
    """Identifies a model and the part of it that must be there."""
    return one.digest, one.files, one.layers


def _ended(one: Wanted) -> CopyState:
    phase = CopyPhase.COMPLETE if one.files is None else CopyPhase.PART
    return CopyState(phase=phase, bytes=one.bytes, bytes_done=one.bytes)


def _folder_bytes(folder: Path) -> int:
    try:
        found = [path.stat(follow_symlinks=False) for path in folder.iterdir()]
    except OSError:
        return 0
    return sum(map(allocated_bytes, found))


def _said(error: OSError) -> str:
    return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
