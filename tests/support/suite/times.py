"""Runs make targets one after the other and prints where the time went.

    times.py TARGET…

Uses the standard library alone: it runs before there is a virtual environment. Tests report their own times through the
plugin in tests/conftest.py, which appends to the file that THUNDERFLEET_TIMES names.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

VARIABLE = "THUNDERFLEET_TIMES"
SHOWN_FILES = 12
SHOWN_TESTS = 10
SHOWN_WAITS = 15

Row = tuple[str, float, float]
"""A row: name, wall-clock seconds, processor seconds."""
Wait = tuple[str, str, float, float]
"""A wait that took more than half of its limit: the test, what it waited for, its seconds, its limit."""


def main(targets: list[str]) -> int:
    """Stops at the first target that fails and returns its status."""
    if not targets:
        print("usage: times.py TARGET…", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "times")
        rows: list[Row] = []
        status = 0
        for target in targets:
            row, status = _make(target, path)
            rows.append(row)
            if status:
                break
        phases = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    tests = _whole([(name, seconds, processor) for name, seconds, processor, _ in phases])
    waits = [(name, *wait) for name, _, _, found in phases for wait in found]
    print("\n" + table(rows, tests, waits))
    if status:
        print(f"make {rows[-1][0]} failed", file=sys.stderr)
    return status


def _make(target: str, path: Path) -> tuple[Row, int]:
    began, before = time.monotonic(), _children()
    status = subprocess.run(["make", "--no-print-directory", target], env={**os.environ, VARIABLE: str(path)}, check=False)
    return (target, time.monotonic() - began, _children() - before), status.returncode


def _whole(phases: list[Row]) -> list[Row]:
    """Sums setup, call and teardown of each test."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, seconds, processor in phases:
        sums[name][0] += seconds
        sums[name][1] += processor
    return [(name, seconds, processor) for name, (seconds, processor) in sums.items()]


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: list[Row], tests: list[Row], waits: list[Wait]) -> str:
    """Targets, the longest files of each folder of tests, the longest tests, and the waits nearest to their limits."""
    wall: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    for name, seconds, processor in tests:
        path = name.partition("::")[0]
        wall[path] += seconds
        cpu[path] += processor
        folders[str(Path(path).parent)] += seconds
    parts = [_part("make", [*rows, ("in all", sum(row[1] for row in rows), sum(row[2] for row in rows))])]
    if tests:
        by_folder = sorted(folders.items(), key=lambda entry: -entry[1])
        parts.append(_part("folder (sum of its tests)", [(name, seconds, _within(cpu, name)) for name, seconds in by_folder]))
        longest = sorted(wall.items(), key=lambda entry: -entry[1])[:SHOWN_FILES]
        parts.append(_part("longest files", [(name, seconds, cpu[name]) for name, seconds in longest]))
        parts.append(_part("longest tests", sorted(tests, key=lambda entry: -entry[1])[:SHOWN_TESTS]))
    if waits:
        nearest = sorted(waits, key=lambda wait: -wait[2] / wait[3])[:SHOWN_WAITS]
        head = f"{'seconds':>9} {'limit':>8}  waits that took more than half of their limit: {len(waits)}"
        lines = [f"{seconds:9.1f} {limit:8.0f}  {test}: {goal}" for test, goal, seconds, limit in nearest]
        parts.append("\n".join([head, *lines]))
    return "\n\n".join(parts)


def _within(cpu: dict[str, float], folder: str) -> float:
    return sum(seconds for path, seconds in cpu.items() if str(Path(path).parent) == folder)


def _part(title: str, rows: list[Row]) -> str:
    head = f"{'seconds':>9} {'CPU':>8}  {title}"
    return "\n".join([head, *(f"{seconds:9.1f} {processor:8.1f}  {name}" for name, seconds, processor in rows)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
