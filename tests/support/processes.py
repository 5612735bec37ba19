"""Whether a process runs, or exists at all, and what it is."""

import os
import subprocess
import sys
from pathlib import Path

PS_SECONDS = 10.0

PROC = Path(os.environ.get("THUNDERFLEET_TESTS_PROC", "/proc"))
"""Linux's /proc, also under the rules of macOS (see tests/darwin), where our programs have none."""


def exists(pid: int) -> bool:
    """Whether there is a process ``pid``. A zombie exists until its parent has waited for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def alive(pid: int) -> bool:
    """Whether process ``pid`` runs. A zombie does not."""
    return _state(pid) not in ("", "Z")


def with_variable(variable: str) -> list[int]:
    """The processes that have ``NAME=VALUE`` in their environment."""
    found = []
    for folder in PROC.glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _state(pid: int) -> str:
    """The first letter of the process's state as ``ps`` shows it; empty when there is no such process."""
    if sys.platform == "linux":
        try:
            return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PS_SECONDS, check=False)
    return done.stdout.strip()[:1]
