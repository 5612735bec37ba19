"""An OCI image layout: layers, configuration, manifests of all platforms, index (OCI image specification 1.1)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_image.recipe import Platform

Json = dict[str, Any]

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """The image of one platform: its configuration, and its compressed layers, lowest first."""

    platform: Platform
    configuration: Json
    layers: tuple[bytes, ...]


def digest(content: bytes) -> str:
    """The digest of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def write(folder: Path, images: list[Image], tag: str) -> str:
    """Writes the layout with one index of all ``images``, named ``tag``, into an empty folder; returns the index's digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifests = []
    for image in images:
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _blob(blobs, CONFIG, _text(image.configuration)),
            "layers": [_blob(blobs, LAYER, layer) for layer in image.layers],
        }
        platform = {"architecture": image.platform.architecture, "os": image.platform.os}
        manifests.append(_blob(blobs, MANIFEST, _text(manifest)) | {"platform": platform})
    index = _blob(blobs, INDEX, _text({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
    top = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [index | {"annotations": {REFERENCE: tag}}]}
    (folder / "index.json").write_bytes(_text(top))
    (folder / "oci-layout").write_bytes(_text({"imageLayoutVersion": "1.0.0"}))
    return str(index["digest"])


def _blob(blobs: Path, media_type: str, content: bytes) -> Json:
    name = digest(content)
    (blobs / name.removeprefix("sha256:")).write_bytes(content)
    return {"mediaType": media_type, "digest": name, "size": len(content)}


def _text(value: Json) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
