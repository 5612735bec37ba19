"""Chip, cores, memory and how much of it the GPU may use."""

from __future__ import annotations

from thunderfleet_crds.fields import binary_size
from thunderfleet_crds.nodeprofile import Hardware

from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers.hardware import whole_number

# By default macOS lets the GPU wire two thirds of the memory of a Mac up to this size, and three quarters of a larger one.
LARGE_MAC_BYTES = 36 * 2**30
MAX_CORES = 9999


def hardware(facts: Facts) -> Hardware | None:
    """The machine as `sysctl` and the hardware report describe it; None if neither answered."""
    report, sysctl = facts.hardware, facts.sysctl or {}
    memory = whole_number(sysctl, "hw.memsize") or (report.memory_bytes if report else None)
    limit = whole_number(sysctl, "iogpu.wired_limit_mb") or 0
    cores = whole_number(sysctl, "hw.ncpu")
    known = Hardware(
        model_identifier=report.model_identifier if report else None,
        chip=((report.chip if report else None) or sysctl.get("machdep.cpu.brand_string") or "")[:64] or None,
        cpu_cores=cores if cores and cores <= MAX_CORES else (report.cpu_cores if report else None),
        gpu_cores=facts.gpu_cores or None,
        memory_bytes=memory,
        gpu_memory_limit_bytes=gpu_memory_limit(memory, limit) if memory else None,
        memory=binary_size(memory) if memory else None,
    )
    return known if known != Hardware() else None


def gpu_memory_limit(memory_bytes: int, wired_limit_mb: int) -> int:
    """How many bytes the GPU may wire: ``iogpu.wired_limit_mb`` if it is set, else the default share of macOS."""
    if wired_limit_mb:
        return min(wired_limit_mb * 2**20, memory_bytes)
    return memory_bytes * 3 // 4 if memory_bytes > LARGE_MAC_BYTES else memory_bytes * 2 // 3


def virtual_model(facts: Facts) -> str | None:
    """The model identifier of a virtual machine, which has no Thunderbolt whatever its host has; None on a Mac."""
    model = (facts.hardware.model_identifier if facts.hardware else None) or ""
    return model if model.startswith("VirtualMac") else None
