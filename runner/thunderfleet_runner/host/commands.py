"""This Mac's commands, as preflight asks them: found on PATH, with a time limit, their failure typed.

A dead RDMA stack leaves ``ibv_devinfo`` in uninterruptible sleep, where even SIGKILL waits. So a command that does not end is
left behind rather than waited for, and no second copy of one that is still stuck is started.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence

SECONDS = 15.0
"""How long a command may take: milliseconds when all is well, but a busy Mac is not a broken one."""
GRACE_SECONDS = 1.0
OUTPUT_LIMIT = 1 << 20

_stuck: dict[tuple[str, ...], "subprocess.Popen[bytes]"] = {}


class CommandError(Exception):
    """The command gave no answer; the text names it and says why."""


class CommandMissing(CommandError):
    """It is not on PATH."""


class CommandHangs(CommandError):
    """It did not end within its time limit, or an earlier one has not ended yet."""


class CommandFailed(CommandError):
    """It ended with another code than 0. ``said`` is everything it wrote."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


def run(*argv: str, seconds: float = SECONDS) -> str:
    """What the command writes to stdout. Raises CommandMissing, CommandHangs, CommandFailed."""
    line = " ".join(argv)
    earlier = _stuck.get(argv)
    if earlier is not None:
        if earlier.poll() is None:
            raise CommandHangs(f"`{line}` still hangs (process {earlier.pid} cannot be ended)")
        del _stuck[argv]
    if shutil.which(argv[0]) is None:
        raise CommandMissing(f"there is no command {argv[0]} on PATH")
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise CommandFailed(f"`{line}` cannot be started: {error.strerror}", "") from error
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(argv, process)
        raise CommandHangs(f"`{line}` did not end within {seconds:g} s") from None
    text, error_text = _text(out), _text(err)
    if process.returncode != 0:
        said = " ".join(f"{text} {error_text}".split())
        raise CommandFailed(f"`{line}` failed with code {process.returncode}: {said[:300] or 'it said nothing'}", said)
    return text


def _text(data: bytes) -> str:
    return data[:OUTPUT_LIMIT].decode(errors="replace")


def _end(argv: Sequence[str], process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _stuck[tuple(argv)] = process
