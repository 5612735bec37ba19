"""The user and groups of a container: never root by accident, never the user of another pod.

A native process runs as a real user of the machine. The decision depends only on its arguments and on the machine's users.
"""

import grp
import os
import pwd
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.errors import ContainerConfigError

Json = dict[str, Any]

RUN_AS_USER = "runAsUser"
IMAGE = "the image's user"


@dataclass(frozen=True)
class ContainerUser:
    """Numeric user and groups of this machine. ``groups``: the supplementary ones."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class PodUser:
    """The user that only one pod has. ``id``: uid and gid. ``all_pods``: the ids that no spec may name."""

    id: int
    all_pods: Container[int] = ()


@dataclass(frozen=True)
class KubeletUser:
    """The kubelet's own user, and the users that exist as (first, count) ranges; None outside of a user namespace."""

    uid: int
    gid: int
    uids: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def here(cls) -> "KubeletUser":
        """The user of this process."""
        return cls(os.geteuid(), os.getegid(), _mapped(Path("/proc/self/uid_map")))

    @property
    def in_user_namespace(self) -> bool:
        """Whether only some of the machine's users exist here."""
        return self.uids is not None

    def maps(self, uid: int) -> bool:
        """Whether the user exists here."""
        return self.uids is None or any(first <= uid < first + count for first, count in self.uids)

    def may_switch(self, ids: range) -> bool:
        """Whether this user can start processes as all of ``ids``."""
        return self.uid == 0 and (
            self.uids is None or any(first <= ids.start and ids.stop <= first + count for first, count in self.uids)
        )


def _mapped(file: Path) -> tuple[tuple[int, int], ...] | None:
    try:
        rows = [[int(word) for word in line.split()] for line in file.read_text().splitlines()]
    except (OSError, ValueError):
        return None
    if rows == [[0, 0, 4294967295]]:
        return None
    return tuple((row[0], row[2]) for row in rows)


def decide(
    pod: Json, container: Json, image_user: str, own: PodUser | None, kubelet: KubeletUser, *, pulled: bool = False
) -> ContainerUser:
    """The container's user: runAsUser of container or pod, or the image's, or the pod's own, or the kubelet's own.

    ``own`` None: this kubelet has no users for pods. ``pulled``: the image comes from a registry, so its users are those of the
    machine on which it was built, and it chooses none here: many images name the same number, which may be an account of this
    machine, and pods of several namespaces would share it. Every container is a member of the pod's own group, which the pod's
    files need.

    Raises ContainerConfigError for root that the spec does not request, for the user or group of another pod, and for users
    that the kubelet cannot switch to.
    """
    of_pod: Json = pod["spec"].get("securityContext") or {}
    of_container: Json = container.get("securityContext") or {}
    context: Json = {**of_pod, **{key: value for key, value in of_container.items() if value is not None}}
    name = str(container["name"])
    image_uid, image_gid = _image_user("" if pulled else image_user)
    uid, source = _user(context, image_uid, own, kubelet)
    _check_user(name, uid, source, context, kubelet)
    if context.get("runAsGroup") is not None:
        gid = int(context["runAsGroup"])
    elif source == IMAGE and image_gid is not None:
        gid = image_gid
    else:
        gid = _group_of(uid, own, kubelet)
    groups = {int(group) for group in of_pod.get("supplementalGroups") or []} | _fs_group(of_pod)
    _check_groups(name, uid, gid, sorted(groups), kubelet)
    if own is not None:
        _check_other_pods(name, uid, {gid, *groups}, own)
        groups |= {own.id}
    return ContainerUser(uid, gid, tuple(sorted(groups - {gid})))


def _user(context: Json, image_uid: int | None, own: PodUser | None, kubelet: KubeletUser) -> tuple[int, str]:
    """The uid, and where it comes from."""
    if context.get("runAsUser") is not None:
        return int(context["runAsUser"]), RUN_AS_USER
    if image_uid is not None:
        return image_uid, IMAGE
    return (own.id, "the pod's own user") if own is not None else (kubelet.uid, "the kubelet's own user")


def _check_other_pods(name: str, uid: int, groups: set[int], own: PodUser) -> None:
    for kind, number in [("user", uid), *(("group", group) for group in sorted(groups))]:
        if number != own.id and number in own.all_pods:
            raise ContainerConfigError(
                f"container {name!r} cannot run as {kind} {number}: podUsers in the kubelet's configuration "
                "reserves it for pods that name no user; use a number outside podUsers, or leave it out"
            )


def _check_user(name: str, uid: int, source: str, context: Json, kubelet: KubeletUser) -> None:
    if uid == 0 and source != RUN_AS_USER and not (kubelet.in_user_namespace and kubelet.uid == 0):
        raise ContainerConfigError(
            f"container {name!r} would run as root: {source} is root and runAsUser is not set; "
            "set securityContext.runAsUser (0 to run as root)"
        )
    if uid == 0 and context.get("runAsNonRoot"):
        raise ContainerConfigError(
            f"container {name!r} has runAsNonRoot, but {source} is root (0); set runAsUser to another user"
        )
    if not kubelet.maps(uid):
        raise ContainerConfigError(
            f"container {name!r} cannot run as user {uid} ({source}): the kubelet's user namespace maps only "
            f"{_ranges(kubelet.uids or ())}"
        )
    if kubelet.uid not in (0, uid):
        raise ContainerConfigError(
            f"container {name!r} cannot run as user {uid} ({source}): the kubelet is not root, so containers run as its own "
            f"user, {kubelet.uid}; leave out runAsUser, or run the kubelet as root"
        )


def _check_groups(name: str, uid: int, gid: int, groups: list[int], kubelet: KubeletUser) -> None:
    if kubelet.uid == 0 and not kubelet.in_user_namespace:
        return
    if uid == kubelet.uid and gid != kubelet.gid:
        raise ContainerConfigError(
            f"container {name!r} cannot run as group {gid}: this kubelet can use only its own group, {kubelet.gid}; "
            "leave out runAsGroup, or run the kubelet as root"
        )
    if groups:
        raise ContainerConfigError(
            f"container {name!r} cannot have supplementary groups {groups}: only a kubelet that runs as root can set "
            "them; leave out supplementalGroups and fsGroup, or run the kubelet as root"
        )


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
        raise ContainerConfigError(f"the image's user {text!r} not found on this machine: {error}") from error
    return uid, None


def _group_of(uid: int, own: PodUser | None, kubelet: KubeletUser) -> int:
    """The primary group of a user; for an unknown user the pod's own, never group 0."""
    if uid == kubelet.uid:
        return kubelet.gid
    if own is not None and uid == own.id:
        return own.id
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return own.id if own is not None else uid
