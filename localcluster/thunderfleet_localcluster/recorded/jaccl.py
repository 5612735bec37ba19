"""The recorded JACCL of a Mac: a folder for PYTHONPATH, with what that Mac's devices and cables are.

The modules themselves (in ``python/``) are copied, because pods may not be able to read the sources and because what they are
told to fail in (``control.json``) lies beside them.
"""

import json
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout
from thunderfleet_localcluster.recorded import rdma

POINTS = (
    "find_device",
    "open_device",
    "protection_domain",
    "completion_queue",
    "queue_pair",
    "memory_region",
    "init",
    "gid",
    "rtr",
    "rts",
    "barrier",
    "send",
    "recv",
)
"""Where it can be told to fail, in order; those of ``python/recorded_jaccl.py``."""
POINT_KEYS = ("at", "errno", "device", "attempts", "delaySeconds", "hang", "fail")


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


def write_control(points: object, folder: Path) -> None:
    """What this Mac's JACCL is to fail in from now on, in one step; nothing when ``points`` is empty. Each is one entry of
    ``control.json`` (see ``python/recorded_jaccl.py``). Raises LocalClusterError for what that would not understand.
    """
    file = folder / "control.json"
    if not points:
        file.unlink(missing_ok=True)
        return
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise LocalClusterError('JACCL\'s points are a JSON list such as [{"at": "rtr", "errno": 96}]', usage=True)
    for point in points:
        if point.get("at") not in POINTS:
            raise LocalClusterError(f"JACCL has no point {point.get('at')!r}; it has {', '.join(POINTS)}", usage=True)
        if unknown := set(point) - set(POINT_KEYS):
            raise LocalClusterError(f"a point has no {', '.join(sorted(unknown))}; it has {', '.join(POINT_KEYS)}", usage=True)
    fresh = folder / ".control.json.new"
    fresh.write_text(json.dumps({"points": points}) + "\n", encoding="utf-8")
    fresh.chmod(0o644)
    fresh.replace(file)


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
