"""Location of the programs that launchd runs as root. Only root may be able to change them.

The installation that runs this command is used where it is, if only root can write it and every user can read it, because pods
have users of their own. Otherwise, as after `uv tool install` or with Homebrew's Python, it is copied.
"""

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from thunderfleet_lib.host.privilege import distrust

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.files import make_folder, remove

DIGEST = ".digest"


def unsafe(paths: Iterable[Path]) -> str | None:
    """Why root should not run programs in ``paths``, or pods cannot read them; None if they can.

    Checks each path and the folders above it.
    """
    paths = tuple(paths)
    if (reason := distrust(paths)) is not None:
        return reason
    for path in paths:
        for one in (path, *path.parents):
            readable = stat.S_IROTH | stat.S_IXOTH if one.is_dir() else stat.S_IROTH
            if one.stat().st_mode & readable != readable:
                return f"only root can read {one}"
    return None


def running_from() -> tuple[Path, tuple[Path, ...]]:
    """The folder of this Python environment, and all paths that it uses."""
    prefix = Path(sys.prefix)
    libraries = [Path(folder).resolve() for folder in sys.path if folder and Path(folder).is_dir()]
    program = Path(sys.executable)
    return prefix, (prefix / "bin", program, program.resolve(), Path(sys.base_prefix).resolve(), *libraries)


def put_python(layout: HostLayout, digest: Callable[[], str], build: Callable[[Path], None]) -> Path:
    """The folder of a Python with all packages that root can run; copied if necessary. Raises InstallError.

    ``build`` writes a copy into a folder that does not exist; ``digest`` is a hash of what it would write.
    """
    prefix, places = running_from()
    if unsafe(places) is None or prefix == layout.programs:
        return prefix
    folder = layout.programs
    wanted = digest()
    mark = folder / DIGEST
    if mark.is_file() and mark.read_text() == wanted:
        return folder
    make_folder(layout.programs_root, 0o755)
    part, old = folder.with_name(f"{folder.name}.part"), folder.with_name(f"{folder.name}.old")
    for left in (part, old):
        remove(left)
    try:
        build(part)
    except BaseException as error:
        remove(part)
        if isinstance(error, OSError):
            raise InstallError(f"cannot copy the programs to {folder}: {error}") from error
        raise
    (part / DIGEST).write_text(wanted)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    remove(old)
    return folder


def put_control_plane(layout: HostLayout, names: Iterable[str], source: Path) -> str:
    """Copy the programs ``names`` from ``source`` if they are missing. Returns their hash. Raises InstallError."""
    folder, names = layout.control_plane_programs, sorted(names)
    if (reason := distrust([source, *(source / name for name in names)])) is not None:
        raise InstallError(f"root does not run what other users can change: {reason}")
    state = hashlib.sha256()
    make_folder(layout.programs_root, 0o755)
    make_folder(folder, 0o755)
    try:
        for name in names:
            state.update(_copy(source / name, folder / name))
    except OSError as error:
        raise InstallError(f"cannot copy the programs of the control plane to {folder}: {error}") from error
    return state.hexdigest()[:16]


def _copy(source: Path, target: Path) -> bytes:
    with source.open("rb") as file:
        wanted = hashlib.file_digest(file, "sha256").digest()
    if target.is_file():
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").digest() == wanted:
                return wanted
    # A running program keeps its old file.
    part = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, part)
    part.chmod(0o755)
    os.replace(part, target)
    return wanted


def python_environment(folder: Path) -> dict[str, str]:
    """The environment variables that the Python in ``folder`` needs: those of its image, if it is an image."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(item.split("=", 1) for item in config.get("Env") or [])
