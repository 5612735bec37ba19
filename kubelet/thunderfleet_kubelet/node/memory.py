"""The memory for pods: what the GPU of a Mac may use, followed while the kubelet runs; elsewhere all of it."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from thunderfleet_lib.host.gpu_memory import COMMAND, SECONDS, gpu_memory_limit, parse
from thunderfleet_lib.host.hostcmd import Failure
from thunderfleet_lib.host.parsing import ParseError

from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_kubelet.node.facts import meminfo
from thunderfleet_kubelet.shim import files

log = logging.getLogger(__name__)

WIRED_LIMIT = "iogpu.wired_limit_mb"
"""The kernel variable of a Mac with the limit of GPU memory; 0: no limit was set."""
RETRY_SECONDS = 300.0
"""How long an estimate stays in use after MLX gave no answer, and an answer from before the kubelet's start."""
FILE_NAME = "gpu-memory.json"
FILE_BYTES = 4096


def host_memory() -> int:
    """The memory of this machine in bytes."""
    try:
        total = meminfo(Path("/proc/meminfo").read_text()).get("MemTotal")
    except OSError:
        total = None
    return total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class GpuMemory:
    """Reads it from MLX, and again after the limit of macOS has changed (``sysctl iogpu.wired_limit_mb=...``).

    ``root``: the kubelet's folder, where it records the answer. A kubelet that starts uses the recorded one, and asks later: on
    a Mac that starts, loading MLX takes seconds, and all pods would wait.
    """

    def __init__(self, commands: Commands, clock: Callable[[], float] = time.monotonic, root: Path | None = None) -> None:
        self._commands = commands
        self._clock = clock
        self._file = root / FILE_NAME if root is not None else None
        self._total: int | None = None
        self._limit_mb: int | None = None
        self._bytes: int | None = None
        self._estimated: float | None = None

    async def read(self, limit: int | None) -> int:
        """The memory in bytes; an estimate while MLX does not answer. ``limit``: value of ``WIRED_LIMIT``, if readable."""
        if self._bytes is not None and limit in (None, self._limit_mb) and not self._is_old():
            return self._bytes
        limit = self._limit_mb if limit is None else limit
        if self._total is None:
            self._total = await self._memory()
        if self._bytes is None and (recorded := self._recorded(self._total, limit)) is not None:
            self._limit_mb, self._bytes, self._estimated = limit, recorded, self._clock()
            return recorded
        kept = self._bytes if limit == self._limit_mb else None
        metal = await self._metal("it is estimated" if kept is None else "the last value stays in use")
        if metal is None and kept is not None:
            # MLX has answered before, and an estimate is worse.
            return kept
        found = gpu_memory_limit(self._total, limit, metal)
        if metal is not None:
            self._record(self._total, limit, found)
        if self._bytes not in (None, found):
            log.info("the GPU may use %d MiB of memory; it was %d MiB", found // 1024**2, (self._bytes or 0) // 1024**2)
        self._limit_mb, self._bytes = limit, found
        return found

    def _recorded(self, total: int, limit: int | None) -> int | None:
        """What MLX answered on a Mac with this memory and this limit, as it was recorded."""
        if self._file is None:
            return None
        try:
            with self._file.open(encoding="utf-8") as stream:
                found = json.loads(stream.read(FILE_BYTES))
            known, same = found["gpu"], (found["memory"], found["limitMB"]) == (total, limit)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return known if same and isinstance(known, int) and 0 < known <= total else None

    def _record(self, total: int, limit: int | None, found: int) -> None:
        if self._file is None:
            return
        try:
            files.write_file(str(self._file), json.dumps({"memory": total, "limitMB": limit, "gpu": found}))
        except OSError as error:
            log.warning("cannot record the GPU memory in %s, so the next kubelet has to wait for MLX: %s", self._file, error)

    async def _memory(self) -> int:
        total = await self._commands.number("sysctl", "-n", "hw.memsize")
        if not total:
            total = host_memory()
            log.warning("sysctl hw.memsize failed; assuming %d MiB of memory", total // 1024**2)
        return total

    def _is_old(self) -> bool:
        return self._estimated is not None and self._clock() - self._estimated >= RETRY_SECONDS

    async def _metal(self, otherwise: str) -> int | None:
        """What MLX answers; None, and a warning, if it does not. ``otherwise``: what happens then."""
        self._estimated = None
        answer = await self._commands.run(*COMMAND, seconds=SECONDS)
        problem: object = answer
        try:
            if not isinstance(answer, Failure):
                return parse(answer.text)
        except ParseError as error:
            problem = error
        self._estimated = self._clock()
        log.warning("MLX does not report how much memory the GPU may use, so %s: %s", otherwise, problem)
        return None
