"""Whether a group that has lost its place goes back to a better one, and what it waits for.

It goes back only where the planner knows a better placement on steady cables, and only between requests.
"""

from dataclasses import dataclass

from thunderfleet_crds.modeldeployment import LostPlace, Recovery
from thunderfleet_crds.vocabulary import FailbackPolicy, Transport

from thunderfleet_operator.observe.observed import Advice
from thunderfleet_operator.observe.plans import GroupView, Report
from thunderfleet_operator.placement import Fleet
from thunderfleet_operator.placement.graph.hops import rdma_problem, ring_problem

IDLE_SECONDS = 2.0
"""How often a group that is about to go back is checked for running requests."""

_GOES_BACK = "goes back to a better placement"


@dataclass(frozen=True, slots=True)
class Failback:
    """``due``: the group goes back now. Otherwise ``waits`` says when it does, as the end of a sentence about the group."""

    due: bool = False
    waits: str | None = None
    recheck_seconds: float | None = None


def lost_place(view: GroupView) -> LostPlace | None:
    """The place that a group has lost, if its newest placement has taken the place of that."""
    status = view.status
    return status.lost_place if status is not None and status.epoch == view.last_epoch else None


def failback(
    view: GroupView, report: Report, advice: Advice | None, fleet: Fleet, recovery: Recovery, *, alone: bool
) -> Failback:
    """What happens to a group that serves.

    ``advice``: whether there is a better placement on ``fleet``; None if that is not known yet. ``alone``: whether all other
    groups of the deployment serve.
    """
    lost = lost_place(view)
    if lost is None:
        return Failback()
    if lost.returning:
        return Failback(due=True)
    better = advice.text if advice is not None else None
    if recovery.failback is FailbackPolicy.NEVER:
        return Failback(waits="stays, because spec.recovery.failback is Never") if better is not None else Failback()
    if better is None:
        return Failback(waits=_missing(lost, fleet))
    if report.state is None or report.state.requests != 0:
        return Failback(waits=f"{_GOES_BACK} when no request is running", recheck_seconds=IDLE_SECONDS)
    if not alone:
        return Failback(waits=f"{_GOES_BACK} when all other groups serve", recheck_seconds=IDLE_SECONDS)
    return Failback(due=True)


def _missing(lost: LostPlace, fleet: Fleet) -> str | None:
    """What is wrong with the cables of the lost place."""
    rdma = lost.transport in (Transport.JACCL, Transport.JACCL_RING)
    for name in lost.links:
        cable = fleet.cables.get(name)
        if cable is None:
            return f"{_GOES_BACK} when cable {name} is plugged in again: neither end reports it"
        problem = rdma_problem(cable) if rdma else ring_problem(fleet, cable)
        if problem is not None:
            return f"{_GOES_BACK} when cable {name} can be used: {problem}"
    return None
