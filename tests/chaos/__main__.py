"""``python -m tests.chaos [--seed N] [--faults N] …``, from the root of the checkout."""

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError

from tests.chaos import plan, report
from tests.chaos.run import CLUSTER, Runner, cluster
from tests.support.waiting import NotInTimeError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    found.add_argument("--seed", type=int, help="decides the whole run; drawn at random and printed if absent")
    found.add_argument("--faults", type=int, default=30, help="faults to inject, rounded up to three per deployment")
    found.add_argument("--episode", type=int, action="append", help="run only this deployment of the sequence (repeatable)")
    found.add_argument("--long", action="store_true", help="let some faults outlast the 75 s that a silent Node is tolerated")
    found.add_argument("--plan", action="store_true", help="print the faults without injecting them")
    found.add_argument("--cluster", metavar="NAME", help="use this running cluster of the suite's fleet, and leave it running")
    found.add_argument("--minutes", type=float, help="start no deployment after this many minutes")
    found.add_argument("--json", type=Path, metavar="FILE", help="write every step and the totals to FILE")
    return found


def main() -> int:
    """Returns 0 when every fault was survived, 1 when not, 2 on bad usage, 130 when interrupted."""
    options = parser().parse_args()
    if options.faults < 1:
        print("--faults must be at least 1", file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    repeat = f"seed {seed} (repeat: python -m tests.chaos --seed {seed} --faults {options.faults}{' --long' * options.long})"
    print(repeat, flush=True)
    episodes = plan.first(seed, options.faults, options.long)
    if options.episode:
        episodes = [episode for episode in episodes if episode.number in options.episode]
    if options.plan:
        _print_plan(episodes)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.cluster:
        os.environ[CLUSTER] = options.cluster
    began, records = time.monotonic(), list[report.Record]()
    code = _inject(seed, episodes, records, math.inf if options.minutes is None else 60 * options.minutes)
    seconds = time.monotonic() - began
    print(report.table(records, seconds))
    print(repeat)
    if options.json:
        options.json.write_text(json.dumps({"seed": seed, **report.as_json(records, seconds)}, indent=1) + "\n")
    return code or int(not any(record.injected for record in records) or any(record.violations for record in records))


def _print_plan(episodes: Iterable[plan.Episode]) -> None:
    for episode in episodes:
        for number, step in enumerate(episode.steps):
            print(f"episode {episode.number}, step {number}: {episode.shape}: {step}")


def _inject(seed: int, episodes: Iterable[plan.Episode], records: list[report.Record], seconds: float) -> int:
    """Runs the episodes, starting none after ``seconds``, and adds their records. Returns the exit status."""
    began = time.monotonic()
    try:
        with cluster() as line:
            runner = Runner(line, lambda text: print(text, flush=True))
            for episode in episodes:
                if time.monotonic() - began >= seconds:
                    break
                for record in runner.run(seed, [episode]):
                    records.append(record)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (LocalClusterError, NotInTimeError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
