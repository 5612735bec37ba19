"""Child processes of the supervisor: started, watched, reaped.

The supervisor is the first process of its PID namespace (or a subreaper), so orphans of every machine become its children.
This module reaps all of them, so no other code in the supervisor may wait for a process.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from thunderfleet_lib.host.trees import tail

from thunderfleet_localcluster.machines import descendants
from thunderfleet_localcluster.machines.linux import PR_SET_PDEATHSIG, libc_call

log = logging.getLogger(__name__)


@dataclass
class Child:
    """A child process. ``code`` is its exit code once ``ended`` is set (negative: the signal that ended it)."""

    name: str
    pid: int
    log: Path | None
    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    code: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def describe_end(self) -> str:
        """How the process ended, with the last lines of its log."""
        how = f"signal {-self.code}" if self.code is not None and self.code < 0 else f"exit code {self.code}"
        return f"{self.name} ended ({how})" + (f"; the last lines of {self.log}:\n{tail(self.log)}" if self.log else "")


class Children:
    """Child processes by process ID."""

    def __init__(self) -> None:
        self.all: dict[int, Child] = {}
        self.on_end: Callable[[Child], None] | None = None

    def listen(self) -> None:
        """Start reaping. Call once, in the event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
        self.reap()

    def adopt(self, child: Child) -> Child:
        """Register a child that another process started."""
        self.all[child.pid] = child
        return child

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path | None = None,
        pipes: bool = False,
        die_with_us: bool = True,
    ) -> Child:
        """Start a process.

        ``die_with_us``: it is killed when the supervisor ends (Linux). ``pipes``: its standard input and output are pipes to
        us; otherwise its output goes to ``log``.
        """
        linux = die_with_us and sys.platform.startswith("linux")
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(log.open("ab")) if log else None
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd="/",
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else sink,
                stderr=sink,
                start_new_session=True,
                preexec_fn=_die_with_parent if linux else None,
            )
        # reap() collects it, so Popen must not wait for it.
        process.returncode = 0
        return self.adopt(Child(name, process.pid, log, process.stdin, process.stdout))

    def reap(self) -> None:
        """Collect every ended child, also inherited ones."""
        for pid, code in descendants.ended():
            child = self.all.pop(pid, None)
            if child is None:
                continue
            child.code = code
            child.ended.set()
            if self.on_end:
                self.on_end(child)


def _die_with_parent() -> None:
    libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
