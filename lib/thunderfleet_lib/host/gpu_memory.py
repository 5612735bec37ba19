"""How much memory the GPU of a Mac may use.

Metal has the answer (``recommendedMaxWorkingSetSize``), and MLX passes it on. The share that macOS allows differs between
versions and sizes of Macs: 107.5 GiB of 128 GiB, 48 GiB of 64 GiB. The program ``mlx_memory`` beside this module asks MLX.
"""

import re
import sys

from thunderfleet_lib.host.hostcmd import quote
from thunderfleet_lib.host.parsing import ParseError, clean

COMMAND = (sys.executable, "-P", "-m", "thunderfleet_lib.host.mlx_memory")
SECONDS = 10.0
"""The time limit of ``COMMAND``: loading MLX takes long on a Mac that starts."""

LARGE_MAC_BYTES = 36 * 1024**3


def parse(text: str) -> int:
    """The bytes in the output of ``COMMAND``; 0 if MLX has no GPU here. Raises ParseError."""
    found = text.strip()
    if not re.fullmatch(r"\d{1,18}", found):
        raise ParseError(" ".join(COMMAND), f"printed {clean(quote(found), 80) or 'nothing'} instead of a number of bytes")
    return int(found)


def gpu_memory_limit(memory_bytes: int, wired_limit_mb: int | None = None, metal_bytes: int | None = None) -> int:
    """How many of ``memory_bytes`` the GPU may use.

    ``metal_bytes``: MLX's value. Without it: ``wired_limit_mb``, the value of ``iogpu.wired_limit_mb``. 0 and None stand for
    the default of macOS, for which a share is returned that no known version goes below.
    """
    if metal_bytes:
        return min(metal_bytes, memory_bytes)
    if wired_limit_mb:
        return min(wired_limit_mb * 1024**2, memory_bytes)
    return memory_bytes * 3 // 4 if memory_bytes > LARGE_MAC_BYTES else memory_bytes * 2 // 3
