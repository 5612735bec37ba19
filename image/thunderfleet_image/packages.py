"""The files of Python packages, from wheels with hashes. pip unpacks wheels of any platform and runs no code of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_image.apt import run
from thunderfleet_image.recipe import MADE, PYTHON, SITE_PACKAGES, Platform, wheel_tags
from thunderfleet_image.tree import Tree, file

SECONDS = 600.0
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "install")


def build_wheel(checkout: Path, folder: Path) -> Path:
    """The wheel of a checkout, in ``folder``.

    Raises:
        ImageError: the wheel cannot be built.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    run(command, SECONDS, cwd=checkout, environment={"SOURCE_DATE_EPOCH": str(MADE)})
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(platform: Platform, requirements: Path) -> Tree:
    """The files that the wheels of a requirements file with hashes install on a platform.

    Raises:
        ImageError: a package has no wheel for the platform or another hash, or cannot be fetched.
    """
    chosen = [word for tag in wheel_tags(platform) for word in ("--platform", tag)]
    words = ["--require-hashes", "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", *chosen]
    return _unpacked([*words, "-r", str(requirements)])


def ours(wheel: Path) -> Tree:
    """The files that our wheel installs on any platform."""
    name, version, *_ = wheel.name.split("-")
    return _unpacked(["--no-index", f"--find-links={wheel.parent}", "--ignore-requires-python", f"{name}=={version}"])


def _unpacked(words: Sequence[str]) -> Tree:
    with tempfile.TemporaryDirectory(prefix="thunderfleet-image-") as made:
        folder = Path(made)
        run([*PIP, "--no-deps", "--no-compile", "--target", str(folder), *words], SECONDS, environment={"TMPDIR": made})
        return collected(folder)


def collected(folder: Path) -> Tree:
    """The files of a folder into which pip installed.

    Scripts and their lines in ``RECORD`` are left out, because scripts name the Python that ran pip.
    """
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or relative.parts[0] in ("bin", "__pycache__"):
            continue
        content = path.read_bytes()
        if relative.name == "RECORD" and relative.parent.suffix == ".dist-info":
            content = b"".join(line for line in content.splitlines(keepends=True) if not line.startswith((b"../", b"bin/")))
        tree[f"{SITE_PACKAGES}/{relative.as_posix()}"] = file(content, 0o755 if os.access(path, os.X_OK) else 0o644)
    return tree
