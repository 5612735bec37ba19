"""Reads the machine: runs commands and reads /proc for the Node.

A machine is a Mac if it has the commands of one: a recorded Mac is a folder of such commands at the front of PATH, and the same
code reads both. Every command has a time limit and a fallback: a kubelet that waits for a hung command neglects its pods.
"""

import asyncio
import contextlib
import logging
import os
import platform
import re
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_kubelet.node.facts import Machine, Readings, go_architecture, meminfo, parse_sw_vers, wired_limit_bytes

log = logging.getLogger(__name__)

COMMAND_SECONDS = 2.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class Asker:
    """Runs the machine's commands, found through ``path`` before the system's own folders."""

    def __init__(self, path: Sequence[Path], seconds: float = COMMAND_SECONDS) -> None:
        self.search = os.pathsep.join([*(str(folder) for folder in path), os.environ.get("PATH", ""), SYSTEM_PATH])
        self.seconds = seconds

    def has(self, command: str) -> bool:
        return shutil.which(command, path=self.search) is not None

    async def ask(self, command: str, *arguments: str) -> str | None:
        """Standard output without trailing white space; None (and a line in the log) when it failed or took too long."""
        program = shutil.which(command, path=self.search)
        if program is None:
            return None
        said = " ".join([command, *arguments])
        environment = {"PATH": self.search, "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("%s: cannot be run: %s", said, error.strerror)
            return None
        try:
            out, err = await asyncio.wait_for(process.communicate(), self.seconds)
        except TimeoutError:
            log.warning("%s: no answer within %g s", said, self.seconds)
            return None
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
                # asyncio waits for whoever holds the command's streams, too: a child that left its group may, for ever.
                process._transport.close()  # type: ignore[attr-defined]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), COMMAND_SECONDS)
        if process.returncode:
            log.warning("%s: exit status %d: %s", said, process.returncode, err.decode("utf-8", "replace").strip()[:200])
            return None
        return out.decode("utf-8", "replace").rstrip()

    async def number(self, command: str, *arguments: str) -> int | None:
        text = await self.ask(command, *arguments)
        if text is None:
            return None
        match = re.match(r"-?\d+", text.strip())
        if match is None:
            log.warning("%s %s: %r is no number", command, " ".join(arguments), text[:80])
        return int(match[0]) if match else None


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, 9)
    except (ProcessLookupError, PermissionError):
        return


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _host_memory() -> int:
    total = meminfo(_read("/proc/meminfo")).get("MemTotal")
    if total:
        return total
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _os_release() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    return match[1] if match else platform.system()


def _own_id(root: Path) -> str:
    """A number of our own for a machine that tells none; kept in the kubelet's folder."""
    file = root / "machine-id"
    known = _read(str(file))
    if not known:
        known = uuid.uuid4().hex
        file.write_text(known + "\n")
    return known


def _disk_bytes(root: Path) -> int:
    disk = os.statvfs(root)
    return disk.f_blocks * disk.f_frsize


async def is_mac(asker: Asker) -> dict[str, str] | None:
    """What ``sw_vers`` says, on a Mac; None elsewhere."""
    if not asker.has("sw_vers"):
        return None
    text = await asker.ask("sw_vers")
    if text is None and sys.platform != "darwin":
        # A hung sw_vers still means a Mac: a Mac that registers as Linux would attract pods that cannot run on it.
        log.warning("sw_vers exists but does not answer; this is taken for a Mac of unknown version")
    return parse_sw_vers(text) if text else {}


async def look(asker: Asker, root: Path) -> Machine:
    """The machine's lasting facts. Never fails: what cannot be had falls back, with a line in the log."""
    version = await is_mac(asker)
    if version is not None:
        return await _look_at_mac(asker, root, version)
    return Machine(
        operating_system="linux",
        architecture=go_architecture(platform.machine()),
        cpus=os.cpu_count() or 1,
        memory_bytes=_host_memory(),
        disk_bytes=_disk_bytes(root),
        os_image=_os_release(),
        kernel_version=platform.release(),
        machine_id=_read("/etc/machine-id") or _own_id(root),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
    )


async def _look_at_mac(asker: Asker, root: Path, version: dict[str, str]) -> Machine:
    memory, cpus, limit = await asyncio.gather(
        asker.number("sysctl", "-n", "hw.memsize"),
        asker.number("sysctl", "-n", "hw.ncpu"),
        asker.number("sysctl", "-n", "iogpu.wired_limit_mb"),
    )
    chip, kernel, boot, registry = await asyncio.gather(
        asker.ask("sysctl", "-n", "machdep.cpu.brand_string"),
        asker.ask("sysctl", "-n", "kern.osrelease"),
        asker.ask("sysctl", "-n", "kern.bootsessionuuid"),
        asker.ask("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"),
    )
    if memory is None:
        memory = _host_memory()
        log.warning("sysctl hw.memsize: no answer; memory is taken to be %d MiB", memory // 1024**2)
    if cpus is None:
        cpus = os.cpu_count() or 1
        log.warning("sysctl hw.ncpu: no answer; %d CPUs are assumed", cpus)
    platform_id = re.search(r'"IOPlatformUUID" = "([^"]+)"', registry or "")
    words = [version.get("ProductName", "macOS"), version.get("ProductVersion", ""), version.get("BuildVersion", "")]
    return Machine(
        operating_system="darwin",
        architecture="arm64",
        cpus=cpus,
        memory_bytes=wired_limit_bytes(memory, limit),
        disk_bytes=_disk_bytes(root),
        os_image=" ".join(word for word in words if word),
        kernel_version=kernel or "unknown",
        machine_id=platform_id[1] if platform_id else _own_id(root),
        boot_id=boot or _read("/proc/sys/kernel/random/boot_id"),
        chip=chip or None,
    )


# kern.memorystatus_vm_pressure_level
PRESSURE_LEVELS = {1: "normal", 2: "warning", 4: "critical"}
# What Kubernetes' own kubelet starts to evict at.
MEMORY_FLOOR_BYTES = 100 * 1024**2


class Reader:
    """Reads what changes. Remembers which questions a machine cannot answer, and asks those no more."""

    def __init__(self, asker: Asker, root: Path, mac: bool) -> None:
        self.asker = asker
        self.root = root
        self._ask_pressure = mac
        self._limit: int | None = None

    async def read(self) -> Readings:
        short, text = await self._memory()
        free, total = self._disk()
        processes, limit = await self._processes()
        return Readings(short, text, free, total, processes, limit)

    async def _memory(self) -> tuple[bool | None, str]:
        if self._ask_pressure:
            level = await self.asker.number("sysctl", "-n", "kern.memorystatus_vm_pressure_level")
            if level in PRESSURE_LEVELS:
                return level == 4, f"macOS says memory pressure is {PRESSURE_LEVELS[level]}"
            if sys.platform != "darwin":
                self._ask_pressure = False
                log.warning("memory pressure is read from the machine that carries this recorded Mac")
        available = meminfo(_read("/proc/meminfo")).get("MemAvailable")
        if available is None:
            return None, "the machine does not say how much memory is free"
        # Rounded: a message that changes with every byte would be written again and again.
        short = available < MEMORY_FLOOR_BYTES
        return short, f"{'less than' if short else 'at least'} {MEMORY_FLOOR_BYTES // 1024**2} MiB are free"

    def _disk(self) -> tuple[int | None, int | None]:
        try:
            disk = os.statvfs(self.root)
        except OSError as error:
            log.warning("%s: free space cannot be read: %s", self.root, error.strerror)
            return None, None
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    async def _processes(self) -> tuple[int | None, int | None]:
        if sys.platform == "darwin":
            if self._limit is None:
                self._limit = await self.asker.number("sysctl", "-n", "kern.maxproc")
            listing = await self.asker.ask("ps", "-A", "-o", "pid=")
            return (len(listing.splitlines()) if listing else None), self._limit
        running = re.search(r"\d+/(\d+)", _read("/proc/loadavg"))
        limits = [int(text) for name in ("pid_max", "threads-max") if (text := _read(f"/proc/sys/kernel/{name}")).isdigit()]
        return (int(running[1]) if running else None), (min(limits) if limits else None)
