"""A placement made from the chosen candidate: ranks, addresses, RDMA devices, and the reason in words."""

from collections.abc import Callable

from thunderfleet_crds.vocabulary import Transport

from thunderfleet_operator.placement.graph.hops import RELAY_COST, rdma_problem
from thunderfleet_operator.placement.inputs.fleet import Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.memory import Division
from thunderfleet_operator.placement.rating.chips import generation
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS, allowed_splits
from thunderfleet_operator.placement.rating.speed import Speed, predict
from thunderfleet_operator.placement.result import Placement, RankPlacement, Relay, RunnerUp
from thunderfleet_operator.placement.search.candidates import Candidate

NAMED = 3
"""Most Macs named in a reason."""


def assemble(
    candidate: Candidate,
    request: Request,
    *,
    basis: str = "",
    kept: bool = False,
    proven: bool = True,
    runners_up: tuple[RunnerUp, ...] = (),
) -> Placement:
    """The placement of a candidate. ``kept``: the group stays where it is. ``proven``: the search completed.

    ``basis``: by what it was chosen; empty: by its score.
    """
    basis = basis or by_score(candidate)
    found = candidate.found
    divided = candidate.cohort.needs.divide(candidate.split, [mac.free_bytes for mac in found.graph.members(found.order)])
    if divided is None:
        raise AssertionError(f"the search chose {candidate.nodes}, which have no room")
    return Placement(
        model_path=candidate.cohort.model.path,
        transport=candidate.transport,
        split=candidate.split,
        ranks=_ranks(candidate, divided),
        cables=tuple(hop.cable.name if hop.cable is not None else "" for hop in found.hops),
        speeds=tuple((hop.speed_mbps, hop.measured) for hop in found.hops),
        reason=_reason(candidate, request, divided, basis),
        basis=basis,
        score=candidate.score,
        runners_up=runners_up,
        kept=kept,
        proven=proven,
        predicted=predicted(candidate, request, divided),
    )


def predicted(candidate: Candidate, request: Request, divided: Division | None = None) -> Speed | None:
    """The predicted speed of a candidate. ``divided``: its division, if it was made already."""
    members = candidate.found.graph.members(candidate.found.order)
    found = divided or candidate.cohort.needs.divide(candidate.split, [mac.free_bytes for mac in members])
    shares = [last - first for first, last in found.layers] if found is not None else []
    return predict(
        candidate.cohort.model,
        members,
        candidate.transport,
        candidate.split,
        shares,
        request.lengths,
        corrections=request.corrections,
    )


def _ranks(candidate: Candidate, divided: Division) -> tuple[RankPlacement, ...]:
    graph, order = candidate.found.graph, candidate.found.order
    devices = _devices(candidate) if candidate.transport in RDMA_TRANSPORTS else [()] * len(order)
    ranks = []
    for rank, mac in enumerate(graph.members(order)):
        hop = graph.hops(order[rank - 1])[order[rank]] if candidate.transport is Transport.RING else None
        ranks.append(
            RankPlacement(
                rank=rank,
                node=mac.name,
                address=mac.address or "",
                memory_bytes=divided.needs[rank],
                layers=divided.layers[rank] if divided.layers else None,
                ring_address=hop.address if hop is not None and not hop.relay else None,
                relay=Relay(hop.address or "", hop.backwards) if hop is not None and hop.relay else None,
                devices=devices[rank],
                coordinator=candidate.found.coordinator[mac.name] if rank else None,
            )
        )
    return tuple(ranks)


def _devices(candidate: Candidate) -> list[tuple[str | None, ...]]:
    """By rank, the device that faces each rank."""
    size = len(candidate.found.order)
    found: list[list[str | None]] = [[None] * size for _ in range(size)]
    rank_of = {name: rank for rank, name in enumerate(candidate.nodes)}
    for hop in candidate.found.hops:
        if hop.cable is not None:
            a, b = hop.cable.a, hop.cable.b
            one, other = rank_of[a.node], rank_of[b.node]
            found[one][other], found[other][one] = a.device, b.device
    return [tuple(row) for row in found]


def by_score(candidate: Candidate, unpredicted: str = "") -> str:
    """By what a candidate was chosen, where speeds did not decide. ``unpredicted``: why they cannot be predicted."""
    chosen = "fewest Macs that fit" if candidate.transport is Transport.NONE else "best transport, fewest Macs that fit"
    return f"{chosen} (no speeds are predicted: {unpredicted})" if unpredicted else chosen


def _reason(candidate: Candidate, request: Request, divided: Division, basis: str) -> str:
    alone = candidate.transport is Transport.NONE
    parts = (
        basis,
        _kind(candidate, request),
        _layers(divided),
        "" if alone else f"slowest hop {candidate.score.speed}",
        *([_builds(candidate), _generations(candidate)] if candidate.transport in RDMA_TRANSPORTS else []),
    )
    return "; ".join(part for part in parts if part)


def _builds(candidate: Candidate) -> str:
    """A warning about Macs whose RDMA stacks may not fit together: those of different builds of macOS."""
    named = _different(candidate, lambda mac: mac.build)
    return f"the Macs run different builds of macOS ({named}): RDMA is safer if all run the same build" if named else ""


def _generations(candidate: Candidate) -> str:
    """A warning about Macs of different generations, between which messages of models with experts have been lost."""
    named = _different(candidate, lambda mac: generation(mac.chip)) if candidate.cohort.model.mixture else ""
    return (
        f"the Macs have chips of different generations ({named}): over RDMA, groups of models with experts have stalled on "
        "such Macs; if this one does, restrict spec.nodes.selector to one generation, or set spec.transport to Ring"
        if named
        else ""
    )


def _different(candidate: Candidate, value: Callable[[Mac], str]) -> str:
    """The Macs and their known values, if these are not all the same."""
    known = {mac.name: value(mac) for mac in candidate.found.graph.members(candidate.found.order) if value(mac)}
    if len(set(known.values())) < 2:
        return ""
    named = ", ".join(f"{name} {value}" for name, value in sorted(known.items())[:NAMED])
    return f"{named}{' …' if len(known) > NAMED else ''}"


def _kind(candidate: Candidate, request: Request) -> str:
    size, transport = candidate.score.macs, candidate.transport
    if transport is Transport.NONE:
        return "one Mac holds the whole model"
    if transport is Transport.RING:
        over = f"a TCP ring of {size} Macs {_over_lan(candidate) or 'on Thunderbolt cables'}"
        over += _why_no_rdma(candidate) if request.transport is Transport.AUTO else ""
    else:
        over = f"a JACCL {'mesh' if transport is Transport.JACCL else 'ring'} of {size} Macs"
    return f"{candidate.split} parallelism over {over}{_why_fallback(candidate, request)}"


def _over_lan(candidate: Candidate) -> str:
    hops = candidate.found.hops
    relayed, direct = sum(hop.relay for hop in hops), sum(hop.cable is None and not hop.relay for hop in hops)
    parts = [f"{direct} of {len(hops)} hops over the LAN, unencrypted"] if direct else []
    if relayed:
        parts.append(f"{relayed} of {len(hops)} hops over the LAN relayed by the runner pods, encrypted ({RELAY_COST})")
    return "with " + " and ".join(parts) if parts else ""


def _why_no_rdma(candidate: Candidate) -> str:
    macs = candidate.found.graph.members(candidate.found.order)
    without = sorted(mac.name for mac in macs if "jaccl" not in mac.backends)
    if without:
        more = " …" if len(without) > NAMED else ""
        return f" (no RDMA: the MLX of {', '.join(without[:NAMED])}{more} has no jaccl backend)"
    for hop in candidate.found.hops:
        problem = rdma_problem(hop.cable) if hop.cable is not None else None
        if hop.cable is not None and problem is not None:
            # The remedy follows a colon; the ThunderboltLink states it.
            return f" (no RDMA over {hop.cable.name}: {problem.partition(': ')[0]})"
    return ""


def _why_fallback(candidate: Candidate, request: Request) -> str:
    """Why the model is not split in the way that suits the transport best."""
    if candidate.score.split == 0:
        return ""
    preferred = allowed_splits(candidate.transport, request)[0]
    need = candidate.cohort.needs.bounds(preferred, candidate.score.macs)
    return f" (not {preferred}: {need if isinstance(need, str) else 'at least one rank would not fit'})"


def _layers(divided: Division) -> str:
    if not divided.layers:
        return ""
    counts = "/".join(str(last - first) for first, last in divided.layers)
    return (
        f"layers {counts}, in proportion to free memory"
        if divided.by_free_memory
        else f"layers {counts}, not in proportion to free memory, because otherwise at least one rank would not fit"
    )
