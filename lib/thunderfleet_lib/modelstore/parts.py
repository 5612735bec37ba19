"""The file that describes the part of a model in a folder.

A runner reads it, so that it never treats a part as the whole model.
"""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_lib import jsonbounds
from thunderfleet_lib.modelstore.manifest import MAX_FILES, is_blob

PART_FILE = ".thunderfleet-part.json"
MAX_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """A part. ``files``: numbers of the manifest's files in it. ``layers``: layers whose files are all in it."""

    manifest: str
    files: frozenset[int]
    layers: frozenset[int]

    def dump(self) -> bytes:
        """The content of the file."""
        whole = {"manifest": self.manifest, "files": sorted(self.files), "layers": sorted(self.layers)}
        return json.dumps(whole, separators=(",", ":")).encode()


def read(folder: Path) -> Part | None:
    """The part in a folder; None for a folder with a whole model. Raises ValueError for a file that cannot be used."""
    path = folder / PART_FILE
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError(f"{path} is not a regular file")
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        whole = jsonbounds.loads(raw, values=4 * MAX_FILES, depth=3)
        digest, files, layers = str(whole["manifest"]), frozenset(whole["files"]), frozenset(whole["layers"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not list which part of a model is there: {error}") from error
    if not is_blob(digest) or not all(type(number) is int and 0 <= number < MAX_FILES for number in files | layers):
        raise ValueError(f"{path} does not list which part of a model is there")
    return Part(digest, files, layers)
