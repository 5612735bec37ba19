"""The answer of a search that found nothing: near misses by transport, a reason for every Mac, and a short message."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest, nsmallest

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort, mlx_versions
from thunderfleet_operator.placement.eligibility import wanted_model
from thunderfleet_operator.placement.explain.fixes import NO_RANK_0
from thunderfleet_operator.placement.explain.miss import NAMED, Miss, by_message, named
from thunderfleet_operator.placement.explain.obstacles import without_backends
from thunderfleet_operator.placement.explain.shortage import alone_text
from thunderfleet_operator.placement.explain.transports import single_mac_misses, transport_misses
from thunderfleet_operator.placement.inputs.fleet import MAX_RANKS, Mac
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.rating.preferences import LABELS, allowed_transports, backend
from thunderfleet_operator.placement.result import Changes, MacReason, NearMiss, Unplaceable
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import CandidateSearch
from thunderfleet_operator.placement.units import one_line

NO_MACS = (
    "the cluster has no Mac: run `sudo thunderfleet join -` on a Mac, with the line that `thunderfleet init` prints; with "
    "another control plane, `thunderfleet-kubelet join`"
)
NEAR_MISSES = 16
"""Most near misses in an answer."""
COHORTS = 3
"""Maximum cohorts whose near misses are searched: if every Mac has its own files, there are as many cohorts as Macs."""
STEPS = 40_000
"""Step limit of all near misses together."""


def explain(search: CandidateSearch) -> Unplaceable:
    """Why a search found nothing."""
    if not search.fleet.macs:
        return Unplaceable(Reason.NO_MACS, NO_MACS)
    cohorts = _promising(search.cohorts) or _possible_cohorts(search)
    kinds = allowed_transports(search.request) if cohorts else ()
    shares = _shares(StepBudget(STEPS), len(kinds))
    found = (_misses(search, cohorts, kind, share) for kind, share in zip(kinds, shares, strict=True))
    by_transport = [*_unreached(search), *filter(None, found)]
    best = sorted((misses[0] for misses in by_transport), key=lambda miss: miss.order)
    rest = sorted((miss for misses in by_transport for miss in misses[1:]), key=lambda miss: miss.order)
    macs = _mac_reasons(search)
    return Unplaceable(
        _reason(search, best),
        one_line(_message(search, best, macs)),
        macs,
        _different([*best, *rest])[:NEAR_MISSES],
        proven=not search.budget.exhausted,
    )


def _different(misses: Iterable[Miss]) -> tuple[NearMiss, ...]:
    """The near misses whose messages differ, the first of each."""
    found: dict[str, NearMiss] = {}
    for miss in misses:
        found.setdefault(miss.near.message, miss.near)
    return tuple(replace(near, message=one_line(near.message)) for near in found.values())


def _promising(cohorts: Sequence[Cohort]) -> list[Cohort]:
    """The cohorts with the least memory missing, then those with the most Macs, in their order."""
    if len(cohorts) <= COHORTS:
        return list(cohorts)

    def order(position: int) -> tuple[int, int, int]:
        cohort = cohorts[position]
        need = cohort.needs.bounds(Split.NONE, 1)
        together = need.together if isinstance(need, Bounds) else cohort.model.bytes
        free = nlargest(MAX_RANKS, (mac.free_bytes for mac in cohort.macs.values()))
        return max(0, together - sum(free)), -len(cohort.macs), position

    return [cohorts[i] for i in sorted(nsmallest(COHORTS, range(len(cohorts)), key=order))]


def _possible_cohorts(search: CandidateSearch) -> list[Cohort]:
    """If no Mac is eligible, returns the model as one of them has it."""
    macs = sorted(search.fleet.macs.values(), key=lambda mac: (-mac.free_bytes, mac.name))
    for mac in macs:
        for model in wanted_model(mac, search.request):
            if model.usable:
                return [Cohort(Needs(model, search.request.memory), mlx_versions(mac), {})]
    return []


def _unreached(search: CandidateSearch) -> list[list[Miss]]:
    """By transport, a smallest set in which only a rank 0 that all others can reach is missing."""
    sets: dict[PlacedTransport, list[tuple[str, ...]]] = {}
    for transport, members in search.unreached:
        sets.setdefault(transport, []).append(members)
    found = []
    for transport, members_of_sets in sets.items():
        nodes = min(members_of_sets, key=lambda members: (len(members), members))
        text = f"{LABELS[transport]} of {named(nodes)}: {NO_RANK_0}"
        near = NearMiss(nodes, transport, Split.NONE, text, changes=Changes(reach=True))
        found.append([Miss(0, 0, near, Reason.NOT_YET_OBSERVED)])
    return found


def _shares(budget: StepBudget, count: int) -> Iterator[StepBudget]:
    """Divides a budget into shares. Steps that one share does not use go to the shares after it."""
    for number in range(count):
        share = StepBudget(budget.left // (count - number))
        budget.spend(share.left)
        yield share
        budget.spend(-max(0, share.left))


def _misses(search: CandidateSearch, cohorts: Sequence[Cohort], transport: PlacedTransport, budget: StepBudget) -> list[Miss]:
    """The near misses of a transport, the cheapest to fix first."""
    found: list[Miss] = []
    for cohort, share in zip(cohorts, _shares(budget, len(cohorts)), strict=True):
        if transport is not Transport.NONE:
            found += transport_misses(search, cohort, transport, share)
        elif search.request.min_nodes == 1:
            found += single_mac_misses(search, cohort, share)
    return sorted(found, key=lambda miss: miss.order)


def _reason(search: CandidateSearch, best: Sequence[Miss]) -> Reason:
    if not search.cohorts:
        return Reason.NO_MAC_FITS
    if search.request.min_nodes > max(len(cohort.macs) for cohort in search.cohorts):
        return Reason.NOT_ENOUGH_MACS
    return best[0].reason if best else Reason.NO_ROOM


def _mac_reasons(search: CandidateSearch) -> tuple[MacReason, ...]:
    """Why each Mac cannot be used, by name."""
    ports = search.request.no_ring_ports
    alone = _alone_needs(search) if search.request.min_nodes == 1 else {}
    # Agents write what is wrong with files.
    reasons = [MacReason(name, one_line(why)) for name, why in search.ineligible.items()]
    reasons += [
        MacReason(name, _eligible_reason(search, mac, alone) + (f", and {ports[name]}" if name in ports else ""))
        for name, mac in search.eligible.items()
    ]
    return tuple(sorted(reasons, key=lambda entry: entry.node))


def _eligible_reason(search: CandidateSearch, mac: Mac, alone: Mapping[str, int | str]) -> str:
    """Why an eligible Mac is not used. ``alone``: see ``_alone_needs``; empty if a group needs more Macs."""
    request = search.request
    need = alone.get(mac.name)
    parts = [need if isinstance(need, str) else alone_text(mac, need)] if need is not None else []
    if not mac.backends.intersection(backend(transport) for transport in allowed_transports(request)[1:]):
        group = "join a group" if request.transport is Transport.AUTO else f"use {request.transport}"
        parts.append(f"cannot {group}: {without_backends(mac)}")
    if parts:
        return ", and ".join(parts)
    if not any(cable.connected for cable in search.fleet.links(mac.name)):
        over = ", and no connection to one over the LAN" if Transport.RING in allowed_transports(request) else ""
        return f"has no Thunderbolt cable to another eligible Mac{over}"
    return f"is in no set of {request.min_nodes} Macs with the required links and memory"


def _alone_needs(search: CandidateSearch) -> dict[str, int | str]:
    """By Mac, the least memory that the whole model needs on it, or why that is not known."""
    found: dict[str, int | str] = {}
    for cohort in search.cohorts:
        bounds = cohort.needs.bounds(Split.NONE, 1)
        need = bounds.together if isinstance(bounds, Bounds) else bounds
        for name in cohort.macs:
            before = found.setdefault(name, need)
            if isinstance(need, int) and (isinstance(before, str) or need < before):
                found[name] = need
    return found


def _message(search: CandidateSearch, best: Sequence[Miss], macs: Sequence[MacReason]) -> str:
    """The best near miss of each transport, then why Macs take no rank: all in a small fleet, else the ineligible ones."""
    request = search.request
    parts = _by_transports(best)
    near = "; ".join(parts)
    listed = [entry for entry in macs if len(macs) <= NAMED or entry.node in search.ineligible]
    sentences = by_message((entry.node, entry.message) for entry in listed if not _mentions(near, entry))
    parts += sentences[:NAMED]
    more = len(sentences) - NAMED
    if more > 0:
        parts.append(f"and {more} more {'reason' if more == 1 else 'reasons'} for other Macs")
    if search.budget.exhausted:
        parts.append("the search reached its step limit, so a placement may exist: limit the Macs with spec.nodes.selector")
    wanted = f" on {request.min_nodes} or more Macs" if request.min_nodes > 1 else ""
    return f"{request.model} cannot be placed{wanted}: " + "; ".join(dict.fromkeys(parts))


def _by_transports(best: Iterable[Miss]) -> list[str]:
    """The messages, without repetitions of what several transports have in common."""
    labels: dict[str, list[str]] = {}
    for miss in best:
        label, message = LABELS[miss.near.transport], miss.text
        text = message.removeprefix(label)
        labels.setdefault(text, []).extend([label] if text != message else [])
    return [", ".join(which) + text for text, which in labels.items()]


def _mentions(text: str, entry: MacReason) -> bool:
    """Whether the text already gives this reason for this Mac, alone or with others."""
    before, found, _ = text.partition(f" {entry.message}")
    who = before.rsplit("; ", 1)[-1].rsplit(": ", 1)[-1]
    return bool(found) and entry.node in who.removeprefix("each of ").split(", ")
