"""The answer of a search that found nothing: near misses by transport, a reason for every Mac, and a short message."""

from collections.abc import Iterable, Sequence

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort, mlx_versions
from thunderfleet_operator.placement.eligibility import wanted_model
from thunderfleet_operator.placement.explain.fixes import NO_RANK_0
from thunderfleet_operator.placement.explain.miss import NAMED, Miss, by_message, named
from thunderfleet_operator.placement.explain.shortage import alone_text
from thunderfleet_operator.placement.explain.transports import single_mac_misses, transport_misses
from thunderfleet_operator.placement.fleet import Mac
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.preferences import LABELS, allowed_transports, backend
from thunderfleet_operator.placement.result import Changes, MacReason, NearMiss, Unplaceable
from thunderfleet_operator.placement.search.candidates import CandidateSearch

NO_MACS = "the cluster has no Mac: run `thunderfleet-kubelet join` on a Mac"
NEAR_MISSES = 16
"""Most near misses in an answer."""


def explain(search: CandidateSearch) -> Unplaceable:
    """Why a search found nothing."""
    if not search.fleet.macs:
        return Unplaceable(Reason.NO_MACS, NO_MACS)
    cohorts = search.cohorts or _possible_cohorts(search)
    kinds = allowed_transports(search.request) if cohorts else ()
    by_transport = [*_unreached(search), *filter(None, (_misses(search, cohorts, kind) for kind in kinds))]
    best = sorted((misses[0] for misses in by_transport), key=lambda miss: miss.order)
    rest = sorted((miss for misses in by_transport for miss in misses[1:]), key=lambda miss: miss.order)
    macs = _mac_reasons(search)
    return Unplaceable(
        _reason(search, best),
        _message(search, best, macs),
        macs,
        _different([*best, *rest])[:NEAR_MISSES],
        proven=not search.budget.exhausted,
    )


def _different(misses: Iterable[Miss]) -> tuple[NearMiss, ...]:
    """The near misses whose messages differ, the first of each."""
    found: dict[str, NearMiss] = {}
    for miss in misses:
        found.setdefault(miss.near.message, miss.near)
    return tuple(found.values())


def _possible_cohorts(search: CandidateSearch) -> list[Cohort]:
    """If no Mac is eligible: the model as one of them has it."""
    macs = sorted(search.fleet.macs.values(), key=lambda mac: (-mac.free_bytes, mac.name))
    for mac in macs:
        for model in wanted_model(mac, search.request):
            if model.complete and model.sized:
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


def _misses(search: CandidateSearch, cohorts: Sequence[Cohort], transport: PlacedTransport) -> list[Miss]:
    """The near misses of a transport, the cheapest to mend first."""
    found: list[Miss] = []
    for cohort in cohorts:
        if transport is not Transport.NONE:
            found += transport_misses(search, cohort, transport)
        elif search.request.min_nodes == 1:
            found += single_mac_misses(search, cohort)
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
    reasons = [MacReason(name, why) for name, why in search.ineligible.items()]
    reasons += [
        MacReason(name, _eligible_reason(search, mac) + (f", and {ports[name]}" if name in ports else ""))
        for name, mac in search.eligible.items()
    ]
    return tuple(sorted(reasons, key=lambda entry: entry.node))


def _eligible_reason(search: CandidateSearch, mac: Mac) -> str:
    """Why an eligible Mac is not used."""
    request = search.request
    parts = [_alone_reason(search, mac)] if request.min_nodes == 1 else []
    if not mac.backends.intersection(backend(transport) for transport in allowed_transports(request)[1:]):
        group = "join a group" if request.transport is Transport.AUTO else f"use {request.transport}"
        has = f"supports only {', '.join(sorted(mac.backends))}" if mac.backends else "has no backend"
        parts.append(f"cannot {group}: its MLX {mac.mlx_version or '(unknown version)'} {has}")
    if parts:
        return ", and ".join(parts)
    if not any(cable.connected for cable in search.fleet.links(mac.name)):
        over = ", and no connection to one over the LAN" if Transport.RING in allowed_transports(request) else ""
        return f"has no Thunderbolt cable to another eligible Mac{over}"
    return f"is in no set of {request.min_nodes} Macs with the required links and memory"


def _alone_reason(search: CandidateSearch, mac: Mac) -> str:
    """Why a Mac does not hold the whole model alone."""
    needs = [cohort.needs.bounds(Split.NONE, 1) for cohort in search.cohorts if mac.name in cohort.macs]
    known = [need.together for need in needs if isinstance(need, Bounds)]
    return alone_text(mac, min(known)) if known else str(needs[0])


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
    """The messages, without repeating what several transports have in common."""
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
