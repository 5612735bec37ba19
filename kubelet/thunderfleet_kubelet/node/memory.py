"""The memory for pods: what the GPU of a Mac may use, followed while the kubelet runs; elsewhere all of it."""

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

log = logging.getLogger(__name__)

WIRED_LIMIT = "iogpu.wired_limit_mb"
"""The kernel variable of a Mac with the limit of GPU memory; 0: no limit was set."""
RETRY_SECONDS = 300.0
"""How long an estimate stays in use after MLX gave no answer."""


def host_memory() -> int:
    """The memory of this machine in bytes."""
    try:
        total = meminfo(Path("/proc/meminfo").read_text()).get("MemTotal")
    except OSError:
        total = None
    return total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class GpuMemory:
    """Reads it from MLX, and again after the limit of macOS has changed (``sysctl iogpu.wired_limit_mb=...``)."""

    def __init__(self, commands: Commands, clock: Callable[[], float] = time.monotonic) -> None:
        self._commands = commands
        self._clock = clock
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
        found = gpu_memory_limit(self._total, limit, await self._metal())
        if self._bytes not in (None, found):
            log.info("the GPU may use %d MiB of memory; it was %d MiB", found // 1024**2, (self._bytes or 0) // 1024**2)
        self._limit_mb, self._bytes = limit, found
        return found

    async def _memory(self) -> int:
        total = await self._commands.number("sysctl", "-n", "hw.memsize")
        if not total:
            total = host_memory()
            log.warning("sysctl hw.memsize failed; assuming %d MiB of memory", total // 1024**2)
        return total

    def _is_old(self) -> bool:
        return self._estimated is not None and self._clock() - self._estimated >= RETRY_SECONDS

    async def _metal(self) -> int | None:
        self._estimated = None
        answer = await self._commands.run(*COMMAND, seconds=SECONDS)
        problem: object = answer
        try:
            if not isinstance(answer, Failure):
                return parse(answer.text)
        except ParseError as error:
            problem = error
        self._estimated = self._clock()
        log.warning("MLX does not report how much memory the GPU may use, so it is estimated: %s", problem)
        return None
