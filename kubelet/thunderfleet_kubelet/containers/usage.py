"""CPU and memory of containers: the sum over the processes that have the container's marker in their environment.

Read from ``/proc`` on Linux. On macOS from ``ps``, which hides the environment of Apple binaries: there, members of the main
process's group and descendants belong to a container too. ``ps`` does not count the GPU's memory, so the kernel's figures are
read.
"""

import os
import re
import subprocess
from collections.abc import Container, Mapping
from dataclasses import dataclass

from thunderfleet_kubelet.containers import mac_memory
from thunderfleet_kubelet.shim.processes import MARKER_VARIABLE

PS_SECONDS = 10.0


@dataclass(frozen=True)
class Usage:
    """CPU time and memory of live processes. Memory is in bytes.

    ``memory``: resident memory on Linux. On macOS, the footprint, which includes compressed pages
    and those of the GPU. ``gpu``: the GPU's part of it; None where the system does not report it.
    """

    cpu_seconds: float = 0.0
    resident: int = 0
    memory: int = 0
    gpu: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        known = [one for one in (self.gpu, other.gpu) if one is not None]
        return Usage(
            self.cpu_seconds + other.cpu_seconds,
            self.resident + other.resident,
            self.memory + other.memory,
            sum(known) if known else None,
        )


def by_marker(groups: Mapping[str, int]) -> dict[str, Usage]:
    """What each container uses, summed over its live processes.

    ``groups``: the process group of each container's main process, by sandbox folder.
    """
    if not groups:
        return {}
    return _from_proc(groups) if os.path.exists("/proc/self/stat") else _from_ps(groups)


def _from_proc(markers: Container[str]) -> dict[str, Usage]:
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    prefix = f"{MARKER_VARIABLE}=".encode()
    sums: dict[str, Usage] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                words = file.read().split(b"\0")
            marker = next((os.fsdecode(word[len(prefix) :]) for word in words if word.startswith(prefix)), "")
            if marker not in markers:
                continue
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        resident = int(fields[21]) * page
        found = Usage((int(fields[11]) + int(fields[12])) / ticks, resident, resident)
        sums[marker] = sums.get(marker, Usage()) + found
    return sums


def _from_ps(groups: Mapping[str, int]) -> dict[str, Usage]:
    output = subprocess.run(
        ["/bin/ps", "-axEww", "-o", "pid=,ppid=,pgid=,rss=,time=,command="],
        capture_output=True,
        timeout=PS_SECONDS,
        check=False,
    ).stdout.decode("utf-8", "replace")
    sums: dict[str, Usage] = {}
    for pid, (marker, cpu, resident) in parse_ps(output, groups).items():
        charged = mac_memory.charged(pid)
        memory, gpu = (resident, None) if charged is None else (charged.footprint, charged.gpu)
        sums[marker] = sums.get(marker, Usage()) + Usage(cpu, resident, memory, gpu)
    return sums


def parse_ps(output: str, groups: Mapping[str, int]) -> dict[int, tuple[str, float, int]]:
    """Container, CPU seconds and resident bytes of each process of ``groups``, by pid.

    ``output``: of ``ps -axEww -o pid=,ppid=,pgid=,rss=,time=,command=`` (memory in KiB).
    """
    pattern = re.compile(rf"\s{MARKER_VARIABLE}=(\S+)")
    of_group = {group: marker for marker, group in groups.items() if group}
    rows: dict[int, list[str]] = {}
    owners: dict[int, str] = {}
    for line in output.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not all(field.isdigit() for field in fields[:4]):
            continue
        pid, found = int(fields[0]), pattern.search(line)
        rows[pid] = fields
        marker = found[1] if found else of_group.get(int(fields[2]), "")
        if marker in groups:
            owners[pid] = marker
    fresh = owners
    while fresh:
        fresh = {pid: fresh[int(row[1])] for pid, row in rows.items() if int(row[1]) in fresh and pid not in owners}
        owners |= fresh
    return {pid: (marker, _seconds(rows[pid][4]), int(rows[pid][3]) * 1024) for pid, marker in owners.items()}


def _seconds(text: str) -> float:
    """The column ``time`` of ``ps``: ``[[dd-]hh:]mm:ss.ss``."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + 86400 * int(days or 0)
