"""An OCI image layout, read and unpacked as a container runtime does it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def blob(layout: Path, descriptor: Json) -> bytes:
    """The content of a descriptor, whose digest and size are checked."""
    algorithm, _, name = descriptor["digest"].partition(":")
    content: bytes = (layout / "blobs" / algorithm / name).read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (name, descriptor["size"])
    return content


def manifests(layout: Path, system: str = "linux") -> dict[str, Json]:
    """The manifests of the images for a system by architecture."""
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (top,) = json.loads((layout / "index.json").read_text())["manifests"]
    index = json.loads(blob(layout, top))
    return {
        one["platform"]["architecture"]: json.loads(blob(layout, one))
        for one in index["manifests"]
        if one["platform"]["os"] == system
    }


def configuration(layout: Path, manifest: Json) -> Json:
    """The configuration of an image, whose digests of layers are checked."""
    found: Json = json.loads(blob(layout, manifest["config"]))
    ids = [f"sha256:{hashlib.sha256(gzip.decompress(blob(layout, layer))).hexdigest()}" for layer in manifest["layers"]]
    assert found["rootfs"]["diff_ids"] == ids
    return found


def members(layout: Path, layer: Json) -> list[tarfile.TarInfo]:
    """The entries of a layer."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(layout, layer)))) as tar:
        return tar.getmembers()


def unpack(layout: Path, manifest: Json, folder: Path) -> None:
    """Unpacks all layers of an image, lowest first, with their owners if this is root."""
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(layout, layer)))) as tar:
            tar.extractall(folder, filter="fully_trusted")
