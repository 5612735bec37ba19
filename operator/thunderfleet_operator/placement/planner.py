"""The planner: which Macs take which ranks of a group and over what transport, or why none can."""

from dataclasses import replace

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, PlacementPolicy

from thunderfleet_operator.placement.assembly import assemble, by_score, predicted
from thunderfleet_operator.placement.explain.explanation import explain
from thunderfleet_operator.placement.inputs.fleet import Fleet
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.policy import ALIKE, Choice, Chosen, Unpredicted, best, choose, threshold
from thunderfleet_operator.placement.rating.preferences import LAN_RING, RDMA_TRANSPORTS
from thunderfleet_operator.placement.rating.score import Score
from thunderfleet_operator.placement.result import Placement, RunnerUp, Unplaceable
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch
from thunderfleet_operator.placement.search.hop_graphs import Known

KEPT = "kept its placement"
MAX_STEPS = 300_000
"""Step limit of one plan: one to two seconds. Real fleets need far fewer steps."""
AFTER_LIMIT = 4
"""The search by score after the choice by speed gets this fraction of the steps. It runs for runners-up, and if the choice by
speed finds nothing within its steps, because it begins with other Macs. If speeds are not known, it gets all remaining
steps."""
UNEXPLAINED = Unplaceable(Reason.NO_ROOM, "")


def plan(
    fleet: Fleet,
    request: Request,
    *,
    runners_up: int = 0,
    max_steps: int = MAX_STEPS,
    explained: bool = True,
    known: Known | None = None,
) -> Placement | Unplaceable:
    """Where one group goes. The answer does not depend on the order of the fleet's Macs and cables.

    ``runners_up``: how many placements with worse scores to report. ``max_steps``: when the search takes more steps, the best
    placement found so far is returned and marked as not proven. ``explained``: whether to find out why there is no placement.
    ``known``: what other searches have looked at.
    """
    found = _placed(CandidateSearch(fleet, request, StepBudget(max_steps), known=known), runners_up, max_steps)
    if isinstance(found, Placement):
        return found
    return explain(found) if explained else UNEXPLAINED


def _placed(search: CandidateSearch, runners_up: int, max_steps: int) -> Placement | CandidateSearch:
    """The placement, or the search that found none."""
    request, kept = search.request, _kept(search)
    chosen, limited = None, False
    if request.policy is not None and kept is None:
        chosen = choose(search, request.policy)
        if chosen is None and not search.budget.exhausted:
            return search
        limited = chosen is None
        search = search.again(_after(search.budget.left if isinstance(chosen, Unpredicted) else 0, max_steps))
    choice = chosen.choice if isinstance(chosen, Chosen) else None
    first = kept or (choice.candidate if choice is not None else None)
    ranked = [first] if first is not None else []
    for candidate in search.candidates(1 + runners_up) if not ranked or runners_up else ():
        if all(candidate.found.tie != other.found.tie for other in ranked):
            ranked.append(candidate)
        if len(ranked) > runners_up:
            break
    if not ranked:
        return search
    winner, *losers = ranked
    return assemble(
        winner,
        request,
        basis=_basis(winner, request, chosen, kept=kept is not None),
        kept=kept is not None,
        proven=chosen.proven if isinstance(chosen, Chosen) else not (limited or search.budget.exhausted),
        runners_up=tuple(_runner_up(loser, winner, request, choice) for loser in losers),
    )


def _after(left: int, max_steps: int) -> StepBudget:
    """Budget of the search by score, which follows the choice by speed. ``left``: steps that the choice did not use."""
    return StepBudget(max(left, max_steps // AFTER_LIMIT))


def _basis(winner: Candidate, request: Request, chosen: Chosen | Unpredicted | None, *, kept: bool) -> str:
    """By what the winner was chosen."""
    if kept:
        return KEPT
    if isinstance(chosen, Chosen):
        return f"by predicted speed (policy {request.policy})"
    return by_score(winner, chosen.why if chosen is not None else "")


def _kept(search: CandidateSearch) -> Candidate | None:
    """The current placement of the group, if it may stay. The policy decides between the splits that its Macs allow."""
    found, policy = search.current(), search.request.policy
    if found is None or policy is None:
        return found
    choices = []
    for candidate in search.currents(found.transport):
        speed = predicted(candidate, search.request)
        if speed is None:
            return found
        if candidate.score.transport == found.score.transport:
            choices.append(Choice(candidate, speed.decode))
    return best(choices, policy).candidate


def confirm(fleet: Fleet, request: Request, planned: Placement) -> Placement | None:
    """A placement that was planned on an earlier fleet, updated for this one; None if it is no longer possible.

    This takes far less time than planning again, and the result can be used like one of ``plan``. A better placement may exist
    by now.
    """
    if any(name not in fleet.macs for name in planned.nodes):
        return None
    # No other Mac can take one of its ranks, and a large fleet has many.
    search = CandidateSearch(fleet, replace(request, current=planned.nodes), StepBudget(MAX_STEPS), planned.nodes)
    found = search.current(planned.transport, planned.split)
    if found is None or found.cohort.model.path != planned.model_path:
        return None
    return assemble(found, request, basis=planned.basis, kept=planned.kept, proven=planned.proven)


def present(fleet: Fleet, request: Request, transport: PlacedTransport, split: PlacedSplit) -> Placement | None:
    """The placement of a group that runs on ``request.current`` over this transport; None if it is no longer possible."""
    found = CandidateSearch(fleet, request, StepBudget(MAX_STEPS)).current(transport, split)
    return assemble(found, request, basis=KEPT, kept=True) if found is not None else None


def _runner_up(loser: Candidate, winner: Candidate, request: Request, choice: Choice | None) -> RunnerUp:
    """``choice``: the winner, if it was chosen by speed."""
    speed = predicted(loser, request)
    if choice is not None and speed is not None and request.policy is not None:
        alike = max(speed.decode, choice.speed) < ALIKE * min(speed.decode, choice.speed)
        if not alike or loser.score < winner.score:
            why = _why_slower(loser, winner, speed.decode, choice.speed, request.policy)
            return RunnerUp(loser.nodes, loser.transport, loser.split, why, speed)
    better = loser.score < winner.score
    why = "better, but the group keeps its current placement" if better else loser.score.why_worse(winner.score)
    return RunnerUp(loser.nodes, loser.transport, loser.split, why, speed)


def _why_slower(loser: Candidate, winner: Candidate, speed: float, fastest: float, policy: PlacementPolicy) -> str:
    """Why predicted speeds decide against a candidate."""
    wanted = threshold(loser, winner, policy)
    rates = f"predicted {speed:.3g} tokens/s instead of {fastest:.3g}"
    if fastest < speed < wanted * fastest:
        return f"{rates}, not {wanted:g} times as fast, which policy {policy} requires"
    return f"{rates} (policy {policy})"


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


def better(
    fleet: Fleet,
    request: Request,
    running: PlacedTransport | None = None,
    links: tuple[str, ...] = (),
    split: PlacedSplit | None = None,
    known: Known | None = None,
) -> str | None:
    """What would be better about another placement of a group that stays where it is (``request.current``); None if nothing.

    ``running`` and ``split``: the transport and split that the group uses, because its Macs may support better ones by now.
    ``links``: its cables by hop, empty for a hop over a LAN, for the same reason; none if they are not known. Only what users
    would notice counts: predicted speed, transport, number of Macs, split and slowest hop. ``known``: as in ``plan``.
    """
    search = CandidateSearch(fleet, request, StepBudget(MAX_STEPS), known=known)
    kept = search.current(running, split)
    if kept is None:
        return None
    other, speed = _as_running(fleet, kept, links), predicted(kept, request)
    chosen = choose(search, request.policy) if request.policy is not None and speed is not None else None
    if isinstance(chosen, Chosen) and speed is not None:
        return _faster(chosen.choice, kept, speed.decode, other, request)
    found = next(search.again(_after(search.budget.left, MAX_STEPS)).candidates(1), None)
    return _scores_better(found, other) if found is not None else None


def _scores_better(found: Candidate, running: Score) -> str | None:
    """The parts of a better score that users would notice."""
    one, other = found.score, running
    if (one.transport, one.macs, one.split, one.neg_speed) >= (other.transport, other.macs, other.split, other.neg_speed):
        return None
    if (one.transport, one.macs, one.split) == (other.transport, other.macs, other.split) and one.shared > other.shared:
        return None
    return f"{', '.join(found.nodes)}; currently {other.why_worse(one)}"


def _faster(choice: Choice, kept: Candidate, speed: float, running: Score, request: Request) -> str | None:
    """``better`` by predicted speed, by ``request.policy``: faster by the threshold, or as fast with a better score."""
    found = choice.candidate
    if request.policy is not None and choice.speed >= threshold(found, kept, request.policy) * speed:
        nodes = ", ".join(found.nodes)
        here = f"{speed:.3g} tokens/s on the current Macs"
        return f"{nodes}; predicted {choice.speed:.3g} tokens/s there, {here} (policy {request.policy})"
    text = _scores_better(found, running) if choice.speed * ALIKE > speed else None
    return text or _scores_better(kept, running)
