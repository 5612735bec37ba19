"""Facts and load of a machine, and parsers of the commands' output that contains them. Pure."""

import re
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True)
class Machine:
    """Facts that do not change while the machine is up."""

    operating_system: str
    """``darwin`` or ``linux``."""
    architecture: str
    """As Go names it: ``arm64`` or ``amd64``."""
    cpus: int
    memory_bytes: int
    """The memory for pods: on a Mac what the GPU may use, elsewhere all of it."""
    disk_bytes: int
    """Size of the file system of the kubelet's folder."""
    os_image: str
    kernel_version: str
    machine_id: str
    boot_id: str
    chip: str | None = None
    """Apple's name of the chip (``Apple M3 Ultra``); None on other machines."""

    @property
    def is_mac(self) -> bool:
        """Whether this is a Mac, or a recorded one."""
        return self.operating_system == "darwin"


@dataclass(frozen=True)
class Readings:
    """The load of the machine. None: unknown. ``memory_bytes``: the memory for pods now; None: unchanged."""

    memory_short: bool | None
    memory_text: str
    processes: int | None
    processes_limit: int | None
    memory_bytes: int | None = None


def go_architecture(word: str) -> str:
    """Go's name of an architecture, from that of ``uname -m``."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(word, word)


def parse_sw_vers(text: str) -> dict[str, str]:
    """The output of ``sw_vers`` as a dictionary: ``ProductName``, ``ProductVersion``, ``BuildVersion``."""
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines()) if value}


def meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` as a dictionary, in bytes."""
    return {match[1]: int(match[2]) * 1024 for match in re.finditer(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
