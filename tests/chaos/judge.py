"""Judges what clients got throughout a fault, and what the control plane had to write. Pure."""

from collections.abc import Iterable, Sequence
from statistics import median

from tests.chaos.clients import Outcome, Result
from tests.chaos.plan import Action, Stage, Step, Target
from tests.chaos.report import Record

WRITES_PER_SECOND = 2.0
"""Our programs write less than this at the median second."""
BURST = 120
"""Writes beyond that rate that one fault may cause: the group of six Macs that it ends and starts again, and its deployment."""


def answers(results: Iterable[Result], step: Step, record: Record) -> None:
    """Adds the wrong responses of the deployment's clients to the record."""
    # A drain ends the streams that do not finish within its grace period.
    beside = step.beside and step.stage is Stage.STREAMS
    at_gateway = gateway_hit(step)
    for result in results:
        if result.outcome is Outcome.ERROR_EVENT:
            record.errors[result.detail] += 1
            if beside:
                record.violations.append(f"a client: a stream ended though the group was not hit: {result.detail}")
        elif result.outcome is Outcome.WRONG or (result.outcome is Outcome.CUT and not at_gateway):
            record.violations.append(f"a client: {result.outcome.value}: {result.detail}")


def update(results: Iterable[Result], step: Step, record: Record) -> None:
    """``results``: of the requests that were not answered yet when the step began. No client may notice an update."""
    for result in results:
        if result.outcome is not Outcome.WHOLE and step.does(Action.UPDATE):
            record.violations.append(f"a client noticed the update: {result.outcome.value}: {result.detail}")


def gateway_hit(step: Step) -> bool:
    """Whether the process or Mac is hit that sends the streams, so that they may break off."""
    parts = (Target.SUPERVISOR, Target.MAC)
    moved = step.does(Action.LOSE)
    return moved or any(blow.rank == 0 and blow.fault.target in parts for blow in step.blows)


def untouched(results: Iterable[Result], record: Record) -> None:
    """Clients of a group that was not hit get whole answers only."""
    for result in results:
        if result.outcome is not Outcome.WHOLE:
            record.violations.append(f"a client of the untouched group: {result.outcome.value}: {result.detail}")


def touched(step: Step, nodes: Sequence[str], other: str) -> bool:
    """Whether a step on a deployment with ranks on ``nodes`` also hits the Mac ``other``."""
    return any(blow.fault.touches_mac(step.seconds) and nodes[blow.rank] == other for blow in step.blows)


def busy(counts: Sequence[int]) -> list[str]:
    """``counts``: writes of our programs in each second."""
    found = []
    if (rate := median(counts)) >= WRITES_PER_SECOND:
        found.append(f"{rate:.1f} writes per second at the median")
    if (written := sum(counts)) >= WRITES_PER_SECOND * len(counts) + BURST:
        found.append(f"{written} writes in {len(counts)} s")
    return found
