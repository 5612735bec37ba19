"""The planner: which Macs take which ranks of a group and over what transport, or why none can."""

from dataclasses import replace

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport

from thunderfleet_operator.placement.assembly import assemble, predicted
from thunderfleet_operator.placement.explain.explanation import explain
from thunderfleet_operator.placement.fleet import Fleet
from thunderfleet_operator.placement.policy import choose, is_better
from thunderfleet_operator.placement.preferences import LAN_RING, RDMA_TRANSPORTS
from thunderfleet_operator.placement.request import Request
from thunderfleet_operator.placement.result import Placement, RunnerUp, Unplaceable
from thunderfleet_operator.placement.score import Score
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch

MAX_STEPS = 400_000
"""Step limit of one plan: about a second. Fleets that people actually cable need far fewer."""


def plan(fleet: Fleet, request: Request, *, runners_up: int = 0, max_steps: int = MAX_STEPS) -> Placement | Unplaceable:
    """Where one group goes. The answer does not depend on the order of the fleet's Macs and cables.

    ``runners_up``: how many placements with worse scores to report. ``max_steps``: when the search takes more steps, the best
    placement found so far is returned and marked as not proven.
    """
    search = CandidateSearch(fleet, request, StepBudget(max_steps))
    kept = search.current()
    chosen = choose(fleet, request, request.policy, max_steps) if request.policy is not None and kept is None else None
    ranked = [candidate for candidate in (kept, chosen.candidate if chosen is not None else None) if candidate is not None]
    for candidate in search.candidates(1 + runners_up) if not ranked or runners_up else ():
        if all(candidate.found.tie != other.found.tie for other in ranked):
            ranked.append(candidate)
        if len(ranked) > runners_up:
            break
    if not ranked:
        return explain(search)
    winner, *losers = ranked
    return assemble(
        winner,
        request,
        kept=kept is not None,
        proven=not search.budget.exhausted,
        runners_up=tuple(_runner_up(loser, winner, request, by_speed=chosen is not None) for loser in losers),
        by_speed=chosen is not None,
    )


def confirm(fleet: Fleet, request: Request, planned: Placement) -> Placement | None:
    """A placement that was planned on an earlier fleet, as it is on this one; None if its Macs no longer take the group so.

    Far cheaper than to plan again, and its answer can be carried out like one of ``plan``. A better placement may exist by now.
    """
    search = CandidateSearch(fleet, replace(request, current=planned.nodes), StepBudget(MAX_STEPS))
    found = search.current(planned.transport, planned.split)
    if found is None or found.cohort.model.path != planned.model_path:
        return None
    return assemble(found, request, kept=planned.kept, proven=planned.proven)


def present(fleet: Fleet, request: Request, transport: PlacedTransport, split: PlacedSplit) -> Placement | None:
    """The placement of a group that runs on ``request.current`` over this transport; None if its Macs no longer take it so."""
    found = CandidateSearch(fleet, request, StepBudget(MAX_STEPS)).current(transport, split)
    return assemble(found, request, kept=True, proven=True) if found is not None else None


def _runner_up(loser: Candidate, winner: Candidate, request: Request, *, by_speed: bool) -> RunnerUp:
    speed, best = predicted(loser, request), predicted(winner, request)
    if by_speed and speed is not None and best is not None and request.policy is not None:
        why = f"predicted {speed.decode:.3g} tokens/s instead of {best.decode:.3g} (policy {request.policy})"
        return RunnerUp(loser.nodes, loser.transport, loser.split, why, speed)
    better = loser.score < winner.score
    why = "better, but the group keeps its current placement" if better else loser.score.why_worse(winner.score)
    return RunnerUp(loser.nodes, loser.transport, loser.split, why, speed)


def _as_running(fleet: Fleet, kept: Candidate, links: tuple[str, ...]) -> Score:
    """The score of a group on its present cables. That of ``kept`` is for the best cables that its Macs have."""
    score = kept.score
    if not links or set(links) == {hop.cable.name if hop.cable is not None else "" for hop in kept.found.hops}:
        return score
    if "" in links:
        return replace(score, transport=LAN_RING, neg_speed=0, speed_mbps=0)
    rdma = kept.transport in RDMA_TRANSPORTS
    cables = [fleet.cables[name] for name in links if name in fleet.cables]
    slowest = min((cable.rdma_rate if rdma else cable.ring_rate for cable in cables), default=0)
    slower = min(slowest, score.speed_mbps)
    return replace(score, neg_speed=-kept.found.graph.bucket(slower), speed_mbps=slower)


def better(fleet: Fleet, request: Request, running: PlacedTransport | None = None, links: tuple[str, ...] = ()) -> str | None:
    """What would be better about another placement of a group that stays where it is (``request.current``); None if nothing.

    ``running``: the transport that the group uses, because its Macs may support a better one by now. ``links``: its cables by
    hop, empty for a hop over a LAN, for the same reason; none if they are not known. Only what users would notice counts:
    transport, number of Macs, split and slowest hop.
    """
    search = CandidateSearch(fleet, request, StepBudget(MAX_STEPS))
    kept = search.current(running)
    if kept is None:
        return None
    other = _as_running(fleet, kept, links)
    if request.policy is not None:
        return _faster(fleet, request, kept) or _recabled(kept, other)
    best = next(search.candidates(1), None)
    if best is None:
        return None
    one = best.score
    if (one.transport, one.macs, one.split, one.neg_speed) >= (other.transport, other.macs, other.split, other.neg_speed):
        return None
    if (one.transport, one.macs, one.split) == (other.transport, other.macs, other.split) and one.shared > other.shared:
        return None
    return f"{', '.join(best.nodes)}; currently {other.why_worse(one)}"


def _recabled(kept: Candidate, running: Score) -> str | None:
    """Whether the Macs of a group have better cables than it uses."""
    if (kept.score.transport, kept.score.neg_speed) >= (running.transport, running.neg_speed):
        return None
    return f"{', '.join(kept.nodes)}; currently {running.why_worse(kept.score)}"


def _faster(fleet: Fleet, request: Request, kept: Candidate) -> str | None:
    """``better`` by predicted speed, as ``request.policy`` asks."""
    assert request.policy is not None
    speed, found = predicted(kept, request), choose(fleet, request, request.policy, MAX_STEPS)
    if speed is None or found is None or not is_better(found, speed.decode, request.policy):
        return None
    nodes = ", ".join(found.candidate.nodes)
    return f"{nodes}; currently predicted {speed.decode:.3g} tokens/s instead of {found.speed:.3g} (policy {request.policy})"
