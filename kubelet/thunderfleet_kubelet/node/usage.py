"""CPU time and memory that everything on this machine uses: from ``/proc`` on Linux, from the Mach kernel on macOS."""

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.node.facts import meminfo

# mach/host_info.h
HOST_CPU_LOAD_INFO, HOST_VM_INFO64 = 3, 4


def machine_usage() -> tuple[float, int] | None:
    """CPU seconds since boot, and bytes of memory in use; None if the system does not report it."""
    try:
        return _from_mach() if sys.platform == "darwin" else _from_proc()
    except (OSError, ValueError, KeyError):
        return None


def _from_proc() -> tuple[float, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    memory = meminfo(Path("/proc/meminfo").read_text())
    # user nice system idle iowait irq softirq steal; guest time is counted in user already
    busy = sum(fields[:3]) + sum(fields[5:8])
    return busy / os.sysconf("SC_CLK_TCK"), memory["MemTotal"] - memory["MemAvailable"]


class CpuLoad(ctypes.Structure):
    """``host_cpu_load_info``: ticks of all processors together."""

    _fields_ = (("user", ctypes.c_uint), ("system", ctypes.c_uint), ("idle", ctypes.c_uint), ("nice", ctypes.c_uint))


class VirtualMemory(ctypes.Structure):
    """``vm_statistics64`` up to the field that all versions of macOS have; sizes in pages."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("free", "active", "inactive", "wired")),
        *((name, ctypes.c_uint64) for name in ("zero_filled", "reactivations", "pageins", "pageouts", "faults", "cow_faults")),
        *((name, ctypes.c_uint64) for name in ("lookups", "hits", "purges")),
        *((name, ctypes.c_uint) for name in ("purgeable", "speculative")),
        *((name, ctypes.c_uint64) for name in ("decompressions", "compressions", "swapins", "swapouts")),
        *((name, ctypes.c_uint) for name in ("compressor", "throttled", "external", "internal")),
        ("in_compressor", ctypes.c_uint64),
    )


def _from_mach() -> tuple[float, int]:
    load, memory = CpuLoad(), VirtualMemory()
    _ask("host_statistics", HOST_CPU_LOAD_INFO, load)
    _ask("host_statistics64", HOST_VM_INFO64, memory)
    used = memory.active + memory.wired + memory.compressor
    return (load.user + load.system + load.nice) / os.sysconf("SC_CLK_TCK"), used * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _mach() -> tuple[Any, int]:
    """The system's library, and the port of the host: each call of ``mach_host_self`` would take another reference to it."""
    library = ctypes.CDLL(None)
    return library, library.mach_host_self()


def _ask(function: str, flavor: int, answer: ctypes.Structure) -> None:
    """Fills ``answer``. Raises OSError."""
    library, host = _mach()
    count = ctypes.c_uint(ctypes.sizeof(answer) // ctypes.sizeof(ctypes.c_uint))
    code = getattr(library, function)(host, flavor, ctypes.byref(answer), ctypes.byref(count))
    if code != 0:
        raise OSError(f"{function} failed with Mach error {code}")
