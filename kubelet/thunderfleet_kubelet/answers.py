"""Answers of short-lived processes, kept in a file: a kubelet that starts with the same files again starts no such process.

The file is beside the keys of the node, because whoever can write it decides what the kubelet does.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thunderfleet_lib.host.privatefiles import write_private

from thunderfleet_kubelet import oneoff
from thunderfleet_kubelet.version import kubelet_version

log = logging.getLogger(__name__)

FILE_BYTES = 1 << 20
"""A larger file is not read, and not written."""


class Answers:
    """``file``: what an earlier start has kept. Without it, or if it is not this user's alone, every answer is asked for."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept = _read(file)
        self._given: dict[str, Any] = {}

    def done(self, module: str, order: dict[str, Any]) -> dict[str, Any]:
        """Same as ``oneoff.done``. The answer must follow from the order alone."""
        name = _name(module, order)
        answer: dict[str, Any] = self._kept[name] if name in self._kept else oneoff.done(module, order)
        self._given[name] = answer
        return answer

    def save(self) -> None:
        """Keeps the answers of this start, and no others. A failure is only logged."""
        if self._given == self._kept:
            return
        text = json.dumps(self._given).encode()
        try:
            if len(text) <= FILE_BYTES:
                write_private(self._file, text)
        except OSError as error:
            log.warning("cannot write %s: %s; the next start takes longer", self._file, error.strerror)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as stream:
            about = os.fstat(stream.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & 0o077 or about.st_size > FILE_BYTES:
                return {}
            found = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()) else {}


def _name(module: str, order: Mapping[str, Any]) -> str:
    """A hash, because orders have keys. Another version, and changed files of this program, may answer something else."""
    program = sorted((one.name, one.stat().st_mtime_ns) for one in os.scandir(Path(__file__).parent) if one.is_file())
    return hashlib.sha256(json.dumps([kubelet_version(), program, module, order], sort_keys=True).encode()).hexdigest()
