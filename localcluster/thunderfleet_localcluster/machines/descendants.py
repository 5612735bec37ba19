"""The descendants of a process, and their end. Standard library only, as ``launchd``, which imports it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


def ended() -> Iterator[tuple[int, int]]:
    """Collects the children of this process that have ended, also inherited ones: process id and exit code of each."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _parents() -> dict[int, int]:
    """Parent of every process in /proc; empty on systems without /proc."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat", "rb") as file:
                    found[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def of(root: int) -> set[int]:
    """All descendants of the process ``root``, without ``root``."""
    table = _parents()
    if not table:
        table = _parents_by_ps()
    known, grew = {root}, True
    while grew:
        fresh = {pid for pid, parent in table.items() if parent in known} - known
        known |= fresh
        grew = bool(fresh)
    return known - {root}


def _parents_by_ps() -> dict[int, int]:
    try:
        with subprocess.Popen(["ps", "-axo", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as process:
            try:
                out, _ = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                return {}
    except OSError:
        return {}
    table = {int(pid): int(parent) for pid, parent in (line.split() for line in out.splitlines() if line.strip())}
    # ps lists itself, and a caller that waits until there are no descendants would wait forever.
    table.pop(process.pid, None)
    return table


def kill_all(pids: set[int]) -> None:
    """Send SIGKILL to every process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
