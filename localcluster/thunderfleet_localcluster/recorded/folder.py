"""The folder of one recorded Mac: its commands, the texts that they print, and its JACCL.

Every file is replaced in one step, so a command that runs at that moment prints either the old text or the new one.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout
from thunderfleet_localcluster.machines import launchctl
from thunderfleet_localcluster.recorded import hardware, jaccl, network, rdma
from thunderfleet_localcluster.recorded.commands import commands, damaged
from thunderfleet_localcluster.recorded.files import replace_file
from thunderfleet_localcluster.recorded.thunderbolt import thunderbolt


def write_machine(layout: Layout, machine: MachineLayout, folder: Path, damage: Mapping[str, str] | None = None) -> None:
    """Write the commands of one Mac into ``folder``, and their texts beside it.

    ``damage``: the damaged commands and how (``actions.DAMAGES``).
    """
    texts_folder = folder.parent / "recorded"
    folder.mkdir(parents=True, exist_ok=True)
    texts_folder.mkdir(exist_ok=True)
    jaccl.write(layout, machine, jaccl.python_folder(folder))
    found = texts(layout, machine)
    for name, text in found.items():
        replace_file(texts_folder / name, text, 0o644)
    for path in texts_folder.glob("info.*"):
        # Texts of a network service that was deleted.
        if path.name not in found:
            path.unlink(missing_ok=True)
    client = [sys.executable, "-I", "-S", str(Path(launchctl.__file__))] if layout.mode == "namespaces" else []
    for name, script in commands(layout, machine, texts_folder, client).items():
        how = (damage or {}).get(name)
        if how is None:
            replace_file(folder / name, script, 0o755)
            continue
        whole = texts_folder / f"whole-{name}"
        replace_file(whole, script, 0o755)
        if how == "absent":
            (folder / name).unlink(missing_ok=True)
        else:
            replace_file(folder / name, damaged(name, whole, how), 0o755)


def as_json(report: Mapping[str, Any]) -> str:
    """JSON in the style of ``system_profiler``."""
    return json.dumps(report, indent=2, separators=(",", " : "), sort_keys=True, ensure_ascii=False) + "\n"


def texts(layout: Layout, machine: MachineLayout) -> dict[str, str]:
    """Content of every file that commands print, by file name."""
    found = rdma.devices(layout, machine)
    files = {
        "SPThunderboltDataType.json": as_json(thunderbolt(layout, machine)),
        "SPHardwareDataType.json": as_json(hardware.hardware(machine.machine)),
        "SPDisplaysDataType.json": as_json(hardware.displays(machine.machine)),
        "hardwareports": network.hardware_ports(machine),
        "serviceorder": network.service_order(machine),
        "services": network.service_list(machine),
        "netstat": network.netstat(machine),
        "vm_stat": hardware.vm_stat(machine.machine),
        "ibv_devices": rdma.ibv_devices(found),
        "rdma_ctl": "enabled\n" if machine.machine.rdma else "disabled\n",
    }
    for device in found:
        files[f"ibv_devinfo.{device.name}"] = rdma.ibv_devinfo(device, verbose=False)
        files[f"ibv_devinfo-v.{device.name}"] = rdma.ibv_devinfo(device, verbose=True)
    files |= {f"info.{service}": text for service, text in network.service_info(machine).items()}
    every = network.ifconfig(machine)
    files["ifconfig"] = "".join(every.values())
    files |= {f"ifconfig.{name}": text for name, text in every.items()}
    return files
