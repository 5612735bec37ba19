"""Manifests, indexes and configurations of images, read from what a registry sent. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_kubelet.images.errors import PullError

Json = dict[str, Any]

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
COMPRESSIONS = {
    "application/vnd.oci.image.layer.v1.tar": "",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
}
MAX_LAYERS = 128
MAX_PLATFORMS = 256
MAX_CONFIG = 4 * 1024**2
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Blob:
    """Content in a registry. ``size``: bytes."""

    media: str
    digest: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """One image for one platform: its configuration and its layers, the lowest first."""

    config: Blob
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """Bytes of all layers as they are sent."""
        return sum(layer.size for layer in self.layers)


def _document(content: bytes, what: str) -> Json:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise PullError(f"the {what} is not JSON") from None
    if not isinstance(found, dict):
        raise PullError(f"the {what} is not a JSON object")
    return found


def read(content: bytes, media: str) -> tuple[str, Json]:
    """The media type of a manifest or index, and the document. ``media``: of the answer. Raises PullError."""
    document = _document(content, "manifest")
    media = str(document.get("mediaType") or media.partition(";")[0].strip())
    if media not in (*INDEXES, *MANIFESTS):
        raise PullError(f"manifests of type {media[:100]!r} are not images; build an OCI image")
    return media, document


def choose(index: Json, platforms: Sequence[tuple[str, str]]) -> Blob:
    """The image of an index for the first of ``platforms`` that it has. Raises PullError."""
    listed = index.get("manifests")
    if not isinstance(listed, list) or len(listed) > MAX_PLATFORMS:
        raise PullError(f"the index must list at most {MAX_PLATFORMS} manifests")
    known: dict[tuple[str, str], Json] = {}
    for one in listed:
        platform = one.get("platform") if isinstance(one, dict) else None
        if isinstance(platform, dict):
            known.setdefault(_platform(platform), one)
    for platform in platforms:
        if platform in known:
            return _blob(known[platform], MANIFESTS)
    there = ", ".join(sorted("/".join(one) for one in known if "unknown" not in one)[:8]) or "none"
    raise PullError(f"no image for {_words(platforms)} (there are: {there})")


def parse(document: Json, max_bytes: int) -> Manifest:
    """The parts of a manifest. Raises PullError."""
    layers = document.get("layers")
    if not isinstance(layers, list) or len(layers) > MAX_LAYERS:
        raise PullError(f"the manifest must list at most {MAX_LAYERS} layers")
    config = _blob(document.get("config"), None)
    if config.size > MAX_CONFIG:
        raise PullError(f"the image's configuration has {config.size} bytes; at most {MAX_CONFIG} are allowed")
    found = Manifest(config, tuple(_blob(layer, tuple(COMPRESSIONS)) for layer in layers))
    if found.size > max_bytes:
        raise PullError(f"the layers have {found.size} bytes; imagePulls.maxBytes allows {max_bytes}")
    return found


def _blob(entry: object, medias: Sequence[str] | None) -> Blob:
    if not isinstance(entry, dict):
        raise PullError("the manifest has an entry that is not an object")
    media, digest, size = str(entry.get("mediaType") or ""), str(entry.get("digest") or ""), entry.get("size")
    if not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise PullError("the manifest has an entry without a sha256 digest or a size")
    if medias is not None and media not in medias:
        raise PullError(f"content of type {media[:100]!r} is not supported (supported: {', '.join(medias)})")
    return Blob(media, digest, size)


def check_config(content: bytes, layers: int, platforms: Sequence[tuple[str, str]]) -> tuple[Json, tuple[str, ...]]:
    """The ``config`` object and the digests of the layers' uncompressed content. Raises PullError."""
    document = _document(content, "image's configuration")
    platform = _platform(document)
    if platform not in platforms:
        raise PullError(f"the image is for {'/'.join(platform)}, and this machine runs {_words(platforms)}")
    rootfs = document.get("rootfs")
    digests = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(digests, list) or not all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in digests):
        raise PullError("the image's configuration has no sha256 digests of its layers")
    if len(digests) != layers:
        raise PullError(f"the image's configuration has {len(digests)} digests, and the manifest {layers} layers")
    config = document.get("config") or {}
    if not isinstance(config, dict):
        raise PullError("the image's configuration has no config object")
    return config, tuple(digests)


def _platform(document: Json) -> tuple[str, str]:
    """Operating system and architecture, as text that may be in messages."""
    found = (str(document.get(key))[:40] for key in ("os", "architecture"))
    system, architecture = ("".join(one if one.isprintable() else " " for one in text) for text in found)
    return system, architecture


def _words(platforms: Sequence[tuple[str, str]]) -> str:
    return " or ".join("/".join(one) for one in platforms)
