"""Memory and processor time of a cluster's processes, from Linux's ``/proc``.

On a machine without ``/proc`` nothing is measured and the benchmark reports this.
"""

import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PARTS = ("Rss", "Pss", "Anonymous", "Swap")
_PRESENT, _OF_FILE = 1 << 63, 1 << 61
"""Bits of an entry in ``/proc/PID/pagemap``."""
_PROGRAMS = (
    ("shim", re.compile(r"thunderfleet_kubelet[./]shim")),
    ("kubelet", re.compile(r"thunderfleet[-_]kubelet")),
    ("agent", re.compile(r"thunderfleet[-_]agent")),
    ("operator", re.compile(r"thunderfleet[-_]operator")),
    ("rank", re.compile(r"thunderfleet_runner\.rank")),
    ("supervisor", re.compile(r"thunderfleet[-_]runner.* serve|thunderfleet-runner serve")),
    ("local cluster", re.compile(r"thunderfleet_localcluster\.supervisor")),
    ("launchd", re.compile(r"thunderfleet_localcluster/machines/launchd")),
    ("control plane", re.compile(r"/(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)( |$)")),
)


@dataclass(frozen=True)
class Process:
    """A process of this machine."""

    pid: int
    parent: int
    command: str

    @property
    def program(self) -> str:
        """Our program that it runs; "" for any other."""
        return program_of(self.command)


@dataclass(frozen=True)
class Usage:
    """Memory in bytes, processor time in seconds; time of children that have ended and were waited for is included."""

    rss: int
    pss: int
    cpu_seconds: float
    private: int = 0
    """What is in no file: a system cannot drop it. macOS counts this alone (``phys_footprint``)."""


def program_of(command: str) -> str:
    """The program that a command line runs; "" when it is none of ours."""
    return next((name for name, pattern in _PROGRAMS if pattern.search(command)), "")


def descendants(root: int, processes: Iterable[Process]) -> list[Process]:
    """``root`` and all that descend from it."""
    known = {process.pid: process for process in processes}
    children: dict[int, list[int]] = {}
    for process in known.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in known:
            found.append(known[pid])
        waiting.extend(children.get(pid, []))
    return found


def parse_cpu_seconds(stat: str, ticks_per_second: int) -> float:
    """User and system time, its own and of its ended children, from ``/proc/PID/stat``."""
    fields = stat.rpartition(")")[2].split()
    # utime, stime, cutime, cstime are fields 14 to 17; the first of these here is field 3.
    return sum(int(value) for value in fields[11:15]) / ticks_per_second


def parse_memory(rollup: str) -> tuple[int, int, int]:
    """Resident, proportional and private bytes from ``/proc/PID/smaps_rollup``. Raises ValueError when it has no values."""
    found: dict[str, int] = {}
    for line in rollup.splitlines():
        name, _, rest = line.partition(":")
        if name in _PARTS:
            found[name] = int(rest.split()[0]) * 1024
    if set(found) != set(_PARTS):
        raise ValueError(f"smaps_rollup does not have all of {', '.join(_PARTS)}")
    return found["Rss"], found["Pss"], found["Anonymous"] + found["Swap"]


def parse_mappings(maps: str) -> list[tuple[int, int, tuple[str, str], int]]:
    """The mappings of files in ``/proc/PID/maps``: first address, address behind the last, file, and offset in the file."""
    found = []
    for line in maps.splitlines():
        addresses, _, offset, device, inode = line.split()[:5]
        if inode != "0":
            start, end = (int(text, 16) for text in addresses.split("-"))
            found.append((start, end, (device, inode), int(offset, 16)))
    return found


def resident_pages(entries: Iterable[int], file: tuple[str, str], first: int) -> Iterator[tuple[tuple[str, str], int]]:
    """The pages of ``file`` that are in memory and not changed, of a mapping from page ``first`` on.

    ``entries``: the mapping's in ``/proc/PID/pagemap``.
    """
    for number, entry in enumerate(entries, first):
        if entry & _PRESENT and entry & _OF_FILE:
            yield file, number


def together(pids: Iterable[int]) -> int | None:
    """Bytes that these processes take of one machine: what is private of each, and each page of a file once.

    None if one has gone.
    """
    size, private, shared = os.sysconf("SC_PAGE_SIZE"), 0, set[tuple[tuple[str, str], int]]()
    for pid in pids:
        used = usage(pid)
        if used is None:
            return None
        private += used.private
        try:
            mappings = parse_mappings((PROC / str(pid) / "maps").read_text())
            with (PROC / str(pid) / "pagemap").open("rb") as pagemap:
                for start, end, file, offset in mappings:
                    pagemap.seek(start // size * 8)
                    shared.update(resident_pages(array("Q", pagemap.read((end - start) // size * 8)), file, offset // size))
        except OSError:
            return None
    return private + len(shared) * size


def all_processes() -> list[Process]:
    """Every process that /proc shows; one that ends meanwhile is left out."""
    found = []
    for entry in os.listdir(PROC):
        if not entry.isdigit():
            continue
        try:
            stat = (PROC / entry / "stat").read_text()
            command = (PROC / entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        found.append(Process(int(entry), int(stat.rpartition(")")[2].split()[1]), command))
    return found


def usage(pid: int) -> Usage | None:
    """None when the process has gone."""
    try:
        rss, pss, private = parse_memory((PROC / str(pid) / "smaps_rollup").read_text())
        cpu = parse_cpu_seconds((PROC / str(pid) / "stat").read_text(), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError):
        return None
    return Usage(rss, pss, cpu, private)


def idle_share(before: Mapping[int, Usage], after: Mapping[int, Usage], seconds: float) -> dict[int, float]:
    """Percent of a core that each process took, of those that were there all the time."""
    return {pid: 100 * (after[pid].cpu_seconds - before[pid].cpu_seconds) / seconds for pid in before if pid in after}
