"""Where one pod's files are on this machine.

    pods/UID/pod.json                      the pod as accepted
    pods/UID/containers/NAME/N/            attempt N: the files of its shim
    pods/UID/containers/NAME/sandbox/N/    attempt N: mount point, HOME and TMPDIR
    pods/UID/volumes/NAME/USER/            files that the kubelet writes for a user
    pods/UID/empty/NAME/                   emptyDir volumes
    pods/UID/logs/NAME/N.log               attempt N: its log
    pods/UID/users/USER                    a user that its spec or image chose, as which containers have run

All state of a container is in its folder, so a restarted kubelet finds what its predecessor left. The group of ``pods/UID`` is
the pod's own user. Only its members may enter, so another pod's user reaches nothing below, whatever the file modes are.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.shim import files

Json = dict[str, Any]

FOLDERS = ("containers", "volumes", "empty", "logs")


@dataclass(frozen=True)
class PodFolder:
    """The folder of one pod; its name is the pod's uid."""

    path: Path

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.path.name

    def sandbox(self, container: str, number: int) -> Path:
        """The path of the mount point in the attempt."""
        return self.path / "containers" / container / "sandbox" / str(number)

    def attempt(self, container: str, number: int) -> Path:
        """The files of an attempt's shim."""
        return self.path / "containers" / container / str(number)

    def log(self, container: str, number: int) -> Path:
        """An attempt's log; rotated ones have a suffix."""
        return self.path / "logs" / container / f"{number}.log"

    def volume(self, name: str, uid: int) -> Path:
        """The files of a volume that the user ``uid`` reads."""
        return self.path / "volumes" / name / str(uid)

    def empty(self, name: str) -> Path:
        """An emptyDir volume."""
        return self.path / "empty" / name

    @property
    def users(self) -> Path:
        """The folder of the records of chosen users; missing in pods that an earlier version of the kubelet accepted."""
        return self.path / "users"

    def container_id(self, container: str, number: int) -> str:
        """The ``containerID`` of an attempt."""
        return "thunderfleet://" + hashlib.sha256(f"{self.uid}/{container}/{number}".encode()).hexdigest()

    def load(self) -> Json | None:
        """The pod as accepted; None if it was never accepted. Raises OSError or ValueError if it cannot be read."""
        pod = read_json(self.path / "pod.json")
        if pod is None and (self.path / "pod.json").exists():
            raise ValueError(f"{self.path / 'pod.json'}: invalid JSON")
        return pod

    def create(self, user: int | None) -> None:
        """Creates the folders, accessible to the pod's ``user`` only; None: all users may pass through. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in FOLDERS:
            (self.path / name).mkdir(exist_ok=True)
            os.chmod(self.path / name, 0o700 if name == "logs" else 0o711)
        self.users.mkdir(exist_ok=True, mode=0o700)
        if user is not None:
            os.chown(self.path, -1, user)
        os.chmod(self.path, 0o711 if user is None else 0o710)

    def user(self) -> int | None:
        """The pod's own user; None without one. Raises OSError."""
        group = self.path.stat().st_gid
        return group if group != self.path.parent.stat().st_gid else None

    def save(self, pod: Json) -> None:
        """Records that this node has accepted the pod, so that a restarted kubelet finds it. Raises OSError."""
        files.write_file(str(self.path / "pod.json"), json.dumps(pod))
        os.chmod(self.path / "pod.json", 0o600)

    async def clear(self) -> None:
        """Deletes the files that containers of an ended pod can reach; logs and exit codes stay. Raises OSError."""
        for name in ("empty", "volumes"):
            await leftovers.delete(self.path / name)
        for name in self.names():
            await leftovers.delete(self.path / "containers" / name / "sandbox")

    def close(self) -> None:
        """Takes the folder from the pod's user, who is free then, also for the next kubelet. Raises OSError."""
        os.chmod(self.path, 0o700)
        os.chown(self.path, -1, self.path.parent.stat().st_gid)

    async def remove(self) -> None:
        """Deletes all files of the pod. Raises OSError if some are left; then the pod's user must not be used again."""
        # pod.json first: the rest of a folder that is only partly deleted is not a pod.
        (self.path / "pod.json").unlink(missing_ok=True)
        for name in FOLDERS:
            await leftovers.delete(self.path / name)
        await leftovers.delete(self.path)

    def numbers(self, container: str) -> list[int]:
        """The attempts of a container that are on disk, oldest first. Raises OSError."""
        return sorted(int(name) for name in _listed(self.path / "containers" / container) if name.isdigit())

    def names(self) -> list[str]:
        """The containers that have a folder. Raises OSError."""
        return sorted(_listed(self.path / "containers"))


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def read_json(path: Path) -> Json | None:
    """The object in a file; None if there is no file or it is damaged. Raises OSError if the file cannot be read now.

    "Cannot be read" (too many open files, for example) is not the same as "does not exist": it has no information about a
    container.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
