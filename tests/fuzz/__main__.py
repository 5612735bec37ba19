"""``python -m tests.fuzz [--seed N] [--examples N] [--minutes N] [--jobs N]``, from the root of the checkout.

Every test with generated input runs by itself, with inputs that follow from the seed. Results are appended to a file: a run
that was interrupted, or had a time limit, continues with the tests that have none for this seed.
"""

import argparse
import json
import os
import queue
import random
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "tests/unit"
TEST_SECONDS = 2 * 3600.0
"""Limit of one test with all its examples. One that takes longer has failed."""
TAIL = 20_000
"""Characters of a failed test's output that are kept."""


@dataclass(frozen=True)
class Result:
    """One test with all its examples. ``output`` is empty if it passed."""

    test: str
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
    done = _pytest(["--collect-only", FOLDER, "-m", "hypothesis"], {}, 600)
    found = [line for line in done.stdout.splitlines() if line.startswith(FOLDER) and "::" in line]
    if done.returncode or not found:
        sys.exit(f"no tests were collected:\n{done.stdout}{done.stderr}")
    return found


def run(test: str, seed: int, examples: int) -> Result:
    """Runs one test."""
    began = time.monotonic()
    environment = {"HYPOTHESIS_PROFILE": "fuzz", "THUNDERFLEET_FUZZ_EXAMPLES": str(examples)}
    try:
        done = _pytest([f"--hypothesis-seed={seed}", test], environment, TEST_SECONDS)
        passed, output = done.returncode == 0, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        passed, output = False, f"it did not end within {TEST_SECONDS:g} s"
    return Result(test, seed, examples, round(time.monotonic() - began, 1), passed, "" if passed else output[-TAIL:])


def _pytest(arguments: Sequence[str], environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=seconds, check=False
    )


def known(file: Path) -> list[Result]:
    """The results of earlier runs. Raises SystemExit for a file that has something else."""
    if not file.exists():
        return []
    try:
        return [Result(**json.loads(line)) for line in file.read_text().splitlines()]
    except (ValueError, TypeError) as error:
        sys.exit(f"{file} has other content than results of this program ({error}): name another one with --results")


def in_turn(
    tests: Sequence[str], jobs: int, seconds: float, one: Callable[[str], Result], keep: Callable[[Result], None]
) -> None:
    """Runs all ``tests``, ``jobs`` at once; starts none after ``seconds``. ``keep`` gets each result in turn."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for test in tests:
        waiting.put(test)
    began, lock = time.monotonic(), threading.Lock()

    def work() -> None:
        while time.monotonic() - began < seconds:
            try:
                test = waiting.get_nowait()
            except queue.Empty:
                return
            result = one(test)
            with lock:
                keep(result)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Returns 0 when no test failed, 1 when one did, 2 on bad usage."""
    options = parser().parse_args()
    if options.examples < 1 or options.jobs < 1:
        print("--examples and --jobs must be at least 1", file=sys.stderr)
        return 2
    tests = generated()
    random.Random(options.seed).shuffle(tests)
    results = {one.test: one for one in known(options.results) if (one.seed, one.examples) == (options.seed, options.examples)}
    open_ = [test for test in tests if test not in results or not results[test].passed]
    print(f"{len(open_)} of {len(tests)} tests to run, {options.examples} examples each, seed {options.seed}", flush=True)

    def keep(result: Result) -> None:
        results[result.test] = result
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(f"{'passed' if result.passed else 'FAILED'} {result.seconds:7.1f} s  {result.test}", flush=True)

    seconds = float("inf") if options.minutes is None else 60 * options.minutes
    in_turn(open_, options.jobs, seconds, lambda test: run(test, options.seed, options.examples), keep)
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
