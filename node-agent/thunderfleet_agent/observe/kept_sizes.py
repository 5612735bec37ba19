"""Sizes of models, kept in the state folder for the next process of this agent.

A Mac that has just booted would otherwise run mlx-lm once for each of its models, while its groups start.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from thunderfleet_lib import jsonbounds

log = logging.getLogger(__name__)

FILE = "sizes.json"
PACKAGES = ("thunderfleet", "mlx", "mlx-lm", "transformers")
MAX_BYTES = 16 * 2**20
MAX_VALUES = 1000
MAX_DEPTH = 4


def installed() -> str:
    """The programs that compute sizes: their folder and the versions of their packages. Other programs may compute others."""
    return " ".join((sys.prefix, *(f"{name}={_version(name)}" for name in PACKAGES)))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Kept:
    """Output of ``thunderfleet-runner size`` for a folder with this fingerprint."""

    fingerprint: str
    text: str


class KeptSizes:
    """The file in ``folder``; None keeps nothing. ``programs``: see ``installed``."""

    def __init__(self, folder: Path | None, programs: str) -> None:
        self._folder = folder
        self._programs = programs
        self._kept = self._read()

    def of(self, path: str, fingerprint: str) -> str | None:
        """The sizes of an unchanged folder; None if they are not known."""
        kept = self._kept.get(path)
        return kept.text if kept is not None and kept.fingerprint == fingerprint else None

    def keep(self, path: str, fingerprint: str, text: str, among: Collection[str]) -> None:
        """Keeps the sizes of ``path``, and drops those of models that are not ``among`` the present ones."""
        if self._folder is None:
            return
        self._kept = {name: kept for name, kept in self._kept.items() if name in among} | {path: Kept(fingerprint, text)}
        models = {name: {"fingerprint": kept.fingerprint, "text": kept.text} for name, kept in self._kept.items()}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._folder / f".{FILE}.new"
            fresh.write_text(json.dumps({"programs": self._programs, "models": models}), encoding="utf-8")
            fresh.replace(self._folder / FILE)
        except OSError as error:
            log.warning(
                "cannot save the sizes of models in %s: %s; they are computed again after a restart", self._folder, error
            )

    def _read(self) -> dict[str, Kept]:
        if self._folder is None:
            return {}
        try:
            with (self._folder / FILE).open("rb") as file:
                stored = jsonbounds.loads(file.read(MAX_BYTES), values=MAX_VALUES, depth=MAX_DEPTH)
            if stored["programs"] != self._programs:
                return {}
            return {str(path): Kept(str(one["fingerprint"]), str(one["text"])) for path, one in stored["models"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("cannot read the sizes of models in %s (%s); they are computed again", self._folder, error)
            return {}
