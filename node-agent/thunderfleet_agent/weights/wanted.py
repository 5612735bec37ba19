"""The models that ModelCaches assign to this Mac."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunderfleet_crds.kinds.modelcache import Assignment, ModelCache
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.copies import CopyState, ModelCopy
from thunderfleet_crds.weights.parts import numbers, ranges
from thunderfleet_lib.modelstore.manifest import Manifest

MAX_COPIES = 64
MAX_SOURCES = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that is assigned to this Mac."""

    digest: str
    """SHA-256 of its manifest."""
    repository: str
    commit: str
    bytes: int
    """Size of the assigned files."""
    revisions: tuple[str, ...] = ()
    source: CopySource = CopySource.PEER
    """Hub if a pod downloads it here."""
    sources: tuple[str, ...] = ()
    """Other Macs that have the model, or fetch it too: those with most of it first."""
    downloads: tuple[str, ...] = ()
    """UIDs of the ModelCaches whose pods download it here: the names of their staging folders."""
    files: frozenset[int] | None = None
    """Numbers of the assigned files in the manifest; None for all."""
    layers: frozenset[int] = frozenset()
    """Layers that ranks on this Mac read from the folder for a part; empty if none does."""
    token: bool = False
    """Whether the hub has listed it only for a token, in each namespace whose ModelCache assigns it."""

    def of(self, manifest: Manifest) -> Manifest:
        """The assigned files. Raises InvalidManifest if the model has no such files."""
        return manifest if self.files is None else manifest.narrowed(self.files)


def wanted_of(caches: Iterable[ModelCache], node: str) -> dict[str, Wanted]:
    """By digest, the models that are assigned to this Mac. Several ModelCaches may assign the same model."""
    found: dict[str, Wanted] = {}
    for cache in sorted(caches, key=lambda one: (one.metadata.namespace or "", one.metadata.name)):
        status = cache.status
        mine = next((one for one in status.assignments if one.node == node), None)
        if mine is None or status.manifest is None or status.commit is None or cache.metadata.deletion_timestamp is not None:
            continue
        files, layers = _part(mine)
        known = found.get(status.manifest)
        if known is not None:
            layers |= known.layers
            files = files | known.files if files is not None and known.files is not None else None
        left_out = sum(one.bytes for one in status.weight_files if files is not None and one.file not in files)
        hub = mine.source is CopySource.HUB
        found[status.manifest] = Wanted(
            digest=status.manifest,
            repository=cache.kept_as,
            commit=status.commit,
            bytes=max(0, (status.bytes or 0) - left_out),
            revisions=tuple(dict.fromkeys((*(known.revisions if known else ()), cache.spec.revision))),
            source=CopySource.HUB if hub or (known is not None and known.source is CopySource.HUB) else CopySource.PEER,
            sources=tuple(dict.fromkeys((*(known.sources if known else ()), *_sources(cache, node))))[:MAX_SOURCES],
            downloads=(*(known.downloads if known else ()), *((str(cache.metadata.uid),) if hub else ())),
            files=files,
            layers=layers,
            token=status.token_accepted is not None and (known is None or known.token),
        )
    return found


def _part(mine: Assignment) -> tuple[frozenset[int] | None, frozenset[int]]:
    """Files and layers of an assignment. If they cannot be read, the whole model is fetched."""
    try:
        return numbers(mine.files) if mine.files else None, numbers(mine.layers or "")
    except ValueError:
        return None, frozenset()


def named_by_deployments(caches: Iterable[ModelCache]) -> set[str]:
    """Digests of models that ModelDeployments name, whether they run or not: those of the ModelCaches that they own."""
    return {
        cache.status.manifest
        for cache in caches
        if cache.status.manifest is not None
        and cache.metadata.deletion_timestamp is None
        and any(owner.controller for owner in cache.metadata.owner_references)
    }


def _sources(cache: ModelCache, node: str) -> list[str]:
    """Other Macs to copy from: first the one that downloads, and those with all files or with layers not in the list yet."""
    status = cache.status
    done = {mac.node: (mac.phase is CopyPhase.COMPLETE, mac.bytes_done) for mac in status.macs}
    names = {one.node for one in status.assignments} | {name for name, (_, count) in done.items() if count}
    ordered = sorted(sorted(names - {node}), key=lambda name: done.get(name, (False, 0)), reverse=True)
    mine = next((_part(one) for one in status.assignments if one.node == node), (None, frozenset[int]()))
    there = {mac.node: _layers(mac) if mine[0] is None else _layers(mac) & mine[1] for mac in status.macs}
    hub = {one.node for one in status.assignments if one.source is CopySource.HUB}
    adding, covered = list[str](), set[int]()
    for name in ordered:
        layers = there.get(name, frozenset())
        if done.get(name, (False, 0))[0] or name in hub or layers - covered:
            adding.append(name)
            covered |= layers
    return adding + [name for name in ordered if name not in adding]


def _layers(copy: CopyState) -> frozenset[int]:
    try:
        return numbers(copy.layers or "")
    except ValueError:
        return frozenset()


def reports(
    wanted: Mapping[str, Wanted],
    states: Mapping[str, CopyState],
    others: Iterable[ModelCopy],
    parts: Mapping[str, frozenset[int]],
) -> tuple[ModelCopy, ...]:
    """What the NodeProfile shows: assigned models with their state, then ``others`` that the store has, at most MAX_COPIES.

    ``parts``: by digest, the layers in the folder for its part.
    """
    found = [
        ModelCopy(
            repository=one.repository,
            commit=one.commit,
            manifest=one.digest,
            **{
                **dict(states.get(one.digest, CopyState(phase=CopyPhase.WAITING, bytes=one.bytes))),
                "layers": ranges(parts[one.digest]) if one.digest in parts else None,
            },
        )
        for one in wanted.values()
    ]
    found += [copy for copy in others if copy.manifest not in wanted]
    return tuple(sorted(found[:MAX_COPIES], key=lambda copy: copy.manifest))
