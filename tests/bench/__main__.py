"""``python -m tests.bench [--json FILE] [NAME …]``, from the root of the checkout."""

import argparse
import json
import os
import platform
import signal
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.errors import LocalClusterError

from tests.bench.benchmarks import ALL
from tests.bench.byhand import ByHandFailed
from tests.bench.figures import Missing, Report, table
from tests.bench.line import BenchFailed, Line


def machine() -> dict[str, Any]:
    """What the figures were taken on, and how busy it was when they were begun."""
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
    about = "\n".join(f"  {benchmark.name:<15} {benchmark.about}" for benchmark in ALL)
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=f"Figures of the whole line.\n\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side is measured (default: 3)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bound does not hold")
    return parser


def main() -> int:
    """0 measured (with --strict: and every bound holds), 1 something could not be measured, 2 bad usage."""
    parser = _parser()
    arguments = parser.parse_args()
    known = {benchmark.name: benchmark for benchmark in ALL}
    if odd := [name for name in arguments.names if name not in known]:
        parser.error(f"no benchmark {', '.join(odd)}; there are {', '.join(known)}")
    if arguments.repeats < 1:
        parser.error("--repeats is at least 1")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        parser.error(f"--json: {arguments.json.parent} is no folder")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = [benchmark for benchmark in ALL if not arguments.names or benchmark.name in arguments.names]
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    report = Report(machine())
    try:
        with Line.up(say) as line:
            for benchmark in chosen:
                say(f"{benchmark.name}: {benchmark.about}")
                try:
                    report.figures += benchmark.run(line, arguments.repeats, say)
                except (BenchFailed, ByHandFailed, LocalClusterError) as error:
                    say(f"{benchmark.name} failed: {error}")
                    report.missing.append(Missing(benchmark.name, str(error)))
    except (BenchFailed, LocalClusterError) as error:
        print(f"the line did not come up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(table(report.figures))
    for entry in report.missing:
        print(f"{entry.benchmark}: not measured: {entry.why}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return 1 if report.missing or (arguments.strict and not report.holds) else 0


if __name__ == "__main__":
    sys.exit(main())
