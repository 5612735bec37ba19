"""What ``ctypes.CDLL(None)`` finds on macOS and not on Linux, and the other way round."""

import ctypes
import os
import stat
from collections.abc import Callable
from typing import Any

PORT = 0x103
TICKS = (4_000_000_000, 100_000, 9_000, 500)
"""user, system, idle, nice. Ticks are unsigned, so user is given where signed ones would be negative."""
PAGES = {"free": 1000, "active": 300, "inactive": 200, "wired": 50, "purgeable": 7, "speculative": 11, "compressor": 5}
HOST_CPU_LOAD_INFO, HOST_VM_INFO64, KERN_INVALID_ARGUMENT = 3, 4, 4
_VM_FIELDS = {"free": 0, "active": 4, "inactive": 8, "wired": 12, "purgeable": 88, "speculative": 92, "compressor": 128}
"""Offsets in ``vm_statistics64`` (mach/vm_statistics.h)."""
TASK, NAME = 0x203, 0x10000
"""Ports: of the process itself, and of the name of another one, to which its pid is added."""
MEMORY = {144: 5_000_000_000, 272: 3_000_000_000, 280: 1_000_000_000}
"""Of ``task_vm_info`` (mach/task_info.h), by offset: phys_footprint, ledger_tag_graphics_footprint and its compressed part."""
TASK_VM_INFO, _TASK_VM_INFO_REVISION_3, KERN_FAILURE = 22, 84, 5
AT_FDCWD = -2
NAMES: list[int] = []
"""The names of processes that were asked for and not given back."""
_REVISIONS = (38, 40)
"""Sizes of ``vm_statistics64`` that callers may have, in units of 4 bytes."""

_real = ctypes.CDLL


def _mach_host_self() -> int:
    return PORT


def _host_statistics(port: int, flavor: int, answer: Any, count: Any) -> int:
    if (port, flavor, count._obj.value) != (PORT, HOST_CPU_LOAD_INFO, 4):
        return KERN_INVALID_ARGUMENT
    ctypes.memmove(answer, (ctypes.c_uint * 4)(*TICKS), 16)
    return 0


def _host_statistics64(port: int, flavor: int, answer: Any, count: Any) -> int:
    if (port, flavor) != (PORT, HOST_VM_INFO64) or count._obj.value not in _REVISIONS:
        return KERN_INVALID_ARGUMENT
    text = bytearray(152)
    for name, offset in _VM_FIELDS.items():
        text[offset : offset + 4] = PAGES[name].to_bytes(4, "little")
    ctypes.memmove(answer, bytes(text), len(text))
    return 0


def _mach_task_self() -> int:
    return TASK


def _task_name_for_pid(own: int, pid: int, port: Any) -> int:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return KERN_FAILURE
    if own != TASK:
        return KERN_INVALID_ARGUMENT
    port._obj.value = NAME + pid
    NAMES.append(NAME + pid)
    return 0


def _task_info(port: Any, flavor: int, answer: Any, count: Any) -> int:
    if port.value not in NAMES or (flavor, count._obj.value) != (TASK_VM_INFO, _TASK_VM_INFO_REVISION_3):
        return KERN_INVALID_ARGUMENT
    text = bytearray(count._obj.value * 4)
    for offset, value in MEMORY.items():
        text[offset : offset + 8] = value.to_bytes(8, "little")
    ctypes.memmove(answer, bytes(text), len(text))
    return 0


def _mach_port_deallocate(own: int, port: Any) -> int:
    NAMES.remove(port.value)
    return 0


def _fclonefileat(source: int, folder: int, target: bytes, flags: int) -> int:
    """APFS shares the blocks; here they are copied."""
    if (folder, flags) != (AT_FDCWD, 0):
        return -1
    try:
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        ctypes.set_errno(error.errno or 0)
        return -1
    at = 0
    with os.fdopen(copy, "wb") as file:
        while part := os.pread(source, 1024**2, at):
            at += file.write(part)
        os.fchmod(copy, stat.S_IMODE(os.fstat(source).st_mode))
    return 0


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "mach_host_self": _mach_host_self,
    "host_statistics": _host_statistics,
    "host_statistics64": _host_statistics64,
    "mach_task_self": _mach_task_self,
    "task_name_for_pid": _task_name_for_pid,
    "task_info": _task_info,
    "mach_port_deallocate": _mach_port_deallocate,
    "fclonefileat": _fclonefileat,
}
_MISSING = ("prctl", "unshare", "mount", "syscall")


class Library(_real):
    """A library; the one without a name is the process itself, that is, libSystem."""

    def __getattr__(self, name: str) -> Any:
        if self._name is None and name in _FUNCTIONS:
            return _FUNCTIONS[name]
        if self._name is None and name in _MISSING:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def apply() -> None:
    """From now on, in this process."""
    ctypes.CDLL = Library  # type: ignore[misc]
