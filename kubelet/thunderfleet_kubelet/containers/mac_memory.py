"""The memory that macOS attributes to a process: its footprint, as Activity Monitor shows it, and the GPU's part of it.

The resident size does not include buffers of Metal: ``ps`` shows about 30 MB for a process with a 14 GB model. Root may query
every process, other users about their own. The port of a task's name is enough for that; it gives no access to the task.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

TASK_VM_INFO = 22


@dataclass(frozen=True)
class Charged:
    """In bytes. ``footprint``: private pages (compressed ones included) and those of the GPU. ``gpu``: the part of the GPU."""

    footprint: int
    gpu: int


class TaskVmInfo(ctypes.Structure):
    """``task_vm_info`` (mach/task_info.h) up to its third revision, which all versions of macOS for Apple silicon have."""

    _fields_ = (
        ("virtual_size", ctypes.c_uint64),
        ("region_count", ctypes.c_int),
        ("page_size", ctypes.c_int),
        *((name, ctypes.c_uint64) for name in ("resident_size", "resident_size_peak", "device", "device_peak")),
        *((name, ctypes.c_uint64) for name in ("internal", "internal_peak", "external", "external_peak")),
        *((name, ctypes.c_uint64) for name in ("reusable", "reusable_peak")),
        *((f"purgeable_volatile_{name}", ctypes.c_uint64) for name in ("pmap", "resident", "virtual")),
        *((name, ctypes.c_uint64) for name in ("compressed", "compressed_peak", "compressed_lifetime", "phys_footprint")),
        *((name, ctypes.c_uint64) for name in ("min_address", "max_address")),
        ("ledger_phys_footprint_peak", ctypes.c_int64),
        *((f"ledger_purgeable_{name}", ctypes.c_int64) for name in ("nonvolatile", "nonvolatile_compressed")),
        *((f"ledger_purgeable_{name}", ctypes.c_int64) for name in ("volatile", "volatile_compressed")),
        *((f"ledger_tag_network_{name}", ctypes.c_int64) for name in ("nonvolatile", "nonvolatile_compressed")),
        *((f"ledger_tag_network_{name}", ctypes.c_int64) for name in ("volatile", "volatile_compressed")),
        *(
            (f"ledger_tag_{tag}_{name}", ctypes.c_int64)
            for tag in ("media", "graphics", "neural")
            for name in ("footprint", "footprint_compressed", "nofootprint", "nofootprint_compressed")
        ),
    )


def charged(pid: int) -> Charged | None:
    """The memory of the process; None if it has ended or this user may not query it."""
    library, own = _mach()
    port = ctypes.c_uint(0)
    if library.task_name_for_pid(own, pid, ctypes.byref(port)) != 0:
        return None
    found = TaskVmInfo()
    count = ctypes.c_uint(ctypes.sizeof(found) // ctypes.sizeof(ctypes.c_uint))
    try:
        if library.task_info(port, TASK_VM_INFO, ctypes.byref(found), ctypes.byref(count)) != 0:
            return None
    finally:
        # Ports are references, and their number for each process is limited.
        library.mach_port_deallocate(own, port)
    gpu = found.ledger_tag_graphics_footprint + found.ledger_tag_graphics_footprint_compressed
    return Charged(found.phys_footprint, max(0, gpu))


@functools.cache
def _mach() -> tuple[Any, int]:
    """The system's library, and the port of this process."""
    library = ctypes.CDLL(None)
    return library, library.mach_task_self()
