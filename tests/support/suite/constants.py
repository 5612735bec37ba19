"""Finds the constants in our files once, before several workers need them.

Hypothesis draws from the constants in the modules that a program has imported, and keeps those of each file in
``.hypothesis``. In a new checkout there are none, and each worker would parse all files when it has collected the tests: 4 s of
a processor.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.suite.rewriting import in_processes


def modules_of(config: pytest.Config, tests: Iterable[Path]) -> list[Path]:
    """The files of our packages; empty if none of the tests uses Hypothesis. It leaves out the tests themselves."""
    if not any(b"hypothesis" in file.read_bytes() for file in tests):
        return []
    return sorted(config.rootpath.glob("*/thunderfleet_*/**/*.py"))


def find_once(folder: Path, files: Iterable[Path]) -> list[Path]:
    """Finds the constants of those files whose constants are not kept in ``folder`` yet. Returns these files."""
    kept = folder / ".hypothesis" / "constants"
    missing = [file for file in files if not (kept / hashlib.sha1(file.read_bytes()).hexdigest()[:16]).exists()]
    in_processes(_find, missing)
    return missing


def _find(files: Sequence[Path]) -> None:
    # It keeps them in the working directory.
    from hypothesis.internal.constants_ast import constants_from_module

    for file in files:
        module = ModuleType(file.stem)
        module.__file__ = str(file)
        constants_from_module(module)
