"""Ends every process of a pod's user, and deletes what the pod's containers wrote, in its folder and elsewhere.

A process can leave its process group and clear its environment, but it cannot change its user, and its files keep their owner.
"""

import errno
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from thunderfleet_kubelet.shim.processes import of_user, signal_all

KILL_SECONDS = 10.0
DELETE_SECONDS = 600.0
PAUSE_SECONDS = 0.05
PATH_BYTES = 4096
IPC_SECONDS = 10.0
IPC_AT_ONCE = 256
"""The most objects that one ``ipcrm`` removes, because of the limit on arguments."""

SHARED_FOLDERS = (
    ("/private/tmp", "/private/var/tmp", "/private/var/folders", "/Users/Shared", "/Library/Caches")
    if sys.platform == "darwin"
    else ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")
)
"""Folders in which every user can create files."""

SYSV = Path("/proc/sysvipc")

# The kernel signals all processes of the user at once, so none can fork in between. The killer itself is not signalled.
_KILLER = "import os,sys; n=int(sys.argv[1]); os.setgroups([]); os.setgid(n); os.setuid(n); os.kill(-1, 9)"


def end_processes(user: int, seconds: float = KILL_SECONDS) -> list[int]:
    """Kills all processes of ``user``, which must be the user of one pod only. Returns the pids that remain after ``seconds``.

    Blocks, so run it in a thread.
    """
    limit = time.monotonic() + seconds
    while pids := of_user(user):
        if time.monotonic() >= limit:
            return pids
        signal_all(pids, 9)
        # Failure is harmless: nothing is left to signal, or a process of the user has killed the killer first.
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _KILLER, str(user)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            timeout=seconds,
            check=False,
        )
        time.sleep(PAUSE_SECONDS)
    return []


def delete(path: Path) -> None:
    """Deletes a file or folder with everything in it; links are not followed. Raises OSError if something is left.

    Runs ``rm``, because containers wrote these files: it needs no stack frame for each level of a deep folder, and on macOS it
    clears the flags with which users protect files (``chflags uchg``). Blocks, so run it in a thread.
    """
    try:
        done = subprocess.run(
            ["/bin/rm", "-rf", "--", str(path)], capture_output=True, text=True, timeout=DELETE_SECONDS, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"rm did not end within {DELETE_SECONDS:.0f} s", str(path)) from None
    if os.path.lexists(path):
        raise OSError(errno.EBUSY, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "not deleted", str(path))


def delete_outside(user: int, folders: Iterable[str], seconds: float = DELETE_SECONDS) -> None:
    """Deletes what ``user``, which must be the user of one pod only, left in these folders, and its System V IPC.

    Otherwise these would belong to the next pod with this user. A folder with files of other users is given to root.
    Raises OSError if something is left. Blocks, so run it in a thread.
    """
    limit = time.monotonic() + seconds
    existing = [folder for folder in folders if os.path.isdir(folder)]
    # find needs no stack frame for each level of a deep folder, and its -delete and -execdir follow no link that a pod changes.
    owned = ("/usr/bin/find", *existing, "-xdev", "-uid", str(user))
    if existing and _first(owned, limit):
        _run((*owned, "-delete"), limit)
        _run((*owned, "-type", "d", "-execdir", "chown", "-h", "0:0", "{}", ";"), limit)
        if left := _first(owned, limit):
            raise OSError(errno.EBUSY, f"the pod's user {user} still owns files outside the pod's folder", left)
    _remove_ipc(user)


def _first(find: tuple[str, ...], limit: float) -> str:
    """The first path that find prints; empty if it prints none."""
    # BSD find may have no -quit.
    with subprocess.Popen((*find, "-print"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env={}) as process:
        try:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], max(0.0, limit - time.monotonic()))[0]:
                raise _endless(find)
            return os.fsdecode(os.read(process.stdout.fileno(), PATH_BYTES)).partition("\n")[0]
        finally:
            process.kill()


def _run(find: tuple[str, ...], limit: float) -> None:
    """Runs the command. Ignores its status: it fails when a file vanishes meanwhile, and a later search finds leftovers."""
    wait = max(0.0, limit - time.monotonic())
    path = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    try:
        subprocess.run(find, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env=path, timeout=wait, check=False)
    except subprocess.TimeoutExpired:
        raise _endless(find) from None


def _endless(find: tuple[str, ...]) -> OSError:
    return OSError(
        errno.ETIMEDOUT, "find did not end in time; delete files in the folders that all users can write, such as /tmp", find[1]
    )


def _remove_ipc(user: int) -> None:
    """Removes shared memory, semaphores and message queues (System V) of ``user``. Raises OSError if some are left."""
    objects = _ipc(user)
    for first in range(0, len(objects), IPC_AT_ONCE):
        options = [word for kind, number in objects[first : first + IPC_AT_ONCE] for word in (f"-{kind}", number)]
        subprocess.run(["/usr/bin/ipcrm", *options], capture_output=True, timeout=IPC_SECONDS, check=False, cwd="/")
    if objects and (left := _ipc(user)):
        raise OSError(errno.EBUSY, f"the pod's user {user} still owns {len(left)} objects of System V IPC (see ipcs)")


def _ipc(user: int) -> list[tuple[str, str]]:
    """Kind (m, s, q) and id of the objects that ``user`` owns or created."""
    if SYSV.is_dir():
        return [
            found
            for kind, name in (("m", "shm"), ("s", "sem"), ("q", "msg"))
            for found in ipc_of(kind, (SYSV / name).read_text(encoding="ascii"), user)
        ]
    try:
        done = subprocess.run(["/usr/bin/ipcs", "-a"], capture_output=True, timeout=IPC_SECONDS, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "ipcs did not end in time") from None
    return ipcs_of(done.stdout.decode("utf-8", "replace"), user)


def ipc_of(kind: str, table: str, user: int) -> list[tuple[str, str]]:
    """The objects of ``user`` in a file of Linux's ``/proc/sysvipc``."""
    head, *rows = [line.split() for line in table.splitlines()] or [[]]
    mine = str(user)
    identifier = {"m": "shmid", "s": "semid", "q": "msqid"}[kind]
    records = (dict(zip(head, row, strict=False)) for row in rows)
    return [(kind, record[identifier]) for record in records if mine in (record.get("uid"), record.get("cuid"))]


def ipcs_of(output: str, user: int) -> list[tuple[str, str]]:
    """The objects of ``user``, who has no account and so no name, in the output of macOS's ``ipcs -a``.

    A row begins with kind, id, key, mode, owner, group and creator.
    """
    rows = (re.match(r"([msq])\s+(\d+)\s+\S+\s+\S+\s+(\S+)\s+\S+\s+(\S+)", line) for line in output.splitlines())
    return [(row[1], row[2]) for row in rows if row and str(user) in (row[3], row[4])]
