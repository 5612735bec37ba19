"""The page's files, read once."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}


@dataclass(frozen=True)
class Asset:
    """A file, plain and compressed."""

    content_type: str
    plain: bytes
    packed: bytes
    tag: str


def load() -> Mapping[str, Asset]:
    """The files by name."""
    found = {}
    for path in resources.files("thunderfleet_view.web").joinpath("static").iterdir():
        ending = path.name.rpartition(".")[2]
        if ending in TYPES:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.name] = Asset(TYPES[ending], content, gzip.compress(content, mtime=0), tag)
    return found
