"""Free and wired memory of this Mac."""

import sys
from collections.abc import Collection
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Output

from thunderfleet_runner.host.commands import HOST

_COMMAND_SECONDS = 5.0
_AVAILABLE = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")


def free_bytes() -> int | None:
    """Bytes that a new process can use without swapping out others; None when unknown."""
    if sys.platform == "linux":
        try:
            return available_of_meminfo(Path("/proc/meminfo").read_text())
        except OSError:
            return None
    outcome = HOST.run(("vm_stat",), _COMMAND_SECONDS)
    return available_of_vm_stat(outcome.text) if isinstance(outcome, Output) else None


def wired_bytes() -> int | None:
    """Bytes of wired memory according to ``vm_stat``; None when unknown."""
    outcome = HOST.run(("vm_stat",), _COMMAND_SECONDS)
    return wired_of_vm_stat(outcome.text) if isinstance(outcome, Output) else None


def available_of_meminfo(text: str) -> int | None:
    """MemAvailable of Linux's /proc/meminfo, in bytes."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def available_of_vm_stat(text: str) -> int | None:
    """Free, inactive, speculative and purgeable pages of macOS's ``vm_stat``, in bytes."""
    return _pages(text, _AVAILABLE)


def wired_of_vm_stat(text: str) -> int | None:
    """Wired pages of macOS's ``vm_stat``, in bytes."""
    return _pages(text, ("Pages wired down",))


def _pages(text: str, names: Collection[str]) -> int | None:
    size, pages, found = 16384, 0, False
    for line in text.splitlines():
        if "page size of" in line:
            size = int(line.split("page size of", 1)[1].split()[0])
        name, _, value = line.partition(":")
        if name in names:
            pages, found = pages + int(value.strip().rstrip(".")), True
    return pages * size if found else None
