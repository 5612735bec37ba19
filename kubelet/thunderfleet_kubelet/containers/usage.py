"""CPU and memory of containers: the sum over the processes that have the container's marker in their environment.

Read from ``/proc`` on Linux and from ``ps`` on macOS.
"""

import os
import re
import subprocess

from thunderfleet_kubelet.shim.processes import MARKER_VARIABLE

PS_SECONDS = 10.0


def by_marker(markers: set[str]) -> dict[str, tuple[float, int]]:
    """(CPU seconds, resident bytes) of each container, summed over its live processes. ``markers``: sandbox folders."""
    if not markers:
        return {}
    return _from_proc(markers) if os.path.exists("/proc/self/stat") else _from_ps(markers)


def _from_proc(markers: set[str]) -> dict[str, tuple[float, int]]:
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    prefix = f"{MARKER_VARIABLE}=".encode()
    sums: dict[str, tuple[float, int]] = {}
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
        cpu, memory = sums.get(marker, (0.0, 0))
        sums[marker] = (cpu + (int(fields[11]) + int(fields[12])) / ticks, memory + int(fields[21]) * page)
    return sums


def _from_ps(markers: set[str]) -> dict[str, tuple[float, int]]:
    output = subprocess.run(
        ["/bin/ps", "-axEww", "-o", "rss=,time=,command="], capture_output=True, timeout=PS_SECONDS, check=False
    ).stdout.decode("utf-8", "replace")
    return parse_ps(output, markers)


def parse_ps(output: str, markers: set[str]) -> dict[str, tuple[float, int]]:
    """The sums from the output of ``ps -axEww -o rss=,time=,command=`` (memory in KiB, time as ``[[dd-]hh:]mm:ss.ss``)."""
    pattern = re.compile(rf"\s{MARKER_VARIABLE}=(\S+)")
    sums: dict[str, tuple[float, int]] = {}
    for line in output.splitlines():
        fields, found = line.split(None, 2), pattern.search(line)
        if len(fields) < 3 or not found or found[1] not in markers or not fields[0].isdigit():
            continue
        days, _, clock = fields[1].rpartition("-")
        seconds = 0.0
        for part in clock.split(":"):
            seconds = seconds * 60 + float(part)
        seconds += 86400 * int(days or 0)
        cpu, memory = sums.get(found[1], (0.0, 0))
        sums[found[1]] = (cpu + seconds, memory + int(fields[0]) * 1024)
    return sums
