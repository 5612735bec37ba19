"""The machine, its GPU, its limits and macOS.

From ``system_profiler SPHardwareDataType -json``, ``system_profiler SPDisplaysDataType -json``, ``sysctl`` and ``sw_vers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from thunderfleet_lib.host.hostcmd import quote
from thunderfleet_lib.host.parsing import ParseError, Partial, clean, require_whole

from thunderfleet_agent.observe.parsers.profiler import report

HARDWARE_COMMAND = ("system_profiler", "SPHardwareDataType", "-json")
DISPLAYS_COMMAND = ("system_profiler", "SPDisplaysDataType", "-json")
# Older systems do not have the first variable; every Mac has the others, so a missing one shows that output was truncated.
REQUIRED_VARIABLES = ("machdep.cpu.brand_string", "hw.memsize", "hw.ncpu")
SYSCTL_COMMAND = ("sysctl", "iogpu.wired_limit_mb", *REQUIRED_VARIABLES)
SW_VERS_COMMAND = ("sw_vers",)

_UNITS = {"T": 2**40, "G": 2**30, "M": 2**20}
_MEMORY = re.compile(r"^\s*(\d{1,6}(?:[.,]\d{1,2})?)\s*([TGM])[A-Za-z]{0,2}\s*$")
_CORES = re.compile(r"^\s*(?:proc\s+)?(\d{1,4})\b")
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Hardware:
    """The hardware report: Apple's model identifier, chip, CPU cores, memory in bytes."""

    model_identifier: str | None = None
    chip: str | None = None
    cpu_cores: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class System:
    """Version and build of macOS."""

    version: str | None = None
    build: str | None = None


def parse_hardware(text: str) -> Hardware:
    """The machine.

    Raises ParseError without a report or a known key, Partial if a known key has a value of unknown form.
    """
    name = " ".join(HARDWARE_COMMAND)
    for section in report(name, text, "SPHardwareDataType"):
        found = Hardware(
            model_identifier=clean(section.get("machine_model"), 64),
            chip=clean(section.get("chip_type"), 64) or clean(section.get("cpu_type"), 64),
            cpu_cores=_cores(section.get("number_processors")),
            memory_bytes=_memory(section.get("physical_memory")),
        )
        if found == Hardware():
            continue
        parts = {"number_processors": found.cpu_cores, "physical_memory": found.memory_bytes}
        odd = [f"{key} {quote(str(section[key]))!r}" for key, value in parts.items() if value is None and key in section]
        if odd:
            raise Partial(name, f"has values in an unknown format (is the system language English?): {', '.join(odd)}", found)
        return found
    raise ParseError(name, "has no hardware overview")


def parse_displays(text: str) -> int:
    """The GPU's cores; 0 if the report has no GPU with cores, as in a virtual machine. Raises ParseError."""
    name = " ".join(DISPLAYS_COMMAND)
    found = [section["sppci_cores"] for section in report(name, text, "SPDisplaysDataType") if "sppci_cores" in section]
    cores = [number for number in map(_cores, found) if number]
    if found and not cores:
        raise ParseError(name, f"has a number of GPU cores in an unknown format: {quote(str(found[0]))!r}")
    return max(cores, default=0)


def parse_sysctl(text: str) -> Mapping[str, str]:
    """``name: value`` (or ``name = value``) lines as a mapping; other lines are ignored.

    Raises ParseError without any, Partial if a variable that every Mac has is missing or not a number.
    """
    name = " ".join(SYSCTL_COMMAND)
    require_whole(name, text)
    values = {}
    for line in text.splitlines():
        match = re.match(r"^([A-Za-z][\w.]*)\s*[:=]\s*(.*)$", line.strip())
        if match:
            values[match.group(1)] = clean(match.group(2), 256) or ""
    if not values:
        raise ParseError(name, f"printed no `name: value` line: {quote(text) or 'nothing'}")
    if missing := [variable for variable in REQUIRED_VARIABLES if not values.get(variable)]:
        raise Partial(name, f"does not show {', '.join(missing)}", values)
    numbers = [variable for variable in SYSCTL_COMMAND[1:] if variable in values and variable != REQUIRED_VARIABLES[0]]
    if odd := [f"{variable}: {quote(values[variable])}" for variable in numbers if whole_number(values, variable) is None]:
        raise Partial(name, f"shows no integer for {', '.join(odd)}", values)
    return values


def parse_sw_vers(text: str) -> System:
    """Version and build. Raises ParseError without a ProductVersion, Partial without a BuildVersion."""
    values = {}
    whole = text[: text.rfind("\n") + 1]
    for line in whole.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values[key.strip()] = clean(value, 64)
    if not values.get("ProductVersion"):
        raise ParseError("sw_vers", f"printed no ProductVersion: {quote(text) or 'nothing'}")
    found = System(values["ProductVersion"], values.get("BuildVersion"))
    if not found.build:
        raise Partial("sw_vers", f"printed no complete BuildVersion: {quote(text)}", found)
    return found


def whole_number(values: Mapping[str, str], name: str) -> int | None:
    """A variable as a whole number from 0 to 2^63 - 1; None if it is anything else."""
    text = values.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    number = int(text)
    return number if number <= _LARGEST else None


def _memory(value: object) -> int | None:
    match = _MEMORY.match(value) if isinstance(value, str) else None
    return round(float(match.group(1).replace(",", ".")) * _UNITS[match.group(2)]) if match else None


def _cores(value: object) -> int | None:
    """``proc 28:20:8:0`` (all, performance, efficiency) or a plain number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 < value < 10_000 else None
    match = _CORES.match(value) if isinstance(value, str) else None
    return (int(match.group(1)) or None) if match else None
