"""What ``system_profiler SPHardwareDataType`` and ``SPDisplaysDataType``, ``sysctl``, ``sw_vers`` and ``vm_stat`` print."""

import hashlib
import uuid
from typing import Any

from thunderfleet_localcluster.fleet.layout import port_uuid
from thunderfleet_localcluster.fleet.spec import Machine

PAGE = 16384


def memory_gib(machine: Machine) -> int:
    """Unified memory in GiB: the fleet file's, else the model's smallest."""
    return machine.memory or machine.mac.memory_gib[0]


def hardware(machine: Machine) -> dict[str, Any]:
    """``system_profiler SPHardwareDataType -json``."""
    mac = machine.mac
    return {
        "SPHardwareDataType": [
            {
                "_name": "hardware_overview",
                "activation_lock_status": "activation_lock_disabled",
                "boot_rom_version": "18000.121.3",
                "chip_type": mac.chip,
                "machine_model": mac.identifier,
                "machine_name": mac.product,
                "number_processors": mac.cores if mac.virtual else f"proc {mac.cores}:{mac.perf_cores}:{mac.eff_cores}:0",
                "os_loader_version": "18000.121.3",
                "physical_memory": f"{memory_gib(machine)} GB",
                "platform_UUID": port_uuid(machine.name, 0, "platform"),
                "provisioning_UDID": "00000000-0000000000000000",
                "serial_number": hashlib.sha256(f"serial/{machine.name}".encode()).hexdigest()[:10].upper(),
            }
        ]
    }


def displays(machine: Machine) -> dict[str, Any]:
    """``system_profiler SPDisplaysDataType -json``: the GPU, and no screen."""
    mac = machine.mac
    if mac.virtual:
        return {"SPDisplaysDataType": []}
    return {
        "SPDisplaysDataType": [
            {
                "_name": mac.chip,
                "spdisplays_mtlgpufamilysupport": "spdisplays_metal4",
                "spdisplays_vendor": "sppci_vendor_Apple",
                "sppci_bus": "spdisplays_builtin",
                "sppci_cores": str(mac.gpu_cores),
                "sppci_device_type": "spdisplays_gpu",
                "sppci_model": mac.chip,
            }
        ]
    }


def sysctl(machine: Machine, boots: int = 0) -> dict[str, str]:
    """Key → value, in the order of ``sysctl -a``."""
    mac = machine.mac
    return {
        "kern.ostype": "Darwin",
        "kern.osrelease": darwin(machine.os),
        "kern.osversion": machine.build,
        "kern.osproductversion": machine.os,
        "kern.hostname": f"{machine.name}.local",
        "kern.bootsessionuuid": str(
            uuid.uuid5(uuid.NAMESPACE_DNS, f"boot/{machine.name}" + (f"/{boots}" if boots else ""))
        ).upper(),
        "kern.maxproc": "4000",
        "kern.memorystatus_vm_pressure_level": "1",
        "kern.memorystatus_level": "92",
        "hw.ncpu": str(mac.cores),
        "hw.memsize": str(memory_gib(machine) << 30),
        "hw.pagesize": str(PAGE),
        "hw.model": mac.identifier,
        "hw.physicalcpu": str(mac.cores),
        "hw.logicalcpu": str(mac.cores),
        "hw.nperflevels": "2",
        "hw.perflevel0.physicalcpu": str(mac.perf_cores),
        "hw.perflevel0.logicalcpu": str(mac.perf_cores),
        "hw.perflevel0.l1icachesize": "196608",
        "hw.perflevel0.l1dcachesize": "131072",
        "hw.perflevel0.l2cachesize": "16777216",
        "hw.perflevel0.name": "Performance",
        "hw.perflevel1.physicalcpu": str(mac.eff_cores),
        "hw.perflevel1.logicalcpu": str(mac.eff_cores),
        "hw.perflevel1.l1icachesize": "131072",
        "hw.perflevel1.l1dcachesize": "65536",
        "hw.perflevel1.l2cachesize": "4194304",
        "hw.perflevel1.name": "Efficiency",
        "hw.optional.arm64": "1",
        "machdep.cpu.brand_string": mac.chip,
        "machdep.cpu.core_count": str(mac.cores),
        "iogpu.wired_limit_mb": str(machine.wired_limit_mb),
    }


def darwin(version: str) -> str:
    """The kernel's version of a macOS: 26.3 is Darwin 25.3.0, 15.5 was Darwin 24.5.0 (numbers jumped from 15 to 26)."""
    major, minor = ([int(part) for part in version.split(".")] + [0])[:2]
    return f"{major - 1 if major >= 26 else major + 9}.{minor}.0"


def vm_stat(machine: Machine) -> str:
    """``vm_stat`` of a Mac that has nothing to do: most of its memory is free."""
    pages = (memory_gib(machine) << 30) // PAGE
    parts = {
        "Pages free": pages * 80 // 100,
        "Pages active": pages * 6 // 100,
        "Pages inactive": pages * 6 // 100,
        "Pages speculative": pages // 100,
        "Pages throttled": 0,
        "Pages wired down": pages * 5 // 100,
        "Pages purgeable": 9322,
        '"Translation faults"': 4063523,
        "Pages copy-on-write": 105311,
        "Pages zero filled": 2093211,
        "Pages reactivated": 1203,
        "Pages purged": 301,
        "File-backed pages": pages * 7 // 100,
        "Anonymous pages": pages * 6 // 100,
        "Pages stored in compressor": 0,
        "Pages occupied by compressor": 0,
        "Decompressions": 0,
        "Compressions": 0,
        "Pageins": 330221,
        "Pageouts": 0,
        "Swapins": 0,
        "Swapouts": 0,
    }
    lines = [f"{key + ':':<32}{str(value) + '.':>17}" for key, value in parts.items()]
    return f"Mach Virtual Memory Statistics: (page size of {PAGE} bytes)\n" + "\n".join(lines) + "\n"


def sw_vers(machine: Machine) -> dict[str, str]:
    """Option of ``sw_vers`` → value."""
    return {"ProductName": "macOS", "ProductVersion": machine.os, "BuildVersion": machine.build}
