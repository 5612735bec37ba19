"""GPU compute and memory bandwidth, through MLX on its default device, as a rank of a group uses it.

Runs in a process of its own (``child``), so that MLX is never imported in the agent.
"""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
# The time of one run: long enough that the clock's resolution and kernel launches do not matter, short enough for a quick
# SIGTERM.
RUN_SECONDS = 0.04
# The order of the matrices is doubled until one product takes this long, up to LARGEST_ORDER.
PRODUCT_SECONDS = 0.02
LARGEST_ORDER = 8192
SMALLEST_ORDER = 256
# The size of the buffer: a multiple of the last-level cache, or a part of the memory if the cache is unknown.
CACHES, FEWEST_CACHES = 8, 2
PART_OF_MEMORY = 128
SMALLEST_BUFFER = 64 * MIB
USUAL_BUFFER = 256 * MIB
LARGEST_BUFFER = 4096 * MIB
# A few passes over it must fit into the time of the benchmark, and a virtual machine with two slow cores may report the 480 MiB
# of cache that its host has for all of them.
LARGEST_OF_CACHES = 1024 * MIB

_PAGES = re.compile(r"^Pages (free|inactive|speculative|purgeable):\s*(\d+)\.", re.MULTILINE)
_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")

Progress = Callable[[float, bool], None]


class NotMeasured(Exception):
    """Why the measurement is impossible now."""


def available_bytes() -> int | None:
    """The memory that is available to a new process; None if unknown."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=True).stdout
        size = _PAGE_SIZE.search(text)
        if size:
            found.append(int(size.group(1)) * sum(int(count) for _, count in _PAGES.findall(text)))
    return min(found) if found else None


def cache_bytes() -> int | None:
    """The size of the last-level cache; None if unknown (macOS does not report its system-level cache)."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().removesuffix("K")) * 1024)
    return max(sizes, default=None)


def buffer_bytes(free: int | None, memory: int | None, cache: int | None) -> int:
    """The size of the buffer: larger than the cache, at most half of the free memory. Raises NotMeasured."""
    least = max(SMALLEST_BUFFER, FEWEST_CACHES * (cache or 0))
    part = max(USUAL_BUFFER, (memory or 0) // PART_OF_MEMORY)
    wanted = min(CACHES * cache, LARGEST_OF_CACHES) if cache else part
    size = min(max(wanted, least), LARGEST_BUFFER)
    if free is not None:
        size = min(size, free // 2)
    if size < least:
        raise NotMeasured(
            f"{(free or 0) // MIB} MiB of memory are free; the benchmark needs at least {2 * least // MIB} MiB: stop other "
            "programs"
        )
    return size // MIB * MIB


def order(fits: int, took: Callable[[int], float]) -> int:
    """The order of the matrices: doubled until a product takes PRODUCT_SECONDS, as long as three fit into ``fits`` bytes."""
    size = SMALLEST_ORDER
    while size < LARGEST_ORDER and took(size) < PRODUCT_SECONDS and 3 * 2 * (2 * size) ** 2 <= fits:
        size *= 2
    return size


def versions(mx: Any) -> dict[str, str]:
    """Device, MLX and operating system of the measurement."""
    info = mx.device_info()
    device = str(info.get("device_name") or info.get("architecture") or mx.default_device())
    system = platform.mac_ver()[0] or f"{platform.system()} {platform.release()}"
    kind = "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
    return {"device": f"{kind}: {device}"[:64], "mlxVersion": str(mx.__version__)[:64], "osVersion": system[:64]}


def compute(warm_seconds: float, progress: Progress) -> dict[str, Any]:
    """``flops`` (per second) of a square fp16 product, and the versions."""
    import mlx.core as mx

    from thunderfleet_agent.measure.worker.warm_up import best

    free = available_bytes()

    def matrices(size: int) -> tuple[Any, Any]:
        # Entries of about 1 / sqrt(size) keep the norm of a chain of products finite.
        pair = tuple(
            (mx.random.normal((size, size), key=mx.random.key(seed)) / size**0.5).astype(mx.float16) for seed in (1, 2)
        )
        mx.eval(*pair)
        return pair[0], pair[1]

    def took(size: int) -> float:
        a, b = matrices(size)
        mx.eval(a @ b)
        started = time.perf_counter()
        mx.eval(a @ b)
        return time.perf_counter() - started

    size = order((free or 2**33) // 4, took)
    a, b = matrices(size)
    chain = max(1, round(RUN_SECONDS / max(took(size), 1e-6)))

    def run() -> float:
        # A chain keeps the GPU busy from the first product to the last.
        product = a
        for _ in range(chain):
            product = product @ b
        mx.eval(product)
        return 2.0 * size**3 * chain

    found = best(
        run, time.perf_counter, warm_seconds, until=2 * warm_seconds, progress=lambda rate, steady: progress(rate / 1e9, steady)
    )
    return {"flops": round(found.rate), "steady": found.steady, "order": size, **versions(mx)}


def memory(warm_seconds: float, progress: Progress) -> dict[str, Any]:
    """``megabytesPerSecond`` of a streaming sum, and the versions."""
    import mlx.core as mx

    from thunderfleet_agent.measure.worker.warm_up import best

    total = mx.device_info().get("memory_size")
    size = buffer_bytes(available_bytes(), int(total) if isinstance(total, int) else None, cache_bytes())
    count = size // 4
    buffer = mx.ones((count,), mx.float32)
    mx.eval(buffer)
    summed = mx.sum(buffer).item()
    # A CPU adds float32 values one by one, and in float32, 2^24 + 1 is 2^24.
    if not isinstance(summed, float) or not min(count, 2**24) <= summed <= 1.01 * count:
        raise NotMeasured(
            f"the GPU computed a wrong sum, {summed} instead of {count}: reboot this Mac; if this recurs, its GPU is faulty"
        )

    def run() -> float:
        mx.eval(mx.sum(buffer))
        return float(size)

    found = best(
        run, time.perf_counter, warm_seconds, until=2 * warm_seconds, progress=lambda rate, steady: progress(rate / 1e6, steady)
    )
    return {
        "megabytesPerSecond": max(1, round(found.rate / 1e6)),
        "steady": found.steady,
        "bufferBytes": size,
        **versions(mx),
    }
