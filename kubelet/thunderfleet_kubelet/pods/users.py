"""The users of pods: each pod has one for itself until its processes and files are gone.

The group of a pod's folder records its user, so a restarted kubelet finds the assignment as it finds the pod.
"""

import logging
from collections.abc import Iterable

from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.inputs.user import PodUser

log = logging.getLogger(__name__)

UNASSIGNED = 65534
"""The user of pods that a kubelet accepted before pods had users of their own; such a pod keeps it until it is replaced."""


class NoFreeUser(OSError):
    """All users are assigned to pods that still have processes or files."""


class UserPool:
    """``ids``: the users and groups of the node's pods; None: this kubelet cannot switch users, so pods have none."""

    def __init__(self, ids: range | None) -> None:
        self._ids = ids
        self._taken: dict[int, str] = {}
        self._last = -1
        """The index of the id taken last: the next pod gets the one after it, so that an id rests as long as possible."""

    def __contains__(self, number: object) -> bool:
        """Whether the id is reserved for pods of this node, assigned or not."""
        return (self._ids is not None and number in self._ids) or number in self._taken

    @property
    def enabled(self) -> bool:
        """Whether pods have users."""
        return self._ids is not None

    def adopt(self, folders: Iterable[PodFolder]) -> None:
        """Takes the users of the pods that an earlier kubelet left. Raises OSError if they cannot be determined."""
        for folder in folders:
            user = folder.user()
            if user is None:
                continue
            if user in self._taken:
                log.error("pods %s and %s have the same user %d: delete both", self._taken[user], folder.uid, user)
            self._taken[user] = folder.uid
            if self._ids is not None and user in self._ids:
                self._last = max(self._last, self._ids.index(user))

    def take(self, folder: PodFolder) -> PodUser | None:
        """The user of a new pod, or the one that the pod has. Raises NoFreeUser."""
        if self._ids is None:
            return None
        known = self.own(folder)
        if known is not None:
            return PodUser(known, self)
        for step in range(1, len(self._ids) + 1):
            index = (self._last + step) % len(self._ids)
            if self._ids[index] not in self._taken:
                self._last = index
                self._taken[self._ids[index]] = folder.uid
                return PodUser(self._ids[index], self)
        raise NoFreeUser(
            f"all {len(self._ids)} users of this node's pods are in use, some by processes or files of deleted pods that "
            f"could not "
            "be removed; see the kubelet's log, or raise podUsers.count"
        )

    def of(self, folder: PodFolder) -> PodUser | None:
        """The user of an accepted pod; None if pods have none."""
        if self._ids is None:
            return None
        known = self.own(folder)
        return PodUser(UNASSIGNED if known is None else known, self)

    def own(self, folder: PodFolder) -> int | None:
        """The user that only this pod has; None without one."""
        return next((number for number, uid in self._taken.items() if uid == folder.uid), None)

    def release(self, folder: PodFolder) -> None:
        """Makes the pod's user free. Call it when no process and no file of the pod is left that the user can reach."""
        self._taken = {number: uid for number, uid in self._taken.items() if uid != folder.uid}
