"""What the users of an ended pod leave outside of its folder, and what of it is removed.

The pod's own user is the pod's alone: its processes, its files in folders of everybody and its System V IPC are removed before
another pod gets the user. A user that the spec or an image chose can be the user of other pods, of programs of the machine, or
of a person. Only files are deleted then, and only those that must be the pods': see ``Leavings.clear``.

``pods/UID/users/USER`` records that containers of the pod have run as such a user. Its time is when the first of the pods that
had the user at the same time began, so that the last one deletes what all of them left. Its text is ``MAY_DELETE``, or says why
nothing may be deleted, which holds for all pods that had the user at the same time.
"""

import asyncio
import contextlib
import logging
import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path

from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.containers.folder import PodFolder, read_json
from thunderfleet_kubelet.pods.users import UserPool

log = logging.getLogger(__name__)

CHOSEN = range(1000, 65534)
"""The ids that the admission policy leaves to pods. Those below are of macOS and of people; 65534 is nobody on many systems."""

CLEARING_SECONDS = 10.0
"""How long a container waits until the files of an earlier pod with its user are deleted, before its start is tried again."""

MAY_DELETE = "may delete"
HOST_PATH = "a pod with this user has a hostPath volume, whose files may be meant to stay"
EARLIER = "a pod with this user was started by an earlier version of the kubelet"
CUT_OFF = "the kubelet or the Mac ended while the user was recorded"


class Leavings:
    """``pods``: the folder of all pods."""

    def __init__(self, pods: Path, users: UserPool) -> None:
        self._pods, self._users = pods, users
        self._clearing: dict[int, asyncio.Event] = {}
        """The users whose files are being deleted; the events are set at the end."""
        self._unknown = ""
        """Why it is not known which pods have which users; empty if it is."""

    def adopt(self, folder: PodFolder) -> None:
        """Records the users of a pod that an earlier version of the kubelet has started."""
        if folder.users.exists() or not folder.path.is_dir() or not self._users.enabled:
            return
        try:
            specs = [folder.attempt(name, number) / "spec.json" for name in folder.names() for number in folder.numbers(name)]
            made = folder.users.with_name("users.new")
            made.mkdir(mode=0o700, exist_ok=True)
            for spec in specs:
                user = int((read_json(spec) or {}).get("uid") or 0)
                if self._is_chosen(user):
                    _write(made / str(user), EARLIER, spec.stat().st_mtime_ns)
            made.rename(folder.users)
            for record in _records(folder):
                self._keep(self._others(record), EARLIER)
        except OSError as error:
            self._unknown = f"the users of pods that an earlier version of the kubelet has started are not known ({error})"

    def _is_chosen(self, user: int) -> bool:
        return self._users.enabled and user in CHOSEN and user not in self._users

    async def take(self, folder: PodFolder, user: int, *, host_path: bool) -> None:
        """Records that a container of the pod is about to run as ``user``. Raises OSError if it must wait longer.

        ``host_path``: whether the pod has a volume of this kind.
        """
        if not self._is_chosen(user):
            return
        try:
            async with asyncio.timeout(CLEARING_SECONDS):
                while (clearing := self._clearing.get(user)) is not None:
                    await clearing.wait()
        except TimeoutError:
            raise OSError(f"the files of an ended pod with user {user} are still being deleted") from None
        # Without a pause from here on: no other pod with this user must end meanwhile.
        record = folder.users / str(user)
        if not record.exists():
            others = self._others(record)
            folder.users.mkdir(exist_ok=True, mode=0o700)
            why = HOST_PATH if host_path else next(filter(None, map(_why, others)), "")
            try:
                if why:
                    self._keep(others, why)
                record.write_text(why or MAY_DELETE)
                began = min(one.stat().st_mtime_ns for one in (record, *others))
                os.utime(record, ns=(began, began))
            except OSError:
                record.unlink(missing_ok=True)
                raise

    @staticmethod
    def _keep(others: list[Path], why: str) -> None:
        """Records in pods with the same user, too, that its files stay: any of them may be the last. Raises OSError."""
        for one in others:
            if not _why(one):
                _write(one, why, one.stat().st_mtime_ns)

    def _others(self, record: Path) -> list[Path]:
        """The records of the other pods that have this user."""
        return [one for one in self._pods.glob(f"*/users/{record.name}") if one != record]

    async def end_processes(self, folder: PodFolder) -> None:
        """Ends the processes of the pod's own user. Raises OSError if some do not end."""
        user = self._users.own(folder)
        if user is not None and (left := await leftovers.end_processes(user)):
            raise OSError(f"processes {left} of the pod's user {user} do not end")

    async def clear_own(self, folder: PodFolder) -> None:
        """Removes what the pod's own user left, whose processes have ended. Raises OSError if something is left."""
        user = self._users.own(folder)
        if user is not None:
            # Another pod may have linked a setuid file of this user into its folder, and could act as the next pod with it.
            await leftovers.delete_outside(user, (*leftovers.SHARED_FOLDERS, str(self._pods)))

    async def clear(self, folder: PodFolder, *, ended: bool = True) -> list[str]:
        """Deletes the files of chosen users that changed while pods had them. Returns which others may be left, and why.

        Files stay if another pod or any process has the user, if it is an account of this machine or below 1000, and if one
        of the pods had a hostPath volume. ``ended``: no container of the pod starts again. Raises OSError if something is
        left that may be deleted.
        """
        said = []
        for record in _records(folder):
            user = int(record.name)
            async with self._alone(user):
                # The last of the pods with this user deletes what all have left.
                if not self._others(record):
                    said += await self._clear(user, record)
                if ended:
                    record.unlink(missing_ok=True)
        return said

    @contextlib.asynccontextmanager
    async def _alone(self, user: int) -> AsyncIterator[None]:
        while (clearing := self._clearing.get(user)) is not None:
            await clearing.wait()
        mine = self._clearing[user] = asyncio.Event()
        try:
            yield
        finally:
            del self._clearing[user]
            mine.set()

    async def _clear(self, user: int, record: Path) -> list[str]:
        why = self._unknown or _why(record) or await asyncio.to_thread(_account, user)
        if not why and (alive := await leftovers.processes_of(user)):
            why = f"process {alive[0]} runs as this user"
        if not why:
            await leftovers.delete_changed_outside(user, leftovers.SHARED_FOLDERS, record)
            return []
        file = await leftovers.changed_outside(user, leftovers.SHARED_FOLDERS, record)
        if not file:
            return []
        log.warning("files of user %d that a pod may have left are not deleted, such as %s: %s", user, file, why)
        where = f"files of user {user} in folders that all users can write, such as /tmp"
        return [f"The pod may have left {where}. Delete them if nobody needs them; the kubelet does not, because {why}"]


def _why(record: Path) -> str:
    """Why the files of a record's user stay; empty if they may be deleted."""
    # Another call for this pod may have deleted it.
    text = record.read_text() if record.exists() else "its record is missing"
    return "" if text == MAY_DELETE else text or CUT_OFF


def _write(record: Path, text: str, began: int) -> None:
    record.write_text(text)
    os.utime(record, ns=(began, began))


def _records(folder: PodFolder) -> list[Path]:
    return sorted(folder.users.glob("*"))


def _account(user: int) -> str:
    try:
        return f"the user is the account {pwd.getpwuid(user).pw_name} of this machine"
    except KeyError:
        return ""
