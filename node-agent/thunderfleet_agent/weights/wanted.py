"""What the ModelCaches ask of this Mac."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunderfleet_crds.copies import CopyState, ModelCopy
from thunderfleet_crds.modelcache import ModelCache
from thunderfleet_crds.vocabulary import CopyPhase, CopySource

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
    revisions: tuple[str, ...] = ()
    source: CopySource = CopySource.PEER
    """Hub if a pod downloads it here."""
    sources: tuple[str, ...] = ()
    """Other Macs that have the model, or fetch it too: those with most of it first."""
    downloads: tuple[str, ...] = ()
    """UIDs of the ModelCaches whose pods download it here: the names of their staging folders."""


def wanted_of(caches: Iterable[ModelCache], node: str) -> dict[str, Wanted]:
    """By digest, what this Mac shall hold. Several ModelCaches may want one model."""
    found: dict[str, Wanted] = {}
    for cache in sorted(caches, key=lambda one: (one.metadata.namespace or "", one.metadata.name)):
        status = cache.status
        mine = next((one for one in status.assignments if one.node == node), None)
        if mine is None or status.manifest is None or status.commit is None or cache.metadata.deletion_timestamp is not None:
            continue
        known = found.get(status.manifest)
        hub = mine.source is CopySource.HUB
        found[status.manifest] = Wanted(
            digest=status.manifest,
            repository=cache.spec.repository,
            commit=status.commit,
            bytes=status.bytes or 0,
            revisions=tuple(dict.fromkeys((*(known.revisions if known else ()), cache.spec.revision))),
            source=CopySource.HUB if hub or (known is not None and known.source is CopySource.HUB) else CopySource.PEER,
            sources=tuple(dict.fromkeys((*(known.sources if known else ()), *_sources(cache, node))))[:MAX_SOURCES],
            downloads=(*(known.downloads if known else ()), *((str(cache.metadata.uid),) if hub else ())),
        )
    return found


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
    wanted: Mapping[str, Wanted], states: Mapping[str, CopyState], others: Iterable[ModelCopy]
) -> tuple[ModelCopy, ...]:
    """What the NodeProfile shows: wanted models with their state, then ``others`` that the store has, at most MAX_COPIES."""
    found = [
        ModelCopy(
            repository=one.repository,
            commit=one.commit,
            manifest=one.digest,
            **dict(states.get(one.digest, CopyState(phase=CopyPhase.WAITING, bytes=one.bytes))),
        )
        for one in wanted.values()
    ]
    found += [copy for copy in others if copy.manifest not in wanted]
    return tuple(sorted(found[:MAX_COPIES], key=lambda copy: copy.manifest))
