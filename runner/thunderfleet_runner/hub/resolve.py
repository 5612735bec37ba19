"""Resolves a revision: commit, files, and the sizes that placement needs, without downloading weights.

The model's folder is made with real small files and, for each weight file, its header in a file of the right length without
data: the dry run of mlx-lm reads no more than that.
"""

import logging
import os
import struct
from pathlib import Path

from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.nodeprofile import Model
from thunderfleet_crds.names import MAX_WORLD_SIZE
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.weights.parts import MAX_PARTS, WeightFile, ranges
from thunderfleet_lib.modelstore import hashing, selection
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest

from thunderfleet_runner.host import weightfiles
from thunderfleet_runner.host.weightfiles import HEADER_BYTES, IncompleteModel
from thunderfleet_runner.hub.errors import HubFault
from thunderfleet_runner.hub.source import Source
from thunderfleet_runner.sizing import command as sizing

log = logging.getLogger(__name__)

FIRST_BYTES = 256 * 1024
"""Bytes of the first request for a header. Most headers are shorter, so most weight files take one request."""
SMALL_BYTES = 64 * 2**20
NEEDED = ("config.json", "model.safetensors.index.json")
"""Files that the dry run reads in addition to the weights."""


def resolve(hub: Source, folder: Path) -> FetchResult:
    """The result for the revision of ``hub``. ``folder``, which is empty, gets the model without its weights.

    Raises HubFault, OSError.
    """
    commit = hub.commit()
    manifest = hub.manifest(commit)
    log.info(
        "%s@%s is commit %s: %d files, %d bytes",
        hub.repository,
        hub.revision,
        commit,
        len(manifest.files),
        manifest.total_bytes,
    )
    for entry in manifest.files:
        if selection.is_weights(entry.path):
            _skeleton(hub, manifest, entry, folder / entry.path)
        elif entry.path in NEEDED:
            _small(hub, manifest, entry, folder / entry.path)
    model, weight_files, no_parts = sizes(manifest, folder)
    return FetchResult(
        reason=Reason.RESOLVED,
        commit=commit,
        manifest=manifest.digest,
        files=len(manifest.files),
        bytes=manifest.total_bytes,
        token_used=hub.token is not None,
        model=model,
        weight_files=weight_files,
        no_parts=no_parts,
    )


def _small(hub: Source, manifest: Manifest, entry: FileEntry, path: Path) -> None:
    if entry.size > SMALL_BYTES:
        raise HubFault(Reason.FILES_REFUSED, f"{entry.path} has {entry.size} bytes; at most {SMALL_BYTES} are allowed")
    with path.open("w+b") as file:
        if entry.size:
            hub.fetch(manifest.commit, entry, file, path)
    try:
        with path.open("rb", buffering=0) as file:
            hashing.check(file, entry)
    except WrongBytes as error:
        raise HubFault(Reason.WRONG_BYTES, f"{hub.endpoint}: {error}") from error


def _skeleton(hub: Source, manifest: Manifest, entry: FileEntry, path: Path) -> None:
    """The header of a weight file, in a file of its length. Not checked by hash: it decides on sizes only."""
    start = hub.first_bytes(manifest.commit, entry.path, 0, min(FIRST_BYTES, entry.size))
    (length,) = struct.unpack("<Q", start[:8]) if len(start) >= 8 else (0,)
    if not 0 < length <= min(HEADER_BYTES, entry.size - 8):
        raise HubFault(Reason.FILES_REFUSED, f"{entry.path} of {hub.repository} has no safetensors header")
    if len(start) < 8 + length:
        start += hub.first_bytes(manifest.commit, entry.path, len(start), 8 + length - len(start))
    if len(start) < 8 + length:
        raise HubFault(Reason.HUB_FAILED, f"{hub.endpoint} sent {len(start)} of {8 + length} bytes of {entry.path}")
    with path.open("wb") as file:
        file.write(start[: 8 + length])
        file.truncate(entry.size)


def sizes(manifest: Manifest, folder: Path) -> tuple[Model, tuple[WeightFile, ...], str]:
    """The sizes of a model, the layers of its weight files, and why Macs can have only the whole model. Raises HubFault."""
    try:
        found, no_parts = sizing.size_and_parts(folder, range(1, MAX_WORLD_SIZE + 1))
    except (IncompleteModel, ValueError) as error:
        raise HubFault(Reason.FILES_REFUSED, f"{manifest.repository}: {error}") from error
    # The path of a copy differs between Macs; only values that are equal on all Macs are returned.
    model = found.model_copy(
        update={
            "path": os.sep,
            "repository": manifest.repository,
            "revision": manifest.commit,
            "bytes": manifest.total_bytes,
            "complete": True,
            "problem": None,
        }
    )
    files, why = _parts(manifest, folder) if no_parts is None else ((), no_parts)
    return model, files, why


def _parts(manifest: Manifest, folder: Path) -> tuple[tuple[WeightFile, ...], str]:
    """The weight files with the layers in each, or why Macs can have only the whole model."""
    try:
        found = weightfiles.by_file(folder)
    except IncompleteModel as error:
        return (), str(error)
    if len(found) > MAX_PARTS:
        return (), f"it has {len(found)} weight files; a model can be divided if it has at most {MAX_PARTS}"
    files = tuple(
        WeightFile(file=number, bytes=entry.size, layers=ranges(found[entry.path][0]), shared=found[entry.path][1])
        for number, entry in enumerate(manifest.files)
        if entry.path in found
    )
    if sum(not one.shared for one in files) == 0:
        return (), "each of its weight files has weights that all ranks need"
    return files, ""
