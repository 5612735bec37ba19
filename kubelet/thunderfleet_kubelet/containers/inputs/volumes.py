"""Volumes as folders of this machine, and the symbolic links that show them in a container's sandbox.

A written volume switches from its old to its new content by one symbolic link (``..data``), as on any Kubernetes node. Secrets,
tokens and ConfigMaps are written once for each user that mounts them, readable only by that user: containers of one machine
share a file system, and only their users separate them.
"""

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.errors import ContainerConfigError, VolumeError
from thunderfleet_kubelet.containers.inputs.environment import expand
from thunderfleet_kubelet.containers.inputs.user import ContainerUser
from thunderfleet_kubelet.containers.inputs.volume_content import File

Json = dict[str, Any]


def write_atomically(folder: Path, files: Mapping[str, File], owner: ContainerUser) -> bool:
    """Makes ``folder`` hold exactly ``files``, readable by ``owner`` only. False if it already did.

    The folders belong to the kubelet, so that no container can plant links in them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o755)
    link = folder / "..data"
    old = folder / os.readlink(link) if link.is_symlink() else None
    _drop_leftovers(folder, {link, old})
    if old is not None and _same(old, files):
        return False
    stamp = f"..{time.strftime('%Y_%m_%d_%H_%M_%S', time.gmtime())}.{time.time_ns() % 1_000_000_000}"
    fresh = folder / stamp
    fresh.mkdir()
    os.chmod(fresh, 0o755)
    for path, file in files.items():
        target = fresh / path
        for parent in reversed(target.relative_to(fresh).parents[:-1]):
            (fresh / parent).mkdir(exist_ok=True)
            os.chmod(fresh / parent, 0o755)
        target.touch(mode=0o600)
        target.write_bytes(file.data)
        _give(target, owner, (file.mode & 0o700) | 0o400)
    _replace_link(link, stamp)
    tops = {Path(path).parts[0] for path in files}
    for top in tops:
        if not (folder / top).is_symlink():
            _replace_link(folder / top, f"..data/{top}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None and old != fresh:
        shutil.rmtree(old, ignore_errors=True)
    return True


def is_written(folder: Path) -> bool:
    """Whether ``folder`` has content of ``write_atomically``."""
    return (folder / "..data").is_dir()


def _drop_leftovers(folder: Path, kept: set[Path | None]) -> None:
    """Deletes what earlier calls that failed, or were killed, have left: each retry would add to it until the disk is full."""
    for entry in folder.iterdir():
        if not entry.name.startswith("..") or entry in kept:
            continue
        if entry.is_symlink():
            entry.unlink()
        else:
            shutil.rmtree(entry)


def _replace_link(link: Path, target: str) -> None:
    temporary = link.parent / f"..new_{link.name.strip('.')}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)


def _same(folder: Path, files: Mapping[str, File]) -> bool:
    try:
        present = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        return present.keys() == files.keys() and all(
            path.read_bytes() == files[name].data and stat.S_IMODE(path.stat().st_mode) == (files[name].mode & 0o700 | 0o400)
            for name, path in present.items()
        )
    except OSError:
        return False


def _give(path: Path, owner: ContainerUser, mode: int) -> None:
    os.chmod(path, mode)
    about = path.stat()
    if (about.st_uid, about.st_gid) != (owner.uid, owner.gid):
        os.chown(path, owner.uid, owner.gid)


def make_empty(folder: Path, owners: set[ContainerUser]) -> None:
    """Creates an ``emptyDir``: owned by its only user, or writable by all users if the pod has several."""
    if not folder.exists():
        # Under a temporary name first: if the kubelet is killed here, no folder with the wrong permissions is left.
        fresh = folder.with_name(f".{folder.name}.new")
        fresh.mkdir(parents=True, mode=0o711, exist_ok=True)
        if len(owners) == 1:
            _give(fresh, next(iter(owners)), 0o700)
        else:
            os.chmod(fresh, 0o777)
        fresh.rename(folder)


_HOST_PATH_TYPES: Mapping[str, Callable[[Path], bool]] = {
    "Directory": Path.is_dir,
    "File": Path.is_file,
    "Socket": Path.is_socket,
    "CharDevice": Path.is_char_device,
    "BlockDevice": Path.is_block_device,
}


def check_host_path(volume: Json) -> Path:
    """The path of a ``hostPath`` volume, created if its type requires it. Raises VolumeError if the path is of another type."""
    spec = volume["hostPath"]
    path, kind = Path(str(spec["path"])), str(spec.get("type") or "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        kind = "Directory"
    if kind == "FileOrCreate":
        if not path.exists():
            path.touch(mode=0o644)
        kind = "File"
    if kind and not _HOST_PATH_TYPES[kind](path):
        raise VolumeError(f"volume {volume['name']!r}: hostPath {path} is not of type {kind}")
    return path


OWNED = "owned-"
"""Prefix of the names of ``hostPath`` volumes whose folder the kubelet makes, and gives to the user of each next pod."""
MAX_OWNED_DEPTH = 16


def own_host_path(volume: Json, owners: set[ContainerUser]) -> str | None:
    """Creates the folder of an owned volume, and gives it to its only user. Returns why that failed, if it did.

    Everything below it that belonged to the previous user also goes to the new user, and nothing else: files of others that
    are linked there stay theirs. Only the operator, agents and privileged namespaces may have hostPath volumes, but the pods of
    the operator run in namespaces of users, who can execute programs in them. Blocks, so run it in a thread.
    """
    path = Path(str(volume["hostPath"]["path"]))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        if os.geteuid() == 0 and len(owners) == 1:
            _hand_over(path, next(iter(owners)))
    except OSError as error:
        return f"volume {volume['name']!r}: {error.filename or path}: {error.strerror or error}"
    return None


def _hand_over(path: Path, owner: ContainerUser) -> None:
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        before = os.fstat(top).st_uid
        if before == owner.uid:
            return
        if before != 0:
            _hand_over_below(top, before, owner, MAX_OWNED_DEPTH)
        # Last, so that an interrupted change is continued.
        os.fchown(top, owner.uid, owner.gid)
    finally:
        os.close(top)


def _hand_over_below(folder: int, before: int, owner: ContainerUser, depth: int) -> None:
    """Gives what is in an open folder, and belongs to ``before``, to ``owner``. Each level needs a descriptor."""
    if not depth:
        raise OSError(errno.ELOOP, f"it is more than {MAX_OWNED_DEPTH} folders deep; delete it")
    for name in os.listdir(folder):
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if about.st_uid == before:
            os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                _hand_over_below(below, before, owner, depth - 1)
            finally:
                os.close(below)


def link_mounts(
    container: Json, sandbox: Path, places: Mapping[str, Path], variables: Mapping[str, str], owner: ContainerUser
) -> None:
    """Links each mount's path below ``sandbox`` to its volume's folder in ``places``, or to ``subPath`` inside that folder.

    Raises ContainerConfigError.
    """
    mounts = sorted(container.get("volumeMounts") or [], key=lambda mount: len(Path(mount["mountPath"]).parts))
    linked: list[Path] = []
    for mount in mounts:
        target = _target(mount, places, variables, owner)
        mount_path = Path(os.path.normpath("/" + str(mount["mountPath"]).lstrip("/")))
        if mount_path == Path("/"):
            raise ContainerConfigError("a volume cannot be mounted at /")
        outer = next((path for path in linked if mount_path.is_relative_to(path)), None)
        if outer is not None:
            raise ContainerConfigError(f"mount {mount_path} is inside mount {outer}; this node does not support nested mounts")
        linked.append(mount_path)
        _link(sandbox, mount_path, target)


def _target(mount: Json, places: Mapping[str, Path], variables: Mapping[str, str], owner: ContainerUser) -> Path:
    """The folder that a mount shows; its ``subPath`` is created if the volume is writable."""
    place = places.get(str(mount["name"]))
    if place is None:
        raise ContainerConfigError(f"volumeMounts: volume {mount['name']!r} not found in the pod")
    inner = str(mount.get("subPath") or "")
    if mount.get("subPathExpr"):
        inner = expand(str(mount["subPathExpr"]), variables)
    if not inner:
        return place
    target = place / inner
    _check_inside(place, target, mount)
    if not target.exists() and not (place / "..data").is_symlink():
        _make_inside(place, target, owner)
    return target


def _link(sandbox: Path, mount_path: Path, target: Path) -> None:
    link = sandbox / mount_path.relative_to("/")
    for parent in reversed(link.relative_to(sandbox).parents[:-1]):
        if not (sandbox / parent).exists():
            (sandbox / parent).mkdir()
            os.chmod(sandbox / parent, 0o755)
    if link.is_dir():
        # The sandbox's own tmp or dev, still empty.
        link.rmdir()
    link.symlink_to(target)


def _check_inside(place: Path, target: Path, mount: Json) -> None:
    # Not Path.resolve, which raises RuntimeError for links of a container that lead in a circle.
    real, inside = Path(os.path.realpath(target)), Path(os.path.realpath(place))
    if ".." in target.parts[len(place.parts) :] or not target.is_relative_to(place) or not real.is_relative_to(inside):
        raise ContainerConfigError(f"mount {mount['mountPath']!r}: subPath points outside volume {mount['name']!r}")


def _make_inside(place: Path, target: Path, owner: ContainerUser) -> None:
    """Creates the folders from ``place`` down to ``target``. Containers may write there, so no symbolic link is followed."""
    here = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in target.relative_to(place).parts:
            made = False
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=here)
                made = True
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
            if made and (os.geteuid(), os.getegid()) != (owner.uid, owner.gid):
                # By descriptor, because the name may refer to another file now.
                os.fchown(here, owner.uid, owner.gid)
    finally:
        os.close(here)
