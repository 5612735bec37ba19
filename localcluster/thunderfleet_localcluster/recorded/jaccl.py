"""Modifications of MLX on a recorded Mac: a folder for PYTHONPATH with the modules and the Mac's devices and cables.

The modules in ``python/`` are copied, because pods may not be able to read the sources and because the control file, which sets
where a recorded JACCL fails, is beside them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout
from thunderfleet_localcluster.recorded import rdma
from thunderfleet_localcluster.recorded.files import replace_file

MODULES = Path(__file__).parent / "python"
"""The sources of what is copied. On PYTHONPATH itself, it gives MLX no JACCL."""


def python_folder(commands: Path) -> Path:
    """The PYTHONPATH folder of the Mac whose commands are in the folder ``commands``."""
    return commands.parent / "python"


def write(layout: Layout, machine: MachineLayout, folder: Path) -> None:
    """Write the modules into ``folder``, and the recorded JACCL of a Mac that has one. The control file stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in MODULES.glob("*.py"):
        replace_file(folder / path.name, path.read_text(encoding="utf-8"), 0o644)
    if machine.machine.jaccl == "recorded":
        replace_file(folder / "jaccl.json", json.dumps(record(layout, machine), indent=2) + "\n", 0o644)


def write_control(points: Sequence[Mapping[str, object]], folder: Path) -> None:
    """Make this Mac's JACCL fail at ``points`` (checked by ``checked_points``) from now on; nowhere if there are none."""
    file = folder / "control.json"
    if points:
        replace_file(file, json.dumps({"points": list(points)}) + "\n", 0o644)
    else:
        file.unlink(missing_ok=True)


def write_disk(seconds: float, folder: Path) -> None:
    """Have each process that reads weights with MLX on this Mac take ``seconds`` longer; 0: as long as it takes."""
    file = folder / "disk.json"
    if seconds:
        replace_file(file, json.dumps({"seconds": seconds}) + "\n", 0o644)
    else:
        file.unlink(missing_ok=True)


def record(layout: Layout, machine: MachineLayout) -> dict[str, Any]:
    """The devices and memory that MLX finds on this Mac.

    The memory of the GPU (0: no GPU), and the devices with state, address, and the address at the other end of the cable.
    """
    known: dict[str, Any] = {}
    for device in rdma.devices(layout, machine):
        end = machine.end(device.number)
        other = layout.machine(end.peer).end(end.peer_port) if end else None
        known[device.name] = {
            "number": device.number,
            "active": device.active,
            "address": str(device.address.ip) if device.address else None,
            "peer": str(other.address.ip) if other and other.address else None,
        }
    memory = (machine.machine.gpu_memory_mb or 0) * 1024**2
    return {"machine": machine.name, "devices": known, "gpuMemoryBytes": memory}
