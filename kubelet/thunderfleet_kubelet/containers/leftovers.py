"""Ends every process of a pod's user, and deletes what the pod's containers wrote, in its folder and elsewhere.

A process can leave its process group and clear its environment, but it cannot change its user, and its files keep their owner.

A container can leave millions of files. So commands delete them, a few at once; cancelling ends them. A command that needs more
than ``QUICK_SECONDS`` is ended, and another continues in a second queue, with turns that become longer. So large deletions
delay no small ones, and one large deletion delays another for a turn at most.
"""

import asyncio
import contextlib
import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host, Output

from thunderfleet_kubelet.shim.processes import listed_of_user, signal_all

KILL_SECONDS = 10.0
PAUSE_SECONDS = 0.05
AT_ONCE = 4
"""How many quick deletions, and how many long ones, run at the same time."""
QUICK_SECONDS = 10.0
LONG_SECONDS = (40.0, 80.0, 160.0, 320.0)
"""Time limits of the attempts at a deletion that takes longer. Each attempt of ``find`` reads all folders from the start."""
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

_QUICK, _LONG = Host(environment={}, at_once=AT_ONCE), Host(environment={}, at_once=AT_ONCE)
Turns = Sequence[tuple[Host, float]]
"""Who runs a command, and for how many seconds, until it ends in time."""
TURNS: Turns = ((_QUICK, QUICK_SECONDS), *((_LONG, seconds) for seconds in LONG_SECONDS))
_THREADS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="leftovers")

_SETTING = "cd / && PATH=/usr/bin:/bin:/usr/sbin:/sbin && export PATH"
_QUIETLY = ("/bin/sh", "-c", f'{_SETTING} && exec "$@" 2>/dev/null', "sh")
_LAST_WORDS = ("/bin/sh", "-c", f'{_SETTING} && "$@" 2>&1 | tail -n 1', "sh")
# Ends find at its first match; BSD find may have no -quit. If find was killed before, the parent is the first process.
_END_FIND = 'test "$PPID" -gt 1 && kill -9 "$PPID"'
_PRINT_FIRST = ("-exec", "/bin/sh", "-c", f'printf "%s\\n" "$1"; {_END_FIND}', "sh", "{}", ";")

# The kernel signals all processes of the user at once, so none can fork in between. The killer itself is not signalled.
_KILLER = "import os,sys; n=int(sys.argv[1]); os.setgroups([]); os.setgid(n); os.setuid(n); os.kill(-1, 9)"


async def end_processes(user: int, seconds: float = KILL_SECONDS) -> list[int]:
    """Kills all processes of ``user``, which must be the user of one pod only. Returns those that remain after ``seconds``.

    Raises OSError if they cannot be listed.
    """
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _end_processes, user, seconds)


def _end_processes(user: int, seconds: float) -> list[int]:
    limit = time.monotonic() + seconds
    while pids := listed_of_user(user):
        if time.monotonic() >= limit:
            return pids
        signal_all(pids, 9)
        # Failure is harmless: nothing is left to signal, or a process of the user has killed or stopped the killer first.
        with contextlib.suppress(subprocess.TimeoutExpired):
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


async def processes_of(user: int) -> list[int]:
    """All processes of ``user``. Raises OSError if they cannot be listed."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, listed_of_user, user)


async def delete(path: Path, turns: Turns = TURNS) -> None:
    """Deletes a file or folder with everything in it; links are not followed. Raises OSError if something is left.

    Runs ``rm``, because containers wrote these files: it needs no stack frame for each level of a deep folder, and on macOS it
    clears the flags with which users protect files (``chflags uchg``).
    """
    if not _exists(path):
        return
    for host, seconds in turns:
        said = await host.run((*_LAST_WORDS, "/bin/rm", "-rf", "--", str(path)), seconds)
        if not _exists(path):
            return
        if not _timed_out(said):
            why = said.text.strip() or (said.message if isinstance(said, Failure) else "not deleted")
            raise OSError(errno.EBUSY, why, str(path))
    raise OSError(errno.ETIMEDOUT, "rm did not end in time; what is left is deleted later", str(path))


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _timed_out(said: Output | Failure) -> bool:
    return isinstance(said, Failure) and said.kind is FailureKind.TIMED_OUT


async def delete_outside(user: int, folders: Iterable[str], turns: Turns = TURNS) -> None:
    """Deletes what ``user``, which must be the user of one pod only, left in these folders, and its System V IPC.

    Otherwise these would belong to the next pod with this user. A folder with files of other users is given to root.
    Raises OSError if something is left.
    """
    existing = _existing(folders)
    owned = _owned(user, existing)
    give_to_root = ("-type", "d", "-execdir", "chown", "-h", "0:0", "{}", ";")
    if existing and await _find(turns, *owned, *_PRINT_FIRST):
        # The last search finds what these could not delete.
        await _find(turns, *owned, "-delete")
        await _find(turns, *owned, *give_to_root)
        if left := await _find(turns, *owned, *_PRINT_FIRST):
            raise OSError(errno.EBUSY, f"the pod's user {user} still owns files outside the pod's folder", left)
    await asyncio.get_running_loop().run_in_executor(_THREADS, _remove_ipc, user)


def _existing(folders: Iterable[str]) -> list[str]:
    return [folder for folder in folders if os.path.isdir(folder)]


def _owned(user: int, folders: Sequence[str]) -> tuple[str, ...]:
    # find needs no stack frame for each level of a deep folder, and its -delete and -execdir follow no link that a pod changes.
    return ("/usr/bin/find", *folders, "-xdev", "-uid", str(user))


async def changed_outside(user: int, folders: Iterable[str], since: Path, turns: Turns = TURNS) -> str:
    """A file of ``user`` in these folders that is newer than the file ``since``; empty without one. Raises OSError."""
    existing = _existing(folders)
    # By the time at which the file or what is known about it changed last: no user can set that.
    changed = ("!", "-type", "d", "-cnewer", str(since))
    return await _find(turns, *_owned(user, existing), *changed, *_PRINT_FIRST) if existing else ""


async def delete_changed_outside(user: int, folders: Sequence[str], since: Path, turns: Turns = TURNS) -> None:
    """Deletes the files of ``user`` in these folders that are newer than the file ``since``, and folders that are empty then.

    Raises OSError if such a file is left.
    """
    if existing := _existing(folders):
        await _find(turns, *_owned(user, existing), "-cnewer", str(since), "-delete")
    if left := await changed_outside(user, folders, since, turns):
        raise OSError(errno.EBUSY, f"user {user} still owns files outside the pod's folder", left)


async def _find(turns: Turns, *command: str) -> str:
    """The first line that ``find`` prints; empty if it prints none. Raises OSError if it cannot look through all folders."""
    for host, seconds in turns:
        said = await host.run((*_QUIETLY, *command), seconds)
        found = said.text.partition("\n")[0]
        # It exits with 1 when a file vanishes meanwhile.
        if found or isinstance(said, Output) or said.code == 1:
            return found
        if not _timed_out(said):
            raise OSError(errno.EIO, f"find {said.message}", command[1])
    raise OSError(
        errno.ETIMEDOUT,
        "find did not end in time; delete files in the folders that all users can write, such as /tmp",
        command[1],
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
