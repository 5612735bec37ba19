"""``python -m tests.chaos [--seed N] [--faults N] …``, from the root of the checkout."""

import argparse
import math
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError

from tests.chaos import fleet, plan, report
from tests.chaos.person import watching
from tests.chaos.run import Runner
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
    found.add_argument("--minutes", type=float, help="start no deployment after this many minutes")
    found.add_argument("--kind", action="append", help="inject this fault, such as `kill etcd`, and no others (repeatable)")
    found.add_argument(
        "--look",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="let faults last up to this much longer, until `why`, the live page and an alert have named what was hit",
    )
    found.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="append the result of every fault to FILE as a line of JSON, leave out deployments of this seed that are in it, "
        "and print the totals of the whole file; so a run of many faults can be done in parts",
    )
    return found


def main() -> int:
    """Returns 0 when every fault of this run was survived, 1 when not, 2 on bad usage, 130 when interrupted."""
    options = parser().parse_args()
    if options.faults < 1:
        print("--faults must be at least 1", file=sys.stderr)
        return 2
    results = report.Results(options.results) if options.results else None
    try:
        asked = [plan.named(options.kind)] if options.kind else None
        known = results.read() if results else []
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    again = f"seed {seed} (repeat: python -m tests.chaos --seed {seed} --faults {options.faults}{' --long' * options.long})"
    print(again, flush=True)
    done = {record.episode for record in known if record.seed == seed}
    wanted = options.episode or range(options.faults)
    episodes = [
        episode
        for episode in asked or plan.first(seed, options.faults, options.long)
        if episode.number in wanted and episode.number not in done
    ]
    if options.plan:
        _print_plan(episodes)
        return 0
    if not shutil.which("cc"):
        print("there is no C compiler (cc), so no clock is set", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    records = list[report.Record]()

    def keep(episode: Sequence[report.Record]) -> None:
        records.extend(episode)
        if results:
            results.append(episode)

    code = _inject(seed, episodes, keep, options)
    print(report.table(known + records))
    print(again)
    nothing = bool(episodes) and not any(record.injected for record in records)
    return code or int(nothing or any(record.violations for record in records))


def _print_plan(episodes: Iterable[plan.Episode]) -> None:
    for episode in episodes:
        for number, step in enumerate(episode.steps):
            print(f"episode {episode.number}, step {number}: {episode.macs} Macs, {episode.shape}: {step}")


def _inject(
    seed: int,
    episodes: Iterable[plan.Episode],
    keep: Callable[[Sequence[report.Record]], None],
    options: argparse.Namespace,
) -> int:
    """Runs the episodes, starting none after --minutes; ``keep`` takes the records of each. Returns the exit status."""
    began, seconds = time.monotonic(), math.inf if options.minutes is None else 60 * options.minutes
    try:
        for _, group in groupby(episodes, key=lambda episode: episode.fleet):
            same = list(group)
            if time.monotonic() - began >= seconds:
                break
            with fleet.cluster(same[0].macs) as line, watching(line) as prometheus:
                runner = Runner(line, lambda text: print(text, flush=True), prometheus, options.look)
                remaining = (episode for episode in same if time.monotonic() - began < seconds)
                for records in runner.run(seed, remaining):
                    keep(records)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (LocalClusterError, NotInTimeError, ValueError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
