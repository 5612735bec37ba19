"""Prometheus metrics that every program has (version, CPU time, memory), and labels for all metrics of one program."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from thunderfleet_lib.host.descriptors import descriptors

PROC_PIDTASKINFO: Final = 4
"""From ``sys/proc_info.h`` of macOS. The second number of the answer is the resident size in bytes."""
TASK_INFO_BYTES: Final = 96
_STARTED: Final = time.time()


def resident_bytes() -> int | None:
    """Resident memory of this process; None if the system does not report it."""
    try:
        return _of_darwin() if sys.platform == "darwin" else _of_linux()
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _of_linux() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _of_darwin() -> int | None:
    answer = (ctypes.c_uint64 * (TASK_INFO_BYTES // 8))()
    library = ctypes.CDLL("/usr/lib/libproc.dylib")
    size = library.proc_pidinfo(os.getpid(), PROC_PIDTASKINFO, ctypes.c_uint64(0), answer, TASK_INFO_BYTES)
    return int(answer[1]) if size == TASK_INFO_BYTES else None


def package_version() -> str:
    """The version of the installed package, such as ``0.1.0``."""
    try:
        return version("thunderfleet")
    except PackageNotFoundError:
        return "0.0.0"


class ProcessMetrics(Collector):
    """A collector of prometheus-client for its own process. ``program``: its name, such as ``agent``."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._version = package_version()

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("thunderfleet_build_info", "1; the version of the program.", labels=["program", "version"])
        build.add_metric([self._program, self._version], 1.0)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = CounterMetricFamily("thunderfleet_process_cpu_seconds", "CPU time of the program.", labels=["program"])
        cpu.add_metric([self._program], usage.ru_utime + usage.ru_stime)
        memory = GaugeMetricFamily(
            "thunderfleet_process_resident_memory_bytes", "Resident memory of the program.", labels=["program"]
        )
        found = resident_bytes()
        if found is not None:
            memory.add_metric([self._program], found)
        started = GaugeMetricFamily(
            "thunderfleet_process_start_time_seconds",
            "Time at which the program started, in seconds since the Unix epoch.",
            labels=["program"],
        )
        started.add_metric([self._program], _STARTED)
        yield from (build, cpu, memory, started, self._free())

    def _free(self) -> Metric:
        free = GaugeMetricFamily(
            "thunderfleet_process_free_descriptors",
            "How many more files and connections the program can open; absent without a limit.",
            labels=["program"],
        )
        found = descriptors()
        if found is not None:
            free.add_metric([self._program], found.free)
        return free


class Labelled(Collector):
    """All metrics of ``registry``, with ``labels`` added to each sample that has none of these names.

    So a sample has these labels regardless of how Prometheus found the program.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = dict(labels)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            named = Metric(family.name, family.documentation, family.type, family.unit)
            named.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in family.samples]
            yield named
