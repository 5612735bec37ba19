"""What the ModelCaches ask of this Mac."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunderfleet_crds.copies import CopyState, ModelCopy
from thunderfleet_crds.modelcache import Assignment, ModelCache
from thunderfleet_crds.parts import numbers, ranges
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_lib.modelstore.manifest import Manifest

MAX_COPIES = 64
MAX_SOURCES = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that this Mac shall hold."""

    digest: str
    """SHA-256 of its manifest."""
    repository: str
    commit: str
    bytes: int
    """Of what this Mac shall hold of it."""
    revisions: tuple[str, ...] = ()
    source: CopySource = CopySource.PEER
    """Hub if a pod downloads it here."""
    sources: tuple[str, ...] = ()
    """Other Macs that have the model, or fetch it too: those with most of it first."""
    downloads: tuple[str, ...] = ()
    """UIDs of the ModelCaches whose pods download it here: the names of their staging folders."""
    files: frozenset[int] | None = None
    """Numbers of the files of the manifest that this Mac shall hold; None for all."""
    layers: frozenset[int] = frozenset()
    """Layers that ranks on this Mac read from the folder for a part; empty if none does."""

    def of(self, manifest: Manifest) -> Manifest:
        """The files that this Mac shall hold. Raises InvalidManifest if the model has no such files."""
        return manifest if self.files is None else manifest.narrowed(self.files)


def wanted_of(caches: Iterable[ModelCache], node: str) -> dict[str, Wanted]:
    """By digest, what this Mac shall hold. Several ModelCaches may want one model."""
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
            repository=cache.spec.repository,
            commit=status.commit,
            bytes=max(0, (status.bytes or 0) - left_out),
            revisions=tuple(dict.fromkeys((*(known.revisions if known else ()), cache.spec.revision))),
            source=CopySource.HUB if hub or (known is not None and known.source is CopySource.HUB) else CopySource.PEER,
            sources=tuple(dict.fromkeys((*(known.sources if known else ()), *_sources(cache, node))))[:MAX_SOURCES],
            downloads=(*(known.downloads if known else ()), *((str(cache.metadata.uid),) if hub else ())),
            files=files,
            layers=layers,
        )
    return found


def _part(mine: Assignment) -> tuple[frozenset[int] | None, frozenset[int]]:
    """Files and layers of an assignment. What cannot be read means the whole model: more than is needed, never less."""
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
    status = cache.status
    done = {mac.node: (mac.phase is CopyPhase.COMPLETE, mac.bytes_done) for mac in status.macs}
    names = {one.node for one in status.assignments} | {name for name, (_, count) in done.items() if count}
    ordered = sorted(names - {node})
    return sorted(ordered, key=lambda name: done.get(name, (False, 0)), reverse=True)


def reports(
    wanted: Mapping[str, Wanted],
    states: Mapping[str, CopyState],
    others: Iterable[ModelCopy],
    parts: Mapping[str, frozenset[int]],
) -> tuple[ModelCopy, ...]:
    """What the NodeProfile shows: wanted models with their state, then ``others`` that the store has, at most MAX_COPIES.

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
