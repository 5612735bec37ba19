"""``python -m tests.mutation [--mutants N] [--seed N] [--program NAME …]``, from the root of the checkout."""

import argparse
import hashlib
import json
import queue
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

from tests.mutation import equivalent
from tests.mutation.modules import PURE, UNIT, pure, unit_tests
from tests.mutation.mutants import Mutant, sample
from tests.mutation.trial import Reaches, Trial, TrialError

ROOT = Path(__file__).parents[2]
SEED = 11
WANTED = 0.9


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    found.add_argument("--mutants", type=int, default=240, help="size of the sample over all programs")
    found.add_argument("--seed", type=int, default=SEED, help="decides the sample")
    found.add_argument("--program", action="append", choices=list(PURE), help="only this program (repeatable)")
    found.add_argument("--jobs", type=int, default=2, help="mutants tried at once")
    found.add_argument("--minutes", type=float, help="start no mutant after this many minutes; the next run continues")
    found.add_argument("--results", type=Path, default=ROOT / ".mutation.jsonl", help="file that keeps every result")
    found.add_argument("--list", action="store_true", help="print the survivors of earlier runs without trying any mutant")
    return found


class Results:
    """Results by mutant. A change of its module tries it again, and a change of the tests if it survived them."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self._known: dict[str, str] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                entry = json.loads(line)
                self._known[entry["id"]] = entry["noticed"]

    def get(self, mutant: Mutant) -> str | None:
        """Which tests noticed it, "" for none; None when it has not been tried."""
        return self._known.get(self._id(mutant, noticed=True)) or self._known.get(self._id(mutant, noticed=False))

    def add(self, mutant: Mutant, noticed: str) -> None:
        """Keeps a result at once, so that an interrupted run loses none."""
        name = self._id(mutant, noticed=bool(noticed))
        entry = {"id": name, "program": mutant.module.program, "noticed": noticed, "line": mutant.line, "key": mutant.key}
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            self._known[name] = noticed
            file.write(json.dumps(entry) + "\n")

    @staticmethod
    def _id(mutant: Mutant, *, noticed: bool) -> str:
        tests = [] if noticed else unit_tests(ROOT, mutant.module)
        text = mutant.code + "".join((ROOT / test).read_text() for test in tests)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def main() -> int:
    """Returns 0 when every program reaches 90 % and every mutant has a result, 1 when not, 2 on bad usage."""
    options = parser().parse_args()
    programs = options.program or list(PURE)
    if options.mutants < len(programs) or options.jobs < 1:
        print(f"--mutants must be at least {len(programs)} and --jobs at least 1", file=sys.stderr)
        return 2
    chosen = _sample(programs, options.mutants, options.seed)
    results = Results(options.results)
    if not options.list:
        _try(chosen, results, options.jobs, float("inf") if options.minutes is None else 60 * options.minutes)
    return _report(programs, chosen, results)


def _sample(programs: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """The same share for every program, without equivalent mutants."""
    same, share = equivalent.read(), -(-number // len(programs))
    return [mutant for program in programs for mutant in sample(ROOT, pure(ROOT, [program]), share, seed, same)]


def _try(chosen: Sequence[Mutant], results: Results, jobs: int, seconds: float) -> None:
    """Tries every mutant without a result; ``jobs`` at once, each in a copy of the checkout."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in _in_turns([mutant for mutant in chosen if results.get(mutant) is None]):
        waiting.put(mutant)
    print(f"{waiting.qsize()} of {len(chosen)} mutants to try", flush=True)
    began, failures, reaches = time.monotonic(), list[str](), Reaches()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            trial = Trial(ROOT, Path(folder), reaches)
            while not failures and time.monotonic() - began < seconds:
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    noticed = trial.noticed_by(mutant)
                except TrialError as error:
                    failures.append(str(error))
                    return
                results.add(mutant, noticed)
                print(f"{'noticed ' if noticed else 'SURVIVED'} {mutant.module.path}:{mutant.line} {mutant.after}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(failures[0])


def _in_turns(mutants: Sequence[Mutant]) -> list[Mutant]:
    """One for each set of tests in turn, so that the jobs measure the reach of different programs at the same time."""
    folders = defaultdict[tuple[str, ...], list[Mutant]](list)
    for mutant in mutants:
        folders[UNIT[mutant.module.program]].append(mutant)
    return [mutant for mutant in chain.from_iterable(zip_longest(*folders.values())) if mutant is not None]


def _report(programs: Sequence[str], chosen: Sequence[Mutant], results: Results) -> int:
    """Prints the survivors and the score of every program. Survivors whose tests have changed meanwhile have no result."""
    for mutant in chosen:
        if results.get(mutant) == "":
            print(f"\nsurvived: {mutant.module.path}:{mutant.line} ({mutant.operator})\n{mutant.key}")
    print(f"\n{'program':<14} {'tried':>6} {'noticed':>8} {'score':>6}")
    reached = True
    for program in [*programs, "in all"]:
        mine = [results.get(mutant) for mutant in chosen if program in (mutant.module.program, "in all")]
        tried, noticed = sum(result is not None for result in mine), sum(bool(result) for result in mine)
        score = noticed / tried if tried else 0.0
        reached &= score >= WANTED and tried == len(mine)
        left = f"   {len(mine) - tried} without a result: run this again" if tried < len(mine) else ""
        print(f"{program:<14} {tried:>6} {noticed:>8} {score:>6.0%}{left}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
