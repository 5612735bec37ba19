"""Chip, cores, memory and how much of it the GPU may use."""

from __future__ import annotations

from thunderfleet_crds.kinds.nodeprofile import Hardware
from thunderfleet_crds.meta.fields import binary_size
from thunderfleet_lib.host.gpu_memory import gpu_memory_limit

from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers.hardware import whole_number

MAX_CORES = 9999


def hardware(facts: Facts) -> Hardware | None:
    """The machine as `sysctl`, the hardware report and MLX describe it; None if neither of the first two answered."""
    report, sysctl = facts.hardware, facts.sysctl or {}
    memory = whole_number(sysctl, "hw.memsize") or (report.memory_bytes if report else None)
    limit = whole_number(sysctl, "iogpu.wired_limit_mb")
    cores = whole_number(sysctl, "hw.ncpu")
    known = Hardware(
        model_identifier=report.model_identifier if report else None,
        chip=((report.chip if report else None) or sysctl.get("machdep.cpu.brand_string") or "")[:64] or None,
        cpu_cores=cores if cores and cores <= MAX_CORES else (report.cpu_cores if report else None),
        gpu_cores=facts.gpu_cores or None,
        memory_bytes=memory,
        gpu_memory_limit_bytes=gpu_memory_limit(memory, limit, facts.gpu_memory) if memory else None,
        memory=binary_size(memory) if memory else None,
    )
    return known if known != Hardware() else None


def virtual_model(facts: Facts) -> str | None:
    """The model identifier of a virtual machine, which never has Thunderbolt; None on a physical Mac."""
    model = (facts.hardware.model_identifier if facts.hardware else None) or ""
    return model if model.startswith("VirtualMac") else None
