"""The volumes of a pod as folders of this machine, and the links by which a container's sandbox shows them.

What a volume holds is worked out first (``plan``, pure), then written (``write_atomically``): a reader sees all of the old or
all of the new content, by the switch of one symbolic link, as on any other node. Content that belongs to a user (Secrets,
tokens, ConfigMaps) is written once for every user that mounts it, in files that only this user can read: several containers
of one machine have only their users to keep them apart.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.environment import Sources, data_of, expand, field_value, resource_value
from thunderfleet_kubelet.containers.user import ConfigProblem, Identity

Json = dict[str, Any]

DEFAULT_MODE = 0o644
DEFAULT_TOKEN_SECONDS = 3600
KNOWN = ("emptyDir", "hostPath", "configMap", "secret", "projected", "downwardAPI")
WRITTEN = ("configMap", "secret", "projected", "downwardAPI")


class VolumeProblem(Exception):
    """A volume cannot be set up (yet); the sentence goes into an Event of reason FailedMount."""


@dataclass(frozen=True)
class File:
    """One file of a written volume."""

    data: bytes
    mode: int


@dataclass(frozen=True)
class TokenWanted:
    """A ``serviceAccountToken`` source."""

    audience: str
    seconds: int


def kind_of(volume: Json) -> str:
    """Which kind of volume: the one key beside ``name``."""
    return next((key for key in volume if key != "name" and volume[key] is not None), "emptyDir")


def unknown_kinds(pod: Json) -> list[str]:
    """Volumes that this kubelet cannot make, as ``name (kind)``."""
    volumes = pod["spec"].get("volumes") or []
    return [f"{volume['name']} ({kind_of(volume)})" for volume in volumes if kind_of(volume) not in KNOWN]


def references(pod: Json) -> tuple[set[str], set[str], set[TokenWanted]]:
    """Names of the ConfigMaps and Secrets, and the tokens, that the pod's volumes need."""
    config_maps, secrets, tokens = set(), set(), set()
    for volume in pod["spec"].get("volumes") or []:
        if volume.get("configMap"):
            config_maps.add(str(volume["configMap"]["name"]))
        if volume.get("secret"):
            secrets.add(str(volume["secret"]["secretName"]))
        for source in (volume.get("projected") or {}).get("sources") or []:
            if source.get("configMap"):
                config_maps.add(str(source["configMap"]["name"]))
            if source.get("secret"):
                secrets.add(str(source["secret"]["name"]))
            if source.get("serviceAccountToken"):
                tokens.add(token_wanted(source["serviceAccountToken"]))
    return config_maps, secrets, tokens


def token_wanted(source: Json) -> TokenWanted:
    return TokenWanted(str(source.get("audience") or ""), int(source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS))


def plan(volume: Json, pod: Json, sources: Sources, tokens: Mapping[TokenWanted, str]) -> dict[str, File]:
    """The files of a written volume, by path inside of it. Raises VolumeProblem for what is missing."""
    kind = kind_of(volume)
    spec = volume[kind]
    mode = int(spec["defaultMode"]) if spec.get("defaultMode") is not None else DEFAULT_MODE
    try:
        if kind == "configMap":
            return _from_object("ConfigMap", str(spec["name"]), spec, sources.config_maps, mode)
        if kind == "secret":
            return _from_object("Secret", str(spec["secretName"]), spec, sources.secrets, mode)
        if kind == "downwardAPI":
            return _downward(spec, pod, sources, mode)
        files: dict[str, File] = {}
        for source in spec.get("sources") or []:
            files |= _projected(source, pod, sources, tokens, mode)
        return files
    except ConfigProblem as problem:
        raise VolumeProblem(f"volume {volume['name']!r}: {problem}") from problem


def _projected(source: Json, pod: Json, sources: Sources, tokens: Mapping[TokenWanted, str], mode: int) -> dict[str, File]:
    if source.get("configMap"):
        return _from_object("ConfigMap", str(source["configMap"]["name"]), source["configMap"], sources.config_maps, mode)
    if source.get("secret"):
        return _from_object("Secret", str(source["secret"]["name"]), source["secret"], sources.secrets, mode)
    if source.get("downwardAPI"):
        return _downward(source["downwardAPI"], pod, sources, mode)
    if source.get("serviceAccountToken"):
        token = source["serviceAccountToken"]
        # Only its user may read a token, whatever defaultMode says.
        return {_inside(str(token["path"])): File(tokens[token_wanted(token)].encode(), 0o600)}
    raise ConfigProblem(f"the projected source {', '.join(source)} is one that this kubelet does not know")


def _from_object(kind: str, name: str, spec: Json, objects: Mapping[str, Json | None], mode: int) -> dict[str, File]:
    item = objects.get(name)
    if item is None:
        if spec.get("optional"):
            return {}
        raise ConfigProblem(f"{kind} {name!r} does not exist")
    data = data_of(kind, item)
    if not spec.get("items"):
        return {_inside(key): File(value, mode) for key, value in data.items()}
    files = {}
    for wanted in spec["items"]:
        if wanted["key"] not in data:
            if spec.get("optional"):
                continue
            raise ConfigProblem(f"{kind} {name!r} has no key {wanted['key']!r}")
        own = int(wanted["mode"]) if wanted.get("mode") is not None else mode
        files[_inside(str(wanted["path"]))] = File(data[wanted["key"]], own)
    return files


def _downward(spec: Json, pod: Json, sources: Sources, mode: int) -> dict[str, File]:
    files = {}
    for item in spec.get("items") or []:
        if item.get("fieldRef"):
            text = field_value(pod, str(item["fieldRef"]["fieldPath"]), sources)
        else:
            text = resource_value(pod, {"name": ""}, item["resourceFieldRef"], sources)
        own = int(item["mode"]) if item.get("mode") is not None else mode
        files[_inside(str(item["path"]))] = File(text.encode(), own)
    return files


def _inside(path: str) -> str:
    parts = Path(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(".."):
        raise ConfigProblem(f"path {path!r} must be relative, without '..'")
    return path


def write_atomically(folder: Path, files: Mapping[str, File], owner: Identity) -> bool:
    """Makes ``folder`` hold exactly ``files``, readable by ``owner`` alone. False when it already did. Folders stay the
    kubelet's own, so that no program can prepare links for the next time that they are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o755)
    link = folder / "..data"
    if link.is_symlink() and _same(folder / os.readlink(link), files):
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
    old = folder / os.readlink(link) if link.is_symlink() else None
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


def _give(path: Path, owner: Identity, mode: int) -> None:
    os.chmod(path, mode)
    about = path.stat()
    if (about.st_uid, about.st_gid) != (owner.uid, owner.gid):
        os.chown(path, owner.uid, owner.gid)


def make_empty(folder: Path, owners: set[Identity]) -> None:
    """An ``emptyDir``: of its only user, or for all users of the pod when there are several."""
    if not folder.exists():
        # Under another name first: a kubelet killed in between must not leave a folder that nobody may write to.
        fresh = folder.with_name(f".{folder.name}.new")
        fresh.mkdir(parents=True, mode=0o711, exist_ok=True)
        if len(owners) == 1:
            _give(fresh, next(iter(owners)), 0o700)
        else:
            os.chmod(fresh, 0o777)
        fresh.rename(folder)


def check_host_path(volume: Json) -> Path:
    """The folder or file of a ``hostPath`` volume, made if its type says so. Raises VolumeProblem when it is of another."""
    spec = volume["hostPath"]
    path, kind = Path(str(spec["path"])), str(spec.get("type") or "")
    tests = {
        "Directory": path.is_dir,
        "File": path.is_file,
        "Socket": path.is_socket,
        "CharDevice": path.is_char_device,
        "BlockDevice": path.is_block_device,
    }
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        kind = "Directory"
    if kind == "FileOrCreate":
        if not path.exists():
            path.touch(mode=0o644)
        kind = "File"
    if kind and not tests[kind]():
        raise VolumeProblem(f"volume {volume['name']!r}: hostPath {path} is not a {kind} of this machine")
    return path


def link_mounts(
    container: Json, sandbox: Path, places: Mapping[str, Path], variables: Mapping[str, str], owner: Identity
) -> None:
    """Shows the container's volumes under its new sandbox: one symbolic link a mount, from ``mountPath`` to the volume's
    folder in ``places`` (or to ``subPath`` inside of it). Raises ConfigProblem.
    """
    mounts = sorted(container.get("volumeMounts") or [], key=lambda mount: len(Path(mount["mountPath"]).parts))
    done: list[Path] = []
    for mount in mounts:
        place = places.get(str(mount["name"]))
        if place is None:
            raise ConfigProblem(f"volumeMounts names volume {mount['name']!r}, which the pod does not have")
        inner = str(mount.get("subPath") or "")
        if mount.get("subPathExpr"):
            inner = expand(str(mount["subPathExpr"]), variables)
        target = place / inner if inner else place
        if inner:
            _check_inside(place, target, mount)
            if not target.exists() and not (place / "..data").is_symlink():
                _make_inside(place, target, owner)
        mount_path = Path(os.path.normpath("/" + str(mount["mountPath"]).lstrip("/")))
        link = sandbox / mount_path.relative_to("/")
        for before in done:
            if mount_path.is_relative_to(before):
                raise ConfigProblem(
                    f"mount {mount_path} lies inside mount {before}: a volume inside of a volume cannot be shown on this node"
                )
        done.append(mount_path)
        if link == sandbox:
            raise ConfigProblem("a volume cannot be mounted at /")
        for parent in reversed(link.relative_to(sandbox).parents[:-1]):
            if not (sandbox / parent).exists():
                (sandbox / parent).mkdir()
                os.chmod(sandbox / parent, 0o755)
        if link.is_dir():
            # The sandbox's own tmp or dev, empty still.
            link.rmdir()
        link.symlink_to(target)


def _check_inside(place: Path, target: Path, mount: Json) -> None:
    if ".." in target.relative_to(place).parts or not target.resolve().is_relative_to(place.resolve()):
        raise ConfigProblem(f"subPath of mount {mount['mountPath']!r} leads out of volume {mount['name']!r}")


def _make_inside(place: Path, target: Path, owner: Identity) -> None:
    """Makes the folders from ``place`` down to ``target``. Programs of the pod may be writing there, so no link is followed."""
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
                # By what was opened, never by name: a name may stand for another file by now.
                os.fchown(here, owner.uid, owner.gid)
    finally:
        os.close(here)
