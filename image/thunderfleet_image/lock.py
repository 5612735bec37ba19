"""image/debian.lock: versions and hashes of Debian's packages, one package per line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from thunderfleet_image.errors import ImageError

HEADER = "# Debian's packages in the image: architecture, package, version, SHA-256. `make image-lock` writes this file.\n"
ALL = "all"
"""Architecture of packages that are the same for all."""


@dataclass(frozen=True, order=True)
class Package:
    """A Debian package of one architecture."""

    architecture: str
    name: str
    version: str
    sha256: str


def written(packages: Iterable[Package]) -> str:
    """The text of the file."""
    return HEADER + "".join(" ".join(astuple(package)) + "\n" for package in sorted(packages))


def read(text: str) -> list[Package]:
    """The packages of the file.

    Raises:
        ImageError: a line has another form, or a package is listed twice.
    """
    found: dict[tuple[str, str], Package] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 4 or not re.fullmatch(r"[0-9a-f]{64}", words[3]):
            raise ImageError(f"image/debian.lock, line {number}: expected architecture, package, version and SHA-256")
        package = Package(*words)
        if (package.architecture, package.name) in found:
            raise ImageError(f"image/debian.lock, line {number}: {package.name} of {package.architecture} is listed twice")
        found[package.architecture, package.name] = package
    return list(found.values())
