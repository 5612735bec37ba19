"""Parses ``macmon``, ``ioreg``, ``powermetrics``, ``vm_stat`` and ``netstat -ib``: power, heat, memory and traffic of a Mac.

A value that a command does not print is absent.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from thunderfleet_lib.host.parsing import ParseError

LEVELS: Final = ("Nominal", "Moderate", "Heavy", "Trapping", "Sleeping")
"""Levels of thermal pressure that ``powermetrics`` prints."""
MOST_WATTS: Final = 10_000.0
MOST_CELSIUS: Final = 150.0


@dataclass(frozen=True)
class Sensors:
    """``gpu`` is the share of the time in which the GPU works; power in watts and temperatures in °C, by part of the Mac."""

    gpu: float | None = None
    watts: Mapping[str, float] = field(default_factory=dict)
    celsius: Mapping[str, float] = field(default_factory=dict)
    pressure: str | None = None


def _number(value: Any, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared first: an integer may be too large for a float. NaN is in no range.
    return float(value) if 0 <= value <= most else None


def _numbers(values: Mapping[str, Any], names: Mapping[str, str], most: float) -> dict[str, float]:
    found = {part: _number(values.get(name), most) for part, name in names.items()}
    return {part: value for part, value in found.items() if value is not None}


def parse_macmon(text: str) -> Sensors:
    """The first line of ``macmon pipe``, a JSON object. Raises ParseError."""
    try:
        values = json.loads(text.splitlines()[0])
    except (IndexError, ValueError, RecursionError) as error:
        raise ParseError("macmon pipe", f"printed no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ParseError("macmon pipe", "printed no JSON object")
    use, temperatures = values.get("gpu_usage"), values.get("temp")
    return Sensors(
        gpu=_number(use[1], 1.0) if isinstance(use, list) and len(use) > 1 else None,
        watts=_numbers(
            values,
            {"cpu": "cpu_power", "gpu": "gpu_power", "ane": "ane_power", "ram": "ram_power", "system": "sys_power"},
            MOST_WATTS,
        ),
        celsius=_numbers(
            temperatures if isinstance(temperatures, dict) else {}, {"cpu": "cpu_temp_avg", "gpu": "gpu_temp_avg"}, MOST_CELSIUS
        ),
    )


def parse_powermetrics(text: str) -> Sensors:
    """One sample of ``powermetrics --samplers cpu_power,gpu_power,thermal``. Raises ParseError."""
    watts = {part.lower(): int(number) / 1000 for part, number in re.findall(r"^(CPU|GPU|ANE) Power: (\d{1,9}) mW", text, re.M)}
    busy = re.search(r"^GPU HW active residency:\s+(\d{1,3}(?:\.\d+)?)%", text, re.M)
    level = re.search(r"^Current pressure level: (\w+)", text, re.M)
    gpu = _number(float(busy[1]) / 100, 1.0) if busy else None
    pressure = level[1] if level and level[1] in LEVELS else None
    if not watts and gpu is None and pressure is None:
        raise ParseError("powermetrics", "printed neither power nor thermal pressure")
    return Sensors(gpu=gpu, watts={part: value for part, value in watts.items() if value <= MOST_WATTS}, pressure=pressure)


def parse_ioreg(text: str) -> Sensors:
    """``ioreg -r -d 1 -w 0 -c IOAccelerator``: the busiest GPU. Raises ParseError."""
    found = [int(value) for value in re.findall(r'"Device Utilization %"=(\d{1,3})\b', text)]
    shares = [value / 100 for value in found if value <= 100]
    if not shares:
        raise ParseError("ioreg", "printed no utilization of a GPU")
    return Sensors(gpu=max(shares))


def parse_wired(text: str) -> int:
    """Wired memory in bytes, from ``vm_stat``. Raises ParseError."""
    page = re.search(r"page size of (\d{1,9}) bytes", text)
    pages = re.search(r"^Pages wired down:\s+(\d{1,15})\.", text, re.M)
    if page is None or pages is None:
        raise ParseError("vm_stat", "printed no wired pages")
    return int(page[1]) * int(pages[1])


def parse_traffic(text: str) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by each interface, from ``netstat -ib``. Raises ParseError."""
    lines = text.splitlines()
    if not lines or "Ibytes" not in lines[0] or "Obytes" not in lines[0]:
        raise ParseError("netstat -ib", "printed no table of interfaces")
    found: dict[str, tuple[int, int]] = {}
    for line in lines[1:]:
        fields = line.split()
        # The row of the link layer; the rows of addresses repeat its numbers. From the right, because the address may be empty.
        if len(fields) > 9 and fields[2].startswith("<Link#") and fields[-5].isdecimal() and fields[-2].isdecimal():
            found[fields[0].rstrip("*")] = (int(fields[-5]), int(fields[-2]))
    return found
