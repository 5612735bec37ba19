"""Reads the sensors of this Mac while the agent is scraped; otherwise no command runs.

A command that does not exist is looked up again after ``ABSENT_SECONDS``. Values older than ``FRESH_SECONDS`` are not shown.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host
from thunderfleet_lib.host.parsing import ParseError

from thunderfleet_agent.observe.parsers.sensors import (
    Sensors,
    parse_ioreg,
    parse_macmon,
    parse_powermetrics,
    parse_traffic,
    parse_wired,
)

COMMAND_SECONDS: Final = 5.0
ABSENT_SECONDS: Final = 600.0
REST_SECONDS: Final = 10.0
"""Minimum time between two readings of the sensors."""
FRESH_SECONDS: Final = 90.0
MACMON: Final = ("macmon", "pipe", "-s", "1", "-i", "500")
IOREG: Final = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
POWERMETRICS: Final = ("powermetrics", "--samplers", "cpu_power,gpu_power,thermal", "-n", "1", "-i", "500")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Reading:
    """What was read at one moment. ``traffic``: bytes received and sent, by interface. ``disk``: free and size in bytes.

    ``at``: when the traffic was read, in seconds since 1970; None before the first reading.
    """

    sensors: Sensors = field(default_factory=Sensors)
    wired: int | None = None
    traffic: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    disk: tuple[int, int] | None = None
    at: float | None = None


class SensorReader:
    """``folder``: a folder on the volume with the models. ``root``: whether ``powermetrics`` may be used."""

    def __init__(self, host: Host, folder: Path, root: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._folder = folder
        self._root = root
        self._clock = clock
        self._asked = asyncio.Event()
        self._reading = Reading()
        self._read_at: float | None = None
        self._absent: dict[str, float] = {}
        self._disk: asyncio.Task[tuple[int, int]] | None = None

    def latest(self) -> Reading:
        """The last reading, unless it is old; requests another one."""
        self._asked.set()
        old = self._read_at is None or self._clock() - self._read_at > FRESH_SECONDS
        return Reading() if old else self._reading

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._asked.wait()
            await self.read()
            self._asked.clear()
            await asyncio.sleep(REST_SECONDS)

    async def read(self) -> None:
        """Reads everything once; at most five commands, one after the other."""
        sensors = await self._sensors()
        wired = await self._ask(("vm_stat",), parse_wired)
        traffic = await self._ask(("netstat", "-ib"), parse_traffic) or {}
        at = time.time()
        self._reading = Reading(sensors, wired, traffic, await self._space(), at)
        self._read_at = self._clock()

    async def _sensors(self) -> Sensors:
        found = await self._ask(MACMON, parse_macmon)
        more = await self._ask(POWERMETRICS, parse_powermetrics) if self._root else None
        if found is None and more is None:
            return await self._ask(IOREG, parse_ioreg) or Sensors()
        if found is None or more is None:
            return found or more or Sensors()
        return Sensors(found.gpu, {**more.watts, **found.watts}, found.celsius, more.pressure)

    async def _ask(self, argv: Sequence[str], parse: Callable[[str], Value]) -> Value | None:
        if self._clock() < self._absent.get(argv[0], 0.0):
            return None
        answer = await self._host.run(argv, COMMAND_SECONDS)
        if isinstance(answer, Failure):
            if answer.kind is FailureKind.ABSENT:
                self._absent[argv[0]] = self._clock() + ABSENT_SECONDS
            return None
        try:
            return parse(answer.text)
        except ParseError:
            return None

    async def _space(self) -> tuple[int, int] | None:
        """Free space and size of the volume. A volume that does not answer blocks one thread, and is not read again."""
        if self._disk is None:
            self._disk = asyncio.create_task(asyncio.to_thread(_space, self._folder))
        done, _ = await asyncio.wait([self._disk], timeout=COMMAND_SECONDS)
        if not done:
            return None
        task, self._disk = self._disk, None
        return None if task.exception() is not None else task.result()


def _space(folder: Path) -> tuple[int, int]:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
