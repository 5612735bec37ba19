"""Reads the machine: runs commands and reads /proc for the Node.

A machine is a Mac if it has the commands of a Mac, unless its configuration says otherwise. A recorded Mac is a folder of such
commands at the front of PATH, and the same code reads both. Every command has a time limit and a fallback: a kubelet that waits
for a hung command neglects its pods.
"""

import asyncio
import logging
import os
import platform
import re
import sys
import uuid
from pathlib import Path

from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_kubelet.node.facts import Machine, Readings, go_architecture, meminfo, parse_sw_vers
from thunderfleet_kubelet.node.memory import WIRED_LIMIT, GpuMemory, host_memory

log = logging.getLogger(__name__)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _os_release() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    return match[1] if match else platform.system()


def _own_id(root: Path) -> str:
    """A random id for a machine without one, stored in the kubelet's folder."""
    file = root / "machine-id"
    known = _read(str(file))
    if not known:
        known = uuid.uuid4().hex
        file.write_text(known + "\n")
    return known


def _disk_bytes(root: Path) -> int:
    disk = os.statvfs(root)
    return disk.f_blocks * disk.f_frsize


def here() -> tuple[str, str]:
    """The platform whose programs run here, as Go names it. On a recorded Mac, that is the one below the recording."""
    return sys.platform, go_architecture(os.uname().machine)


async def is_mac(commands: Commands) -> dict[str, str] | None:
    """The output of ``sw_vers`` on a Mac; None on other machines."""
    if not commands.exists("sw_vers"):
        return None
    text = await commands.output("sw_vers")
    if text is None and sys.platform != "darwin":
        # Still a Mac: if it registered as Linux, it would get pods that cannot run on it.
        log.warning("sw_vers exists but failed; assuming a Mac of unknown version")
    return parse_sw_vers(text) if text else {}


async def look(commands: Commands, root: Path, operating_system: str | None = None, gpu: GpuMemory | None = None) -> Machine:
    """The machine's facts. Uses a fallback, and logs it, for everything that cannot be read.

    ``operating_system``: that of the Node; None: found out by its commands. ``gpu``: reads the GPU memory of a Mac.
    """
    version = await is_mac(commands)
    if operating_system == "darwin" or (operating_system is None and version is not None):
        return await _look_at_mac(commands, root, version or {}, gpu or GpuMemory(commands))
    return Machine(
        operating_system="linux",
        architecture=go_architecture(platform.machine()),
        cpus=os.cpu_count() or 1,
        memory_bytes=host_memory(),
        disk_bytes=_disk_bytes(root),
        os_image=_os_release(),
        kernel_version=platform.release(),
        machine_id=_read("/etc/machine-id") or _own_id(root),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
    )


async def _look_at_mac(commands: Commands, root: Path, version: dict[str, str], gpu: GpuMemory) -> Machine:
    values = await commands.variables("hw.ncpu", WIRED_LIMIT)
    memory, cpus = await gpu.read(values.get(WIRED_LIMIT)), values.get("hw.ncpu")
    chip, kernel, boot, registry = await asyncio.gather(
        commands.output("sysctl", "-n", "machdep.cpu.brand_string"),
        commands.output("sysctl", "-n", "kern.osrelease"),
        commands.output("sysctl", "-n", "kern.bootsessionuuid"),
        commands.output("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"),
    )
    if cpus is None:
        cpus = os.cpu_count() or 1
        log.warning("sysctl hw.ncpu failed; assuming %d CPUs", cpus)
    platform_id = re.search(r'"IOPlatformUUID" = "([^"]+)"', registry or "")
    words = [version.get("ProductName", "macOS"), version.get("ProductVersion", ""), version.get("BuildVersion", "")]
    return Machine(
        operating_system="darwin",
        architecture="arm64",
        cpus=cpus,
        memory_bytes=memory,
        disk_bytes=_disk_bytes(root),
        os_image=" ".join(word for word in words if word),
        kernel_version=kernel or "unknown",
        machine_id=platform_id[1] if platform_id else _own_id(root),
        boot_id=boot or _read("/proc/sys/kernel/random/boot_id"),
        chip=chip or None,
    )


PRESSURE = "kern.memorystatus_vm_pressure_level"
PRESSURE_LEVELS = {1: "normal", 2: "warning", 4: "critical"}
# The Kubernetes kubelet evicts below this.
MEMORY_FLOOR_BYTES = 100 * 1024**2


class Reader:
    """Reads the load of the machine. ``gpu``: of a Mac; followed if given."""

    def __init__(self, commands: Commands, mac: bool, gpu: GpuMemory | None = None) -> None:
        self.commands = commands
        self._gpu = gpu if mac else None
        self._has_pressure = mac
        self._limit: int | None = None

    async def read(self) -> Readings:
        """The current load."""
        # One process for both, because this is read continuously, also on an idle Mac.
        names = [PRESSURE] * self._has_pressure + [WIRED_LIMIT] * (self._gpu is not None)
        values = await self.commands.variables(*names) if names else {}
        short, text = self._memory(values.get(PRESSURE))
        processes, limit = await self._processes()
        memory = await self._gpu.read(values.get(WIRED_LIMIT)) if self._gpu else None
        return Readings(short, text, processes, limit, memory)

    def _memory(self, level: int | None) -> tuple[bool | None, str]:
        if self._has_pressure:
            if level in PRESSURE_LEVELS:
                return level == 4, f"macOS reports memory pressure {PRESSURE_LEVELS[level]}"
            if sys.platform != "darwin":
                self._has_pressure = False
                log.warning("the recording has no memory pressure; using the memory pressure of the host")
        available = meminfo(_read("/proc/meminfo")).get("MemAvailable")
        if available is None:
            return None, "available memory is unknown"
        # An exact number would cause a write of the status whenever it changes.
        short = available < MEMORY_FLOOR_BYTES
        return short, f"{'less than' if short else 'at least'} {MEMORY_FLOOR_BYTES // 1024**2} MiB are available"

    async def _processes(self) -> tuple[int | None, int | None]:
        if sys.platform == "darwin":
            if self._limit is None:
                self._limit = await self.commands.number("sysctl", "-n", "kern.maxproc")
            listing = await self.commands.output("ps", "-A", "-o", "pid=")
            return (len(listing.splitlines()) if listing else None), self._limit
        running = re.search(r"\d+/(\d+)", _read("/proc/loadavg"))
        limits = [int(text) for name in ("pid_max", "threads-max") if (text := _read(f"/proc/sys/kernel/{name}")).isdigit()]
        return (int(running[1]) if running else None), (min(limits) if limits else None)
