"""``python -m tests.fuzz [--seed N] [--examples N] [--minutes N] [--jobs N]``, from the root of the checkout.

Every test with generated input runs by itself, with inputs that follow from the seed. Results are appended to a file: a run
that was interrupted, or had a time limit, continues with the tests that have none for this seed and these sources.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "tests/unit"
TEST_SECONDS = 2 * 3600.0
"""Limit of one test with all its examples. One that takes longer has failed."""
COLLECT_SECONDS = 600.0
TAIL = 20_000
"""Characters of a failed test's output that are kept."""


@dataclass(frozen=True)
class Result:
    """One test with all its examples. ``output`` is empty if it passed."""

    test: str
    sources: str
    seed: int
    examples: int
    seconds: float
    passed: bool
    output: str = ""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    found.add_argument("--seed", type=int, default=1, help="decides the inputs, and the order of the tests")
    found.add_argument("--examples", type=int, default=20_000, help="inputs for each test")
    found.add_argument("--minutes", type=float, help="start no test after this many minutes; the next run continues")
    found.add_argument("--jobs", type=int, default=2, help="tests at once")
    found.add_argument("--results", type=Path, default=ROOT / ".fuzz.jsonl", help="file to which every result is appended")
    return found


def generated() -> list[str]:
    """The ids of all tests with generated input. Raises SystemExit when pytest cannot collect them."""
    passed, output = _pytest(["--collect-only", FOLDER, "-m", "hypothesis"], {}, COLLECT_SECONDS)
    found = [line for line in output.splitlines() if line.startswith(FOLDER) and "::" in line]
    if not passed or not found:
        sys.exit(f"no tests were collected:\n{output}")
    return found


def sources() -> str:
    """A hash of all programs and tests: results of other ones say nothing about these."""
    found = hashlib.sha256()
    folders = [entry for entry in ROOT.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        found.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def run(test: str, code: str, seed: int, examples: int) -> Result:
    """Runs one test. ``code``: the hash of the sources."""
    began = time.monotonic()
    environment = {"HYPOTHESIS_PROFILE": "fuzz", "THUNDERFLEET_FUZZ_EXAMPLES": str(examples)}
    passed, output = _pytest([f"--hypothesis-seed={seed}", test], environment, TEST_SECONDS)
    return Result(test, code, seed, examples, round(time.monotonic() - began, 1), passed, "" if passed else output[-TAIL:])


def _pytest(arguments: Sequence[str], environment: dict[str, str], seconds: float) -> tuple[bool, str]:
    """Whether it passed, and its output. After the time limit, nothing that it has started is left."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    around = {**os.environ, **environment}
    with (
        tempfile.TemporaryFile() as file,
        subprocess.Popen(command, cwd=ROOT, env=around, stdout=file, stderr=subprocess.STDOUT, process_group=0) as process,
    ):
        late = ""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = f"it did not end within {seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        file.seek(0)
        return process.returncode == 0 and not late, file.read().decode(errors="replace") + late


def known(file: Path) -> list[Result]:
    """The results of earlier runs. Raises SystemExit for a file that has something else."""
    if not file.exists():
        return []
    whole, _, part = file.read_text().rpartition("\n")
    try:
        results = [Result(**json.loads(line)) for line in whole.splitlines()]
        if part and not results:
            raise ValueError(f"it begins with {part[:40]!r}")
    except (ValueError, TypeError) as error:
        sys.exit(f"{file} has other content than results of this program ({error}): name another one with --results")
    if part:
        # A run that was killed has left a part of a line.
        file.write_text(whole + "\n")
    return results


def in_turn(
    tests: Sequence[str], jobs: int, seconds: float, one: Callable[[str], Result], keep: Callable[[Result], None]
) -> None:
    """Runs all ``tests``, ``jobs`` at once; starts none after ``seconds``, or after an error. ``keep`` gets one at a time."""
    waiting, lock, end = list(reversed(tests)), threading.Lock(), time.monotonic() + seconds
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set() and time.monotonic() < end:
            with lock:
                test = waiting.pop() if waiting else None
            if test is None:
                return
            result = one(test)
            with lock:
                keep(result)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for working in as_completed([pool.submit(work) for _ in range(jobs)]):
                working.result()
        finally:
            stopped.set()


def main() -> int:
    """Returns 0 when no test failed, 1 when one did, 2 on bad usage."""
    options = parser().parse_args()
    if options.examples < 1 or options.jobs < 1:
        print("--examples and --jobs must be at least 1", file=sys.stderr)
        return 2
    tests = generated()
    random.Random(options.seed).shuffle(tests)
    this = (sources(), options.seed, options.examples)
    results = {one.test: one for one in known(options.results) if (one.sources, one.seed, one.examples) == this}
    open_ = [test for test in tests if test not in results or not results[test].passed]
    print(f"{len(open_)} of {len(tests)} tests to run, {options.examples} examples each, seed {options.seed}", flush=True)

    def keep(result: Result) -> None:
        results[result.test] = result
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(f"{'passed' if result.passed else 'FAILED'} {result.seconds:7.1f} s  {result.test}", flush=True)

    seconds = float("inf") if options.minutes is None else 60 * options.minutes
    in_turn(open_, options.jobs, seconds, lambda test: run(test, *this), keep)
    return _report(tests, results)


def _report(tests: Sequence[str], results: dict[str, Result]) -> int:
    done = [results[test] for test in tests if test in results]
    failed = [one for one in done if not one.passed]
    for one in failed:
        print(f"\n{one.test} failed:\n{one.output}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = sum(one.seconds for one in done)
    print(
        f"\n{len(done)} of {len(tests)} tests ran, {len(failed)} failed; {took / 3600:.1f} hours of tests in all, "
        f"{(used.ru_utime + used.ru_stime) / 60:.0f} minutes of processor time in this run"
    )
    for folder, number in _folders(done).items():
        print(f"{number:6} {folder}")
    return 1 if failed else 0


def _folders(done: Sequence[Result]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in done:
        name = re.sub(r"^tests/unit/([^/:]+).*", r"\1", one.test)
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


if __name__ == "__main__":
    sys.exit(main())
