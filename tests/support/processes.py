"""Whether a process runs, or exists at all."""

import os
import subprocess
import sys
from pathlib import Path

PS_SECONDS = 10.0


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


def _state(pid: int) -> str:
    """The first letter of the process's state as ``ps`` shows it; empty when there is no such process."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PS_SECONDS, check=False)
    return done.stdout.strip()[:1]
