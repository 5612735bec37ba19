"""The recorded JACCL of a Mac: a folder for PYTHONPATH, with what that Mac's devices and cables are.

The modules themselves (in ``python/``) are copied, because pods may not be able to read the sources and because what they are
told to fail in (``control.json``) lies beside them.
"""

import json
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.layout import Layout, MachineLayout
from thunderfleet_localcluster.recorded import rdma


def python_folder(commands: Path) -> Path:
    """What belongs on PYTHONPATH of a Mac whose commands are in the folder ``commands``, if it has a recorded JACCL."""
    return commands.parent / "python"


def write(layout: Layout, machine: MachineLayout, folder: Path) -> None:
    """Writes the recorded JACCL of one Mac into ``folder``, each file in one step. ``control.json`` is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {path.name: path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "python").glob("*.py")}
    files["jaccl.json"] = json.dumps(record(layout, machine), indent=2) + "\n"
    for name, text in files.items():
        fresh = folder / f".{name}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o644)
        fresh.replace(folder / name)


def record(layout: Layout, machine: MachineLayout) -> dict[str, Any]:
    """What the recorded JACCL knows of this Mac's devices: their state, their address, and the one at the cable's other end."""
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
    return {"machine": machine.name, "devices": known}
