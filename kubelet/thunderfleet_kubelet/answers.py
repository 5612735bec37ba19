"""Answers of short-lived processes, kept in a file: a kubelet that starts with the same files again starts no such process.

The file is beside the keys of the node, because the kubelet acts on what it says.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import thunderfleet_lib
from thunderfleet_lib.host.privatefiles import write_private

from thunderfleet_kubelet import oneoff
from thunderfleet_kubelet.version import kubelet_version

log = logging.getLogger(__name__)
T = TypeVar("T")

FILE_BYTES = 1 << 20
"""A larger file is not read, and not written."""


class Answers:
    """``file``: what an earlier start has kept. Without it, or if it is not this user's alone, every answer is asked for."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept = _read(file)
        self._given: dict[str, Any] = {}

    def done(self, module: str, order: dict[str, Any], use: Callable[[dict[str, Any]], T]) -> T:
        """What ``use`` makes of the answer that ``oneoff.done`` gives. Raises what ``use`` raises.

        The answer must follow from the order alone. One that has a problem is not kept, and a kept one that ``use`` cannot
        take is asked for again.
        """
        name = _name(module, order)
        if name in self._kept:
            try:
                result = use(self._kept[name])
            except Exception as error:
                log.warning("%s: an answer of %s cannot be used (%r); asking again", self._file, module, error)
            else:
                self._given[name] = self._kept[name]
                return result
        answer = oneoff.done(module, order)
        result = use(answer)
        if _whole(answer):
            self._given[name] = answer
        return result

    def replace(self, module: str, order: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keeps ``answer`` instead of all others of ``module``, for the next start, which will give this ``order``."""
        others = {name: kept for name, kept in self._kept.items() if not name.startswith(f"{module} ")}
        self._given = others | ({_name(module, order): answer} if _whole(answer) else {})

    def save(self) -> None:
        """Keeps the answers that were given, and no others. A failure is only logged."""
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


def _whole(answer: Mapping[str, Any]) -> bool:
    return '"problem"' not in json.dumps(answer)


def _name(module: str, order: Mapping[str, Any]) -> str:
    """With a hash, because orders have keys. Another version, Python or checkout may answer something else."""
    said = json.dumps([kubelet_version(), sys.version, _program(), module, order], sort_keys=True)
    return f"{module} {hashlib.sha256(said.encode()).hexdigest()}"


@functools.cache
def _program() -> tuple[tuple[str, int], ...]:
    """The source files of this program and of the library, with the times of their last changes. As they were at first."""
    return tuple(_sources())


def _sources() -> Iterator[tuple[str, int]]:
    for package in (os.path.dirname(__file__), *thunderfleet_lib.__path__):
        for folder, _, files in sorted(os.walk(package)):
            for file in sorted(files):
                if file.endswith(".py"):
                    path = os.path.join(folder, file)
                    # It may go while the program is replaced.
                    with contextlib.suppress(FileNotFoundError):
                        yield os.path.relpath(path, package), os.lstat(path).st_mtime_ns
