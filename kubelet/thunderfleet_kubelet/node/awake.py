"""Keeps a Mac awake while pods run on it: ``caffeinate -is``, which ends with the kubelet."""

import asyncio
import logging
import os

from thunderfleet_lib.backoff import Backoff

log = logging.getLogger(__name__)

BACKOFF = Backoff(first=10.0, limit=600.0)
END_SECONDS = 5.0


class Awake:
    """``program``: the path of caffeinate; None on machines without it, which never sleep by themselves."""

    def __init__(self, program: str | None) -> None:
        self._program = program
        self._wanted = False
        self._changed = asyncio.Event()

    def want(self, wanted: bool) -> None:
        """Whether the machine must stay awake from now on."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        """Starts and ends caffeinate until cancelled."""
        failures = 0
        while True:
            self._changed.clear()
            if self._program is None or not self._wanted:
                await self._changed.wait()
                continue
            try:
                problem = await self._hold(self._program)
            except OSError as error:
                problem = str(error.strerror)
            if problem is None:
                failures = 0
                continue
            failures += 1
            delay = BACKOFF.seconds(failures)
            log.warning("caffeinate: %s; this Mac may sleep while pods run; retrying in %.0f s", problem, delay)
            await self._until_changed(delay)

    async def _hold(self, program: str) -> str | None:
        """Runs caffeinate until it is no longer needed. Returns the problem if caffeinate ended before."""
        # -i: no idle sleep; -s: no system sleep on mains power; -w: until this process has ended, however it ends.
        process = await asyncio.create_subprocess_exec(
            *(program, "-is", "-w", str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        changed, ended = asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((changed, ended), return_when=asyncio.FIRST_COMPLETED)
            return f"ended with exit code {process.returncode}" if ended.done() else None
        finally:
            changed.cancel()
            await _end(process, ended)

    async def _until_changed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


async def _end(process: asyncio.subprocess.Process, ended: "asyncio.Future[int]") -> None:
    if process.returncode is None:
        process.terminate()
        await asyncio.wait((ended,), timeout=END_SECONDS)
    if process.returncode is None:
        process.kill()
        await ended
