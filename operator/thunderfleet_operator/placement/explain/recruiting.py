"""Near misses that would work if Macs that cannot take part were mended."""

from collections.abc import Mapping, Sequence

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.eligibility import wanted_model
from thunderfleet_operator.placement.explain.miss import COST_MEMORY, NEAR_MISS_NODES, Miss, Obstacle, by_message, listed, named
from thunderfleet_operator.placement.explain.obstacles import mac_obstacles
from thunderfleet_operator.placement.explain.relaxed import cheapest_set
from thunderfleet_operator.placement.explain.shortage import group_shortage, has_room
from thunderfleet_operator.placement.fleet import Mac
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.preferences import LABELS, MESH_RANKS, allowed_splits
from thunderfleet_operator.placement.result import NearMiss
from thunderfleet_operator.placement.search.candidates import CandidateSearch

RECRUITS = 8
"""Most Macs in need of a change that are considered."""


def _needs(search: CandidateSearch, cohort: Cohort | None) -> Needs | None:
    """What the model needs; if no Mac is eligible, according to any Mac that has it."""
    if cohort is not None:
        return cohort.needs
    known = (model for _, mac in sorted(search.fleet.macs.items()) for model in wanted_model(mac, search.request))
    facts = next((model for model in known if model.complete and model.sized), None)
    return Needs(facts, search.request.memory) if facts is not None else None


def single_recruit(search: CandidateSearch, cohort: Cohort | None) -> Miss | None:
    """A Mac that would hold the whole model if it could take a rank."""
    needs, macs = _needs(search, cohort), search.fleet.macs
    need = needs.bounds(Split.NONE, 1) if needs is not None else None
    for name, obstacle in mac_obstacles(search, cohort, Transport.NONE).items():
        if isinstance(need, Bounds) and macs[name].free_bytes < need.together:
            continue
        near = NearMiss((name,), Transport.NONE, Split.NONE, f"{LABELS[Transport.NONE]}: {name} {obstacle.text}")
        return Miss(obstacle.cost, 0, near, Reason.NO_ROOM)
    return None


def group_with_recruits(
    search: CandidateSearch, cohort: Cohort | None, transport: PlacedTransport, able: Sequence[Mac]
) -> Miss | None:
    """The near miss of a group that more Macs than the ``able`` ones may join; None if more Macs do not help."""
    request, label = search.request, LABELS[transport]
    least, most = max(2, request.min_nodes), request.max_nodes or len(search.fleet.macs)
    if least > (request.max_nodes or least):
        return None
    if transport is Transport.JACCL:
        most = min(most, MESH_RANKS)
        if least > MESH_RANKS:
            text = f"{label}: supports at most {MESH_RANKS} Macs, spec.nodes.min is {least}"
            return Miss(COST_MEMORY + 3, 0, NearMiss((), transport, Split.NONE, text), Reason.TRANSPORT_UNAVAILABLE)
    obstacles = mac_obstacles(search, cohort, transport)
    names_able = {mac.name for mac in able}
    recruits = [name for name in obstacles if name not in names_able][: max(RECRUITS, least - len(able))]
    members = [*able, *(search.fleet.macs[name] for name in recruits)]
    if len(members) < least:
        return _too_few(members, recruits, obstacles, transport, least)
    needs = _needs(search, cohort)
    if needs is not None and recruits:
        found = _with_recruits(search, needs, transport, members, obstacles, range(least, min(most, len(members)) + 1))
        # Memory that is short decides only if there are too few able Macs.
        if found is not None and (found.missing_bytes == 0 or len(able) < least):
            return found
    return _enough_recruits(able, recruits, obstacles, transport, least) if len(able) < least else None


def _too_few(
    members: Sequence[Mac], recruits: Sequence[str], obstacles: Mapping[str, Obstacle], transport: PlacedTransport, least: int
) -> Miss:
    missing = least - len(members)
    lacking = [f"needs {least} Macs, {len(members)} available: join {missing} more to the cluster (thunderfleet-kubelet join)"]
    lacking += by_message((name, obstacles[name].text) for name in recruits)
    near = NearMiss(
        tuple(sorted(mac.name for mac in members)), transport, Split.NONE, f"{LABELS[transport]}: {listed(lacking)}"
    )
    return Miss(COST_MEMORY * missing, 0, near, Reason.NO_ROOM)


def _with_recruits(
    search: CandidateSearch,
    needs: Needs,
    transport: PlacedTransport,
    members: Sequence[Mac],
    obstacles: Mapping[str, Obstacle],
    sizes: range,
) -> Miss | None:
    """The first size and split with room, and the changes that it needs; if none has room, the smallest shortage."""
    ranked = sorted(members, key=lambda mac: (-mac.free_bytes, mac.name))
    short: list[Miss] = []
    for size, split in ((size, split) for size in sizes for split in allowed_splits(transport, search.request)):
        need = needs.bounds(split, size)
        if isinstance(need, str):
            continue
        if not has_room(ranked, need, size):
            subject = f"the {size} Macs with the most free memory, if all could take part, have"
            short.append(group_shortage(ranked, need, transport, split, size, subject))
            continue
        found = cheapest_set(search.fleet, members, needs, transport, split, size, need, obstacles)
        if found is not None:
            nodes, hops = found
            lacking = by_message((name, obstacles[name].text) for name in nodes if name in obstacles)
            text = f"{LABELS[transport]} of {named(nodes)}: {listed([*lacking, *(entry.text for entry in hops)])}"
            cost = sum(entry.cost for entry in hops) + sum(obstacles[name].cost for name in nodes if name in obstacles)
            return Miss(cost, 0, NearMiss(nodes, transport, split, text), Reason.NO_ROOM)
    return min(short, key=lambda miss: miss.order, default=None)


def _enough_recruits(
    able: Sequence[Mac], recruits: Sequence[str], obstacles: Mapping[str, Obstacle], transport: PlacedTransport, least: int
) -> Miss:
    """The recruits that make the able Macs enough, where it is not known what the model needs."""
    wanted = recruits[: least - len(able)]
    nodes = tuple(sorted([*(mac.name for mac in able), *wanted])[:NEAR_MISS_NODES])
    text = f"{LABELS[transport]} of {named(nodes)}: {listed(by_message((name, obstacles[name].text) for name in wanted))}"
    return Miss(sum(obstacles[name].cost for name in wanted), 0, NearMiss(nodes, transport, Split.NONE, text), Reason.NO_ROOM)
