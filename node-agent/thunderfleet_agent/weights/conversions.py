"""Repositories that a pod on this Mac quantizes. The agent reports the progress that the pod writes to its staging folder."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_crds.fetching import PROGRESS_FILE
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.copies import CopyState, ModelCopy
from thunderfleet_crds.weights.quantization import conversion_id

PROGRESS_BYTES = 1024
_SAID = {
    "Reading": "reading the repository",
    "Quantizing": "mlx-lm writes the quantized weights",
    "Checking": "computing the hashes of the quantized files",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A repository that is quantized here."""

    digest: str
    """Identifies the conversion while the manifest of the result is not known."""
    download: str
    """UID of the ModelCache: the name of the staging folder."""
    repository: str
    commit: str
    bytes: int
    """Size of the repository, and of the quantized weights."""
    quantized_bytes: int


def conversions_of(caches: Iterable[ModelCache], node: str) -> tuple[Conversion, ...]:
    """The conversions on this Mac whose result is not known yet."""
    found = []
    for cache in caches:
        source, quantize = cache.status.quantized_from, cache.spec.quantize
        if source is None or quantize is None or source.node != node or cache.metadata.deletion_timestamp is not None:
            continue
        if cache.status.manifest is None:
            name = conversion_id(source.manifest, quantize)
            about = (cache.kept_as, source.commit, source.bytes, source.quantized_bytes)
            found.append(Conversion(name, str(cache.metadata.uid), *about))
    return tuple(found)


def made_on(caches: Iterable[ModelCache], node: str) -> dict[str, str | None]:
    """The manifest of the result of a pod on this Mac, by the name of its staging folder; None while it is not known."""
    return {
        str(cache.metadata.uid): cache.status.manifest
        for cache in caches
        if cache.metadata.deletion_timestamp is None
        and cache.status.quantized_from is not None
        and cache.status.quantized_from.node == node
    }


def report(one: Conversion, staged: Path) -> ModelCopy:
    """What the NodeProfile shows. ``staged``: the staging folder, which the pod may fill with anything."""
    step, done, total = _progress(staged / PROGRESS_FILE)
    state = CopyState(
        phase=CopyPhase.QUANTIZING,
        bytes=total or one.bytes,
        bytes_done=min(done, total),
        source=CopySource.HUB,
        message=_SAID.get(step, "waiting for the pod that quantizes the repository"),
    )
    shared = {field: getattr(state, field) for field in CopyState.model_fields}
    return ModelCopy(repository=one.repository, commit=one.commit, manifest=one.digest, **shared)


def _progress(path: Path) -> tuple[str, int, int]:
    """Step, bytes done and all bytes; an empty step for what cannot be read."""
    with contextlib.suppress(OSError, ValueError, OverflowError, KeyError, TypeError, RecursionError):
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "", 0, 0
            found = json.loads(file.read(PROGRESS_BYTES))
        done, total = int(found["done"]), int(found["total"])
        if 0 <= done <= total < 2**53:
            return str(found["step"]), done, total
    return "", 0, 0
