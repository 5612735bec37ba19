"""Runs commands of the machine, each with a time limit."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind, Host, Output

log = logging.getLogger(__name__)

COMMAND_SECONDS = 2.0


class Commands:
    """Runs the machine's commands; those in ``path`` are found first. The kubelet's own environment is not passed on.

    ``python_path``: their PYTHONPATH; unset if empty.
    """

    def __init__(self, path: Sequence[Path], seconds: float = COMMAND_SECONDS, python_path: Sequence[Path] = ()) -> None:
        modules = {"PYTHONPATH": ":".join(map(str, python_path))} if python_path else {}
        self._path, self._environment = path, {"HOME": os.environ.get("HOME", "/"), **modules}
        self._host = Host(path, environment=self._environment)
        self._seconds = seconds

    def blocking(self) -> BlockingHost:
        """A host for threads, with the same folders and environment."""
        return BlockingHost(self._path, environment=self._environment)

    def exists(self, command: str) -> bool:
        """Whether the machine has the command."""
        return self._host.find(command) is not None

    def find(self, command: str) -> str | None:
        """The path of the command; None if the machine does not have it."""
        return self._host.find(command)

    async def run(self, command: str, *arguments: str, seconds: float | None = None) -> Output | Failure:
        """The command's output, or why there is none. ``seconds``: a time limit other than the default."""
        return await self._host.run([command, *arguments], self._seconds if seconds is None else seconds)

    async def output(self, command: str, *arguments: str) -> str | None:
        """Standard output without trailing white space; None if the command does not exist, fails or takes too long."""
        if not self.exists(command):
            return None
        result = await self.run(command, *arguments)
        if isinstance(result, Failure):
            log.warning("%s", result)
            return None
        return result.text.rstrip()

    async def number(self, command: str, *arguments: str) -> int | None:
        """The integer at the start of the output; None if there is none."""
        text = await self.output(command, *arguments)
        if text is None:
            return None
        match = re.match(r"-?\d+", text.strip())
        if match is None:
            log.warning("%s %s: %r is not a number", command, " ".join(arguments), text[:80])
        return int(match[0]) if match else None

    async def variables(self, *names: str) -> dict[str, int]:
        """Integer variables of a Mac's kernel by name, from one ``sysctl``; unknown names are left out."""
        if not self.exists("sysctl"):
            return {}
        result = await self.run("sysctl", *names)
        if isinstance(result, Failure):
            log.warning("%s", result)
            # sysctl fails for an unknown name, but prints the others.
            if result.kind is not FailureKind.FAILED:
                return {}
        pairs = (line.split(":", 1) for line in result.text.splitlines() if ":" in line)
        return {name: int(value) for name, value in pairs if re.fullmatch(r"\s*-?\d{1,19}\s*", value)}
