"""``python -m tests.bench [--json FILE] [NAME …]``, from the root of the checkout."""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.errors import LocalClusterError

from tests.bench.baseline import BaselineFailed
from tests.bench.benchmarks import ALL, ALONE, Alone, Benchmark, Say
from tests.bench.figures import Figure, Missing, Report, table
from tests.bench.line import BenchFailed, Line


def machine() -> dict[str, Any]:
    """The machine, and how busy it is before the first benchmark."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next(
            (line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")), cpu
        )
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "loadAverage": [round(load, 2) for load in os.getloadavg()],
        "measuredAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version(), "mlx": metadata.version("mlx"), "mlx-lm": metadata.version("mlx-lm")},
    }


def _parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {benchmark.name:<15} {benchmark.about}" for benchmark in (*ALONE, *ALL))
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=f"Measures a cluster with the chart installed.\n\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--repeats", type=int, default=3, help="measurements per side (default: 3)")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a bound does not hold")
    return parser


def main() -> int:
    """Returns 0 when everything was measured (with --strict: and every bound holds), 1 when not, 2 on bad usage."""
    arguments, chosen = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    report = Report(machine())
    try:
        for benchmark in (one for one in chosen if isinstance(one, Alone)):
            _run(benchmark, partial(benchmark.run, say), say, report)
        others = [one for one in chosen if isinstance(one, Benchmark)]
        if others:
            with Line.up(say) as line:
                for other in others:
                    _run(other, partial(other.run, line, arguments.repeats, say), say, report)
    except (BenchFailed, LocalClusterError) as error:
        print(f"the cluster did not start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        # What was measured before is not lost.
        print(table(report.figures))
        return 130
    print(table(report.figures))
    for entry in report.missing:
        print(f"{entry.benchmark}: not measured: {entry.why}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return 1 if report.missing or (arguments.strict and not report.holds) else 0


def _arguments() -> tuple[argparse.Namespace, list[Alone | Benchmark]]:
    """The command line, and the benchmarks that it names. Exits with 2 on bad usage."""
    parser = _parser()
    arguments = parser.parse_args()
    known = {benchmark.name: benchmark for benchmark in (*ALONE, *ALL)}
    if odd := [name for name in arguments.names if name not in known]:
        parser.error(f"no benchmark {', '.join(odd)}; allowed: {', '.join(known)}")
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        parser.error(f"--json: {arguments.json.parent} is not a folder")
    return arguments, [benchmark for benchmark in known.values() if not arguments.names or benchmark.name in arguments.names]


def _run(benchmark: Alone | Benchmark, run: Callable[[], list[Figure]], say: Say, report: Report) -> None:
    """Adds the benchmark's figures to the report, or why there are none."""
    say(f"{benchmark.name}: {benchmark.about}")
    try:
        report.figures += run()
    except (BenchFailed, BaselineFailed, LocalClusterError) as error:
        say(f"{benchmark.name} failed: {error}")
        report.missing.append(Missing(benchmark.name, str(error)))


if __name__ == "__main__":
    sys.exit(main())
