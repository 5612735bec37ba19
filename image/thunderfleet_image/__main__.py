"""Arguments: ``python -m thunderfleet_image build`` and ``lock``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from thunderfleet_image.build import build, update_lock
from thunderfleet_image.errors import ImageError
from thunderfleet_image.mac import PYTHON
from thunderfleet_image.recipe import MAC, MADE, PLATFORMS

GIT_SECONDS = 30.0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m thunderfleet_image", description="Build the image for Linux nodes and Macs.")
    made.add_argument("--checkout", type=Path, default=Path.cwd(), help="folder of the repository (default: the current one)")
    made.add_argument("--cache", type=Path, default=cache(), help="folder for downloads (default: %(default)s)")
    commands = made.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="write an OCI image layout")
    building.add_argument("--out", type=Path, default=Path("dist/image"), help="folder of the image (default: %(default)s)")
    names = [platform.name for platform in (*PLATFORMS, MAC)]
    building.add_argument("--platform", action="append", choices=names, help="build for this platform only; may be repeated")
    building.add_argument("--mac-python", default=PYTHON, metavar="PATH", help="path of Python on Macs (default: %(default)s)")
    commands.add_parser("lock", help="write the current versions of Debian's packages into image/debian.lock")
    return made


def cache() -> Path:
    """The folder for downloads, outside of the repository."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thunderfleet" / "image"


def git(checkout: Path, *arguments: str) -> str:
    """The output of git; empty if the folder is not a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=GIT_SECONDS, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    """Exit status 0, or 1 with a message."""
    given = parser().parse_args()
    try:
        if given.command == "lock":
            print(f"image/debian.lock: {update_lock(given.checkout, given.cache)} packages")
            return 0
        chosen = [platform for platform in (*PLATFORMS, MAC) if not given.platform or platform.name in given.platform]
        # The time of the commit, so that two builds of it have the same bytes.
        created = int(os.environ.get("SOURCE_DATE_EPOCH") or git(given.checkout, "log", "-1", "--format=%ct") or MADE)
        revision = git(given.checkout, "rev-parse", "HEAD")
        made = build(given.checkout, given.cache, given.out, chosen, revision, created, given.mac_python)
        print(f"{given.out} {made}")
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
