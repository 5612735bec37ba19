"""Who a container runs as: never root by accident.

A native process has the machine's real users, so a container's user is a decision with consequences. Pure but for looking up
names; what the kubelet itself is and may become comes in as a value.
"""

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class ConfigProblem(Exception):
    """The container cannot be created as its spec asks; the sentence goes into Waiting with CreateContainerConfigError."""


@dataclass(frozen=True)
class Identity:
    """Numbers of the machine's users and groups. ``groups`` are the supplementary ones."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Self:
    """What the kubelet is: its own user, and the ranges of users it can name (None: all, as outside of a user namespace)."""

    uid: int
    gid: int
    uids: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def here(cls) -> "Self":
        """This process."""
        return cls(os.geteuid(), os.getegid(), _mapped(Path("/proc/self/uid_map")))

    @property
    def in_user_namespace(self) -> bool:
        return self.uids is not None

    def maps(self, uid: int) -> bool:
        return self.uids is None or any(first <= uid < first + count for first, count in self.uids)


def _mapped(file: Path) -> tuple[tuple[int, int], ...] | None:
    try:
        rows = [[int(word) for word in line.split()] for line in file.read_text().splitlines()]
    except (OSError, ValueError):
        return None
    if rows == [[0, 0, 4294967295]]:
        return None
    return tuple((row[0], row[2]) for row in rows)


def decide(pod: Json, container: Json, image_user: str, default: tuple[int, int] | None, kubelet: Self) -> Identity:
    """The container's identity: runAsUser of container or pod, else the image's user, else the configured ``default`` (uid,
    gid), else the kubelet's own. Raises ConfigProblem for root that nobody asked for, and for users that cannot be had.
    """
    of_pod: Json = pod["spec"].get("securityContext") or {}
    of_container: Json = container.get("securityContext") or {}
    merged: Mapping[str, Any] = {**of_pod, **{key: value for key, value in of_container.items() if value is not None}}
    image_uid, image_gid = _image_user(image_user)
    asked = merged.get("runAsUser")
    if asked is not None:
        uid, source = int(asked), "runAsUser"
    elif image_uid is not None:
        uid, source = image_uid, "the image's user"
    elif default is not None:
        uid, source = default[0], "the kubelet's default user"
    else:
        uid, source = kubelet.uid, "the kubelet's own user"
    if uid == 0 and asked is None and not (kubelet.in_user_namespace and kubelet.uid == 0):
        raise ConfigProblem(
            f"container {container['name']!r} would run as root, because {source} is root and runAsUser is not set: "
            "set securityContext.runAsUser (0 if it must be root)"
        )
    if uid == 0 and merged.get("runAsNonRoot"):
        raise ConfigProblem(f"container {container['name']!r} has runAsNonRoot, and {source} is root (0)")
    if not kubelet.maps(uid):
        raise ConfigProblem(
            f"container {container['name']!r} cannot run as user {uid} ({source}): the kubelet is in a user namespace "
            f"in which only {_ranges(kubelet.uids or ())} is mapped"
        )
    if kubelet.uid != 0 and uid != kubelet.uid:
        raise ConfigProblem(
            f"container {container['name']!r} cannot run as user {uid} ({source}): the kubelet is not root, so "
            f"containers run as its own user, {kubelet.uid}"
        )
    if merged.get("runAsGroup") is not None:
        gid = int(merged["runAsGroup"])
    elif asked is None and image_uid is not None and image_gid is not None:
        gid = image_gid
    else:
        gid = _group_of(uid, default, kubelet)
    groups = sorted({int(group) for group in of_pod.get("supplementalGroups") or []} | _fs_group(of_pod))
    same = uid == kubelet.uid
    if same and gid != kubelet.gid and (kubelet.uid != 0 or kubelet.in_user_namespace):
        raise ConfigProblem(f"container {container['name']!r} cannot run as group {gid}: the kubelet's is {kubelet.gid}")
    if groups and (kubelet.uid != 0 or kubelet.in_user_namespace):
        raise ConfigProblem(
            f"container {container['name']!r} cannot have the supplementary groups {groups}: the kubelet is not root"
        )
    return Identity(uid, gid, tuple(groups))


def _fs_group(context: Json) -> set[int]:
    return {int(context["fsGroup"])} if context.get("fsGroup") is not None else set()


def _ranges(uids: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"user {first}" if count == 1 else f"users {first}-{first + count - 1}" for first, count in uids)


def _image_user(text: str) -> tuple[int | None, int | None]:
    if not text:
        return None, None
    user, _, group = text.partition(":")
    try:
        entry = None if user.isdigit() else pwd.getpwnam(user)
        uid = int(user) if entry is None else entry.pw_uid
        if group:
            return uid, int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigProblem(f"the image's user {text!r} does not exist on this machine: {error}") from error
    return uid, None


def _group_of(uid: int, default: tuple[int, int] | None, kubelet: Self) -> int:
    """The primary group of a user: never group 0 for one that this machine does not know."""
    if uid == kubelet.uid:
        return kubelet.gid
    if default is not None and uid == default[0]:
        return default[1]
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return default[1] if default is not None else uid
