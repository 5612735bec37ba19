"""Figures of what groups prove before they serve: what it costs, how often it is wrong, and what it finds.

``python -m tests.bench.groups.proofs [--starts N]`` measures the last two without a cluster.
"""

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from thunderfleet_crds.exchange.plan import MemoryPlan, Plan, ProvenLengths
from thunderfleet_crds.vocabulary import ConditionStatus
from thunderfleet_runner.group.decide.attempts import Phase
from thunderfleet_runner.host import preflight

from tests.bench import models
from tests.bench.figures import Bound, Figure, table
from tests.bench.groups import formation
from tests.bench.line import BenchFailed, Line
from tests.support.models import copymodel

STARTS = 200
VOCABULARY = 1000
PASSAGE = 300
CORRUPTIONS = (
    "tests/unit/runner/ranks/test_corruptions.py",
    "tests/unit/runner/ranks/test_changed_messages.py",
    "tests/unit/runner/ranks/test_lockstep_group.py",
    "tests/unit/runner/host/test_weight_values.py",
)
FAULTS = ("test_in_", "test_only_in_", "test_a_wrong_", "test_no_wrong_token", "test_a_serving_group_reads")
TEST_SECONDS = 3600.0

Say = Callable[[str], None]


def run(line: Line, repeats: int, say: Say) -> list[Figure]:
    """All figures."""
    return [added(line, repeats, say), alarms(STARTS, say), caught(say)]


def added(line: Line, repeats: int, say: Say) -> Figure:
    """Seconds that the checks add from apply to the first token, one deployment with them and one without after the other."""
    found: dict[str, list[float]] = {"Full": [], "None": []}
    for number in range(repeats):
        for verify, seconds in found.items():
            with line.deployed("proofs", models.TINY, "Tensor", {"verify": verify}) as (began, ready, _):
                answer = line.ask("proofs", ready.endpoint, models.TINY, 1)
                seconds.append(answer["wall"] - began)
            say(f"checks {number + 1}/{repeats}: {seconds[-1]:.2f} s with spec.verify: {verify}")
    full, none = (statistics.median(seconds) for seconds in found.values())
    note = f"median of {repeats}; first token after {full:.2f} s with all checks, {none:.2f} s without"
    return Figure("checks-before-first-token", "s", (full - none,), bound=Bound("<=", 2.0), note=note)


def alarms(starts: int, say: Say) -> Figure:
    """Groups of two ranks that start without a fault, pass all checks, and answer what they have answered before."""
    wrong: list[str] = []
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="proofs-") as name:
        model = Path(name) / "copier"
        copymodel.make(model, VOCABULARY)
        for number in range(starts):
            began = time.monotonic()
            if said := asyncio.run(_start(model)):
                wrong.append(said)
                say(f"start {number + 1}: {said}")
            took.append(time.monotonic() - began)
            if (number + 1) % 20 == 0:
                say(f"{number + 1} of {starts} starts, {len(wrong)} false alarms")
    note = f"{starts} starts of two tensor ranks, {statistics.median(took):.1f} s each" + (f"; {wrong[0]}" if wrong else "")
    return Figure("false-alarms", "", (float(len(wrong)),), bound=Bound("<=", 0), note=note)


async def _start(model: Path) -> str:
    """The failure that a group without a fault reports; "" if it passes."""
    with tempfile.TemporaryDirectory(prefix="proofs-group-") as name:
        group = formation.Group(Path(name), 2, model)
        group.plan = _asked(group.plan)
        try:
            for rank in range(2):
                group.start(rank)
            await group.until(Phase.READY, Phase.GAVE_UP)
            state = group.supervisors[0].state
        finally:
            await group.end()
    told = state.verified
    if state.failure is not None:
        return f"{state.failure.reason}: {state.failure.message}"
    if told is None or told.status is not ConditionStatus.TRUE or told.lengths != (PASSAGE,):
        return told.message if told is not None else "nothing was checked"
    return ""


def _asked(plan: Plan) -> Plan:
    """The plan of a group that must continue the shortest passage before it serves."""
    proven = ProvenLengths(digest=preflight.digest(plan), lengths=(PASSAGE,))
    memory = MemoryPlan(context_tokens=2048, concurrent_requests=4, cached_tokens=2048)
    return plan.model_copy(update={"proven_lengths": proven, "memory": memory})


def caught(say: Say) -> Figure:
    """Corruptions in real ranks that a check finds, by the tests of all of them."""
    # No marker is left out, so those of `make soak` run too.
    command = [sys.executable, "-m", "pytest", *CORRUPTIONS, "-n", "0", "-q", "-rA", "-m", "", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    results = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\S+?)(?:\[(.*?)\])?(?: - .*)?$", done.stdout, re.MULTILINE)
    of_faults = [(result, name, case) for result, name, case in results if name.startswith(FAULTS)]
    if not of_faults:
        raise BenchFailed(f"no corruption was tried: {done.stdout[-500:]}{done.stderr[-500:]}")
    for result, name, case in of_faults:
        say(f"{'caught' if result == 'PASSED' else 'missed'}: {name.removeprefix('test_').replace('_', ' ')} {case}")
    found = sum(result == "PASSED" for result, _, _ in of_faults)
    levels = sorted({name.removeprefix("test_").replace("_", " ") for _, name, _ in of_faults})
    share = 100.0 * found / len(of_faults)
    note = f"{found} of {len(of_faults)}: {'; '.join(levels)}"
    return Figure("corruptions-caught", "%", (share,), bound=Bound(">=", 100), note=note)


def main() -> int:
    """0 when every bound holds, 1 when one does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.groups.proofs", description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help=f"starts without a fault (default: {STARTS})")
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = [alarms(arguments.starts, say), caught(say)]
    print(table(found))
    return 0 if all(figure.holds is not False for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
