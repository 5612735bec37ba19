"""``system_profiler SPHardwareDataType -json``, ``sysctl`` and ``sw_vers``: the machine, its limits, its system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from thunderfleet_agent.parsers import ParseError, clean, report

HARDWARE_COMMAND = ("system_profiler", "SPHardwareDataType", "-json")
SYSCTL_COMMAND = ("sysctl", "machdep.cpu.brand_string", "hw.memsize", "hw.ncpu", "iogpu.wired_limit_mb")
SW_VERS_COMMAND = ("sw_vers",)

_UNITS = {"T": 2**40, "G": 2**30, "M": 2**20}
_MEMORY = re.compile(r"^\s*(\d{1,6})\s*([TGM])[A-Za-z]{0,2}\s*$")
_CORES = re.compile(r"^\s*(?:proc\s+)?(\d{1,4})\b")
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Hardware:
    """What the hardware report says: Apple's model identifier, chip, CPU cores, memory in bytes."""

    model_identifier: str | None = None
    chip: str | None = None
    cpu_cores: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class System:
    """macOS' version and build."""

    version: str | None = None
    build: str | None = None


def parse_hardware(text: str) -> Hardware:
    """Raises ParseError when the report is not there or says nothing that is known."""
    name = " ".join(HARDWARE_COMMAND)
    for section in report(name, text, "SPHardwareDataType"):
        found = Hardware(
            model_identifier=clean(section.get("machine_model"), 64),
            chip=clean(section.get("chip_type"), 64) or clean(section.get("cpu_type"), 64),
            cpu_cores=_cores(section.get("number_processors")),
            memory_bytes=_memory(section.get("physical_memory")),
        )
        if found != Hardware():
            return found
    raise ParseError(name, "describes no machine")


def parse_sysctl(text: str) -> Mapping[str, str]:
    """``name: value`` (or ``name = value``) lines as a mapping; unknown lines are passed over. Raises ParseError for none."""
    values = {}
    for line in text.splitlines():
        match = re.match(r"^([A-Za-z][\w.]*)\s*[:=]\s*(.*)$", line.strip())
        if match:
            values[match.group(1)] = clean(match.group(2), 256) or ""
    if not values:
        raise ParseError(" ".join(SYSCTL_COMMAND), "printed no `name: value` line")
    return values


def parse_sw_vers(text: str) -> System:
    """Raises ParseError when there is no ProductVersion."""
    values = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values[key.strip()] = clean(value, 64)
    if not values.get("ProductVersion"):
        raise ParseError("sw_vers", "printed no ProductVersion")
    return System(values["ProductVersion"], values.get("BuildVersion"))


def whole_number(values: Mapping[str, str], name: str) -> int | None:
    """A sysctl's value when it is a non-negative whole number that the API takes."""
    text = values.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    number = int(text)
    return number if number <= _LARGEST else None


def _memory(value: object) -> int | None:
    match = _MEMORY.match(value) if isinstance(value, str) else None
    return int(match.group(1)) * _UNITS[match.group(2)] if match else None


def _cores(value: object) -> int | None:
    """``proc 28:20:8:0`` (all, performance, efficiency) or a plain number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 < value < 10_000 else None
    match = _CORES.match(value) if isinstance(value, str) else None
    return (int(match.group(1)) or None) if match else None
