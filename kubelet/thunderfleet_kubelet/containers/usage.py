"""CPU and memory of containers: the sum over the processes that have the container's marker in their environment.

Read from ``/proc`` on Linux and from ``ps`` on macOS, which hides the environment of Apple binaries: there, members of the main
process's group and descendants belong to a container too.
"""

import os
import re
import subprocess
from collections.abc import Container, Mapping

from thunderfleet_kubelet.shim.processes import MARKER_VARIABLE

PS_SECONDS = 10.0


def by_marker(groups: Mapping[str, int]) -> dict[str, tuple[float, int]]:
    """(CPU seconds, resident bytes) of each container, summed over its live processes.

    ``groups``: the process group of each container's main process, by sandbox folder.
    """
    if not groups:
        return {}
    return _from_proc(groups) if os.path.exists("/proc/self/stat") else _from_ps(groups)


def _from_proc(markers: Container[str]) -> dict[str, tuple[float, int]]:
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


def _from_ps(groups: Mapping[str, int]) -> dict[str, tuple[float, int]]:
    output = subprocess.run(
        ["/bin/ps", "-axEww", "-o", "pid=,ppid=,pgid=,rss=,time=,command="],
        capture_output=True,
        timeout=PS_SECONDS,
        check=False,
    ).stdout.decode("utf-8", "replace")
    return parse_ps(output, groups)


def parse_ps(output: str, groups: Mapping[str, int]) -> dict[str, tuple[float, int]]:
    """The sums from the output of ``ps -axEww -o pid=,ppid=,pgid=,rss=,time=,command=`` (memory in KiB)."""
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
    sums: dict[str, tuple[float, int]] = {}
    for pid, marker in owners.items():
        cpu, memory = sums.get(marker, (0.0, 0))
        sums[marker] = (cpu + _seconds(rows[pid][4]), memory + int(rows[pid][3]) * 1024)
    return sums


def _seconds(text: str) -> float:
    """The column ``time`` of ``ps``: ``[[dd-]hh:]mm:ss.ss``."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + 86400 * int(days or 0)
