"""The wheel, installed as a user installs it: a virtual environment that knows nothing of the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 120


def run(*argv: str | Path) -> str:
    """Standard output of a command that knows nothing of the checkout."""
    env = {"PATH": os.defpath, "HOME": "/nonexistent"}
    done = subprocess.run(argv, cwd="/", env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(folder: Path) -> Path:
    """A virtual environment below ``folder`` with the wheel, without its dependencies."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT, timeout=SECONDS, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    run(
        *(sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-index", wheel),
    )
    return environment


def library(environment: Path) -> Path:
    """Where the packages of an environment are."""
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def name_dependencies(environment: Path) -> None:
    """Let an environment find the dependencies of this one, without our editable packages."""
    # Folders that a .pth file adds are searched, but their own .pth files are not read.
    (library(environment) / "dependencies.pth").write_text("\n".join(_sources()) + "\n")


def link_dependencies(environment: Path) -> None:
    """Give an environment the files of the dependencies of this one, as if pip had installed them there."""

    def ours(folder: str, names: Iterable[str]) -> set[str]:
        return {name for name in names if name.startswith(("thunderfleet", "__pycache__")) or name.endswith(".pth")}

    for source in _sources():
        shutil.copytree(source, library(environment), symlinks=True, ignore=ours, copy_function=os.link, dirs_exist_ok=True)


def _sources() -> list[str]:
    return list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))
