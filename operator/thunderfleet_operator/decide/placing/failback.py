"""Whether a group that lost its placement goes back to a better one, and what it waits for.

A group goes back only if the planner finds a better placement on steady cables, and only while no request is running. If that
placement is not as good as the lost one, the group may move once more.
"""

from dataclasses import dataclass

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import LostPlace, Recovery
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FailbackPolicy, PlacedTransport

from thunderfleet_operator.decide.group.lifecycle import NextStep, by_cable
from thunderfleet_operator.decide.manifests import transport
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.observed import Advice
from thunderfleet_operator.placement import Fleet
from thunderfleet_operator.placement.graph.hops import rdma_problem, ring_problem
from thunderfleet_operator.placement.rating.preferences import LAN_RING, RANKING, RDMA_TRANSPORTS

IDLE_SECONDS = 2.0
"""How often a group that is about to go back is checked for running requests."""

LOST_LINKS = 8
MOVED = (Reason.ADDRESS_LOST, Reason.NODE_GONE)
"""Failures of a Mac that got another address or name. Its new address is little known at first, so the new placement may be
worse."""

_GOES_BACK = "goes back to a better placement"


@dataclass(frozen=True, slots=True)
class Failback:
    """``due``: the group goes back now. Otherwise ``waits`` is what it waits for, as the end of a sentence."""

    due: bool = False
    waits: str | None = None
    recheck_seconds: float | None = None


def lost_place(view: GroupView) -> LostPlace | None:
    """Returns the placement that a group has lost, if its newest placement replaces it."""
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
    better = advice.text if advice is not None and not _soon_rdma(lost, fleet) else None
    if recovery.failback is FailbackPolicy.NEVER:
        return Failback(waits="stays, because spec.recovery.failback is Never") if better is not None else Failback()
    if better is None:
        return Failback(waits=_missing(lost, fleet))
    if report.state is None or report.state.requests != 0:
        return Failback(waits=f"{_GOES_BACK} when no request is running", recheck_seconds=IDLE_SECONDS)
    if not alone:
        return Failback(waits=f"{_GOES_BACK} when all other groups serve", recheck_seconds=IDLE_SECONDS)
    return Failback(due=True)


def lost_after(view: GroupView, step: NextStep, plan: Plan, fleet: Fleet, *, outdated: bool) -> LostPlace | None:
    """Returns the placement that a group will have lost when its next placement ``plan`` is written."""
    status = view.status
    lost = status.lost_place if status is not None else None
    if outdated or status is None:
        return None
    if step.returns:
        regained = lost is None or _missing(lost, fleet) is None or _grade(plan) <= _grade_of(lost.transport)
        return None if regained or lost is None else lost.model_copy(update={"returning": False})
    failure = step.failure
    if failure is None or not (by_cable(failure) or failure.reason in MOVED):
        return lost
    if failure.link in plan.links and transport(plan) is status.transport:
        # The cable worked again before the group got another placement.
        return lost
    if failure.link is None and (view.plan is None or _grade(plan) <= _grade(view.plan)):
        return lost
    if lost is None:
        lost = LostPlace(transport=status.transport, nodes=tuple(rank.node for rank in status.ranks))
    if failure.link is None:
        return lost
    links = [name for name in lost.links if name != failure.link]
    return lost.model_copy(update={"links": (*links, failure.link)[-LOST_LINKS:]})


def _grade(plan: Plan) -> int:
    """Returns the position of a placement's transport in the planner's order of preference; less is better."""
    return LAN_RING if "" in plan.links else _grade_of(transport(plan))


def _grade_of(transport: PlacedTransport | None) -> int:
    return RANKING.index(transport) if transport is not None else LAN_RING


def _soon_rdma(lost: LostPlace, fleet: Fleet) -> bool:
    """Whether RDMA works on a lost cable and only has to become steady, so that moving to TCP on it is not worthwhile."""
    cables = [fleet.cables.get(name) for name in lost.links if lost.transport in RDMA_TRANSPORTS]
    return any(cable is not None and cable.rdma_unsteady is not None for cable in cables)


def _missing(lost: LostPlace, fleet: Fleet) -> str | None:
    """What is wrong with the cables of the lost place."""
    rdma = lost.transport in RDMA_TRANSPORTS
    for name in lost.links:
        cable = fleet.cables.get(name)
        if cable is None:
            return f"{_GOES_BACK} when cable {name} is plugged in again: neither end reports it"
        problem = rdma_problem(cable) if rdma else ring_problem(fleet, cable)
        if problem is not None:
            return f"{_GOES_BACK} when cable {name} can be used: {problem}"
    return None
