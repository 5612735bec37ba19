"""``python -m tests.chaos [--seed N] [--faults N] …``, from the root of the checkout."""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError

from tests.chaos import plan, report
from tests.chaos.run import CLUSTER, Runner, cluster
from tests.support.waiting import NotInTimeError


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    found.add_argument("--seed", type=int, help="what decides everything; without it one is drawn and printed")
    found.add_argument("--faults", type=int, default=30, help="faults to inject, rounded up to whole deployments of three")
    found.add_argument("--episode", type=int, action="append", help="only this deployment of the sequence (repeatable)")
    found.add_argument("--long", action="store_true", help="some faults outlast what a silent Node is forgiven (75 s)")
    found.add_argument("--plan", action="store_true", help="print what would be done, and do nothing")
    found.add_argument("--cluster", metavar="NAME", help="a cluster that runs already, with the suite's fleet; it stays")
    found.add_argument("--minutes", type=float, help="begin no further deployment after so many minutes")
    found.add_argument("--json", type=Path, metavar="FILE", help="write every step and the totals there")
    return found


def main() -> int:
    options = parser().parse_args()
    if options.faults < 1:
        print("--faults must be at least 1", file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    again = f"seed {seed} (again: python -m tests.chaos --seed {seed} --faults {options.faults}{' --long' * options.long})"
    print(again, flush=True)
    episodes = plan.first(seed, options.faults, options.long)
    if options.episode:
        episodes = [episode for episode in episodes if episode.number in options.episode]
    if options.plan:
        for episode in episodes:
            for number, step in enumerate(episode.steps):
                print(f"episode {episode.number}, step {number}: {episode.shape}: {step}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began, records, code = time.monotonic(), list[report.Record](), 0

    def in_time() -> bool:
        return options.minutes is None or time.monotonic() - began < 60 * options.minutes

    if options.cluster:
        os.environ[CLUSTER] = options.cluster
    try:
        with cluster() as line:
            runner = Runner(line, lambda text: print(text, flush=True))
            for episode in episodes:
                if not in_time():
                    break
                records += runner.run(seed, [episode])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except (LocalClusterError, NotInTimeError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        code = 1
    finally:
        seconds = time.monotonic() - began
        print(report.table(records, seconds))
        print(again)
        if options.json:
            options.json.write_text(json.dumps({"seed": seed, **report.as_json(records, seconds)}, indent=1) + "\n")
    return code or int(not any(record.injected for record in records) or any(record.violations for record in records))


if __name__ == "__main__":
    sys.exit(main())
