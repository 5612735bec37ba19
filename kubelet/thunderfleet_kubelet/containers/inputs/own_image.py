"""The image that every kubelet has: the installation that it runs from, under the chart's image name and its own version."""

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = "thunderfleet/thunderfleet"
"""``image.repository`` of the chart."""
PROGRAMS = ("thunderfleet-agent", "thunderfleet-operator", "thunderfleet-router", "thunderfleet-runner")


@dataclass(frozen=True)
class OwnImage:
    """The image of version ``version``; ``problem`` is the reason why pods cannot use the folder."""

    version: str
    folder: Path
    problem: str = ""

    @property
    def name(self) -> str:
        """The image's name in pods."""
        return f"{REPOSITORY}:{self.version}"

    @property
    def images(self) -> dict[str, Path]:
        """Name and folder; empty if pods cannot use it."""
        return {} if self.problem else {self.name: self.folder}

    def missing(self, name: str) -> str | None:
        """What to do about an image of this project that this machine does not have; None for other images."""
        repository, _, tag = name.rpartition(":")
        if repository != REPOSITORY:
            return None
        if tag == self.version:
            return f"the installation in {self.folder} has this version, but pods cannot use it: {self.problem}"
        return (
            f"this machine has version {self.version}: install version {tag} of thunderfleet on it and restart its kubelet "
            f"(if `thunderfleet init` or `join` installed it, run `sudo thunderfleet upgrade` of version {tag} instead), or "
            f"set image.tag of the chart to {self.version}"
        )


def own_image(version: str, prefix: Path, python: Path, *, other_users: bool) -> OwnImage:
    """The image of an installation.

    ``prefix``: the folder of the Python environment, with ``bin``. ``python``: its interpreter. ``other_users``: whether pods
    run as other users than the kubelet, who must be able to read both.
    """
    missing = [name for name in PROGRAMS if not os.access(prefix / "bin" / name, os.X_OK)]
    if missing:
        return OwnImage(version, prefix, f"{prefix / 'bin'} has no {', '.join(missing)}")
    if other_users:
        for path in (prefix / "bin" / PROGRAMS[0], prefix / "lib", python.resolve()):
            closed = _closed(path)
            if closed is not None:
                problem = f"other users cannot read {closed}; install thunderfleet in a folder that all users can read"
                return OwnImage(version, prefix, problem)
    return OwnImage(version, prefix)


def here(version: str, *, other_users: bool) -> OwnImage:
    """The image of this process's installation; see ``own_image``."""
    return own_image(version, Path(sys.prefix), Path(sys.executable), other_users=other_users)


def _closed(path: Path) -> Path | None:
    """The first of ``path`` and the folders above it that other users cannot read or enter."""
    for one in (path, *path.parents):
        try:
            mode = one.stat().st_mode
        except OSError:
            return one
        needed = stat.S_IXOTH if one != path else stat.S_IROTH | stat.S_IXOTH
        if mode & needed != needed:
            return one
    return None
